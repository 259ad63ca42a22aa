"""Programs of several inputs and outputs as layers: features are the inputs in order, and each output is a feature.

Two kinds of program are known by what they offer, so that nothing is imported from where they are defined: those with
named `inputs` and `outputs` (`WhileProgram`), and those marked `is_smooth` (functions under `@smooth`).
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

_POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


def is_program(algorithm: Any) -> bool:
    """Whether `algorithm` takes its features one by one, as `run_program` gives them."""
    named = isinstance(getattr(algorithm, "inputs", None), tuple) and isinstance(
        getattr(algorithm, "outputs", None), tuple
    )
    return named or getattr(algorithm, "is_smooth", False) is True


class Signature(NamedTuple):
    """The positional parameters of a function, how many of them have no default, and whether there may be more."""

    names: tuple[str, ...]
    required: int
    variadic: bool


def signature_of(algorithm: Any) -> Signature | None:
    """What a smooth function takes; `None` for other programs, which name their inputs. Asked once, for tracers cannot ask."""
    if getattr(algorithm, "is_smooth", False) is not True:
        return None
    listed = inspect.signature(algorithm).parameters.values()
    fixed = [p for p in listed if p.kind in _POSITIONAL]
    required = sum(p.default is inspect.Parameter.empty for p in fixed)
    variadic = any(p.kind is inspect.Parameter.VAR_POSITIONAL for p in listed)
    return Signature(tuple(p.name for p in fixed), required, variadic)


def run_program(where: str, program: Any, signature: Signature | None, x: Tensor, dim: int) -> Tensor:
    """The program on the features of x along `dim`; the result has its outputs along `dim`. See `signature_of`."""
    if x.dim() == 0:
        raise ValueError(f"{where}: x has no dimension of features; give it one with x[None].")
    features = x.movedim(dim, -1)
    if signature is None:
        return _run_named(where, program, features).movedim(-1, dim)
    return _run_smooth(where, program, signature, features).movedim(-1, dim)


def _run_named(where: str, program: Any, features: Tensor) -> Tensor:
    count = features.shape[-1]
    inputs: tuple[str, ...] = program.inputs
    if count != len(inputs):
        raise ValueError(
            f"{where}: {count} features do not fit the program, which has the {len(inputs)} inputs {', '.join(inputs)}, in "
            "this order. Say which they are with WhileProgram(..., inputs=(...)); other variables start at 0."
        )
    result = program(**dict(zip(inputs, features.unbind(-1), strict=True)))
    return torch.stack(result, -1) if isinstance(result, tuple) else result.unsqueeze(-1)


def _run_smooth(where: str, function: Callable[..., Any], signature: Signature, features: Tensor) -> Tensor:
    """A function of one argument gets all features as a vector, one of several gets each as a number."""
    names, required, variadic = signature
    count, batch = features.shape[-1], features.shape[:-1]
    flat = features.reshape(-1, count) if batch else features
    if len(names) == 1 and not variadic:
        arguments: tuple[Tensor, ...] = (flat,)
    else:
        if count < required or (count > len(names) and not variadic):
            raise ValueError(
                f"{where}: {count} features do not fit {getattr(function, '__name__', 'the function')}({', '.join(names)}): "
                f"features are its arguments in order."
            )
        arguments = flat.unbind(-1)
    result = function(*arguments, batched=True) if batch else function(*arguments)
    outputs = torch.cat(_columns(where, result, 1 if batch else 0), -1)
    return outputs.reshape(*batch, outputs.shape[-1])


def _columns(where: str, result: Any, batch_dims: int) -> list[Tensor]:
    """Every output as (batch, features): numbers are one feature, vectors several; tuples and lists are joined."""
    if isinstance(result, Tensor):
        if not result.is_floating_point():
            raise TypeError(f"{where}: a program's outputs must be floating, got {result.dtype}.")
        return [result.flatten(batch_dims) if result.dim() > batch_dims else result.unsqueeze(-1)]
    if isinstance(result, dict):
        result = tuple(result.values())
    if isinstance(result, (tuple, list)) and result:
        return [column for part in result for column in _columns(where, part, batch_dims)]
    raise TypeError(f"{where}: the algorithm returned {type(result).__name__}, wanted a tensor.")

"""Running WHILE-programs smoothly: `run_while` validates, dispatches to a backend and returns."""

from __future__ import annotations

import numbers
import re
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor

from algonet.core import tracing
from algonet.core.cache import Cache
from algonet.core.checks import check_integer
from algonet.core.hints import write_instead
from algonet.core.identity import identity, interned
from algonet.relax import EXITS, Exit, Sech

from .code import Code, flatten
from .errors import NonHaltingWarning
from .operation import RUN_WHILE, WhileSettings
from .reference import run_reference
from .source import read_source
from .syntax import Program

#: A loop is left at this probability of going on, and cut off after so many iterations.
EPSILON, MAX_ITERATIONS = 1e-6, 1000


class WhileResult(NamedTuple):
    """The outcome of a smooth run; every tensor has the broadcast shape of the inputs.

    `outputs` (differentiable) by variable name. `remaining`: the probability of going on that a loop still had when it
    reached `max_iterations`, the largest over all loops; 0 where all halted. `iterations`: loop bodies run, over all loops.
    """

    outputs: dict[str, Tensor]
    remaining: Tensor
    iterations: Tensor


@dataclass(frozen=True, eq=False)
class Prepared:
    """A program ready to run smoothly: flat code, checked settings. Made once, called often.

    `known` are the variables a user may set and read. `settings` keeps the settings of earlier calls.
    """

    code: Code
    outputs: tuple[str, ...]
    known: tuple[str, ...]
    epsilon: float
    max_iterations: int
    trainable: bool
    settings: Cache[WhileSettings] = field(default_factory=lambda: Cache("settings of a WHILE-program", 64))


def prepare(
    program: Program | str,
    *,
    outputs: Sequence[str] = ("x0",),
    epsilon: float = EPSILON,
    max_iterations: int = MAX_ITERATIONS,
    trainable: bool = False,
) -> Prepared:
    """Parse, check and flatten a program for smooth runs."""
    parsed = read_source(program)
    known = tuple(f"x{number}" for number in parsed.variables)
    if isinstance(outputs, str) or not outputs:
        raise ValueError(f'run_while: `outputs` must be a sequence of names such as ("x0",), got {outputs!r}.')
    for name in outputs:
        if name not in known:
            raise ValueError(f"run_while: unknown output {name!r}; the program's variables are {', '.join(known)}.")
    if isinstance(epsilon, bool) or not isinstance(epsilon, (int, float)) or not 0 <= epsilon < 1:
        raise ValueError(f"run_while: `epsilon` must lie in [0, 1), got {epsilon!r}.")
    check_integer("run_while", "max_iterations", max_iterations, 1, 2**31 - 1)
    code = flatten(parsed, merge=not trainable)
    return Prepared(code, tuple(outputs), known, float(epsilon), max_iterations, trainable)


def run_while(
    program: Program | str,
    inputs: Mapping[str, Tensor | float],
    *,
    exit: Exit = Sech(),
    outputs: Sequence[str] = ("x0",),
    epsilon: float = EPSILON,
    max_iterations: int = MAX_ITERATIONS,
    backend: str = "auto",
) -> WhileResult:
    """Run a WHILE-program smoothly: every statement to the extent of its probability.

    A loop over v inside probability p repeats { p := p phi(v); stop if p <= epsilon; run the body with p }, at most
    `max_iterations` times. `y := x` is y := p x + (1-p) y; `y := y + 1` is y := y + p. Hard limit: with `Tent`,
    `SmoothTent(k)` or `BumpExit` and integer inputs the result is the discrete program's, exactly (up to 2^24 in float32).

    `inputs` maps variable names to tensors of broadcastable shapes or numbers. Differentiable as often as the exit is
    (apart from the cut at epsilon); kernels give the first derivative, higher ones run the reference. Memory is that of
    inputs and outputs (each output's derivative by each input is kept for backward). Warns with `NonHaltingWarning`
    where a loop is cut off. The paper's "Smooth WHILE-Programs".

    >>> result = run_while("WHILE x1 != 0 DO x0 := x0 + 2 x1 := x1 - 1 END", {"x1": torch.tensor([3.0, 2.5])})
    >>> result.outputs["x0"]
    tensor([5.6327, 4.6591])
    """
    prepared = prepare(program, outputs=outputs, epsilon=epsilon, max_iterations=max_iterations)
    values, diagnostics = execute(prepared, inputs, exit=exit, backend=backend)
    assert diagnostics is not None
    warn_if_cut(prepared, diagnostics)
    return as_result(prepared, values, diagnostics)


def execute(
    prepared: Prepared,
    inputs: Mapping[str, Tensor | float],
    *,
    exit: Exit,
    parameters: tuple[Tensor, Tensor] | None = None,
    watched: bool = True,
    backend: str = "auto",
) -> tuple[Tensor, Tensor | None]:
    """Values, and if `watched` the diagnostics (*batch, 3): probability left, bodies run, number of the cut loop.

    Values are (*batch) for one output, (*batch, outputs) for several. `parameters` are a trainable program's weights and
    biases.
    """
    check_exit("run_while", exit)
    names, elements, dtype = _checked_inputs(prepared, inputs)
    like = elements[0] if elements else torch.empty((), dtype=dtype) if parameters is None else parameters[0]
    steepness = _steepness(exit, like)
    per_element = steepness.dim() > 0
    if per_element:
        elements.append(steepness)
        steepness = steepness.new_ones(())
    if any(t.shape != elements[0].shape for t in elements):
        elements = _broadcast(names, elements)
    shared = (steepness, steepness, steepness) if parameters is None else (steepness, *(t.to(like) for t in parameters))
    tensors = (*shared, *elements)
    settings = _settings(prepared, names, exit, per_element, _moving(elements), watched)
    values, *diagnostics = RUN_WHILE(tensors, settings, backend)
    return values if values.dtype == dtype else values.to(dtype), diagnostics[0].detach() if watched else None


def execute_gated(
    prepared: Prepared,
    inputs: Mapping[str, Tensor | float],
    make_gates: Callable[[tuple[int, ...], list[str], Tensor], Tensor],
    *,
    exit: Exit,
    parameters: tuple[Tensor, Tensor] | None = None,
) -> Tensor:
    """Values of a run by the reference in which each assignment is made to the extent of its gate."""
    names, elements, dtype = _checked_inputs(prepared, inputs)
    if not elements:
        raise ValueError("run_gated: give at least one input.")
    elements = _broadcast(names, elements)
    code = prepared.code
    batch = tuple(elements[0].shape)
    weight, bias = (None, None) if parameters is None else parameters
    values, _ = run_reference(
        code,
        {code.slots[name]: element for name, element in zip(names, elements, strict=True)},
        [code.slots[name] for name in prepared.outputs],
        exit=exit,
        epsilon=prepared.epsilon,
        max_iterations=prepared.max_iterations,
        weight=weight,
        bias=bias,
        gates=make_gates(batch, assignment_labels(code), elements[0]),
    )
    return (values.squeeze(-1) if len(prepared.outputs) == 1 else values).to(dtype)


def assignment_labels(code: Code) -> list[str]:
    """Each assignment of the core program by its source line and what it does."""
    labels = []
    for index in code.assignments:
        kind, target, argument = code.ops[index]
        change = (
            code.names[argument]
            if kind == "copy"
            else f"{code.names[target]} {'+' if argument > 0 else '-'} {abs(argument)}"
        )
        labels.append(f"line {code.lines[index]}: {code.names[target]} := {change}")
    return labels


def check_exit(where: str, exit: Any) -> None:
    if not isinstance(exit, Exit):
        instead = write_instead("exit", exit, EXITS, number="Sech")
        raise TypeError(f"{where}: `exit` must be an exit such as Sech(2.0) or Tent(), got {exit!r}{instead}.")


def _steepness(exit: Exit, like: Tensor) -> Tensor:
    """The exit's steepness as a tensor beside `like`; 1 for exits that have none."""
    value: Any = getattr(exit, exit.softness_field) if exit.softness_field is not None else 1.0
    if not isinstance(value, Tensor):
        return torch.full((), float(value), dtype=like.dtype, device=like.device)
    return value if value.dtype == like.dtype and value.device == like.device else value.to(like)


def _settings(
    prepared: Prepared, names: tuple[str, ...], exit: Exit, per_element: bool, moving: tuple[bool, ...], watched: bool
) -> WhileSettings:
    # While a graph is traced, nothing is cached
    key = None if tracing.compiling() else (names, identity(exit), per_element, moving, watched)
    found = None if key is None else prepared.settings.find(key)
    if found is not None:
        return found
    slots = prepared.code.slots
    made = WhileSettings(
        prepared.code.text,
        interned(exit),
        tuple([slots[name] for name in names]),
        tuple([slots[name] for name in prepared.outputs]),
        prepared.epsilon,
        prepared.max_iterations,
        prepared.trainable,
        per_element,
        moving,
        watched,
    )
    return made if key is None else prepared.settings.put(key, made)


def as_result(prepared: Prepared, values: Tensor, diagnostics: Tensor) -> WhileResult:
    outputs = (values,) if len(prepared.outputs) == 1 else values.unbind(-1)
    remaining, iterations, _ = diagnostics.unbind(-1)
    return WhileResult(dict(zip(prepared.outputs, outputs, strict=True)), remaining, iterations.to(torch.int64))


def warn_if_cut(prepared: Prepared, diagnostics: Tensor) -> None:
    """One warning if any element ran into `max_iterations`. Reads values: on a GPU this waits for the kernel."""
    if tracing.compiling() or tracing.transforming():
        return
    if diagnostics.numel() == 0:
        return
    left, where = diagnostics[..., 0].reshape(-1).max(0)
    if float(left) > 0:
        loop = int(diagnostics.reshape(-1, 3)[where, 2])
        line = prepared.code.lines[prepared.code.loops[loop]]
        share = float((diagnostics[..., 0] > 0).float().mean())
        warnings.warn(
            f"the loop at line {line} was cut off at max_iterations={prepared.max_iterations} with probability "
            f"{float(left):.3g} left to go on (in {share:.1%} of the elements); raise max_iterations, or see whether the "
            f"program halts there.",
            NonHaltingWarning,
            stacklevel=3,
        )


def _checked_inputs(
    prepared: Prepared, inputs: Mapping[str, Tensor | float]
) -> tuple[tuple[str, ...], list[Tensor], torch.dtype]:
    """Names in slot order, their tensors in the precision to compute in, and the precision of the result."""
    names = tuple(name for name in prepared.known if name in inputs)
    if len(names) < len(inputs):
        stranger = next(name for name in inputs if name not in prepared.known)
        hint = "" if re.fullmatch(r"x\d+", stranger) else "; inputs are named x0, x1, ..."
        known = ", ".join(prepared.known)
        raise ValueError(f"run_while: unknown variable {stranger!r}; the program's variables are {known}{hint}.")
    given: list[Any] = [inputs[name] for name in names]
    first: Any = given[0] if given else None
    if (
        isinstance(first, Tensor)
        and (first.dtype == torch.float32 or first.dtype == torch.float64)
        and all(isinstance(t, Tensor) and t.dtype == first.dtype and t.device == first.device for t in given)
    ):
        return names, given, first.dtype
    for name, value in zip(names, given, strict=True):
        if isinstance(value, Tensor):
            if not value.is_floating_point():
                raise TypeError(
                    f"run_while: `{name}` must be a floating tensor, got {value.dtype}; call .float() first."
                )
        elif isinstance(value, bool) or not isinstance(value, numbers.Real):
            raise TypeError(
                f"run_while: `{name}` must be a floating tensor or a number, got {type(value).__name__}; "
                "wrap lists in torch.tensor(...)."
            )
    tensors = [value for value in given if isinstance(value, Tensor)]
    dtype = tensors[0].dtype if tensors else torch.get_default_dtype()
    for tensor in tensors:
        dtype = torch.promote_types(dtype, tensor.dtype)
    device = tensors[0].device if tensors else torch.device("cpu")
    strangers = [t.device for t in tensors if t.device != device]
    if strangers:
        raise ValueError(
            f"run_while: inputs must share a device, got {device} and {strangers[0]}; move one with .to()."
        )
    wide = torch.float32 if dtype in (torch.float16, torch.bfloat16) else dtype
    full = [
        value.to(wide) if isinstance(value, Tensor) else torch.full((), float(value), dtype=wide, device=device)
        for value in given
    ]
    return names, full, dtype


def _broadcast(names: tuple[str, ...], elements: list[Tensor]) -> list[Tensor]:
    try:
        return list(torch.broadcast_tensors(*elements))
    except RuntimeError:
        labels = [*names, "steepness"]
        shapes = ", ".join(f"{label} {tuple(t.shape)}" for label, t in zip(labels, elements, strict=False))
        raise ValueError(f"run_while: inputs must broadcast together, got {shapes}.") from None


def _moving(elements: list[Tensor]) -> tuple[bool, ...]:
    """Which of the element-wise tensors may be asked for a gradient."""
    if tracing.compiling() or tracing.transforming():
        return (True,) * len(elements)
    if not torch.is_grad_enabled():
        return (False,) * len(elements)
    return tuple([t.requires_grad for t in elements])


__all__ = ["NonHaltingWarning", "WhileResult", "run_while"]

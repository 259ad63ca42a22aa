"""What every domain checks and widens its tensors by: errors that say what was wanted, what came and what to do."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from numbers import Integral
from typing import Any

import numpy as np
import torch
from torch import Tensor

from algonet.core import tracing


def as_tensor(value: Any) -> Any:
    """An array of NumPy, JAX, CuPy (what has `__dlpack__` or `__array__`) as a tensor, which shares its memory where that
    may be written; anything else, numbers among it, as it is."""
    if isinstance(value, Tensor) or not hasattr(value, "__array__") or not getattr(value, "shape", ()):
        return value
    try:
        return torch.from_dlpack(value)
    except (AttributeError, BufferError, TypeError):  # no DLPack, or memory that is only read
        return torch.tensor(np.asarray(value))


def check_softness(owner: object, name: str, value: Any) -> None:
    """Raise unless `value` is a positive number or a floating tensor (whose values are not read: no synchronisation)."""
    where = owner if isinstance(owner, str) else type(owner).__name__
    if isinstance(value, Tensor):
        if not value.is_floating_point():
            raise TypeError(f"{where}: `{name}` must be a floating tensor or a number, got a tensor of {value.dtype}.")
    elif isinstance(value, bool) or not isinstance(value, (int, float)):
        raise TypeError(f"{where}: `{name}` must be a positive number or a floating tensor, got {value!r}.")
    elif not 1e-37 <= value <= 1e37:  # beyond, it or its reciprocal is infinite in float32, and 0 times that is NaN
        raise ValueError(f"{where}: `{name}` must be positive and finite, got {value!r}; float32 takes 1e-37 to 1e37.")


def check_module(where: str, module: Any) -> None:
    """Raise unless `module` is an nn.Module; a plain function is the usual slip."""
    if not isinstance(module, torch.nn.Module):
        got = f"the function {module.__name__}" if hasattr(module, "__name__") else type(module).__name__
        raise TypeError(f"{where}: wanted an nn.Module, got {got}; wrap a function as algonet.Insert(function).")


def check_tensor(owner: object, x: Any) -> Tensor:
    """`x` as a tensor if it is a floating one; an error that says what to do otherwise."""
    x = as_tensor(x)
    where = owner if isinstance(owner, str) else type(owner).__name__
    if not isinstance(x, Tensor):
        raise TypeError(f"{where}: expected a tensor, got {type(x).__name__}; wrap it in torch.tensor(...).")
    if not x.is_floating_point():
        raise TypeError(f"{where}: expected a floating tensor, got {x.dtype}; call .float() first.")
    if x.is_sparse or x.is_sparse_csr:
        raise TypeError(f"{where}: expected a dense tensor, got a {x.layout} one; call .to_dense() first.")
    return x


_KINDS: dict[str, Callable[[torch.dtype], bool]] = {
    "floating ": lambda dtype: dtype.is_floating_point,
    "integer ": lambda dtype: not dtype.is_floating_point and not dtype.is_complex and dtype != torch.bool,
}


def check_spec(where: str, name: str, value: Any, spec: str, kind: str = "floating ", hint: str = "") -> Tensor:
    """`value` itself if it is a tensor of this kind and shape; an error that says where, what was wanted and what came.

    `spec` lists dimensions: numbers stand for themselves, names for any size, and `*batch`, in front, for any dimensions.

    >>> check_spec("turn", "points", torch.zeros(5, 3), "*batch N 2", hint="; drop the third coordinate")
    Traceback (most recent call last):
    ValueError: turn: `points` must be a floating tensor (*batch, N, 2), got (5, 3); drop the third coordinate.
    """
    sizes = spec.removeprefix("*batch").split()
    batched = spec.startswith("*batch")
    dimensions = ", ".join(spec.split()) + ("," if len(sizes) == 1 and not batched else "")
    wanted = f"{where}: `{name}` must be {'an' if kind[:1] == 'i' else 'a'} {kind}tensor ({dimensions})"
    if not isinstance(value, Tensor):
        raise TypeError(f"{wanted}, got {type(value).__name__}{hint}.")
    if kind and not _KINDS[kind](value.dtype):
        raise TypeError(f"{wanted}, got {value.dtype}{hint}.")
    shape = tuple(value.shape)
    tail = shape[-len(sizes) :] if batched else shape
    fits = len(tail) == len(sizes) and all(not d.isdigit() or int(d) == n for d, n in zip(sizes, tail, strict=True))
    if not fits:
        raise ValueError(f"{wanted}, got {shape}{hint}.")
    return value


def is_integer(value: Any) -> bool:
    """Whether it is an integer, Python's or NumPy's; True and tensors are none."""
    return type(value) is int or (isinstance(value, Integral) and not isinstance(value, bool))


def check_integer(where: str, name: str, value: Any, least: int, most: int | None = None) -> int:
    """`value` as Python's integer; raises unless it is one from `least` to `most`."""
    if not is_integer(value) or value < least or (most is not None and value > most):
        wanted = f"from {least} on" if most is None else f"from {least} to {most}"
        raise ValueError(f"{where}: `{name}` must be an integer {wanted}, got {value!r}.")
    return int(value)


def check_size(where: str, size: Any) -> tuple[int, int]:
    """(height, width) if both are positive integers; one number is a square."""
    sides = size if isinstance(size, (tuple, list)) else (size, size)
    if len(sides) != 2 or not all(map(is_integer, sides)) or min(sides) < 1:
        raise ValueError(f"{where}: `size` must be (height, width), both integers from 1 on, got {size!r}.")
    return int(sides[0]), int(sides[1])


def check_epsilon(owner: object, epsilon: float, most: float = 0.5) -> None:
    if not 0 < epsilon < most:
        raise ValueError(f"{type(owner).__name__}.reach: `epsilon` must lie in (0, {most}), got {epsilon!r}.")


def broadcast_shapes(*shapes: Sequence[int]) -> torch.Size:
    """As torch's, whose first call loads sympy, for half a second: shapes that end alike do without it.

    >>> broadcast_shapes((2, 3), (), (3,))
    torch.Size([2, 3])
    """
    longest = max(shapes, key=len, default=())
    for shape in shapes:
        if tracing.compiling() or tuple(longest[len(longest) - len(shape) :]) != tuple(shape):
            return torch.broadcast_shapes(*shapes)
    return torch.Size(longest)


def widened(x: Tensor) -> Tensor:
    """`x` in at least float32: half precisions are for storage, exponentials and quotients need more digits."""
    return x.float() if x.dtype in (torch.float16, torch.bfloat16) else x


def log_floor(x: Tensor) -> float:
    """The logarithm of the smallest normal number of x's precision: where `log` forms of compact families stop."""
    return math.log(torch.finfo(x.dtype).tiny)

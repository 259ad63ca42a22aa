"""Finite differences, the paper's derivating layer."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from algonet.core.checks import check_tensor

_PADDINGS = (None, "zero", "edge", "wrap")


def finite_differences(
    x: Tensor,
    dims: int | Sequence[int] = -1,
    *,
    center: bool = False,
    pad: str | None = None,
    stack: int | None = None,
) -> Tensor:
    """x shifted by one along each of `dims` minus x: d_i = x_{i+1} - x_i, the discrete derivative.

    Several dims are differentiated one after the other (a mixed derivative). `center=True` shifts the mean of the
    differences along those dims to zero, before padding. `pad` keeps the size: "zero" appends zeros, "edge" repeats the
    last difference, "wrap" closes the circle (x_0 follows x_{n-1}). `stack` gives the gradient instead: the difference
    along each of `dims` by itself, stacked along a new dimension `stack` (it needs a `pad`, so that all have one size).
    Linear, so differentiable to any order; O(size of x).

    >>> finite_differences(torch.tensor([1.0, 4.0, 9.0, 16.0]))
    tensor([3., 5., 7.])
    >>> finite_differences(torch.tensor([1.0, 4.0, 9.0]), pad="wrap")
    tensor([ 3.,  5., -8.])
    >>> image = torch.arange(3.0)[:, None] * 10 + torch.arange(3.0)
    >>> finite_differences(image, (0, 1), pad="edge", stack=0)[:, 0, 0]
    tensor([10.,  1.])
    """
    return gated_differences(x, dims, center, pad, stack)


def gated_differences(
    x: Tensor,
    dims: int | Sequence[int],
    center: bool,
    pad: str | None,
    stack: int | None,
    make_gates: Callable[[tuple[int, ...], list[str], Tensor], Tensor] | None = None,
) -> Tensor:
    """`finite_differences` whose difference i along a dim is gate_i (x_{i+1} - x_i), with the gates that `make_gates` makes."""
    x = check_tensor("finite_differences", x)
    chosen = _checked_dims(x, dims)
    if pad not in _PADDINGS:
        raise ValueError(f"finite_differences: unknown pad {pad!r}; choose one of {', '.join(map(repr, _PADDINGS))}.")
    gates = {} if make_gates is None else _stencil_gates(x, chosen, pad, make_gates)
    if stack is not None:
        if pad is None:
            raise ValueError("finite_differences: `stack` needs a `pad` that keeps the size: 'zero', 'edge' or 'wrap'.")
        if not -x.dim() - 1 <= stack <= x.dim():
            raise ValueError(f"finite_differences: `stack` {stack} is out of range for x of shape {tuple(x.shape)}.")
        return torch.stack([_differentiated(x, (dim,), center, pad, gates) for dim in chosen], stack)
    return _differentiated(x, chosen, center, pad, gates)


def _stencil_gates(x: Tensor, dims: tuple[int, ...], pad: str | None, make_gates: Any) -> dict[int, Tensor]:
    """Per dim, gates that broadcast to its differences: one for each place along it, the same along the other `dims`."""
    beside = [i for i in range(x.dim()) if i not in dims]
    counts = [x.shape[dim] - (pad != "wrap") for dim in dims]
    pairs = [(dim, i) for dim, count in zip(dims, counts, strict=True) for i in range(count)]
    labels = [f"dim {dim}: x[{(i + 1) % x.shape[dim]}] - x[{i}]" for dim, i in pairs]
    parts = make_gates(tuple(x.shape[i] for i in beside), labels, x).split(counts, -1)
    found = {}
    for dim, part in zip(dims, parts, strict=True):
        shape = [n if i in beside else 1 for i, n in enumerate(x.shape)]
        shape[dim] = part.shape[-1]
        found[dim] = part.movedim(-1, sorted([*beside, dim]).index(dim)).reshape(shape)
    return found


def _differentiated(
    x: Tensor, dims: tuple[int, ...], center: bool, pad: str | None, gates: Mapping[int, Tensor]
) -> Tensor:
    for dim in dims:
        x = (torch.cat([x, x.narrow(dim, 0, 1)], dim) if pad == "wrap" else x).diff(dim=dim)
        x = gates[dim] * x if dim in gates else x
    if center:
        x = x - x.mean(dim=dims, keepdim=True)
    for dim in dims if pad in ("zero", "edge") else ():
        last = x.narrow(dim, x.shape[dim] - 1, 1)
        x = torch.cat([x, last if pad == "edge" else torch.zeros_like(last)], dim)
    return x


def _checked_dims(x: Tensor, dims: int | Sequence[int]) -> tuple[int, ...]:
    listed = tuple(dims) if isinstance(dims, Sequence) else (dims,)
    for dim in listed:
        if not -x.dim() <= dim < x.dim():
            raise ValueError(f"finite_differences: dim {dim} is out of range for x of shape {tuple(x.shape)}.")
        if x.shape[dim] < 2:
            raise ValueError(
                f"finite_differences: dim {dim} needs at least 2 items to subtract, x has shape {tuple(x.shape)}."
            )
    normal = tuple(dim % x.dim() for dim in listed)
    if len(set(normal)) < len(normal):
        raise ValueError(f"finite_differences: `dims` names a dimension twice: {listed}.")
    return normal

"""Finite differences, the paper's derivating layer."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from algonet.core.checks import check_tensor


def finite_differences(
    x: Tensor,
    dims: int | Sequence[int] = -1,
    *,
    center: bool = False,
    pad: str | None = None,
    stack: int | None = None,
) -> Tensor:
    """x shifted by one along each of `dims` minus x: d_i = x_{i+1} - x_i, the discrete derivative.

    Several dims are differentiated one after the other (a mixed derivative). `center=True` shifts the mean of the result
    along those dims to zero. `pad` keeps the size: "zero" appends zeros, "edge" repeats the last difference, "wrap" closes
    the circle (x_0 follows x_{n-1}). `stack` gives the gradient instead: the difference along each of `dims` by itself,
    stacked along a new dimension `stack` (it needs a `pad`, so that all have one size). Linear, so differentiable to any
    order; O(size of x).

    >>> finite_differences(torch.tensor([1.0, 4.0, 9.0, 16.0]))
    tensor([3., 5., 7.])
    >>> finite_differences(torch.tensor([1.0, 4.0, 9.0]), pad="wrap")
    tensor([ 3.,  5., -8.])
    >>> image = torch.arange(3.0)[:, None] * 10 + torch.arange(3.0)
    >>> finite_differences(image, (0, 1), pad="edge", stack=0)[:, 0, 0]
    tensor([10.,  1.])
    """
    check_tensor("finite_differences", x)
    chosen = _checked_dims(x, dims)
    if pad not in _PADDINGS:
        raise ValueError(f"finite_differences: unknown pad {pad!r}; choose one of {', '.join(map(repr, _PADDINGS))}.")
    if stack is not None:
        _check_stack(x, pad, stack)
        return torch.stack([_differentiated(x, (dim,), center, pad) for dim in chosen], stack)
    return _differentiated(x, chosen, center, pad)


def _differentiated(x: Tensor, dims: tuple[int, ...], center: bool, pad: str | None) -> Tensor:
    for dim in dims:
        x = _PADDINGS[pad](x, dim)
    return x - x.mean(dim=dims, keepdim=True) if center else x


def _check_stack(x: Tensor, pad: str | None, stack: int) -> None:
    if pad is None:
        raise ValueError("finite_differences: `stack` needs a `pad` that keeps the size: 'zero', 'edge' or 'wrap'.")
    if not -x.dim() - 1 <= stack <= x.dim():
        raise ValueError(f"finite_differences: `stack` {stack} is out of range for x of shape {tuple(x.shape)}.")


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
    if len(set(normal)) != len(normal):
        raise ValueError(f"finite_differences: `dims` names a dimension twice: {listed}.")
    return normal


def _edge(x: Tensor, dim: int) -> Tensor:
    d = x.diff(dim=dim)
    return torch.cat([d, d.narrow(dim, d.shape[dim] - 1, 1)], dim)


_PADDINGS = {
    None: lambda x, dim: x.diff(dim=dim),
    "zero": lambda x, dim: torch.cat([x.diff(dim=dim), torch.zeros_like(x.narrow(dim, 0, 1))], dim),
    "edge": _edge,
    "wrap": lambda x, dim: x.roll(-1, dim) - x,
}

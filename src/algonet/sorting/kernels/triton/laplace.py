"""Soft counts of the Laplace sigmoid on the GPU: torch sorts, then two launches scan; O(n log n)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from algonet.core.autograd import plan_from
from algonet.core.cache import cached
from algonet.core.launch import Launch

from . import laplace_device as kernels

#: Places of a sorted row that a program takes, unless there would be more parts than one program can put together.
BLOCK, MOST_PARTS = 1024, 1024


def soft_laplace_count_forward(tensors: Sequence[Tensor], settings: object) -> tuple[list[Tensor], list[Tensor]]:
    x, weights, steepness = (t.contiguous() for t in tensors)
    counts, near = torch.empty_like(x), torch.empty(x.shape, dtype=torch.float64, device=x.device)
    ordered, order = x.sort(dim=-1, stable=True)
    if x.numel():
        launches = _launches(x.shape, x.dtype, x.device)
        given = {"ordered_ptr": ordered, "order_ptr": order, "w_ptr": weights, "steepness_ptr": steepness}
        found = launches.find_parts(given)
        launches.counts.start(**given, part_ptr=found, out_ptr=counts, near_ptr=near)
    return [counts], [ordered, order, near]


def soft_laplace_count_saved(tensors: Sequence[Tensor], settings: object) -> list[Tensor]:
    x = tensors[0]
    return [x.new_empty(x.shape, dtype=dtype) for dtype in (x.dtype, torch.int64, torch.float64)]


def soft_laplace_count_backward(
    grads: Sequence[Tensor], tensors: Sequence[Tensor], saved: Sequence[Tensor], settings: object, needs: Sequence[bool]
) -> list[Any]:
    x, weights, steepness = (t.contiguous() for t in tensors)
    ordered, order, near = (t.contiguous() for t in saved)
    grad, grad_x = grads[0].contiguous(), torch.empty_like(x)
    if not x.numel():
        return [grad_x, torch.zeros_like(weights), torch.zeros_like(steepness)]
    launches = _launches(x.shape, x.dtype, x.device)
    given = {"ordered_ptr": ordered, "order_ptr": order, "steepness_ptr": steepness}
    found = launches.find_parts({**given, "w_ptr": grad})
    by_s = torch.empty(launches.slopes.grid[0], dtype=torch.float64, device=x.device)
    launches.slopes.start(
        **given, w_ptr=weights, grad_ptr=grad, near_ptr=near, part_ptr=found, grad_x_ptr=grad_x, grad_s_ptr=by_s
    )
    grad_s = by_s.sum().to(steepness.dtype) if needs[2] else None
    return [grad_x, torch.zeros_like(weights) if needs[1] else None, grad_s]


class _Launches(NamedTuple):
    """The kernels for rows of one shape; `parts` is `None` where a program takes whole rows."""

    parts: Launch | None
    counts: Launch
    slopes: Launch

    def find_parts(self, given: dict[str, Tensor]) -> Tensor:
        """What each part does to the chains, in memory that nobody reads where there is one part."""
        x = given["ordered_ptr"]
        count = 0 if self.parts is None else self.parts.grid[0] * kernels.FOUND.value
        found = torch.empty(count, dtype=torch.float64, device=x.device)
        if self.parts is not None:
            self.parts.start(**given, part_ptr=found)
        return found


@cached
def _launches(shape: torch.Size, dtype: torch.dtype, device: torch.device) -> _Launches:
    rows, n = math.prod(shape[:-1]), shape[-1]
    whole = 1 << (n - 1).bit_length()
    block = max(min(BLOCK, whole), whole // MOST_PARTS, 16)
    parts = -(-n // block)
    cut: dict[str, Any] = {"n": n, "parts": parts, "BLOCK": block, "warps": max(1, min(16, block // 256))}
    together = 1 << (parts - 1).bit_length()
    return _Launches(
        Launch(kernels.parts_kernel, rows * parts, **cut) if parts > 1 else None,
        Launch(kernels.counts_kernel, rows * parts, PARTS=together, **cut),
        Launch(kernels.slopes_kernel, rows * parts, PARTS=together, **cut),
    )


SoftLaplaceCountPlan = plan_from(soft_laplace_count_forward, soft_laplace_count_backward, soft_laplace_count_saved)

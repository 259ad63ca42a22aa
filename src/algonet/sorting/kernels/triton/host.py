"""Soft sorting on the GPU, as the operations call it: the work is in the files of the two networks."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from algonet.core.autograd import plan_from
from algonet.core.cache import cached

from ...networks import OddEven
from ...reference import SortSettings, transposed
from .bitonic import BitonicSort
from .odd_even import OddEvenSort


def soft_sort_forward(tensors: list[Tensor], settings: SortSettings) -> tuple[list[Tensor], list[Tensor]]:
    """The kernel of `sort_reference`; saves states of an odd-even sort where they are few."""
    if len(tensors) > 3 and tensors[3].shape[-1] == 0:
        found, saved = soft_sort_forward(tensors[:3], settings)
        return [*found, tensors[3].clone()], saved
    sort = sort_of(tensors, settings)
    if sort is None:
        return [_copy(tensors[0]), *map(_copy, tensors[3:])], []
    return sort.forward(tensors)


def soft_sort_backward(
    grads: list[Tensor | None], tensors: list[Tensor], saved: list[Tensor], settings: SortSettings, needs: list[bool]
) -> list[Any]:
    """The gradients of `soft_sort_forward` by items, steepness and payload; `None` among `grads` means zeros."""
    if len(tensors) > 3 and tensors[3].shape[-1] == 0:
        return [*soft_sort_backward(grads[:1], tensors[:3], saved, settings, needs), torch.zeros_like(tensors[3])]
    sort = sort_of(tensors, settings)
    if sort is None:
        like = (tensors[0], *tensors[3:])
        found = [torch.zeros_like(t) if g is None else _copy(g) for g, t in zip(grads, like, strict=True)]
        # As in the kernels: infinite items get no gradient
        found[0] = torch.where(tensors[0].isinf(), 0.0, found[0])
        return [found[0], None, torch.zeros_like(tensors[2]), *found[1:]]
    return sort.backward(grads, tensors, saved, needs)


soft_sort_transposed_forward, soft_sort_transposed_backward = transposed(
    soft_sort_forward, soft_sort_backward, partial=True
)


def soft_sort_saved(tensors: list[Tensor], settings: SortSettings) -> list[Tensor]:
    """Empty tensors like what `soft_sort_forward` saves."""
    sort = sort_of(tensors, settings)
    return [] if sort is None or sort.saved_shape is None else [tensors[0].new_empty(sort.saved_shape)]


def sort_of(tensors: list[Tensor], settings: SortSettings) -> OddEvenSort | BitonicSort | None:
    """How this call is launched; `None` where there is nothing to sort."""
    x = tensors[0]
    return _sort(settings, x.shape, tensors[3].shape[-1] if len(tensors) > 3 else 0, x.dtype, x.device)


@cached
def _sort(
    settings: SortSettings, shape: torch.Size, channels: int, dtype: torch.dtype, device: torch.device
) -> OddEvenSort | BitonicSort | None:
    if shape.numel() == 0 or settings.table(shape[-1]).depth == 0:
        return None
    kind = OddEvenSort if type(settings.network) is OddEven else BitonicSort
    return kind(settings, shape, channels, dtype, device)


def _copy(x: Tensor) -> Tensor:
    return x.clone(memory_format=torch.contiguous_format)


SoftSortPlan = plan_from(soft_sort_forward, soft_sort_backward, soft_sort_saved, partial=True)


SoftSortTransposedPlan = plan_from(soft_sort_transposed_forward, soft_sort_transposed_backward)

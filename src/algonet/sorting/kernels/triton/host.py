"""Soft sorting on the GPU, as the operations call it: the work is in the files of the two networks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from algonet.core.autograd import Plan
from algonet.core.identity import Signature

from ...networks import OddEven
from ...reference import transposed
from .bitonic import BitonicSort
from .odd_even import OddEvenSort


class SoftSortPlan(Plan):
    """How the rows of a call are sorted; `None` where there is nothing to sort. Saves states of an odd-even sort where they are
    few."""

    partial = True

    def __init__(self, signature: Signature):
        super().__init__(signature)
        x, *_ = signature.tensors
        channels = signature.tensors[3].shape[-1] if len(signature.tensors) > 3 else 0
        kind = OddEvenSort if type(self.settings.network) is OddEven else BitonicSort
        idle = x.shape.numel() == 0 or self.settings.table(x.shape[-1]).depth == 0
        self.sort = None if idle else kind(self.settings, x.shape, channels, x.dtype, x.device)

    @classmethod
    def saves(cls, signature: Signature) -> Sequence[tuple[Sequence[int], torch.dtype]]:
        sort = cls(signature).sort
        return () if sort is None or sort.saved_shape is None else [(sort.saved_shape, signature.tensors[0].dtype)]

    def forward(self, tensors: Sequence[Tensor]) -> tuple[list[Tensor], list[Tensor]]:
        if self.sort is None:
            return [_copy(tensors[0]), *map(_copy, tensors[3:])], []
        if len(tensors) > 3 and tensors[3].shape[-1] == 0:
            found, saved = self.sort.forward(tensors[:3])
            return [*found, tensors[3].clone()], saved
        return self.sort.forward(tensors)

    def backward(
        self, grads: Sequence[Any], tensors: Sequence[Tensor], saved: Sequence[Tensor], needs: Sequence[bool]
    ) -> list[Any]:
        """The gradients by items, steepness and payload; `None` among `grads` means zeros."""
        if self.sort is None:
            like = (tensors[0], *tensors[3:])
            found = [torch.zeros_like(t) if g is None else _copy(g) for g, t in zip(grads, like, strict=True)]
            # As in the kernels: infinite items get no gradient
            found[0] = torch.where(tensors[0].isinf(), 0.0, found[0])
            return [found[0], None, torch.zeros_like(tensors[2]), *found[1:]]
        if len(tensors) > 3 and tensors[3].shape[-1] == 0:
            return [*self.sort.backward(grads[:1], tensors[:3], saved, needs), torch.zeros_like(tensors[3])]
        return self.sort.backward(grads, tensors, saved, needs)


def _copy(x: Tensor) -> Tensor:
    return x.clone(memory_format=torch.contiguous_format)


SoftSortTransposedPlan = transposed(SoftSortPlan)

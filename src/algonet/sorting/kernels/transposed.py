"""P^T v from the kernels of sorting: with <g, P^T v> = <P g, v>, their roles are exchanged."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from ..settings import SortSettings


def transposed(sort_forward: Callable, sort_backward: Callable, partial: bool) -> tuple[Callable, Callable]:
    """Forward and backward of P^T v; `partial` says that the gradient of sorted values may be missing."""

    def gradients(v: Tensor, sorting: list[Tensor], settings: SortSettings, needs: list[bool]) -> list[Any]:
        """The gradients of sorting, v being that of the payload; of the values there is none."""
        none: Any = None if partial else torch.zeros_like(sorting[0])
        return sort_backward([none, v], sorting, [], settings, needs)

    def forward(tensors: Sequence[Tensor], settings: SortSettings) -> tuple[list[Tensor], list[Tensor]]:
        # The payload's own numbers play no part in its gradient
        return [gradients(tensors[3], list(tensors), settings, [False, False, False, True])[3]], []

    def backward(
        grads: Sequence[Tensor],
        tensors: Sequence[Tensor],
        saved: Sequence[Tensor],
        settings: SortSettings,
        needs: Sequence[bool],
    ) -> list[Tensor | None]:
        x, lengths, steepness, v = tensors
        found: list[Any] = [None] * 4
        sorting = [x, lengths, steepness, grads[0]]
        if needs[0] or needs[2]:
            found = gradients(v, sorting, settings, [needs[0], False, needs[2], False])
        if needs[3]:
            found[3] = sort_forward(sorting, settings)[0][1]
        return found

    return forward, backward

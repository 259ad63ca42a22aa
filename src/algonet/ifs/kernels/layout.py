"""How both backends lay out a batch: leading dimensions as one, and long work cut into blocks."""

from __future__ import annotations

import math
from collections.abc import Sequence

from torch import Tensor

from ..operation import ChaosSettings


def flat(tensor: Tensor, trailing: int) -> Tensor:
    """Leading dimensions as one, contiguous and detached."""
    detached = tensor.detach()
    shape = detached.shape[detached.ndim - trailing :]
    return detached.reshape(math.prod(detached.shape[: detached.ndim - trailing]), *shape).contiguous()


def blocks(items: int, length: int, shortest: int, most: int) -> list[tuple[int, int, int, int]]:
    """(item, block, first, last) of a cut of each item's `length` into equal blocks; it depends on the sizes alone."""
    count = max(1, min(most, length // shortest))
    bounds = [length * k // count for k in range(count + 1)]
    return [(i, k, bounds[k], bounds[k + 1]) for i in range(items) for k in range(count)]


def chaos_game_saved(tensors: Sequence[Tensor], settings: ChaosSettings) -> list[Tensor]:
    """Empty tensors like what `chaos_game_forward` saves: the states of all chains, step by step."""
    parameters, choices, start = tensors
    *batch, chains, steps = choices.shape
    return [parameters.new_empty(*batch, steps + 1, chains, start.shape[-1])]

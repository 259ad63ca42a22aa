"""How both backends lay out a batch: leading dimensions as one, and long work cut into blocks."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from algonet.core.autograd import Plan
from algonet.core.identity import Signature


def laid_out(tensors: Sequence[Tensor], shapes: Sequence[Sequence[int]]) -> list[Tensor]:
    """Tensors with their leading dimensions as one, contiguous and detached."""
    return [tensor.detach().reshape(shape).contiguous() for tensor, shape in zip(tensors, shapes, strict=True)]


def blocks(items: int, length: int, shortest: int, most: int) -> list[tuple[int, int, int, int]]:
    """(item, block, first, last) of a cut of each item's `length` into equal blocks; it depends on the sizes alone."""
    count = max(1, min(most, length // shortest))
    bounds = [length * k // count for k in range(count + 1)]
    return [(i, k, bounds[k], bounds[k + 1]) for i in range(items) for k in range(count)]


class RasterPlan(Plan):
    """Sizes of a picture and its points, for either backend."""

    def __init__(self, signature: Signature):
        super().__init__(signature)
        points, _, weights, features = signature.tensors
        self.dtype, self.device = points.dtype, points.device
        self.items, self.count = math.prod(points.shape[:-2]), points.shape[-2]
        self.layers, self.weighted = 1 + features.shape[-1], weights.shape[-1] > 0
        picture = (self.layers, self.settings.height, self.settings.width)
        self.shape, self.flat_shape = (*points.shape[:-2], *picture), (self.items, *picture)
        #: Of points, sigma, weights, features
        self.shapes = (
            (self.items, self.count, 2), (self.items,), (self.items, weights.shape[-1]),
            (self.items, self.count, self.layers - 1),
        )  # fmt: skip


class ChaosPlan(Plan):
    """Sizes of a chaos game, for either backend; what is saved are the states of all chains, step by step."""

    def __init__(self, signature: Signature):
        super().__init__(signature)
        parameters, choices, start = signature.tensors
        self.dtype, self.device = parameters.dtype, parameters.device
        *batch, self.functions, _ = parameters.shape
        self.items, (self.chains, self.steps) = math.prod(batch), choices.shape[-2:]
        self.batch = tuple(batch)
        #: Of parameters, choices, start
        self.shapes = (
            (self.items, self.functions, parameters.shape[-1]), (self.items, self.chains, self.steps),
            (self.items, self.chains, start.shape[-1]),
        )  # fmt: skip
        self.drawn = (self.chains, self.steps - self.settings.burn_in, start.shape[-1])
        self.states = (self.steps + 1, self.chains, start.shape[-1])

    @classmethod
    def saves(cls, signature: Signature) -> list[tuple[Sequence[int], torch.dtype]]:
        parameters, choices, start = signature.tensors
        *batch, chains, steps = choices.shape
        return [((*batch, steps + 1, chains, start.shape[-1]), parameters.dtype)]

    def rooms(self) -> tuple[Tensor, Tensor]:
        """Room for the points, and for the states that led to them."""
        options = {"dtype": self.dtype, "device": self.device}
        return torch.empty(self.items, *self.drawn, **options), torch.empty(self.items, *self.states, **options)

    def results(self, points: Tensor, states: Tensor) -> tuple[list[Tensor], list[Tensor]]:
        return [points.reshape(*self.batch, *self.drawn)], [states.reshape(*self.batch, *self.states)]

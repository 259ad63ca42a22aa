"""How both backends lay out a batch: leading dimensions as one, and long work cut into blocks."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from algonet.core.autograd import Plan
from algonet.core.identity import Signature

from ..reference import FAR_GRADIENT, FAR_PARAMETER


def laid_out(tensors: Sequence[Tensor], shapes: Sequence[Sequence[int]]) -> list[Tensor]:
    """Tensors with their leading dimensions as one, contiguous and detached."""
    found = []
    for tensor, shape in zip(tensors, shapes, strict=True):
        found.append(tensor.detach().reshape(shape).contiguous())
    return found


def blocks(items: int, length: int, shortest: int, most: int) -> list[tuple[int, int, int, int]]:
    """(item, block, first, last) of a cut of each item's `length` into equal blocks; it depends on the sizes alone."""
    count = max(1, min(most, length // shortest))
    bounds = [length * k // count for k in range(count + 1)]
    return [(i, k, bounds[k], bounds[k + 1]) for i in range(items) for k in range(count)]


class RasterPlan(Plan):
    """Sizes of a picture and its points, and the way back, for either backend.

    Backends have `forward`, `parts(needs)` (how many parts the gradient of an item's sigma is written in) and `pull((picture's
    gradients, points, sigma, weights, features), gradients of the last four to write, needs)`.
    """

    parts: Callable[[Sequence[bool]], int]
    pull: Callable[..., None]

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

    def backward(
        self, grads: Sequence[Tensor], tensors: Sequence[Tensor], saved: Sequence[Tensor], needs: Sequence[bool]
    ) -> list[Tensor | None]:
        given = laid_out((*grads, *tensors), (self.flat_shape, *self.shapes))
        found = [torch.zeros_like(t) for t in given[1:]]
        found[1] = given[1].new_zeros(self.items, self.parts(needs))
        self.pull(given, found, needs)
        found[1] = found[1].sum(1)
        return [o.reshape(t.shape) for o, t in zip(found, tensors, strict=True)]


class ChaosPlan(Plan):
    """The points of all chains, and back along the states that were saved, step by step, for either backend.

    Backends have `draw(parameters, choices, start, states, points)`, of which the last two are to be written, and
    `pull(gradients of points, parameters, choices, start, states, gradients to write of parameters and start)`, where an item's
    parameters have gradients in `parts` with room for `slots` functions each.
    """

    draw: Callable[..., None]
    pull: Callable[..., None]
    parts: int
    slots: int

    def __init__(self, signature: Signature):
        super().__init__(signature)
        parameters, choices, _ = signature.tensors
        self.dtype, self.device = parameters.dtype, parameters.device
        *batch, self.functions, _ = parameters.shape
        self.items, (self.chains, self.steps) = math.prod(batch), choices.shape[-2:]
        self.batch = tuple(batch)
        #: Of parameters, choices, start
        self.shapes = (
            (self.items, self.functions, 6), (self.items, self.chains, self.steps),
            (self.items, self.chains, 2),
        )  # fmt: skip
        self.drawn = (self.chains, self.steps - self.settings.burn_in, 2)
        self.states = (self.steps + 1, self.chains, 2)

    @classmethod
    def saves(cls, signature: Signature) -> list[tuple[Sequence[int], torch.dtype]]:
        parameters, choices, _ = signature.tensors
        *batch, chains, steps = choices.shape
        return [((*batch, steps + 1, chains, 2), parameters.dtype)]

    def forward(self, tensors: Sequence[Tensor]) -> tuple[list[Tensor], list[Tensor]]:
        given = laid_out(tensors, self.shapes)
        points, states = given[0].new_empty(self.items, *self.drawn), given[0].new_empty(self.items, *self.states)
        self.draw(*given, states, points)
        return [points.reshape(*self.batch, *self.drawn)], [states.reshape(*self.batch, *self.states)]

    def backward(
        self, grads: Sequence[Tensor], tensors: Sequence[Tensor], saved: Sequence[Tensor], needs: Sequence[bool]
    ) -> list[Tensor | None]:
        shapes = (self.items, *self.drawn), *self.shapes, (self.items, *self.states)
        given = laid_out((*grads, *tensors, *saved), shapes)
        parameters, start = given[1], given[3]
        found = parameters.new_zeros(self.items, self.parts, self.slots, 6), torch.zeros_like(start)
        self.pull(*given, *found)
        total = found[0].clamp(-FAR_GRADIENT, FAR_GRADIENT).sum(1)[:, : self.functions]
        total = torch.where(parameters.abs() > FAR_PARAMETER, 0.0, total)
        return [total.reshape(tensors[0].shape), None, found[1].reshape(tensors[2].shape)]

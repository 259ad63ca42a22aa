"""Procedural fractals: seeded function systems, drawn by the ordinary chaos game and painted in one of the styles."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Generator as Random
from torch import Tensor
from torch.nn.functional import one_hot

from algonet.ifs import chaos_game, draw_choices

from . import Item, generator_of, uniform
from .style import Procedural

#: The chaos game: chains, their steps, and how many of these are forgotten.
_CHAINS, _STEPS, _BURN_IN = 128, 112, 16


def maps_about(fixed: Tensor, linear: Tensor) -> Tensor:
    """The maps x -> p + A (x - p) in the residual form (..., n, 6): p = `fixed` (..., n, 2) stays, A = `linear` (..., n,
    2, 2).

    >>> maps_about(torch.tensor([[1.0, 0.0]]), 0.5 * torch.eye(2)[None])
    tensor([[ 0.5000, -0.5000,  0.0000, -0.0000,  0.0000, -0.5000]])
    """
    moved = linear - torch.eye(2, dtype=linear.dtype, device=linear.device)
    offset = -(moved @ fixed[..., None])
    return torch.cat([offset, moved], -1).flatten(-2)


def random_system(random: Random, functions: int) -> Tensor:
    """A random system (functions, 6) in the square [-1, 1]^2: turned, shrunk and flattened copies of the whole.

    Map k leaves a point in the k-th sector of the circle where it is, so the order of the maps is part of the family and
    a picture has one right answer.
    """
    sector = 2 * math.pi / functions
    angle = math.pi / 2 + sector * (torch.arange(functions) + uniform(random, -0.2, 0.2, functions))
    fixed = torch.stack([angle.cos(), angle.sin()], -1) * uniform(random, 0.65, 0.95, functions, 1)
    turn = uniform(random, -0.5, 0.5, functions)
    scale = uniform(random, 0.38, 0.58, functions)
    other = scale * uniform(random, 0.7, 1.0, functions)
    cos, sin = turn.cos(), turn.sin()
    linear = torch.stack([scale * cos, -other * sin, scale * sin, other * cos], -1).unflatten(-1, (2, 2))
    return maps_about(fixed, linear)


class Fractals(Procedural):
    """Pictures `a` of random systems: crisp dots, one colour of the object per map, before a backdrop, with noise.

    Items also hold the true `parameters` (n, 6), for those who may see them (evaluation, bound).
    """

    def __init__(self, count: int, size: int, functions: int, seed: int, **look: Any):
        super().__init__(count, size, seed, **look)
        self.functions = functions
        # About as wide as the smooth raster's points: the losses' medians lose thinner fractals (README, function systems)
        self.dot = max(1, round(size / 16))

    def make(self, indices: list[int]) -> list[Item]:
        """Everything random is drawn on the CPU, item by item; the pictures are then made together."""
        random, n = [generator_of(self.seed, index) for index in indices], self.functions
        parameters = torch.stack([random_system(r, n) for r in random]).to(self.device)
        choices = torch.stack([draw_choices(torch.ones(n), _CHAINS, _STEPS, r) for r in random]).to(self.device)
        owner = owners(parameters, choices, self.size, self.dot)
        return [
            {
                "a": self.style.paint((o >= 0).float(), one_hot(o.clamp_min(0), n).float(), r, self.noise),
                "parameters": p,
            }
            for o, p, r in zip(owner, parameters, random, strict=True)
        ]


def owners(parameters: Tensor, choices: Tensor, size: int, dot: int = 1) -> Tensor:
    """The ordinary chaos game on [-1, 1]^2, each point a square of `dot` pixels around it: which map it came from.

    parameters (B, n, 6) and choices (B, chains, steps) give integers (B, size, size): the last map of several, -1 for none.
    """
    points = chaos_game(parameters, choices, burn_in=_BURN_IN)
    owner = choices[..., _BURN_IN:].flatten(1)
    # The first pixel of a dot, on a canvas wide enough for dots that reach in from outside
    wide = size + dot - 1
    first = (points * torch.tensor([0.5, -0.5], device=points.device) + 0.5) * size - (dot + 1) / 2
    column, row = (first.ceil().long() + dot - 1).unbind(-1)
    inside = (column >= 0) & (column < wide) & (row >= 0) & (row < wide)
    cell = torch.where(inside, row * wide + column, wide**2)
    canvas = owner.new_full((len(owner), wide**2 + 1), -1).scatter_reduce(1, cell, owner, "amax")
    canvas = canvas[:, None, :-1].unflatten(-1, (wide, wide))
    return torch.nn.functional.max_pool2d(canvas.float(), dot, stride=1)[:, 0].long()

"""Procedural fractals: seeded function systems, drawn by the ordinary chaos game and painted in style A."""

from __future__ import annotations

import math

import torch
from torch import Generator as Random
from torch import Tensor
from torch.utils.data import Dataset

from algonet.ifs import chaos_game, contraction, draw_choices

from .data import generator_of, number, uniform


class Fractals(Dataset):
    """Pictures `a` of function systems near famous ones: crisp chaos game, coloured, before a backdrop, with noise."""

    def __init__(self, count: int, size: int, functions: int, seed: int, *, split: str = "train", noise: float = 0.03):
        self.count, self.size, self.functions, self.noise = count, size, functions, noise
        self.seed = 2 * seed + (split == "test")
        self._made: dict[int, dict[str, Tensor]] = {}

    def __len__(self) -> int:
        return self.count

    def parameters(self, random: Random) -> Tensor:
        """A random system (functions, 6) in the square [-1, 1]^2: turned and scaled copies of the whole about random places."""
        scale = uniform(random, 0.35, 0.6, self.functions)
        angle = uniform(random, -0.6, 0.6, self.functions)
        ring = torch.arange(self.functions) * (2 * math.pi / self.functions) + number(random, 0, 2 * math.pi)
        ring = ring + uniform(random, -0.3, 0.3, self.functions)
        centre = torch.stack([ring.cos(), ring.sin()], -1) * uniform(random, 0.35, 0.5, self.functions, 1)
        cos, sin = scale * angle.cos(), scale * angle.sin()
        return torch.stack([centre[:, 0], cos - 1, -sin, centre[:, 1], sin, cos - 1], -1)

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        if not 0 <= index < self.count:
            raise IndexError(f"Fractals: item {index} of {self.count}.")
        if index not in self._made:
            random = generator_of(self.seed, index)
            parameters = self.parameters(random)
            crisp = crisp_picture(parameters, self.size, random)
            self._made[index] = {"a": self._painted(crisp, random), "parameters": parameters, "crisp": crisp[None]}
        return self._made[index]

    def _painted(self, crisp: Tensor, random: Random) -> Tensor:
        warm = torch.tensor([number(random, 0.7, 1.0), number(random, 0.2, 0.6), number(random, 0.0, 0.3)])
        cool = torch.tensor([number(random, 0.0, 0.35), number(random, 0.3, 0.7), number(random, 0.5, 1.0)])
        picture = crisp[..., None] * warm + (1 - crisp[..., None]) * cool
        picture = picture + self.noise * torch.randn(picture.shape, generator=random)
        return picture.clamp(0, 1).permute(2, 0, 1)


def crisp_picture(parameters: Tensor, size: int, random: Random) -> Tensor:
    """The ordinary chaos game (H, W) on [-1, 1]^2: pixels that hold a point are 1."""
    weights = torch.ones(len(parameters))
    choices = draw_choices(weights, 64, 160, random)
    points = chaos_game(contraction(parameters), choices, burn_in=16)
    column = ((points[:, 0] + 1) / 2 * size).floor().long()
    row = ((1 - points[:, 1]) / 2 * size).floor().long()
    inside = (column >= 0) & (column < size) & (row >= 0) & (row < size)
    picture = torch.zeros(size, size)
    picture[row[inside], column[inside]] = 1.0
    return picture

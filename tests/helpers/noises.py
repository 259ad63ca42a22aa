"""Draws of displacements from a noise."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from algonet.relax import Noise


def draw(noise: Noise, count: int) -> Tensor:
    """Displacements (count, 2): the probability of landing farther away than a draw is uniform."""
    beyond, turn = torch.rand(2, count, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    away = torch.tensor([float(noise.reach(u)) for u in beyond.clamp_min(1e-12).tolist()], dtype=torch.float64)
    angle = 2 * math.pi * turn
    return torch.stack([away * angle.cos(), away * angle.sin()], -1)

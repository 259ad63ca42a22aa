"""The two operations of this domain, the raster and the chaos game: all that a backend is told, and which one takes a call."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from algonet.core.operation import Operation

from .reference import chaos, splat


@dataclass(frozen=True)
class RasterSettings:
    """Size of the picture, whether intensities are -log(1 - share), the cut, and whether sums must be reproducible."""

    height: int
    width: int
    logs: bool
    epsilon: float
    deterministic: bool = False

    @property
    def reach(self) -> float:
        """Half the side, in sigmas, of the square outside of which a Gaussian has the mass epsilon.

        r with P(|x| > r or |y| > r) = epsilon for a standard normal pair, so P(|x| > r) = 1 - sqrt(1 - epsilon).
        """
        from statistics import NormalDist

        return -NormalDist().inv_cdf(0.5 * self.epsilon / (1 + math.sqrt(1 - self.epsilon)))


@dataclass(frozen=True)
class ChaosSettings:
    """Steps that are not drawn, and after how many the gradient is cut (0: never)."""

    burn_in: int
    horizon: int


def _raster_fake(tensors: Sequence[Tensor], settings: RasterSettings) -> list[Tensor]:
    points, _, _, features = tensors
    return [points.new_empty(*points.shape[:-2], 1 + features.shape[-1], settings.height, settings.width)]


def _raster_example(device: str) -> tuple[list[Tensor], RasterSettings]:
    points = torch.rand(1, 64, 2, device=device) * 16
    tensors = [points, points.new_ones(1), points.new_empty(1, 0), points.new_empty(1, 64, 0)]
    return tensors, RasterSettings(16, 16, True, 1e-4)


#: points (*batch, N, 2) and sigma (*batch) in pixels, weights (*batch, N) or (*batch, 0) for none, features (*batch, N, C) with
#: C = 0 for none, give sums (*batch, 1 + C, H, W).
RASTER = Operation(
    "smooth_raster",
    settings=RasterSettings,
    inputs=("points", "sigma", "weights", "features"),
    reference=lambda tensors, settings: [splat(*tensors, size=(settings.height, settings.width), logs=settings.logs)],
    kernels={"numba": ".kernels.numba", "triton": ".kernels.triton"},
    fake=_raster_fake,
    example=_raster_example,
)


def _chaos_fake(tensors: Sequence[Tensor], settings: ChaosSettings) -> list[Tensor]:
    parameters, choices, _ = tensors
    *batch, chains, steps = choices.shape
    return [parameters.new_empty(*batch, chains, steps - settings.burn_in, 2)]


def _chaos_example(device: str) -> tuple[list[Tensor], ChaosSettings]:
    parameters = torch.full((1, 3, 6), -0.5, device=device)
    choices = torch.zeros(1, 8, 4, dtype=torch.int64, device=device)
    return [parameters, choices, parameters.new_zeros(1, 8, 2)], ChaosSettings(0, 0)


#: parameters (*batch, n, 6), choices (*batch, chains, steps) and start (*batch, chains, 2) give the points that are drawn,
#: (*batch, chains, steps - burn_in, 2).
CHAOS = Operation(
    "chaos_game",
    settings=ChaosSettings,
    inputs=("parameters", "choices", "start"),
    reference=lambda tensors, settings: [chaos(*tensors, burn_in=settings.burn_in, horizon=settings.horizon)],
    kernels={"numba": ".kernels.numba", "triton": ".kernels.triton"},
    fake=_chaos_fake,
    example=_chaos_example,
)

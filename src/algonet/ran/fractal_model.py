"""Function systems as reconstructions: the encoder to their parameters, their smooth picture, what keeps them alive."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from algonet.ifs import Poisson, area_weights, chaos_game, contraction, draw_choices, smooth_raster

from .config import RunConfig
from .model import Regulariser
from .networks import Encoder, levels_of, quiet


def ifs_parts(config: RunConfig) -> tuple[IFSReconstructor, IFSInverse, Regulariser]:
    """Reconstructor, inverse and regulariser of a configuration."""
    data, width = config.data, config.model.width
    encoder = Encoder(3, (data.size, data.size), 1, width, config.model.base, levels_of(data.size))
    inverse = IFSInverse(config.model.functions, data.size, softness=config.train.softness[0], seed=config.seed)
    return IFSReconstructor(encoder, ring(config.model.functions), width), inverse, ifs_regulariser


class IFSReconstructor(nn.Module):
    """Pictures to the parameters (B, n, 6) of an iterated function system in the residual form, starting at `start` (n, 6)."""

    start: Tensor

    def __init__(self, encoder: Encoder, start: Tensor, width: int = 256, reach: float = 1.0):
        super().__init__()
        self.encoder = encoder
        self.reach = reach
        self.register_buffer("start", start.clone())
        self.move = nn.Sequential(nn.Linear(width, width), nn.SiLU(), quiet(nn.Linear(width, start.numel())))

    def forward(self, pictures: Tensor) -> Tensor:
        moved = self.reach * torch.tanh(self.move(self.encoder(pictures)).float() / self.reach)
        return self.start + moved.unflatten(-1, self.start.shape)


class IFSInverse(nn.Module):
    """Parameters (B, n, 6) of function systems to grey pictures (B, 1, H, W): chaos game with fixed choices, then the raster.

    Maps are kept contractive. Choices are drawn once from `seed` and stored, so that the picture is a smooth function of
    the parameters; `weights` (n,) are their probabilities (equal ones by default).
    """

    choices: Tensor
    softness: Tensor

    def __init__(
        self,
        functions: int,
        size: int,
        *,
        extent: tuple[float, float, float, float] = (-1.0, 1.0, -1.0, 1.0),
        chains: int = 64,
        steps: int = 48,
        softness: float = 1.0,
        seed: int = 0,
    ):
        super().__init__()
        generator = torch.Generator().manual_seed(seed)
        choices = draw_choices(torch.ones(functions), chains, steps, generator)
        self.size, self.extent, self.burn_in = size, extent, min(12, steps // 2)
        self.register_buffer("choices", choices)
        self.register_buffer("softness", torch.tensor(float(softness)))

    def points(self, parameters: Tensor) -> Tensor:
        """The points (B, N, 2) that the chains visit after the burn-in."""
        return chaos_game(contraction(parameters), self.choices, burn_in=self.burn_in)

    def forward(self, parameters: Tensor) -> Tensor:
        points = self.points(parameters)
        # As dense as if twice as many points as pixels fell on the picture, whatever their number
        weights = points.new_full(points.shape[:-1], 2 * self.size**2 / points.shape[-2])
        picture = smooth_raster(
            points,
            (self.size, self.size),
            sigma=self.softness,
            extent=self.extent,
            aggregate=Poisson(),
            weights=weights,
        )
        return picture[:, None]


def ifs_regulariser(parameters: Tensor) -> Tensor:
    """Keeps systems in the picture and alive: linear parts away from zero area, offsets small."""
    area = area_weights(parameters, floor=0.0)
    return (area * (area + 1e-6).log()).sum(-1).mean() + 0.1 * parameters[..., [0, 3]].square().mean()


def ring(functions: int) -> Tensor:
    """A system to begin with: copies of half the size around a ring."""
    angle = torch.arange(functions) * (2 * math.pi / functions) + math.pi / 2
    half = torch.full_like(angle, -0.5)
    none = torch.zeros_like(angle)
    return torch.stack([0.45 * angle.cos(), half, none, 0.45 * angle.sin(), none, half], -1)

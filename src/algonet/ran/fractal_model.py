"""Function systems as reconstructions: the encoder to their maps, their smooth picture, what keeps them alive."""

from __future__ import annotations

import math
from pathlib import Path

import torch
from torch import Tensor, nn

from algonet.ifs import IFS, Poisson, chaos_game, contraction, draw_addresses, smooth_raster

from .config import RunConfig
from .losses import distance
from .model import Batch, Direct, Regulariser
from .networks import Encoder, levels_of, quiet

#: What pictures of function systems show.
EXTENT = (-1.0, 1.0, -1.0, 1.0)


def ifs_parts(config: RunConfig) -> tuple[IFSReconstructor, IFSInverse, Regulariser]:
    """Reconstructor, inverse and regulariser of a configuration."""
    data, width = config.data, config.model.width
    encoder = Encoder(3, (data.size, data.size), 1, width, config.model.base, levels_of(data.size))
    inverse = IFSInverse(config.model.functions, data.size, softness=config.train.softness[0])
    reconstructor = IFSReconstructor(encoder, *ring(config.model.functions), width)
    return reconstructor, inverse, SystemRegulariser(reconstructor.start)


def maps_about(fixed: Tensor, linear: Tensor) -> Tensor:
    """The maps x -> p + A (x - p) in the residual form (..., n, 6): p = `fixed` (..., n, 2) stays, A = `linear` (..., n, 2, 2).

    >>> maps_about(torch.tensor([[1.0, 0.0]]), 0.5 * torch.eye(2)[None])
    tensor([[ 0.5000, -0.5000,  0.0000, -0.0000,  0.0000, -0.5000]])
    """
    moved = linear - torch.eye(2, dtype=linear.dtype, device=linear.device)
    offset = -(moved @ fixed[..., None])
    return torch.cat([offset, moved], -1).flatten(-2)


def ring(functions: int, radius: float = 0.8, scale: float = 0.48) -> tuple[Tensor, Tensor]:
    """A system to begin with, as fixed points (n, 2) on a ring and linear parts (n, 2, 2): shrunk copies, not turned."""
    angle = torch.arange(functions) * (2 * math.pi / functions) + math.pi / 2
    fixed = radius * torch.stack([angle.cos(), angle.sin()], -1)
    return fixed, scale * torch.eye(2).expand(functions, 2, 2).clone()


class IFSReconstructor(nn.Module):
    """Pictures to the parameters (B, n, 6) of an iterated function system in the residual form.

    The network moves the fixed point p and the linear part A of each map x -> p + A (x - p) away from those of the
    template, each coordinate of p and each entry of A by less than `reach`. In these coordinates turning or shrinking a copy
    does not move it, as it would with offsets: the gradient of the picture by one depends little on the other.
    """

    fixed: Tensor
    linear: Tensor

    def __init__(self, encoder: Encoder, fixed: Tensor, linear: Tensor, width: int = 256, reach: float = 0.5):
        super().__init__()
        self.encoder = encoder
        self.reach = reach
        self.register_buffer("fixed", fixed.clone())
        self.register_buffer("linear", linear.clone())
        self.move = nn.Sequential(nn.Linear(width, width), nn.SiLU(), quiet(nn.Linear(width, 6 * len(fixed))))

    @property
    def start(self) -> Tensor:
        """The template's parameters (n, 6)."""
        return maps_about(self.fixed, self.linear)

    def forward(self, pictures: Tensor) -> Tensor:
        return self.systems(torch.tanh(self.move(self.encoder(pictures)).float()).unflatten(-1, (-1, 6)))

    def systems(self, moves: Tensor) -> Tensor:
        """The template (n, 6) moved by `moves` (B, n, 6) in [-1, 1]: two coordinates of each fixed point, four entries."""
        fixed = self.fixed + self.reach * moves[..., :2]
        return maps_about(fixed, self.linear + self.reach * moves[..., 2:].unflatten(-1, (2, 2)))


class IFSInverse(nn.Module):
    """Parameters (B, n, 6) of function systems to grey pictures (B, 1, H, W): addresses once drawn, then the raster.

    Point k applies the maps of the k-th address to the origin. Addresses share out the attractor evenly; they are drawn
    once, from `seed`, and kept, so the picture is a smooth function of the parameters without the noise of a chaos game.
    Maps are kept contractive. `exposure`: how many times as many points as pixels fall on the picture, as it were.
    """

    choices: Tensor
    softness: Tensor

    def __init__(
        self,
        functions: int,
        size: int,
        *,
        points: int = 1024,
        depth: int = 12,
        exposure: float = 0.5,
        softness: float = 1.0,
        seed: int = 0,
    ):
        super().__init__()
        choices = draw_addresses(torch.ones(functions), points, depth, torch.Generator().manual_seed(seed))
        self.size, self.exposure = size, exposure
        self.register_buffer("choices", choices)
        self.register_buffer("softness", torch.tensor(float(softness)))

    def points(self, parameters: Tensor) -> Tensor:
        """The points (B, N, 2), one per address."""
        return chaos_game(contraction(parameters), self.choices, burn_in=self.choices.shape[-1] - 1)

    def forward(self, parameters: Tensor) -> Tensor:
        points = self.points(parameters)
        weights = points.new_full(points.shape[:-1], self.exposure * self.size**2 / points.shape[-2])
        picture = smooth_raster(
            points,
            (self.size, self.size),
            sigma=self.softness,
            extent=EXTENT,
            aggregate=Poisson(),
            weights=weights,
        )
        return picture[:, None]


def save_system(parameters: Tensor, path: Path) -> Path:
    """Write a system (n, 6) as the file that `IFS.load` reads, with the picture's extent."""
    IFS(parameters.detach().cpu(), weights=torch.ones(len(parameters)), extent=EXTENT, bound=0.97).save(path)
    return path


class SupervisedSystems(Direct):
    """The upper bound: R trained on the true systems, by the mean absolute differences of parameters and of pictures."""

    sees = ("a", "parameters")

    def fit(self, reconstruction: Tensor, batch: Batch) -> Tensor:
        if "parameters" not in batch:
            raise ValueError("SupervisedSystems: the batch must hold the true `parameters` (B, n, 6).")
        true = batch["parameters"]
        with torch.no_grad():
            b = self.invert(true, batch["a"])
        apart = distance(self.invert(reconstruction, batch["a"]), b, 1.0)
        return (self.weights.l1 or 1.0) * ((reconstruction - true).abs().mean() + apart)


class SystemRegulariser(nn.Module):
    """What keeps a system near its template: the mean square of the differences between their parameters."""

    start: Tensor

    def __init__(self, start: Tensor):
        super().__init__()
        self.register_buffer("start", start.clone())

    def forward(self, parameters: Tensor) -> Tensor:
        return (parameters - self.start).square().mean()

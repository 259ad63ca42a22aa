"""Function systems as reconstructions: the encoder to their maps, their smooth picture, what keeps them alive."""

from __future__ import annotations

import math
from pathlib import Path
from typing import cast

import torch
from torch import Tensor, nn

from algonet.ifs import IFS, Poisson, chaos_game, contraction, draw_addresses, smooth_raster, ssim
from algonet.ran.data import CachedItems
from algonet.ran.data.fractals import Fractals, maps_about
from algonet.ran.model import Batch, Trainable
from algonet.ran.networks import Encoder, head
from algonet.relax import GaussianNoise, SoftModule

from . import Parts, Problem, Scores
from .mesh import read_views

#: What pictures of function systems show.
EXTENT = (-1.0, 1.0, -1.0, 1.0)


class FractalProblem(Problem):
    """The parameters (B, n, 6) of iterated function systems in the residual form."""

    truth = ("parameters",)

    def parts(self) -> Parts:
        model = self.config.model
        inverse = IFSInverse(model.functions, self.config.data.size, scale=self.config.train.softness[0])
        reconstructor = IFSReconstructor(self.encoder(), *ring(model.functions), model.width)
        return Parts(reconstructor, inverse, SystemRegulariser(reconstructor.start))

    def procedural(self, split: str) -> CachedItems:
        return Fractals(size=self.config.data.size, functions=self.config.model.functions, **self.look(split))

    def truth_loss(self, reconstruction: Tensor, batch: Batch, inverse: nn.Module) -> Tensor:
        """The mean absolute differences of parameters and of pictures."""
        true = batch["parameters"]
        with torch.no_grad():
            b = inverse(true)
        apart = (inverse(reconstruction) - b).abs().flatten(1).mean(1)
        return (reconstruction - true).abs().flatten(1).mean(1) + apart

    @torch.no_grad()
    def evaluate(self, model: Trainable | None, data: Fractals, scale: float = 1.0) -> Scores:
        """Mean SSIM between pictures of the systems found (of the template, without a model) and of the true ones.

        Both are drawn by an inverse of this function's own, `scale` pixels wide, with other and more points than in
        training."""
        device = torch.device("cpu") if model is None else next(model.parameters()).device
        inverse = IFSInverse(data.functions, data.size, points=4096, depth=16, scale=scale, seed=1).to(device)
        start = maps_about(*ring(data.functions)).to(device)
        scores = []
        for items in self.batches(data, ("a", "parameters")):
            a, true = items["a"].to(device), items["parameters"].to(device)
            found = start.expand_as(true) if model is None else model.reconstruct(a)
            scores.append(ssim(inverse(found)[:, 0], inverse(true)[:, 0]))
        return {"ssim": float(torch.cat(scores).mean())}

    def read(self, path: Path) -> Tensor:
        return read_views(path, self.config.data.size, 1)

    def encoded(self, found: Tensor) -> tuple[str, bytes]:
        return ".json", system_of(found).to_json().encode()


def ring(functions: int, radius: float = 0.8, scale: float = 0.48) -> tuple[Tensor, Tensor]:
    """A system to begin with, as fixed points (n, 2) on a ring and linear parts (n, 2, 2): shrunk copies, not turned."""
    angle = torch.arange(functions) * (2 * math.pi / functions) + math.pi / 2
    fixed = radius * torch.stack([angle.cos(), angle.sin()], -1)
    return fixed, scale * torch.eye(2).expand(functions, 2, 2).clone()


class IFSReconstructor(nn.Module):
    """Pictures to the parameters (B, n, 6) of an iterated function system in the residual form.

    The network moves the fixed point p and the linear part A of each map x -> p + A (x - p) away from those of the
    template, each coordinate of p and each entry of A by less than `reach`. In these coordinates turning or shrinking a
    copy does not move it, as it would with offsets: the gradient of the picture by one depends little on the other."""

    fixed: Tensor
    linear: Tensor

    def __init__(self, encoder: Encoder, fixed: Tensor, linear: Tensor, width: int = 256, reach: float = 0.5):
        super().__init__()
        self.encoder = encoder
        self.reach = reach
        self.register_buffer("fixed", fixed.clone())
        self.register_buffer("linear", linear.clone())
        self.move = head(width, 6 * len(fixed))

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

    def draw(self, count: int) -> Tensor:
        """Random reconstructions: each number moved by up to half of what is reachable."""
        return self.systems(torch.rand(count, *self.start.shape, device=self.fixed.device) - 0.5)


class IFSInverse(SoftModule):
    """Parameters (B, n, 6) of function systems to grey pictures (B, 1, H, W): addresses once drawn, then the raster.

    Point k applies the maps of the k-th address to the origin. Addresses share out the attractor evenly; they are drawn
    once, from `seed`, and kept, so the picture is a smooth function of the parameters without the noise of a chaos game.
    Maps are kept contractive. `exposure`: the sum of the points' weights over the number of pixels.
    The noise's `scale`, in pixels, is its softness. Flat features (B, n * 6) give flat pictures, for `Shortcut` and `Residual`.
    """

    choices: Tensor
    scale: Tensor

    def __init__(
        self,
        functions: int,
        size: int,
        *,
        points: int = 1024,
        depth: int = 12,
        exposure: float = 0.5,
        scale: float = 1.0,
        seed: int = 0,
    ):
        super().__init__(GaussianNoise(scale))
        choices = draw_addresses(torch.ones(functions), points, depth, torch.Generator().manual_seed(seed))
        self.size, self.exposure = size, exposure
        self.register_buffer("choices", choices)

    def points(self, parameters: Tensor) -> Tensor:
        """The points (B, N, 2), one per address."""
        return chaos_game(contraction(parameters), self.choices, burn_in=self.choices.shape[-1] - 1)

    def forward(self, parameters: Tensor) -> Tensor:
        if parameters.dim() == 2:
            return self(parameters.unflatten(-1, (-1, 6))).flatten(1)
        points = self.points(parameters)
        weights = points.new_full(points.shape[:-1], self.exposure * self.size**2 / points.shape[-2])
        picture = smooth_raster(
            points,
            (self.size, self.size),
            sigma=cast(GaussianNoise, self.relax).scale,
            extent=EXTENT,
            aggregate=Poisson(),
            weights=weights,
        )
        return picture[:, None]


def system_of(parameters: Tensor) -> IFS:
    """Parameters (n, 6) as a system with the picture's extent."""
    return IFS(parameters.detach().cpu(), weights=torch.ones(len(parameters)), extent=EXTENT, bound=0.97)


class SystemRegulariser(nn.Module):
    """What keeps a system near its template: the mean square of the differences between their parameters."""

    start: Tensor

    def __init__(self, start: Tensor):
        super().__init__()
        self.register_buffer("start", start.clone())

    def forward(self, parameters: Tensor) -> Tensor:
        return (parameters - self.start).square().mean()

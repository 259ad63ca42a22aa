"""Function systems as reconstructions: the encoder to their maps, their smooth picture, what keeps them alive; and seeded
systems, drawn by the ordinary chaos game and painted in one of the styles."""

from __future__ import annotations

import math
from typing import Any, cast

import torch
from torch import Generator as Random
from torch import Tensor, nn
from torch.nn.functional import one_hot

from algonet.ifs import IFS, Poisson, chaos_game, contraction, draw_addresses, draw_choices, smooth_raster, ssim
from algonet.ran.data import CachedItems, Item, Procedural, generator_of, uniform
from algonet.ran.model import Batch, Trainable
from algonet.ran.networks import Encoder, head
from algonet.relax import GaussianNoise, SoftModule

from . import Parts, Problem, Scores, answers

#: What pictures of function systems show.
EXTENT = (-1.0, 1.0, -1.0, 1.0)


class FractalProblem(Problem):
    """The parameters (B, n, 6) of iterated function systems in the residual form."""

    truth = ("parameters",)

    def parts(self) -> Parts:
        model = self.config.model
        inverse = IFSInverse(model.functions, self.config.data.size, scale=self.config.train.softness[0])
        reconstructor = IFSReconstructor(self.encoder(), *ring(model.functions), model.width)
        return reconstructor, inverse, SystemRegulariser(reconstructor.start)

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
        true = data.batch(list(range(len(data))), ("parameters",))["parameters"]
        templates = [maps_about(*ring(data.functions)).expand_as(true)]
        found = torch.cat([found for _, found in answers(model, data)] if model else templates)
        inverse = IFSInverse(data.functions, data.size, points=4096, depth=16, scale=scale, seed=1).to(found.device)
        pairs = zip(found.split(64), true.to(found.device).split(64), strict=True)
        return {"ssim": float(torch.cat([ssim(*(inverse(maps)[:, 0] for maps in pair)) for pair in pairs]).mean())}

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

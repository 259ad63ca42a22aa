"""Refining many systems at once against a picture: gradients through the chaos game and the smooth raster."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from algonet.ifs import Poisson, chaos_game, contraction, draw_addresses, smooth_raster
from algonet.ifs.reference import join_parameters, split_parameters

from .ifs_search import Shape, blurred
from .progress import decay, geometric


@dataclass(frozen=True)
class Level:
    """One stage: the picture's longer side, sigma from and to (pixels of that size), steps, how far a point moves per
    step at first (in units of the longer side), points per system, steps per chain, and how many systems survive it.
    With `replace` each system first gets rivals in which one of its maps was searched for anew; with `tone` the exposure
    and the scale of the noise are learned too, where the picture is a silhouette: most of it saturated, so that its density
    is unknown, and its outline is what counts."""

    side: int
    sigma: tuple[float, float]
    steps: int
    rate: float
    points: int
    depth: int
    keep: int
    replace: bool = False
    tone: bool = False


class Whitening:
    """Coordinates in which a change of any parameter moves the target's points about equally far.

    f(x) = c + b + M z with z = C^(-1/2) (x - c), c and C the target's mean and covariance: then b and the columns of M
    are uncorrelated in their effect, and one learning rate (a distance) suits them all.
    """

    def __init__(self, cloud: Tensor):
        self.centre = cloud.mean(0)
        spread = cloud - self.centre
        values, vectors = torch.linalg.eigh(spread.T @ spread / len(cloud))
        root = values.clamp_min(1e-4).sqrt()
        self.root, self.inverse = vectors * root @ vectors.T, vectors / root @ vectors.T

    def encode(self, parameters: Tensor) -> Tensor:
        offset, linear = split_parameters(parameters, 2)
        return torch.cat([(offset + linear @ self.centre - self.centre)[..., None], linear @ self.root], dim=-1)

    def decode(self, code: Tensor) -> Tensor:
        linear = code[..., 1:] @ self.inverse
        return join_parameters(code[..., 0] + self.centre - linear @ self.centre, linear)


@dataclass
class Systems:
    """A batch of systems under refinement: parameters (R, n, 6), logits of the selection weights (R, n), logarithms of
    the exposure (R) and of the noise's scale in pixels of the finest picture (R), losses (R)."""

    parameters: Tensor
    logits: Tensor
    exposures: Tensor
    scales: Tensor
    losses: Tensor

    def joined(self, other: Systems) -> Systems:
        return Systems(*(torch.cat(pair) for pair in zip(vars(self).values(), vars(other).values(), strict=True)))

    def best(self, count: int) -> Systems:
        order = self.losses.argsort()[:count]
        return Systems(*(values[order] for values in vars(self).values()))


Watch = Callable[[float, Tensor], bool]
#: How many of the last choices carry the gradient of the selection weights.
_MEMORY = 12
#: Steps between redraws of the choices.
_EVERY = 8


def refine(
    systems: Systems, shape: Shape, level: Level, cloud: Tensor, bound: float, watch: Watch, generator: torch.Generator
) -> Systems:
    """Adam on the picture's squared error and structural dissimilarity, sigma annealed over the level.

    `watch(loss, picture)` is told the best loss and picture at each step and ends the level by returning False.
    """
    target = shape.resized(level.side)
    height, width = target.density.shape
    whitening = Whitening(cloud)
    code = whitening.encode(systems.parameters).requires_grad_()
    logits = systems.logits.clone().requires_grad_()
    exposures = systems.exposures.clone().requires_grad_()
    scales = systems.scales.clone().requires_grad_()
    groups = [{"params": [code], "start": level.rate}, {"params": [logits], "start": 0.03}]
    groups.append({"params": [exposures, scales], "start": 0.05 if level.tone else 0.0})
    optimiser = torch.optim.Adam(groups, lr=level.rate, betas=(0.9, 0.98))
    finest = target.side / shape.side
    losses, drawn, memory, start, shares = systems.losses, None, logits, cloud, logits
    for step in range(level.steps):
        part = step / max(1, level.steps - 1)
        for group in optimiser.param_groups:
            group["lr"] = group["start"] * decay(part, 0.03)
        sigma = geometric(level.sigma, part)
        # the picture has been drawn with one pixel's blur already
        wanted = -torch.expm1(-blurred(target.density, math.sqrt(max(sigma**2 - finest**2, 0.0))))
        if step % _EVERY == 0 or drawn is None:
            shares = logits.detach().softmax(-1) + 0.005
            shares = shares / shares.sum(-1, keepdim=True)
            drawn = draw_addresses(shares, level.points, level.depth, generator)
            start = cloud[torch.randint(len(cloud), (level.points,), generator=generator).to(cloud.device)]
            recent = drawn[..., -_MEMORY:]
            memory = torch.stack([(recent == k).sum(-1) for k in range(logits.shape[-1])], dim=-1).to(code)
        with torch.enable_grad():
            points = chaos_game(contraction(whitening.decode(code), bound), drawn, start, burn_in=level.depth - 1)
            # importance weights: the choices were drawn with yesterday's shares
            change = (memory @ (logits.log_softmax(-1) - shares.log())[..., None])[..., 0].clamp(-3, 3)
            brightness = exposures.exp() * (target.density.numel() / level.points)
            picture = smooth_raster(
                points, (height, width), sigma=sigma * scales.exp(), extent=shape.extent, aggregate=Poisson(),
                weights=change.exp() * brightness[:, None], epsilon=1e-3, method="windows",
            )  # fmt: skip
            losses = _loss(picture, wanted, 0.5 if level.tone else 0.1)
            gradients = torch.autograd.grad(losses.sum(), [code, logits, exposures, scales])
        code.grad, logits.grad, exposures.grad, scales.grad = gradients
        optimiser.step()
        losses = losses.detach()
        if step % 4 == 3 or step == level.steps - 1:
            best = int(losses.argmin())
            if not watch(float(losses[best]), picture[best].detach()):
                break
    return Systems(whitening.decode(code.detach()), logits.detach(), exposures.detach(), scales.detach(), losses).best(
        level.keep
    )


def _loss(picture: Tensor, wanted: Tensor, structure: float) -> Tensor:
    error = ((picture - wanted) ** 2).mean((-2, -1))
    return error + structure * (1 - likeness(picture, wanted))


def likeness(picture: Tensor, wanted: Tensor) -> Tensor:
    """`ssim` of pictures of any size: a side that is less than its window is made longer, dark as all is outside."""
    height, width = (max(0, 11 - n) for n in wanted.shape[-2:])
    return ssim(functional.pad(picture, (0, width, 0, height)), functional.pad(wanted, (0, width, 0, height)))


def ssim(a: Tensor, b: Tensor) -> Tensor:
    """Structural similarity of pictures (*batch, H, W) with values in [0, 1]: 1 for equal ones, about 0 for unrelated.

    The usual settings: a Gaussian window of standard deviation 1.5 (11 pixels wide, only where it fits whole),
    constants 0.01^2 and 0.03^2, averaged over the picture. Differentiable.

    >>> picture = torch.rand(16, 16)
    >>> float(ssim(picture, picture))
    1.0
    """
    if a.shape[-2:] != b.shape[-2:] or min(a.shape[-2:]) < 11:
        raise ValueError(
            f"ssim: wanted two pictures of one size from 11 x 11 on, got {tuple(a.shape)} and {tuple(b.shape)}."
        )
    a, b = torch.broadcast_tensors(a, b)
    down, across = _windows(a, a.shape[-2]), _windows(a, a.shape[-1])
    mean_a, mean_b, aa, bb, ab = (down @ torch.stack([a, b, a * a, b * b, a * b]) @ across.mT).unbind()
    spread_a, spread_b, joint = aa - mean_a**2, bb - mean_b**2, ab - mean_a * mean_b
    c1, c2 = 0.01**2, 0.03**2
    likeness = (2 * mean_a * mean_b + c1) * (2 * joint + c2)
    return (likeness / ((mean_a**2 + mean_b**2 + c1) * (spread_a + spread_b + c2))).mean((-2, -1))


def _windows(like: Tensor, size: int) -> Tensor:
    """(size - 10, size): row i averages pixels i to i + 10. One matrix product is faster than a convolution on a CPU."""
    position = torch.arange(size, dtype=like.dtype, device=like.device)
    distance = position[None, :] - position[: size - 10, None] - 5
    rows = torch.exp(-0.5 * distance**2 / 1.5**2) * (distance.abs() <= 5)
    return rows / rows.sum(-1, keepdim=True)

"""Finding maps that send a shape into itself: the random start of a fit, made by looking for self-similarity.

A system whose attractor is the target consists of maps f with f(target) inside the target, whose images together cover
it. So they are found one after the other: from many random maps, ascend

    area(f) * (mean of U over f(target) - spill * mean of (1 - T) over f(target)),

T being the target's coverage and U what no earlier map covers, both in units of the mean of T over the target. Looking up a
blurred picture at the images of a few hundred target points is all it takes, so thousands of maps are cheap; the blur is
annealed from coarse to fine.

Then the systems found are refined against the picture, many at once: gradients through the chaos game and the smooth raster.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from algonet.ifs import Poisson, chaos_game, contraction, draw_addresses, smooth_raster
from algonet.ifs.maps import capped, determinant, map_norms
from algonet.ifs.reference import join_parameters, split_parameters

from .progress import decay, geometric


@dataclass(frozen=True)
class Search:
    """How the search goes: candidates per restart and function, points per candidate, steps, the annealed blur in
    pixels of a picture whose longer side is `side`, the price of spilling outside, and the largest norm of a map."""

    candidates: int = 16
    points: int = 160
    steps: int = 50
    side: int = 64
    blur: tuple[float, float] = (3.0, 0.8)
    spill: float = 4.0
    bound: float = 0.9
    rate: float = 0.03


class Shape:
    """A target as a density on a grid: resampling, blurring, sampling, looking up. Its longer side has length 1."""

    def __init__(self, density: Tensor):
        self.density = density
        height, width = density.shape
        self.side = max(height, width)
        self.extent = (0.0, width / self.side, 0.0, height / self.side)

    def resized(self, side: int) -> Shape:
        """The same shape on a grid whose longer side is `side`, or as it is: never finer than that."""
        side = min(side, self.side)
        height, width = (max(1, round(n * side / self.side)) for n in self.density.shape)
        if (height, width) == tuple(self.density.shape):
            return self
        small = functional.interpolate(self.density[None, None], size=(height, width), mode="area")[0, 0]
        return Shape(small)

    def sample(self, count: int, generator: torch.Generator) -> Tensor:
        """Points drawn in proportion to the density, (count, 2)."""
        height, width = self.density.shape
        index = torch.multinomial(self.density.flatten().cpu(), count, replacement=True, generator=generator)
        corner = torch.stack([index % width, height - 1 - index // width], dim=-1)
        jitter = torch.rand(count, 2, generator=generator)
        return ((corner + jitter) / self.side).to(self.density)


def blurred(fields: Tensor, sigma: float) -> Tensor:
    """Fields (..., H, W) convolved with a Gaussian of `sigma` pixels, zero outside: two matrix products."""
    if sigma < 0.05:
        return fields
    down, across = (_gauss(fields, n, sigma, n + 8) for n in fields.shape[-2:])
    return down @ fields @ across


def _gauss(like: Tensor, size: int, sigma: float, reach: int) -> Tensor:
    """(size, size): row i averages what lies within `reach` pixels of i. On a CPU products are faster than convolutions."""
    distance = torch.arange(-reach, reach + 1, dtype=like.dtype, device=like.device)
    window = functional.pad(torch.exp(-0.5 * (distance / sigma) ** 2), (size, size))
    return (window / window.sum()).unfold(0, size, 1)[size + reach - torch.arange(size, device=like.device)]


def find_maps(shape: Shape, functions: int, restarts: int, settings: Search, generator: torch.Generator) -> Tensor:
    """Parameters (restarts, functions, 6) of maps that send the shape into itself and together cover much of it."""
    grid = _coverage(shape, settings.side)
    cloud = grid.sample(4096, generator)
    uncovered = grid.density.expand(restarts, *grid.density.shape).clone()
    # half of the restarts may begin with a map as large as the bound, the others with ever smaller ones
    caps = torch.linspace(settings.bound, 0.45, restarts).to(cloud)
    caps[: restarts // 2] = settings.bound
    chosen = []
    for number in range(functions):
        maps, scores = _ascend(grid, uncovered, cloud, caps, settings, generator)
        best = _distinct(maps, scores, cloud) if number == 0 else _lottery(maps, scores, generator)
        chosen.append(best)
        uncovered = uncovered * (1 - _covered(best, grid))
    return torch.stack(chosen, dim=1)


def replace_each(shape: Shape, systems: Tensor, settings: Search, generator: torch.Generator) -> Tensor:
    """Systems (R, n, 6) with one map found anew, for each map in turn: (R n, n, 6).

    A fit often has all maps right but one. Given what the others cover, the search tries that one again.
    """
    restarts, functions, _ = systems.shape
    grid = _coverage(shape, settings.side)
    cloud = grid.sample(4096, generator)
    covered = torch.stack([_covered(systems[:, k], grid) for k in range(functions)], dim=1)
    index = torch.arange(functions, device=systems.device)
    left = (1 - covered)[:, None].expand(-1, functions, -1, -1, -1).clone()
    left[:, index, index] = 1.0
    uncovered = (grid.density * left.prod(2)).flatten(0, 1)
    caps = cloud.new_full((restarts * functions,), settings.bound)
    maps, scores = _ascend(grid, uncovered, cloud, caps, settings, generator)
    changed = systems[:, None].expand(-1, functions, -1, -1).clone()
    changed[:, index, index] = _lottery(maps, scores, generator).unflatten(0, (restarts, functions))
    return changed.flatten(0, 1)


def _coverage(shape: Shape, side: int) -> Shape:
    """The shape as coverage in [0, 1] rather than density, on a grid of that side."""
    density = shape.resized(side).density
    return Shape(1 - torch.exp(-6 * density / density.max().clamp_min(1e-6)))


def _ascend(
    grid: Shape, uncovered: Tensor, cloud: Tensor, caps: Tensor, settings: Search, generator: torch.Generator
) -> tuple[Tensor, Tensor]:
    """Maps (restarts, candidates, 6) at local maxima of their score, and the scores."""
    restarts, count = len(uncovered), settings.candidates
    raw = _random_maps(grid, uncovered, cloud, settings, generator).requires_grad_()
    optimiser = torch.optim.Adam([raw], lr=settings.rate, betas=(0.9, 0.95))
    outside = (1 - grid.density).expand_as(uncovered)
    scale = cloud.new_tensor([grid.extent[1], grid.extent[3]])
    fields, scores = uncovered, raw.new_zeros(restarts, count)
    for step in range(settings.steps):
        progress = step / max(1, settings.steps - 1)
        if step % 5 == 0:
            sigma = geometric(settings.blur, progress)
            # the outside is stored less 1, because looking up beyond the picture gives 0
            fields = torch.stack([blurred(uncovered, sigma), -blurred(1 - outside, sigma)], dim=1)
            # in units of what the shape finds where it is: thin lines are faint once blurred
            fields = fields / (blurred(grid.density, sigma) * grid.density).sum() * grid.density.sum()
        optimiser.param_groups[0]["lr"] = settings.rate * decay(progress, 0.05)
        points = cloud[torch.randint(len(cloud), (settings.points,), generator=generator).to(cloud.device)]
        with torch.enable_grad():
            maps = capped(raw, caps[:, None])
            images = _apply(maps, points) / scale
            where = torch.stack([images[..., 0] * 2 - 1, 1 - images[..., 1] * 2], dim=-1).flatten(1, 2)[:, :, None]
            found = functional.grid_sample(fields, where, align_corners=False, padding_mode="zeros")[..., 0]
            new, spilt = found.unflatten(-1, (count, -1)).mean(-1).unbind(1)
            scores = _area(maps, grid.side) * (new - settings.spill * (1 + spilt))
            raw.grad = torch.autograd.grad(scores.sum(), raw)[0].neg_()
        optimiser.step()
    return capped(raw.detach(), caps[:, None]), scores.detach()


def _random_maps(grid: Shape, uncovered: Tensor, cloud: Tensor, settings: Search, generator: torch.Generator) -> Tensor:
    """Random similarities, squeezed a little, that send some target point to a point not yet covered."""
    shape = len(uncovered), settings.candidates
    size = torch.exp(math.log(0.15) + math.log(settings.bound / 0.15) * torch.rand(shape, generator=generator))
    squeeze = torch.exp(0.5 * torch.randn(shape, generator=generator)).clamp(0.25, 1.0)
    turn, axis = (2 * math.pi * torch.rand(2, *shape, generator=generator)).unbind()
    # many natural shapes hold slightly turned copies of themselves
    upright = torch.rand(shape, generator=generator) < 0.35
    turn = torch.where(upright, 0.3 * torch.randn(shape, generator=generator), turn)
    mirror = torch.where((torch.rand(shape, generator=generator) < 0.4) & ~upright, -1.0, 1.0)
    stretch = torch.diag_embed(torch.stack([size, size * squeeze * mirror], dim=-1))
    linear = _rotation(turn) @ _rotation(-axis) @ stretch @ _rotation(axis)
    height, width = uncovered.shape[-2:]
    index = torch.multinomial(uncovered.flatten(1).cpu() + 1e-9, shape[1], replacement=True, generator=generator)
    goal = torch.stack([index % width + 0.5, height - 0.5 - index // width], dim=-1) / grid.side
    source = cloud.cpu()[torch.randint(len(cloud), shape, generator=generator)]
    central = torch.rand(*shape, 1, generator=generator) < 0.5
    source = torch.where(central, cloud.cpu().mean(0), source)
    offset = goal - (linear @ source[..., None])[..., 0]
    return join_parameters(offset, linear).to(cloud)


def _rotation(angle: Tensor) -> Tensor:
    rows = torch.stack([angle.cos(), -angle.sin(), angle.sin(), angle.cos()], dim=-1)
    return rows.unflatten(-1, (2, 2))


def _apply(maps: Tensor, points: Tensor) -> Tensor:
    """Maps (..., 6) and points (K, 2) give (..., K, 2)."""
    offset, linear = split_parameters(maps)
    return points @ linear.mT + offset[..., None, :]


def _area(maps: Tensor, side: int) -> Tensor:
    """What a map does to areas; one that flattens the shape still leaves a line a pixel wide."""
    _, linear = split_parameters(maps)
    return torch.sqrt(determinant(linear) ** 2 + (map_norms(maps) / (0.6 * side)) ** 2)


def _distinct(maps: Tensor, scores: Tensor, cloud: Tensor) -> Tensor:
    """The first function of each restart: the best of all candidates, each different from those before it."""
    restarts = len(scores)
    flat = maps.flatten(0, 1)
    order = scores.flatten().argsort(descending=True)
    images = _apply(flat, cloud[:32])[order]
    distinct: list[int] = []
    for i in range(len(order)):
        if not distinct or float((images[distinct] - images[i]).abs().mean((1, 2)).min()) > 0.01:
            distinct.append(i)
        if len(distinct) == max(1, restarts // 2):
            break
    # the first half of the restarts share the best ones; the rest keep their own, capped, best
    restart = torch.arange(restarts, device=flat.device)
    shared = flat[order[distinct]][restart % len(distinct)]
    own = maps[restart, scores.argmax(1)]
    return torch.where((restart < restarts // 2)[:, None], shared, own)


def _lottery(maps: Tensor, scores: Tensor, generator: torch.Generator) -> Tensor:
    """A later function of each restart: mostly its best candidate, sometimes the second or third."""
    odds = torch.tensor([0.6, 0.25, 0.15])[: scores.shape[1]]
    rank = torch.multinomial(odds, len(scores), replacement=True, generator=generator).to(scores.device)
    best = scores.argsort(1, descending=True).gather(1, rank[:, None])[:, 0]
    return maps[torch.arange(len(maps), device=maps.device), best]


def _covered(maps: Tensor, grid: Shape) -> Tensor:
    """What the image of the target under each map covers, (restarts, H, W)."""
    rows, columns = (grid.density > 0.02).nonzero(as_tuple=True)
    height, width = grid.density.shape
    centres = torch.stack([columns + 0.5, height - 0.5 - rows], dim=-1).to(grid.density) / grid.side
    weights = 2 * grid.density[rows, columns]
    return smooth_raster(
        _apply(maps, centres), (height, width), sigma=0.7, extent=grid.extent, aggregate=Poisson(),
        weights=weights, epsilon=1e-3, method="windows",
    )  # fmt: skip


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
        offset, linear = split_parameters(parameters)
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


Watch = Callable[[float, Tensor], None]
#: How many of the last choices carry the gradient of the selection weights.
_MEMORY = 12
#: Steps between redraws of the choices.
_EVERY = 8


def refine(
    systems: Systems, shape: Shape, level: Level, cloud: Tensor, bound: float, watch: Watch, generator: torch.Generator
) -> Systems:
    """Adam on the picture's squared error and structural dissimilarity, sigma annealed over the level.

    `watch(loss, picture)` is told the best loss and picture at every fourth step.
    """
    target = shape.resized(level.side)
    height, width = target.density.shape
    whitening = Whitening(cloud)
    started = whitening.encode(systems.parameters), systems.logits, systems.exposures, systems.scales
    learned = [values.clone().requires_grad_() for values in started]
    code, logits, exposures, scales = learned
    groups = [{"params": [code], "start": level.rate}, {"params": [logits], "start": 0.03}]
    groups.append({"params": [exposures, scales], "start": 0.05 if level.tone else 0.0})
    optimiser = torch.optim.Adam(groups, lr=level.rate, betas=(0.9, 0.98))
    finest = target.side / shape.side
    losses = systems.losses
    for step in range(level.steps):
        part = step / max(1, level.steps - 1)
        for group in optimiser.param_groups:
            group["lr"] = group["start"] * decay(part, 0.03)
        sigma = geometric(level.sigma, part)
        # the picture has been drawn with one pixel's blur already
        wanted = -torch.expm1(-blurred(target.density, math.sqrt(max(sigma**2 - finest**2, 0.0))))
        if step % _EVERY == 0:
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
            error, structure = (picture - wanted).square().mean((-2, -1)), 0.5 if level.tone else 0.1
            losses = error + structure * (1 - likeness(picture, wanted))
            optimiser.zero_grad()
            losses.sum().backward()
        optimiser.step()
        losses = losses.detach()
        if step % 4 == 3 or step == level.steps - 1:
            best = int(losses.argmin())
            watch(float(losses[best]), picture[best].detach())
    code, logits, exposures, scales = (values.detach() for values in learned)
    return Systems(whitening.decode(code), logits, exposures, scales, losses).best(level.keep)


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
    down, across = (_gauss(a, n, 1.5, 5)[5:-5] for n in a.shape[-2:])
    mean_a, mean_b, aa, bb, ab = (down @ torch.stack([a, b, a * a, b * b, a * b]) @ across.mT).unbind()
    spread_a, spread_b, joint = aa - mean_a**2, bb - mean_b**2, ab - mean_a * mean_b
    c1, c2 = 0.01**2, 0.03**2
    likeness = (2 * mean_a * mean_b + c1) * (2 * joint + c2)
    return (likeness / ((mean_a**2 + mean_b**2 + c1) * (spread_a + spread_b + c2))).mean((-2, -1))

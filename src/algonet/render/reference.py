"""The smooth rasteriser in plain torch: dense, differentiable to any order, in chunks that fit a memory budget.

This is the truth that the kernels are tested against; `README.md` derives it. Per face and pixel: the signed coverage
and the first moment of the noise inside the face; the mean position inside it; depth and attributes there. Per pixel: the
bounded sum of the coverages, and the nearest coverage that adds up to it; then background, or light and background.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, cast

import torch
from torch import Tensor

from algonet.core import tracing
from algonet.core.autograd import _replaced
from algonet.relax import BoundedSum

from .coverage import barycentrics, filtered_coverage, twice_area
from .lights import illuminate
from .settings import Raster, RasterSettings
from .vectors import (
    BACK,
    EDGE_GUARD,
    FADE,
    FAR_PIXELS,
    FAR_POINTS,
    FLAT,
    FLIP_AREA,
    FURTHEST,
    GREY,
    SOLVER_STEPS,
    area_sums,
    normalise_area,
    pixel_centres,
    step_between,
)

__all__ = ["filtered_coverage", "rasterise", "rasterise_lit", "twice_area"]

#: Bytes that the intermediate results of one chunk may take.
BUDGET = 1 << 27


def rasterise(tensors: Sequence[Tensor], settings: RasterSettings, *, budget: int = BUDGET) -> Raster:
    """The raster of the tensors of `operation.RASTER` (which says their shapes), differentiable to any order.

    O(B F H W) work; memory for one chunk of pixels at a time, also in the backward pass, which recomputes.
    """
    points, attributes, background, softness, faces, attribute_faces = apply_camera(tensors)
    corner_attributes = attributes[..., attribute_faces.long(), :]
    means, silhouette, depth = visible(points, corner_attributes, softness, faces, settings, budget)
    ground = background[..., None, None, :]
    share = silhouette[..., None]
    image = share * means + (1 - share) * ground[..., :-1]
    return Raster(image, silhouette, _placed(depth, silhouette, ground[..., -1], settings))


def _placed(depth: Tensor, silhouette: Tensor, far: Tensor, settings: RasterSettings) -> Tensor:
    """The surface's depth, 0 where there is next to nothing of it; or over that of the background."""
    if settings.over_depth:
        return silhouette * depth + (1 - silhouette) * far
    return depth * silhouette * torch.rsqrt(silhouette * silhouette + FADE * FADE)


def rasterise_lit(tensors: Sequence[Tensor], settings: RasterSettings, *, budget: int = BUDGET) -> tuple[Tensor, ...]:
    """Lit pictures: image, silhouette, depth, and further attributes over 0.

    Tensors are those of `operation.RASTER` with a matrix, then `eye` (*B, 3), `lights` (*B, L, 8), and vertex `normals`
    (*B, V, 3), which may be left out for those of the faces; the background is a colour and a depth. Of the attributes, the
    first three are the albedo if `settings.colored`. Where a surface is follows from its mean depth and the camera.
    """
    call, (eye, lights, *given) = tensors[:7], tensors[7:]
    matrix = call[6]
    normals = given[0] if given else normalise_area(*area_sums(call[0], call[4]))
    points, attributes, background, softness, faces, attribute_faces = apply_camera(call)
    corner_attributes = torch.cat([attributes[..., attribute_faces.long(), :], normals[..., faces.long(), :]], -1)
    means, silhouette, depth = visible(points, corner_attributes, softness, faces, settings, budget)
    positions = unproject(depth, matrix, settings.perspective)
    flat = means.flatten(-3, -2)
    albedo = flat[..., :3] if settings.colored else torch.full_like(flat[..., :3], GREY)
    assert settings.shading is not None
    lit = illuminate(albedo, flat[..., -3:], positions.flatten(-3, -2), eye, lights, settings.shading)
    share, ground = silhouette[..., None], background[..., None, None, :]
    image = share * lit.reshape(*silhouette.shape, 3) + (1 - share) * ground[..., :3]
    extra = share * means[..., 3 * settings.colored : -3]
    return image, silhouette, _placed(depth, silhouette, ground[..., 3], settings), extra


def unproject(depth: Tensor, matrix: Tensor, perspective: bool) -> Tensor:
    """The points (*B, H, W, 3) of the world that a camera (*B, 3, 4) sees at its pixels' centres and these depths."""
    z = depth[..., None]
    places = pixel_centres(depth.shape[-2], depth.shape[-1], depth) * (z if perspective else torch.ones_like(z))
    image_points = torch.cat([places, z], -1) - matrix[..., None, None, :, 3]
    rows = matrix[..., :3]
    # The inverse by cofactors, finite where there is none
    columns = torch.linalg.cross(rows.roll(-1, -2), rows.roll(-2, -2))
    det = (rows[..., 0, :] * columns[..., 0, :]).sum(-1)[..., None, None]
    inverse = columns * (det / (det * det + 1e-30))
    return (image_points[..., None] * inverse[..., None, None, :, :]).sum(-2)


def visible(
    points: Tensor,
    corner_attributes: Tensor,
    softness: Tensor,
    faces: Tensor,
    settings: RasterSettings,
    budget: int = BUDGET,
) -> tuple[Tensor, Tensor, Tensor]:
    """What is seen at each pixel: mean attributes (*B, H, W, C), the silhouette, and mean depth."""
    batch = points.shape[:-2]
    count = math.prod(batch)
    flat = [t.reshape(count, *t.shape[len(batch) :]) for t in (points, corner_attributes, softness)]
    chunk = max(1, budget // max(1, len(faces) * settings.coverage.alive * points.element_size()))
    total = settings.height * settings.width
    items = []
    for item in range(count):
        parts = []
        for start in range(0, total, chunk):
            run = _chunk_function(start, min(start + chunk, total), settings)
            parts.append(recomputed(run, *(t[item] for t in flat), faces))
        items.append([torch.cat(column) for column in zip(*parts, strict=True)])
    shape = (*batch, settings.height, settings.width)
    if not items:
        return points.new_zeros(*shape, corner_attributes.shape[-1]), points.new_zeros(shape), points.new_zeros(shape)
    means, silhouette, depth = (torch.stack(column) for column in zip(*items, strict=True))
    return means.reshape(*shape, -1), silhouette.reshape(shape), depth.reshape(shape)


def apply_camera(tensors: Sequence[Tensor]) -> list[Tensor]:
    """The tensors with points as the matrix, if there is one, sees them."""
    return list(tensors) if len(tensors) == 6 else [to_camera(tensors[0], tensors[6]), *tensors[1:6]]


def to_world(by_seen: Tensor, points: Tensor, matrix: Tensor) -> tuple[Tensor, Tensor]:
    """Gradients by points (*B, V, 3) of the world and by the camera's matrix, from the gradient by what it sees of them."""
    grad_points = torch.where(points.abs() <= FAR_POINTS, by_seen @ matrix[..., :3], 0.0)
    limited = points.clamp(-FAR_POINTS, FAR_POINTS)
    return grad_points, torch.cat([by_seen.mT @ limited, by_seen.sum(-2)[..., None]], -1)


def to_camera(points: Tensor, matrix: Tensor) -> Tensor:
    """matrix @ (point, 1): (x w, y w, depth) of points (*B, V, 3) of the world, by a matrix (*B, 3, 4)."""
    if torch.is_autocast_enabled(points.device.type):
        # Half a pixel of 256 is all that bfloat16 can tell
        with torch.autocast(points.device.type, enabled=False):
            return to_camera(points, matrix)
    # A finite but absurd coordinate must not overflow in the product
    points = points.clamp(-FAR_POINTS, FAR_POINTS)
    shift = matrix[..., None, :, 3]
    if points.dim() == 2 and matrix.dim() == 2:
        return torch.addmm(shift[0], points, matrix[:, :3].mT)
    return points @ matrix[..., :3].mT + shift


def _chunk_function(start: int, stop: int, settings: RasterSettings) -> Callable[..., tuple[Tensor, ...]]:
    """What is seen at pixels `start` to `stop`, counted row by row."""

    def run(points: Tensor, corner_attributes: Tensor, softness: Tensor, faces: Tensor) -> tuple[Tensor, ...]:
        pixels = pixel_centres(settings.height, settings.width, points).flatten(0, 1)[start:stop]
        corners = project(points, softness[2], settings)[faces.long()]
        return visible_at(corners, corner_attributes, softness, pixels, settings)

    return run


def visible_at(
    corners: Tensor, corner_attributes: Tensor, softness: Tensor, pixels: Tensor, settings: RasterSettings
) -> tuple[Tensor, Tensor, Tensor]:
    """Corners (F, 3, 5) and their attributes (F, 3, C) seen from pixels (P, 2): means (P, C), silhouette and depth (P,)."""
    coverage, soft, steepness = settings.coverage, softness[0], softness[1]
    screen, depths, perspective = corners[..., :2], corners[..., 2], corners[..., 3]
    area = twice_area(screen)
    signed, from_centroid, *spread = coverage.seen(screen, pixels, soft)
    shares = barycentrics(screen, area, from_centroid)
    turn = facing(screen, area, perspective if settings.perspective else depths, shares, coverage.width(soft))
    if settings.perspective and spread:
        from_centroid = from_centroid - nearness_shift(screen, area, perspective, shares, spread[0])
        shares = barycentrics(screen, area, from_centroid)
    weights = perspective_weights(shares, perspective)
    depth = (weights * depths[:, None]).sum(-1)
    front = torch.sigmoid(2 * turn)
    covered = (signed * torch.tanh(turn)).clamp_min(0) * corners[..., 4].prod(-1)[:, None]
    if not settings.two_sided:
        covered = covered * front
    silhouette, total = opaque(covered, front, settings), covered.sum(0)
    # Where noise mixes a surface's two sides, its back lies behind: by what depth changes within the noise, depth / turn
    places = 2 * steepness * depth * (1 + BACK * (1 - front) * torch.rsqrt(1 + turn * turn))
    limit = nearest_unit(covered, places, total, silhouette)
    seen = covered * torch.sigmoid(limit - places)
    seen = seen / _positive(seen.sum(0))
    return torch.einsum("fp,fpi,fic->pc", seen, weights, corner_attributes), silhouette, (seen * depth).sum(0)


def opaque(covered: Tensor, front: Tensor, settings: RasterSettings) -> Tensor:
    """The silhouette: T = N / (1 + N^k)^(1/k), N = (A^k + B^k)^(1/k), A the coverage seen from the front, B from the back.

    A closed surface has as much of both: they count once."""
    if not settings.power:
        # Coverage is a probability; only rounding leaves [0, 1]
        return settings.conorm.reduce(covered.clamp(0, 1), dim=0)
    bound = cast(BoundedSum, settings.conorm).bound
    if not settings.two_sided:
        return bound(covered.sum(0))
    a, b = (covered * front).sum(0), (covered * (1 - front)).sum(0)
    small, large = torch.minimum(a, b), _positive(torch.maximum(a, b))
    if settings.power == math.inf:
        return bound(large)
    return bound(large * (1 + (small / large) ** settings.power) ** (1 / settings.power))


def nearest_unit(covered: Tensor, places: Tensor, total: Tensor, silhouette: Tensor) -> Tensor:
    """The y of each pixel with sum covered * sigmoid(y - places) = silhouette, (P,); `places` (F, P).

    Solved for what is hidden, sum covered * sigmoid(places - y) = total - silhouette, which stays precise where it is little.
    Differentiable three times: two of Newton's steps from the solution know its derivatives.
    """
    hidden = (total - silhouette).clamp_min(0)
    with torch.no_grad():
        c, x, h, t = covered.detach(), places.detach(), hidden.detach(), silhouette.detach()
        there = c > 0
        low, high = (
            torch.where(there, x, torch.inf).amin(0) - FURTHEST,
            torch.where(there, x, -torch.inf).amax(0) + FURTHEST,
        )
        low, high = torch.where(low < high, low, -FURTHEST), torch.where(low < high, high, FURTHEST)
        y, goal, last = high, _log(h) - _log(t), high - low
        for _ in range(SOLVER_STEPS):
            hiding = c * torch.sigmoid(x - y)
            # Not the differences from the total: next to nothing of it is left where nearly all is hidden
            show = torch.sigmoid(y - x)
            lost, kept, slope = hiding.sum(0), (c * show).sum(0), (hiding * show).sum(0)
            low, high = torch.where(lost > h, y, low), torch.where(lost > h, high, y)
            # Newton's step for log(lost / kept), which is a straight line where one depth is seen; halving where it is slow
            step = (_log(lost) - _log(kept) - goal) * lost * kept / _positive(slope * (t + h))
            fast = (step.abs() < last.abs() / 2) & (y + step > low) & (y + step < high) | (step.abs() < 1e-6)
            last = torch.where(fast & (slope > 1e-30), step, (low + high) / 2 - y)
            y = y + last
    for _ in range(2):
        away = torch.sigmoid(places - y)
        slope = (covered * away * (1 - away)).sum(0)
        # Where nothing is hidden nothing depends on y
        step = torch.where(slope > 1e-30, (covered * away).sum(0) - hidden, 0.0) / torch.where(
            slope > 1e-30, slope, 1.0
        )
        y = y + (step - step.detach())
    return y


def _positive(x: Tensor) -> Tensor:
    return x.clamp_min(1e-30)


def _log(x: Tensor) -> Tensor:
    return _positive(x).log()


def project(points: Tensor, near: Tensor, settings: RasterSettings) -> Tensor:
    """Points (V, 3) as (V, 5): x, y, depth, the perspective weight 1/w, and presence.

    Presence is 0 with all its derivatives from the near distance back, so the bounds below, all behind it or far off the
    screen, bend nothing that is seen: they keep positions finite.
    """
    depth = points[:, 2]
    w = torch.maximum(depth, near / 2) if settings.perspective else torch.ones_like(depth)
    screen = (points[:, :2] / w[:, None]).clamp(-FAR_PIXELS, FAR_PIXELS)
    presence = smooth_step_infinite(depth / near - 1)
    return torch.cat([screen, torch.stack([depth, 1 / w, presence], -1)], -1)


def facing(screen: Tensor, area: Tensor, level: Tensor, shares: Tensor, width: Tensor) -> Tensor:
    """How far a position inside a face is from the face's horizon, in scales of the noise (F, P); with the sign of `area`.

    The horizon of a plane is the line of the picture where rays run parallel to it: v / |grad v| pixels away, v being the
    inverse of depth, linear in the picture (depth without perspective). Noise that moves a pixel past it sees the other side.
    Faces of one plane share it, however they are cut. `level` (F, 3) is v at the corners.
    """
    opposite = torch.stack([screen[:, (i + 2) % 3] - screen[:, (i + 1) % 3] for i in range(3)], 1)
    slope = (level[..., None] * opposite).sum(1).square().sum(-1)
    least = EDGE_GUARD + FLAT * opposite.square().sum((1, 2))
    slope = (slope + least * level.square().mean(-1)).sqrt()
    return (shares * level[:, None]).sum(-1) * (area / slope)[:, None] / width


def nearness_shift(screen: Tensor, area: Tensor, nearness: Tensor, shares: Tensor, spread: Tensor) -> Tensor:
    """How far the mean position inside a face lies nearer to the eye than that of its points in space (F, P, 2).

    With D, linear in the picture, the inverse of depth (`nearness` at the corners), every attribute is N/D with N linear, and
    its mean is N/D at E[x/D] / E[1/D]: to first order, at x - C grad D / D, C the covariance `spread` of x. D^2 + Var D in
    place of D^2 keeps it inside the face where D varies much.
    """
    inverse = area / (area * area + FLIP_AREA * FLIP_AREA)
    opposite = torch.stack([screen[:, (i + 2) % 3] - screen[:, (i + 1) % 3] for i in range(3)], 1)
    slope = (nearness[..., None] * opposite).sum(1).flip(-1) * torch.stack([inverse, -inverse], -1)
    here = (shares * nearness[:, None]).sum(-1)
    along = (spread @ slope[:, None, :, None]).squeeze(-1)
    variance = (along * slope[:, None]).sum(-1).clamp_min(0)
    return along * (here / (here * here + variance))[..., None]


def smooth_step_infinite(x: Tensor) -> Tensor:
    """0 up to 0, 1 from 1 on, C-infinity between: 1 / (1 + exp(1/x - 1/(1-x)))."""
    return step_between(x, lambda t: 1 / (1 - t) - 1 / t)


def perspective_weights(shares: Tensor, perspective: Tensor) -> Tensor:
    """How much each corner of a face counts at a position inside it (F, P, 3): they sum to 1, perspective-correctly."""
    weights = shares * perspective[:, None]
    # Positions lie inside the face, so the sum is at least the smallest weight: the bound only catches rounding
    least = 0.5 * perspective.detach().amin(-1)[:, None, None]
    total = weights.sum(-1, keepdim=True)
    return weights / torch.where(total > least, total, least)


class _Recomputed(torch.autograd.Function):
    """A function whose intermediate results are computed again in every backward pass, of any order."""

    generate_vmap_rule = True

    @staticmethod
    def forward(function: Callable[..., tuple[Tensor, ...]], *tensors: Tensor) -> tuple[Tensor, ...]:
        return function(*tensors)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple, output: tuple) -> None:
        ctx.function, *tensors = inputs
        ctx.save_for_backward(*tensors)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor):
        function, tensors = ctx.function, ctx.saved_tensors
        moving = [i for i, t in enumerate(tensors) if t.is_floating_point()]

        def pulled(*arguments: Tensor) -> tuple[Tensor, ...]:
            inputs = arguments[len(grads) :]

            def moved(*some: Tensor) -> tuple[Tensor, ...]:
                return function(*_replaced(inputs, moving, some))

            pull = torch.func.vjp(moved, *(inputs[i] for i in moving))[1]
            return pull(tuple(arguments[: len(grads)]))

        found = iter(recomputed(pulled, *grads, *tensors))
        return (None, *(next(found) if t.is_floating_point() else None for t in tensors))


def recomputed(function: Callable[..., tuple[Tensor, ...]], *tensors: Tensor) -> tuple[Tensor, ...]:
    """`function(*tensors)` without keeping what happens inside: memory for time, at every order of derivative.

    Every tensor that the function uses must be an argument: one that it captures may belong to a transform that has ended
    when it runs again. Forward mode keeps nothing, and torch does not nest it through functions of one's own: it goes without.
    """
    if tracing.forward_level() >= 0:
        return function(*tensors)
    return _Recomputed.apply(function, *tensors)

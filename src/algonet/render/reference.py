"""The smooth rasteriser in plain torch: dense, differentiable to any order, in chunks that fit a memory budget.

This is the truth that the kernels are tested against; `README.md` derives it. Per face and pixel: the signed coverage
and the first moment of the noise inside the face; the mean position inside it; depth and attributes there. Per pixel: a
t-conorm of the coverages, and a soft minimum over depth; then background, or light and background.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from algonet.core.autograd import _pushforward, _replaced

from .constants import FAR_PIXELS, FAR_POINTS, FLIP_AREA, GREY, LATERAL
from .coverage import filtered_coverage, twice_area
from .settings import Raster, RasterSettings
from .shading import illuminate
from .vectors import area_sums, normalise_area

__all__ = ["filtered_coverage", "rasterise", "rasterise_lit", "twice_area"]

#: Bytes that the intermediate results of one chunk may take.
BUDGET = 1 << 27


def rasterise(tensors: Sequence[Tensor], settings: RasterSettings, *, budget: int = BUDGET) -> Raster:
    """The raster of a `RasterCall`'s tensors (its docstring has the shapes), differentiable to any order.

    O(B F H W) work; memory for one chunk of pixels at a time, also in the backward pass, which recomputes.
    """
    points, attributes, background, softness, faces, attribute_faces = apply_camera(tensors)
    looks = _corner_values(attributes, attribute_faces)
    means, silhouette, depth = visible(points, looks, softness, faces, settings, budget)
    ground = background[..., None, None, :]
    opaque = silhouette[..., None]
    image = opaque * means + (1 - opaque) * ground[..., :-1]
    return Raster(image, silhouette, silhouette * depth + (1 - silhouette) * ground[..., -1])


def rasterise_lit(tensors: Sequence[Tensor], settings: RasterSettings, *, budget: int = BUDGET) -> tuple[Tensor, ...]:
    """Lit pictures: image, silhouette, depth, and further attributes over 0.

    Tensors are those of a `RasterCall` with a matrix, then `eye` (*B, 3), `lights` (*B, L, 8), and vertex `normals`
    (*B, V, 3), which may be left out for those of the faces; the background is a colour and a depth. Of the attributes, the
    first three are the albedo if `settings.colored`. Where a surface is follows from its mean depth and the camera.
    """
    call, (eye, lights, *given) = tensors[:7], tensors[7:]
    matrix = call[6]
    normals = given[0] if given else normalise_area(*area_sums(call[0], call[4]))
    points, attributes, background, softness, faces, attribute_faces = apply_camera(call)
    looks = torch.cat([_corner_values(attributes, attribute_faces), _corner_values(normals, faces)], -1)
    means, silhouette, depth = visible(points, looks, softness, faces, settings, budget)
    positions = unproject(depth, matrix, settings.perspective)
    flat = means.flatten(-3, -2)
    albedo = flat[..., :3] if settings.colored else torch.full_like(flat[..., :3], GREY)
    assert settings.shading is not None
    lit = illuminate(albedo, flat[..., -3:], positions.flatten(-3, -2), eye, lights, settings.shading)
    opaque, ground = silhouette[..., None], background[..., None, None, :]
    image = opaque * lit.reshape(*silhouette.shape, 3) + (1 - opaque) * ground[..., :3]
    extra = opaque * means[..., 3 * settings.colored : -3]
    return image, silhouette, silhouette * depth + (1 - silhouette) * ground[..., 3], extra


def unproject(depth: Tensor, matrix: Tensor, perspective: bool) -> Tensor:
    """The points (*B, H, W, 3) of the world that a camera (*B, 3, 4) sees at its pixels' centres and these depths."""
    y, x = torch.meshgrid(
        torch.arange(depth.shape[-2], device=depth.device, dtype=depth.dtype) + 0.5,
        torch.arange(depth.shape[-1], device=depth.device, dtype=depth.dtype) + 0.5,
        indexing="ij",
    )
    w = depth if perspective else torch.ones_like(depth)
    image_points = torch.stack([x * w, y * w, depth], -1) - matrix[..., None, None, :, 3]
    a, b, c = matrix[..., 0, :3], matrix[..., 1, :3], matrix[..., 2, :3]
    # The inverse by cofactors, finite where there is none
    columns = torch.stack([torch.linalg.cross(b, c), torch.linalg.cross(c, a), torch.linalg.cross(a, b)], -2)
    det = (a * columns[..., 0, :]).sum(-1)[..., None, None]
    inverse = columns * (det / (det * det + 1e-30))
    return (image_points[..., None] * inverse[..., None, None, :, :]).sum(-2)


def _corner_values(values: Tensor, faces: Tensor) -> Tensor:
    """(*B, F, 3, C): rows of a table at the corners of faces."""
    return values[..., faces.long(), :]


def visible(
    points: Tensor, looks: Tensor, softness: Tensor, faces: Tensor, settings: RasterSettings, budget: int = BUDGET
) -> tuple[Tensor, Tensor, Tensor]:
    """What is seen at each pixel: mean attributes (*B, H, W, C), the silhouette, and mean depth."""
    batch = points.shape[:-2]
    count = math.prod(batch)
    flat = [t.reshape(count, *t.shape[len(batch) :]) for t in (points, looks, softness)]
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
        return points.new_zeros(*shape, looks.shape[-1]), points.new_zeros(shape), points.new_zeros(shape)
    means, silhouette, depth = (torch.stack(column) for column in zip(*items, strict=True))
    return means.reshape(*shape, -1), silhouette.reshape(shape), depth.reshape(shape)


def apply_camera(tensors: Sequence[Tensor]) -> list[Tensor]:
    """A `RasterCall`'s tensors with its points as its matrix, if it has one, sees them."""
    return list(tensors) if len(tensors) == 6 else [to_camera(tensors[0], tensors[6]), *tensors[1:6]]


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

    def run(points: Tensor, looks: Tensor, softness: Tensor, faces: Tensor) -> tuple[Tensor, ...]:
        number = torch.arange(start, stop, device=points.device)
        pixels = torch.stack([number % settings.width, number // settings.width], -1).to(points.dtype) + 0.5
        corners = project(points, softness[2], settings)[faces.long()]
        return visible_at(corners, looks, softness, pixels, settings)

    return run


def visible_at(
    corners: Tensor, looks: Tensor, softness: Tensor, pixels: Tensor, settings: RasterSettings
) -> tuple[Tensor, Tensor, Tensor]:
    """Corners (F, 3, 5) and their attributes (F, 3, C) seen from pixels (P, 2): means (P, C), silhouette and depth (P,)."""
    coverage, soft, steepness = settings.coverage, softness[0], softness[1]
    screen, depths, perspective = corners[..., :2], corners[..., 2], corners[..., 3]
    area = twice_area(screen)
    presence = facing(area, settings.two_sided) * corners[..., 4].prod(-1)
    signed, from_centroid, from_pixel = coverage.seen(screen, pixels, soft)
    covered = signed * presence[:, None]
    weights = perspective_weights(screen, area, perspective, from_centroid)
    depth = (weights * depths[:, None]).sum(-1)
    lateral = from_pixel.square().sum(-1) / (coverage.reach(settings.epsilon) * soft) ** 2
    shares = _shares(covered, steepness * depth + LATERAL * lateral.clamp_max(1e3) ** 4)
    means = torch.einsum("fp,fpi,fic->pc", shares, weights, looks)
    return means, _aggregate(covered, settings), (shares * depth).sum(0)


def project(points: Tensor, near: Tensor, settings: RasterSettings) -> Tensor:
    """Points (V, 3) of a `RasterCall` as (V, 5): x, y, depth, the perspective weight 1/w, and presence.

    Presence is 0 with all its derivatives from the near distance back, so the bounds below, all behind it or far off the
    screen, bend nothing that is seen: they keep positions finite.
    """
    depth = points[:, 2]
    w = torch.maximum(depth, near / 2) if settings.perspective else torch.ones_like(depth)
    screen = (points[:, :2] / w[:, None]).clamp(-FAR_PIXELS, FAR_PIXELS)
    presence = smooth_step_infinite(depth / near - 1)
    return torch.cat([screen, torch.stack([depth, 1 / w, presence], -1)], -1)


def facing(area: Tensor, two_sided: bool) -> Tensor:
    """The factor that makes a signed coverage positive: +-1 by orientation, or 0 for back faces when one-sided.

    C-infinity and exactly constant from |twice area| = FLIP_AREA on, so that it does not touch additivity.
    """
    front = smooth_step_infinite(area / FLIP_AREA)
    return front - smooth_step_infinite(-area / FLIP_AREA) if two_sided else front


def smooth_step_infinite(x: Tensor) -> Tensor:
    """0 up to 0, 1 from 1 on, C-infinity between: 1 / (1 + exp(1/x - 1/(1-x)))."""
    inside = (x > 0) & (x < 1)
    safe = torch.where(inside, x, 0.5)
    between = torch.sigmoid((1 / (1 - safe) - 1 / safe).clamp(-80.0, 80.0))
    return torch.where(inside, between, (x >= 1).to(x.dtype))


def perspective_weights(screen: Tensor, area: Tensor, perspective: Tensor, from_centroid: Tensor) -> Tensor:
    """How much each corner of a face counts at a position inside it (F, P, 3): they sum to 1, perspective-correctly."""
    inverse = (area / (area * area + FLIP_AREA * FLIP_AREA))[:, None]
    x, y = from_centroid[..., 0], from_centroid[..., 1]
    parts = []
    for i in range(3):
        opposite = screen[:, (i + 2) % 3] - screen[:, (i + 1) % 3]
        barycentric = 1 / 3 + (x * opposite[:, None, 1] - y * opposite[:, None, 0]) * inverse
        parts.append(barycentric * perspective[:, None, i])
    weights = torch.stack(parts, -1)
    # Positions lie inside the face, so the sum is at least the smallest weight: the bound only catches rounding
    least = 0.5 * perspective.detach().amin(-1)[:, None, None]
    total = weights.sum(-1, keepdim=True)
    return weights / torch.where(total > least, total, least)


def _aggregate(covered: Tensor, settings: RasterSettings) -> Tensor:
    if settings.power > 0:
        return settings.conorm.reduce(covered, dim=0)
    # Coverage is a probability; only rounding leaves [0, 1]
    return settings.conorm.reduce(covered.clamp(0, 1), dim=0)


def _shares(covered: Tensor, burden: Tensor) -> Tensor:
    """softmax(log covered - burden) over faces; nothing where no face covers the pixel at all."""
    if covered.shape[0] == 0:
        return covered
    included = covered > torch.finfo(covered.dtype).tiny
    z = torch.where(included, covered, 1.0).log() - burden
    z = torch.where(included, z, -torch.inf)
    peak = z.detach().amax(0, keepdim=True)
    e = torch.exp(torch.where(included, z - torch.where(peak > -torch.inf, peak, 0.0), -torch.inf))
    total = e.sum(0, keepdim=True)
    return e / torch.where(total > 0, total, 1.0)


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
        ctx.save_for_forward(*tensors)

    @staticmethod
    def jvp(ctx: Any, *tangents: Any):
        tensors = ctx.saved_tensors
        moving = [i for i, t in enumerate(tangents[1:]) if t is not None]

        def moved(*some: Tensor) -> tuple[Tensor, ...]:
            return tuple(ctx.function(*_replaced(tensors, moving, some)))

        return _pushforward(moved, [tensors[i] for i in moving], [tangents[1 + i] for i in moving])

    @staticmethod
    def backward(ctx: Any, *grads: Tensor):
        function, tensors = ctx.function, ctx.saved_tensors
        moving = [i for i, t in enumerate(tensors) if t.is_floating_point()]

        def pulled(*arguments: Tensor) -> tuple[Tensor, ...]:
            inputs = arguments[len(grads) :]

            def moved(*some: Tensor) -> tuple[Tensor, ...]:
                return function(*_replaced(inputs, moving, some))

            _, pull = torch.func.vjp(moved, *(inputs[i] for i in moving))
            return pull(tuple(arguments[: len(grads)]))

        found = iter(recomputed(pulled, *grads, *tensors))
        return (None, *(next(found) if t.is_floating_point() else None for t in tensors))


def recomputed(function: Callable[..., tuple[Tensor, ...]], *tensors: Tensor) -> tuple[Tensor, ...]:
    """`function(*tensors)` without keeping what happens inside: memory for time, at every order of derivative.

    Every tensor that the function uses must be an argument: one that it captures may belong to a transform that has ended
    when it runs again.
    """
    return _Recomputed.apply(function, *tensors)

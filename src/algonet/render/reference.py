"""The smooth rasteriser in plain torch: dense, differentiable to any order, in chunks that fit a memory budget.

This is the truth that the kernels are tested against; `README.md` derives it. Per face and pixel: the signed coverage
and the first moment of the noise inside the face; the mean position inside it; depth and attributes there. Per pixel: a
t-conorm of the coverages, and a soft minimum over depth.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor

from algonet.core.autograd import _pushforward, _replaced
from algonet.relax import BoundedSum

from .settings import EDGE_GUARD, FAINT, FAINTEST, FAR_PIXELS, FAR_POINTS, FLIP_AREA, LATERAL, Raster, RasterSettings

#: Bytes that the intermediate results of one chunk may take.
BUDGET = 1 << 27
#: Roughly how many numbers per face and pixel are alive in one chunk.
_ALIVE = 60


class Coverage(Protocol):
    """How much of a pixel a face covers.

    `seen(corners, pixels, scale, df)` takes corners (F, 3, 2), pixels (P, 2) and returns the coverage (F, P), signed by
    orientation; the mean position inside the face relative to its centroid (F, P, 2); and that relative to the pixel.
    """

    def seen(self, corners: Tensor, pixels: Tensor, scale: Tensor, df: int) -> tuple[Tensor, Tensor, Tensor]: ...


def filtered_coverage(corners: Tensor, pixels: Tensor, scale: Tensor, df: int) -> tuple[Tensor, Tensor]:
    """The probability of landing in a triangle when a pixel's position is perturbed by Student-t noise, and its moment.

    Corners (F, 3, 2) and pixels (P, 2) have y pointing down; triangles that are counter-clockwise *as seen* count
    positive, others negative. Returns the coverage (F, P) and the noise's first moment inside the triangle (F, P, 2).
    Exactly additive: the parts of a triangle sum to it. `scale -> 0` gives inside or outside. C-infinity.

    >>> corner = torch.tensor([[[0.0, 0.0], [0.0, 9.0], [9.0, 0.0]]])
    >>> coverage, _ = filtered_coverage(corner, torch.tensor([[2.0, 2.0], [9.0, 9.0]]), torch.tensor(0.1), 8)
    >>> coverage.abs().round(decimals=3)
    tensor([[1., 0.]])
    """
    half, sigma2 = df // 2, df * scale * scale
    relative = corners[:, :, None, :] - pixels
    coverage = moment_x = moment_y = relative.new_zeros(())
    for i in range(3):
        a, b = relative[:, i], relative[:, (i + 1) % 3]
        edge = corners[:, (i + 1) % 3] - corners[:, i]
        direction = edge / (edge.square().sum(-1, keepdim=True) + _guard(edge)).sqrt()
        ux, uy = direction[:, None, 0], direction[:, None, 1]
        nx, ny = -uy, ux
        t0, t1 = a[..., 0] * ux + a[..., 1] * uy, b[..., 0] * ux + b[..., 1] * uy
        d = a[..., 0] * nx + a[..., 1] * ny
        total, last = _edge_integrals(t0, t1, d * d + sigma2, sigma2, half)
        coverage = coverage + d * total
        moment_x, moment_y = moment_x - nx * last, moment_y - ny * last
    return coverage, torch.stack([moment_x, moment_y], -1)


def _edge_integrals(t0: Tensor, t1: Tensor, rho2: Tensor, sigma2: Tensor, half: int) -> tuple[Tensor, Tensor]:
    """sum_{k<half} sigma^2k I_{k+1} / 2 pi and sigma^2half I_half / 2 pi between t0 and t1.

    I_k is the integral of dt / (t^2 + rho^2)^k; everything is scaled by sigma^2 so that no power leaves float32.
    """
    rho = rho2.sqrt()
    # The two arc tangents of an edge are one
    integral = torch.atan2(rho * (t1 - t0), rho2 + t0 * t1) / rho
    ratio, inverse0, inverse1 = sigma2 / rho2, sigma2 / (t0 * t0 + rho2), sigma2 / (t1 * t1 + rho2)
    term0, term1, total = t0 / rho2, t1 / rho2, integral
    for k in range(1, half):
        term0, term1 = term0 * inverse0, term1 * inverse1
        integral = (term1 - term0) / (2 * k) + (2 * k - 1) / (2 * k) * ratio * integral
        total = total + integral
    return total / (2 * math.pi), integral * sigma2 / (2 * math.pi)


class Filtered:
    """The filtered coverage with the mean position inside the face: see `Coverage`."""

    def seen(self, corners: Tensor, pixels: Tensor, scale: Tensor, df: int) -> tuple[Tensor, Tensor, Tensor]:
        p, moment = filtered_coverage(corners, pixels, scale, df)
        inwards = pixels - corners.mean(1, keepdim=True)
        p1 = p[..., None]
        share = p1 / (p1 * p1 + FAINT * FAINT)
        from_centroid = share * (p1 * inwards + moment)
        least = FAINTEST * FAINTEST
        from_pixel = (p1 * moment - least * inwards) / (p1 * p1 + least)
        return p, from_centroid, from_pixel


def rasterise(
    tensors: Sequence[Tensor], settings: RasterSettings, coverage: Coverage | None = None, *, budget: int = BUDGET
) -> Raster:
    """The raster of a `RasterCall`'s tensors (its docstring has the shapes), differentiable to any order.

    O(B F H W) work; memory for one chunk of pixels at a time, also in the backward pass, which recomputes.
    """
    points, attributes, background, softness, faces, attribute_faces = seen(tensors)
    batch = points.shape[:-2]
    count = math.prod(batch)
    flat = [t.reshape(count, *t.shape[len(batch) :]) for t in (points, attributes, background, softness)]
    chunk = max(1, budget // max(1, len(faces) * _ALIVE * points.element_size()))
    total = settings.height * settings.width
    items = []
    for item in range(count):
        parts = []
        for start in range(0, total, chunk):
            run = _chunk_function(start, min(start + chunk, total), settings, coverage)
            parts.append(recomputed(run, *(t[item] for t in flat), faces, attribute_faces))
        items.append([torch.cat(column) for column in zip(*parts, strict=True)])
    shape = (*batch, settings.height, settings.width)
    if not items:
        channels = attributes.shape[-1]
        return Raster(points.new_zeros(*shape, channels), points.new_zeros(shape), points.new_zeros(shape))
    image, silhouette, depth = (torch.stack(column) for column in zip(*items, strict=True))
    return Raster(image.reshape(*shape, -1), silhouette.reshape(shape), depth.reshape(shape))


def seen(tensors: Sequence[Tensor]) -> list[Tensor]:
    """A `RasterCall`'s tensors with its points as its matrix, if it has one, sees them."""
    return list(tensors) if len(tensors) == 6 else [seen_points(tensors[0], tensors[6]), *tensors[1:6]]


def seen_points(points: Tensor, matrix: Tensor) -> Tensor:
    """matrix @ (point, 1): (x w, y w, depth) of points (*B, V, 3) of the world, by a matrix (*B, 3, 4)."""
    if torch.is_autocast_enabled(points.device.type):
        # Half a pixel of 256 is all that bfloat16 can tell
        with torch.autocast(points.device.type, enabled=False):
            return seen_points(points, matrix)
    # A finite but absurd coordinate must not overflow in the product
    points = points.clamp(-FAR_POINTS, FAR_POINTS)
    shift = matrix[..., None, :, 3]
    if points.dim() == 2 and matrix.dim() == 2:
        return torch.addmm(shift[0], points, matrix[:, :3].mT)
    return points @ matrix[..., :3].mT + shift


def _chunk_function(
    start: int, stop: int, settings: RasterSettings, coverage: Coverage | None
) -> Callable[..., tuple[Tensor, ...]]:
    """The raster of pixels `start` to `stop`, counted row by row."""

    def run(
        points: Tensor, attributes: Tensor, background: Tensor, softness: Tensor, faces: Tensor, attribute_faces: Tensor
    ) -> tuple[Tensor, ...]:
        number = torch.arange(start, stop, device=points.device)
        pixels = torch.stack([number % settings.width, number // settings.width], -1).to(points.dtype) + 0.5
        corners = project(points, softness[2], settings)[faces.long()]
        looks = attributes[attribute_faces.long()]
        return _rasterise_pixels(corners, looks, background, softness, pixels, settings, coverage or Filtered())

    return run


def _rasterise_pixels(
    corners: Tensor,
    looks: Tensor,
    background: Tensor,
    softness: Tensor,
    pixels: Tensor,
    settings: RasterSettings,
    coverage: Coverage,
) -> tuple[Tensor, Tensor, Tensor]:
    """Corners (F, 3, 5) and their attributes (F, 3, C) seen from pixels (P, 2): (P, C), (P,), (P,)."""
    scale, steepness = softness[0], softness[1]
    screen, depths, perspective = corners[..., :2], corners[..., 2], corners[..., 3]
    area = twice_area(screen)
    presence = facing(area, settings.two_sided) * corners[..., 4].prod(-1)
    signed, from_centroid, from_pixel = coverage.seen(screen, pixels, scale, settings.df)
    covered = signed * presence[:, None]
    silhouette = _aggregate(covered, settings)
    weights = perspective_weights(screen, area, perspective, from_centroid)
    depth = (weights * depths[:, None]).sum(-1)
    lateral = from_pixel.square().sum(-1) / (settings.reach**2 * settings.df * scale * scale)
    shares = _shares(covered, steepness * depth + LATERAL * lateral.clamp_max(1e3) ** 4)
    mixed = torch.einsum("fp,fpi,fic->pc", shares, weights, looks)
    image = silhouette[:, None] * mixed + (1 - silhouette[:, None]) * background[:-1]
    return image, silhouette, silhouette * (shares * depth).sum(0) + (1 - silhouette) * background[-1]


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


def twice_area(screen: Tensor) -> Tensor:
    """Twice the screen area of triangles (F, 3, 2) with y down; positive when counter-clockwise as seen."""
    first, second = screen[:, 1] - screen[:, 0], screen[:, 2] - screen[:, 0]
    return first[:, 1] * second[:, 0] - first[:, 0] * second[:, 1]


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
    if isinstance(settings.conorm, BoundedSum):
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


def _guard(edge: Tensor) -> float:
    return EDGE_GUARD if edge.dtype == torch.float32 else EDGE_GUARD**2


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

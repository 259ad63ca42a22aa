"""Rendering as a function: vertices, faces and attributes in, smooth pictures out."""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import Tensor

from algonet.core.checks import widened
from algonet.relax import BoundedSum, StudentT, TConorm

from . import reference
from .cameras import Camera, check_size
from .constants import constant, tensor_like, traced
from .coverage import EdgeProduct, EuclideanCoverage, FilteredCoverage
from .meshes import check_faces, check_mesh
from .raster import rasterise
from .settings import Raster, RasterCall, RasterSettings

AnyCoverage = FilteredCoverage | EdgeProduct | EuclideanCoverage
#: Per unit of depth: right for objects about two units large, whose far side then counts exp(-10) of the near one.
DEPTH_STEEPNESS = 5.0
DEFAULT_CONORM = BoundedSum()


def render_attributes(
    vertices: Tensor,
    faces: Tensor,
    attributes: Tensor,
    camera: Camera,
    *,
    size: tuple[int, int],
    attribute_faces: Tensor | None = None,
    background: Tensor | float = 0.0,
    background_depth: Tensor | float = 0.0,
    coverage: AnyCoverage | None = None,
    conorm: TConorm | None = None,
    depth_steepness: float | Tensor = DEPTH_STEEPNESS,
    two_sided: bool = True,
    epsilon: float = 1e-4,
    deterministic: bool = False,
    backend: str = "auto",
) -> Raster:
    """Pictures of any attributes of a mesh, smooth in everything: `Raster(image, silhouette, depth)`.

    silhouette = conorm of the faces' coverages; image = silhouette * (soft minimum over depth of the attributes) +
    (1 - silhouette) * background; depth likewise. Scale -> 0 and depth_steepness -> inf give `render_hard`.

    Shapes: vertices (*B, V, 3), faces (F, 3), attributes (*B, V, C), or (*B, N, C) looked up by `attribute_faces` (F, 3)
    (for face colours: each face's own index, thrice), camera of batch shape *B; leading dimensions broadcast. Background:
    a number, (C,) or (*B, C). Results are (*B, H, W, C), (*B, H, W), (*B, H, W).

    C-infinity, differentiable in all floating arguments, the camera, the noise's scale and the depth steepness. What is
    left out weighs less than `epsilon`. Cost grows with the faces' visible area, widened by the noise's reach.

    >>> from algonet.render import icosphere
    >>> ball = icosphere(2)
    >>> out = render_attributes(ball.vertices, ball.faces, ball.vertices, Camera.look_at((0.0, 0.0, 3.0)), size=(32, 32))
    >>> out.image.shape, round(float(out.depth[16, 16]), 1)
    (torch.Size([32, 32, 3]), 2.0)
    """
    where = "render_attributes"
    height, width = check_size(where, size)
    coverage = FilteredCoverage() if coverage is None else coverage
    check_mesh(where, vertices, faces)
    attribute_faces = _check_attributes(attributes, vertices, faces, attribute_faces)
    _check_options(coverage, epsilon)
    dtype = vertices.dtype
    vertices = widened(vertices)
    attributes = widened(attributes).to(vertices.dtype)
    matrix = _camera_matrix(camera, size, vertices)
    batch = _batch_shape(vertices, attributes, background, background_depth, matrix)
    make_settings = RasterSettings if traced() else _kept_settings
    settings = make_settings(
        height,
        width,
        coverage.df if isinstance(coverage, FilteredCoverage) else 8,
        float(epsilon),
        DEFAULT_CONORM if conorm is None else conorm,
        two_sided,
        camera.perspective,
        deterministic,
    )
    call = RasterCall(
        points=_expanded(vertices, batch, 2),
        attributes=_expanded(attributes, batch, 2),
        background=_background(background, background_depth, attributes.shape[-1], batch, vertices),
        softness=_softness(coverage, depth_steepness, camera.near, height, batch, vertices),
        faces=faces,
        attribute_faces=attribute_faces,
        settings=settings,
        matrix=_expanded(matrix, batch, 2),
    )
    if isinstance(coverage, FilteredCoverage):
        raster = rasterise(call, backend)
    else:
        if backend not in ("auto", "reference"):
            raise ValueError(
                f'{where}: {type(coverage).__name__} runs in the reference only; use backend="auto" or "reference", '
                f"got {backend!r}."
            )
        raster = reference.rasterise(call.tensors, settings, coverage)
    return raster if raster.image.dtype == dtype else Raster(*(t.to(dtype) for t in raster))


#: Settings of calls that come again and again; the same object is also quicker to look up.
_kept_settings = functools.lru_cache(maxsize=256)(RasterSettings)


def _camera_matrix(camera: Camera, size: tuple[int, int], like: Tensor) -> Tensor:
    """(*B, 3, 4): from points of the world to (x w, y w, depth), in the precision of `like`."""
    if torch.is_autocast_enabled(like.device.type):
        with torch.autocast(like.device.type, enabled=False):
            return _camera_matrix(camera, size, like)
    return camera.pixel_matrix(size).to(like)


def _points(vertices: Tensor, camera: Camera, size: tuple[int, int]) -> Tensor:
    """(x w, y w, depth) of the vertices, (*B, V, 3)."""
    return reference.seen_points(vertices, _camera_matrix(camera, size, vertices))


def _batch_shape(points: Tensor, *others: Any) -> torch.Size:
    """The batch dimensions that points and others (attributes, background, background depth, camera) share."""
    attributes, background, depth, *cameras = others
    shapes = [points.shape[:-2], attributes.shape[:-2], *(m.shape[:-2] for m in cameras)]
    if isinstance(background, Tensor) and background.dim() > 1:
        shapes.append(background.shape[:-1])
    if isinstance(depth, Tensor):
        shapes.append(depth.shape)
    if all(shape == shapes[0] for shape in shapes):
        return shapes[0]
    try:
        return torch.broadcast_shapes(*shapes)
    except RuntimeError:
        listed = ", ".join(str(tuple(s)) for s in shapes)
        raise ValueError(
            f"render_attributes: batch dimensions of vertices and camera, attributes, background must broadcast: {listed}."
        ) from None


def _expanded(t: Tensor, batch: torch.Size, own: int) -> Tensor:
    shape = (*batch, *t.shape[t.dim() - own :])
    return t if t.shape == shape else t.expand(shape)


def _background(
    background: Tensor | float, depth: Tensor | float, channels: int, batch: torch.Size, like: Tensor
) -> Tensor:
    """(*B, C + 1): attributes and, last, depth."""
    if not isinstance(background, Tensor) and not isinstance(depth, Tensor):
        row = (float(background),) * channels + (float(depth),)
        return _expanded(constant(row, like), batch, 1)
    color = tensor_like(background, like)
    if color.dim() and color.shape[-1] not in (1, channels):
        raise ValueError(
            f"render_attributes: `background` must have the attributes' {channels} channels, got {tuple(color.shape)}."
        )
    far = tensor_like(depth, like)
    return torch.cat([color.expand(*batch, channels), far[..., None].expand(*batch, 1)], -1)


def _softness(
    coverage: AnyCoverage,
    steepness: float | Tensor,
    near: float | Tensor,
    height: int,
    batch: torch.Size,
    like: Tensor,
) -> Tensor:
    """(*B, 3): the noise scale in pixels, the depth steepness, the near distance."""
    noise = coverage.noise if isinstance(coverage, FilteredCoverage) else StudentT()
    scale = noise.scale
    if isinstance(coverage, FilteredCoverage) and coverage.units == "ndc":
        scale = scale * (height / 2)
    parts = (scale, steepness, near)
    if not any(isinstance(p, Tensor) for p in parts):
        return _expanded(constant(parts, like), batch, 1)
    return torch.stack([_expanded(tensor_like(p, like), batch, 0) for p in parts], -1)


def _check_attributes(attributes: Tensor, vertices: Tensor, faces: Tensor, attribute_faces: Tensor | None) -> Tensor:
    where = "render_attributes"
    if not isinstance(attributes, Tensor) or not attributes.is_floating_point() or attributes.dim() < 2:
        got = f"{attributes.dtype} {tuple(attributes.shape)}" if isinstance(attributes, Tensor) else type(attributes)
        raise TypeError(f"{where}: `attributes` must be a floating tensor (*batch, N, C), got {got}.")
    if attribute_faces is None:
        if attributes.shape[-2] != vertices.shape[-2]:
            raise ValueError(
                f"{where}: `attributes` must have one row per vertex: {vertices.shape[-2]} vertices, "
                f"{attributes.shape[-2]} rows; or give `attribute_faces` to look them up."
            )
        return faces
    check_faces(f"{where}: `attribute_faces`", attribute_faces, attributes.shape[-2])
    if attribute_faces.shape != faces.shape:
        raise ValueError(
            f"{where}: `attribute_faces` must be like faces {tuple(faces.shape)}, got {tuple(attribute_faces.shape)}."
        )
    return attribute_faces


def _check_options(coverage: AnyCoverage, epsilon: float) -> None:
    if not isinstance(coverage, (FilteredCoverage, EdgeProduct, EuclideanCoverage)):
        raise TypeError(
            "render_attributes: `coverage` must be FilteredCoverage, EdgeProduct or EuclideanCoverage, "
            f"got {type(coverage).__name__}."
        )
    if not 0 < epsilon < 0.5:
        raise ValueError(f"render_attributes: `epsilon` must lie in (0, 0.5), got {epsilon!r}.")

"""Rendering as functions: vertices, faces and attributes in, smooth pictures out."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from algonet.core import tracing
from algonet.core.cache import TENSORS, constant
from algonet.core.checks import as_tensor, broadcast_shapes, check_size, check_spec, widened
from algonet.core.identity import PLANS, interned, signature
from algonet.core.memory import check_memory
from algonet.core.operation import Operation
from algonet.relax import TConorm

from .cameras import Camera, viewport
from .coverage import DEFAULT_COVERAGE, Coverage, check_coverage
from .lights import light_table
from .meshes import check_faces, check_mesh
from .operation import NORMALS, RASTER
from .reference import to_camera
from .settings import DEFAULT_CONORM, NormalSettings, Raster, RasterSettings
from .vectors import EPSILON, LEAST_SPACING, SAMPLES_PER_SCALE, tensor_like

#: Per unit of depth: for objects about two units large, of which what lies a twentieth further is half hidden.
DEPTH_STEEPNESS = 20.0


@tracing.outside_autocast
def render_attributes(
    vertices: Tensor,
    faces: Tensor,
    attributes: Tensor,
    camera: Camera,
    *,
    size: tuple[int, int],
    attribute_faces: Tensor | None = None,
    background: Tensor | float = 0.0,
    background_depth: Tensor | float | None = None,
    coverage: Coverage | None = None,
    conorm: TConorm | None = None,
    depth_steepness: float | Tensor = DEPTH_STEEPNESS,
    two_sided: bool = True,
    epsilon: float = EPSILON,
    deterministic: bool = False,
    backend: str = "auto",
) -> Raster:
    """Pictures of any attributes of a mesh, smooth in everything: `Raster(image, silhouette, depth)`.

    silhouette = conorm of the faces' coverages; image = sum of w attributes + (1 - silhouette) * background, where
    w = coverage * logistic(2 depth_steepness (z* - depth)) is the nearest coverage that adds up to the silhouette. `depth` is
    the surface's, by the same weights; with a `background_depth` it is composed like the image. Scale -> 0 and
    depth_steepness -> inf give `render_hard`.

    Shapes: vertices (*B, V, 3), faces (F, 3), attributes (*B, V, C), or (*B, N, C) looked up by `attribute_faces` (F, 3)
    (for face colours: each face's own index, thrice), camera of batch shape *B; leading dimensions broadcast. Background:
    a number, (C,) or (*B, C). Results are (*B, H, W, C), (*B, H, W), (*B, H, W).

    C-infinity, differentiable in all floating arguments, the camera, the noise's scale and the depth steepness. What is
    left out weighs less than `epsilon` (of gradients in vertices and attributes on a GPU: four times that; the reference
    leaves nothing out). Cost grows with the faces' visible area, widened by the noise's reach; beyond a scale of about 3
    pixels it no longer grows with the scale, because soft pictures are interpolated from fewer samples.

    >>> from algonet.render import icosphere
    >>> ball = icosphere(2)
    >>> out = render_attributes(ball.vertices, ball.faces, ball.vertices, Camera.look_at((0.0, 0.0, 3.0)), size=(32, 32))
    >>> out.image.shape, round(float(out.depth[16, 16]), 1)
    (torch.Size([32, 32, 3]), 2.0)
    """
    where = "render_attributes"
    height, width = check_size(where, size)
    if not isinstance(vertices, Tensor):
        vertices, faces, attributes = map(as_tensor, (vertices, faces, attributes))
    coverage = DEFAULT_COVERAGE if coverage is None else coverage
    check_options(where, coverage, epsilon)
    if not isinstance(background, (Tensor, int, float)):
        background = tuple(background)
    form, scale, near = coverage.form(), coverage.softness(height), camera.near
    behind = background, 0.0 if background_depth is None else background_depth
    settings = RasterSettings(
        height, width, form, float(epsilon), interned(DEFAULT_CONORM if conorm is None else conorm), two_sided,
        camera.perspective, background_depth is not None, deterministic, sharp=is_sharp(scale),
    )  # fmt: skip
    key = signature(
        where, vertices, faces, attributes, attribute_faces, camera.matrix, *behind, near, (settings, backend),
        *[part if isinstance(part, Tensor) else None for part in (scale, depth_steepness)],
    )  # fmt: skip
    run = None if key is None else PLANS.find(key)
    if run is None or tracing.readable(vertices, faces):
        check_mesh(where, vertices, faces)
        rows = _check_attributes(where, attributes, vertices, faces, attribute_faces)
    else:
        rows = faces if attribute_faces is None else attribute_faces
    dtype, vertices = vertices.dtype, widened(vertices)
    attributes = widened(attributes).to(vertices.dtype)
    if run is None:
        run = Pictures(where, RASTER, settings, backend, vertices, attributes, behind, camera)
        run.keep(key, vertices)
    raster = run(vertices, attributes, faces, rows, behind, (scale, depth_steepness, near), camera)
    return Raster(*[t if t.dtype == dtype else t.to(dtype) for t in raster])


class Pictures:
    """Pictures of one signature: what the checks of its first call found, and what is left to do with tensors."""

    def __init__(
        self,
        where: str,
        operation: Operation,
        settings: RasterSettings,
        backend: str,
        vertices: Tensor,
        attributes: Tensor,
        behind: tuple[Any, Any],
        camera: Camera,
        lights: Sequence[Any] = (),
    ):
        size, lit = (settings.height, settings.width), settings.shading is not None
        self.operation, self.settings, self.backend = operation, settings, backend
        lamps = light_table(lights, vertices)
        #: The table of lights, if they are numbers.
        self.lamps = None if any(isinstance(part, Tensor) for light in lights for part in light.parts()) else lamps
        self.batch = _batch_shape(where, vertices, attributes, *behind, camera.matrix, lamps)
        check_picture(where, self.batch, size, attributes.shape[-1] + (5 if lit else 2), vertices)
        self.channels = 3 if lit else attributes.shape[-1]
        numbers = not any(isinstance(part, Tensor) for part in behind)
        self.behind = _background(where, *behind, self.channels, self.batch, vertices) if numbers else None
        self.where, self.viewport = where, viewport(size, settings.perspective, camera.matrix)
        self.near = None if isinstance(camera.near, Tensor) else constant(camera.near, vertices.dtype, vertices.device)
        self.to_normals: Callable[..., Any] | None = None
        self.run: Callable[..., Any] | None = None

    def keep(self, key: tuple | None, like: Tensor) -> None:
        """Let later calls of this signature find it, unless a graph is captured: it fills what is made when it is replayed."""
        if key is not None and not tracing.capturing(like.device):
            PLANS.put(key, self)

    def __call__(
        self,
        vertices: Tensor,
        attributes: Tensor,
        faces: Tensor,
        rows: Tensor,
        behind: tuple[Any, Any],
        soft: tuple[Any, Any, Any],
        camera: Camera,
        lights: Tensor | None = None,
        normals: Tensor | None = None,
    ) -> Sequence[Tensor]:
        """`soft`: the coverage's softness in pixels, the depth steepness, the near distance. Lit, normals that are left out
        are those of the faces."""
        batch, settings = self.batch, self.settings
        ground = self.behind
        if ground is None:
            ground = _background(self.where, *behind, self.channels, batch, vertices)
        tensors = [
            vertices if vertices.shape[:-2] == batch else vertices.expand(*batch, -1, -1),
            attributes if attributes.shape[:-2] == batch else attributes.expand(*batch, -1, -1),
            ground,
            self._softness(soft, vertices),
            faces,
            rows,
            (self.viewport @ camera.matrix).to(vertices).expand(*batch, 3, 4),
        ]
        if lights is not None:
            tensors += [camera.position.to(vertices).expand(*batch, 3), lights.expand(*batch, -1, -1)]
            if self.run is None and normals is None:
                # CUDA kernels make them in the same pass, in any order; the reference by itself
                chosen = self.operation.choose(tensors, settings, self.backend)
                if chosen == "numba" or (chosen == "triton" and settings.deterministic):
                    self.to_normals = NORMALS.bind([vertices, faces], NormalSettings(settings.deterministic))
            if self.to_normals is not None:
                normals = self.to_normals([vertices, faces])[0]
            if normals is not None:
                tensors.append(normals.expand(*batch, -1, -1))
        if self.run is None:
            self.run = self.operation.bind(tensors, settings, self.backend)
        return self.run(tensors)

    def _softness(self, parts: tuple[Any, Any, Any], like: Tensor) -> Tensor:
        """(*B, 3): the coverage's softness, the depth steepness, the near distance."""
        scale, steepness, near = parts
        if not (isinstance(scale, Tensor) or isinstance(steepness, Tensor) or self.near is None):
            return _expanded_numbers((float(scale), float(steepness), float(near)), self.batch, like)
        rows = []
        for part in (scale, steepness, near if self.near is None else self.near):
            rows.append((part.to(like) if isinstance(part, Tensor) else tensor_like(part, like)).expand(self.batch))
        return torch.stack(rows, -1)


def is_sharp(softness: Any) -> bool:
    """Whether a noise's scale in pixels is a number so small that every pixel is its own sample."""
    return not isinstance(softness, Tensor) and softness < LEAST_SPACING * SAMPLES_PER_SCALE


def camera_points(vertices: Tensor, camera: Camera, size: tuple[int, int]) -> Tensor:
    """(x w, y w, depth) of the vertices, (*B, V, 3)."""
    return to_camera(vertices, camera.pixel_matrix(size).to(vertices))


def _batch_shape(where: str, points: Tensor, *others: Any) -> torch.Size:
    """The batch dimensions that points and others (attributes, background, background depth, camera, lights) share."""
    attributes, background, depth, *cameras = others
    shapes = [points.shape[:-2], attributes.shape[:-2], *(m.shape[:-2] for m in cameras)]
    if isinstance(background, Tensor) and background.dim() > 1:
        shapes.append(background.shape[:-1])
    if isinstance(depth, Tensor):
        shapes.append(depth.shape)
    try:
        return broadcast_shapes(*shapes)
    except RuntimeError:
        listed = ", ".join(str(tuple(s)) for s in shapes)
        raise ValueError(
            f"{where}: batch dimensions of vertices and camera, attributes, background must broadcast: {listed}."
        ) from None


def expanded(t: Tensor, batch: torch.Size, own: int) -> Tensor:
    """`t` with these batch dimensions before its last `own`."""
    shape = (*batch, *t.shape[t.dim() - own :])
    return t if t.shape == shape else t.expand(shape)


def _background(
    where: str,
    background: Tensor | float | tuple[float, ...],
    depth: Tensor | float,
    channels: int,
    batch: torch.Size,
    like: Tensor,
) -> Tensor:
    """(*B, C + 1): attributes and, last, depth."""
    if not isinstance(background, Tensor) and not isinstance(depth, Tensor):
        row = (float(background),) * channels if isinstance(background, (int, float)) else tuple(background)
        return _expanded_numbers((*row, float(depth)), batch, like)
    color = tensor_like(background, like)
    if color.dim() and color.shape[-1] not in (1, channels):
        raise ValueError(
            f"{where}: `background` must have the attributes' {channels} channels, got {tuple(color.shape)}."
        )
    far = tensor_like(depth, like)
    return torch.cat([color.expand(*batch, channels), far[..., None].expand(*batch, 1)], -1)


def _expanded_numbers(numbers: tuple[float, ...], batch: torch.Size, like: Tensor) -> Tensor:
    """(*B, n): a row of numbers, the same for every item, made once."""
    key = (numbers, batch, like.dtype, like.device)
    return TENSORS.get(("rows", *key), lambda: constant(numbers, like.dtype, like.device).expand(*batch, -1))


def _check_attributes(
    where: str, attributes: Tensor, vertices: Tensor, faces: Tensor, attribute_faces: Tensor | None
) -> Tensor:
    check_spec(where, "attributes", attributes, "*batch N C")
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


def check_options(where: str, coverage: Coverage, epsilon: float) -> None:
    check_coverage(where, coverage)
    if not 0 < epsilon < 0.5:
        raise ValueError(f"{where}: `epsilon` must lie in (0, 0.5), got {epsilon!r}.")


def check_picture(where: str, batch: tuple[int, ...], size: tuple[int, int], numbers: int, like: Tensor) -> None:
    """Raise if pictures with so many numbers a pixel do not fit into memory."""
    count = math.prod(batch)
    what = f"{f'{count} pictures' if count > 1 else 'a picture'} of {size[0]} x {size[1]}"
    check_memory(where, what, count * size[0] * size[1] * numbers * like.element_size(), like.device)

"""Rendering as functions: vertices, faces and attributes in, smooth pictures out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from algonet.core import tracing
from algonet.core.cache import TENSORS, cached, constant
from algonet.core.checks import as_tensor, broadcast_shapes, check_size, widened
from algonet.core.identity import PLANS, interned
from algonet.core.operation import Operation
from algonet.relax import TConorm

from .cameras import Camera
from .checks import check_faces, check_mesh, check_picture
from .constants import EPSILON, LEAST_SPACING, SAMPLES_PER_SCALE
from .coverage import DEFAULT_COVERAGE, Coverage, check_coverage
from .operation import LIT, NORMALS, RASTER
from .reference import to_camera
from .settings import DEFAULT_CONORM, NormalSettings, Raster, RasterSettings
from .shading import Shading
from .vectors import tensor_like

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
    w = coverage * logistic(depth_steepness (z* - depth)) is the nearest coverage that adds up to the silhouette. `depth` is
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
    settings = raster_settings(
        height, width, coverage, float(epsilon), DEFAULT_CONORM if conorm is None else conorm, two_sided,
        camera.perspective, deterministic, over_depth=background_depth is not None,
    )  # fmt: skip
    soft = (coverage._known_softness(height), depth_steepness, camera.near)
    behind = (background, 0.0 if background_depth is None else background_depth)
    given = (vertices, faces, attributes, attribute_faces, camera.matrix)
    key = form_key(settings, backend, behind, given)
    form = None if key is None else PLANS.find(key)
    dtype = None
    if form is None:
        check_mesh(where, vertices, faces)
        dtype = vertices.dtype
        attribute_faces = _check_attributes(where, attributes, vertices, faces, attribute_faces)
        vertices = widened(vertices)
        attributes = widened(attributes).to(vertices.dtype)
        batch = _batch_shape(where, vertices, attributes, *behind, camera.matrix)
        check_picture(where, batch, (height, width), attributes.shape[-1] + 2, vertices)
        form = CallForm(batch, _background(where, *behind, attributes.shape[-1], batch, vertices), key)
    tensors = [
        expanded(vertices, form.batch, 2),
        expanded(attributes, form.batch, 2),
        form.background,
        form.softness(soft, coverage, height, vertices),
        faces,
        faces if attribute_faces is None else attribute_faces,
        camera._ready_for((height, width), vertices, form.batch)[0],
    ]
    raster = Raster(*form.run(RASTER, tensors, settings, backend))
    return raster if dtype is None or raster.image.dtype == dtype else Raster(*(t.to(dtype) for t in raster))


def render_lit(
    vertices: Tensor,
    faces: Tensor,
    attributes: Tensor,
    normals: Tensor | None,
    lights: Tensor,
    shading: Shading,
    camera: Camera,
    *,
    size: tuple[int, int],
    attribute_faces: Tensor,
    background: Tensor | float | tuple[float, ...],
    background_depth: Tensor | float | None,
    coverage: Coverage,
    conorm: TConorm,
    depth_steepness: float | Tensor,
    two_sided: bool,
    epsilon: float,
    deterministic: bool,
    backend: str,
    colored: bool,
) -> tuple[Tensor, ...]:
    """Lit pictures in one pass: image, silhouette, depth, and further attributes. `SmoothRenderer` checks and fills in.

    Without `normals`, those of the faces are taken.
    """
    where, (height, width) = "SmoothRenderer", size
    settings = raster_settings(
        height, width, coverage, float(epsilon), conorm, two_sided, camera.perspective, deterministic, shading, colored,
        over_depth=background_depth is not None,
    )  # fmt: skip
    soft = (coverage._known_softness(height), depth_steepness, camera.near)
    behind = (background, 0.0 if background_depth is None else background_depth)
    given = (vertices, faces, attributes, attribute_faces, camera.matrix, lights, normals)
    key = form_key(settings, backend, behind, given)
    form = None if key is None else PLANS.find(key)
    if form is None:
        batch = _batch_shape(where, vertices, attributes, *behind, camera.matrix)
        if lights.dim() > 2 and lights.shape[:-2] != batch:
            batch = broadcast_shapes(batch, lights.shape[:-2])
        check_picture(where, batch, size, attributes.shape[-1] + 5, vertices)
        form = CallForm(batch, _background(where, *behind, 3, batch, vertices), key)
    batch = form.batch
    matrix, eye = camera._ready_for(size, vertices, batch)
    tensors = [
        expanded(vertices, batch, 2),
        expanded(attributes, batch, 2),
        form.background,
        form.softness(soft, coverage, height, vertices),
        faces,
        attribute_faces,
        matrix,
        eye,
        expanded(lights, batch, 2),
    ]
    if normals is None and (deterministic if vertices.is_cuda else vertices.shape[:-2] != batch):
        # Once for all items; a GPU makes them in the same pass, in any order
        normals = NORMALS([vertices, faces], NormalSettings(deterministic))[0]
    if normals is not None:
        tensors.append(expanded(normals, batch, 2))
    return tuple(form.run(LIT, tensors, settings, backend))


class CallForm:
    """What calls of one form share, found out by the first of them: the batch's shape, the background, who runs them.

    On a CUDA device, asking all that again takes longer than the kernels of a small scene.
    """

    def __init__(self, batch: torch.Size, background: Tensor, key: tuple | None):
        self.batch, self.background = batch, background
        self._key = key
        self._soft: tuple[tuple[Any, ...], Tensor] | None = None

    def softness(self, parts: tuple[Any, ...], coverage: Coverage, height: int, like: Tensor) -> Tensor:
        """(*B, 3): see `softness_of`; the last one is kept if it is made of numbers."""
        plain = self._key is not None and not any(isinstance(part, Tensor) for part in parts)
        last = self._soft
        if plain and last is not None and last[0] == parts:
            return last[1]
        _, steepness, near = parts
        made = softness_of(coverage, steepness, near, height, self.batch, like)
        if plain:
            self._soft = parts, made
        return made

    def run(
        self, operation: Operation, tensors: list[Tensor], settings: RasterSettings, backend: str
    ) -> Sequence[Tensor]:
        """The operation on these tensors; a call that worked makes its form known."""
        outputs = operation(tensors, settings, backend)
        # What a graph's capture fills, it fills only when it is replayed
        if self._key is not None and not tracing.capturing(tensors[0].device):
            PLANS.put(self._key, self)
        return outputs


_NUMBERS = frozenset({int, float})


def form_key(settings: RasterSettings, backend: str, behind: tuple[Any, Any], given: tuple[Any, ...]) -> tuple | None:
    """What a call's form depends on; `None` where its numbers are looked at (on the CPU), cast, or seen by a transform.

    `behind`: background and its depth; `given`: points, faces, attributes and what else may be there.
    """
    points, table = given[0], given[2]
    if not (isinstance(points, Tensor) and isinstance(table, Tensor)):
        return None
    if points.dtype not in (torch.float32, torch.float64) or table.dtype != points.dtype:
        return None
    if tracing.readable(points) or not tracing.plain():
        return None
    for part in behind:
        if type(part) not in _NUMBERS and not (isinstance(part, tuple) and _NUMBERS.issuperset(map(type, part))):
            return None
    key: list[Any] = [CallForm, settings, backend, *behind]
    for tensor in given:
        if tensor is not None and not isinstance(tensor, Tensor):
            return None
        key.append(None if tensor is None else (tensor.shape, tensor.dtype, tensor.device))
    return tuple(key)


def raster_settings(
    height: int,
    width: int,
    coverage: Coverage,
    epsilon: float,
    conorm: TConorm,
    two_sided: bool,
    perspective: bool,
    deterministic: bool,
    shading: Shading | None = None,
    colored: bool = True,
    *,
    over_depth: bool = False,
) -> RasterSettings:
    """Settings of a call; calls that come again and again get the same object, which is quicker to look up."""
    return _settings(
        height, width, coverage.form(), epsilon, interned(conorm), two_sided,
        perspective, over_depth, deterministic, shading, colored, _is_sharp(coverage._known_softness(height)),
    )  # fmt: skip


def _is_sharp(softness: Any) -> bool:
    """Whether a noise's scale in pixels is known, without waiting for a device, to need a sample at every pixel."""
    if not isinstance(softness, Tensor):
        return softness < LEAST_SPACING * SAMPLES_PER_SCALE
    if not tracing.readable(softness):
        return False
    return not softness.numel() or float(softness.detach().max()) < LEAST_SPACING * SAMPLES_PER_SCALE


_settings = cached(RasterSettings)


def camera_matrix(camera: Camera, size: tuple[int, int], like: Tensor) -> Tensor:
    """(*B, 3, 4): from points of the world to (x w, y w, depth), in the precision of `like`."""
    if torch.is_autocast_enabled(like.device.type):
        with torch.autocast(like.device.type, enabled=False):
            return camera_matrix(camera, size, like)
    return camera.pixel_matrix(size).to(like)


def camera_points(vertices: Tensor, camera: Camera, size: tuple[int, int]) -> Tensor:
    """(x w, y w, depth) of the vertices, (*B, V, 3)."""
    return to_camera(vertices, camera_matrix(camera, size, vertices))


def _batch_shape(where: str, points: Tensor, *others: Any) -> torch.Size:
    """The batch dimensions that points and others (attributes, background, background depth, camera) share."""
    attributes, background, depth, *cameras = others
    shapes = [points.shape[:-2], attributes.shape[:-2], *(m.shape[:-2] for m in cameras)]
    if isinstance(background, Tensor) and background.dim() > 1:
        shapes.append(background.shape[:-1])
    if isinstance(depth, Tensor):
        shapes.append(depth.shape)
    try:
        return _broadcast(*shapes)
    except RuntimeError:
        listed = ", ".join(str(tuple(s)) for s in shapes)
        raise ValueError(
            f"{where}: batch dimensions of vertices and camera, attributes, background must broadcast: {listed}."
        ) from None


#: torch's own takes longer than launching a kernel.
_broadcast = cached(broadcast_shapes)


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


def softness_of(
    coverage: Coverage, steepness: float | Tensor, near: float | Tensor, height: int, batch: torch.Size, like: Tensor
) -> Tensor:
    """(*B, 3): the coverage's softness in pixels, the depth steepness, the near distance."""
    parts: tuple[Any, ...] = (coverage._known_softness(height), steepness, near)
    if not any(isinstance(p, Tensor) for p in parts):
        return _expanded_numbers(tuple(map(float, parts)), batch, like)

    def make() -> Tensor:
        every = (coverage.softness(height), steepness, near)
        rows = [tensor_like(p, like) for p in every]
        if any(row.dim() for row in rows):
            rows = [expanded(row, batch, 0) for row in rows]
        return torch.stack(rows, -1).expand(*batch, -1)

    return coverage._stacked((steepness, near), height, (batch, like.dtype, like.device), make)


def _check_attributes(
    where: str, attributes: Tensor, vertices: Tensor, faces: Tensor, attribute_faces: Tensor | None
) -> Tensor:
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


def check_options(where: str, coverage: Coverage, epsilon: float) -> None:
    check_coverage(where, coverage)
    if not 0 < epsilon < 0.5:
        raise ValueError(f"{where}: `epsilon` must lie in (0, 0.5), got {epsilon!r}.")

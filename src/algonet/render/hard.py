"""Hard pictures: which face each pixel sees, attributes there, and the limit of the smooth renderer, for data and for tests."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from algonet.core.checks import broadcast_shapes, check_size, check_spec, widened
from algonet.core.tracing import outside_autocast

from .cameras import Camera
from .functional import _background, _batch_shape, _check_attributes, camera_points, check_picture, expanded
from .meshes import check_faces, check_mesh
from .operation import VISIBLE
from .settings import Raster
from .visibility import VisibilitySettings, barycentrics


class Fragments(NamedTuple):
    """What each pixel's centre sees. `faces` (*B, H, W) int64: the face, -1 for none; `barycentrics` (*B, H, W, 3): how much
    each corner counts there, perspective-correctly, 0 for none; `depth` (*B, H, W): infinity for none. The last two are
    differentiable in vertices and camera."""

    faces: Tensor
    barycentrics: Tensor
    depth: Tensor


@outside_autocast
def rasterize(
    vertices: Tensor,
    faces: Tensor,
    camera: Camera,
    *,
    size: tuple[int, int],
    two_sided: bool = True,
    backend: str = "auto",
) -> Fragments:
    """The nearest face at each pixel's centre, and where in it the pixel looks.

    Vertices (*B, V, 3) and the camera's batch broadcast; faces (F, 3) are shared. Corners are snapped to 1/256 pixel, and a
    pixel on an edge belongs to the face to the right of it, or below: so each pixel inside a sheet sees exactly one of
    its faces. Of equally near faces (in float32) the first is seen; results are the same on every run and backend. Faces
    are clipped at the camera's `near`, also where corners lie behind the eye. Barycentrics and depth have derivatives of any
    order, at the vertices as they are; `faces` is constant. O(pixels covered by each face).

    >>> from algonet.render import icosphere
    >>> ball = icosphere(2)
    >>> seen = rasterize(ball.vertices, ball.faces, Camera.look_at((0.0, 0.0, 3.0)), size=(32, 32))
    >>> seen.faces.shape, round(float(seen.depth[16, 16]), 1), seen.barycentrics[16, 16].sum()
    (torch.Size([32, 32]), 2.0, tensor(1.))
    """
    where = "rasterize"
    height, width = check_size(where, size)
    check_mesh(where, vertices, faces)
    vertices = widened(vertices)
    points = camera_points(vertices, camera, (height, width))
    batch = points.shape[:-2]
    # Corners of a pixel's face, their derivatives, and 64 bits for what is nearest
    check_picture(where, batch, (height, width), 40, vertices)
    near = torch.as_tensor(camera.near, device=points.device).detach().to(points.dtype).expand(batch)
    settings = VisibilitySettings(height, width, camera.perspective, two_sided)
    seen = VISIBLE([points.detach(), near, faces], settings, backend)[0]
    return Fragments(seen, *barycentrics(points, faces, seen, camera.perspective))


@outside_autocast
def interpolate(attributes: Tensor, fragments: Fragments, faces: Tensor) -> Tensor:
    """Attributes (*B, N, C) at the pixels, (*B, H, W, C): sum_i barycentric_i attribute_i; 0 where no face is.

    `faces` (F, 3) are the attributes' rows at the corners of each face: those of the mesh for attributes of vertices, those of
    uv for uv. Differentiable to any order in attributes, and through the barycentrics in vertices and camera.

    >>> from algonet.render import box
    >>> cube, camera = box(), Camera.look_at((1.0, 2.0, 3.0))
    >>> seen = rasterize(cube.vertices, cube.faces, camera, size=(16, 16))
    >>> places = interpolate(cube.vertices, seen, cube.faces)
    >>> camera.project(places[8, 6:8], (16, 16))[:, :2]
    tensor([[6.5000, 8.5000],
            [7.5000, 8.5000]])
    """
    where = "interpolate"
    check_spec(where, "attributes", attributes, "*batch N C")
    check_faces(f"{where}: `faces`", faces, attributes.shape[-2])
    try:
        batch = broadcast_shapes(attributes.shape[:-2], fragments.faces.shape[:-2])
    except RuntimeError:
        shapes = f"{tuple(attributes.shape[:-2])} and {tuple(fragments.faces.shape[:-2])}"
        raise ValueError(f"{where}: batches of attributes and fragments must broadcast: {shapes}.") from None
    rows = expanded(faces.long()[fragments.faces.clamp_min(0)], batch, 3)
    values = expanded(attributes, batch, 2)
    places = rows.reshape(*batch, -1, 1).expand(*batch, -1, values.shape[-1])
    corners = torch.gather(values, -2, places).reshape(*rows.shape, -1)
    # Not a product with 0 where nothing is: an attribute there may be infinite
    corners = torch.where((fragments.faces >= 0)[..., None, None], corners, 0)
    return (fragments.barycentrics[..., None].to(corners) * corners).sum(-2)


@outside_autocast
def render_hard(
    vertices: Tensor,
    faces: Tensor,
    attributes: Tensor,
    camera: Camera,
    *,
    size: tuple[int, int],
    attribute_faces: Tensor | None = None,
    background: Tensor | float = 0.0,
    background_depth: Tensor | float = 0.0,
    two_sided: bool = True,
) -> Raster:
    """What `render_attributes` tends to for scale -> 0 and depth_steepness -> inf: each pixel's centre sees one face.

    `rasterize` and `interpolate` with the same arguments, shapes and conventions as there. Which face is seen is constant;
    attributes and depth at a pixel are differentiable in vertices, attributes, background and camera. Faces nearer than twice
    `camera.near`, which fade there, are clipped at `camera.near` here.

    >>> from algonet.render import icosphere
    >>> ball = icosphere(2)
    >>> out = render_hard(ball.vertices, ball.faces, ball.vertices, Camera.look_at((0.0, 0.0, 3.0)), size=(32, 32))
    >>> out.silhouette.unique()
    tensor([0., 1.])
    """
    where = "render_hard"
    check_size(where, size)
    check_mesh(where, vertices, faces)
    rows = _check_attributes(where, attributes, vertices, faces, attribute_faces)
    batch = _batch_shape(where, vertices, attributes, background, background_depth, camera.matrix)
    # Three corners' attributes, beside what the rasteriser takes
    check_picture(where, batch, size, 40 + 4 * attributes.shape[-1], attributes)
    seen = rasterize(vertices, faces, camera, size=size, two_sided=two_sided)
    values = interpolate(expanded(attributes, batch, 2), seen, rows)
    covered = expanded(seen.faces >= 0, batch, 2)
    behind = _background(where, background, background_depth, values.shape[-1], batch, values)[..., None, None, :]
    image = torch.where(covered[..., None], values, behind[..., :-1])
    depth = torch.where(covered, seen.depth.to(values), behind[..., -1])
    return Raster(image, covered.to(values.dtype), depth)

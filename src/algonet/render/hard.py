"""The hard rasteriser: the limit of the smooth one, for data and for tests."""

from __future__ import annotations

import torch
from torch import Tensor

from algonet.core.checks import check_size
from algonet.core.tracing import outside_autocast

from .cameras import Camera
from .checks import check_mesh, check_picture
from .functional import _background, _batch_shape, _check_attributes, camera_points, expanded
from .settings import Raster


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

    Same arguments, shapes and conventions. Differentiable in the attributes and the background only: which face is seen,
    and where, are constants. A z-buffer: on the CPU O(pixels covered by each face), on a GPU O(pixels times faces), in
    parallel.

    >>> from algonet.render import icosphere
    >>> ball = icosphere(2)
    >>> out = render_hard(ball.vertices, ball.faces, ball.vertices, Camera.look_at((0.0, 0.0, 3.0)), size=(32, 32))
    >>> out.silhouette.unique()
    tensor([0., 1.])
    """
    where = "render_hard"
    height, width = check_size(where, size)
    check_mesh(where, vertices, faces)
    rows_of = _check_attributes(where, attributes, vertices, faces, attribute_faces)
    points = camera_points(vertices, camera, (height, width))
    batch = _batch_shape(where, points, attributes, background, background_depth)
    # Depth and weights in double precision, faces and corners in 64 bits, and three corners' attributes
    check_picture(where, batch, (height, width), 16 + 4 * attributes.shape[-1], attributes)
    flat = expanded(points, batch, 2).detach().reshape(-1, *points.shape[-2:])
    near = torch.as_tensor(camera.near, dtype=torch.float64).expand(batch).reshape(-1)
    buffer = _on_gpu if flat.is_cuda else _on_cpu
    depth, index, weights = buffer(flat, faces.detach().long(), near, camera.perspective, two_sided, (height, width))
    shape = (*batch, height, width)
    covered = (index >= 0).reshape(shape)
    corners = rows_of.long()[index.clamp_min(0)].reshape(*shape, 3)
    values = expanded(attributes, batch, 2)
    rows = corners.reshape(*batch, -1, 1).expand(*batch, -1, values.shape[-1])
    picked = torch.gather(values, -2, rows).reshape(*shape, 3, -1)
    mixed = (weights.reshape(*shape, 3, 1).to(values) * picked).sum(-2)
    behind = _background(where, background, background_depth, values.shape[-1], batch, values)[..., None, None, :]
    image = torch.where(covered[..., None], mixed, behind[..., :-1])
    far = torch.where(covered, depth.reshape(shape).to(values), behind[..., -1])
    return Raster(image, covered.to(values.dtype), far)


def _on_cpu(
    points: Tensor, faces: Tensor, near: Tensor, perspective: bool, two_sided: bool, size: tuple[int, int]
) -> tuple[Tensor, Tensor, Tensor]:
    """Depth, index and corner weights of each picture by the compiled z-buffer, given back where the points are."""
    from .kernels.numba.z_buffer import z_buffer

    found = (
        torch.empty(len(points), *size, dtype=torch.float64),
        torch.empty(len(points), *size, dtype=torch.int64),
        torch.empty(len(points), *size, 3, dtype=torch.float64),
    )
    places, own = points.cpu().double().contiguous().numpy(), faces.cpu().contiguous().numpy()
    for i, place in enumerate(places):
        z_buffer(place, own, float(near[i]), perspective, two_sided, *(t[i].numpy() for t in found))
    depth, index, weights = found
    return depth.to(points), index.to(points.device), weights.to(points)


def _on_gpu(
    points: Tensor, faces: Tensor, near: Tensor, perspective: bool, two_sided: bool, size: tuple[int, int]
) -> tuple[Tensor, Tensor, Tensor]:
    from .kernels.z_buffer import z_buffer

    return z_buffer(points.float(), faces, near.to(points.device).float(), perspective, two_sided, size)

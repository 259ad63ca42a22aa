"""The hard rasteriser: the limit of the smooth one, for data and for tests."""

from __future__ import annotations

import torch
from torch import Tensor

from .cameras import Camera, check_size
from .functional import _background, _batch_shape, _check_attributes, _expanded, _points
from .meshes import check_mesh
from .settings import Raster


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
    and where, are constants. A z-buffer on the CPU, O(pixels covered by each face).

    >>> from algonet.render import icosphere
    >>> ball = icosphere(2)
    >>> out = render_hard(ball.vertices, ball.faces, ball.vertices, Camera.look_at((0.0, 0.0, 3.0)), size=(32, 32))
    >>> out.silhouette.unique()
    tensor([0., 1.])
    """
    from .kernels.numba_hard import z_buffer

    where = "render_hard"
    height, width = check_size(where, size)
    check_mesh(where, vertices, faces)
    rows_of = _check_attributes(attributes, vertices, faces, attribute_faces)
    points = _points(vertices, camera, size)
    batch = _batch_shape(points, attributes, background, background_depth)
    flat = _expanded(points, batch, 2).detach().double().cpu().reshape(-1, *points.shape[-2:]).contiguous()
    near = torch.as_tensor(camera.near, dtype=torch.float64).expand(batch).reshape(-1)
    count = len(flat)
    depth = torch.empty(count, height, width, dtype=torch.float64)
    index = torch.empty(count, height, width, dtype=torch.int64)
    weights = torch.empty(count, height, width, 3, dtype=torch.float64)
    own = faces.detach().long().cpu().contiguous().numpy()
    for i in range(count):
        arrays = (t[i].numpy() for t in (depth, index, weights))
        z_buffer(flat[i].numpy(), own, float(near[i]), camera.perspective, two_sided, *arrays)
    shape = (*batch, height, width)
    seen = (index >= 0).reshape(shape).to(vertices.device)
    corners = rows_of.long()[index.clamp_min(0).to(vertices.device)].reshape(*shape, 3)
    looks = _expanded(attributes, batch, 2)
    rows = corners.reshape(*batch, -1, 1).expand(*batch, -1, looks.shape[-1])
    picked = torch.gather(looks, -2, rows).reshape(*shape, 3, -1)
    mixed = (weights.reshape(*shape, 3, 1).to(looks) * picked).sum(-2)
    behind = _background(background, background_depth, looks.shape[-1], batch, looks)[..., None, None, :]
    image = torch.where(seen[..., None], mixed, behind[..., :-1])
    far = torch.where(seen, depth.reshape(shape).to(looks), behind[..., -1])
    return Raster(image, seen.to(looks.dtype), far)

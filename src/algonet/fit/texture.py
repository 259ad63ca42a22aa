"""A texture from pictures: every face gets its own patch of one picture, coloured by the views that see it."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import normalize

from algonet.core.checks import check_spec
from algonet.core.memory import check_memory
from algonet.core.tracing import outside_autocast
from algonet.render import Mesh, render_hard
from algonet.render.meshes import check_mesh_given

from .simplify import vertex_colors_of
from .targets import Targets, looked_up

#: Texels of a cell that belong to no face: one beside each leg, and three between the two faces that share the cell, so that
#: bilinear lookups in a face never meet the other's colours.
GUTTER = 4
#: Cells are at least this wide: two texels a side for each face.
LEAST_CELL = GUTTER + 2


@outside_autocast
def fit_texture(mesh: Mesh, targets: Targets, *, size: int = 1024, facing: float = 2.0) -> Mesh:
    """The mesh with a texture of size x size texels, coloured by all views in `targets.rgb` that see each place.

    Two faces share each square cell of the picture (a face atlas: no seams to choose, for any mesh). A texel's colour is the
    mean over the views that see it, weighted by the cosine between the surface and the view, to the power `facing`: views
    from straight ahead count most. What no view sees keeps the mesh's own colours, or the mean of all. Pictures are taken to
    show colours as they are, without light. `mesh.save("x.obj")` or `"x.glb"` writes mesh and picture.

    >>> from algonet.render import Camera, icosphere
    >>> cameras = Camera.look_at(torch.tensor([[0.0, 0.0, 3.0], [0.0, 0.0, -3.0]]))
    >>> red = torch.tensor([1.0, 0.0, 0.0, 1.0]).expand(2, 32, 32, 4)
    >>> painted = fit_texture(icosphere(1), Targets(cameras, rgb=red), size=64)
    >>> painted.texture.shape, painted.uv_faces.shape
    (torch.Size([64, 64, 3]), torch.Size([80, 3]))
    """
    check_mesh_given("fit_texture", mesh)
    if targets.rgb is None:
        raise ValueError("fit_texture: `targets` must have `rgb`: there are no colours to take.")
    check_spec("fit_texture", "vertices", mesh.vertices, "V 3", hint="; one mesh at a time")
    # Per texel its place, face and shares, the point and normal there, three corners, and sums of colours
    check_memory("fit_texture", f"a texture of {size} x {size}", 160 * size * size, mesh.vertices.device)
    targets, mesh = targets.to(mesh.vertices), mesh.replace(vertices=mesh.vertices.detach())
    atlas = face_atlas(len(mesh.faces), size, mesh.vertices)
    corners = mesh.vertices[mesh.faces[atlas.face].long()]
    points = (atlas.shares[..., None] * corners).sum(-2)
    normals = (atlas.shares[..., None] * mesh.vertex_normals()[mesh.faces[atlas.face].long()]).sum(-2)
    total, weight = _collected(mesh, targets, points, normals, facing)
    texture = total / weight.clamp_min(1e-8)
    unseen = weight[:, 0] < 1e-4
    texture[unseen] = _own_colors(mesh, atlas, texture[~unseen])[unseen]
    image = texture.new_zeros(size * size, 3)
    image[atlas.texel] = texture
    return Mesh(
        mesh.vertices,
        mesh.faces,
        vertex_colors=mesh.vertex_colors,
        uv=atlas.uv,
        uv_faces=atlas.uv_faces,
        texture=image.reshape(size, size, 3),
    )


class Atlas(NamedTuple):
    """Where faces lie in a picture: `uv` (3 F, 2) with `uv_faces` (F, 3); and per used `texel` (T,) (row by row), its `face`
    (T,) and the `shares` (T, 3) of that face's corners, clamped to the face in the gutter."""

    uv: Tensor
    uv_faces: Tensor
    texel: Tensor
    face: Tensor
    shares: Tensor


def face_atlas(faces: int, size: int, like: Tensor) -> Atlas:
    """Room for this many faces in a picture of size x size texels: two right-angled triangles per square cell."""
    grid = math.ceil(math.sqrt(math.ceil(faces / 2)))
    cell = size // grid
    if cell < LEAST_CELL:
        least = grid * LEAST_CELL
        raise ValueError(f"fit_texture: {faces} faces need a texture of at least {least} x {least} texels, got {size}.")
    device, leg = like.device, cell - GUTTER
    number = torch.arange(faces, device=device)
    corner = torch.stack([number // 2 % grid, number // 2 // grid], -1) * cell
    # The first of two faces has its right angle at the cell's first corner, the second at the opposite one
    second = (number % 2 == 1)[:, None]
    right = torch.where(second, corner + cell - 1, corner + 1).to(like)
    way = torch.where(second, -1.0, 1.0).to(like) * leg
    zero = torch.zeros_like(way)
    places = torch.stack([right, right + torch.cat([way, zero], -1), right + torch.cat([zero, way], -1)], 1)
    uv = torch.stack([places[..., 0] / size, 1 - places[..., 1] / size], -1).reshape(-1, 2)
    # Texels, from their centres back to faces
    side = torch.arange(grid * cell, device=device)
    row, column = torch.cartesian_prod(side, side).unbind(1)
    upper = (row % cell + column % cell >= cell).long()
    face = 2 * (row // cell * grid + column // cell) + upper
    used = face < faces
    row, column, face = row[used], column[used], face[used]
    centre = torch.stack([column, row], -1).to(like) + 0.5
    along = (centre - right[face]) / way[face]
    along = along.clamp_min(0)
    along = along / along.sum(-1, keepdim=True).clamp_min(1)
    shares = torch.cat([1 - along.sum(-1, keepdim=True), along], -1)
    return Atlas(uv, torch.arange(3 * faces, device=device).reshape(-1, 3), row * size + column, face, shares)


def _collected(mesh: Mesh, targets: Targets, points: Tensor, normals: Tensor, facing: float) -> tuple[Tensor, Tensor]:
    """Colours summed over the views, and their weights, at surface points (T, 3)."""
    assert targets.rgb is not None
    height, width = targets.size
    total, weight = torch.zeros_like(points), points.new_zeros(len(points), 1)
    known = torch.ones_like(targets.rgb[..., :1])
    for extra in (targets.alpha, targets.masks):
        known = known if extra is None else known * extra[..., None]
    pictures = torch.cat([targets.rgb[..., :3], known], -1).movedim(-1, 1)
    extent = float((mesh.vertices.amax(0) - mesh.vertices.amin(0)).max())
    for i in range(len(targets)):
        camera = targets.cameras[i]
        depth = render_hard(mesh.vertices, mesh.faces, mesh.vertices, camera, size=(height, width)).depth
        place = camera.project(points, (height, width))
        found = looked_up(pictures[i], place[:, :2]).T
        # The nearest of the pixels around: at an outline their mean would lie behind the object
        front = looked_up(depth[None], place[:, :2], "nearest")[0]
        view = normalize(camera.position - points, dim=-1)
        cosine = (normalize(normals, dim=-1) * view).sum(-1)
        # A slanted surface changes its depth within a pixel
        seen = (
            (place[:, 2] > 0) & (cosine > 0.1) & ((place[:, 2] - front).abs() < 0.01 * extent / cosine.clamp_min(0.1))
        )
        inside = ((place[:, :2] > 0.5) & (place[:, :2] < place.new_tensor([width - 0.5, height - 0.5]))).all(-1)
        share = (seen & inside & (found[:, 3] > 0.98)).to(points) * cosine.clamp_min(0) ** facing
        total += share[:, None] * found[:, :3]
        weight += share[:, None]
    return total, weight


def _own_colors(mesh: Mesh, atlas: Atlas, seen: Tensor) -> Tensor:
    """What texels show that no view sees."""
    colors = vertex_colors_of(mesh)
    if colors is None:
        mean = seen.mean(0) if len(seen) else atlas.shares.new_full((3,), 0.5)
        return mean.expand(len(atlas.face), 3)
    return (atlas.shares[..., None] * colors[mesh.faces[atlas.face].long()]).sum(-2)

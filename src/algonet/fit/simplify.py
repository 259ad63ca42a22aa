"""A mesh with few faces that looks the same from afar, colours at its vertices whatever it was coloured by, and a mesh at
several levels of detail."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from algonet.render import Camera, Mesh, SmoothRenderer, sample_texture
from algonet.render.lights import Light
from algonet.render.vectors import face_areas

from .remesh import means, proper, surface


def simplified(mesh: Mesh, faces: int) -> Mesh:
    """At most about `faces` faces: vertices in one cell of a grid become one. Colours are kept, at the vertices.

    For small pictures, not for saving: thin parts may close up.

    >>> from algonet.render import icosphere
    >>> 100 < len(simplified(icosphere(5), 500).faces) <= 500
    True
    """
    mesh = mesh.replace(vertices=mesh.vertices.detach())
    colors = vertex_colors_of(mesh)
    plain = Mesh(mesh.vertices, mesh.faces, vertex_colors=colors)
    if len(mesh.faces) <= faces:
        return plain
    extent = float((mesh.vertices.amax(0) - mesh.vertices.amin(0)).max())
    area = surface(mesh.vertices, mesh.faces)
    # A smooth surface gets some two faces for each area of a cell; begun with a finer grid than that asks for
    cells, found = int(min(256, 2 + 1.2 * extent * math.sqrt(faces / (2 * max(area, 1e-12))))), plain
    while cells >= 4:
        found = _clustered(plain, extent / cells)
        if len(found.faces) <= faces:
            break
        cells = int(cells * 0.85)
    return found if len(found.faces) else plain


def _clustered(mesh: Mesh, cell: float) -> Mesh:
    place = ((mesh.vertices - mesh.vertices.amin(0)) / cell).long()
    key = (place[:, 0] * 2**20 + place[:, 1]) * 2**20 + place[:, 2]
    cells, index = key.unique(return_inverse=True)
    faces = proper(index[mesh.faces.long()])
    if not len(faces):
        return mesh
    # The same face twice would count twice in the silhouette; turned over, it is the other side of a sheet
    order = (faces.argmin(1, keepdim=True) + torch.arange(3, device=faces.device)) % 3
    colors = None if mesh.vertex_colors is None else means(mesh.vertex_colors, index, len(cells))
    vertices = _on_planes(mesh, means(mesh.vertices, index, len(cells)), index, cell)
    return Mesh(vertices, faces.gather(1, order).unique(dim=0), vertex_colors=colors)


def _on_planes(mesh: Mesh, places: Tensor, index: Tensor, cell: float) -> Tensor:
    """Places (K, 3) of cells moved, at most a cell away, towards the planes of the faces that they stand for.

    Means of vertices shrink round shapes. The nearest point to all planes, with each face's area as its weight, does not
    (Lindstrom 2000); where the planes leave it open, the mean counts.
    """
    normal, _ = face_areas(mesh.vertices, mesh.faces)
    area = normal.norm(dim=-1, keepdim=True)
    unit = normal / area.clamp_min(1e-20)
    corner = index[mesh.faces.long()].flatten()
    # From each corner's place: coordinates far from 0 would lose the small differences
    unit, weight = unit.repeat_interleave(3, 0), area.repeat_interleave(3, 0)
    own = mesh.vertices[mesh.faces[:, 0].long()].repeat_interleave(3, 0)
    away = ((own - places[corner]) * unit).sum(-1, keepdim=True)
    outer = (weight[..., None] * unit[:, :, None] * unit[:, None, :]).flatten(1)
    planes = outer.new_zeros(len(places), 9).index_add(0, corner, outer).unflatten(1, (3, 3))
    pull = outer.new_zeros(len(places), 3).index_add(0, corner, weight * away * unit)
    total = planes.diagonal(dim1=1, dim2=2).sum(-1)[:, None, None]
    ridge = torch.eye(3).to(planes) * (0.03 * total + 1e-20)
    way = torch.linalg.solve_ex(planes + ridge, pull)[0]
    return places + way * (cell / way.norm(dim=-1, keepdim=True).clamp_min(cell))


def vertex_colors_of(mesh: Mesh) -> Tensor | None:
    """Colours (V, 3) at the vertices: the mesh's own, or the means of its faces' colours or of its texture's; None if none."""
    if mesh.texture is not None and mesh.uv is not None:
        rows = mesh.uv_faces if mesh.uv_faces is not None else mesh.faces
        corners = sample_texture(mesh.texture.detach(), mesh.uv[rows.long()].detach())
    elif mesh.face_colors is not None:
        corners = mesh.face_colors.detach()[:, None].expand(-1, 3, -1)
    else:
        return None if mesh.vertex_colors is None else mesh.vertex_colors.detach()
    return means(corners.reshape(-1, 3).to(mesh.vertices), mesh.faces.long().flatten(), len(mesh.vertices))


class Sides:
    """A mesh as the fits see it: a closed one from outside, an `open` one from both sides."""

    def __init__(self, mesh: Mesh, open: bool):
        self.front, self.open = mesh, open
        self._coarser: dict[int, Sides] = {}

    @property
    def middle(self) -> Tensor:
        """The middle (3,) of the box around the mesh."""
        vertices = self.front.vertices.detach()
        return (vertices.amin(-2) + vertices.amax(-2)) / 2

    @property
    def radius(self) -> Tensor:
        return (self.front.vertices.detach() - self.middle).norm(dim=-1).max()

    def at_most(self, faces: int) -> Sides:
        """The same with a mesh simplified to about `faces` faces, made once; itself if it has no more."""
        if len(self.front.faces) <= faces:
            return self
        if faces not in self._coarser:
            self._coarser[faces] = Sides(simplified(self.front, faces), self.open)
        return self._coarser[faces]

    def seen(self, renderer: SmoothRenderer, camera: Camera, lights: Sequence[Light]) -> tuple[Tensor, Tensor]:
        """Colours (*B, H, W, 3) before black, and the silhouette (*B, H, W)."""
        renderer.two_sided = self.open
        out = renderer(self.front, camera, lights)
        return out.rgb, out.silhouette

"""Shapes from pictures: R deforms a template mesh, the smooth inverse renders it from the same sides."""

from __future__ import annotations

import math
from pathlib import Path
from typing import cast

import torch
from torch import Tensor, nn

from algonet.core.identity import unit
from algonet.fit import rotation_matrix
from algonet.ran.data import CachedItems
from algonet.ran.data.shapes import Shapes, side_cameras, surface_points
from algonet.ran.model import Batch, Trainable
from algonet.ran.networks import Encoder, KeepColours, head, near_zero
from algonet.relax import Choice, SoftModule
from algonet.render import Camera, Coverage, Mesh, icosphere, render_attributes
from algonet.render.coverage import DEFAULT_COVERAGE, coverage_named
from algonet.render.functional import DEPTH_STEEPNESS
from algonet.render.losses import Topology, flatten_loss, laplacian_loss
from algonet.render.meshes import mesh_files

from . import Parts, Problem, Scores, answers


class MeshProblem(Problem):
    """Vertices (B, V, 3) of a deformed icosphere, with `model.colours` vertices and their colours (B, V, 6)."""

    truth = ("points",)

    @property
    def views(self) -> int:
        return self.config.data.views

    @property
    def b_channels(self) -> int:
        return 4 if self.config.model.colours else 1

    def template(self) -> Mesh:
        """The mesh every reconstruction begins from."""
        return icosphere(self.config.model.level, self.config.model.radius)

    def parts(self) -> Parts:
        data, model, loss = self.config.data, self.config.model, self.config.loss
        start = self.template()
        coverage = coverage_named(model.coverage, self.config.train.softness[0])
        inverse = RenderInverse(start.faces, data.size, data.views, coverage, model.shading, colours=model.colours)
        regulariser = MeshRegulariser(start, loss.laplacian, loss.flatten, loss.colour if model.colours else 0.0)
        reconstructor = MeshReconstructor(self.encoder(), start.vertices, model.width, colours=model.colours)
        return reconstructor, inverse, regulariser

    def translators(self) -> tuple[nn.Module, nn.Module]:
        if not self.config.model.colours:
            return super().translators()
        return KeepColours(self._translator(3, 1, 1)), super().translators()[1]

    def procedural(self, split: str) -> CachedItems:
        data = self.config.data
        return Shapes(size=data.size, views=data.views, kinds=data.kinds, **self.look(split))

    def truth_loss(self, reconstruction: Tensor, batch: Batch, inverse: nn.Module) -> Tensor:
        """The distance both ways between the vertices and points of the true surface."""
        apart = torch.cdist(reconstruction[..., :3], batch["points"])
        return apart.amin(1).mean(-1) + apart.amin(2).mean(-1)

    @torch.no_grad()
    def evaluate(self, model: Trainable | None, data: Shapes, resolution: int = 32) -> Scores:
        """Mean voxel IoU and Chamfer distance to the true shapes; with colours also the mean absolute difference between
        the rendered colours and the input's where both show the object (of the template: mid-grey)."""
        start = self.template()
        templates = [start.vertices.expand(len(data), -1, -1)]
        surfaces = torch.cat([found for _, found in answers(model, data)] if model else templates)
        rows = []
        for index, found in enumerate(surfaces):
            shape, true = start.replace(vertices=found[..., :3]).to(found.device), data.mesh(index).to(found.device)
            row = {
                "iou": iou(occupancy(shape, resolution), occupancy(true, resolution)),
                "chamfer": chamfer(shape, true),
            }
            if self.config.model.colours:
                row["colour"] = self._colour_error(found, data.silhouette(index), data[index]["a"].to(found.device))
            rows.append(row)
        return {name: sum(row[name] for row in rows) / len(rows) for name in rows[0]}

    def _colour_error(self, found: Tensor, silhouette: Tensor, a: Tensor) -> float:
        if found.shape[-1] == 3:
            found = torch.cat([found, torch.full_like(found, 0.5)], -1)
        size, views = self.config.data.size, self.config.data.views
        inverse = RenderInverse(self.template().faces, size, views, coverage_named("filtered", 0.5), colours=True)
        inverse = inverse.to(found.device)
        shown = inverse(found[None])[0]
        both = (shown[0] > 0.5) & (silhouette.to(a.device) > 0)
        if not both.any():
            return 1.0
        return float((shown[1:] / shown[:1].clamp_min(1e-6) - a)[:, both].abs().mean())

    def encoded(self, found: Tensor) -> tuple[str, bytes]:
        path = Path("found.obj" if found.shape[-1] == 3 else "found.ply")
        mesh = self.template().replace(vertices=found[..., :3].cpu())
        if found.shape[-1] > 3:
            mesh = mesh.replace(vertex_colors=found[..., 3:].cpu())
        return path.suffix, mesh_files(mesh, path)[path]


class MeshReconstructor(nn.Module):
    """Pictures to the vertices (B, V, 3) of a deformed template: its own, stretched along the axes, plus displacements.

    It begins at the template: the last layers start near zero. Stretching stays within a factor of 2, displacements below
    `reach` in each coordinate. With `colours`, each vertex has a colour in [0, 1] too, at first grey: (B, V, 6).
    """

    template: Tensor

    def __init__(self, encoder: Encoder, template: Tensor, width: int = 256, reach: float = 0.4,
                 *, colours: bool = False):  # fmt: skip
        super().__init__()
        self.encoder = encoder
        self.reach = reach
        self.register_buffer("template", template.clone())
        self.stretch = near_zero(nn.Linear(width, 3))
        self.paint = near_zero(nn.Linear(width, template.numel())) if colours else None
        self.displace = head(width, template.numel())

    def forward(self, pictures: Tensor) -> Tensor:
        code = self.encoder(pictures)
        stretch = torch.exp(0.7 * torch.tanh(self.stretch(code).float()))[:, None]
        moved = self.reach * torch.tanh(self.displace(code).float() / self.reach)
        vertices = self.template * stretch + moved.unflatten(-1, self.template.shape)
        if self.paint is None:
            return vertices
        colours = torch.sigmoid(self.paint(code).float()).unflatten(-1, self.template.shape)
        return torch.cat([vertices, colours], -1)

    def draw(self, count: int) -> Tensor:
        """Random reconstructions: the template stretched, waved, turned about the vertical axis, centred; about as large as
        the objects of the inputs, because D teaches a2b how much of a picture they cover."""
        start = self.template
        stretched = start * torch.exp(0.4 * _between(start, count, 1, 3))
        wave = torch.sin(
            stretched @ (4 * _between(start, count, 3, 3)) / start.norm(dim=-1).max()
            + math.pi * _between(start, count, 1, 3)
        )
        half = math.pi / 2 * _between(start, count, 1)
        turn = rotation_matrix(torch.cat([torch.zeros_like(half), half.tan(), torch.zeros_like(half)], -1))
        moved = (stretched + 0.25 * _between(start, count, 1, 1) * wave) @ turn
        moved = moved - (moved.amax(1, keepdim=True) + moved.amin(1, keepdim=True)) / 2
        vertices = moved / moved.norm(dim=-1).amax(1)[:, None, None] * (0.9 + 0.05 * _between(start, count, 1, 1))
        if self.paint is None:
            return vertices
        return torch.cat([vertices, (0.5 + 0.5 * _between(start, count, 1, 3)).expand_as(vertices)], -1)


def _between(like: Tensor, *shape: int) -> Tensor:
    """Uniform in [-1, 1], on the device of `like`."""
    return 2 * torch.rand(shape, device=like.device) - 1


class RenderInverse(SoftModule):
    """Vertices (B, V, 3) of a mesh with fixed faces to grey pictures (B, 1, H, views * W), one view beside the other.

    Lambert shading of the vertices over black, 1 where they face the light (upper left of the first camera) and 1 -
    `shading` where they turn away; `shading` 0 gives silhouettes. With `colours`, vertices and colours (B, V, 6) give
    four channels: the silhouette, and the colours before black. The coverage's softness is the module's (of noise, its
    `scale` in pixels), and so is the depth steepness. Flat features (B, V * 3) give flat pictures, for `Shortcut` and
    `Residual`."""

    faces: Tensor
    matrix: Tensor
    position: Tensor
    light: Tensor

    def __init__(self, faces: Tensor, size: int, views: int = 2, coverage: Coverage = DEFAULT_COVERAGE,
                 shading: float = 0.55, *, colours: bool = False, backend: str = "auto"):  # fmt: skip
        super().__init__(coverage.relax, depth=Choice(DEPTH_STEEPNESS))
        # Without its softness, which the module holds
        self._coverage = coverage.with_relax(unit(coverage.relax))
        cameras = side_cameras(views)
        self.size, self.views, self.shading, self.backend = size, views, shading, backend
        self.colours = colours
        self.register_buffer("faces", faces.clone())
        self.register_buffer("matrix", cameras.matrix)
        self.register_buffer("position", cameras.position)
        self.register_buffer("light", nn.functional.normalize(torch.tensor([-0.4, 0.7, 0.6]), dim=0))

    def forward(self, surface: Tensor) -> Tensor:
        if surface.dim() == 2:
            return self(surface.unflatten(-1, (-1, 6 if self.colours else 3))).flatten(1)
        vertices = surface[..., :3]
        shade = torch.ones_like(vertices[..., :1])
        if self.colours:
            shade = torch.cat([shade, surface[..., 3:]], -1)
        elif self.shading:
            normals = Mesh(vertices, self.faces).vertex_normals()
            shade = 1 - self.shading / 2 * (1 - (normals * self.light).sum(-1, keepdim=True))
        rendered = render_attributes(
            vertices[:, None],
            self.faces,
            shade[:, None],
            Camera(self.matrix, self.position),
            size=(self.size, self.size),
            coverage=self._coverage.with_relax(self.relax),
            depth_steepness=cast(Choice, self.relaxation("depth")).steepness,
            deterministic=torch.are_deterministic_algorithms_enabled(),
            backend=self.backend,
        )
        return rendered.image.permute(0, 4, 2, 1, 3).flatten(3)


class MeshRegulariser(nn.Module):
    """What keeps a reconstructed mesh a surface: `laplacian_loss` of the displacement from the template and `flatten_loss` of
    the surface, with a weight each.

    Displacements, not positions: the Laplacian of a ball points inwards, and a large weight would shrink it away.
    `colour` is the weight of the mean squared difference between the colours of neighbours."""

    template: Tensor
    faces: Tensor
    edges: Tensor
    pairs: Tensor

    def __init__(self, mesh: Mesh, laplacian: float = 1.0, flatten: float = 0.01, colour: float = 0.0):
        super().__init__()
        self.laplacian, self.flatten, self.colour = laplacian, flatten, colour
        self.register_buffer("template", mesh.vertices.clone())
        self.register_buffer("faces", mesh.faces.clone())
        for name, found in Topology.of(mesh)._asdict().items():
            self.register_buffer(name, found)

    def forward(self, surface: Tensor) -> Tensor:
        vertices, topology = surface[..., :3], Topology(self.edges, self.pairs)
        bumps = laplacian_loss(Mesh(vertices - self.template, self.faces), topology)
        value = self.laplacian * bumps + self.flatten * flatten_loss(Mesh(vertices, self.faces), topology)
        if self.colour:
            a, b = self.edges.unbind(-1)
            value = value + self.colour * (surface[..., a, 3:] - surface[..., b, 3:]).square().mean()
        return value


def occupancy(mesh: Mesh, resolution: int = 32, extent: float = 1.0) -> Tensor:
    """Which centres of a grid over [-extent, extent]^3 lie inside a closed mesh: boolean (n, n, n) in x, y, z.

    By winding number: a ray along +z counts the faces it crosses, with the sign of their orientation, so that overlapping
    parts of a mesh make a union and back-to-front parts nothing. Cost n^2 F.

    >>> from algonet.render import icosphere
    >>> share = occupancy(icosphere(3)).float().mean()
    >>> round(float(share) * 8, 1)        # the ball's volume, 4/3 pi
    4.2
    """
    if mesh.vertices.dim() != 2:
        raise ValueError(f"occupancy: one mesh at a time, got vertices {tuple(mesh.vertices.shape)}.")
    corners = mesh.vertices.detach().double()[mesh.faces.long()]
    step = 2 * extent / resolution
    centres = -extent + step * (torch.arange(resolution, dtype=torch.float64, device=corners.device) + 0.5)
    # Moved off the grid a little, so that no ray meets an edge or a vertex of a regular mesh
    x = (centres + step * 1.37e-4)[:, None, None]
    y = (centres + step * 0.71e-4)[None, :, None]
    a, b, c = corners.unbind(1)

    def side(p: Tensor, q: Tensor) -> Tensor:
        return (q[:, 0] - p[:, 0]) * (y - p[:, 1]) - (q[:, 1] - p[:, 1]) * (x - p[:, 0])

    wa, wb, wc = side(b, c), side(c, a), side(a, b)
    hit = ((wa > 0) & (wb > 0) & (wc > 0)).to(torch.int8) - ((wa < 0) & (wb < 0) & (wc < 0)).to(torch.int8)
    ix, iy, face = hit.nonzero(as_tuple=True)
    u, v, w = wa[ix, iy, face], wb[ix, iy, face], wc[ix, iy, face]
    z = (u * a[face, 2] + v * b[face, 2] + w * c[face, 2]) / (u + v + w)
    # A face crossed at height z turns the winding number of every centre below it
    below = ((z + extent) / step + 0.5).floor().clamp(0, resolution).long()
    crossings = torch.zeros(resolution, resolution, resolution + 1, dtype=torch.float64, device=corners.device)
    crossings.index_put_((ix, iy, below), hit[ix, iy, face].double(), accumulate=True)
    winding = crossings.flip(-1).cumsum(-1).flip(-1)[..., 1:]
    return winding > 0.5


def iou(a: Tensor, b: Tensor) -> float:
    """Intersection over union of two occupancies; 1 if both are empty."""
    union = float((a | b).sum())
    return float((a & b).sum()) / union if union else 1.0


def chamfer(a: Mesh, b: Mesh, count: int = 2000, seed: int = 0) -> float:
    """Mean distance from points of each surface to the other's nearest, averaged both ways."""
    random = torch.Generator().manual_seed(seed)
    first = surface_points(Mesh(a.vertices.detach().cpu(), a.faces.cpu()), count, random)
    second = surface_points(Mesh(b.vertices.detach().cpu(), b.faces.cpu()), count, random)
    apart = torch.cdist(first, second)
    return float(apart.amin(0).mean() + apart.amin(1).mean()) / 2

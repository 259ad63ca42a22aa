"""Procedural data: seeded shapes, made when asked for, painted in style A.

Item i of a data set is a pure function of (seed, i): the same on every machine, in every order, in every process.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Generator as Random
from torch import Tensor
from torch.utils.data import Dataset

from algonet.render import Mesh, box, extrusion, icosphere, render_hard, torus

from .inverses import side_cameras


def uniform(random: Random, low: float, high: float, *shape: int) -> Tensor:
    return low + (high - low) * torch.rand(shape, generator=random)


def number(random: Random, low: float, high: float) -> float:
    return float(uniform(random, low, high))


def generator_of(seed: int, index: int) -> Random:
    """Randomness of its own for item `index`."""
    # An odd multiplier spreads consecutive indices over the generator's seeds
    return Random().manual_seed((seed * 0x9E3779B1 + index * 0x85EBCA6B + 0x2545F491) % 2**63)


def _box(random: Random) -> Mesh:
    return box(tuple(uniform(random, 0.25, 1.3, 3).tolist()), segments=6)  # pyright: ignore[reportArgumentType]


def _ellipsoid(random: Random) -> Mesh:
    ball = icosphere(3)
    return ball.replace(vertices=ball.vertices * uniform(random, 0.2, 0.75, 3))


def _torus(random: Random) -> Mesh:
    ring = torus(number(random, 0.4, 0.6), number(random, 0.15, 0.25), (32, 14))
    return ring.replace(vertices=ring.vertices * torch.tensor([1.0, number(random, 0.8, 1.6), 1.0]))


def _extrusion(random: Random) -> Mesh:
    corners = int(torch.randint(3, 9, (), generator=random))
    angle = torch.arange(corners * 2) * (math.pi / corners)
    radius = torch.where(torch.arange(corners * 2) % 2 == 0, number(random, 0.5, 0.7), number(random, 0.3, 0.6))
    outline = torch.stack([radius * angle.cos(), radius * angle.sin()], -1)
    upright = extrusion(outline, number(random, 0.2, 1.4)).subdivided().subdivided()
    x, y, z = upright.vertices.unbind(-1)
    return Mesh(torch.stack([x, z, -y], -1), upright.faces)


def _blend(random: Random) -> Mesh:
    """Between a rounded box and an ellipsoid, pinched or swollen along a wave."""
    ball = icosphere(3)
    direction = ball.vertices
    sides = uniform(random, 0.22, 0.7, 3)
    power = number(random, 2.0, 8.0)
    radius = ((direction / sides).abs() ** power).sum(-1) ** (-1 / power)
    wave = 1 + 0.25 * torch.sin(
        number(random, 2.0, 5.0) * direction @ uniform(random, -1.0, 1.0, 3) + number(random, 0, 6)
    )
    return ball.replace(vertices=direction * (radius * wave)[:, None])


KINDS: dict[str, Callable[[Random], Mesh]] = {
    "box": _box,
    "ellipsoid": _ellipsoid,
    "torus": _torus,
    "extrusion": _extrusion,
    "blend": _blend,
}


def random_shape(random: Random, kinds: tuple[str, ...] = tuple(KINDS)) -> Mesh:
    """A composed shape inside the unit ball, turned about the vertical axis: one primitive, or two joined."""
    chosen = kinds[int(torch.randint(len(kinds), (), generator=random))]
    mesh = KINDS[chosen](random)
    if float(torch.rand((), generator=random)) < 0.4:
        other = KINDS[kinds[int(torch.randint(len(kinds), (), generator=random))]](random)
        moved = other.vertices * number(random, 0.4, 0.8) + uniform(random, -0.35, 0.35, 3)
        mesh = Mesh(torch.cat([mesh.vertices, moved]), torch.cat([mesh.faces, other.faces + len(mesh.vertices)]))
    angle = number(random, 0.0, 2 * math.pi)
    turn = torch.tensor([[math.cos(angle), 0, math.sin(angle)], [0, 1, 0], [-math.sin(angle), 0, math.cos(angle)]])
    mesh = Mesh(mesh.vertices @ turn.T, mesh.faces).normalised(0.9)
    return Mesh(mesh.vertices, mesh.faces)


def hard_geometry(mesh: Mesh, size: int, views: int) -> tuple[Tensor, Tensor]:
    """Position and face normal (views, H, W, 6) of what each pixel sees, and the silhouette (views, H, W)."""
    corners = mesh.vertices[mesh.faces.reshape(-1)]
    looks = torch.cat([corners, mesh.face_normals().repeat_interleave(3, 0)], -1)
    rows = torch.arange(len(corners)).reshape(-1, 3)
    seen = render_hard(mesh.vertices, mesh.faces, looks, side_cameras(views), size=(size, size), attribute_faces=rows)
    return seen.image, seen.silhouette


def painted(geometry: Tensor, silhouette: Tensor, random: Random, noise: float) -> Tensor:
    """Style A (3, H, views * W): a solid texture of warm colours lit from a random side, before a cool backdrop, with noise.

    Object and backdrop are about equally bright: their brightness does not tell them apart, colour and texture do.
    """
    views, height, width = silhouette.shape
    place, normal = geometry[..., :3], geometry[..., 3:]
    warm = torch.stack([uniform(random, 0.65, 1.0, 2), uniform(random, 0.2, 0.6, 2), uniform(random, 0.0, 0.35, 2)], -1)
    stripes = torch.sin(place @ (uniform(random, -1, 1, 3) * number(random, 4, 14)) + number(random, 0, 6))
    blend = torch.sigmoid(number(random, 2, 8) * stripes)[..., None]
    light = torch.nn.functional.normalize(uniform(random, -0.7, 0.7, 3) + torch.tensor([0.0, 1.0, 0.6]), dim=0)
    shade = 0.5 + 0.5 * (normal @ light).clamp_min(0)[..., None]
    colour = (warm[0] * blend + warm[1] * (1 - blend)) * shade
    cool = torch.stack([uniform(random, 0.0, 0.4, 2), uniform(random, 0.2, 0.7, 2), uniform(random, 0.45, 1.0, 2)], -1)
    across = torch.linspace(-1, 1, width).expand(views, height, width)
    down = torch.linspace(-1, 1, height)[:, None].expand(views, height, width)
    ramp = torch.sigmoid(across * number(random, -2, 2) + down * number(random, -2, 2))[..., None]
    backdrop = cool[0] * ramp + cool[1] * (1 - ramp)
    picture = torch.where(silhouette[..., None] > 0, colour, backdrop)
    picture = picture + noise * torch.randn(picture.shape, generator=random)
    return picture.clamp(0, 1).permute(3, 1, 0, 2).flatten(2)


class Shapes(Dataset):
    """Pictures `a` of random shapes, and their true `points` and `vertices` for those who may see them (evaluation, bound).

    Items are dictionaries; what was made is kept in memory. `split` "train" or "test" have different seeds.
    """

    def __init__(self, count: int, size: int, views: int, seed: int, *, split: str = "train", noise: float = 0.03,
                 kinds: tuple[str, ...] = tuple(KINDS), points: int = 512):  # fmt: skip
        unknown = [kind for kind in kinds if kind not in KINDS]
        if unknown:
            raise ValueError(f"Shapes: unknown kind {unknown[0]!r}; choose from {', '.join(KINDS)}.")
        self.count, self.size, self.views, self.noise, self.kinds = count, size, views, noise, kinds
        self.points = points
        self.seed = 2 * seed + (split == "test")
        self._made: dict[int, dict[str, Tensor]] = {}

    def __len__(self) -> int:
        return self.count

    def mesh(self, index: int) -> Mesh:
        """The true shape of item `index`."""
        return random_shape(generator_of(self.seed, index), self.kinds)

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        if not 0 <= index < self.count:
            raise IndexError(f"Shapes: item {index} of {self.count}.")
        if index not in self._made:
            random = generator_of(self.seed, index)
            mesh = random_shape(random, self.kinds)
            geometry, silhouette = hard_geometry(mesh, self.size, self.views)
            picture = painted(geometry, silhouette, random, self.noise)
            self._made[index] = {"a": picture, "points": surface_points(mesh, self.points, random)}
        return self._made[index]


def surface_points(mesh: Mesh, count: int, random: Random) -> Tensor:
    """Points (count, 3) drawn evenly over the surface."""
    corners = mesh.vertices[mesh.faces.long()]
    area = torch.linalg.cross(corners[:, 1] - corners[:, 0], corners[:, 2] - corners[:, 0]).norm(dim=-1)
    faces = torch.multinomial(area + 1e-12, count, replacement=True, generator=random)
    u, v = torch.rand(2, count, 1, generator=random)
    root = u.sqrt()
    a, b, c = corners[faces].unbind(1)
    return (1 - root) * a + root * (1 - v) * b + root * v * c

"""Remeshing: edges split, collapsed and flipped until they are about as long as wanted, on any device.

Each pass works on many edges at once. Splits never conflict. Collapses and flips are done for a set of edges whose faces do not
touch: of the edges that ask, each takes a rank, and an edge goes ahead if none of lower rank asks around it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import normalize

from algonet.core.checks import check_integer, check_spec
from algonet.core.memory import UNASKED, check_memory
from algonet.render import Mesh
from algonet.render.meshes import check_mesh
from algonet.render.vectors import face_areas

#: An edge is split from 4/3 of the wanted length on and collapsed below 4/5: either then comes nearer to it (Botsch, Kobbelt).
LONG, SHORT = 4 / 3, 4 / 5
#: Edges grow up to so many times as long where the surface is flat.
FLAT = 2.0
#: No operation may turn a face's normal by more than 60 degrees.
LEAST_COSINE = 0.5
#: Edges between faces that meet at more than 37 degrees are kept: flipping them would cut the ridge.
FLAT_COSINE = 0.8
#: The area of an equilateral triangle of side 1.
EQUILATERAL = math.sqrt(3) / 4
#: What becomes of a face whose first 0, 1, 2 or 3 edges are cut, as rows of (a, b, c, ab, bc, ca); last, of one with two cuts
#: whose diagonal from ab is shorter.
PIECES = (
    [[0, 1, 2]],
    [[0, 3, 2], [3, 1, 2]],
    [[3, 1, 4], [0, 3, 4], [0, 4, 2]],
    [[0, 3, 5], [3, 1, 4], [5, 4, 2], [3, 4, 5]],
    [[3, 1, 4], [0, 3, 2], [3, 4, 2]],
)
#: What a face takes while edges are sorted: corners, edges, their order and neighbours in 64 bits, and half a vertex.
FACE_BYTES = 400


@dataclass(frozen=True)
class Remesh:
    """How finely `fit_mesh` meshes: edges about `edge` times the noise's scale long, and at least 1.25 pixels.

    Every 20 steps, edges are split, collapsed and flipped. Where the surface is flat they may grow up to twice as long. At most
    `max_faces` faces are aimed at: edges stay longer if there would be more.
    """

    edge: float = 2.0
    max_faces: int = 60_000

    def __post_init__(self):
        if not 0 < self.edge < math.inf:
            raise ValueError(f"Remesh: `edge` must be positive and finite, got {self.edge!r}.")
        check_integer("Remesh", "max_faces", self.max_faces, 4)


def remesh(
    vertices: Tensor, faces: Tensor, length: float | Tensor, data: Tensor | None = None, *, passes: int = 3
) -> tuple[Tensor, Tensor, Tensor]:
    """A mesh of the same surface with edges about `length` long (one, or one per vertex): `(vertices, faces, data)`.

    `data` (V, C) is whatever belongs to the vertices (colours, moments of an optimiser): it is interpolated along. Closed
    manifold meshes stay so: collapses keep the link condition, and no face's normal turns by more than 60 degrees. Boundaries
    of open meshes are split but not collapsed. Not differentiable. Cost: some sorts of the edges per pass.

    >>> from algonet.render import icosphere
    >>> ball = icosphere(2)
    >>> vertices, faces, _ = remesh(ball.vertices, ball.faces, 0.1)
    >>> a, b = vertices[Mesh(vertices, faces).edges()].unbind(1)
    >>> len(faces) > 1000, 0.08 < float((a - b).norm(dim=-1).mean()) < 0.12
    (True, True)
    """
    check_mesh("remesh", vertices, faces)
    check_spec("remesh", "vertices", vertices, "V 3", hint="; one mesh at a time")
    lengths = torch.as_tensor(length, dtype=vertices.dtype, device=vertices.device).expand(len(vertices))
    _check_growth(vertices, faces, lengths, passes)
    rest = vertices.new_zeros(len(vertices), 0) if data is None else data.to(vertices)
    with torch.no_grad():
        # Positions first, wanted length last: all of it is interpolated alike
        table, faces = torch.cat([vertices, rest, lengths[:, None]], -1), faces.long()
        for _ in range(passes):
            count = len(faces)
            table, faces = _split(table, faces)
            grown = len(faces) > count
            for _ in range(4):
                table, faces, collapsed = _collapse(table, faces)
                if not collapsed:
                    break
            for _ in range(4):
                faces, flipped = _flip(table, faces)
                if not flipped:
                    break
            table = _relaxed(table, faces)
            if not grown and len(faces) == count:
                break
    return table[:, :3].contiguous(), faces, table[:, 3:-1].contiguous()


def _check_growth(vertices: Tensor, faces: Tensor, lengths: Tensor, passes: int) -> None:
    """Raise if edges of that length would be more than fit into memory; a pass cuts a face into four at most."""
    if not len(faces) * 4.0**passes * FACE_BYTES > UNASKED:
        return
    shortest = max(float(lengths.min()), 1e-30)
    wanted = surface(vertices, faces) / (EQUILATERAL * shortest**2)
    count = int(min(wanted + len(faces), len(faces) * 4.0 ** min(passes, 30)))
    check_memory("remesh", f"edges of {shortest:g}, some {count} faces,", count * FACE_BYTES, vertices.device)


def surface(vertices: Tensor, faces: Tensor) -> float:
    """The area of a mesh."""
    return float(face_areas(vertices.detach(), faces)[0].norm(dim=-1).sum()) / 2


def detail_lengths(vertices: Tensor, faces: Tensor, length: float) -> Tensor:
    """Wanted length of edges at each vertex: `length` where the surface bends, up to `FLAT` times that where it does not."""
    normals = Mesh(vertices, faces).face_normals()
    mean = Mesh(vertices, faces).vertex_normals()
    cosines = (normals[:, None] * mean[faces]).sum(-1)
    least = torch.ones_like(vertices[:, 0]).scatter_reduce(0, faces.flatten(), cosines.flatten(), "amin")
    # A face of side l on a surface of radius r tilts by about l / (2 r); a tilt of 0.1 is what the eye begins to see
    tilt = torch.acos(least.clamp(-1, 1))
    wanted = length * (0.1 / tilt.clamp_min(1e-4)).clamp(1, FLAT)
    for _ in range(2):
        lowest = wanted[faces].amin(1, keepdim=True).expand(-1, 3)
        around = torch.full_like(wanted, math.inf).scatter_reduce(0, faces.flatten(), lowest.flatten(), "amin")
        wanted = torch.minimum(wanted, 1.3 * around)
    return wanted.clamp(length, FLAT * length)


def proper(faces: Tensor) -> Tensor:
    """Those of the faces (F, 3) whose corners differ."""
    return faces[(faces != faces.roll(1, 1)).all(1)]


class Edges(NamedTuple):
    """Each edge once, in the order of their `keys` (E,), lower end * vertices + higher: `ends` (E, 2) as its first face runs
    along it, `opposite` (E, 2) the third corners of its first two faces, `owners` (E, 2) these faces, and `count` (E,) how
    many faces it has."""

    keys: Tensor
    ends: Tensor
    opposite: Tensor
    owners: Tensor
    count: Tensor
    of_face: Tensor


def find_edges(faces: Tensor, vertices: int) -> Edges:
    """The edges of a mesh with this many vertices; `of_face` (F, 3) are the edges (0, 1), (1, 2), (2, 0) of each face."""
    ends = torch.stack([faces, faces.roll(-1, 1)], -1).flatten(0, 1)
    keys, index, count = (ends.amin(1) * vertices + ends.amax(1)).unique(return_inverse=True, return_counts=True)
    order = index.argsort(stable=True)
    first = count.cumsum(0) - count
    halves = order[torch.stack([first, first + (count > 1)], -1)]
    opposite = faces.roll(1, 1).flatten()[halves]
    return Edges(keys, ends[halves[:, 0]], opposite, halves // 3, count, index.reshape(-1, 3))


def spread(counts: Tensor) -> tuple[Tensor, Tensor]:
    """Each index as many times as its count says, and which time it is, from 0 on."""
    index = torch.repeat_interleave(counts)
    return index, torch.arange(len(index), device=counts.device) - (counts.cumsum(0) - counts)[index]


def means(values: Tensor, index: Tensor, count: int) -> Tensor:
    """The mean (count, C) of the rows of `values` (N, C) that belong to each index; 0 where none does."""
    number = torch.bincount(index, minlength=count).clamp_min(1)[:, None]
    return values.new_zeros(count, values.shape[-1]).index_add(0, index, values) / number


def _lengths(table: Tensor, ends: Tensor) -> tuple[Tensor, Tensor]:
    """How long edges are, and should be."""
    a, b = table[ends[:, 0]], table[ends[:, 1]]
    return (a[:, :3] - b[:, :3]).norm(dim=-1), (a[:, -1] + b[:, -1]) / 2


def _split(table: Tensor, faces: Tensor) -> tuple[Tensor, Tensor]:
    """Long edges cut in the middle; a face becomes two, three or four."""
    edges = find_edges(faces, len(table))
    length, wanted = _lengths(table, edges.ends)
    long = length > LONG * wanted
    if not bool(long.any()):
        return table, faces
    middles = table[edges.ends[long]].mean(1)
    number = torch.full_like(edges.count, -1)
    number[long] = len(table) + torch.arange(len(middles), device=faces.device)
    table = torch.cat([table, middles])
    cut = number[edges.of_face]
    cuts = (cut >= 0).sum(1)
    # One cut: its edge comes first; two: the edge that is not cut comes last
    first = torch.where(cuts == 1, (cut >= 0).int().argmax(1), (cut < 0).int().argmax(1) + 1)
    order = (first[:, None] + torch.arange(3, device=faces.device)) % 3
    corners = torch.cat([faces.gather(1, order), cut.gather(1, order)], 1)
    a, ab, c, bc = table[corners[:, [0, 3, 2, 4]], :3].unbind(1)
    shorter = (ab - c).norm(dim=-1) <= (a - bc).norm(dim=-1)
    kind = torch.where((cuts == 2) & shorter, 4, cuts)
    return table, torch.cat([corners[kind == i][:, pieces].flatten(0, 1) for i, pieces in enumerate(PIECES)])


def _collapse(table: Tensor, faces: Tensor) -> tuple[Tensor, Tensor, bool]:
    """Short edges shrunk to their middles, as many as do not touch, where the surface stays a surface."""
    edges = find_edges(faces, len(table))
    length, wanted = _lengths(table, edges.ends)
    border = torch.zeros(len(table), dtype=torch.bool, device=faces.device)
    border[edges.ends[edges.count != 2]] = True
    asks = (length < SHORT * wanted) & (edges.count == 2) & ~border[edges.ends].any(1)
    asks = asks.nonzero()[:, 0]
    asks = asks[_may_collapse(table, faces, edges, asks)]
    if not len(asks):
        return table, faces, False
    # The shortest go first
    chosen = asks[_apart(edges.ends[asks], length[asks].argsort().argsort(), faces, len(table))]
    kept, gone = edges.ends[chosen].unbind(1)
    table = table.clone()
    table[kept] = (table[kept] + table[gone]) / 2
    target = torch.arange(len(table), device=faces.device)
    target[gone] = kept
    faces = proper(target[faces])
    used = torch.zeros(len(table), dtype=torch.bool, device=faces.device)
    used[faces.flatten()] = True
    return table[used], (used.cumsum(0) - 1)[faces], True


def _may_collapse(table: Tensor, faces: Tensor, edges: Edges, asks: Tensor) -> Tensor:
    """Which of the edges `asks` can go: two common neighbours only, no face turned over, no edge made too long."""
    ends, middle = edges.ends[asks], table[edges.ends[asks]].mean(1)
    # All faces around one end of each edge, then all around the other; `row` is the end, `edge` the edge of each
    order, number = faces.flatten().argsort(stable=True) // 3, torch.bincount(faces.flatten(), minlength=len(table))
    own, partner = ends.T.flatten(), ends.flip(1).T.flatten()
    row, offset = spread(number[own])
    face, edge = faces[order[(number.cumsum(0) - number)[own][row] + offset]], row % len(asks)
    at, partner = face == own[row, None], partner[row]
    # The next corner of each face around a vertex runs through all its neighbours
    following = (face * at.roll(1, 1)).sum(1)
    common = edge[_joined(edges, following, partner, len(table)) & (following != partner)]
    old = table[face][..., :3]
    new = torch.where(at[..., None], middle[edge, None, :3], old)
    before, after = _area_vectors(old), _area_vectors(new)
    turned = (before * after).sum(-1) < LEAST_COSINE * before.norm(dim=-1) * after.norm(dim=-1)
    stretched = ((new - middle[edge, None, :3]).norm(dim=-1) > LONG * middle[edge, -1:]).any(1)
    bad = edge[(turned | stretched) & (face != partner[:, None]).all(1)]
    # Two common neighbours, seen from either end
    linked = torch.bincount(common, minlength=len(asks)) == 4
    return linked & (torch.bincount(bad, minlength=len(asks)) == 0) & (number[edges.opposite[asks]] > 3).all(1)


def _joined(edges: Edges, a: Tensor, b: Tensor, count: int) -> Tensor:
    """Whether there is an edge between vertices."""
    key = torch.minimum(a, b) * count + torch.maximum(a, b)
    return edges.keys[torch.searchsorted(edges.keys, key).clamp_max(len(edges.keys) - 1)] == key


def _flip(table: Tensor, faces: Tensor) -> tuple[Tensor, bool]:
    """Edges turned to the other diagonal where that makes the smallest angles larger (Delaunay), as many as do not touch."""
    count, position = len(table), table[:, :3]
    edges = find_edges(faces, count)
    inner = (edges.count == 2).nonzero()[:, 0]
    (a, b), (c, d) = edges.ends[inner].unbind(1), edges.opposite[inner].unbind(1)
    p, q, r, s = position[a], position[b], position[c], position[d]
    # The angles that face an edge add up to more than 180 degrees: it is the wrong diagonal
    asks = _angle(r, p, q) + _angle(s, p, q) > math.pi + 0.05
    asks &= ~_joined(edges, c, d, count) & (c != d)
    first, second = edges.owners[inner].unbind(1)
    old, other = (normalize(_area_vectors(position[faces[own]]), dim=-1) for own in (first, second))
    asks &= (old * other).sum(-1) > FLAT_COSINE
    # First face (a, b, c), second (b, a, d): they become (a, d, c) and (d, b, c)
    new = torch.stack([torch.stack([a, d, c], 1), torch.stack([d, b, c], 1)], 1)
    made = normalize(_area_vectors(position[new]), dim=-1)
    mean = normalize(old + other, dim=-1)[:, None]
    asks &= ((made * mean).sum(-1) > LEAST_COSINE).all(1)
    asks = asks.nonzero()[:, 0]
    if not len(asks):
        return faces, False
    touched, rank = torch.stack([a, b, c, d], 1)[asks], torch.arange(len(asks), device=faces.device)
    chosen = asks[(_lowest(touched, rank, count)[touched] == rank[:, None]).all(1)]
    faces = faces.clone()
    faces[first[chosen]], faces[second[chosen]] = new[chosen, 0], new[chosen, 1]
    return faces, True


def _relaxed(table: Tensor, faces: Tensor) -> Tensor:
    """Vertices moved half-way to the mean of their neighbours, along the surface only; the border stays."""
    edges = find_edges(faces, len(table))
    position = table[:, :3]
    way = means(position[edges.ends.flip(1).flatten()], edges.ends.flatten(), len(table)) - position
    normals = Mesh(position, faces).vertex_normals()
    way = way - (way * normals).sum(-1, keepdim=True) * normals
    way[edges.ends[edges.count != 2]] = 0
    return torch.cat([position + 0.5 * way, table[:, 3:]], -1)


def _apart(ends: Tensor, rank: Tensor, faces: Tensor, count: int) -> Tensor:
    """Which of the ranked edges have the lowest rank among all that touch a face around them."""
    lowest = _lowest(ends, rank, count)
    of_face = lowest[faces].amin(1, keepdim=True).expand(-1, 3)
    lowest = lowest.scatter_reduce(0, faces.flatten(), of_face.flatten(), "amin")
    return (lowest[ends] == rank[:, None]).all(1)


def _lowest(touched: Tensor, rank: Tensor, count: int) -> Tensor:
    """The lowest rank (E,) that touches each of `count` vertices, the numbers of which are `touched` (E, k)."""
    own = rank[:, None].expand_as(touched)
    return touched.new_full((count,), len(rank)).scatter_reduce(0, touched.flatten(), own.flatten(), "amin")


def _area_vectors(corners: Tensor) -> Tensor:
    """Normals as long as twice the area, of corners (*, 3, 3)."""
    a, b, c = corners.unbind(-2)
    return torch.linalg.cross(b - a, c - a)


def _angle(at: Tensor, p: Tensor, q: Tensor) -> Tensor:
    u, v = p - at, q - at
    return torch.atan2(torch.linalg.cross(u, v).norm(dim=-1), (u * v).sum(-1))

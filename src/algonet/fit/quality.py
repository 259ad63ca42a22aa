"""What is wrong with a mesh: faces turned inside out, and faces that cut through each other."""

from __future__ import annotations

import itertools
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad

from algonet.core.checks import check_spec
from algonet.render import Mesh
from algonet.render.meshes import check_mesh_given

from .remesh import find_edges, spread


class MeshQuality(NamedTuple):
    """How many of a mesh's `faces` are `inverted` or `intersecting` others, how many edges are `open` (one face) or shared by
    more than two faces (`crowded`), and the `share` of faces that are inverted or intersecting."""

    faces: int
    inverted: int
    intersecting: int
    open: int
    crowded: int
    share: float


def mesh_quality(mesh: Mesh) -> MeshQuality:
    """Count a mesh's faults. A face is inverted if its normal points against the mean normal around its corners.

    Two faces intersect if an edge of one passes through the other; neighbours are tested too, except along the edge they
    share. O(faces) by a grid, for faces of like size.

    >>> from algonet.render import icosphere
    >>> mesh_quality(icosphere(2))
    MeshQuality(faces=320, inverted=0, intersecting=0, open=0, crowded=0, share=0.0)
    """
    check_mesh_given("mesh_quality", mesh)
    check_spec("mesh_quality", "vertices", mesh.vertices, "V 3", hint="; one mesh at a time")
    with torch.no_grad():
        vertices, faces = mesh.vertices.detach().double(), mesh.faces.long()
        plain = Mesh(vertices, faces)
        around = plain.vertex_normals()[faces].sum(1)
        inverted = (plain.face_normals() * around).sum(-1) < 0
        crossing = crossing_faces(vertices, faces)
        count = find_edges(faces, len(vertices)).count
    return MeshQuality(
        faces=len(faces),
        inverted=int(inverted.sum()),
        intersecting=int(crossing.sum()),
        open=int((count == 1).sum()),
        crowded=int((count > 2).sum()),
        share=int((inverted | crossing).sum()) / len(faces),
    )


@torch.no_grad()
def crossing_faces(vertices: Tensor, faces: Tensor) -> Tensor:
    """Which faces (F,) cut through another one."""
    vertices, faces = vertices.detach().double(), faces.long()
    crossing = torch.zeros(len(faces), dtype=torch.bool, device=faces.device)
    for first, second in _close_pairs(vertices, faces):
        hit = _crosses(vertices, faces[first], faces[second]) | _crosses(vertices, faces[second], faces[first])
        crossing[first[hit]] = True
        crossing[second[hit]] = True
    return crossing


@torch.no_grad()
def roll_back(vertices: Tensor, safe: Tensor, faces: Tensor, rounds: int = 8) -> tuple[Tensor, Tensor]:
    """Vertices put back to where they were `safe`, around every face that cuts through another: (vertices, which moved).

    The region grows by a ring of faces per round, until nothing intersects any more that did not at `safe`.
    """
    vertices = vertices.detach().clone()
    back = torch.zeros(len(vertices), dtype=torch.bool, device=vertices.device)
    for _ in range(rounds):
        crossing = crossing_faces(vertices, faces)
        if not bool(crossing.any()):
            break
        back[faces[crossing].flatten()] = True
        back[faces[back[faces].any(1)].flatten()] = True
        vertices[back] = safe[back]
    return vertices, back


def _close_pairs(vertices: Tensor, faces: Tensor, chunk: int = 2**21) -> list[tuple[Tensor, Tensor]]:
    """Pairs of faces whose boxes overlap, each once, in chunks."""
    corners = vertices[faces]
    low, high = corners.amin(1), corners.amax(1)
    extent = (high - low).amax(1)
    # Most faces then lie in at most eight cells
    cell = 2 * extent.sort().values[len(extent) * 9 // 10]
    cell = torch.maximum(cell, (high.amax(0) - low.amin(0)).amax() / 512).clamp_min(1e-12)
    first, last = ((ends - low.amin(0)) / cell for ends in (low, high))
    first, spans = first.long(), last.long() - first.long() + 1
    owner, rest = spread(spans.prod(1))
    strides = pad(spans[:, :2].cumprod(1), (1, 0), value=1)
    place = first[owner] + rest[:, None] // strides[owner] % spans[owner]
    key = (place[:, 0] * 1024 + place[:, 1]) * 1024 + place[:, 2]
    key, order = key.sort(stable=True)
    owner, place = owner[order], place[order]
    # Each entry is paired with those after it in its cell
    later = torch.searchsorted(key, key, right=True) - torch.arange(len(key), device=key.device) - 1
    total, pairs = later.cumsum(0), []
    cuts = torch.arange(0, int(total[-1]), chunk, device=key.device)[1:]
    for begin, end in itertools.pairwise([0, *torch.searchsorted(total, cuts).tolist(), len(key)]):
        which, after = spread(later[begin:end])
        which = which + begin
        one, two = owner[which], owner[which + after + 1]
        near = ((low[one] <= high[two]) & (low[two] <= high[one])).all(1)
        # A pair that meets in several cells counts in the first cell of its common box
        corner = torch.maximum(first[one], first[two])
        near &= (corner == place[which]).all(1)
        pairs.append((one[near], two[near]))
    return pairs


def _crosses(vertices: Tensor, faces: Tensor, others: Tensor) -> Tensor:
    """Whether an edge of each face passes through the inside of the other face; edges that touch its corners do not count."""
    a, b, c = vertices[others].unbind(1)
    found = torch.zeros(len(faces), dtype=torch.bool, device=faces.device)
    for i in range(3):
        start, stop = faces[:, i], faces[:, (i + 1) % 3]
        apart = ((start[:, None] != others) & (stop[:, None] != others)).all(1)
        p, q = vertices[start], vertices[stop]
        sides = _volume(a, b, c, p) * _volume(a, b, c, q) < 0
        around = torch.stack([_volume(p, q, a, b), _volume(p, q, b, c), _volume(p, q, c, a)])
        inside = (around > 0).all(0) | (around < 0).all(0)
        found |= apart & sides & inside
    return found


def _volume(a: Tensor, b: Tensor, c: Tensor, d: Tensor) -> Tensor:
    return (torch.linalg.cross(b - a, c - a) * (d - a)).sum(-1)

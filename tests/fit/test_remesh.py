"""Remeshing and the count of faults: meshes stay closed surfaces, whatever they are remeshed to."""

from __future__ import annotations

import pytest
import torch

from algonet.fit.quality import roll_back
from algonet.fit.remesh import _collapse, _flip, _split, detail_lengths, find_edges
from algonet.render import Mesh, Remesh, box, icosphere, mesh_quality, remesh, torus
from fit.fitting_scenes import horned_ball


def _euler(vertices: torch.Tensor, faces: torch.Tensor) -> int:
    return len(vertices) - len(find_edges(faces, len(vertices)).ends) + len(faces)


def _check_closed(vertices: torch.Tensor, faces: torch.Tensor, euler: int) -> None:
    """Two faces per edge, that run along it in opposite directions, and as many handles as before."""
    assert bool((find_edges(faces, len(vertices)).count == 2).all())
    ends = torch.cat([faces[:, [0, 1]], faces[:, [1, 2]], faces[:, [2, 0]]])
    assert len((ends[:, 0] * len(vertices) + ends[:, 1]).unique()) == len(ends)
    assert _euler(vertices, faces) == euler


def _mean_edge(vertices: torch.Tensor, faces: torch.Tensor) -> float:
    a, b = vertices[find_edges(faces, len(vertices)).ends].unbind(1)
    return float((a - b).norm(dim=-1).mean())


@pytest.mark.parametrize("length", [0.06, 0.12, 0.25])
@pytest.mark.parametrize(("mesh", "euler"), [(icosphere(3), 2), (torus(segments=(24, 12)), 0), (horned_ball(3), 2)])
def test_closed_meshes_stay_closed(mesh: Mesh, euler: int, length: float) -> None:
    vertices, faces, _ = remesh(mesh.vertices, mesh.faces, length)
    for _ in range(2):
        vertices, faces, _ = remesh(vertices, faces, length)
    _check_closed(vertices, faces, euler)
    assert 0.75 * length < _mean_edge(vertices, faces) < 1.25 * length
    assert mesh_quality(Mesh(vertices, faces)).share == 0


def test_crumpled_meshes_stay_closed() -> None:
    ball = icosphere(3)
    noise = 0.04 * torch.randn(ball.vertices.shape, generator=torch.Generator().manual_seed(0))
    vertices, faces = ball.vertices + noise, ball.faces
    for length in (0.1, 0.2, 0.07):
        vertices, faces, _ = remesh(vertices, faces, length)
        _check_closed(vertices, faces, 2)


def test_split_keeps_the_surface_and_data() -> None:
    mesh = box((1.0, 0.7, 0.5))
    table = torch.cat([mesh.vertices, mesh.vertices @ torch.tensor([[1.0], [2.0], [3.0]]), torch.full((8, 1), 0.2)], -1)
    for _ in range(3):
        table, faces = _split(table, mesh.faces)
        mesh = Mesh(table[:, :3], faces)
        a, b, c = table[faces][..., :3].unbind(1)
        volume = float((torch.linalg.cross(a, b) * c).sum() / 6)
        assert volume == pytest.approx(0.35, rel=1e-5)
        # Linear data stays linear in the position
        assert torch.allclose(table[:, 3:4], table[:, :3] @ torch.tensor([[1.0], [2.0], [3.0]]), atol=1e-5)
    a, b = table[mesh.edges()].unbind(1)
    assert float((a - b)[:, :3].norm(dim=-1).max()) <= 0.2 * 4 / 3 + 1e-6


def test_collapse_keeps_the_link_condition() -> None:
    """Two tetrahedra glued at a face: collapsing an edge of the shared triangle, all that is short, would pinch it."""
    vertices = torch.tensor([[0.0, 0, 0], [1, 0, 0], [0.5, 0.8, 0], [0.5, 0.3, 3.0], [0.5, 0.3, -3.0]])
    faces = torch.tensor([[0, 1, 3], [1, 2, 3], [2, 0, 3], [1, 0, 4], [2, 1, 4], [0, 2, 4]])
    table = torch.cat([vertices, torch.full((5, 1), 2.0)], -1)
    _, after, collapsed = _collapse(table, faces)
    assert not collapsed
    assert torch.equal(after, faces)


def test_flip_takes_the_better_diagonal() -> None:
    square = torch.tensor([[0.0, 0, 0], [2.0, 0, 0], [1.0, 0.4, 0], [1.0, -0.4, 0]])
    faces = torch.tensor([[0, 1, 2], [1, 0, 3]])
    flipped, changed = _flip(torch.cat([square, torch.ones(4, 1)], -1), faces)
    assert changed
    assert {tuple(sorted(f)) for f in flipped.tolist()} == {(0, 2, 3), (1, 2, 3)}
    assert bool((Mesh(square, flipped).face_normals()[:, 2] > 0.99).all())
    assert not _flip(torch.cat([square, torch.ones(4, 1)], -1), flipped)[1]


def test_flat_places_get_longer_edges() -> None:
    mesh = box((1.0, 1.0, 1.0), segments=12)
    lengths = detail_lengths(mesh.vertices, mesh.faces, 0.1)
    middle = mesh.vertices.abs().sort(-1).values[:, 1] < 0.2
    edge = mesh.vertices.abs().sort(-1).values[:, 1] > 0.45
    assert float(lengths[middle].min()) == pytest.approx(0.2)
    assert float(lengths[edge].max()) == pytest.approx(0.1)


def test_quality_counts_faults() -> None:
    ball = icosphere(2)
    assert mesh_quality(ball).share == 0
    two = Mesh(torch.cat([ball.vertices, ball.vertices + 0.7]), torch.cat([ball.faces, ball.faces + 162]))
    found = mesh_quality(two)
    assert found.inverted == 0
    assert 20 < found.intersecting < 200
    pushed = ball.vertices.clone()
    pushed[0] *= -1.5
    assert mesh_quality(ball.replace(vertices=pushed)).intersecting >= 6
    # A vertex pulled over the next one folds the face between them
    pushed[0] = ball.vertices[0] + 1.5 * (ball.vertices[ball.faces[ball.faces[:, 0] == 0][0, 1]] - ball.vertices[0])
    assert mesh_quality(ball.replace(vertices=pushed)).inverted > 0
    opened = mesh_quality(Mesh(ball.vertices, ball.faces[1:]))
    assert (opened.open, opened.crowded) == (3, 0)


def test_quality_agrees_with_all_pairs() -> None:
    from algonet.fit.quality import _crosses

    ball = icosphere(1)
    noise = 0.3 * torch.randn(42, 3, generator=torch.Generator().manual_seed(2))
    vertices, faces = (ball.vertices + noise).double(), ball.faces
    i, j = torch.triu_indices(80, 80, 1)
    hit = _crosses(vertices, faces[i], faces[j]) | _crosses(vertices, faces[j], faces[i])
    crossing = torch.zeros(80, dtype=torch.bool)
    crossing[i[hit]] = True
    crossing[j[hit]] = True
    assert int(crossing.sum()) > 5
    assert mesh_quality(Mesh(vertices, faces)).intersecting == int(crossing.sum())


def test_parts_that_ran_into_each_other_are_taken_back() -> None:
    ball = icosphere(2, 0.5)
    faces = torch.cat([ball.faces, ball.faces + 162])
    apart = torch.cat([ball.vertices - torch.tensor([0.55, 0.0, 0.0]), ball.vertices + torch.tensor([0.55, 0.0, 0.0])])
    moved = torch.cat([apart[:162] + torch.tensor([0.1, 0.0, 0.0]), apart[162:] + torch.tensor([-0.05, 0.02, 0.0])])
    assert mesh_quality(Mesh(moved, faces)).intersecting > 0
    parted, back = roll_back(moved, apart, faces)
    assert mesh_quality(Mesh(parted, faces)).intersecting == 0
    assert torch.equal(parted[back], apart[back])
    assert torch.equal(parted[~back], moved[~back])
    # Only where they met
    assert 0 < int(back.sum()) < 200
    assert bool((apart[back, 0].abs() < 0.6).all())


def test_errors() -> None:
    ball = icosphere(0)
    with pytest.raises(ValueError, match="one mesh at a time"):
        remesh(torch.zeros(2, 12, 3), ball.faces, 0.1)
    with pytest.raises(ValueError, match="`edge` must be positive"):
        Remesh(edge=0.0)
    with pytest.raises(ValueError, match="`max_faces` must be an integer from 4 on"):
        Remesh(max_faces=0)
    with pytest.raises(ValueError, match="one mesh at a time"):
        mesh_quality(Mesh(torch.zeros(2, 12, 3), ball.faces))

"""The visual hull: closed, the right way round, with the holes of the object; and what it says of pictures that make none."""

from __future__ import annotations

import pytest
import torch

from algonet.fit import Targets, fit_mesh, mesh_quality
from algonet.fit.hull import level_set, visual_hull
from algonet.render import Camera, Mesh, box, icosphere, torus
from fit.fitting_scenes import around, overlap, targets_of

UNSEEN = around(6, start=1.0)


def euler(mesh: Mesh) -> int:
    """V - E + F: 2 for a ball, 0 for a ring."""
    return len(mesh.vertices) - len(mesh.edges()) + len(mesh.faces)


def volume(mesh: Mesh) -> float:
    a, b, c = mesh.vertices[mesh.faces].unbind(1)
    return float((a * torch.linalg.cross(b, c)).sum() / 6)


def test_level_sets_of_formulas_are_their_surfaces() -> None:
    step = 0.05
    places = torch.stack(torch.meshgrid(*(torch.arange(49),) * 3, indexing="ij"), -1) * step - 1.2
    ball = level_set(0.5 + 0.8 - places.norm(dim=-1), torch.full((3,), -1.2), step)
    assert euler(ball) == 2
    assert (ball.vertices.norm(dim=-1) - 0.8).abs().max() < 0.01
    # Facing outward: the volume is positive, that of the ball within the grid's accuracy
    assert volume(ball) == pytest.approx(4 / 3 * torch.pi * 0.8**3, rel=0.01)
    ring = torch.stack([places[..., :2].norm(dim=-1) - 0.7, places[..., 2]], -1).norm(dim=-1)
    ring = level_set(0.5 + 0.2 - ring, torch.full((3,), -1.2), step)
    assert euler(ring) == 0
    assert volume(ring) == pytest.approx(2 * torch.pi**2 * 0.7 * 0.2**2, rel=0.03)
    for mesh in (ball, ring):
        quality = mesh_quality(mesh)
        assert (quality.open, quality.crowded, quality.intersecting) == (0, 0, 0)


@pytest.mark.parametrize("views", [8, 20])
def test_a_ring_begins_as_a_ring(views: int) -> None:
    ring = torus(0.7, 0.25)
    hull, note = visual_hull(targets_of(ring, around(views), 64, "silhouettes"))
    assert note == ""
    assert hull is not None
    assert hull.is_closed()
    assert euler(hull) == 0
    assert volume(hull) == pytest.approx(volume(ring), rel=0.1)
    assert overlap(hull, ring, UNSEEN) > (0.85 if views == 8 else 0.95)


def test_two_things_are_two_parts() -> None:
    one, two = icosphere(2, 0.3), box((0.4, 0.4, 0.4))
    both = Mesh(
        torch.cat([one.vertices - 0.5, two.vertices + 0.5]), torch.cat([one.faces, two.faces + len(one.vertices)])
    )
    hull, _ = visual_hull(targets_of(both, around(16), 64, "silhouettes"))
    assert hull is not None
    assert euler(hull) == 4


def test_a_fit_has_the_hole_of_the_pictures() -> None:
    ring = torus(0.7, 0.25)
    fit = fit_mesh(targets_of(ring, around(10), 40, "silhouettes"), steps=20, views=4, scales=(2.0, 0.7))
    assert fit.notes == []
    assert euler(fit.mesh) == 0
    assert overlap(fit.mesh, ring, UNSEEN) > 0.9


def test_what_makes_no_hull_is_said() -> None:
    ball = icosphere(2, 0.6)
    views = targets_of(ball, around(6), 32, "silhouettes")
    silhouettes = views.silhouettes
    assert silhouettes is not None
    apart = silhouettes.clone()
    apart[0] = silhouettes[0].roll(14, -1)
    turned = views.cameras[torch.arange(6).roll(1)]
    rods = targets_of(box((1.4, 0.3, 0.3)), views.cameras, 32, "silhouettes").silhouettes
    opposite = Camera.look_at(torch.tensor([[0.0, 0.0, 3.0], [0.0, 0.0, -3.0]]))
    for targets, words in (
        (views[0], "one view"),
        (targets_of(ball, opposite, 32, "silhouettes"), "nearly one line"),
        (Targets(views.cameras, silhouettes=1 - silhouettes), "inverted"),
        (Targets(views.cameras, silhouettes=apart), "contradict"),
        (Targets(turned, silhouettes=rods), "contradict"),
        (Targets(views.cameras, rgb=silhouettes[..., None].expand(-1, -1, -1, 3)), "no silhouettes"),
    ):
        hull, note = visual_hull(targets)
        assert hull is None
        assert words in note
    fit = fit_mesh(views[0], steps=1)
    assert "one view" in fit.notes[0]
    assert "one view" in repr(fit)


def test_objects_that_leave_the_frame_go_on_there() -> None:
    """The hull is not cut where a picture ends."""
    rod = box((2.6, 0.4, 0.4), segments=4)
    targets = targets_of(rod, around(12, distance=3.2), 48, "silhouettes")
    edge = torch.cat([targets.silhouettes[:, :, 0], targets.silhouettes[:, :, -1]], 1)
    assert bool((edge > 0.5).any())
    hull, note = visual_hull(targets)
    assert note == ""
    assert hull is not None
    assert float(hull.vertices[:, 0].max()) > 1.1

"""Meshes: procedural ones are closed, files come back as they went, broken ones say so."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch

from algonet.render import Mesh, box, cylinder, extrusion, icosphere, torus
from algonet.render.losses import Topology, edge_length_loss, flatten_loss, laplacian_loss

SQUARE = torch.tensor([[0.0, 0.0], [1.0, 0.0], [1.0, 1.0], [0.0, 1.0]])
#: Mesh, its Euler characteristic, and its volume with the tolerance of its facets.
SOLIDS = [
    (icosphere(3), 2, 4 / 3 * math.pi, 0.02),
    (box((1.0, 2.0, 3.0), segments=3), 2, 6.0, 1e-6),
    (torus(0.7, 0.3, (64, 32)), 0, 2 * math.pi**2 * 0.7 * 0.09, 0.02),
    (cylinder(0.5, 2.0, 64), 2, math.pi / 2, 0.01),
    (extrusion(SQUARE, 2.0), 2, 2.0, 1e-6),
]


@pytest.mark.parametrize(("mesh", "euler", "volume", "tolerance"), SOLIDS)
def test_procedural_meshes_are_closed_and_face_outwards(
    mesh: Mesh, euler: int, volume: float, tolerance: float
) -> None:
    edges = mesh.edges()
    assert len(mesh.vertices) - len(edges) + len(mesh.faces) == euler
    a, b, c = (mesh.vertices[mesh.faces[:, i]] for i in range(3))
    signed = float((torch.linalg.cross(a, b) * c).sum() / 6)
    assert signed == pytest.approx(volume, rel=tolerance)
    assert len(Topology.of(mesh).pairs) == len(edges)


def test_icosphere_normals_point_outwards() -> None:
    mesh = icosphere(2)
    assert (mesh.vertex_normals() * mesh.vertices).sum(-1).min() > 0.99


def test_subdividing_keeps_the_surface_and_its_colours() -> None:
    mesh = box().replace(vertex_colors=torch.rand(8, 3))
    fine = mesh.subdivided()
    assert len(fine.faces) == 4 * len(mesh.faces)
    assert fine.vertices.abs().amax() == 0.5
    assert torch.equal(fine.vertex_colors[:8], mesh.vertex_colors)  # pyright: ignore[reportOptionalSubscript, reportArgumentType]
    faced = box().replace(face_colors=torch.rand(12, 3)).subdivided()
    assert faced.face_colors is not None
    assert faced.face_colors.shape == (48, 3)


@pytest.mark.parametrize("suffix", [".obj", ".ply", ".stl", ".off", ".glb"])
def test_files_come_back_as_they_went(tmp_path: Path, suffix: str) -> None:
    mesh = icosphere(1)
    path = tmp_path / f"ball{suffix}"
    mesh.save(path)
    back = Mesh.load(path)
    assert back.faces.shape == mesh.faces.shape
    corners, expected = back.vertices[back.faces], mesh.vertices[mesh.faces]
    assert torch.allclose(corners, expected, atol=1e-5)
    assert list(tmp_path.iterdir()) == [path]


def test_faces_of_an_stl_share_their_vertices(tmp_path: Path) -> None:
    icosphere(1).save(tmp_path / "ball.stl")
    back = Mesh.load(tmp_path / "ball.stl")
    assert len(back.vertices) == 42
    assert back.is_closed()


@pytest.mark.parametrize("name", ["ball.gltf", "ball.xyz", "ball"])
def test_endings_that_are_not_written_are_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(ValueError, match=r"meshes are written as \.obj, .*\.glb"):
        icosphere(0).save(tmp_path / name)
    assert not list(tmp_path.iterdir())


def test_vertex_colours_survive_a_file(tmp_path: Path) -> None:
    mesh = icosphere(0).replace(vertex_colors=torch.rand(12, 3))
    mesh.save(tmp_path / "ball.ply")
    colors = Mesh.load(tmp_path / "ball.ply").vertex_colors
    assert colors is not None
    assert torch.allclose(colors, mesh.vertex_colors, atol=1 / 255)  # pyright: ignore[reportArgumentType]


def test_uv_without_a_picture_are_no_texture(tmp_path: Path) -> None:
    """Readers that must have a material make up a dark grey one; and vertices that the file repeats for their uv are one."""
    ball = icosphere(1)
    lines = [f"v {x} {y} {z}" for x, y, z in ball.vertices.tolist()]
    lines += [f"vt {k / 240} {k % 3 / 2}" for k in range(240)]
    lines += [
        f"f {a}/{3 * k + 1} {b}/{3 * k + 2} {c}/{3 * k + 3}" for k, (a, b, c) in enumerate((ball.faces + 1).tolist())
    ]
    (tmp_path / "ball.obj").write_text("\n".join(lines))
    found = Mesh.load(tmp_path / "ball.obj")
    assert found.texture is None
    assert found.vertices.shape == ball.vertices.shape
    assert found.is_closed()
    assert found.uv is not None
    assert found.uv_faces is not None
    torch.testing.assert_close(found.uv[found.uv_faces[7, 2]], torch.tensor([23 / 240, 1.0]))


@pytest.mark.parametrize("uv", [False, True])
def test_colours_of_materials_are_read(tmp_path, uv):
    (tmp_path / "one.mtl").write_text("newmtl red\nKd 1 0.2 0\n")
    corners = "f 1/1 2/2 3/3" if uv else "f 1 2 3"
    (tmp_path / "one.obj").write_text(
        f"mtllib one.mtl\nv 0 0 0\nv 1 0 0\nv 0 1 0\nvt 0 0\nvt 1 0\nvt 0 1\nusemtl red\n{corners}\n"
    )
    mesh = Mesh.load(tmp_path / "one.obj")
    assert mesh.texture is None
    assert mesh.face_colors is not None
    torch.testing.assert_close(mesh.face_colors, torch.tensor([[1.0, 0.2, 0.0]]))


def test_a_material_without_colour_gives_none(tmp_path):
    (tmp_path / "plain.mtl").write_text("newmtl plain\nNs 10\n")
    (tmp_path / "plain.obj").write_text("mtllib plain.mtl\nv 0 0 0\nv 1 0 0\nv 0 1 0\nusemtl plain\nf 1 2 3\n")
    assert Mesh.load(tmp_path / "plain.obj").face_colors is None


def test_broken_files_give_one_line_that_names_them(tmp_path: Path) -> None:
    empty = tmp_path / "empty.obj"
    empty.write_text("v 0 0 0\n")
    nonsense = tmp_path / "nonsense.ply"
    nonsense.write_bytes(b"not a mesh")
    unknown = tmp_path / "mesh.xyzzy"
    unknown.write_text("?")
    for path in (empty, nonsense, unknown, tmp_path / "missing.obj"):
        with pytest.raises(ValueError, match=path.name) as caught:
            Mesh.load(path)
        assert "\n" not in str(caught.value)
    with pytest.raises(ValueError, match=r"ball\.docx"):
        icosphere(0).save(tmp_path / "ball.docx")


def test_bad_meshes() -> None:
    vertices, faces = torch.rand(4, 3), torch.tensor([[0, 1, 2]])
    with pytest.raises(ValueError, match=r"0 to 3.*from 1 to 4"):
        Mesh(vertices, torch.tensor([[1, 2, 4]]))
    with pytest.raises(ValueError, match="empty"):
        Mesh(vertices, torch.zeros(0, 3, dtype=torch.int64))
    with pytest.raises(ValueError, match="empty"):
        Mesh(torch.zeros(0, 3), faces)
    with pytest.raises(TypeError, match="int32 or int64"):
        Mesh(vertices, faces.float())
    with pytest.raises(ValueError, match=r"batch, V, 3\), got \(4, 2\)"):
        Mesh(torch.rand(4, 2), faces)
    with pytest.raises(ValueError, match="vertex_colors"):
        Mesh(vertices, faces, vertex_colors=torch.rand(3, 3))
    triangle, bytes_ = torch.tensor([[0, 1, 2]]), torch.randint(0, 256, (3, 3), dtype=torch.uint8)
    with pytest.raises(TypeError, match=r"`vertex_colors` must be a floating tensor .* divide bytes by 255"):
        Mesh(torch.rand(3, 3), triangle, vertex_colors=bytes_)
    with pytest.raises(ValueError, match=r"`face_colors` must lie in \[0, 1\], got values up to 200; divide by 255"):
        Mesh(torch.rand(3, 3), triangle, face_colors=torch.full((1, 3), 200.0))
    with pytest.raises(ValueError, match=r"`texture` must lie in \[0, 1\]"):
        Mesh(torch.rand(3, 3), triangle, uv=torch.rand(3, 2), texture=255 * torch.rand(90, 80, 3))
    assert Mesh(torch.rand(3, 3), triangle, face_colors=torch.full((1, 3), 3.0)).face_colors is not None
    with pytest.raises(ValueError, match="needs `uv`"):
        Mesh(vertices, faces, texture=torch.rand(2, 2, 3))


def test_regularisers() -> None:
    flat = torch.tensor([[0.0, 0.0, 0.0], [1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [1.0, 1.0, 0.0]])
    sheet = Mesh(flat, torch.tensor([[0, 1, 2], [3, 2, 1]]))
    assert float(flatten_loss(sheet)) == pytest.approx(0.0, abs=1e-6)
    # Folded to a right angle along the shared edge
    folded = sheet.replace(vertices=torch.cat([flat[:3], torch.tensor([[0.5, 0.5, math.sqrt(0.5)]])]))
    assert float(flatten_loss(folded)) == pytest.approx(1.0, abs=1e-5)
    ball = icosphere(2)
    bumpy = ball.replace(vertices=ball.vertices * (1 + 0.1 * torch.randn(len(ball.vertices), 1)))
    for loss in (laplacian_loss, flatten_loss, edge_length_loss):
        assert float(loss(bumpy)) > 1.5 * float(loss(ball)) >= 0
    tetrahedron = Mesh(
        torch.tensor([[1.0, 1, 1], [1, -1, -1], [-1, 1, -1], [-1, -1, 1]]),
        torch.tensor([[0, 1, 2], [0, 2, 3], [0, 3, 1], [1, 3, 2]]),
    )
    assert float(edge_length_loss(tetrahedron)) == pytest.approx(0.0, abs=1e-10)
    # Each vertex to the mean of the other three: 4/3 of the way through the centre
    assert float(laplacian_loss(tetrahedron)) == pytest.approx(16 / 9 * 3, rel=1e-5)

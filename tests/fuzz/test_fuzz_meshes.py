"""Mesh files: noise, damaged ones of every format that is written, and constructed lies."""

from __future__ import annotations

import itertools
import struct
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from algonet.render import Mesh, icosphere

from .mutations import NOISE, NUMBERS, damaged
from .reading import budget, read_or_explain

FORMATS = ("obj", "ply", "stl", "off", "glb")
WORDS = (
    *NUMBERS,
    b"f 1 2 3\n",
    b"f -1 -2 -3\n",
    b"f 1/1/1 2/2/2 3/3/3\n",
    b"v 0 0 0\n",
    b"vt 0 0\n",
    b"\n",
    b" ",
    b"#",
    b"usemtl a\n",
)
TEXTS = {
    "obj": b"v 0 0 0\nv 1 0 0\nv 0 1 0\nvt 0 0\nvt 1 0\nvt 0 1\nf 1/1 2/2 3/3\n",
    "ply": b"ply\nformat ascii 1.0\nelement vertex 3\nproperty float x\nproperty float y\nproperty float z\n"
    b"element face 1\nproperty list uchar int vertex_indices\nend_header\n0 0 0\n1 0 0\n0 1 0\n3 0 1 2\n",
    "stl": b"solid a\nfacet normal 0 0 1\nouter loop\nvertex 0 0 0\nvertex 1 0 0\nvertex 0 1 0\n"
    b"endloop\nendfacet\nendsolid a\n",
    "off": b"OFF\n3 1 0\n0 0 0\n1 0 0\n0 1 0\n3 0 1 2\n",
}


def written(folder: Path) -> dict[str, list[bytes]]:
    """A valid file of each format as this library writes it, and one as a person would."""
    mesh = icosphere(0)
    files: dict[str, list[bytes]] = {}
    for ending in FORMATS:
        mesh.save(folder / f"ball.{ending}")
        files[ending] = [(folder / f"ball.{ending}").read_bytes(), *([TEXTS[ending]] if ending in TEXTS else [])]
    return files


@pytest.fixture(scope="module")
def load(tmp_path_factory):
    """Write bytes to a file of the given ending and load it; returns the mesh or None."""
    folder = tmp_path_factory.mktemp("meshes")
    numbers = itertools.count()

    def run(data: bytes, ending: str) -> Mesh | None:
        path = folder / f"m{next(numbers)}.{ending}"
        path.write_bytes(data)
        mesh = read_or_explain(lambda: Mesh.load(path), names=path.name)
        path.unlink()
        if mesh is not None:
            assert torch.isfinite(mesh.vertices).all()
            assert 0 <= int(mesh.faces.min()) <= int(mesh.faces.max()) < len(mesh.vertices)
            assert torch.isfinite(mesh.normalised().vertices).all()
        return mesh

    return run


@pytest.fixture(scope="module")
def valid(tmp_path_factory):
    return written(tmp_path_factory.mktemp("valid"))


@pytest.mark.parametrize("ending", FORMATS)
def test_damaged_mesh(ending, load, valid):
    @given(damaged(valid[ending], WORDS))
    @budget(60)
    def check(data: bytes) -> None:
        load(data, ending)

    check()


@given(NOISE, st.sampled_from((*FORMATS, "gltf", "3mf", "dae", "zip", "xyz", "txt", "png", "exe", "")))
@budget(80)
def test_noise_is_no_mesh(load, data, ending):
    load(data, ending)


LIES = {
    "empty.obj": b"",
    "index out of range.obj": b"v 0 0 0\nv 1 0 0\nv 0 1 0\nf 1 2 9\n",
    "negative indices.obj": b"v 0 0 0\nv 1 0 0\nv 0 1 0\nf -3 -2 -9\n",
    "huge index.obj": b"v 0 0 0\nv 1 0 0\nv 0 1 0\nf 1 2 99999999999999999999\n",
    "not a number.obj": b"v nan 0 0\nv 1 0 0\nv 0 1 0\nf 1 2 3\n",
    "beyond float32.obj": b"v 1e39 0 0\nv 1 0 0\nv 0 1 0\nf 1 2 3\n",
    "lengths beyond float32.obj": b"v 3e38 0 0\nv -3e38 0 0\nv 0 1 0\nf 1 2 3\n",
    "two coordinates.obj": b"v 0 0\nv 1 0\nv 0 1\nf 1 2 3\n",
    "only points.obj": b"v 0 0 0\nv 1 0 0\nv 0 1 0\n",
    "huge count.ply": TEXTS["ply"].replace(b"vertex 3", b"vertex 4000000000"),
    "huge binary count.ply": TEXTS["ply"].replace(b"ascii", b"binary_little_endian").replace(b"vertex 3", b"vertex 4000000000"),
    "negative count.ply": TEXTS["ply"].replace(b"vertex 3", b"vertex -3"),
    "huge count.stl": bytes(80) + struct.pack("<I", 0xFFFFFFFF) + bytes(50),
    "huge count.off": TEXTS["off"].replace(b"3 1 0", b"4000000000 4000000000 0"),
    "huge length.glb": b"glTF" + struct.pack("<III4s", 2, 0xFFFFFFFF, 0xFFFFFFF0, b"JSON") + b"{}",
    "no chunks.glb": b"glTF" + struct.pack("<II", 2, 12),
    "huge accessor.gltf": b'{"asset":{"version":"2.0"},"meshes":[{"primitives":[{"attributes":{"POSITION":0}}]}],"accessors":'
    b'[{"componentType":5126,"count":4000000000,"type":"VEC3"}],"nodes":[{"mesh":0}],"scenes":[{"nodes":[0]}]}',
}  # fmt: skip

#: What trimesh makes something of.
ODD = {
    "faces before vertices.obj": b"f 1 2 3\nv 0 0 0\nv 1 0 0\nv 0 1 0\n",
    "index 0.obj": b"v 0 0 0\nv 1 0 0\nv 0 1 0\nf 0 1 2\n",
    "a polygon of many.obj": b"v 0 0 0\nv 1 0 0\nv 0 1 0\nf " + b"1 2 3 " * 5000 + b"\n",
    "huge list.ply": TEXTS["ply"].replace(b"\n3 0 1 2", b"\n4000000000 0 1 2"),
    "material.obj": b"mtllib none.mtl\nusemtl a\n" + TEXTS["obj"],
}


@pytest.mark.parametrize("name", ODD)
def test_odd_mesh_is_read_or_refused(name, load):
    load(ODD[name], name.rpartition(".")[2])


@pytest.mark.parametrize("name", LIES)
def test_lying_mesh_is_refused(name, load):
    assert load(LIES[name], name.rpartition(".")[2]) is None


def test_other_things_than_files(tmp_path):
    for path in (tmp_path, tmp_path / "none.obj", tmp_path / ("long" * 100 + ".obj"), Path("/dev/null")):
        assert read_or_explain(lambda path=path: Mesh.load(path), names=path.name[:20]) is None

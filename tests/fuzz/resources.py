"""Files whose sizes, counts and nesting lie. Each is read within 1 GiB and 10 seconds of computing, or refused in one line.

    PYTHONPATH=tests python -m fuzz.resources [WORD ...]

reads them all in this process, or those whose names hold a word, and prints what each one took. A new reader, or a new lie, is
one line of `TABLE`.
"""

from __future__ import annotations

import io
import json
import struct
import sys
import tempfile
import time
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from algonet.cli.fitting_runs import read_arrays
from algonet.core.pictures import open_picture
from algonet.ifs import IFS
from algonet.ran.checkpoints import load_checkpoint
from algonet.ran.config import load_config
from algonet.render import Mesh
from algonet.render.cameras import read_cameras
from algonet.speech import read_wav, wav_bytes

from .reading import read_or_explain

SECONDS = 10


def _chunk(name: bytes, content: bytes) -> bytes:
    return struct.pack(">I", len(content)) + name + content + struct.pack(">I", zlib.crc32(name + content))


def png(width: int, height: int, rows: int = 0, before: bytes = b"") -> bytes:
    """Grey, of which only so many rows are there."""
    header = _chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0))
    data = zlib.compress(bytes((width + 1) * rows), 1)
    return b"\x89PNG\r\n\x1a\n" + header + before + _chunk(b"IDAT", data) + _chunk(b"IEND", b"")


def tiff(**tags: int) -> bytes:
    """A header of one frame and no pixels."""
    numbers = {"width": 256, "height": 257, "bits": 258, "compression": 259, "photometric": 262, "offsets": 273, "rows": 278,
               "counts": 279}  # fmt: skip
    held = {
        "width": 8,
        "height": 8,
        "bits": 8,
        "compression": 1,
        "photometric": 1,
        "offsets": 8,
        "rows": 8,
        "counts": 64,
    }
    entries = b"".join(struct.pack("<HHII", numbers[k], 4, 1, v) for k, v in {**held, **tags}.items())
    return b"II*\0" + struct.pack("<IH", 8, len(held)) + entries + bytes(4)


def gltf(accessors: list[dict], *, nodes: list[dict] | None = None, **more: Any) -> dict:
    """One mesh: the positions in accessor 0."""
    view = {"buffer": 0, "byteLength": 36}
    triangle = {"componentType": 5126, "type": "VEC3", "count": 3}
    nodes = nodes or [{"mesh": 0}]
    return {
        "asset": {"version": "2.0"}, "buffers": [{"byteLength": 36}], "bufferViews": [view],
        "accessors": [{**triangle, **accessor} for accessor in accessors],
        "meshes": [{"primitives": [{"attributes": {"POSITION": 0}}]}],
        "nodes": nodes, "scenes": [{"nodes": [0]}], "scene": 0, **more,
    }  # fmt: skip


TRIANGLE = struct.pack("<9f", 0, 0, 0, 1, 0, 0, 0, 1, 0)


def glb(header: dict | bytes, data: bytes = TRIANGLE) -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    text += b" " * (-len(text) % 4)
    chunks = struct.pack("<I4s", len(text), b"JSON") + text + struct.pack("<I4s", len(data), b"BIN\0") + data
    return b"glTF" + struct.pack("<II", 2, 12 + len(chunks)) + chunks


def ply(vertices: Any = 3, faces: Any = 1, kind: str = "ascii", more: str = "", body: bytes = b"") -> bytes:
    header = (
        f"ply\nformat {kind} 1.0\nelement vertex {vertices}\nproperty float x\nproperty float y\nproperty float z\n"
    )
    header += f"element face {faces}\nproperty list uchar int vertex_indices\n{more}end_header\n"
    return header.encode() + (body or b"0 0 0\n1 0 0\n0 1 0\n3 0 1 2\n")


def wav(samples: int = 100, **patches: int) -> bytes:
    whole = wav_bytes(torch.zeros(samples), 8000)
    places = {"riff": (4, "<I"), "channels": (22, "<H"), "rate": (24, "<I"), "bits": (34, "<H"), "data": (40, "<I")}
    for name, value in patches.items():
        at, kind = places[name]
        whole = whole[:at] + struct.pack(kind, value) + whole[at + struct.calcsize(kind) :]
    return whole


def npz(descr: str, shape: tuple[int, ...], data: bytes) -> bytes:
    header = repr({"descr": descr, "fortran_order": False, "shape": shape}).encode() + b"\n"
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        archive.writestr("frames.npy", b"\x93NUMPY\1\0" + struct.pack("<H", len(header)) + header + data)
    return buffer.getvalue()


def checkpoint(tensors: bytes = b"", state: bytes = b"{}") -> Callable[[Path], None]:
    def write(path: Path) -> None:
        path.mkdir()
        for name, content in (("model.safetensors", tensors), ("training.safetensors", tensors), ("state.json", state)):
            (path / name).write_bytes(content)

    return write


def safetensors(shape: list[int], data: bytes, length: int | None = None) -> bytes:
    header = json.dumps({"a": {"dtype": "F32", "shape": shape, "data_offsets": [0, len(data)]}}).encode()
    return struct.pack("<Q", len(header) if length is None else length) + header + data


def beside(mesh: bytes, **files: bytes) -> Callable[[Path], None]:
    """A mesh and files that it names."""

    def write(path: Path) -> None:
        path.write_bytes(mesh)
        for name, content in files.items():
            (path.parent / name.replace("_", ".")).write_bytes(content)

    return write


DEEP = b"[" * 200_000
DIGITS = b"9" * 5000
SYSTEM = IFS.preset("sierpinski", points=16).to_dict()
FRAME = {"file_path": "a.png", "transform_matrix": np.eye(4).tolist(), "camera_angle_x": 0.7}
OBJ = b"v 0 0 0\nv 1 0 0\nv 0 1 0\n"
MATERIALS = b"".join(b"newmtl m%d\nmap_Kd a.png\n" % i for i in range(12))
USED = b"".join(b"usemtl m%d\nf 1/1 2/2 3/3\n" % i for i in range(12))
MANY_MATERIALS = OBJ * 10_000 + b"".join(b"usemtl m%d\nf 1 2 3\n" % i for i in range(20_000))
CHAIN = [{"children": [i + 1]} for i in range(20_000)] + [{"mesh": 0}]
SHARED = struct.pack("<9f", *range(9)) * 20_000


def cameras(path: Path) -> Any:
    return read_cameras(path, (8, 8))


#: Reader, file name, and what is put there.
TABLE: list[tuple[Callable[[Path], Any], str, bytes | Callable[[Path], None]]] = [
    (Mesh.load, "zeros.glb", glb(gltf([{"count": 10**8}]))),
    (Mesh.load, "endless zeros.glb", glb(gltf([{"count": 4 * 10**8}]))),
    (Mesh.load, "zeros that nobody uses.glb", glb(gltf([{"bufferView": 0}, {"count": 4 * 10**8}]))),
    (Mesh.load, "many zeros.glb", glb(gltf([{"bufferView": 0}, *[{"count": 2**20, "type": "MAT4"}] * 1000]))),
    (Mesh.load, "zeros, sparse.glb", glb(gltf([{"count": 10**8, "sparse": {"count": 1}}]))),
    (Mesh.load, "a count in words.glb", glb(gltf([{"bufferView": 0, "count": "1" * 400}]))),
    (Mesh.load, "a count of reals.glb", glb(gltf([{"bufferView": 0, "count": 1e300}]))),
    (Mesh.load, "a negative count.glb", glb(gltf([{"count": -(10**8)}]))),
    (Mesh.load, "a count beyond its view.glb", glb(gltf([{"bufferView": 0, "count": 4 * 10**8}]))),
    (Mesh.load, "a stride of 1.glb", glb(gltf(
        [{"bufferView": 0}, *[{"bufferView": 1, "count": len(SHARED) - 64, "type": "MAT4"}] * 500],
        bufferViews=[{"buffer": 0, "byteLength": 36}, {"buffer": 0, "byteLength": len(SHARED), "byteStride": 1}]), SHARED)),
    (Mesh.load, "one mesh a thousand times.glb", glb(gltf(
        [{"bufferView": 0, "count": 60_000}], bufferViews=[{"buffer": 0, "byteLength": len(SHARED)}],
        nodes=[{"children": list(range(1, 3001))}, *[{"mesh": 0}] * 3000]), SHARED)),
    (Mesh.load, "one primitive a thousand times.glb", glb(gltf(
        [{"bufferView": 0, "count": 60_000}], bufferViews=[{"buffer": 0, "byteLength": len(SHARED)}],
        meshes=[{"primitives": [{"attributes": {"POSITION": 0}}] * 3000}]), SHARED)),
    (Mesh.load, "nodes in a chain.glb", glb(gltf([{"bufferView": 0}], nodes=CHAIN))),
    (Mesh.load, "nodes in a ring.glb", glb(gltf([{"bufferView": 0}], nodes=[{"mesh": 0, "children": [0]}]))),
    (Mesh.load, "deep.glb", glb(DEEP)),
    (Mesh.load, "deep.gltf", DEEP),
    (Mesh.load, "digits.gltf", b'{"accessors": [{"count": ' + DIGITS + b"}]}"),
    (Mesh.load, "one buffer many times.gltf", beside(
        json.dumps(gltf([{"bufferView": 0}], buffers=[{"byteLength": 36, "uri": "b.bin"}] * 500)).encode(),
        b_bin=bytes(2**24))),
    (Mesh.load, "a chunk of 4 GB.glb", glb(gltf([{"bufferView": 0}]))[:12] + struct.pack("<I4s", 2**32 - 1, b"JSON") + b"{}"),
    (Mesh.load, "vertices.ply", ply(4 * 10**9)),
    (Mesh.load, "binary vertices.ply", ply(4 * 10**9, kind="binary_little_endian")),
    (Mesh.load, "faces.ply", ply(faces=4 * 10**9)),
    (Mesh.load, "binary faces.ply", ply(0, 4 * 10**9, "binary_little_endian", body=b"\x03" + bytes(12))),
    (Mesh.load, "an element of nothing.ply", ply(more="element x 4000000000\n")),
    (Mesh.load, "a binary element of nothing.ply", ply(0, 0, "binary_little_endian", more="element x 4000000000\n")),
    (Mesh.load, "a list of 4 billion.ply", ply(body=b"0 0 0\n1 0 0\n0 1 0\n4000000000 0 1 2\n")),
    (Mesh.load, "a long list.ply", ply(
        0, 1, "binary_little_endian", "element x 1\nproperty list uint double y\n", b"\0" + b"\xff" * 40)),
    (Mesh.load, "digits.ply", ply(DIGITS.decode())),
    (Mesh.load, "a header without end.ply", b"ply\nformat ascii 1.0\n" + b"comment\n" * 200_000),
    (Mesh.load, "triangles.stl", bytes(80) + struct.pack("<I", 2**32 - 1) + bytes(50)),
    (Mesh.load, "words.stl", b"solid a\n" + b"facet\n" * 200_000),
    (Mesh.load, "counts.off", b"OFF\n4000000000 4000000000 0\n0 0 0\n"),
    (Mesh.load, "corners.off", b"OFF\n3 1 0\n0 0 0\n1 0 0\n0 1 0\n4000000000 0 1 2\n"),
    (Mesh.load, "digits.off", b"OFF\n" + DIGITS + b" 1 0\n"),
    (Mesh.load, "index.obj", OBJ + b"f 1 2 4000000000\n"),
    (Mesh.load, "digits.obj", OBJ + b"f 1 2 " + DIGITS + b"\n"),
    (Mesh.load, "a polygon.obj", OBJ + b"f" + b" 1 2 3" * 100_000),
    (Mesh.load, "many materials.obj", MANY_MATERIALS),
    (Mesh.load, "many textures.obj", beside(
        b"mtllib a.mtl\n" + OBJ + b"vt 0 0\nvt 1 0\nvt 0 1\n" + USED, a_mtl=MATERIALS, a_png=png(8000, 8000, 8000))),
    (Mesh.load, "textures in a row.obj", beside(
        b"mtllib a.mtl\nusemtl m0\n" + OBJ + b"vt 0 0\nvt 1 0\nvt 0 1\nf 1/1 2/2 3/3\n",
        a_mtl=MATERIALS * 500, a_png=png(4000, 4000))),
    (Mesh.load, "backslashes.obj", OBJ + b"f 1 2 3" + b" \\\n" * 200_000),
    (Mesh.load, "an unfinished corner.obj", OBJ + b"f " + b"1" * 100_000 + b"x\n" + b"f 1/" * 100_000),
    (open_picture, "pixels.png", png(60_000, 60_000)),
    (open_picture, "fewer pixels.png", png(8192, 8192, 8192)),
    (open_picture, "text.png", png(4, 4, 4, _chunk(b"zTXt", b"a\0\0" + zlib.compress(bytes(10**8), 1)))),
    (open_picture, "profile.png", png(4, 4, 4, _chunk(b"iCCP", b"a\0\0" + zlib.compress(bytes(10**8), 1)))),
    (open_picture, "pixels.tif", tiff(width=2**31, height=2**31)),
    (open_picture, "rows.tif", tiff(width=8000, height=8000, rows=1)),
    (open_picture, "a strip.tif", tiff(width=8000, height=8000, counts=2**31)),
    (open_picture, "pixels.bmp", b"BM" + struct.pack("<IIIIiiHHIIiiII", 60, 0, 54, 40, 2**30, 2**30, 1, 24, 0, 0, 0, 0, 0, 0)),
    (open_picture, "pixels.gif", b"GIF89a" + struct.pack("<HHBBB", 65535, 65535, 0, 0, 0) + b","
        + struct.pack("<HHHHB", 0, 0, 65535, 65535, 0) + b"\2\0;"),
    (open_picture, "pixels.ppm", b"P6 60000 60000 255\n"),
    (open_picture, "digits.ppm", b"P6 " + DIGITS + b" 1 255\n"),
    (read_wav, "a data chunk.wav", wav(data=2**32 - 16)),
    (read_wav, "channels.wav", wav(channels=65535)),
    (read_wav, "no bits.wav", wav(bits=0)),
    (read_wav, "rate.wav", wav(rate=2**32 - 1)),
    (read_wav, "chunks.wav", wav()[:12] + b"junk\0\0\0\0" * 200_000),
    (IFS.load, "deep.json", DEEP),
    (IFS.load, "deep objects.json", b'{"a":' * 200_000),
    (IFS.load, "digits.json", DIGITS * 100),
    (IFS.load, "an exposure.json", json.dumps({**SYSTEM, "exposure": 1e308}).encode()),
    (IFS.load, "points.json", json.dumps({**SYSTEM, "points": 10**12}).encode()),
    (IFS.load, "deep parameters.json", json.dumps({**SYSTEM, "parameters": 7}).encode().replace(b"7", b"[" * 900 + b"]" * 900)),
    (IFS.load, "maps.json", json.dumps({**SYSTEM, "parameters": [[0.1] * 6] * 200_000, "weights": [1] * 200_000}).encode()),
    (cameras, "deep.json", json.dumps({"frames": [{**FRAME, "transform_matrix": 7}]}).encode().replace(b" 7", DEEP)),
    (cameras, "digits.json", json.dumps({"frames": [{**FRAME, "fl_x": 7}]}).encode().replace(b" 7", b"9" * 400)),
    (cameras, "frames.json", json.dumps({"frames": [FRAME] * 20_000}).encode()),
    (load_config, "deep.toml", b"kind = " + DEEP),
    (load_config, "digits.toml", b"seed = " + DIGITS),
    (load_config, "dots.toml", b"a" + b".a" * 8000 + b" = 1"),
    (load_checkpoint, "a shape", checkpoint(safetensors([2**40], b""))),
    (load_checkpoint, "a header", checkpoint(safetensors([1], bytes(4), 2**60))),
    (load_checkpoint, "deep", checkpoint(state=DEEP)),
    (load_checkpoint, "digits", checkpoint(state=b'{"step": ' + DIGITS + b"}")),
    (read_arrays, "a shape.npz", npz("<f8", (2**40,), bytes(8))),
    (read_arrays, "zeros.npz", npz("<u1", (10 * 2**26,), bytes(10 * 2**26))),
    (read_arrays, "objects.npz", npz("|O", (1,), b"cposix\nsystem\n.")),
    (read_arrays, "no archive.npz", b"\x93NUMPY\1\0" + bytes(100)),
]  # fmt: skip


def main(words: list[str]) -> int:
    """Read all files; returns how many readers took too much or did not explain themselves."""
    failed = 0
    with tempfile.TemporaryDirectory() as folder:
        for number, (read, name, content) in enumerate(TABLE):
            path = Path(folder) / str(number) / name
            if words and not any(word in name for word in words):
                continue
            path.parent.mkdir()
            content(path) if callable(content) else path.write_bytes(content)
            print(f"{read.__qualname__}: {name}:", end=" ", flush=True)
            begun = time.process_time()
            try:
                found = read_or_explain(lambda: read(path), names=name, seconds=SECONDS)  # noqa: B023
                result = "refused" if found is None else "read"
            except BaseException as error:
                result = f"{type(error).__name__}: {error}"
            took = time.process_time() - begun
            wrong = result not in ("read", "refused") or took > SECONDS
            failed += wrong
            print(f"{result}, {took:.1f} s{', WRONG' if wrong else ''}")
    return failed


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]) > 0)

"""What commands say to hostile files: one line and an exit code, within 10 seconds and 1 GiB. The table is also SECURITY.md's.

    PYTHONPATH=tests:tests/cli python -m test_hostile

writes it there again.
"""

from __future__ import annotations

import io
import json
import os
import re
import struct
import time
import wave
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
import torch
from PIL import Image

import algonet
import algonet.ran.build
from algonet.ifs import IFS
from algonet.ran.config import from_dict
from fuzz.reading import bounded

SECURITY = Path(__file__).parents[2] / "SECURITY.md"
#: Of the processor's time, which a busy machine does not change.
SECONDS = 10.0
#: What a file gets that is read.
READ = "is read"


class Row(NamedTuple):
    """What is wrong, a file's name, what is put there, and what the command says of it."""

    what: str
    name: str
    content: bytes | Callable[[Path], None]
    says: str


def _png(width: int, height: int, data: bytes = b"", depth: int = 8, kind: int = 0) -> bytes:
    def chunk(name: bytes, content: bytes) -> bytes:
        return struct.pack(">I", len(content)) + name + content + struct.pack(">I", zlib.crc32(name + content))

    header = struct.pack(">IIBBBBB", width, height, depth, kind, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(data, 9)) + chunk(b"IEND", b"")


def _picture(mode: str, format: str, size: tuple[int, int] = (24, 24), **options: object) -> bytes:
    shape = Image.radial_gradient("L").resize(size)
    if mode == "I;16":
        shape = Image.fromarray(np.asarray(shape).astype(np.uint16) * 257)
    elif mode != "L":
        shape = shape.convert("RGB").convert(mode)
    buffer = io.BytesIO()
    shape.save(buffer, format, **options)
    return buffer.getvalue()


def _animated() -> bytes:
    return _picture("L", "GIF", save_all=True, append_images=[Image.new("L", (24, 24), 9 * i) for i in range(20)])


def _archive() -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("a.obj", b"v 0 0 0\n" * 8_000_000)
    return buffer.getvalue()


def _sound(samples: int = 100, rate: int = 8000) -> bytes:
    buffer = io.BytesIO()
    with wave.open(buffer, "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(rate)
        file.writeframes(bytes(2 * samples))
    return buffer.getvalue()


def _patched(sound: bytes, place: int, kind: str, value: int) -> bytes:
    return sound[:place] + struct.pack(kind, value) + sound[place + struct.calcsize(kind) :]


def _fifo(path: Path) -> None:
    os.mkfifo(path)


def _folder(path: Path) -> None:
    path.mkdir()


def _link(path: Path) -> None:
    path.symlink_to(path.with_name("nowhere"))


def _loop(path: Path) -> None:
    path.symlink_to(path)


def _secret(path: Path, *, link: bool) -> Path:
    """A picture outside the mesh's folder, which must not end up in the mesh."""
    outside = path.parent.parent / f"{path.parent.name}-secret.png"
    Image.new("RGB", (4, 4), (255, 0, 0)).save(outside)
    if link:
        path.with_name("linked.png").symlink_to(outside)
    return outside


def _elsewhere(path: Path) -> None:
    outside = _secret(path, link=False)
    path.with_name("a.mtl").write_text(f"newmtl a\nmap_Kd ../{outside.name}\n")
    path.write_bytes(b"mtllib a.mtl\nusemtl a\n" + TEXTURED)


def _linked(path: Path) -> None:
    _secret(path, link=True)
    path.with_name("a.mtl").write_text("newmtl a\nmap_Kd linked.png\n")
    path.write_bytes(b"mtllib a.mtl\nusemtl a\n" + TEXTURED)


def _texture_bomb(path: Path) -> None:
    path.with_name("bomb.png").write_bytes(_png(10_000, 10_000))
    path.with_name("b.mtl").write_text("newmtl a\nmap_Kd bomb.png\n")
    path.write_bytes(b"mtllib b.mtl\nusemtl a\n" + TEXTURED)


def _gltf(uri: str) -> bytes:
    return json.dumps(
        {
            "asset": {"version": "2.0"},
            "buffers": [{"byteLength": 36, "uri": uri}],
            "bufferViews": [{"buffer": 0, "byteLength": 36}],
            "accessors": [{"bufferView": 0, "componentType": 5126, "count": 3, "type": "VEC3"}],
            "meshes": [{"primitives": [{"attributes": {"POSITION": 0}}]}],
            "nodes": [{"mesh": 0}],
            "scenes": [{"nodes": [0]}],
            "scene": 0,
        }
    ).encode()


TRIANGLE = b"v 0 0 0\nv 1 0 0\nv 0 1 0\n"
TEXTURED = TRIANGLE + b"vt 0 0\nvt 1 0\nvt 0 1\nf 1/1 2/2 3/3\n"
PLY = (
    b"ply\nformat ascii 1.0\nelement vertex 3\nproperty float x\nproperty float y\nproperty float z\nelement face 1\n"
    b"property list uchar int vertex_indices\nend_header\n0 0 0\n1 0 0\n0 1 0\n3 0 1 2\n"
)
NO_MESH = "not readable as a mesh"
MESHES = [
    Row("nothing in it", "a.obj", b"", NO_MESH),
    Row("a count of 4 billion vertices", "b.ply", PLY.replace(b"vertex 3", b"vertex 4000000000"), NO_MESH),
    Row("a count of 4 billion triangles", "c.stl", bytes(80) + struct.pack("<I", 0xFFFFFFFF) + bytes(50), NO_MESH),
    Row("a count of 4 billion, in text", "d.off", b"OFF\n4000000000 4000000000 0\n0 0 0\n", NO_MESH),
    Row("a chunk of 4 GB in 30 bytes", "e.glb", b"glTF" + struct.pack("<III4s", 2, 1 << 31, 1 << 31, b"JSON") + b"{}", NO_MESH),
    Row("coordinates that are NaN", "f.obj", b"v nan 0 0\nv 1 0 0\nv 0 1 0\nf 1 2 3\n", "vertices that are not finite"),
    Row("coordinates that are infinite", "g.obj", b"v inf 0 0\nv 1 0 0\nv 0 1 0\nf 1 2 3\n", "vertices that are not finite"),
    Row("an index beyond the vertices", "h.obj", TRIANGLE + b"f 1 2 9\n", NO_MESH),
    Row("an index before the first vertex", "i.obj", TRIANGLE + b"f -1 -2 -9\n", NO_MESH),
    Row("an index of 20 digits", "j.obj", TRIANGLE + b"f 1 2 99999999999999999999\n", NO_MESH),
    Row("a polygon of 100,000 corners", "k.obj", TRIANGLE + b"f" + b" 1 2 3" * 33_334 + b"\n", READ),
    Row("a texture outside its folder", "l.obj", _elsewhere, "is read, without the texture"),
    Row("a texture by a link to outside", "m.obj", _linked, "is read, without the texture"),
    Row("a texture of 10000 x 10000", "n.obj", _texture_bomb, "is read, without the texture"),
    Row("a buffer on another machine", "o.gltf", _gltf("http://127.0.0.1:1/a.bin"), "there is no such file"),
    Row("a buffer outside its folder", "p.gltf", _gltf("../../../../etc/passwd"), "lies outside the folder"),
    Row("an archive of 64 MB in 64 kB", "q.zip", _archive(), "meshes are read from .obj, .ply"),
    Row("a pipe", "r.obj", _fifo, "a pipe or a device, not an ordinary file"),
    Row("a folder", "s.obj", _folder, "a folder, not a file"),
    Row("a link to nothing", "t.obj", _link, "there is no such file"),
    Row("a link to itself", "u.obj", _loop, "there is no such file"),
]  # fmt: skip
NO_PICTURE = "not readable as a picture"
PICTURES = [
    Row("nothing in it", "a.png", b"", NO_PICTURE),
    Row("a header and no more", "b.png", _picture("L", "PNG")[:60], NO_PICTURE),
    Row("its second half missing", "c.jpg", _picture("RGB", "JPEG")[:300], NO_PICTURE),
    Row("60000 x 60000 pixels in 200 bytes", "d.png", _png(60_000, 60_000), "decompression bomb"),
    Row("10000 x 10000 pixels in 200 bytes", "d.png", _png(10_000, 10_000), "10000 x 10000 pixels; at most"),
    Row("8000 x 8000 pixels of one colour", "e.png", _png(8000, 8000, bytes(8001 * 8000)), "one brightness"),
    Row("0 x 0 pixels", "f.png", _png(0, 0), NO_PICTURE),
    Row("16 bits a pixel", "g.png", _picture("I;16", "PNG"), READ),
    Row("a palette", "h.png", _picture("P", "PNG"), READ),
    Row("CMYK", "i.jpg", _picture("CMYK", "JPEG"), READ),
    Row("20 frames", "j.gif", _animated(), READ),
    Row("one row of 3000 pixels", "k.png", _picture("L", "PNG", (3000, 1)), READ),
    Row("a pipe", "l.png", _fifo, "a pipe or a device, not an ordinary file"),
    Row("a folder", "m.png", _folder, "a folder, not a file"),
]
VALID = IFS.preset("sierpinski", points=16).to_dict()


def _system(**changes: object) -> bytes:
    return json.dumps({**VALID, **changes}).encode()


NO_SYSTEM = "cannot read an iterated function system"
SYSTEMS = [
    Row("brackets 100,000 deep", "a.json", b"[" * 100_000 + b"]" * 100_000, NO_SYSTEM),
    Row("an integer of 100,000 digits", "b.json", _system(seed=7).replace(b": 7,", b": " + b"9" * 100_000 + b","), NO_SYSTEM),
    Row("10^12 points", "c.json", _system(points=10**12), NO_SYSTEM),
    Row("a key that is there twice", "d.json", b'{"format": 1, "format": 2}', "the key 'format' is there twice"),
    Row("NaN among its numbers", "e.json", _system(parameters=[[float("nan")] * 6] * 3), "NaN is no number"),
    Row("infinity among its numbers", "f.json", _system(exposure=float("inf")), "Infinity is no number"),
    Row("17 MB", "g.json", b" " * (17 * 2**20), "of which at most 16777216 are read"),
    Row("a pipe", "h.json", _fifo, "a pipe or a device, not an ordinary file"),
]  # fmt: skip
CONFIGURATIONS = [
    Row("a key that nobody knows", "a.toml", b"stepz = 3\n", "unknown key `stepz`"),
    Row("pictures of 10^9 pixels a side", "b.toml", b"[data]\nsize = 1000000000\n", "`data.size` must be between"),
    Row("10^15 items", "c.toml", b"[data]\ntrain = 1000000000000000\n", "`data.train` must be between"),
    Row("layers of 10^9 channels", "d.toml", b"[model]\nbase = 1000000000\n", "`model.base` must be between"),
    Row("brackets 16,000 deep", "e.toml", b"kind = " + b"[" * 16_000, "not valid TOML"),
    Row("a key that is there twice", "f.toml", b"seed = 1\nseed = 2\n", "not valid TOML"),
    Row("a folder of data that is none", "g.toml", b'[data]\nfolder = "../../nowhere"\n', "nowhere is not a folder"),
    Row("2 MB", "h.toml", b"#" * 2**21, "of which at most 16384 are read"),
    Row("a pipe", "i.toml", _fifo, "a pipe or a device, not an ordinary file"),
]
PROGRAMS = [
    Row(
        "blocks 100,000 deep", "a.while", b"WHILE x1 != 0 DO " * 100_000 + b" END" * 100_000, "at most 1048576 are read"
    ),
    Row("blocks 50,000 deep, unended", "a.while", b"WHILE x1 != 0 DO " * 50_000, "the program ends"),
    Row("blocks 20,000 deep", "b.while", b"WHILE x1 != 0 DO " * 20_000 + b"x0 := x1" + b" END" * 20_000, "levels deep"),
    Row("10 MB", "c.while", b"x0 := x1\n" * 1_200_000, "of which at most 1048576 are read"),
    Row("a number of 1000 digits", "d.while", b"x0 := " + b"9" * 1000, "line 1"),
    Row("bytes that are no text", "e.while", b"\xff\xfe\x00", "is not a text file"),
    Row("a pipe", "f.while", _fifo, "a pipe or a device, not an ordinary file"),
]
NO_SOUND = "not readable as a PCM WAV file"
SOUNDS = [
    Row("nothing in it", "a.wav", b"", NO_SOUND),
    Row("a count of 4 GB", "b.wav", _patched(_sound(), 40, "<I", 0xFFFFFFF0), NO_SOUND),
    Row("65535 channels", "c.wav", _patched(_sound(), 22, "<H", 65535), NO_SOUND),
    Row("4 billion samples a second", "d.wav", _patched(_sound(), 24, "<I", 0xFFFFFFFF), NO_SOUND),
    Row("0 bits a sample", "e.wav", _patched(_sound(), 34, "<H", 0), NO_SOUND),
    Row("a header and no more", "f.wav", _sound()[:30], NO_SOUND),
    Row("a pipe", "g.wav", _fifo, "a pipe or a device, not an ordinary file"),
]
#: Kind of file -> the command that reads it, and its rows.
TABLE: dict[str, tuple[list[str], list[Row]]] = {
    "mesh": (["render", "FILE", "--size", "8", "--backend", "reference", "--out", "out.png"], MESHES),
    "picture": (["ifs", "fit", "FILE", "--quick", "--out", "out"], PICTURES),
    "function system": (["ifs", "render", "FILE", "--size", "8", "--out", "out.png"], SYSTEMS),
    "configuration": (["ran", "train", "FILE", "--out", "out"], CONFIGURATIONS),
    "program": (["while", "show", "FILE"], PROGRAMS),
    "sound": (["ran", "reconstruct", "checkpoint", "FILE", "--out", "out"], SOUNDS),
}
CASES = [pytest.param(kind, row, id=f"{kind}: {row.what}") for kind, (_, rows) in TABLE.items() for row in rows]


@pytest.fixture
def listener(monkeypatch):
    """A model that takes sounds."""
    config = from_dict({"kind": "speech", "data": {"size": 16}, "model": {"width": 8, "base": 4, "translator_base": 4}})
    monkeypatch.setattr(algonet.ran.build, "load_model", lambda _: (None, config))


@pytest.mark.skipif(os.name == "nt", reason="pipes and limits of POSIX")
@pytest.mark.parametrize(("kind", "row"), CASES)
def test_hostile_files_get_one_line(run, tmp_path, request, kind, row):
    if kind == "sound":
        request.getfixturevalue("listener")
    path = tmp_path / row.name
    if callable(row.content):
        row.content(path)
    else:
        path.write_bytes(row.content)
    words = [row.name if word == "FILE" else word for word in TABLE[kind][0]]
    begun = time.process_time()
    with bounded(seconds=120, mebibytes=1024):
        code, err = run(*words)
    assert "MemoryError" not in err
    assert "allocate" not in err
    if row.says.startswith(READ):
        assert (code, err) == (0, "")
        if "without the texture" in row.says:
            assert algonet.Mesh.load(path).texture is None
        return
    assert code == 1
    assert err.startswith("algonet: ")
    assert row.says in err
    # A mistake in a program is shown with its line and a caret below it
    assert err.count("\n") <= (3 if kind == "program" else 1), err[:500]
    assert len(err) < 1000, err[:500]
    assert time.process_time() - begun < SECONDS
    assert not (tmp_path / "out.png").exists()


def table() -> str:
    """The table as SECURITY.md has it."""
    lines = ["| file | with | gets |", "|---|---|---|"]
    for kind, (_, rows) in TABLE.items():
        for row in rows:
            gets = row.says if row.says.startswith(READ) else f'exit code 1: "{row.says}"'
            lines.append(f"| {kind} | {row.what} | {gets} |")
    return "\n".join(lines) + "\n"


def test_the_table_is_in_the_documentation():
    assert table() in SECURITY.read_text(encoding="utf-8"), "PYTHONPATH=tests:tests/cli python -m test_hostile"


def test_texture_in_the_folder_is_read(tmp_path):
    """What is refused outside is not refused inside, also below."""
    (tmp_path / "pictures").mkdir()
    Image.new("RGB", (4, 4), (255, 0, 0)).save(tmp_path / "pictures" / "red.png")
    (tmp_path / "a.mtl").write_text("newmtl a\nmap_Kd pictures/red.png\n")
    (tmp_path / "a.obj").write_bytes(b"mtllib a.mtl\nusemtl a\n" + TEXTURED)
    texture = algonet.Mesh.load(tmp_path / "a.obj").texture
    assert texture is not None
    assert torch.equal(texture[0, 0], torch.tensor([1.0, 0.0, 0.0]))


if __name__ == "__main__":
    text = SECURITY.read_text(encoding="utf-8")
    found = re.sub(r"\| file \| with \| gets \|\n(\|[^\n]*\n)*", lambda _: table(), text)
    SECURITY.write_text(found, encoding="utf-8")
    print(f"wrote {SECURITY}")

"""Picture files, through every reader the library has."""

from __future__ import annotations

import io
import itertools
import struct
import zlib
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from algonet.fit.ifs import read_picture
from algonet.fit.targets import read_pictures
from algonet.ran.data import read_views

from .mutations import NOISE, damaged
from .reading import budget, read_or_explain

ENDINGS = ("png", "jpg", "webp", "bmp")


def _alone(path: Path) -> torch.Tensor:
    """By the reader of several pictures."""
    return read_pictures([path], 8)


READERS = {
    "ifs fit": lambda path: read_picture(path)[0],
    "ran reconstruct": lambda path: read_views(path, 64, 1),
    "fit-mesh": _alone,
}


def encoded(image: Image.Image, format: str, **options) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, format, **options)
    return buffer.getvalue()


def scene(mode: str, level: int = 255, side: int = 12) -> Image.Image:
    """A disc of brightness `level` on black."""
    place = np.arange(side) - side / 2 + 0.5
    disc = Image.fromarray(((place[:, None] ** 2 + place**2 < side * side / 9) * level).astype(np.uint8))
    if mode == "I;16":
        return Image.fromarray(np.asarray(disc).astype(np.uint16) * 257)
    if mode == "LA":
        return Image.merge("LA", (disc, disc))
    return disc.convert("RGB").convert(mode) if mode == "PA" else disc.convert(mode)


VALID = {
    "png": [encoded(scene(mode), "PNG") for mode in ("1", "L", "LA", "P", "RGB", "RGBA", "I;16")],
    "jpg": [encoded(scene(mode), "JPEG") for mode in ("L", "RGB", "CMYK")],
    "webp": [encoded(scene(mode), "WEBP") for mode in ("RGB", "RGBA")],
    "bmp": [encoded(scene(mode), "BMP") for mode in ("1", "L", "P", "RGB", "RGBA")],
}


@pytest.fixture(scope="module")
def read(tmp_path_factory):
    """Write bytes as the only picture of a folder and read it with every reader; returns what each gave."""
    folder = tmp_path_factory.mktemp("pictures")
    numbers = itertools.count()

    def run(data: bytes, ending: str) -> dict[str, torch.Tensor | None]:
        path = folder / f"p{next(numbers)}.{ending}"
        path.write_bytes(data)
        found = {}
        try:
            for name, reader in READERS.items():
                found[name] = read_or_explain(lambda reader=reader: reader(path), names=path.name)
                if found[name] is not None:
                    assert torch.isfinite(found[name]).all()
                    assert 0 <= float(found[name].min()) <= float(found[name].max()) <= 1
        finally:
            path.unlink()
        return found

    return run


@pytest.mark.parametrize("ending", ENDINGS)
def test_every_mode_is_read(ending, read):
    for data in VALID[ending]:
        for name, found in read(data, ending).items():
            assert found is not None, name
            assert float(found.max()) > 0.9, f"{name}: the disc is not bright"


def test_sixteen_bits_keep_their_greys(read):
    found = read(encoded(scene("I;16", level=128), "PNG"), "png")
    assert float(found["ifs fit"].max()) == pytest.approx(128 / 255)
    assert float(found["ran reconstruct"].max()) == pytest.approx(128 / 255, abs=0.1)  # resized
    assert float(found["fit-mesh"][..., :3].max()) == pytest.approx(128 / 255, abs=0.1)


@pytest.mark.parametrize("ending", ENDINGS)
def test_damaged_picture(ending, read):
    @given(damaged(VALID[ending]))
    @budget(50)
    def check(data: bytes) -> None:
        read(data, ending)

    check()


@given(NOISE, st.sampled_from((*ENDINGS, "jpeg")))
@budget(50)
def test_noise_is_no_picture(read, data, ending):
    read(data, ending)


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def _png(width: int, height: int, rows: bytes, extra: bytes = b"") -> bytes:
    header = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n"
        + _chunk(b"IHDR", header)
        + extra
        + _chunk(b"IDAT", zlib.compress(rows, 9))
        + _chunk(b"IEND", b"")
    )


LIES = {
    "no bytes": b"",
    "no pixels": _png(0, 0, b""),
    "a text": b"this is no picture\n",
    "half": VALID["png"][4][:60],
    "two billion pixels": _png(50_000, 40_000, b""),
    "a bomb": _png(20_000, 20_000, bytes(20_001 * 1000)),
    "below Pillow's own limit": _png(13_000, 13_000, bytes(13_001 * 100)),
    "a bomb in a text": _png(4, 4, bytes(20), _chunk(b"zTXt", b"a\0\0" + zlib.compress(bytes(10**8), 9))),
}


@pytest.mark.parametrize("name", LIES)
def test_lying_picture_is_refused(name, read):
    assert set(read(LIES[name], "png").values()) == {None}


def test_odd_pictures_are_read_or_refused(read):
    read(_png(64, 64, bytes(65)), "png")  # fewer rows than promised
    for size in ((1, 1), (1, 7), (7, 1), (1, 500)):
        read(encoded(Image.new("RGB", size, "white"), "PNG"), "png")


def test_other_things_than_files(tmp_path):
    for path in (tmp_path, tmp_path / "none.png"):
        for name in ("ifs fit", "ran reconstruct"):
            assert read_or_explain(lambda name=name, path=path: READERS[name](path), names=path.name) is None

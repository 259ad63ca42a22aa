"""Sound files: whatever they hold, they are read or named in one line."""

from __future__ import annotations

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

from algonet.speech import read_wav, wav_bytes

from .mutations import NOISE, NUMBERS, damaged
from .reading import budget, read_or_explain

WHOLE = wav_bytes(torch.sin(torch.arange(64) / 3), 16_000)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("sounds")


@given(st.one_of(NOISE, damaged([WHOLE], (*NUMBERS, b"fmt ", b"data", b"LIST", b"RIFX", b"\xff\xff\xff\xff"))))
@example(WHOLE[:40] + b"\xff\xff\xff\xff" + WHOLE[44:])
@example(WHOLE[:22] + b"\x00\x00" + WHOLE[24:])
@example(WHOLE[:24] + b"\x00\x00\x00\x00" + WHOLE[28:])
@example(WHOLE[:34] + b"\x00\x00" + WHOLE[36:])
@example(WHOLE[:34] + b"\xff\xff" + WHOLE[36:])
@budget(150)
def test_damaged_sound(folder, data):
    path = folder / "sound.wav"
    path.write_bytes(data)
    found = read_or_explain(lambda: read_wav(path), names=path.name)
    if found is not None:
        sound, rate = found
        assert torch.isfinite(sound).all()
        assert float(sound.abs().max()) <= 1
        assert rate > 0

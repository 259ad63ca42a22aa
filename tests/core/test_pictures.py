"""Pictures as bytes and files, and the checks of what describes them."""

from __future__ import annotations

import io

import numpy as np
import pytest
import torch
from PIL import Image

from algonet.core.checks import check_integer, check_size
from algonet.core.pictures import gif_bytes, png_bytes, to_bytes


def test_values_become_bytes_by_rounding_and_are_kept_in_range():
    values = torch.tensor([[-1.0, 0.0, 0.5], [0.999, 1.0, 2.0]])
    assert to_bytes(values).tolist() == [[0, 0, 128], [255, 255, 255]]
    assert to_bytes(values, colored=True).shape == (2, 3, 3)
    assert (to_bytes(values, colored=True) == to_bytes(values)[..., None]).all()


def test_a_png_holds_the_bytes_of_values_and_of_arrays():
    values = torch.rand(5, 4, 3, generator=torch.Generator().manual_seed(0))
    for content in (png_bytes(values), png_bytes(to_bytes(values)), png_bytes(values.movedim(-1, 0).movedim(0, -1))):
        assert (np.asarray(Image.open(io.BytesIO(content))) == to_bytes(values)).all()


def test_a_gif_rests_at_its_last_frame():
    frames = [np.full((4, 4, 3), level, np.uint8) for level in (0, 100, 200)]
    for rest, last in ((None, 80), (1500, 1500)):
        film = Image.open(io.BytesIO(gif_bytes(frames, 80, rest)))
        durations = []
        for frame in range(film.n_frames):
            film.seek(frame)
            durations.append(film.info["duration"])
        assert durations == [80, 80, last]


def test_integers_and_sizes_are_checked():
    check_integer("f", "n", 3, 1)
    assert check_size("f", 4) == check_size("f", [4, 4]) == (4, 4)
    for value in (0, True, 2.0, 21, None):
        with pytest.raises(ValueError, match="f: `n` must be an integer from 1 to 20, got"):
            check_integer("f", "n", value, 1, 20)
    for size in (True, 0, (4,), (4, 0), (4, True), 4.0, None):
        with pytest.raises(ValueError, match="f: `size` must be"):
            check_size("f", size)

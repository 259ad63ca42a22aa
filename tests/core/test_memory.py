"""Absurd sizes are refused with the memory they would take, before it is taken."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from algonet import render, sorting
from algonet.core import memory
from algonet.core.memory import check_memory, free_memory, pretty
from algonet.ifs import IFS, Poisson, draw_addresses, draw_choices, smooth_raster
from algonet.render import Camera, SmoothRenderer, icosphere
from algonet.smooth_python import Particles, Perturb, algorithms
from algonet.speech import SmoothSynthesizer

CPU = torch.device("cpu")
BALL, CAMERA = icosphere(0), Camera.look_at((0.0, 0.0, 3.0))
FERN = IFS.preset("fern", points=64)
#: A number that claims to be many: the storage holds one.
MANY = torch.zeros(1).expand(2**40)
SYNTHESIZER = SmoothSynthesizer(phonemes="a i")
SCORE = SYNTHESIZER.score("a")
SMALL = {"vertices": BALL.vertices, "faces": BALL.faces, "attributes": BALL.vertices, "camera": CAMERA}

#: What is asked -> the call.
ABSURD: dict[str, Callable[[], object]] = {
    "a picture of a fern": lambda: FERN(1_000_000),
    "a crisp one": lambda: FERN.crisp(10**9),
    "crisp points": lambda: FERN.crisp(8, points=10**14),
    "points": lambda: IFS.preset("koch", points=10**12),
    "a raster": lambda: smooth_raster(torch.rand(3, 2), (10**9, 10**9), aggregate=Poisson()),
    "addresses": lambda: draw_addresses(torch.ones(2), 10**12, 4),
    "choices": lambda: draw_choices(torch.ones(2), 10**6, 10**8),
    "a renderer": lambda: SmoothRenderer(10**6),
    "attributes": lambda: render.render_attributes(**SMALL, size=(10**9, 10**9)),
    "a hard picture": lambda: render.render_hard(**SMALL, size=(10**6, 10**6)),
    "a box": lambda: render.box(segments=10**9),
    "a torus": lambda: render.torus(segments=(10**7, 10**7)),
    "a cylinder": lambda: render.cylinder(segments=10**13),
    "short edges": lambda: render.remesh(BALL.vertices, BALL.faces, 1e-9, passes=40),
    "a texture": lambda: render.fit_texture(
        BALL, render.Targets(Camera.look_at(torch.tensor([[0.0, 0.0, 3.0]])), rgb=torch.ones(1, 8, 8, 4)), size=10**9
    ),
    "rotations": lambda: render.fit_camera(BALL, torch.ones(8, 8), search=render.PoseSearch(rotations=10**12)),
    "items": lambda: sorting.soft_sort(MANY, backend="reference"),
    "ranks of items": lambda: sorting.soft_rank(MANY),
    "a median of items": lambda: sorting.soft_median(MANY),
    "a permutation": lambda: sorting.soft_sort(torch.zeros(10**7), return_permutation=True),
    "a soft permutation": lambda: sorting.soft_sort(torch.zeros(10**7), method=sorting.NeuralSort()),
    "layers": lambda: sorting.soft_sort(torch.zeros(4), method=sorting.OddEven(), steps=10**14),
    "a network": lambda: sorting.Bitonic().table(2**40),
    "samples": lambda: SYNTHESIZER(*SCORE, length=10**13),
    "harmonics": lambda: SmoothSynthesizer(phonemes="a i", harmonics=10**12)(*SCORE),
    "frames": lambda: SYNTHESIZER.envelope(*SCORE, frames=10**13),
    "particles": lambda: algorithms.bubble_sort(torch.rand(3), paths=Particles(10**14)),
    "samples of noise": lambda: algorithms.bubble_sort(torch.rand(3), paths=Perturb(10**14)),
}


@pytest.mark.parametrize("name", ABSURD)
def test_absurd_sizes_are_refused_with_what_they_would_take(name):
    with pytest.raises(
        ValueError, match=r"would take \d[\d.]* [TPEG]iB, and this machine has .* free; ask for less\.$"
    ):
        ABSURD[name]()


def test_a_year_of_speech_is_refused():
    year = SCORE.durations * 0 + 365 * 86400.0
    with pytest.raises(ValueError, match=r"an utterance of 31536000\.0 seconds"):
        SYNTHESIZER(SCORE.phonemes, year, SCORE.pitch, SCORE.loudness)


def test_what_fits_is_not_refused():
    free = free_memory(CPU)
    assert free is not None
    check_memory("f", "it", free // 2)
    with pytest.raises(ValueError, match="f: it would take"):
        check_memory("f", "it", free + 2**40)


def test_limits_of_a_process_count(monkeypatch):
    monkeypatch.setattr(memory, "_address_space", lambda: 2**29)
    assert free_memory(CPU) == 2**29
    with pytest.raises(ValueError, match=r"would take 1\.0 GiB, and this machine has 512\.0 MiB free"):
        check_memory("f", "it", 2**30)
    for name in ("_address_space", "_available"):
        monkeypatch.setattr(memory, name, lambda: None)
    check_memory("f", "it", 2**80)  # nobody knows better


@pytest.mark.skipif(sys.platform != "linux", reason="limits of address space are Linux's")
def test_a_limit_of_the_system_is_seen():
    code = (
        "import resource\nfrom algonet.core import memory\n"
        "resource.setrlimit(resource.RLIMIT_AS, (2**36, 2**36)); print(0 < memory._address_space() < 2**36)"
    )
    environment = {**os.environ, "PYTHONPATH": str(Path(memory.__file__).parents[2])}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, timeout=100)
    assert done.stdout.strip() == "True", done.stderr


def test_sizes_read_well():
    assert [pretty(n) for n in (0, 1023, 2**10, 1.5 * 2**40, 10**40)][:4] == [
        "0 bytes",
        "1023 bytes",
        "1.0 KiB",
        "1.5 TiB",
    ]
    assert pretty(10**40).endswith("EiB")


@pytest.mark.gpu
def test_a_gpu_is_asked_for_its_own():
    with pytest.raises(ValueError, match=r"and cuda(:0)? has"):
        smooth_raster(torch.rand(3, 2, device="cuda"), (10**6, 10**6), aggregate=Poisson())

"""Commands in this process, with less to compute than a user's."""

from __future__ import annotations

import signal
import sys
from functools import partial

import pytest
from PIL import Image

import algonet.apps.gallery
import algonet.fit
import algonet.ifs
import algonet.ran.build
from algonet import cli
from algonet.fit import FitPlan, Level, Search
from algonet.ran.config import from_dict

SYSTEM = {
    "kind": "ifs",
    "data": {"size": 16, "train": 4, "validation": 2, "test": 2},
    "model": {"base": 4},
}


@pytest.fixture
def small(monkeypatch):
    """The same commands with less to compute: what is fitted is not what is tested here."""
    search = Search(candidates=2, points=16, steps=1, side=8)
    level = Level(side=8, sigma=(2.0, 1.0), steps=1, rate=0.01, points=16, depth=4, keep=1)
    monkeypatch.setattr(algonet.fit, "FitPlan", lambda **_: FitPlan(1, search, (level,)))
    least = {"rotations": 1, "steps": 1, "size": 8, "keep": 1, "refine_steps": 1, "refine_size": 8}
    poses = algonet.fit.PoseSearch
    monkeypatch.setattr(algonet.fit, "PoseSearch", lambda **_: poses(**least))
    monkeypatch.setattr(algonet.fit, "fit_camera", partial(algonet.fit.fit_camera, steps=1))
    monkeypatch.setattr(algonet.apps.gallery, "build", lambda *_: [])
    config = from_dict(SYSTEM)
    model = algonet.ran.build_model(config)
    monkeypatch.setattr(algonet.ran.build, "load_model", lambda _: (model, config))


@pytest.fixture
def run(small, monkeypatch, capfd, tmp_path):
    """Run a command in this process, in a folder with a picture: (exit code, standard error)."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ALGONET_QUIET", "1")
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    Image.radial_gradient("L").resize((32, 32)).point(lambda grey: grey if grey < 160 else 255).save("leaf.png")

    def run(*words: str) -> tuple[int, str]:
        monkeypatch.setattr(sys, "argv", ["algonet", *words])
        with pytest.raises(SystemExit) as stopped:
            cli.main()
        return int(stopped.value.code or 0), capfd.readouterr().err

    yield run
    for number, handler in handlers.items():
        signal.signal(number, handler)

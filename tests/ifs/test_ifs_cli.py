"""`algonet ifs`: what it writes, and its one-line errors."""

from __future__ import annotations

import pytest
import torch
from PIL import Image
from typer.testing import CliRunner

from algonet.cli.common import parse_size
from algonet.cli.ifs_commands import app
from algonet.ifs import IFS


@pytest.fixture
def picture(tmp_path):
    with torch.no_grad():
        values = IFS.preset("sierpinski", points=4000)((40, 40))
    path = tmp_path / "triangle.png"
    Image.fromarray((values * 255).byte().numpy()).save(path)
    return path


def run(*arguments):
    return CliRunner().invoke(app, [str(a) for a in arguments])


def test_fit_writes_parameters_picture_and_film_and_render_reads_them(picture, tmp_path):
    done = run("fit", picture, "--functions", 3, "--out", tmp_path / "found", "--quick", "--restarts", 2)
    assert done.exit_code == 0, done.output
    assert "similarity (SSIM)" in done.output
    with Image.open(tmp_path / "found" / "triangle.gif") as film:
        assert film.n_frames > 3
    with Image.open(tmp_path / "found" / "triangle.png") as drawn:
        assert drawn.size == (160, 160)
    done = run(
        "render",
        tmp_path / "found" / "triangle.json",
        "--size",
        "64x48",
        "--out",
        tmp_path / "big.png",
        "--points",
        500,
    )
    assert done.exit_code == 0, done.output
    with Image.open(tmp_path / "big.png") as drawn:
        assert drawn.size == (64, 48)


@pytest.mark.parametrize("extra", [[], ["--crisp"]])
def test_render_draws_presets(tmp_path, extra):
    path = tmp_path / "fern.png"
    assert run("render", "fern", "--size", "60x40", "--out", path, "--points", 3000, *extra).exit_code == 0
    with Image.open(path) as drawn:
        assert drawn.size == (60, 40)
        assert drawn.getextrema()[1] > 100


def test_list_names_the_presets():
    assert "sierpinski" in run("list").output


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["render", "oak"], "oak: no such file, and no such preset; presets are fern"),
        (["render", "fern", "--size", "big"], "--size: wanted WIDTHxHEIGHT such as 1024x768, or one number, got 'big'"),
        (["render", "fern", "--size", "0x5"], "--size: wanted between 1 and"),
        (["render", "fern", "--size", "20x20", "--sigma", "0"], "`sigma` must be positive"),
        (["fit", "nowhere.png"], "nowhere.png: there is no such file"),
    ],
)
def test_errors_are_one_line(arguments, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    done = run(*arguments)
    assert done.exit_code != 0
    assert message in str(done.exception)
    assert "\n" not in str(done.exception)


def test_sizes():
    assert parse_size(" 1024 x 768") == (1024, 768)
    assert parse_size("256") == (256, 256)

"""What the package promises before anything is called."""

from __future__ import annotations

import runpy
import subprocess
import sys
from importlib import resources
from pathlib import Path

import pytest

import algonet

DOMAINS = ("relax", "while_lang", "smooth_python", "sorting", "ifs", "render", "nn", "speech", "ran", "explain")
HEAVY = ["numba", "triton", "matplotlib", "trimesh", "lark", "typer", "rich", "lightning_fabric", "PIL"]


def _python(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_import_is_light():
    """No kernel compiler, no plotting, no mesh library before it is needed."""
    new = "import torch, sys\nbefore = set(sys.modules)\nimport algonet\nnew = set(sys.modules) - before\n"
    loaded = _python(f"{new}print([name for name in {HEAVY} if name in new])")
    assert loaded == "[]"


def test_import_of_each_domain_is_light():
    """Kernels, parsers and plots load when they are first used."""
    loaded = _python(
        "import importlib, torch, sys\nbefore = set(sys.modules)\n"
        f"for domain in {DOMAINS}:\n    importlib.import_module('algonet.' + domain)\n"
        f"    print(*(domain + ' loads ' + name for name in {HEAVY} if name in set(sys.modules) - before))"
    )
    assert loaded.split() == []


def test_import_takes_well_under_a_second_beyond_torch():
    # Processor time: a busy machine must not fail a test
    clock = "time.process_time()"
    names = ", ".join(f"algonet.{domain}" for domain in DOMAINS)
    measured = _python(
        f"import torch, time\na = {clock}\nimport algonet\nb = {clock}\nimport {names}\nprint(b - a, {clock} - b)"
    )
    package, domains = map(float, measured.split())
    assert package < 0.3
    assert domains < 1.5


def test_types_ship():
    assert resources.files("algonet").joinpath("py.typed").is_file()


def test_every_public_name_exists():
    for name in algonet.__all__:
        assert getattr(algonet, name) is not None
    assert set(algonet.__all__) <= set(dir(algonet))


def test_unknown_names_are_attribute_errors():
    with pytest.raises(AttributeError, match="module 'algonet' has no attribute 'soft_srot'"):
        algonet.soft_srot  # noqa: B018


@pytest.mark.parametrize(
    "path", sorted((Path(__file__).parents[1] / "examples").glob("*.py")), ids=lambda path: path.stem
)
def test_examples_import_and_explain_themselves(path, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", [str(path), "--help"])
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(str(path), run_name="__main__")
    assert ended.value.code == 0
    assert "usage: " in capsys.readouterr().out
    assert not list(tmp_path.iterdir())

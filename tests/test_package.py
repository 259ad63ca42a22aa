"""What the package promises before anything is called."""

from __future__ import annotations

import subprocess
import sys

import pytest

import algonet


def _python(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_import_is_light():
    """No kernel compiler, no plotting, no mesh library before it is needed."""
    heavy = ["numba", "triton", "matplotlib", "trimesh", "lark", "typer", "rich", "lightning_fabric", "PIL"]
    new = "import torch, sys\nbefore = set(sys.modules)\nimport algonet\nnew = set(sys.modules) - before\n"
    loaded = _python(f"{new}print([name for name in {heavy} if name in new])")
    assert loaded == "[]"


def test_import_takes_well_under_a_second_beyond_torch():
    seconds = _python("import torch, time\nt = time.perf_counter()\nimport algonet\nprint(time.perf_counter() - t)")
    assert float(seconds) < 0.5


def test_every_public_name_exists():
    for name in algonet.__all__:
        assert getattr(algonet, name) is not None
    assert set(algonet.__all__) <= set(dir(algonet))


def test_unknown_names_are_attribute_errors():
    with pytest.raises(AttributeError, match="module 'algonet' has no attribute 'soft_srot'"):
        algonet.soft_srot  # noqa: B018

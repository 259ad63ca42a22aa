"""The wheel: pure Python, with everything it needs inside, and importable without the repository."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    build = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "-w", str(folder)]
    done = subprocess.run([*build, str(ROOT)], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return next(folder.glob("*.whl"))


def test_is_pure_python_for_every_platform(wheel):
    assert wheel.name.endswith("-py3-none-any.whl")


def test_holds_what_is_read_at_run_time_and_nothing_else(wheel):
    names = zipfile.ZipFile(wheel).namelist()
    shipped = {
        path.relative_to(ROOT / "src").as_posix() for path in (ROOT / "src/algonet").rglob("*") if path.is_file()
    }
    shipped = {name for name in shipped if "__pycache__" not in name}
    assert shipped <= set(names)
    assert "algonet/py.typed" in names
    assert not [name for name in names if not name.startswith(("algonet/", "algonet-"))]


def test_imports_and_runs_from_the_wheel_alone(wheel, tmp_path):
    zipfile.ZipFile(wheel).extractall(tmp_path / "site")
    code = (
        f"import sys; sys.path.insert(0, {str(tmp_path / 'site')!r})\n"
        "import algonet, torch; assert algonet.__file__.startswith(sys.path[0]), algonet.__file__\n"
        "print(algonet.soft_max(torch.tensor([1.0, 2.0]), steepness=100.0).item())"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path, timeout=120)
    assert done.stdout.strip() == "2.0", done.stderr

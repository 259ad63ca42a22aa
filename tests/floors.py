"""`make floors`: a part of the tests with the oldest and the newest releases of what the package stands on.

Each row is an environment of its own, made and removed again; `docs/platform.md` says what came out. Some builds of torch bring
gigabytes of CUDA with them: give `--torch` to try those, from an index that has builds for CPUs.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
TORCH = re.search(r"^torch==(\S+)", (ROOT / "constraints.txt").read_text("utf-8"), re.MULTILINE)
#: Pins of each row; torch is that of constraints.txt unless `--torch` names others.
ROWS = (
    ("numba==0.60.*", "numpy==1.26.*"),
    ("numba==0.61.*", "numpy==2.0.*"),
    ("numba", "numpy"),
)
TESTS = (
    "tests/test_package.py",
    "tests/sorting/test_sort.py",
    "tests/while_lang",
    "tests/ifs/test_contract.py",
    "tests/render/test_kernel.py",
)
TOOLS = ("pytest>=8.0", "hypothesis", "scipy", "mpmath", "pytest-xdist", "scikit-learn")  # what those tests import


def tried(torch: str, pins: tuple[str, ...], tests: list[str]) -> bool:
    """Whether the tests pass in a new environment with these releases."""
    with tempfile.TemporaryDirectory() as home:
        subprocess.run([sys.executable, "-m", "venv", home], check=True)
        python = Path(home) / "bin" / "python"
        pip = [str(python), "-m", "pip", "install", "--quiet"]
        subprocess.run([*pip, f"torch=={torch}", *pins], check=True)
        subprocess.run([*pip, f"torch=={torch}", *pins, *TOOLS, f"{ROOT}[cli]"], check=True)
        environment = {**os.environ, "ALGONET_CACHE": str(Path(home) / "kernels"), "PYTHONPATH": ""}
        done = subprocess.run([str(python), "-m", "pytest", "-q", "-x", *tests], cwd=ROOT, env=environment, check=False)
    return done.returncode == 0


def main() -> None:
    """Try every row, print a table, and fail if one does."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--torch", nargs="+", default=[TORCH[1] if TORCH else ""], help="releases of torch to try")
    options.add_argument("tests", nargs="*", default=list(TESTS))
    given = options.parse_args()
    rows = [(torch, pins, tried(torch, pins, given.tests)) for torch in given.torch for pins in ROWS]
    python = ".".join(map(str, sys.version_info[:2]))
    for torch, pins, passed in rows:
        print(f"Python {python}, torch {torch}, {', '.join(pins)}: {'passed' if passed else 'FAILED'}")
    sys.exit(not all(passed for *_, passed in rows))


if __name__ == "__main__":
    main()

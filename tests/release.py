"""`make release-check`: build, check the metadata, install wheel and sdist into empty environments, run a smoke test in each.

Nothing is uploaded. torch is installed first, as pinned in constraints.txt.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
PINNED = re.search(r"^torch==\S+", (ROOT / "constraints.txt").read_text("utf-8"), re.MULTILINE)
SMOKE = """
import torch, algonet
x = torch.tensor([[3.0, 1.0, 2.0]], requires_grad=True)
algonet.soft_sort(x).values.sum().backward()
print("sorts:", x.grad.tolist())
multiply = algonet.WhileProgram.library("multiply", algonet.Tent())
print("multiplies:", float(multiply(x1=torch.tensor(3.0), x2=torch.tensor(4.0))))
print("renders:", tuple(algonet.SmoothRenderer(16)(algonet.icosphere(1), algonet.Camera.look_at((0.0, 0.0, 3.0))).rgb.shape))
"""


def run(*command: str | Path) -> None:
    print("+", *command, flush=True)
    subprocess.run([str(word) for word in command], check=True)


def main() -> None:
    """Build both distributions, and try each in an environment of its own."""
    dist = ROOT / "dist"
    shutil.rmtree(dist, ignore_errors=True)
    run(sys.executable, "-m", "hatchling", "build")
    run(sys.executable, "-m", "twine", "check", "--strict", *dist.iterdir())
    for file in sorted(dist.iterdir()):
        with tempfile.TemporaryDirectory() as home:
            run(sys.executable, "-m", "venv", home)
            python = Path(home) / "bin" / "python"
            pip = [python, "-m", "pip", "install", "--quiet", "--constraint", ROOT / "constraints.txt"]
            run(*pip, PINNED[0] if PINNED else "torch")
            run(*pip, file)
            run(python, "-c", SMOKE)
    print("ready for release:", *sorted(file.name for file in dist.iterdir()))


if __name__ == "__main__":
    main()

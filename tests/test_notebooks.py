"""The notebooks: each runs from top to bottom, quickly, with the first cell (which installs) left out."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

nbformat = pytest.importorskip("nbformat")
pytest.importorskip("IPython")

ROOT = Path(__file__).parents[1]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))


def test_there_are_six_and_each_installs_first():
    assert len(NOTEBOOKS) == 6
    for path in NOTEBOOKS:
        cells = nbformat.read(path, 4).cells
        assert cells[0].cell_type == "markdown"
        assert cells[1].source.startswith("%pip install")
        assert len(cells) <= 12, "short"


#: Runs the cells on standard input in the shell that a kernel has inside it: with a kernel come threads and sockets, and
#: ipykernel 7 and its client now and then wait for each other for ever.
RUN = """
import json, sys
from IPython.core.interactiveshell import InteractiveShell
from IPython.utils.capture import capture_output

shell, shown, wrong = InteractiveShell.instance(), 0, []
for cell in json.load(sys.stdin):
    with capture_output() as output:
        result = shell.run_cell(cell, store_history=True)
    shown += len(output.outputs) + bool(output.stdout)
    if not result.success or output.stderr:
        wrong.append(f"{cell}\\n{output.stdout}\\n{output.stderr}")
print(json.dumps({"shown": shown, "wrong": wrong}))
"""


@pytest.mark.slow
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_runs(path, tmp_path):
    cells = [
        cell.source
        for cell in nbformat.read(path, 4).cells
        if cell.cell_type == "code" and "install" not in cell.metadata.get("tags", ())
    ]
    paths = os.pathsep.join([str(ROOT / "src"), os.environ.get("PYTHONPATH", "")])
    environment = {
        **os.environ, "PYTHONPATH": paths, "ALGONET_QUIET": "1", "IPYTHONDIR": str(tmp_path),
        "MPLBACKEND": "module://matplotlib_inline.backend_inline",
    }  # fmt: skip
    run = subprocess.run(
        [sys.executable, "-c", RUN], input=json.dumps(cells), env=environment, cwd=tmp_path, text=True, capture_output=True,
        timeout=600,
    )  # fmt: skip
    assert run.returncode == 0, run.stderr
    report = json.loads(run.stdout.splitlines()[-1])
    assert not report["wrong"]
    assert report["shown"] > 0

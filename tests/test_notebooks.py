"""The notebooks: each runs from top to bottom, quickly, with the first cell (which installs) left out."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

nbformat = pytest.importorskip("nbformat")
nbclient = pytest.importorskip("nbclient")
pytest.importorskip("ipykernel")

ROOT = Path(__file__).parents[1]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))


def test_there_are_six_and_each_installs_first():
    assert len(NOTEBOOKS) == 6
    for path in NOTEBOOKS:
        cells = nbformat.read(path, 4).cells
        assert cells[0].cell_type == "markdown"
        assert cells[1].source.startswith("%pip install")
        assert len(cells) <= 12, "short"


#: For each cell, one try after the other. A whole notebook takes ten seconds on an idle machine.
SECONDS = (60, 60, 120, 240)


def executed(path, folder):
    """The notebook after all its cells but the one that installs have run.

    Now and then a message gets lost between the threads of ipykernel 7, and client and kernel wait for each other, both idle:
    then again, with another kernel.
    """
    for seconds in SECONDS:
        notebook = nbformat.read(path, 4)
        notebook.cells = [cell for cell in notebook.cells if "install" not in cell.metadata.get("tags", ())]
        client = nbclient.NotebookClient(notebook, timeout=seconds, resources={"metadata": {"path": str(folder)}})
        try:
            client.execute()
        except nbclient.exceptions.CellTimeoutError:
            continue
        return notebook
    pytest.fail(f"{path.stem}: a cell took more than {SECONDS[-1]} s")


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # jupyter's own
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_runs(path, tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT / "src"), os.environ.get("PYTHONPATH", "")]))
    monkeypatch.setenv("ALGONET_QUIET", "1")
    monkeypatch.setenv("MPLBACKEND", "module://matplotlib_inline.backend_inline")
    notebook = executed(path, tmp_path)
    shown = [output for cell in notebook.cells if cell.cell_type == "code" for output in cell.outputs]
    assert shown
    assert not [output for output in shown if output.output_type == "error" or output.get("name") == "stderr"]

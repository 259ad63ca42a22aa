"""The notebooks as pages of the documentation (a hook of mkdocs), and how their outputs are made again:

python docs/notebooks.py             # run all of them and keep what they show; some minutes
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parents[1] / "notebooks"
NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))
STATE = "application/vnd.jupyter.widget-state+json"
VIEW = "application/vnd.jupyter.widget-view+json"
HEAD = "!!! note\n\n    This page is `notebooks/{}` of the repository: run it there, and the sliders move.\n\n"


def on_files(files: Any, config: Any) -> Any:
    """Add a page for each notebook, and its pictures."""
    from mkdocs.structure.files import File
    from nbconvert import MarkdownExporter

    for path in NOTEBOOKS:
        # Pictures are named by their notebook: all pages share a folder
        body, resources = MarkdownExporter().from_filename(str(path), resources={"unique_key": path.stem})
        title, _, rest = body.lstrip().partition("\n")
        page = f"{title}\n\n{HEAD.format(path.name)}{rest}"
        files.append(File.generated(config, f"notebooks/{path.stem}.md", content=page))
        for name, data in resources["outputs"].items():
            files.append(File.generated(config, f"notebooks/{name}", content=data))
    return files


def run(path: Path) -> None:
    """Run a notebook and keep its outputs; of a slider, what it shows at first."""
    import nbclient
    import nbformat

    # Where kernels are kept on this machine is nobody else's affair
    os.environ["ALGONET_QUIET"] = "1"
    notebook = nbformat.read(path, 4)
    install = [cell for cell in notebook.cells if "install" in cell.metadata.get("tags", ())]
    rest = [cell for cell in notebook.cells if cell not in install]
    shown = nbformat.from_dict({**notebook, "cells": rest})
    nbclient.NotebookClient(shown, timeout=600, resources={"metadata": {"path": str(FOLDER)}}).execute()
    widgets = shown.metadata.pop("widgets", {}).get(STATE, {}).get("state", {})
    rest = shown.cells
    for cell in rest:
        cell.metadata.pop("execution", None)
        if cell.cell_type == "code":
            cell.outputs = [found for output in cell.outputs for found in _at_first(output, widgets)]
    notebook.cells = [notebook.cells[0], *install, *rest[1:]]
    nbformat.write(notebook, path)
    print(path.name, flush=True)


def _at_first(output: Any, widgets: dict[str, Any]) -> list[Any]:
    """An output itself; instead of a widget, the outputs that it holds."""
    import nbformat

    view = output.get("data", {}).get(VIEW)
    if view is None:
        return [output]
    children = widgets.get(view["model_id"], {}).get("state", {}).get("children", [])
    states = [widgets.get(child.removeprefix("IPY_MODEL_"), {}).get("state", {}) for child in children]
    return [nbformat.from_dict(found) for state in states for found in state.get("outputs", [])]


if __name__ == "__main__":
    for chosen in NOTEBOOKS:
        if not sys.argv[1:] or chosen.stem in sys.argv[1:]:
            run(chosen)

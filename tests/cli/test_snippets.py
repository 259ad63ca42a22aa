"""The code under the gallery's pictures: each runs alone, by copy and paste, and prints something."""

from __future__ import annotations

import contextlib
import io
import linecache

import pytest
import torch

from algonet.apps import gallery


def run_alone(code: str, name: str) -> str:
    """What a program prints, with nothing defined but what it imports; `@smooth` finds its source as in a notebook."""
    linecache.cache[name] = (len(code), None, code.splitlines(keepends=True), name)
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        exec(compile(code, name, "exec"), {"__name__": "__main__"})
    return out.getvalue()


@pytest.mark.parametrize("figure", gallery.snippets(), ids=lambda figure: "-".join(figure).replace(" ", "_"))
def test_runs_alone_and_prints(figure, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)
    assert run_alone(gallery.snippets()[figure], f"<{'-'.join(figure)}>").strip()

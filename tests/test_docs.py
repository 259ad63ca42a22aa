"""Every Python block of the documentation and the README runs, top to bottom, in one namespace per page."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("**/*.md"))]
BLOCK = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)


def blocks(page: Path) -> list[tuple[int, str]]:
    """(line, code) of each Python block."""
    text = page.read_text(encoding="utf-8")
    return [(text[: match.start(1)].count("\n"), match.group(1)) for match in BLOCK.finditer(text)]


@pytest.mark.parametrize("page", [page for page in PAGES if blocks(page)], ids=lambda page: page.name)
def test_examples_run(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    namespace: dict = {"__name__": "__docs__"}
    for line, code in blocks(page):
        # Padded with newlines, so that a traceback names the page's own line
        exec(compile("\n" * line + code, str(page), "exec"), namespace)


def test_there_are_examples():
    assert sum(len(blocks(page)) for page in PAGES) >= 10

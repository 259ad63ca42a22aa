"""`algonet paper`: what it prints is what the documentation shows, and a deviation is not called equal."""

from __future__ import annotations

from pathlib import Path

import torch

from algonet.apps import paper

PAGE = Path(__file__).parents[2] / "docs" / "paper.md"


def test_the_page_shows_what_the_command_finds():
    shown = PAGE.read_text(encoding="utf-8").split("<!-- algonet paper -->\n")[1].split("\n<!-- end -->")[0]
    assert shown == paper.table()
    assert shown.count("| equal |") == len(paper.EQUATIONS)


def test_deviations_are_said(monkeypatch):
    right, wrong = torch.ones(3), torch.tensor([1.0, 1.0, 1.01])
    monkeypatch.setattr(paper, "EQUATIONS", [("0", "x", lambda: (wrong, right), "")])
    (check,) = paper.checks()
    assert check.verdict == "deviates by 0.01"

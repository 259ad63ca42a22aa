"""The page that leads from the paper to the code: every link of it arrives, and what it claims in code holds."""

from __future__ import annotations

import importlib
import re
from pathlib import Path

import pytest
import torch

from algonet.relax import Sech, SmoothStep
from algonet.sorting import OddEven, soft_sort

DOCS = Path(__file__).parents[1] / "docs"
LINK = re.compile(r"\]\(([^)#\s]*)(?:#([^)\s]+))?\)")
PAGES = ("paper.md", "analog_and_quantum.md")


def links(page: str) -> list[tuple[str, str]]:
    return LINK.findall((DOCS / page).read_text(encoding="utf-8"))


@pytest.mark.parametrize("page", PAGES)
def test_pages_that_are_linked_exist(page):
    assert links(page)
    assert [target for target, _ in links(page) if target and not (DOCS / target).is_file()] == []


def test_objects_that_are_linked_are_public_and_documented():
    linked = [(page, anchor) for page, anchor in links("paper.md") if anchor]
    assert len(linked) > 40
    for page, anchor in linked:
        reference = (DOCS / page).read_text(encoding="utf-8")
        module, _, name = anchor.rpartition(".")
        assert name in importlib.import_module(module).__all__, anchor
        # mkdocstrings makes an anchor of every public name of a module that the API page shows
        assert re.search(rf"^::: {re.escape(module)}$", reference, re.MULTILINE), anchor


def test_files_that_are_named_exist():
    text = (DOCS / "paper.md").read_text(encoding="utf-8")
    named = re.findall(r"`(examples/\S+?)`", text)
    assert named
    assert [path for path in named if not (DOCS.parent / path).is_file()] == []


def test_the_slips_are_slips():
    one = torch.tensor(1.0)
    assert one**2 - 2 * one**3 != 1
    assert 3 * one**2 - 2 * one**3 == 1
    x = torch.linspace(0.01, 3, 3000)
    assert (Sech(2.6)(x) <= x).all()
    assert not (Sech(2.62)(x) <= x).all()
    reverse = torch.tensor([3.0, 2.0, 1.0, 0.0])
    steep = {"relax": SmoothStep(1, steepness=10.0), "method": OddEven()}
    assert not torch.equal(soft_sort(reverse, steps=3, **steep).values, reverse.flip(0))
    assert torch.equal(soft_sort(reverse, **steep).values, reverse.flip(0))

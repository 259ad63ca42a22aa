"""The gallery page has a picture of every shipped algorithm, drawn by a program that calls it or writes it out."""

from __future__ import annotations

from algonet.apps import gallery
from algonet.smooth_python.algorithms import ALGORITHMS


def test_every_algorithm_has_a_picture():
    programs = gallery.programs("smooth_python")
    assert set(programs) == set(ALGORITHMS)
    for name, code in programs.items():
        assert f"import {name}\n" in code or "@smooth" in code

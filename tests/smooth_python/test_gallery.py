"""The gallery page has a picture of every shipped algorithm, with a program that calls it."""

from __future__ import annotations

import pytest

from algonet.smooth_python.algorithms import ALGORITHMS


def test_every_algorithm_has_a_picture():
    matplotlib = pytest.importorskip("matplotlib")
    matplotlib.use("Agg")
    from algonet.apps.gallery import smooth_python as page
    from algonet.apps.gallery import snippets

    figures = list(page.figures(quick=True))
    assert {figure.name for figure in figures} == set(ALGORITHMS)
    for figure in figures:
        assert figure.image.startswith(b"\x89PNG")
        assert figure.caption
        code = snippets()["smooth_python", figure.name]
        # The algorithm of that name, or one written out under the picture
        assert figure.name in code or "@smooth" in code

"""The program under each of the gallery's pictures runs alone, in an empty folder, and draws that picture."""

from __future__ import annotations

import io
import os

import pytest
from PIL import Image

from algonet.apps import gallery

FIGURES = [(section, name) for section in gallery.PAGES for name in gallery.programs(section)]


@pytest.mark.parametrize(("section", "name"), FIGURES, ids=lambda word: word.replace(" ", "_"))
def test_draws_its_picture(section, name):
    before = os.getcwd()
    figure = gallery.draw(section, name, quick=True)
    with Image.open(io.BytesIO(figure.image)) as picture:
        assert len(picture.convert("RGB").getcolors(1 << 24) or ()) > 16
    assert figure.code == gallery.programs(section)[name], "what is shown is what is run, at its full size"
    assert "quick" not in figure.code
    assert "{" not in figure.caption
    assert os.getcwd() == before


def test_numbers_of_a_caption_are_those_of_the_run(monkeypatch):
    text = """# Title

Intro.

```python
import math
from pathlib import Path

import torch

UNUSED = 1
SIDE = 4


def root(x):
    return math.sqrt(x) / HALF


HALF = 0.5
```

## one

A root: {y:.1f}.

```python
x = 16.0  # quick: 4.0
y = root(x)
Path("one.png").write_bytes(bytes(int(y)))
```
"""
    monkeypatch.setattr(gallery, "_source", lambda slug: text)
    assert gallery.draw("any", "one").caption == "A root: 8.0."
    figure = gallery.draw("any", "one", quick=True)
    assert (figure.caption, figure.image) == ("A root: 4.0.", bytes(4))
    assert figure.code.split("\n\n\n") == [
        "import math\nfrom pathlib import Path",
        "def root(x):\n    return math.sqrt(x) / HALF",
        'HALF = 0.5\n\nx = 16.0\ny = root(x)\nPath("one.png").write_bytes(bytes(int(y)))\n',
    ]

"""What a figure of the gallery says comes from the run that draws it. That each draws its picture: `test_browser`."""

from __future__ import annotations

from algonet.apps import gallery


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

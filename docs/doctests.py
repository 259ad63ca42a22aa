"""For the API reference: examples in docstrings become code blocks (Markdown takes a leading >>> for a threefold quotation)."""

from __future__ import annotations

import re
from typing import Any

import griffe

#: A line that begins with >>>, and everything up to the next empty line.
EXAMPLE = re.compile(r"^>>> .*(?:\n(?!\s*$).*)*", re.MULTILINE)


class Doctests(griffe.Extension):
    def on_instance(self, *, obj: griffe.Object, **_: Any) -> None:
        if obj.docstring is not None:
            obj.docstring.value = EXAMPLE.sub(lambda match: f"```pycon\n{match[0]}\n```", obj.docstring.value)

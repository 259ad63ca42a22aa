"""For the API reference: a table of its parameters below each function and class, and examples in docstrings as code blocks
(Markdown takes a leading >>> for a threefold quotation)."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

import griffe

sys.path.insert(0, str(Path(__file__).parents[1]))  # mkdocs loads this file by itself
from docs.parameters import description, table

#: A line that begins with >>>, and everything up to the next empty line.
EXAMPLE = re.compile(r"^>>> .*(?:\n(?!\s*$).*)*", re.MULTILINE)


class Doctests(griffe.Extension):
    def on_instance(self, *, obj: griffe.Object, **_: Any) -> None:
        if obj.docstring is not None:
            plain = obj.docstring.value
            obj.docstring.value = EXAMPLE.sub(lambda match: f"```pycon\n{match[0]}\n```", plain) + self._parameters(
                obj, plain
            )

    def _parameters(self, obj: griffe.Object, docstring: str) -> str:
        """The table of what a public function takes."""
        if not isinstance(obj, griffe.Function) or obj.name.startswith("_"):
            return ""
        rows = []
        for parameter in obj.parameters:
            if parameter.name in ("self", "cls") or parameter.name.startswith("*"):
                continue
            default = "" if parameter.default is None else str(parameter.default)
            kind = "" if parameter.annotation is None else str(parameter.annotation)
            rows.append((parameter.name, kind, default, description(parameter.name, docstring, obj.name) or ""))
        return table(rows) if rows else ""

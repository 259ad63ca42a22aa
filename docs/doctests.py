"""For the API reference: a table of its parameters below each function and class, and examples in docstrings as code blocks
(Markdown takes a leading >>> for a threefold quotation)."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import griffe

sys.path.insert(0, str(Path(__file__).parents[1]))  # mkdocs loads this file by itself
from docs.parameters import description, table

#: A line that begins with >>>, and everything up to the next empty line.
EXAMPLE = re.compile(r"^>>> .*(?:\n(?!\s*$).*)*", re.MULTILINE)


class Doctests(griffe.Extension):
    def on_package(self, *, pkg: griffe.Module, **_: Any) -> None:
        """Extend all docstrings at once: what a class takes is known when its base classes are."""
        griffe.DataclassesExtension().on_package(pkg=pkg)  # adds nothing where __init__ is written already
        extended = []
        for obj in _documented(pkg):
            assert obj.docstring is not None
            plain = obj.docstring.value
            rows = list(_rows(obj, plain))
            text = EXAMPLE.sub(lambda match: f"```pycon\n{match[0]}\n```", plain)
            extended.append((obj.docstring, text + (table(rows, fields=_is_named_tuple(obj)) if rows else "")))
        for (
            docstring,
            text,
        ) in extended:  # afterwards: a class may take what it says of a parameter from its parent's docstring
            docstring.value = text


def _documented(obj: griffe.Object) -> Iterator[griffe.Object]:
    """The object and all below it that have a docstring, each once."""
    if obj.docstring is not None:
        yield obj
    for member in obj.members.values():
        if isinstance(member, griffe.Object):
            yield from _documented(member)


def _rows(obj: griffe.Object, docstring: str) -> Iterator[tuple[str, str, str, str]]:
    """Name, type, default and meaning of all that a public function or constructor takes."""
    if obj.name.startswith("_"):
        return
    for parameter in _taken(obj):
        default = "" if parameter.default is None else str(parameter.default)
        kind = "" if parameter.annotation is None else str(parameter.annotation)
        yield (
            parameter.name,
            kind,
            default,
            description(parameter.name, docstring, obj.name) or _inherited(obj, parameter),
        )


def _taken(obj: griffe.Object) -> Iterable[griffe.Parameter]:
    variable = (griffe.ParameterKind.var_positional, griffe.ParameterKind.var_keyword)
    if isinstance(obj, griffe.Class) and _is_named_tuple(obj):
        fields = [m for m in obj.members.values() if isinstance(m, griffe.Attribute) and m.annotation is not None]
        return [griffe.Parameter(m.name, annotation=m.annotation, default=m.value) for m in fields]
    if not isinstance(obj, griffe.Function | griffe.Class):
        return []
    return [p for p in obj.parameters if p.name not in ("self", "cls") and p.kind not in variable]


def _is_named_tuple(obj: griffe.Object) -> bool:
    return isinstance(obj, griffe.Class) and any(str(base).endswith("NamedTuple") for base in obj.bases)


def _inherited(obj: griffe.Object, parameter: griffe.Parameter) -> str:
    """What a base class says of a parameter that the class took over from it."""
    if isinstance(obj, griffe.Class):
        for base in obj.mro():
            text = base.docstring.value if base.docstring is not None else ""
            if (what := description(parameter.name, text, base.name)) is not None:
                return what
    return ""

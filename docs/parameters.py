"""Tables of parameters for the API reference: name, type, default and what it is for.

What a parameter is for is said where it belongs, in the docstring: the sentence that has it in backticks. What means the same
everywhere is said once, in parameters.toml. A test holds that every parameter of every public name is described.
"""

from __future__ import annotations

import functools
import html
import re
import tomllib
from pathlib import Path

SHARED = Path(__file__).with_name("parameters.toml")


@functools.cache
def shared() -> dict[str, str]:
    """What parameters mean wherever they occur."""
    return tomllib.loads(SHARED.read_text(encoding="utf-8"))


def description(name: str, docstring: str, owner: str = "") -> str | None:
    """What a parameter is for: the sentence of the docstring that names it, else what is said of it everywhere."""
    prose = re.sub(r"^>>>.*", "", docstring.replace("\n", " ").partition(">>>")[0])
    for sentence in re.split(r"(?<=[.;:])\s+(?=[A-Z`(])", " ".join(prose.split())):
        if re.search(rf"`{re.escape(name)}`|`{re.escape(name)}[=( ]", sentence):
            return sentence.strip()
    return shared().get(f"{owner}.{name}", shared().get(name))


def _code(text: str) -> str:
    """Code in a cell of a table; in backticks a bar would end the cell, or show its backslash."""
    return f"<code>{html.escape(text, quote=False).replace('|', '&#124;')}</code>" if text else ""


def table(rows: list[tuple[str, str, str, str]], fields: bool = False) -> str:
    """Markdown of a table of (name, type, default, what); the fields of a result have no defaults."""
    head = ("field", "type", "what it is") if fields else ("parameter", "type", "default", "what it is")
    lines = ["", "", f"| {' | '.join(head)} |", "|---" * len(head) + "|"]
    for name, kind, default, what in rows:
        cells = [_code(name), _code(kind), _code(default) if default else "required", what.replace("|", "\\|")]
        if fields:
            del cells[2]
        lines.append("| " + " | ".join(" ".join(cell.split()) for cell in cells) + " |")
    return "\n".join(lines) + "\n"

"""What can go wrong with a WHILE-program: its text, its run, its halting."""

from __future__ import annotations

#: How much of a long source line an error shows on either side of the caret.
_SHOWN = 50


class WhileSyntaxError(ValueError):
    """A program's text is wrong. `line` and `column` count from 1; the message ends in the line and a caret."""

    def __init__(self, message: str, source: str, line: int, column: int):
        self.line, self.column = line, column
        super().__init__(f"line {line}, column {column}: {message}{_excerpt(source, line, column)}")


class DidNotHaltError(RuntimeError):
    """The crisp interpreter used up its steps."""


class NonHaltingWarning(UserWarning):
    """A smooth loop reached `max_iterations` with probability left, or is likely to. Machines whose jumps do not nest warn
    with it, too."""


def _excerpt(source: str, line: int, column: int) -> str:
    lines = source.split("\n")
    if not 1 <= line <= len(lines):
        return ""
    # One column each, and none that would break the line: the caret must stand below its character
    text = "".join(c if c.isprintable() else " " for c in lines[line - 1])
    start = max(0, column - 1 - _SHOWN)
    shown = text[start : column - 1 + _SHOWN]
    if not shown.strip():
        return ""
    return f"\n    {shown}\n    {' ' * (column - 1 - start)}^"

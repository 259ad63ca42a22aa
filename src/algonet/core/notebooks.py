"""What objects show of themselves in a notebook."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape


def html_table(rows: Iterable[Sequence[object]], head: Sequence[str] = ()) -> str:
    """A small table; the first cell of each row names it.

    >>> html_table([("gap", "3%")])
    "<table><tr><th style='text-align: left'>gap</th><td>3%</td></tr></table>"
    """

    def row(cells: Sequence[object]) -> str:
        name, *rest = (escape(str(cell)) for cell in cells)
        return f"<tr><th style='text-align: left'>{name}</th>{''.join(f'<td>{cell}</td>' for cell in rest)}</tr>"

    titles = "".join(f"<th style='text-align: left'>{escape(title)}</th>" for title in head)
    return f"<table>{f'<tr>{titles}</tr>' if head else ''}{''.join(map(row, rows))}</table>"

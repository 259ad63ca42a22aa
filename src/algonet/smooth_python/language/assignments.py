"""The assignments of a function, by number: each can have a weight and a bias, or a gate."""

from __future__ import annotations

import ast
import textwrap
from typing import NamedTuple


class Assignment(NamedTuple):
    """One value that a statement assigns. `target` and `value` are its parts of the source."""

    number: int
    target: ast.expr
    value: ast.expr
    operator: ast.operator | None

    @property
    def label(self) -> str:
        """The line and what is written there."""
        operator = "" if self.operator is None else ast.unparse(ast.BinOp(ast.Name("a"), self.operator, ast.Name("b")))
        sign = f"{operator[2:-2]}=" if operator else "="
        source = f"{ast.unparse(self.target)} {sign} {ast.unparse(self.value)}"
        return f"line {self.target.lineno}: {textwrap.shorten(source, 60, placeholder='...')}"


def numbered(function: ast.FunctionDef) -> dict[ast.stmt, list[Assignment]]:
    """The assignments of each statement that has some, in the order of the source; `a, b = c, d` has two."""
    statements = [n for n in ast.walk(function) if isinstance(n, (ast.Assign, ast.AugAssign, ast.AnnAssign))]
    found: dict[ast.stmt, list[Assignment]] = {}
    count = 0
    for node in sorted(statements, key=lambda n: (n.lineno, n.col_offset)):
        if node.value is None:
            continue
        found[node] = [
            Assignment(count + k, target, value, node.op if isinstance(node, ast.AugAssign) else None)
            for k, (target, value) in enumerate(_pairs(node, node.value))
        ]
        count += len(found[node])
    return found


def _pairs(node: ast.Assign | ast.AugAssign | ast.AnnAssign, value: ast.expr) -> list[tuple[ast.expr, ast.expr]]:
    target = node.targets[0] if isinstance(node, ast.Assign) else node.target
    if not isinstance(target, (ast.Tuple, ast.List)) or not isinstance(value, (ast.Tuple, ast.List)):
        return [(target, value)]
    chained = isinstance(node, ast.Assign) and len(node.targets) > 1
    starred = any(isinstance(part, ast.Starred) for part in (*target.elts, *value.elts))
    if chained or starred or len(target.elts) != len(value.elts):
        return [(target, value)]
    return list(zip(target.elts, value.elts, strict=True))

"""`pytest --margins`: how near each passing comparison is to its bound.

Rounding differs between machines, so a comparison that uses most of its bound on one fails on another. Recorded are
`assert_close`, `allclose` (which `gradcheck` calls), `approx`, and plain `assert error < bound` or `quality > bound`.
"""

from __future__ import annotations

import ast
import operator
import re
import sys
import tempfile
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch.testing._comparison import default_tolerances

#: Comparisons that use more of their bound than this are listed.
MOST = 1 / 3

_OPERATIONS = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv, ast.Pow: operator.pow
}  # fmt: skip
_ARRAY = re.compile(
    r"(?:tensor|array|np\.float\d+)\(([-+.\de]+)(?:, (?:dtype=[\w.]+|grad_fn=<\w+>|requires_grad=True))*\)"
)


def _number(node: ast.expr) -> float:
    """The value of an arithmetic expression of numbers; ValueError for anything else."""
    if isinstance(node, ast.Constant) and isinstance(node.value, int | float) and not isinstance(node.value, bool):
        return node.value
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        return -_number(node.operand)
    if isinstance(node, ast.BinOp) and type(node.op) in _OPERATIONS:
        return _OPERATIONS[type(node.op)](_number(node.left), _number(node.right))
    raise ValueError


def _is_exact(bound: ast.expr) -> bool:
    """Whether a bound, as the test writes it, is no tolerance: 1, or holds a sum such as `epsilon + 1e-15`."""
    sums = any(isinstance(node, ast.Add | ast.Sub) for node in ast.walk(bound))
    numbers = [node.value for node in ast.walk(bound) if isinstance(node, ast.Constant)]
    return sums or numbers == [1]


def shares_of_bounds(written: str, explanation: str) -> list[float]:
    """How much of its bound each comparison in a passed assertion uses, as it is written and as pytest explains it.

    Of `error < bound` that is error / bound; of `quality > bound` with both from 0 to 1, the smaller of
    (1 - quality) / (1 - bound) and bound / quality.
    Whole numbers are counts, which do not round; what holds exactly has no margin.

    >>> shares_of_bounds("error < 2.0", "0.5 < 2.0"), shares_of_bounds("a <= b + 1e-7", "1.0 <= (1.0 + 1e-07)")
    ([0.25], [])
    """
    text = _ARRAY.sub(r"\1", explanation.split("\n", 1)[0])
    try:
        parsed, asked = (ast.parse(t, mode="eval").body for t in (text, written))
    except SyntaxError:
        return []
    parts, texts = (p.values if isinstance(p, ast.BoolOp) else [p] for p in (parsed, asked))
    found = []
    for part, origin in zip(parts, texts, strict=False):
        if not isinstance(part, ast.Compare) or not isinstance(origin, ast.Compare):
            continue
        sides = [part.left, *part.comparators]
        for a, op, b, bound in zip(sides, part.ops, sides[1:], origin.comparators, strict=False):
            if _is_exact(bound):
                continue
            try:
                left, right = _number(a), _number(b)
            except (ValueError, ArithmeticError):
                continue
            small, large = (left, right) if isinstance(op, ast.Lt | ast.LtE) else (right, left)
            if small == large or (isinstance(small, int) and isinstance(large, int)):
                continue
            # The bound is the side that the test spells out
            if isinstance(op, ast.Lt | ast.LtE) and large > 0:
                found.append(abs(small) / large if small > 0 else 0.0)
            elif isinstance(op, ast.Gt | ast.GtE) and 0 < small < large <= 1:
                found.append(min((1 - large) / (1 - small), small / large))
    return found


class Margins:
    """The plugin: what was compared in which test, and the list at the end."""

    def __init__(self, config: pytest.Config):
        self.worst: dict[tuple[str, str], float] = {}
        self.test = ""
        # Assertions report only if they were rewritten to, and helpers' too; other runs keep their compiled files
        config._inicache["enable_assertion_pass_hook"] = True
        sys.pycache_prefix = tempfile.mkdtemp(prefix="algonet-margins-")
        pytest.register_assert_rewrite("helpers.contract", "helpers.differences", "helpers.translated")
        self._watch(torch.testing, "assert_close", None, None)
        self._watch(torch, "allclose", 1e-5, 1e-8)
        self._watch(torch.Tensor, "allclose", 1e-5, 1e-8)
        self._watch(np.testing, "assert_allclose", 1e-7, 0.0)
        scalar = type(pytest.approx(1.0))
        equal = scalar.__eq__

        def recorded(approx: Any, actual: Any) -> bool:
            same = equal(approx, actual)
            if same and isinstance(actual, int | float | np.floating | torch.Tensor) and approx.tolerance:
                self._record("approx", float(abs(actual - approx.expected)) / approx.tolerance)
            return same

        scalar.__eq__ = recorded

    def _watch(self, where: Any, name: str, *usual: float | None) -> None:
        compare: Callable[..., Any] = getattr(where, name)

        def watched(actual: Any, expected: Any, *args: Any, **options: Any) -> Any:
            result = compare(actual, expected, *args, **options)
            given = dict(zip(("rtol", "atol"), args, strict=False)) | options
            a, e = (
                np.asarray(x.detach().cpu().double() if isinstance(x, torch.Tensor) else x) for x in (actual, expected)
            )
            if a.size and a.dtype.kind in "fi" and e.dtype.kind in "fi":
                default = (
                    usual if usual[0] is not None else default_tolerances(*map(torch.as_tensor, (actual, expected)))
                )
                rtol, atol = (
                    u if given.get(n) is None else given[n] for n, u in zip(("rtol", "atol"), default, strict=True)
                )
                bound = atol + rtol * np.abs(e)
                with np.errstate(all="ignore"):
                    shares = np.abs(a - e) / bound
                if np.isfinite(shares).any():
                    self._record(name, float(np.nanmax(np.where(np.isfinite(shares), shares, 0))))
            return result

        setattr(where, name, watched)

    def _record(self, what: str, share: float) -> None:
        # Above 1 the comparison was asked for and answered no, as `assert not allclose(...)` wants
        if self.test and share <= 1:
            key = self.test, what
            self.worst[key] = max(share, self.worst.get(key, 0.0))

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self.test = nodeid

    def pytest_assertion_pass(self, item: pytest.Item, lineno: int, orig: str, expl: str) -> None:
        for share in shares_of_bounds(orig, expl):
            self._record(f"line {lineno}: {orig}", share)

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        near = sorted(((share, *key) for key, share in self.worst.items() if share > MOST), reverse=True)
        terminalreporter.write_sep("=", f"{len(near)} of {len(self.worst)} comparisons use over a third of their bound")
        for share, test, what in near:
            terminalreporter.write_line(f"{share:4.0%} {test} {what}")

"""Smooth decisions: comparisons are sigmoids, == and != exits, `or` a t-conorm, `and` its dual, `not` is 1 - p.

Each function takes the frame (which knows the softness) first. Where no operand is a tensor, Python's own crisp answer
is returned, and operands behind `and` and `or` are thunks, so that they are evaluated only when Python would.
Operands of `and`, `or` and `not` are probabilities already: the rewriter puts `truth` around everything else.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import Any

import torch

from algonet.relax import Probabilistic

from ..machine.eager import EAGER, aligned, as_value, difference, floating, operand, softened
from ..machine.values import Value, flat, smooth_kind


def _ordering(crisp: Callable[[Any, Any], Any], *, swapped: bool, strict: bool) -> Callable[[Any, Any, Any], Any]:
    def compare(frame: Any, x: Any, y: Any) -> Any:
        if type(x) is not Value and not smooth_kind(x) and not smooth_kind(y):
            return crisp(x, y)
        return _step(frame, y, x, strict) if swapped else _step(frame, x, y, strict)

    return compare


#: x > y: r(x - y), and its kin.
greater = _ordering(operator.gt, swapped=False, strict=True)
less = _ordering(operator.lt, swapped=True, strict=True)
greater_equal = _ordering(operator.ge, swapped=False, strict=False)
less_equal = _ordering(operator.le, swapped=True, strict=False)


def not_equal(frame: Any, x: Any, y: Any) -> Any:
    """x != y: phi(x - y). Lists and tuples differ where a part does; a number differs from all that is no number."""
    if not smooth_kind(x) and not smooth_kind(y):
        return negate(frame, _equal_parts(frame, x, y)) if flat((x, y)) else x != y
    if not operand(x) or not operand(y) or _infinite(x) or _infinite(y):
        return True
    gap = difference(x, y, frame.machine)
    frame.compared(gap)
    return _relaxed(
        frame,
        frame.settings.exit,
        gap,
        lambda: frame.operate("select", gap, 1.0, frame.operate("select", -gap, 1.0, 0.0)),
    )


def equal(frame: Any, x: Any, y: Any) -> Any:
    """x == y: 1 - phi(x - y)."""
    if not smooth_kind(x) and not smooth_kind(y):
        return _equal_parts(frame, x, y) if flat((x, y)) else x == y
    return negate(frame, not_equal(frame, x, y))


def _equal_parts(frame: Any, x: Any, y: Any) -> Any:
    """Containers with smooth values in them: all parts are equal."""
    if isinstance(x, dict) and isinstance(y, dict):
        if x.keys() != y.keys():
            return False
        x, y = list(x.values()), [y[key] for key in x]
    if type(x) is not type(y) or not isinstance(x, (list, tuple)) or len(x) != len(y):
        return False
    pairs = [lambda a=a, b=b: equal(frame, a, b) for a, b in zip(x, y, strict=True)]
    return both(frame, True, *pairs)


def _infinite(x: Any) -> bool:
    return type(x) is float and math.isinf(x)


def _step(frame: Any, x: Any, y: Any, strict: bool) -> Any:
    if _infinite(x) or _infinite(y):
        # Everything is on one side of infinity: as crisp as a comparison of numbers
        x, y = (z if _infinite(z) else 0.0 for z in (x, y))
        return x > y if strict else x >= y
    gap = difference(x, y, frame.machine)
    above = float(strict), float(not strict)
    return _relaxed(frame, frame.settings.relax, gap, lambda: frame.operate("select", gap if strict else -gap, *above))


def _relaxed(frame: Any, relax: Any, gap: Value, crisp: Callable[[], Value]) -> Value:
    """The relaxation of a difference; or what Python decides, 0 or 1, under `hard` with the smooth answer's derivative."""
    if frame.decider is not None and frame.decider.crisp:
        return crisp()
    soft = gap.machine.relax(relax, gap)
    if not frame.settings.hard:
        return soft
    return Value(crisp().tensor + (soft.tensor - soft.tensor.detach()), soft.batched, EAGER)


def truth(frame: Any, x: Any) -> Any:
    """A tensor as a condition: the probability min(1, |x|), so flags and results of comparisons mean themselves."""
    if not smooth_kind(x):
        return x
    value = floating(as_value(x))
    return value.machine.operate("truth", value)


def negate(frame: Any, x: Any) -> Any:
    return 1.0 - as_value(x) if smooth_kind(x) else not x


def both(frame: Any, x: Any, *rest: Callable[[], Any]) -> Any:
    """x and y and ...: the t-norm dual to the conorm; crisp operands decide or drop out."""
    return _chain(frame, x, rest, ends=False)


def either(frame: Any, x: Any, *rest: Callable[[], Any]) -> Any:
    """x or y or ...: the conorm; crisp operands decide or drop out."""
    return _chain(frame, x, rest, ends=True)


def _chain(frame: Any, x: Any, rest: tuple[Callable[[], Any], ...], *, ends: bool) -> Any:
    soft: Value | None = None
    for thunk in (None, *rest):
        if thunk is not None:
            x = thunk()
        if not smooth_kind(x):
            if bool(x) is ends:
                return x
            continue
        p = as_value(x)
        soft = p if soft is None else _joined(frame, soft, p, any_=ends)
    return x if soft is None else soft


def _joined(frame: Any, a: Value, b: Value, *, any_: bool) -> Value:
    conorm = frame.settings.conorm
    if type(conorm) is Probabilistic:
        product = a * b
        return a + b - product if any_ else product
    (s, t), batched = aligned(a, b)
    soft = conorm(s, t) if any_ else conorm.both(s, t)
    if frame.settings.hard:
        soft = (torch.maximum(s, t) if any_ else torch.minimum(s, t)).detach() + (soft - soft.detach())
    return Value(soft, batched, EAGER)


def contains(frame: Any, x: Any, sequence: Any) -> Any:
    """x in sequence: any of its parts equals x."""
    inside = isinstance(sequence, (list, tuple)) and any(smooth_kind(part) for part in sequence)
    if not smooth_kind(x) and not smooth_kind(sequence) and not inside:
        return x in sequence
    found: Any = False
    for part in sequence:
        found = either(frame, found, lambda part=part: equal(frame, x, part))
    return found


def chosen(frame: Any, p: Any, then: Any, other: Any) -> Any:
    """`then if p else other`, both of which are there already."""
    answer = frame.decide(p)
    found = frame.merge(answer, then, other) if smooth_kind(answer) else then if answer else other
    return softened(found, p) if frame.chooses and smooth_kind(p) else found


def absolute(frame: Any, x: Any) -> Any:
    """abs(x) as a decision, x if x > 0 else -x: x (2 r(x) - 1)."""
    if not smooth_kind(x):
        return abs(x)
    value = as_value(x)
    positive = frame.decided(_step(frame, value, 0.0, strict=True))
    return value * (2.0 * positive - 1.0)

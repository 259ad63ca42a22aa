"""How states that different paths reach become one: variable by variable, weighted by the paths' probabilities."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

from ..machine.eager import as_value, operand
from ..machine.values import NUMBERS, Value, flat, is_same, machine_of, mapped, smooth_kind


class Missing:
    """A variable that has no value (yet, or on one of the paths): any use says so."""

    __slots__ = ("name", "reason")

    def __init__(self, name: str, reason: str = "has no value yet"):
        self.name = name
        self.reason = reason

    def _used(self, *args: Any, **kwargs: Any):
        raise UnboundLocalError(f"variable `{self.name}` {self.reason}; give it a value before.")

    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __truediv__ = __rtruediv__ = _used
    __floordiv__ = __rfloordiv__ = __mod__ = __rmod__ = __pow__ = __rpow__ = __matmul__ = __neg__ = _used
    __lt__ = __le__ = __gt__ = __ge__ = __bool__ = __len__ = __iter__ = __getitem__ = __call__ = _used

    def __getattr__(self, name: str):
        self._used()


def merged(p: Value, then: Any, other: Any, name: str = "result", chosen: bool = False) -> Any:
    """p * then + (1 - p) * other, through lists, tuples and dictionaries; what is the same on both paths stays as it is.

    `chosen` says that p is 0 or 1, and the result one of the two as it is, however large the other.
    """

    how = "select" if chosen else "mix"

    def one(then: Any, other: Any) -> Any:
        if type(then) is Value and type(other) is Value:
            parts = _by_parts(one, p, then, other)
            return _joined(p, then, other, name, how) if parts is None else parts
        if isinstance(then, NUMBERS) and isinstance(other, NUMBERS) and then == other:
            return then
        if operand(then) and operand(other):
            if not chosen and any(type(x) is float and math.isinf(x) for x in (then, other)):
                raise ValueError(
                    f"`{name}` is infinite on one path, and so would be every mixture with it; begin with a large finite "
                    "number, or with the first item."
                )
            return _joined(p, then, other, name, how)
        if isinstance(then, Missing) or isinstance(other, Missing):
            return Missing(name, "has a value on one path only")
        if not smooth_kind(then) and not smooth_kind(other) and _equal(then, other):
            return then
        raise _unlike(name, then, other)

    return mapped(one, then, other, keep=True)


def _by_parts(function: Callable[..., Any], weight: Value, old: Any, new: Any) -> Value | None:
    """The function of the parts of two vectors where these differ, each asked for its parts once; None for all else."""
    both = type(old) is Value and type(new) is Value and old.parted and new.parted
    if not both or len(old) != len(new) or not weight.number:
        return None
    places = old.differing(new)
    pairs = zip(*([value.parts[k] for k in places] for value in (old, new)), strict=True)
    changes = {k: mapped(function, *pair, keep=True) for k, pair in zip(places, pairs, strict=True)}
    return new.replaced(changes, old.batched or new.batched or weight.batched, machine_of(old, new, weight))


def kept(live: Value, new: Any, old: Any) -> Any:
    """`new` for the items that are still in a loop, `old` for those that have left: it could run to infinity meanwhile."""

    def one(old: Any, new: Any) -> Any:
        if isinstance(old, Missing) or not smooth_kind(new):
            # Crisp values move on in step for all items, or what they decide would depend on who is in the batch
            return new
        parts = _by_parts(one, live, old, new)
        return live.machine.operate("select", live, new, old) if parts is None else parts

    return mapped(one, old, new, keep=True)


def _joined(p: Value, then: Any, other: Any, name: str, how: str) -> Value:
    machine = p.machine if p.machine.leads else machine_of(p, then, other)
    try:
        return machine.operate(how, p, then, other)
    except RuntimeError as problem:
        raise ValueError(
            f"`{name}` has shape {tuple(as_value(then).shape)} on one path and {tuple(as_value(other).shape)} on the "
            f"other, the decision {tuple(p.shape)}; these do not mix: {problem}"
        ) from None


def _unlike(name: str, then: Any, other: Any) -> Exception:
    """The error for two things that do not mix: what they are, and what would."""
    if isinstance(then, dict) and isinstance(other, dict):
        return ValueError(
            f"`{name}` has the keys {_keys(then)} on one path and {_keys(other)} on the other; "
            "a mixture needs the same: set those of one path before the decision."
        )
    if isinstance(then, (list, tuple)) and type(then) is type(other):
        return ValueError(
            f"`{name}` has {len(then)} items on one path and {len(other)} on the other; "
            "a mixture needs the same structure on both."
        )
    return TypeError(
        f"`{name}` is {_kind(then)} on one path and {_kind(other)} on the other of a smooth decision; "
        "only numbers, tensors and equal containers of them mix."
    )


def _equal(a: Any, b: Any) -> bool:
    try:
        return bool(a == b)
    except Exception:
        return False


def _keys(x: dict) -> str:
    shown = ", ".join(repr(key) for key in list(x)[:4])
    return f"({shown}, ...)" if len(x) > 4 else f"({shown})"


def _kind(x: Any) -> str:
    return "None" if x is None else "a tensor" if smooth_kind(x) else f"a {type(x).__name__}"


class Mixture:
    """A running sum of weight * state, for paths that end at different times. Equal crisp values stay crisp."""

    def __init__(self, names: tuple[str, ...]):
        self.names = names
        self.mass: Any = None
        #: Of each variable the very value as long as all paths agree on it, else the weighted sum.
        self._totals: list[Any] = []
        self._agreed: set[int] = set()

    def add(self, weight: Any, values: tuple) -> None:
        """One more path. `weight` is a probability: a value, or the number 1.0."""
        if self.mass is None:
            self.mass, self._totals, self._agreed = weight, [*values], {*range(len(values))}
            return
        for k, (name, total, value) in enumerate(zip(self.names, self._totals, values, strict=True)):
            if k in self._agreed:
                numbers = isinstance(value, NUMBERS) and isinstance(total, NUMBERS)
                if is_same(value, total) or (numbers and value == total):
                    continue
                self._agreed.remove(k)
                total = mapped(functools.partial(_added, name, self.mass), total)
            self._totals[k] = mapped(functools.partial(_added, name, weight), total, value)
        self.mass = self.mass + weight

    def values(self) -> list[Value]:
        """The running sums, where they are values."""
        return flat(self._totals)

    def result(self, normalise: bool) -> tuple:
        """The mixed state; `normalise` divides by the total weight where it is not one by construction."""
        if not normalise or type(self.mass) is not Value:
            return tuple(self._totals)
        scale = self.mass.machine.operate("reciprocal", self.mass)
        divided = functools.partial(mapped, lambda part: part if isinstance(part, Missing) else part * scale)
        return tuple([total if k in self._agreed else divided(total) for k, total in enumerate(self._totals)])


def _added(name: str, weight: Any, *given: Any) -> Any:
    """weight * x for the last of these, and what there is already."""
    *total, x = given
    if any(isinstance(part, Missing) for part in given):
        return Missing(name, "has a value on some paths only")
    if not all(map(operand, given)):
        raise _unlike(name, *(given if total else (x, 0)))
    if type(weight) is not Value:
        return sum(total, weight * (float(x) if isinstance(x, NUMBERS) else as_value(x)))
    vectors = all(type(part) is Value and not part.number for part in given)
    vectors = vectors and any(part.parted for part in given) and len(set(map(len, given))) == 1
    if vectors and weight.machine.by_parts and weight.number:
        rows = zip(*(part.parts for part in given), strict=True)
        return Value(None, True, weight.machine, [_added(name, weight, *row) for row in rows])
    return weight.machine.operate("accumulate", *total, weight, x) if total else weight * x


def share(part: Any, total: Any) -> Value:
    """part / total, 0 where there is nothing to share."""
    mass = as_value(total)
    return as_value(part) * mass.machine.operate("reciprocal", mass)

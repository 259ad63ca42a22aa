"""How states that different paths reach become one: variable by variable, weighted by the paths' probabilities."""

from __future__ import annotations

import math
from collections import defaultdict
from typing import Any

from torch import Tensor

from ..machine.containers import dict_like, flat, is_record, mapped, record_fields, record_like
from ..machine.eager import as_value
from ..machine.values import NUMBERS, Machine, Value, machine_of, smooth_kind


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


def is_same(a: Any, b: Any) -> bool:
    """Whether both are the very same thing. Tuples are their parts: torch.compile cannot tell whether two are one."""
    if isinstance(a, tuple) and isinstance(b, tuple):
        return type(a) is type(b) and len(a) == len(b) and all(map(is_same, a, b))
    return a is b


def merged(p: Value, then: Any, other: Any, name: str = "result", chosen: bool = False) -> Any:
    """p * then + (1 - p) * other, through lists, tuples and dictionaries; what is the same on both paths stays as it is.

    `chosen` says that p is 0 or 1, and the result one of the two as it is, however large the other.
    """
    if type(then) is Value and type(other) is Value:
        if then is other:
            return then
        if then._parts is None or other._parts is None or not p.number or len(then._parts) != len(other._parts):
            return _mixed(p, then, other, name, chosen)
        parts = list(other._parts)
        for k in [k for k, part in enumerate(then._parts) if part is not parts[k]]:
            parts[k] = merged(p, then._parts[k], parts[k], name, chosen)
        return Value(None, then.batched or other.batched or p.batched, machine_of(then, p), parts)
    if is_same(then, other):
        return then
    if isinstance(then, NUMBERS) and isinstance(other, NUMBERS):
        if then == other:
            return then
        if chosen:
            return _mixed(p, then, other, name, chosen)
        _check_finite(then, other, name)
        step = float(then) - float(other)
        found = p if step == 1.0 else p * step
        return found if other == 0 else found + float(other)
    if _arithmetic(then) and _arithmetic(other):
        if not chosen:
            _check_finite(then, other, name)
        return _mixed(p, then, other, name, chosen)
    if isinstance(then, Missing) or isinstance(other, Missing):
        return Missing(name, "has a value on one path only")
    if isinstance(then, dict) and isinstance(other, dict) and _same_keys(then, other):
        return dict_like(then, {key: merged(p, then[key], other[key], name, chosen) for key in then})
    if isinstance(then, dict) and isinstance(other, dict):
        raise ValueError(
            f"`{name}` has the keys {_keys(then)} on one path and {_keys(other)} on the other; "
            "a mixture needs the same: set those of one path before the decision."
        )
    if isinstance(then, (list, tuple)) and type(then) is type(other):
        if len(then) != len(other):
            raise ValueError(
                f"`{name}` has {len(then)} items on one path and {len(other)} on the other; "
                "a mixture needs the same structure on both."
            )
        mixed = [merged(p, t, o, name, chosen) for t, o in zip(then, other, strict=True)]
        return _rebuilt(then, mixed)
    if is_record(then) and type(then) is type(other):
        names = record_fields(then)
        return record_like(then, {n: merged(p, getattr(then, n), getattr(other, n), name, chosen) for n in names})
    if not smooth_kind(then) and not smooth_kind(other) and _same(then, other):
        return then
    raise TypeError(
        f"`{name}` is {_kind(then)} on one path and {_kind(other)} on the other of a smooth decision; "
        "only numbers, tensors and equal containers of them mix."
    )


def _same_keys(then: dict, other: dict) -> bool:
    """Whether both have the same keys; a key that only one side of a `defaultdict` was asked for has its default there."""
    if isinstance(then, defaultdict) and isinstance(other, defaultdict):
        for key in then.keys() ^ other.keys():
            lacking = other if key in then else then
            lacking[key] = lacking[key]
    return then.keys() == other.keys()


def _check_finite(then: Any, other: Any, name: str) -> None:
    if (type(then) is float and math.isinf(then)) or (type(other) is float and math.isinf(other)):
        raise ValueError(
            f"`{name}` is infinite on one path, and so would be every mixture with it; begin with a large finite number, "
            "or with the first item."
        )


def _mixed(p: Value, then: Any, other: Any, name: str, chosen: bool) -> Value:
    machine = p.machine if p.machine.leads else machine_of(p, then, other)
    try:
        return machine.select(p, then, other) if chosen else machine.mix(p, then, other)
    except RuntimeError as problem:
        raise ValueError(
            f"`{name}` has shape {tuple(as_value(then).shape)} on one path and {tuple(as_value(other).shape)} on the "
            f"other, the decision {tuple(p.shape)}; these do not mix: {problem}"
        ) from None


def _arithmetic(x: Any) -> bool:
    return type(x) is Value or isinstance(x, (Tensor, *NUMBERS))


def _rebuilt(like: Any, parts: list) -> Any:
    return type(like)(*parts) if hasattr(like, "_fields") else type(like)(parts)


def _same(a: Any, b: Any) -> bool:
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
        self._sums: list[Any] = []

    def add(self, weight: Any, values: tuple) -> None:
        """One more path. `weight` is a probability: a value, or the number 1.0."""
        if self.mass is None:
            self.mass = weight
            self._sums = [_Sum(name, value, weight) for name, value in zip(self.names, values, strict=True)]
            return
        for total, value in zip(self._sums, values, strict=True):
            total.add(value, weight, self.mass)
        self.mass = self.mass + weight

    def values(self) -> list[Value]:
        """The running sums, where they are values."""
        return [v for total in self._sums for v in flat(total.crisp if total.same else total.total)]

    def result(self, normalise: bool, machine: Machine | None = None) -> tuple:
        """The mixed state; `normalise` divides by the total weight where it is not one by construction."""
        scale = _reciprocal(self.mass) if normalise and type(self.mass) is Value else None
        found = tuple(total.result(scale) for total in self._sums)
        if machine is not None and machine.leads:
            for value in flat(found):
                machine.adopt(value)
        return found


class _Sum:
    """One variable of a `Mixture`: `crisp` while all paths agree on the very same value, else the weighted sum."""

    __slots__ = ("crisp", "name", "same", "total")

    def __init__(self, name: str, value: Any, weight: Any):
        self.name = name
        self.crisp = value
        self.same = True
        self.total: Any = None

    def add(self, value: Any, weight: Any, mass: Any) -> None:
        if self.same:
            if is_same(value, self.crisp) or (
                isinstance(value, NUMBERS) and isinstance(self.crisp, NUMBERS) and value == self.crisp
            ):
                return
            self.same = False
            self.total = _weighted(mass, self.crisp, self.name)
            self.crisp = None
        self.total = _added(self.total, weight, value, self.name)

    def result(self, scale: Value | None) -> Any:
        if self.same:
            return self.crisp
        return self.total if scale is None else _scaled(scale, self.total)


def _weighted(weight: Any, state: Any, name: str) -> Any:
    def one(value: Any) -> Any:
        if isinstance(value, Missing):
            return Missing(name, "has a value on some paths only")
        if _arithmetic(value):
            return _times(weight, value)
        raise TypeError(
            f"`{name}` is {_kind(value)} on one path and something else on another; only numbers and tensors mix."
        )

    return mapped(one, state)


def _added(total: Any, weight: Any, value: Any, name: str) -> Any:
    if isinstance(total, Missing) or isinstance(value, Missing):
        return Missing(name, "has a value on some paths only")
    if isinstance(total, (list, tuple)):
        if type(total) is not type(value) or len(total) != len(value):
            raise ValueError(f"`{name}` has a different structure on different paths; a mixture needs the same.")
        return _rebuilt(total, [_added(t, weight, v, name) for t, v in zip(total, value, strict=True)])
    if isinstance(total, dict):
        if not isinstance(value, dict) or total.keys() != value.keys():
            raise ValueError(f"`{name}` has different keys on different paths; a mixture needs the same.")
        return dict_like(total, {key: _added(total[key], weight, value[key], name) for key in total})
    if is_record(total) and type(total) is type(value):
        names = record_fields(total)
        return record_like(total, {n: _added(getattr(total, n), weight, getattr(value, n), name) for n in names})
    if not _arithmetic(value):
        raise TypeError(
            f"`{name}` is {_kind(value)} on one path and a number on another; only numbers and tensors mix."
        )
    return weight.machine.accumulate(total, weight, value) if type(weight) is Value else total + _times(weight, value)


def _times(weight: Any, value: Any) -> Any:
    if type(weight) is Value:
        return weight.machine.weigh(weight, value)
    return weight * (float(value) if isinstance(value, NUMBERS) else as_value(value))


def _scaled(scale: Value, total: Any) -> Any:
    return mapped(lambda part: part if isinstance(part, Missing) else part * scale, total)


def _reciprocal(mass: Value) -> Value:
    return mass.machine.operate("reciprocal", mass)


def share(part: Any, total: Any) -> Value:
    """part / total, 0 where there is nothing to share."""
    return as_value(part) * _reciprocal(as_value(total))

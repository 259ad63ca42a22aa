"""What an option *is*: its class and all its fields but the softness, which travels as a tensor of its own.

Options (relaxations, networks, coverages) are frozen dataclasses, and people write their own. Two of them are the same to a
kernel, a cache or a graph if and only if `identity` says so: a name would confuse `MyNet(1)` with `MyNet(5)`, and the class of
a notebook's cell with the one that it replaced.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Hashable
from typing import Any, TypeVar

from algonet.core import tracing
from algonet.core.cache import Cache

T = TypeVar("T")


class _Itself:
    """Stands for an object that cannot be told from others by its fields: equal to itself alone."""

    __slots__ = ("held",)

    def __init__(self, held: object):
        self.held = held

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Itself) and self.held is other.held

    def __hash__(self) -> int:
        return id(self.held)


_GETTERS: Cache[Callable[[Any], Hashable]] = Cache("identity of classes", 1024)
_INTERNED: Cache[Any] = Cache("interned options", 1024)
_CANONICAL: Cache[Any] = Cache("canonical options", 1024)


def identity(option: Any) -> Hashable:
    """The option's class and fields without its softness, as a key: equal keys mean the same behaviour.

    >>> from algonet.relax import Logistic, SmoothStep
    >>> identity(Logistic(2.0)) == identity(Logistic(5.0)), identity(SmoothStep(1)) == identity(SmoothStep(2))
    (True, False)
    """
    cls = type(option)
    getter = _GETTERS.find(cls)
    if getter is None:
        getter = _GETTERS.put(cls, _getter(cls))
    return getter(option)


def interned(option: T) -> T:
    """The one object that stands for all options of this identity, its softness set to 1: what settings hold.

    Two interned options are the same object or differ in identity, so settings that hold them compare and hash as they
    should. While a graph is traced it is a fresh object; `codec.decode` interns on the other side.
    """
    if tracing.compiling():
        return unit(option)
    key = identity(option)
    found = _INTERNED.find(key)
    return _INTERNED.put(key, canonical(unit(option))) if found is None else found


def canonical(option: T) -> T:
    """The one object that stands for all options of this identity and this softness."""
    return _CANONICAL.get(_field(option), lambda: option)


def unit(option: Any) -> Any:
    """The option with softness 1; itself if it has none."""
    field = getattr(type(option), "softness_field", None)
    return option if field is None else dataclasses.replace(option, **{field: 1.0})


def up_to_date(cls: type, derived: str, *sources: str) -> bool:
    """Whether `derived` (a formula for kernels) was written for the `sources` (the methods it mirrors) that `cls` has.

    A subclass that overrides a source and inherits the formula would run the old one in kernels.
    """
    owner = next((i for i, base in enumerate(cls.__mro__) if derived in vars(base)), None)
    if owner is None:
        return False
    return not any(source in vars(base) for base in cls.__mro__[:owner] for source in sources)


def _getter(cls: type) -> Callable[[Any], Hashable]:
    if not dataclasses.is_dataclass(cls):
        return _Itself
    soft = getattr(cls, "softness_field", None)
    names = [field.name for field in dataclasses.fields(cls) if field.name != soft]
    known = {field.name for field in dataclasses.fields(cls)}

    def get(option: Any) -> Hashable:
        more = getattr(option, "__dict__", {})
        if len(more) > len(known) and set(more) - known:
            # Attributes that were forced upon a frozen object are none of its fields
            return _Itself(option)
        key = (cls, *[_field(getattr(option, name)) for name in names])
        try:
            hash(key)
        except TypeError:
            return _Itself(option)
        return key

    if names:
        return get
    return lambda option: cls if len(getattr(option, "__dict__", ())) <= len(known) else _Itself(option)


def _field(value: Any) -> Hashable:
    if isinstance(value, (bool, int)) or value is None:
        return type(value), value
    if isinstance(value, float):
        return float, value.hex()
    if isinstance(value, tuple):
        return tuple(map(_field, value))
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        # The softness of an option inside another is one of its fields
        soft = getattr(type(value), "softness_field", None)
        return identity(value), None if soft is None else _softness(getattr(value, soft))
    return value


def _softness(value: Any) -> Hashable:
    return float(value).hex() if isinstance(value, (int, float)) else _Itself(value)

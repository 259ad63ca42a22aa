"""Who an option is: its class and all its fields but the softness. A name is not enough, and neither is `==`."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

from algonet.relax import Sigmoid


def identity(option: Any) -> Hashable:
    """Equal for options of one class (the class itself, not its name) with equal fields; a steepness does not count."""
    softness = getattr(option, "softness_field", None)
    fields = tuple((name, value) for name, value in vars(option).items() if name != softness)
    key = (type(option), fields)
    try:
        hash(key)
    except TypeError:  # a field that cannot be compared: this one object and no other
        return Itself(option)
    return key


class Itself:
    """An object, known by being that object; held, so that its address is not given to another."""

    def __init__(self, held: object):
        self.held = held

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Itself) and other.held is self.held

    def __hash__(self) -> int:
        return id(self.held)


def formula(sigmoid: Sigmoid) -> str | None:
    """The sigmoid's formula for kernels; `None` where it has none, or inherits one of a value that it has changed."""
    order = type(sigmoid).__mro__
    states, values = (next(c for c in order if name in vars(c)) for name in ("scalar", "_value"))
    return sigmoid.scalar if order.index(states) <= order.index(values) else None

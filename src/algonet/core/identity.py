"""What an option *is*, its class and all its fields but the softness, which travels as a tensor of its own; and what a call is.

Options (relaxations, networks, coverages) are frozen dataclasses, and people write their own. Two of them are the same to a
kernel, a cache or a graph if and only if `identity` says so: a name would confuse `MyNet(1)` with `MyNet(5)`, and the class of
a notebook's cell with the one that it replaced.

A `Signature` is what a call depends on apart from the numbers in its tensors: settings; shapes, strides, precisions and
devices; who needs gradients. One table, `PLANS`, holds what was found out about the calls of a signature when it was first met.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Hashable, Sequence
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor

from algonet.core import tracing
from algonet.core.cache import Cache

T = TypeVar("T")


#: How backends run the calls of a signature, and what the checks of public functions found.
PLANS: Cache[Any] = Cache("plans", 4096)
_PLAIN = (int, float, str, bool, type(None), torch.Size)


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


class Spec(NamedTuple):
    """What a plan knows of a tensor."""

    shape: torch.Size
    strides: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device


class Signature(NamedTuple):
    """What a plan is made for. `needs` says which tensors may be asked for a gradient."""

    settings: Any
    tensors: tuple[Spec, ...]
    needs: tuple[bool, ...]


def specs(tensors: Sequence[Tensor]) -> tuple[Spec, ...]:
    return tuple([Spec(t.shape, t.stride(), t.dtype, t.device) for t in tensors])


def signature(where: Hashable, *arguments: Any) -> tuple | None:
    """The signature of a call of the public function `where`, for `PLANS`; `None` unless it is a plain call.

        key = signature("soft_sort", x, payload, dim, descending, steps, backend, relax, network)
        run = None if key is None else PLANS.find(key)
        if run is None:
            ...                                      # checks, defaults, choice of a backend
            if key is not None:
                PLANS.put(key, run)
        return run(x, payload)

    Tensors count by spec and by whether they need gradients, plain values as they are, options by `identity`. Whatever the
    checks look at must be among the arguments, so that a known call has passed them. What is found is a plain call's.
    """
    if tracing.compiling() or tracing.interpreter() is not None or tracing.modes():
        return None
    key: list[Any] = [where, torch.is_grad_enabled()]
    for argument in arguments:
        kind = type(argument)
        if kind in _PLAIN:
            key.append(argument)
        elif kind is tuple:
            try:
                hash(argument)
            except TypeError:
                return None
            key += (argument, *map(type, argument))
        elif isinstance(argument, Tensor):
            if kind not in tracing.TENSORS or argument.layout != torch.strided:
                return None
            argument = (argument.shape, argument.stride(), argument.dtype, argument.device, argument.requires_grad)
            key.append(argument)
        else:
            key.append(identity(argument))
        key.append(kind)  # 1 == True == 1.0, and only one of them may be allowed there
    return tuple(key)

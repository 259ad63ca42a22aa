"""Tables of what is worth keeping between calls: bounded, and listed by `caches()`.

    @cached
    def table(n: int) -> Table: ...                 # instead of functools.lru_cache: all such functions share one table

    TENSORS.get(("windows of speech", n, device), lambda: torch.arange(n, device=device))

A hit is one dictionary look-up; a miss makes the value outside of the lock (two threads may make it twice, and both get the
one that was stored first); a forked child has locks of its own.
"""

from __future__ import annotations

import functools
import os
import threading
import weakref
from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import Any, Generic, ParamSpec, TypeVar

import torch
from torch import Tensor

from algonet.core import tracing

V = TypeVar("V")
P = ParamSpec("P")

_ALL: weakref.WeakSet[Cache] = weakref.WeakSet()
_lock = threading.RLock()
_MISSING: Any = object()


def _new_lock() -> None:
    """A child that was forked while another thread held the lock would wait for it for ever."""
    global _lock
    _lock = threading.RLock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_new_lock)


class Cache(Generic[V]):
    """At most `most` values by hashable keys, and at most `budget` bytes by `weigh(value)`; those not used lately go first.

    Values are of two generations. Whatever is used belongs to the young one; when that is half of what there is room for, it
    becomes the old one, and what was old till then goes. So a hit is a dictionary's own look-up, and nothing is sorted.
    """

    def __init__(
        self, name: str, most: int, *, budget: int | None = None, weigh: Callable[[V], int] | None = None
    ) -> None:
        if most < 1 or (budget is None) != (weigh is None):
            raise ValueError(f"Cache: {name} needs room for one value, and `budget` and `weigh` together or neither.")
        self.name, self.most, self.budget, self._weigh = name, most, budget, weigh
        self._young: dict[Hashable, V] = {}
        self._old: dict[Hashable, V] = {}
        self._bytes = 0
        #: The young value under a key, or `None`: the dictionary's own method, because calls that hit come by the thousand.
        self.find: Callable[[Hashable], V | None] = self._young.get
        _ALL.add(self)

    def get(self, key: Hashable, make: Callable[[], V]) -> V:
        """The value under `key`, made by `make()` where there is none."""
        found: Any = self._young.get(key, _MISSING)
        if found is _MISSING:
            found = self._old.get(key, _MISSING)
            found = self.put(key, make() if found is _MISSING else found)
        return found

    def put(self, key: Hashable, value: V) -> V:
        """Keep `value` unless there is one under `key` already; returns the one that is kept."""
        with _lock:
            if key in self._young:
                return self._young[key]
            value = self._old.pop(key, value)
            size = 0 if self._weigh is None else self._weigh(value)
            if self.budget is not None and size > self.budget // 2:
                return value
            if len(self._young) >= max(1, self.most // 2) or (
                self.budget is not None and 2 * (self._bytes + size) > self.budget
            ):
                self._old, self._young, self._bytes = self._young, {}, 0
                self.find = self._young.get
            self._young[key] = value
            self._bytes += size
        return value

    def clear(self) -> None:
        with _lock:
            self._old, self._bytes = {}, 0
            self._young.clear()

    def __len__(self) -> int:
        return len(self._young) + len(self._old)

    def __contains__(self, key: Hashable) -> bool:
        return key in self._young or key in self._old

    def __iter__(self) -> Iterator[Hashable]:
        return iter([*self._old, *self._young])

    def __repr__(self) -> str:
        return f"Cache({self.name}, {len(self)} of {self.most})"


class TensorCache(Cache[V]):
    """Tensors that calls repeat, kept where that is safe: never one that belongs to a mode, a transform or a graph.

    A kept tensor is made outside of inference mode, gradients, autocast and default devices, so that every later call can use
    it. While something compiles or fakes, `get` makes the tensor in that world and keeps nothing. The values must
    not be changed in place. `make` states dtype and device; the key must name both.

    A value is a tensor, or an object whose `tensors` are what it is made of.
    """

    def __init__(self, name: str, most: int, *, budget: int = 2**26) -> None:
        super().__init__(name, most, budget=budget, weigh=_size)

    def get(self, key: Hashable, make: Callable[[], V]) -> V:
        if tracing.compiling() or tracing.faking():
            return make()
        found = self._young.get(key)
        if found is not None:
            return found
        if key in self._old:
            return super().get(key, make)
        with tracing.outside_modes():
            made = make()
        if any(tracing.wrapped(t) or tracing.capturing(t.device) for t in _tensors(made)):
            return made
        return self.put(key, made)


def _tensors(value: Any) -> Sequence[Tensor]:
    return (value,) if isinstance(value, Tensor) else value.tensors()


def _size(value: Any) -> int:
    return sum(t.numel() * t.element_size() for t in _tensors(value))


#: Results of functions that are `cached`, and tensors that calls repeat.
VALUES: Cache[Any] = Cache("values of functions", 4096)
TENSORS: TensorCache[Any] = TensorCache("tensors that calls repeat", 4096, budget=2**28)


def constant(value: float | Sequence[Any], dtype: torch.dtype, device: torch.device | str) -> Tensor:
    """A number, or nested tuples of numbers, as a tensor that is made once: filling one costs as much as a small kernel.

    >>> constant((1.0, 2.0), torch.float32, "cpu") is constant((1.0, 2.0), torch.float32, "cpu")
    True
    """
    if tracing.compiling():
        return torch.tensor(value, dtype=dtype, device=device)
    held = value if isinstance(value, (int, float, tuple)) else _tuples(value)
    # -0.0 == 0.0, and 1 == 1.0 == True: equal keys must mean equal tensors
    sign = value == 0 and str(value)[0] == "-" if isinstance(value, float) else False
    return TENSORS.get((held, sign, dtype, device), lambda: torch.tensor(value, dtype=dtype, device=device))


def _tuples(value: Any) -> Any:
    return tuple(map(_tuples, value)) if isinstance(value, (list, tuple)) else value


def cached(function: Callable[P, V]) -> Callable[P, V]:
    """Decorate a function of hashable arguments that is asked the same again and again: `VALUES` keeps its results.

    While a graph is traced the function runs as it stands.
    """

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> V:
        if tracing.compiling():
            return function(*args, **kwargs)
        key = (function, args, *kwargs.items())
        found: Any = VALUES._young.get(key, _MISSING)
        return VALUES.get(key, lambda: function(*args, **kwargs)) if found is _MISSING else found

    return call


def caches() -> list[Cache]:
    """Every cache that lives in this process, by name."""
    return sorted(_ALL, key=lambda cache: cache.name)

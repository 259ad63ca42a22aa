"""Caches: one bounded kind for everything that is kept between calls, and one kind for tensors.

    @cached(most=64)
    def table(n: int) -> Table: ...                 # instead of functools.lru_cache

    TABLES: TensorCache[Tensor] = TensorCache("sorting tables", most=256)
    TABLES.get((n, device), lambda: torch.arange(n, device=device))

Every cache is bounded and listed by `caches()`. A hit is one dictionary look-up; a miss makes the value outside of the lock
(two threads may make it twice, and both get the one that was stored first); a forked child has locks of its own.
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
    """At most `most` values by hashable keys, and at most `budget` bytes by `weigh(value)`; the oldest go first."""

    def __init__(
        self, name: str, most: int, *, budget: int | None = None, weigh: Callable[[V], int] | None = None
    ) -> None:
        if most < 1 or (budget is None) != (weigh is None):
            raise ValueError(f"Cache: {name} needs room for one value, and `budget` and `weigh` together or neither.")
        self.name, self.most, self.budget, self._weigh = name, most, budget, weigh
        self._values: dict[Hashable, V] = {}
        self._bytes: dict[Hashable, int] = {}
        self._total = 0
        #: The value under a key, or `None`: the dictionary's own method, because calls that hit come by the thousand.
        self.find: Callable[[Hashable], V | None] = self._values.get
        _ALL.add(self)

    def get(self, key: Hashable, make: Callable[[], V]) -> V:
        """The value under `key`, made by `make()` where there is none."""
        found: Any = self._values.get(key, _MISSING)
        return self.put(key, make()) if found is _MISSING else found

    def put(self, key: Hashable, value: V) -> V:
        """Keep `value` unless there is one under `key` already; returns the one that is kept."""
        size = 0 if self._weigh is None else self._weigh(value)
        if self.budget is not None and size > self.budget:
            return value
        with _lock:
            if key in self._values:
                return self._values[key]
            while self._values and (
                len(self._values) >= self.most or (self.budget is not None and self._total + size > self.budget)
            ):
                oldest = next(iter(self._values))
                del self._values[oldest]
                self._total -= self._bytes.pop(oldest, 0)
            self._values[key] = value
            if size:
                self._bytes[key] = size
                self._total += size
        return value

    def clear(self) -> None:
        with _lock:
            self._values.clear()
            self._bytes.clear()
            self._total = 0

    def __len__(self) -> int:
        return len(self._values)

    def __contains__(self, key: Hashable) -> bool:
        return key in self._values

    def __iter__(self) -> Iterator[Hashable]:
        return iter(list(self._values))

    def __repr__(self) -> str:
        return f"Cache({self.name}, {len(self)} of {self.most})"

    def __deepcopy__(self, memo: dict) -> Cache[V]:
        """A cache that belongs to an object starts empty in its copy."""
        return type(self)(self.name, self.most, budget=self.budget, weigh=self._weigh)

    def __reduce__(self) -> Any:
        return _empty, (type(self), self.name, self.most, self.budget)


def _empty(kind: type[Cache], name: str, most: int, budget: int | None) -> Cache:
    return kind(name, most) if budget is None else kind(name, most, budget=budget)


class TensorCache(Cache[V]):
    """Tensors that calls repeat, kept where that is safe: never one that belongs to a mode, a transform or a graph.

    A kept tensor is made outside of inference mode, gradients, autocast and default devices, so that every later call can use
    it. While something compiles or fakes, `get` makes the tensor in that world and keeps nothing. The values must
    not be changed in place. `make` states dtype and device; the key must name both.

    Values that are made of several tensors say which: `tensors(value)`.
    """

    def __init__(
        self, name: str, most: int, *, budget: int = 2**26, tensors: Callable[[V], Sequence[Tensor]] | None = None
    ) -> None:
        self._tensors: Callable[[V], Sequence[Any]] = tensors or _alone
        super().__init__(name, most, budget=budget, weigh=self._size)

    def get(self, key: Hashable, make: Callable[[], V]) -> V:
        if tracing.compiling():
            return make()
        found = self._values.get(key)
        if found is not None and not tracing.faking():
            return found
        if tracing.faking():
            return make()
        with tracing.outside_modes():
            made = make()
        if any(tracing.wrapped(t) or tracing.capturing(t.device) for t in self._tensors(made)):
            return made
        return self.put(key, made)

    def _size(self, value: V) -> int:
        return sum(t.numel() * t.element_size() for t in self._tensors(value))

    def __deepcopy__(self, memo: dict) -> TensorCache[V]:
        tensors = None if self._tensors is _alone else self._tensors
        return TensorCache(self.name, self.most, budget=self.budget or 0, tensors=tensors)


def _alone(tensor: Any) -> tuple[Tensor]:
    return (tensor,)


_CONSTANTS: TensorCache[Tensor] = TensorCache("constants", most=1024)


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
    return _CONSTANTS.get((held, sign, dtype, device), lambda: torch.tensor(value, dtype=dtype, device=device))


def _tuples(value: Any) -> Any:
    return tuple(map(_tuples, value)) if isinstance(value, (list, tuple)) else value


def cached(most: int, name: str | None = None) -> Callable[[Callable[P, V]], Callable[P, V]]:
    """Decorate a function of hashable arguments that is asked the same again and again; `function.cache` is its `Cache`.

    While a graph is traced the function runs as it stands.
    """

    def decorate(function: Callable[P, V]) -> Callable[P, V]:
        cache: Cache[V] = Cache(name or f"{function.__module__}.{function.__qualname__}", most)
        values = cache._values

        @functools.wraps(function)
        def call(*args: P.args, **kwargs: P.kwargs) -> V:
            if tracing.compiling():
                return function(*args, **kwargs)
            key = (args, *kwargs.items()) if kwargs else args
            found: Any = values.get(key, _MISSING)
            return cache.put(key, function(*args, **kwargs)) if found is _MISSING else found

        call.__dict__["cache"] = cache
        return call

    return decorate


def caches() -> list[Cache]:
    """Every cache that lives in this process, by name."""
    return sorted(_ALL, key=lambda cache: cache.name)

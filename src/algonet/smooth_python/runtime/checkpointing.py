"""Loops that are run again in the backward pass instead of being kept: memory for the carried state only.

A second run must find all that the first one found. Variables are handed over (the rewriter makes every one that the body
reads a parameter), the probability of being here and the softness blocks around are put back, and what comes from outside
the function (globals, attributes, tensors read from there) is compared: a change in between is an error, as it is where
autograd keeps a tensor that is changed in place.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Hashable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor
from torch.utils.checkpoint import checkpoint

from ..machine.containers import flat, mapped
from ..machine.eager import EAGER
from ..machine.keys import Found, UnknownError
from ..machine.values import Value
from ..softness import BLOCKS, Report, within


class _Surroundings:
    """What a run depends on besides its variables."""

    def __init__(self, frame: Any):
        self._frame = frame
        self._blocks = BLOCKS.get()
        self._state = frame.mass, frame.base
        self._outside = self._read()
        self._runs = 0

    def _read(self) -> tuple[Hashable, list[tuple[int, int]]] | None:
        """The outside, with the versions of the tensors in it; None where no key can stand for it."""
        found = Found()
        try:
            key = self._frame.outside.key(found)
        except (UnknownError, TypeError, RecursionError):
            return None
        return key, [(id(t), t._version) for t in found.tensors]

    @contextmanager
    def run(self) -> Iterator[None]:
        self._runs += 1
        if self._runs == 1:
            yield
            return
        frame = self._frame
        if self._outside is not None and self._read() != self._outside:
            raise RuntimeError(
                f"{frame.name}: something that it reads from outside changed between forward and backward, and with "
                "checkpoint=True its loops are run again; change it after the backward pass, or pass it as an argument."
            )
        now = frame.mass, frame.base, frame.report, frame.rerunning
        (frame.mass, frame.base), frame.report, frame.rerunning = self._state, Report(), True
        try:
            with within(self._blocks):
                yield
        finally:
            frame.mass, frame.base, frame.report, frame.rerunning = now


def rerun(frame: Any, body: Callable[..., tuple], *state: Any) -> tuple:
    """body(*state), computed again when its gradient is wanted."""
    values = flat(state)
    surroundings = _Surroundings(frame)
    found: list[Any] = []

    def run(*moved: Tensor) -> tuple[Tensor, ...]:
        with surroundings.run():
            results = body(*_filled(state, moved))
        # Its structure, without the tensors
        found[:] = [_filled(results, itertools.repeat(None))]
        return tuple(value.tensor for value in flat(results))

    outputs: Any = checkpoint(run, *(value.tensor for value in values), use_reentrant=False)
    return _filled(found[0], outputs)


def _filled(nest: Any, tensors: Iterable[Tensor | None]) -> Any:
    """The nest with these tensors for those of its values."""
    source = iter(tensors)
    return mapped(lambda x: Value(next(source), x.batched, EAGER) if type(x) is Value else x, nest)


def rerun_each(frame: Any, body: Callable[..., tuple], items: Iterable[Any], *state: Any) -> tuple:
    """The body for each item, in about sqrt(n) pieces of sqrt(n) iterations: memory grows with sqrt(n) states."""
    items = list(items)
    size = max(1, math.isqrt(len(items)))
    for start in range(0, len(items), size):
        piece = items[start : start + size]

        def run(*carried: Any, piece: list = piece) -> tuple:
            for item in piece:
                carried = body(item, *carried)
            return carried

        state = rerun(frame, run, *state)
    return state

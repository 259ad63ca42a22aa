"""Random numbers of the program itself: `random.random()`, `random.gauss(...)`, `torch.rand(())` and their kin.

Each item (each particle, where there are some) draws its own, from the seed of the call: `generator=`, or torch's own seed. The
numbers are instructions, so that a recorded program draws new ones in every call.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch

from ..machine.eager import as_value, stacked
from ..machine.values import NUMBERS, Value, smooth_kind


def _gauss(frame: Any, mu: Any = 0.0, sigma: Any = 1.0) -> Value:
    """By Box and Muller; 1 - u is never 0."""
    radius = frame.operate("sqrt", frame.operate("log", 1.0 - frame.uniform()) * -2.0)
    return radius * frame.operate("cos", frame.uniform() * (2.0 * math.pi)) * sigma + mu


def _expovariate(frame: Any, lambd: Any = 1.0) -> Value:
    drawn = frame.operate("log", 1.0 - frame.uniform())
    return -drawn / as_value(lambd) if smooth_kind(lambd) else drawn * (-1.0 / lambd)


def _randrange(frame: Any, start: int, stop: int | None = None, step: int = 1) -> Value:
    places = range(start) if stop is None else range(start, stop, step)
    return frame.operate("floor", frame.uniform() * float(len(places))) * float(places.step) + float(places.start)


#: Methods of `random`, and of generators made by `random.Random`.
RANDOM: dict[str, Callable[..., Any]] = {
    "random": lambda frame: frame.uniform(),
    "uniform": lambda frame, a=0.0, b=1.0: frame.uniform() * (b - a) + a,
    "gauss": _gauss,
    "normalvariate": _gauss,
    "expovariate": _expovariate,
    "randrange": _randrange,
    "randint": lambda frame, a, b: _randrange(frame, a, b + 1),
    "choice": lambda frame, items: frame.load(items, _randrange(frame, len(items))),
}


def _shaped(draw: Callable[[Any], Value], function: Callable[..., Any]) -> Callable[..., Any]:
    """A torch function that draws a tensor of some shape, number by number."""

    def drawn(frame: Any, *size: Any, generator: Any = None, **options: Any) -> Any:
        if frame.draws is None or options:
            frame.mark_unrecordable()
            return as_value(function(*size, generator=generator, **options))
        shape = size[0] if len(size) == 1 and not isinstance(size[0], NUMBERS) else size

        def part(rest: tuple[int, ...]) -> Value:
            return draw(frame) if not rest else stacked([part(rest[1:]) for _ in range(rest[0])])

        return part(tuple(shape))

    return drawn


TORCH: dict[Any, Callable[..., Any]] = {
    torch.rand: _shaped(RANDOM["random"], torch.rand),
    torch.randn: _shaped(_gauss, torch.randn),
}

"""Calls inside a smooth program: Python's builtins with their smooth meaning, other smooth functions, torch functions.

A function that knows nothing of batches (a torch function, a module, a helper) sees one item: elementwise functions take
the batch as it is, every other one is mapped over it by `torch.vmap`.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import random
import types
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ..machine.eager import EAGER, aligned, as_value, call_tensor_function, method, stacked, wrapped
from ..machine.tape import INSTRUCTIONS, known
from ..machine.values import NUMBERS, Value, flat, machine_of, smooth_kind
from . import comparisons


def call(frame: Any, function: Any, /, *args: Any, **kwargs: Any) -> Any:
    """function(*args, **kwargs) as a smooth program means it."""
    special = known(_SPECIAL, function)
    if special is not None:
        return special(frame, *args, **kwargs)
    if getattr(function, "is_smooth", False):
        return function.inside(frame, args, kwargs)
    partial = isinstance(function, functools.partial)
    if partial and function.func is not method:
        return call(frame, function.func, *function.args, *args, **{**function.keywords, **kwargs})
    if partial or (isinstance(function, type) and dataclasses.is_dataclass(function)) or known(_MOVING, function):
        # Methods of values; fields are moved, not looked at
        return function(*args, **kwargs)
    owner, name = getattr(function, "__self__", None), getattr(function, "__name__", "")
    drawn = RANDOM.get(name) if isinstance(owner, random.Random) else None
    if drawn is not None:
        return drawn(frame, *args, **kwargs)
    if isinstance(owner, (list, tuple, dict)) and flat((owner, args, kwargs)):
        # Moved, not looked at
        if name in ("index", "count", "remove"):
            raise TypeError(f".{name}() compares crisply; write the loop with an `if` in it.")
        return function(*args, **kwargs)
    if not flat((args, kwargs)) and _from_math(function) and any(isinstance(x, Tensor) for x in args):
        # Of tensors from outside: with their gradient, and again in every run
        twin = _of_tensors(function)
        return Value(frame.machine.derived(args[0], twin) if len(args) == 1 else twin(*args), False, EAGER)
    if _from_math(function) or known(_PURE, function) or known(INSTRUCTIONS, function) is not None:
        return _called(function, args, kwargs)
    # It may look at anything and do anything
    frame.mark_unrecordable()
    with frame.machine.unwatched():
        return _called(function, args, kwargs)


def _called(function: Any, args: tuple, kwargs: dict) -> Any:
    values = flat((args, kwargs))
    if not values:
        return wrapped(function(*args, **kwargs))
    return machine_of(*values).call(_of_tensors(function), args, kwargs)


def _of_tensors(function: Any) -> Any:
    """Torch's twin of a function from `math`; an error for builtins that would decide crisply or lose the gradient."""
    if _from_math(function):
        twin = _MATH.get(function)
        if twin is None:
            raise TypeError(
                f"math.{function.__name__} takes Python numbers and would lose the gradient; use a torch function."
            )
        return twin
    if function in (sorted, filter, map):
        raise TypeError(
            f"{function.__name__}() of tensors has no smooth meaning; write the loop, or use a torch function (for sorting "
            "algonet.sorting)."
        )
    return function


# -- Python's builtins


def _len(frame: Any, x: Any) -> int:
    if not isinstance(x, (Value, list, tuple, dict, str, range, Tensor)):
        frame.mark_unrecordable()
    return x.shape[0] if isinstance(x, Tensor) else len(x)


def _sum(frame: Any, items: Any, start: Any = 0) -> Any:
    if type(items) is Value and not items.parted:
        total = Value(items.tensor.sum(int(items.batched)), items.batched, items.machine)
        return total if isinstance(start, int) and start == 0 else total + start
    for item in items:
        start = start + item
    return start


def _extreme(better: Callable, crisp: Callable) -> Callable:
    """max and min as Python decides them: y if y is better than x, else x."""

    def extreme(frame: Any, *args: Any, **kwargs: Any) -> Any:
        items = list(args[0]) if len(args) == 1 else list(args)
        if not any(smooth_kind(x) for x in items):
            return crisp(*args, **kwargs)
        if kwargs:
            raise TypeError(f"{crisp.__name__} of tensors takes no `{next(iter(kwargs))}` in a smooth program.")
        return functools.reduce(lambda x, y: comparisons.chosen(frame, better(frame, y, x), y, x), items)

    return extreme


def _joined(join: Callable, found: Any) -> Callable:
    def joined(frame: Any, items: Any) -> Any:
        answer = found
        for item in items:
            answer = join(frame, answer, lambda item=item: comparisons.truth(frame, item))
        return frame.decided(answer)

    return joined


def _range(frame: Any, *bounds: Any) -> range:
    if any(smooth_kind(b) for b in bounds):
        raise TypeError(
            "range() needs Python integers, got a tensor; write a `while` loop, whose end is a smooth decision, "
            "or loop over the largest range with an `if` inside."
        )
    return range(*bounds)


def _int(frame: Any, x: Any = 0, *base: Any) -> Any:
    if smooth_kind(x):
        raise TypeError("int() of a tensor is a step without gradient; keep the real number: subscripts take it too.")
    return int(x, *base)


def _round(frame: Any, x: Any, ndigits: int | None = None) -> Any:
    if not smooth_kind(x):
        return round(x, ndigits)
    return call(frame, torch.round, x) if ndigits is None else call(frame, torch.round, x, decimals=ndigits)


def _print(frame: Any, *args: Any, **kwargs: Any) -> None:
    frame.mark_unrecordable()
    print(*(x.bare if type(x) is Value else x for x in args), **kwargs)


def _tensor_from(frame: Any, data: Any, **options: Any) -> Any:
    """torch.tensor and torch.stack of parts that are values: put together, with their gradients."""
    if not flat(data):
        return wrapped(torch.tensor(data, **options))
    return stacked([_tensor_from(frame, part) if isinstance(part, (list, tuple)) else part for part in data])


def _stack(frame: Any, parts: Any, dim: int = 0) -> Any:
    if dim == 0:
        return stacked(list(parts))
    return call_tensor_function(torch.stack, (list(parts), dim), {})


def _where(frame: Any, condition: Any, *sides: Any, **options: Any) -> Any:
    """torch.where(c, a, b): `a if c else b`, where c is a smooth decision."""
    # A recorded number is no flag
    held = type(condition) is not Value or condition.has_tensor
    crisp = not smooth_kind(condition) or (held and as_value(condition).tensor.dtype == torch.bool)
    if crisp or len(sides) != 2 or options:
        return call_tensor_function(torch.where, (condition, *sides), options)
    return frame.choose(comparisons.truth(frame, condition), lambda: sides[0], lambda: sides[1])


def _of_two(crisp: Callable, twin: Callable) -> Callable:
    """A function of two numbers from `math`, whose twin wants both of them as tensors."""

    def function(frame: Any, x: Any, y: Any) -> Any:
        if not smooth_kind(x) and not smooth_kind(y):
            return crisp(x, y)
        (a, b), batched = aligned(x, y)
        return Value(twin(a, b), batched, frame.machine)

    return function


# -- random numbers of the program itself: each item (each particle, where there are some) draws its own, from the seed of the
# call, `generator=`, or torch's own. They are instructions, so that a recorded program draws new ones in every call


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
        if options:
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


_SPECIAL: dict[Any, Callable] = {
    **{
        getattr(math, name): _of_two(getattr(math, name), getattr(torch, name))
        for name in ("atan2", "hypot", "pow", "fmod", "copysign")
    },
    abs: comparisons.absolute,
    min: _extreme(comparisons.less, min),
    max: _extreme(comparisons.greater, max),
    any: _joined(comparisons.either, False),
    all: _joined(comparisons.both, True),
    sum: _sum,
    len: _len,
    range: _range,
    float: lambda frame, x=0.0: as_value(x) if smooth_kind(x) else float(x),
    int: _int,
    bool: lambda frame, x=False: comparisons.truth(frame, x) if smooth_kind(x) else bool(x),
    round: _round,
    divmod: lambda frame, x, y: (x // y, x % y),
    print: _print,
    reversed: lambda frame, items: reversed(list(items)),
    isinstance: lambda frame, x, kinds: isinstance(x.tensor if type(x) is Value else x, kinds),
    torch.tensor: _tensor_from,
    torch.stack: _stack,
    torch.where: _where,
    **TORCH,
}


_TWINS = """
    acos acosh asin asinh atan atanh ceil cos cosh erf erfc exp expm1 floor isfinite isinf isnan lgamma log log10
    log1p log2 sin sinh sqrt tan tanh trunc
"""
#: What `math` has for numbers and torch for tensors: one source serves crisp and smooth runs.
_MATH = {getattr(math, name): getattr(torch, name) for name in _TWINS.split()}
_MATH |= {math.fabs: torch.abs, math.degrees: torch.rad2deg, math.radians: torch.deg2rad}


#: Functions that put what they are given into another container.
_MOVING = dict.fromkeys((list, tuple, zip, enumerate, dataclasses.replace), True)
#: Functions of Python numbers that do nothing else; with those of `math` they may be left out of a run that is repeated.
_PURE = dict.fromkeys((pow, str, chr, ord), True)


def _from_math(function: Any) -> bool:
    return isinstance(function, types.BuiltinFunctionType) and function.__self__ is math

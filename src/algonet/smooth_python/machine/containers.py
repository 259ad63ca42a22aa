"""One walk over lists, tuples, dictionaries and records, for all that is done with what is inside of them."""

from __future__ import annotations

import copy
import dataclasses
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import torch

from algonet.relax import Relaxation, TConorm

from .values import Value


def opened(x: Any) -> tuple[list[Any], Callable[[list[Any]], Any]] | None:
    """The parts of a container, and what makes one like it of other parts; None for everything else."""
    kind = type(x)
    if kind is Value or kind is torch.Tensor:
        return None
    if isinstance(x, (list, tuple)) and kind is not torch.Size:
        return list(x), getattr(kind, "_make", kind)
    if isinstance(x, dict):
        return list(x.values()), lambda parts: dict_like(x, dict(zip(x, parts, strict=True)))
    if is_record(x):
        record: Any = x
        names = [field.name for field in dataclasses.fields(record)]

        def make(parts: list[Any]) -> Any:
            new = copy.copy(x)
            for name, part in zip(names, parts, strict=True):
                object.__setattr__(new, name, part)
            return new

        return [getattr(x, name) for name in names], make
    return None


def mapped(function: Callable[..., Any], *trees: Any, keep: bool = False) -> Any:
    """function(x, ...) for the leaves of equal nests, and for whatever differs in kind, length or keys.

    `keep`: what is the very same thing in both of two nests stays as it is.
    """
    if type(trees[0]) is Value:
        return trees[0] if keep and trees[0] is trees[1] else function(*trees)
    if keep and is_same(*trees):
        return trees[0]
    first = opened(trees[0])
    if first is None:
        return function(*trees)
    parts, make = first
    columns = [_parts_like(trees[0], tree) for tree in trees[1:]]
    if None in columns:
        return function(*trees)
    return make([mapped(function, *row, keep=keep) for row in zip(parts, *columns, strict=True)])  # pyright: ignore[reportArgumentType]


def flat(x: Any) -> list[Value]:
    """All values inside of a nest."""
    if type(x) is Value:
        return [x]
    found = opened(x)
    return [] if found is None else [value for part in found[0] for value in flat(part)]


def is_same(a: Any, b: Any) -> bool:
    """Whether both are the very same thing. Tuples are their parts: torch.compile cannot tell whether two are one."""
    if isinstance(a, tuple) and isinstance(b, tuple):
        return type(a) is type(b) and len(a) == len(b) and all(map(is_same, a, b))
    return a is b


def is_record(x: Any) -> bool:
    """Whether x is a dataclass that programs use as a state; the library's own options are none."""
    return dataclasses.is_dataclass(x) and not isinstance(x, (type, Relaxation, TConorm))


def dict_like(like: dict, items: dict) -> dict:
    """These items in a dictionary of the same kind: a `defaultdict` keeps its default."""
    if type(like) is dict:
        return items
    new = copy.copy(like)
    new.clear()
    new.update(items)
    return new


def _parts_like(one: Any, other: Any) -> list[Any] | None:
    """The parts of another container in the order of the first; None where it has another kind, length or keys."""
    if isinstance(one, dict) and isinstance(other, dict):
        if isinstance(one, defaultdict) and isinstance(other, defaultdict):
            # A key that only one of them was asked for has its default in the other
            for key in one.keys() ^ other.keys():
                lacking = other if key in one else one
                lacking[key] = lacking[key]
        return [other[key] for key in one] if one.keys() == other.keys() else None
    found = opened(other) if type(one) is type(other) else None
    return None if found is None or (not is_record(one) and len(one) != len(other)) else found[0]

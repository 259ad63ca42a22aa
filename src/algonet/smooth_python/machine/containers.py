"""Values inside lists, tuples, dictionaries and records: into a program, through it, and out of it."""

from __future__ import annotations

import copy
import dataclasses
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from algonet.relax import Relaxation, TConorm

from .eager import EAGER, as_value, soft_number
from .values import NUMBERS, Value


def lifted(x: Any, batched: bool, found: list[Value], where: str) -> Any:
    """An argument as the program sees it: tensors as values (collected in `found`), containers copied."""
    if not isinstance(x, Tensor):
        return mapped(lambda part: _lifted(part, batched, found, where), x)
    return _lifted(x, batched, found, where)


def _lifted(x: Any, batched: bool, found: list[Value], where: str) -> Any:
    if isinstance(x, Tensor):
        # A single number is the same for all items
        batched = batched and x.dim() > 0
        if batched:
            _check_batch(x, next((v.tensor.shape[0] for v in found if v.batched), None), where)
        found.append(Value(x, batched, EAGER))
        return found[-1]
    if isinstance(x, np.ndarray):
        raise TypeError(
            f"{where}: a NumPy array decides crisply and has no gradient; pass torch.from_numpy(...), or .tolist() for "
            "crisp numbers."
        )
    return x.item() if isinstance(x, np.generic) else x


def _check_batch(x: Tensor, size: int | None, where: str) -> None:
    if size is not None and size != x.shape[0]:
        raise ValueError(
            f"{where}: with batched=True all tensors share their first dimension: {size} so far, here "
            f"{x.shape[0]} in shape {tuple(x.shape)}. A parameter that all items share is a single number, or named in "
            "shared=(...)."
        )


def lowered(x: Any, size: int | None, half: torch.dtype | None, like: Tensor | None) -> Any:
    """A result as the caller sees it: plain tensors, every one with the batch in front when there is one.

    Real numbers that no decision touched come as tensors, too: a result's type does not depend on the data.
    """

    def lower(x: Any) -> Any:
        if type(x) is float and like is not None:
            x = torch.full((), x, dtype=like.dtype, device=like.device)
        if type(x) is not Value and not isinstance(x, Tensor):
            return x
        value = as_value(x)
        tensor = value.bare if half is None or not value.tensor.is_floating_point() else value.bare.to(half)
        return tensor.expand(size, *tensor.shape) if size is not None and not value.batched else tensor

    return mapped(lower, x)


def mapped(function: Callable[..., Any], *trees: Any) -> Any:
    """function(x, ...) for the leaves of equal nests of lists, tuples, dictionaries and records."""
    first = trees[0]
    if isinstance(first, tuple) and hasattr(first, "_fields"):
        return type(first)(*[mapped(function, *parts) for parts in zip(*trees, strict=True)])
    if isinstance(first, (list, tuple)):
        return type(first)([mapped(function, *parts) for parts in zip(*trees, strict=True)])
    if isinstance(first, dict):
        return dict_like(first, {key: mapped(function, *(tree[key] for tree in trees)) for key in first})
    if is_record(first):
        return record_like(first, {k: mapped(function, *(getattr(t, k) for t in trees)) for k in record_fields(first)})
    return function(*trees)


def is_record(x: Any) -> bool:
    """Whether x is a dataclass that programs use as a state; the library's own options are none."""
    return dataclasses.is_dataclass(x) and not isinstance(x, (type, Relaxation, TConorm))


def record_fields(x: Any) -> list[str]:
    return [f.name for f in dataclasses.fields(x)]


def record_like(like: Any, fields: dict[str, Any]) -> Any:
    """The record with other values in its fields."""
    new = copy.copy(like)
    for name, value in fields.items():
        object.__setattr__(new, name, value)
    return new


def dict_like(like: dict, items: dict) -> dict:
    """These items in a dictionary of the same kind: a `defaultdict` keeps its default."""
    if type(like) is dict:
        return items
    new = copy.copy(like)
    new.clear()
    new.update(items)
    return new


def flat(x: Any) -> list[Value]:
    """All values inside nested lists, tuples and dictionaries."""
    if type(x) is Value:
        return [x]
    if isinstance(x, dict):
        x = list(x.values())
    if isinstance(x, (list, tuple)):
        return [v for part in x for v in flat(part)]
    if is_record(x):
        return [v for name in record_fields(x) for v in flat(getattr(x, name))]
    return []


def softened(x: Any, like: Value) -> Any:
    """The same with values for the numbers in it, inside whatever containers they come in.

    A smooth decision may change a variable even where nobody took that way: whether later decisions on it are smooth must
    not depend on who is in the batch.
    """
    if isinstance(x, NUMBERS):
        return soft_number(x, like)
    if isinstance(x, tuple) and hasattr(x, "_fields"):
        return type(x)(*[softened(part, like) for part in x])
    if type(x) in (list, tuple):
        return type(x)([softened(part, like) for part in x])
    if isinstance(x, dict):
        return dict_like(x, {key: softened(part, like) for key, part in x.items()})
    if is_record(x):
        return record_like(x, {n: softened(getattr(x, n), like) for n in record_fields(x)})
    return x


def is_real(x: Any) -> bool:
    """Whether x is a finite Python float or a floating value: a number that assignments can scale."""
    if type(x) is float:
        return math.isfinite(x)
    if type(x) is not Value:
        return isinstance(x, Tensor) and x.is_floating_point()
    if x.parted and not x.has_tensor:
        return any(map(is_real, x.parts))
    return x.row is not None or x.source is not None or x.tensor.is_floating_point()


class Cast(NamedTuple):
    """A tensor in another precision."""

    precision: torch.dtype

    def __call__(self, tensor: Tensor) -> Tensor:
        return tensor.to(self.precision)

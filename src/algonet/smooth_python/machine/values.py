"""What a smooth program computes with: a tensor of one item, or of a whole batch of items at once.

A program is written for one item. A `Value` holds the item's tensor, with one dimension more in front when a batch runs;
operators see the item's dimensions only, so a scalar times a vector means the same with and without a batch. A value that
the program subscripts with integers is kept as the list of its parts: reading and writing one part then costs nothing,
and nothing is ever written in place. Plain tensors among the operands are constants that all items share.

Values belong to a `Machine`, and everything that is computed with them goes through it: arithmetic by `operate(name, ...)`.
`Machine` itself runs each operation at once; a `TapeMachine` records those on single numbers and runs them later, many in one
kernel. Programs, branches and loops do not know which one they run on.
"""

from __future__ import annotations

import copy
import dataclasses
import operator
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch import Tensor

from algonet.relax import Relaxation, TConorm

#: Precisions for storage: programs compute them in float32.
HALVES = (torch.float16, torch.bfloat16)
#: Types that decide crisply.
NUMBERS = (int, float, bool)


def _operators(name: str) -> tuple[Callable[[Any, Any], Any], Callable[[Any, Any], Any]]:
    """An operator of Python on a value, and the one for a value on its right."""

    def from_left(self: Any, other: Any) -> Any:
        return self.machine.operate(name, self, other)

    def from_right(self: Any, other: Any) -> Any:
        return self.machine.operate(name, other, self)

    return from_left, from_right


class Value:
    """A tensor (`batched`: with the batch in front), or the list of its parts along the item's first dimension."""

    __slots__ = ("_newer", "_parts", "_tensor", "batched", "machine", "row", "source")

    def __init__(self, tensor: Tensor | None, batched: bool, machine: Any, parts: list | None = None):
        self._tensor = tensor
        self.batched = batched
        self.machine = machine
        self._parts = parts
        #: The value that has the list of parts now, and what was in it at the places where they differ; see `replaced`.
        self._newer: tuple[Value, dict[int, Any]] | None = None
        #: Of a recorded number: its row, and (tensor, column) where it has run.
        self.row: int | None = None
        self.source: tuple[Tensor, int] | None = None

    @property
    def tensor(self) -> Tensor:
        """The whole as one tensor; parts are put together, recorded operations are carried out."""
        if self._tensor is None:
            self._tensor = self.machine.evaluate(self)
        return self._tensor

    @property
    def bare(self) -> Tensor:
        """The tensor as the caller knows it: without the batch of one that a single item may run in."""
        return self.tensor.squeeze(0) if self.machine.single and self.batched else self.tensor

    @property
    def has_tensor(self) -> bool:
        return self._tensor is not None

    @property
    def recorded(self) -> bool:
        """Whether it is a number on a tape, which has run or waits for it."""
        return self.row is not None or self.source is not None

    @property
    def number(self) -> bool:
        """Whether it is a single number per item."""
        return not self.parted and (self.recorded or self.tensor.dim() == self.batched)

    @property
    def parts(self) -> list:
        """The parts along the item's first dimension; to be read only."""
        if self._newer is not None:
            return self._taken_back()
        if self._parts is None:
            if self.number:
                raise TypeError("a single number has no parts: it can be neither subscripted nor iterated over.")
            self._parts = self.machine.parts(self)
        return self._parts

    def replaced(self, changes: dict[int, Any], batched: bool, machine: Any) -> Value:
        """The same with other parts at some places.

        Nothing is copied: the list goes on to the new value, and the old one gets it back when it is asked for its parts.
        """
        parts = self.parts
        new = Value(None, batched, machine, parts)
        before = {k % len(parts): parts[k] for k in changes}
        for k, part in changes.items():
            parts[k] = part
        self._parts, self._newer = None, (new, before)
        return new

    def _taken_back(self) -> list:
        """The list of parts as it was, from the value that has it now."""
        way: list[Any] = [self]
        while way[-1]._newer is not None:
            way.append(way[-1]._newer[0])
        newer = way.pop()
        parts = newer.parts
        for value in reversed(way):
            before = value._newer[1]
            newer._parts, newer._newer = None, (value, {k: parts[k] for k in before})
            for k, part in before.items():
                parts[k] = part
            value._parts, value._newer = parts, None
            newer = value
        return parts

    def differing(self, other: Value) -> list[int]:
        """The places where two values that are kept as parts, equally many, may have different ones."""
        for old, new in ((self, other), (other, self)):
            places: set[int] = set()
            while old is not new and old._newer is not None:
                old, before = old._newer
                places.update(before)
            if old is new:
                return sorted(places)
        own = list(self.parts)
        return [k for k, part in enumerate(other.parts) if part is not own[k]]

    @property
    def parted(self) -> bool:
        """Whether the value is kept as parts at present."""
        return self._parts is not None or self._newer is not None

    def settle(self, tensor: Tensor) -> None:
        """From parts to one tensor."""
        self._tensor = tensor
        self._parts = self._newer = None

    # -- as a sequence

    def __len__(self) -> int:
        if self.parted:
            return len(self.parts)
        if self.tensor.dim() == self.batched:
            raise TypeError("len() of a single number.")
        return self.tensor.shape[int(self.batched)]

    def __iter__(self) -> Iterator[Any]:
        # Not the list itself, which may go on to a value that is written meanwhile
        return iter(list(self.parts))

    def __repr__(self) -> str:
        self.machine.mark_unrecordable()
        return f"smooth {self.bare!r}"

    def __bool__(self) -> bool:
        raise TypeError(
            "a smooth value was asked for a crisp yes or no outside `if`, `while`, `and`, `or` and `not`; "
            "write the decision in one of these, or compare Python numbers."
        )

    def __index__(self) -> int:
        raise TypeError("a smooth value cannot be an integer position here; subscript the tensor with it directly.")

    def _compared(self, other: Any):
        raise TypeError(
            "smooth values are compared where Python decides crisply: inside a tuple or list, min(), max() or a helper; "
            "write the comparison of two numbers in the smooth function itself."
        )

    __lt__ = __le__ = __gt__ = __ge__ = _compared

    def _bits(self, *other: Any):
        raise TypeError("`&`, `|`, `^` and `~` work on bits; write `and`, `or` and `not` between smooth decisions.")

    __and__ = __rand__ = __or__ = __ror__ = __xor__ = __rxor__ = __invert__ = _bits

    __hash__ = None  # pyright: ignore[reportAssignmentType]

    # -- arithmetic

    __add__, __radd__ = _operators("add")
    __sub__, __rsub__ = _operators("sub")
    __mul__, __rmul__ = _operators("mul")
    __truediv__, __rtruediv__ = _operators("truediv")
    __floordiv__, __rfloordiv__ = _operators("floordiv")
    __mod__, __rmod__ = _operators("mod")
    __pow__, __rpow__ = _operators("pow")

    def __neg__(self) -> Any:
        return self.machine.operate("neg", self)

    def __pos__(self) -> Any:
        return self

    def __matmul__(self, other: Any) -> Any:
        return machine_of(self, other).call(operator.matmul, (self, other), {})

    def __rmatmul__(self, other: Any) -> Any:
        return self.machine.call(operator.matmul, (other, self), {})

    def __getattr__(self, name: str) -> Any:
        if name in Value.__slots__:
            # One that was made without its constructor, as torch.compile and `copy` do
            raise AttributeError(name)
        return self.machine.attribute(self, name)


def functions_called(names: str, homes: tuple[Any, ...]) -> frozenset[Any]:
    """The functions with these names in modules and classes."""
    return frozenset(getattr(home, name) for name in names.split() for home in homes if hasattr(home, name))


def smooth_kind(x: Any) -> bool:
    """Whether a decision on x is smooth: tensors decide smoothly, everything else crisply."""
    return type(x) is Value or isinstance(x, Tensor)


def machine_of(*operands: Any) -> Any:
    """The machine of an operation on these, of which one at least is a value: one that leads, if there is one."""
    found: Any = None
    for x in operands:
        if type(x) is Value:
            found = x.machine
            if found.leads:
                break
    return found


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


def leaves(x: Any) -> list[Any]:
    """All that is inside of a nest."""
    found = opened(x)
    return [x] if found is None else [leaf for part in found[0] for leaf in leaves(part)]


def flat(x: Any) -> list[Value]:
    """All values inside of a nest."""
    return [leaf for leaf in leaves(x) if type(leaf) is Value]


def refilled(nest: Any, items: Iterable[Any]) -> Any:
    """The nest with these in the place of its values."""
    source = iter(items)
    return mapped(lambda x: next(source) if type(x) is Value else x, nest)


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

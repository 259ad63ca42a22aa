"""What a smooth program computes with: a tensor of one item, or of a whole batch of items at once.

A program is written for one item. A `Value` holds the item's tensor, with one dimension more in front when a batch runs;
operators see the item's dimensions only, so a scalar times a vector means the same with and without a batch. A value that
the program subscripts with integers is kept as the list of its parts: reading and writing one part then costs nothing,
and nothing is ever written in place. Plain tensors among the operands are constants that all items share.
"""

from __future__ import annotations

import copy
import dataclasses
import operator
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from algonet.relax import Relaxation, TConorm

#: Precisions for storage: programs compute them in float32.
HALVES = (torch.float16, torch.bfloat16)
#: Types that decide crisply.
NUMBERS = (int, float, bool)


class Value:
    """A tensor (`batched`: with the batch in front), or the list of its parts along the item's first dimension."""

    __slots__ = ("_parts", "_tensor", "batched", "row", "source", "tape")

    def __init__(self, tensor: Tensor | None, batched: bool, parts: list | None = None, tape: Any = None):
        self._tensor = tensor
        self.batched = batched
        self._parts = parts
        #: The recorder, the row of a recorded number, and (tensor, column) of one that a run of the recorder made.
        self.tape = tape
        self.row: int | None = None
        self.source: tuple[Tensor, int] | None = None

    @property
    def tensor(self) -> Tensor:
        """The whole as one tensor; parts are put together, recorded operations are carried out."""
        if self._tensor is None:
            if self.tape is not None and self.source is None:
                self.tape.run(self)
            if self._tensor is None:
                self._tensor = self.source[0].select(1, self.source[1]) if self.source is not None else self._join()
        return self._tensor

    @property
    def bare(self) -> Tensor:
        """The tensor as the caller knows it: without the batch of one that a single item is recorded in."""
        single = self.tape is not None and self.tape.single and self.batched
        return self.tensor.squeeze(0) if single else self.tensor

    @property
    def has_tensor(self) -> bool:
        return self._tensor is not None

    @property
    def number(self) -> bool:
        """Whether it is a single number per item."""
        if self._parts is not None:
            return False
        return self.row is not None or self.source is not None or self.tensor.dim() == self.batched

    @property
    def parts(self) -> list:
        """The parts along the item's first dimension; to be read only."""
        if self._parts is None:
            if self.number:
                raise TypeError("a single number has no parts: it can be neither subscripted nor iterated over.")
            parts = self.tape.parts(self) if self.tape is not None else None
            if parts is None:
                parts = [Value(part, self.batched, None, self.tape) for part in self.tensor.unbind(int(self.batched))]
            self._parts = parts
        return self._parts

    @property
    def parted(self) -> bool:
        """Whether the value is kept as parts at present."""
        return self._parts is not None

    def settle(self, tensor: Tensor) -> None:
        """From parts to one tensor."""
        self._tensor = tensor
        self._parts = None

    def _join(self) -> Tensor:
        tensors, self.batched = aligned(*(self._parts or ()))
        if not tensors:
            return torch.zeros(0)
        dtype = tensors[0].dtype
        for tensor in tensors[1:]:
            dtype = torch.promote_types(dtype, tensor.dtype)
        if any(t.shape != tensors[0].shape for t in tensors):
            tensors = torch.broadcast_tensors(*tensors)
        return torch.stack([t if t.dtype == dtype else t.to(dtype) for t in tensors], dim=int(self.batched))

    # -- as a sequence

    def __len__(self) -> int:
        if self._parts is not None:
            return len(self._parts)
        if self.tensor.dim() == self.batched:
            raise TypeError("len() of a single number.")
        return self.tensor.shape[int(self.batched)]

    def __iter__(self) -> Iterator[Any]:
        return iter(self.parts)

    def __repr__(self) -> str:
        if self.tape is not None:
            self.tape.spoil()
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

    def __add__(self, other: Any):
        return binary("add", self, other)

    def __radd__(self, other: Any):
        return binary("add", other, self)

    def __sub__(self, other: Any):
        return binary("sub", self, other)

    def __rsub__(self, other: Any):
        return binary("sub", other, self)

    def __mul__(self, other: Any):
        return binary("mul", self, other)

    def __rmul__(self, other: Any):
        return binary("mul", other, self)

    def __truediv__(self, other: Any):
        return binary("truediv", self, other)

    def __rtruediv__(self, other: Any):
        return binary("truediv", other, self)

    def __floordiv__(self, other: Any):
        return binary("floordiv", self, other)

    def __rfloordiv__(self, other: Any):
        return binary("floordiv", other, self)

    def __mod__(self, other: Any):
        return binary("mod", self, other)

    def __rmod__(self, other: Any):
        return binary("mod", other, self)

    def __pow__(self, other: Any):
        return binary("pow", self, other)

    def __rpow__(self, other: Any):
        return binary("pow", other, self)

    def __neg__(self):
        return unary("neg", self)

    def __pos__(self):
        return self

    def __matmul__(self, other: Any):
        from ..runtime.calls import call_tensor_function

        return call_tensor_function(operator.matmul, (self, other), {})

    def __rmatmul__(self, other: Any):
        from ..runtime.calls import call_tensor_function

        return call_tensor_function(operator.matmul, (other, self), {})

    def __getattr__(self, name: str):
        from ..runtime.calls import attribute

        return attribute(self, name)


#: The operations by name: on tensors and numbers they are Python's own.
OPERATIONS: dict[str, Callable[..., Any]] = {
    name: getattr(operator, name) for name in ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "neg")
}


def counted(x: Any) -> Any:
    """Flags as 0 and 1: Python computes with them, torch does not always."""
    if type(x) is bool:
        return int(x)
    if type(x) is Value and x.row is None and x.has_tensor and x.tensor.dtype == torch.bool:
        return Value(x.tensor.long(), x.batched, None, x.tape)
    return x.long() if isinstance(x, Tensor) and x.dtype == torch.bool else x


def binary(name: str, x: Any, y: Any) -> Any:
    """One arithmetic operation on two operands, at least one of them a `Value`."""
    from_x, from_y = type(x) is Value, type(y) is Value
    tape = x.tape if from_x and x.tape is not None else y.tape if from_y else None
    if tape is not None:
        if name == "pow" and isinstance(y, NUMBERS) and y in (2, 3):
            return x * x if y == 2 else x * x * x
        recorded = tape.record(name, x, y)
        if recorded is not None:
            return recorded
    operation, x, y = OPERATIONS[name], counted(x), counted(y)
    if from_x and from_y:
        a, b = x.tensor, y.tensor
        if x.batched == y.batched and (a.dim() == b.dim() or not x.batched):
            return Value(operation(a, b), x.batched, None, tape)
    elif from_x and isinstance(y, NUMBERS):
        return Value(operation(x.tensor, y), x.batched, None, tape)
    elif from_y and isinstance(x, NUMBERS):
        return Value(operation(x, y.tensor), y.batched, None, tape)
    elif not operand(x) or not operand(y):
        return NotImplemented
    (a, b), batched = aligned(x, y)
    return Value(operation(a, b), batched, None, tape)


def unary(name: str, x: Value) -> Value:
    if x.tape is not None:
        recorded = x.tape.record(name, x)
        if recorded is not None:
            return recorded
    return Value(OPERATIONS[name](counted(x).tensor), x.batched, None, x.tape)


def settled(values: list[Value]) -> None:
    """Carry out what was recorded for all these values at once."""
    tape = next((v.tape for v in values if v.tape is not None), None)
    if tape is not None:
        tape.run(*values)


def operand(x: Any) -> bool:
    """Whether x is something smooth arithmetic can take."""
    return isinstance(x, (Value, Tensor, *NUMBERS))


def smooth_kind(x: Any) -> bool:
    """Whether a decision on x is smooth: tensors decide smoothly, everything else crisply."""
    return type(x) is Value or isinstance(x, Tensor)


def as_value(x: Any) -> Value:
    if type(x) is Value:
        return x
    if isinstance(x, Tensor):
        return Value(x, False)
    # Python's own precision, until it meets a tensor
    return Value(torch.tensor(x, dtype=torch.float64 if isinstance(x, float) else None), False)


def aligned(*operands: Any) -> tuple[list[Tensor], bool]:
    """The operands as tensors that broadcast by their item dimensions, and whether a batch is in front of them."""
    values = [as_value(x) for x in operands]
    tensors = [v.tensor for v in values]
    if not any(v.batched for v in values):
        like = next((t for x, t in zip(operands, tensors, strict=True) if not isinstance(x, NUMBERS)), None)
        return [_like(x, t, like) for x, t in zip(operands, tensors, strict=True)], False
    like = next(v.tensor for v in values if v.batched)
    most = max(t.dim() - v.batched for v, t in zip(values, tensors, strict=True))
    found = []
    for x, v, t in zip(operands, values, tensors, strict=True):
        lacking = most - (t.dim() - 1)
        if v.batched and lacking > 0:
            t = t.reshape(t.shape[0], *[1] * lacking, *t.shape[1:])
        found.append(_like(x, t, like))
    return found, True


def _like(x: Any, tensor: Tensor, like: Tensor | None) -> Tensor:
    """Python numbers take the precision and the device of the tensors beside them."""
    if not isinstance(x, NUMBERS):
        return tensor
    if like is None:
        return tensor.to(torch.get_default_dtype()) if isinstance(x, float) else tensor
    dtype = like.dtype if like.is_floating_point() or isinstance(x, int) else torch.get_default_dtype()
    return tensor.to(dtype=dtype, device=like.device)


# -- into and out of a program


def lifted(x: Any, batched: bool, found: list[Value], where: str) -> Any:
    """An argument as the program sees it: tensors as values (collected in `found`), containers copied."""
    if isinstance(x, Tensor):
        # A single number is the same for all items
        batched = batched and x.dim() > 0
        if batched:
            _check_batch(x, next((v.tensor.shape[0] for v in found if v.batched), None), where)
        found.append(Value(x, batched))
        return found[-1]
    if isinstance(x, tuple) and hasattr(x, "_fields"):
        return type(x)(*(lifted(part, batched, found, where) for part in x))
    if isinstance(x, (list, tuple)):
        return type(x)(lifted(part, batched, found, where) for part in x)
    if isinstance(x, dict):
        return dict_like(x, {key: lifted(part, batched, found, where) for key, part in x.items()})
    if is_record(x):
        return record_like(x, {n: lifted(getattr(x, n), batched, found, where) for n in record_fields(x)})
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
    if type(x) is float and like is not None:
        x = torch.full((), x, dtype=like.dtype, device=like.device)
    if type(x) is Value or isinstance(x, Tensor):
        value = as_value(x)
        tensor = value.bare if half is None or not value.tensor.is_floating_point() else value.bare.to(half)
        return tensor.expand(size, *tensor.shape) if size is not None and not value.batched else tensor
    if isinstance(x, tuple) and hasattr(x, "_fields"):
        return type(x)(*(lowered(part, size, half, like) for part in x))
    if isinstance(x, (list, tuple)):
        return type(x)(lowered(part, size, half, like) for part in x)
    if isinstance(x, dict):
        return dict_like(x, {key: lowered(part, size, half, like) for key, part in x.items()})
    if is_record(x):
        return record_like(x, {n: lowered(getattr(x, n), size, half, like) for n in record_fields(x)})
    return x


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


def floating(x: Value) -> Value:
    """x with a floating dtype: integers and flags become numbers of the default precision."""
    if x.row is not None or x.source is not None or x.tensor.is_floating_point():
        return x
    if x.tensor.is_complex():
        raise TypeError("complex numbers are neither larger nor smaller than others; compare their .abs() or .real.")
    return Value(x.tensor.to(torch.get_default_dtype()), x.batched, None, x.tape)


def stacked(parts: Sequence[Any]) -> Value:
    """Parts along a new first item dimension. Numbers among them become values: parts of a tensor decide smoothly."""
    batched, tape, like = False, None, None
    for part in parts:
        if type(part) is Value:
            batched = batched or part.batched
            tape = tape or part.tape
            like = part if like is None else like
    return Value(None, batched, [soft_number(x, like) if isinstance(x, NUMBERS) else x for x in parts], tape)


def soft_number(x: int | float | bool, like: Value | None) -> Value:
    """A number as a value, in the precision of another one: it is the same for all items, and decides smoothly."""
    if like is None:
        return Value(torch.tensor(float(x)), False)
    if like.tape is not None:
        return like.tape.number(x)
    tensor = like.tensor
    dtype = tensor.dtype if tensor.is_floating_point() else torch.get_default_dtype()
    return Value(torch.tensor(float(x), dtype=dtype, device=tensor.device), False)


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

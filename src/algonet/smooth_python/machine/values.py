"""What a smooth program computes with: a tensor of one item, or of a whole batch of items at once.

A program is written for one item. A `Value` holds the item's tensor, with one dimension more in front when a batch runs;
operators see the item's dimensions only, so a scalar times a vector means the same with and without a batch. A value that
the program subscripts with integers is kept as the list of its parts: reading and writing one part then costs nothing,
and nothing is ever written in place. Plain tensors among the operands are constants that all items share. What computes with
values, and when, is the affair of the machine they belong to.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from .interface import Machine

#: Precisions for storage: programs compute them in float32.
HALVES = (torch.float16, torch.bfloat16)
#: Types that decide crisply.
NUMBERS = (int, float, bool)


class Value:
    """A tensor (`batched`: with the batch in front), or the list of its parts along the item's first dimension."""

    __slots__ = ("_parts", "_tensor", "batched", "machine", "row", "source")

    def __init__(self, tensor: Tensor | None, batched: bool, machine: Machine, parts: list | None = None):
        self._tensor = tensor
        self.batched = batched
        self.machine = machine
        self._parts = parts
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
        return self.machine.bare(self)

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
            self._parts = self.machine.parts(self)
        return self._parts

    @property
    def parted(self) -> bool:
        """Whether the value is kept as parts at present."""
        return self._parts is not None

    def settle(self, tensor: Tensor) -> None:
        """From parts to one tensor."""
        self._tensor = tensor
        self._parts = None

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
        self.machine.spoil()
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
        return self.machine.binary("add", self, other)

    def __radd__(self, other: Any):
        return self.machine.binary("add", other, self)

    def __sub__(self, other: Any):
        return self.machine.binary("sub", self, other)

    def __rsub__(self, other: Any):
        return self.machine.binary("sub", other, self)

    def __mul__(self, other: Any):
        return self.machine.binary("mul", self, other)

    def __rmul__(self, other: Any):
        return self.machine.binary("mul", other, self)

    def __truediv__(self, other: Any):
        return self.machine.binary("truediv", self, other)

    def __rtruediv__(self, other: Any):
        return self.machine.binary("truediv", other, self)

    def __floordiv__(self, other: Any):
        return self.machine.binary("floordiv", self, other)

    def __rfloordiv__(self, other: Any):
        return self.machine.binary("floordiv", other, self)

    def __mod__(self, other: Any):
        return self.machine.binary("mod", self, other)

    def __rmod__(self, other: Any):
        return self.machine.binary("mod", other, self)

    def __pow__(self, other: Any):
        return self.machine.binary("pow", self, other)

    def __rpow__(self, other: Any):
        return self.machine.binary("pow", other, self)

    def __neg__(self):
        return self.machine.unary("neg", self)

    def __pos__(self):
        return self

    def __matmul__(self, other: Any):
        return machine_of(self, other).call(operator.matmul, (self, other), {})

    def __rmatmul__(self, other: Any):
        return self.machine.call(operator.matmul, (other, self), {})

    def __getattr__(self, name: str):
        if name in Value.__slots__:
            # One that was made without its constructor, as torch.compile and `copy` do
            raise AttributeError(name)
        return self.machine.attribute(self, name)


#: The operations by name: on tensors and numbers they are Python's own.
OPERATIONS: dict[str, Callable[..., Any]] = {
    name: getattr(operator, name) for name in ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "neg")
}


def counted(x: Any) -> Any:
    """Flags as 0 and 1: Python computes with them, torch does not always."""
    if type(x) is bool:
        return int(x)
    if type(x) is Value and x.row is None and x.has_tensor and x.tensor.dtype == torch.bool:
        return Value(x.tensor.long(), x.batched, x.machine)
    return x.long() if isinstance(x, Tensor) and x.dtype == torch.bool else x


def operand(x: Any) -> bool:
    """Whether x is something smooth arithmetic can take."""
    return isinstance(x, (Value, Tensor, *NUMBERS))


def smooth_kind(x: Any) -> bool:
    """Whether a decision on x is smooth: tensors decide smoothly, everything else crisply."""
    return type(x) is Value or isinstance(x, Tensor)


def machine_of(*operands: Any) -> Machine:
    """The machine of an operation on these, of which one at least is a value."""
    found: Any = None
    for x in operands:
        if type(x) is Value:
            found = x.machine
            if found.leads:
                break
    return found


def aligned(*operands: Any) -> tuple[list[Tensor], bool]:
    """The operands as tensors that broadcast by their item dimensions, and whether a batch is in front of them."""
    tensors = [x.tensor if type(x) is Value else plain(x) for x in operands]
    batched = [type(x) is Value and x.batched for x in operands]
    if not any(batched):
        like = next((t for x, t in zip(operands, tensors, strict=True) if not isinstance(x, NUMBERS)), None)
        return [_like(x, t, like) for x, t in zip(operands, tensors, strict=True)], False
    like = tensors[batched.index(True)]
    most = max(t.dim() - b for t, b in zip(tensors, batched, strict=True))
    found = []
    for x, t, b in zip(operands, tensors, batched, strict=True):
        lacking = most - (t.dim() - 1)
        if b and lacking > 0:
            t = t.reshape(t.shape[0], *[1] * lacking, *t.shape[1:])
        found.append(_like(x, t, like))
    return found, True


def plain(x: Any) -> Tensor:
    """A tensor as it is, a number in Python's own precision until it meets a tensor."""
    return x if isinstance(x, Tensor) else torch.tensor(x, dtype=torch.float64 if isinstance(x, float) else None)


def _like(x: Any, tensor: Tensor, like: Tensor | None) -> Tensor:
    """Python numbers take the precision and the device of the tensors beside them."""
    if not isinstance(x, NUMBERS):
        return tensor
    if like is None:
        return tensor.to(torch.get_default_dtype()) if isinstance(x, float) else tensor
    dtype = like.dtype if like.is_floating_point() or isinstance(x, int) else torch.get_default_dtype()
    return tensor.to(dtype=dtype, device=like.device)


def floating(x: Value) -> Value:
    """x with a floating dtype: integers and flags become numbers of the default precision."""
    if x.row is not None or x.source is not None or x.tensor.is_floating_point():
        return x
    if x.tensor.is_complex():
        raise TypeError("complex numbers are neither larger nor smaller than others; compare their .abs() or .real.")
    return Value(x.tensor.to(torch.get_default_dtype()), x.batched, x.machine)

"""What a smooth program computes with: a tensor of one item, or of a whole batch of items at once.

A program is written for one item. A `Value` holds the item's tensor, with one dimension more in front when a batch runs;
operators see the item's dimensions only, so a scalar times a vector means the same with and without a batch. A value that
the program subscripts with integers is kept as the list of its parts: reading and writing one part then costs nothing,
and nothing is ever written in place. Plain tensors among the operands are constants that all items share.

Values belong to a `Machine`, and everything that is computed with them goes through it. There are two: the `EagerMachine` runs
each operation at once; the `TapeMachine` records those on single numbers and runs them later, many in one kernel. Programs,
branches and loops do not know which one they run on.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

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


class Machine:
    """What a machine does for the program that runs on it.

    Operands are values, tensors that all items share, and Python numbers, unless it says values.
    """

    #: Whether operations that also have operands of another machine belong to this one.
    leads = False
    #: Whether this is one item, run as a batch of one: foreign functions then see it as it came.
    single = False

    # -- computing

    def binary(self, name: str, x: Any, y: Any) -> Any:
        """An operator of Python on two operands; NotImplemented where there is no such thing."""
        raise NotImplementedError

    def unary(self, name: str, x: Value) -> Value:
        """An operator of Python on one value."""
        raise NotImplementedError

    def operate(self, name: str, *operands: Any) -> Value:
        """An instruction of `instructions.TABLE` by its name."""
        raise NotImplementedError

    def call(self, function: Callable, args: tuple, kwargs: dict[str, Any]) -> Any:
        """A function of one item's tensors, on one item or on the whole batch."""
        raise NotImplementedError

    def attribute(self, value: Value, name: str) -> Any:
        """value.name: sizes of one item, methods of tensors, properties such as .T."""
        raise NotImplementedError

    # -- deciding

    def compare(self, relax: Any, x: Any, y: Any) -> Value:
        """relax(x - y)."""
        raise NotImplementedError

    def relax(self, relax: Any, x: Value) -> Value:
        """A relaxation of a value."""
        raise NotImplementedError

    def truth(self, x: Value) -> Value:
        """A number as a condition: the probability min(1, |x|)."""
        raise NotImplementedError

    def snap(self, p: Value, epsilon: float) -> Value:
        """Probabilities within epsilon of 0 and 1 are 0 and 1."""
        raise NotImplementedError

    def cut(self, mass: Value, epsilon: float) -> Value:
        """Masses up to epsilon are 0."""
        raise NotImplementedError

    def weights(self, exit_: Any, position: Value, count: int, hard: bool) -> list[Value]:
        """P(position == k or position == k - count) for each k < count, summing to one; the ends stand for what
        is beyond. `hard`: 0 and 1, with the gradient of the others."""
        raise NotImplementedError

    # -- joining states

    def mix(self, p: Value, then: Any, other: Any) -> Value:
        """p then + (1 - p) other."""
        raise NotImplementedError

    def select(self, p: Value, then: Any, other: Any) -> Value:
        """`then` where p > 0, else `other`, however large that is."""
        raise NotImplementedError

    def keep(self, live: Value, new: Any, old: Any) -> Value:
        """`new` for the items that `live` says are still in a loop (`leave` made it), `old` for the others."""
        raise NotImplementedError

    def keep_parts(self, live: Value, new: list[Any], old: list[Any]) -> list[Value] | None:
        """The same for many at once; None where each has to be kept by itself."""
        raise NotImplementedError

    def weigh(self, weight: Value, x: Any) -> Value:
        """weight x, for a sum of states."""
        raise NotImplementedError

    def accumulate(self, total: Any, weight: Value, x: Any) -> Value:
        """total + weight x."""
        raise NotImplementedError

    # -- numbers from elsewhere

    def number(self, x: float, like: Value) -> Value:
        """A Python number as a value: the same for all items, and it decides smoothly."""
        raise NotImplementedError

    def draw(self, name: str, draws: Any, size: int | None, precision: torch.dtype, *operands: Value) -> Value:
        """The instruction `uniform`, or `coin` for a probability: a random number for each item."""
        raise NotImplementedError

    def derived(self, tensor: Tensor, how: Callable[[Tensor], Tensor]) -> Tensor:
        """how(tensor) for a tensor from outside."""
        raise NotImplementedError

    def adopt(self, value: Value) -> None:
        """A value of another machine goes on as one of this."""
        raise NotImplementedError

    # -- looking at values

    def evaluate(self, value: Value) -> Tensor:
        """The tensor of a value that has none yet."""
        raise NotImplementedError

    def bare(self, value: Value) -> Tensor:
        """The tensor as the caller knows it."""
        raise NotImplementedError

    def parts(self, value: Value) -> list[Value]:
        """The parts of a tensor along the item's first dimension."""
        raise NotImplementedError

    def settle(self, *nests: Any) -> None:
        """These will be looked at, or live on: whatever waits for being computed is better computed together."""
        raise NotImplementedError

    def ask(self, value: Value, question: Callable[[Tensor], Any]) -> Any:
        """What Python has to know about the numbers of a value to go on; also inside `torch.vmap`."""
        raise NotImplementedError

    def leave(self, mass: Value, epsilon: float, iterations: int) -> tuple[Value, Value | None, bool | None]:
        """The mass that stays in a loop, without shares up to epsilon; for `keep`, who is still there (None: everybody); and
        whether anybody is, None where that is for `look` to find out."""
        raise NotImplementedError

    def looked(self, iterations: int) -> Any:
        """When a loop looked at its mass."""
        raise NotImplementedError

    def early(self, looked: Any, iterations: int) -> bool:
        """Whether it is too early to look again."""
        raise NotImplementedError

    def spoil(self) -> None:
        """Something that no recording holds looks at numbers, or acts."""
        raise NotImplementedError

    def journal_for(self, known: Any, arguments: list[Value]) -> Any:
        """Notes for running all this again, begun on these arguments; None where nobody takes any."""
        raise NotImplementedError


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

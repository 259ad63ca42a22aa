"""What a machine does for the smooth program that runs on it.

A program's values belong to a machine, and everything that is computed with them goes through it. There are two: the
`EagerMachine` runs each operation at once; the `TapeMachine` records those on single numbers and runs them later, many in one
kernel. Programs, branches and loops do not know which one they run on.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

if TYPE_CHECKING:
    from .values import Value


class Machine:
    """The interface. Operands are values, tensors that all items share, and Python numbers, unless it says values."""

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

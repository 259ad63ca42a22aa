"""The machine that records: operations on single numbers go to a tape, everything else runs at once."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from algonet.core.tracing import compiling
from algonet.core.tracing import wrapped as transformed
from algonet.relax import BumpExit, Exit, Sigmoid, SmoothTent, Tent

from ..paths import Merge, Particles
from .containers import flat
from .eager import EAGER, GUARDED, PATIENCE, wrapped
from .functions import INSTRUCTIONS, looked_up
from .tape import Spread, Tape
from .values import NUMBERS, Machine, Value

#: A look at the mass that is left in a recorded loop costs more than a short iteration: it is taken only after `PATIENCE`
#: iterations, or after this many instructions.
LONG_ENOUGH = 2048
#: Exits that are 1 from a distance of 1 on: a position between two integers is neither of the others.
_NARROW = (Tent, SmoothTent, BumpExit)
#: Up to so many parts, the weights of a mixture are recorded; more are faster as one tensor.
FEW = 32


class TapeMachine(Tape):
    """A tape for what can be recorded, torch for the rest."""

    leads = True

    # -- computing

    def binary(self, name: str, x: Any, y: Any) -> Any:
        if name == "pow" and isinstance(y, NUMBERS) and y in (2, 3):
            return x * x if y == 2 else x * x * x
        recorded = self.record(name, x, y)
        return super().binary(name, x, y) if recorded is None else recorded

    def unary(self, name: str, x: Value) -> Value:
        recorded = self.record(name, x)
        return super().unary(name, x) if recorded is None else recorded

    def operate(self, name: str, *operands: Any) -> Value:
        recorded = self.record(name, *operands)
        return super().operate(name, *operands) if recorded is None else recorded

    def call(self, function: Callable, args: tuple, kwargs: dict[str, Any]) -> Any:
        if len(args) == 1 and type(args[0]) is Value and not kwargs:
            name = looked_up(INSTRUCTIONS, function)
            recorded = None if name is None else self.record(name, args[0])
            if recorded is not None:
                return recorded
        # It may look at their numbers
        self.spoil()
        return super().call(function, args, kwargs)

    def _mapped(self, function: Callable, leaves: list, structure: Any, places: list[int]) -> Any:
        if not self.single:
            return super()._mapped(function, leaves, structure, places)
        args, kwargs = pytree.tree_unflatten([leaf.bare if type(leaf) is Value else leaf for leaf in leaves], structure)
        found = wrapped(function(*args, **kwargs))
        for value in flat(found):
            value.settle(value.tensor.unsqueeze(0))
            value.batched, value.machine = True, self
        return found

    # -- deciding

    def compare(self, relax: Any, x: Any, y: Any) -> Value:
        recorded = self.record_comparison(relax, x, y)
        return super().compare(relax, x, y) if recorded is None else recorded

    def relax(self, relax: Any, x: Value) -> Value:
        recorded = self.record_relaxation(relax, x)
        return super().relax(relax, x) if recorded is None else recorded

    def truth(self, x: Value) -> Value:
        recorded = self.record("truth", x)
        return super().truth(x) if recorded is None else recorded

    def snap(self, p: Value, epsilon: float) -> Value:
        recorded = self.record("snap", p, epsilon, 1 - epsilon) if p.machine is self else None
        return super().snap(p, epsilon) if recorded is None else recorded

    def cut(self, mass: Value, epsilon: float) -> Value:
        recorded = self.record("cut", mass, epsilon) if mass.machine is self else None
        return super().cut(mass, epsilon) if recorded is None else recorded

    def weights(self, exit_: Any, position: Value, count: int, hard: bool) -> list[Value]:
        recorded = self._recorded_weights(exit_, position, count) if count <= FEW else None
        return super().weights(exit_, position, count, hard) if recorded is None else recorded

    def _recorded_weights(self, exit_: Any, position: Value, count: int) -> list[Value] | None:
        if self.formulas.place(exit_) is None:
            return None
        if type(exit_) not in _NARROW:
            inside = self.record("clamp", position, -float(count), count - 1.0)
            if inside is None:
                return None
            names = [1.0 - self.relax(exit_, inside - float(k)) for k in range(-count, count)]
            shares = [a + b for a, b in zip(names[:count], names[count:], strict=True)]
            total = sum(shares[1:], shares[0])
            return shares if exit_.exact_on_integers else [share / total for share in shares]
        # No more than two neighbours count: a negative position is moved up by `count`, where -0 is one past the last part
        behind = self.record("clamp", position, -float(count), 0.0)
        inside = self.record("clamp", position, 0.0, count - 1.0)
        if behind is None or inside is None:
            return None
        inside = self.operate("select", -position, behind + float(count), inside)
        shares = [1.0 - self.relax(exit_, inside - float(k)) for k in range(count + 1)]
        return [shares[0] + shares[count], *shares[1:count]]

    # -- joining states

    def mix(self, p: Value, then: Any, other: Any) -> Value:
        recorded = self.record_mix(p, then, other)
        return super().mix(p, then, other) if recorded is None else recorded

    def select(self, p: Value, then: Any, other: Any) -> Value:
        recorded = self.record("select", p, then, other)
        return super().select(p, then, other) if recorded is None else recorded

    def keep(self, live: Value, new: Any, old: Any) -> Value:
        recorded = self.record("select", live, new, old)
        if recorded is not None:
            return recorded
        return super().keep(Value(live.tensor > 0, live.batched, EAGER), new, old)

    def keep_parts(self, live: Value, new: list[Any], old: list[Any]) -> list[Value] | None:
        return self.record_parts("select", live, new, old) if new else None

    def weigh(self, weight: Value, x: Any) -> Value:
        if type(x) is Value and x.parted and weight.number:
            parts = self.record_parts("mul", weight, x.parts)
            return Value(None, True, self, parts or [self.weigh(weight, part) for part in x.parts])
        return weight * (float(x) if isinstance(x, NUMBERS) else x)

    def accumulate(self, total: Any, weight: Value, x: Any) -> Value:
        if (_parted(total) or _parted(x)) and weight.number and _same_length(total, x):
            parts = self.record_parts("accumulate", total.parts, weight, x.parts)
            if parts is None:
                parts = [self.accumulate(t, weight, v) for t, v in zip(total.parts, x.parts, strict=True)]
            return Value(None, True, self, parts)
        recorded = self.record("accumulate", total, weight, x)
        return total + self.weigh(weight, x) if recorded is None else recorded

    # -- numbers from elsewhere

    def number(self, x: float, like: Value) -> Value:
        return self.record_number(x)

    def draw(self, name: str, draws: Any, size: int | None, precision: torch.dtype, *operands: Value) -> Value:
        counter = draws.count()
        recorded = self.record_draw(name, counter, draws, *operands)
        if recorded is not None:
            return recorded
        self.spoil()
        return self._drawn(counter, draws, size, precision, *operands)

    def adopt(self, value: Value) -> None:
        value.machine = self

    # -- looking at values

    def evaluate(self, value: Value) -> Tensor:
        if value.source is None:
            self.run(value)
        if value.has_tensor:
            return value.tensor
        if value.source is not None:
            tensor, column = value.source
            return tensor.select(1, column)
        return super().evaluate(value)

    def bare(self, value: Value) -> Tensor:
        return value.tensor.squeeze(0) if self.single and value.batched else value.tensor

    def parts(self, value: Value) -> list[Value]:
        """Those of a vector are single numbers, its tensor untouched."""
        tensor = value.tensor
        if not value.batched and self._fits(tensor, batched=True):
            # The same for all items: one table for the whole vector, of which every number is a column
            tensor = self.derived(tensor, Spread(self.size))
        elif not value.batched:
            pieces = [self.derived(tensor, operator.itemgetter(k)) for k in range(tensor.shape[0])]
            return [Value(piece, False, self) for piece in pieces]
        if tensor.dim() != 2 or tensor.dtype != self.like.dtype:
            pieces = tensor.unbind(1)
            if self.journal is not None:
                self.journal.unbound(pieces, tensor)
            return [Value(piece, True, self) for piece in pieces]
        parts = []
        for column in range(tensor.shape[1]):
            part = Value(None, True, self)
            part.source = (tensor, column)
            parts.append(part)
        return parts

    def settle(self, *nests: Any) -> None:
        self.run(*flat(nests))

    def ask(self, value: Value, question: Callable[[Tensor], Any]) -> Any:
        if value.machine is not self or value.row is None:
            self.spoil()
            return super().ask(value, question)
        with self.own_reading():
            answer = question(value.tensor.detach())
        if self.journal is not None:
            self.journal.asked(value, question, answer)
        return answer

    def leave(self, mass: Value, epsilon: float, iterations: int) -> tuple[Value, Value | None, bool | None]:
        cut = self.record("cut", mass, epsilon) if mass.machine is self else None
        if cut is None:
            self.spoil()
            return super().leave(mass, epsilon, iterations)
        return cut, cut, None

    def looked(self, iterations: int) -> Any:
        return self.length, iterations, self.first

    def early(self, looked: Any, iterations: int) -> bool:
        length, before, first = looked
        return self.length - length < LONG_ENOUGH and iterations - before < PATIENCE and self.first == first

    def journal_for(self, known: Any, arguments: list[Value]) -> Any:
        self.journal = None if known is None else known.begin(arguments)
        return self.journal


def _parted(x: Any) -> bool:
    return type(x) is Value and x.parted


def _same_length(a: Any, b: Any) -> bool:
    return type(a) is Value and type(b) is Value and not a.number and not b.number and len(a) == len(b)


def recordable(settings: Any) -> bool:
    """Whether runs with these settings are recorded at all."""
    if settings.hard or settings.checkpoint or compiling():
        return False
    # Whose results are taken apart, which is done on the tape
    if settings.backend == "reference" and not isinstance(settings.paths, Particles):
        return False
    return all(isinstance(r, (Sigmoid, Exit)) and r.scalar is not None for r in (settings.relax, settings.exit))


def machine_for(
    values: list[Value], settings: Any, batched: bool, outside: Sequence[Tensor] = (), plain: bool = False
) -> Machine:
    """The machine for a run on these arguments, which are its own from now on, and on parameters from outside.

    One item is recorded as a batch of one. `plain`: there is known to be nothing to record.
    """
    at_once = EAGER if isinstance(settings.paths, Merge) or compiling() else GUARDED
    if not recordable(settings) or (plain and at_once is EAGER):
        return _given(values, at_once)
    tensors = [v.tensor if batched else v.tensor.unsqueeze(0) for v in values if v.batched or not batched]
    like = next((t for t in tensors if t.dtype in (torch.float32, torch.float64)), None)
    if like is None or like.shape[0] == 0 or any(map(transformed, (*tensors, *outside))):
        return _given(values, at_once)
    machine = TapeMachine(like.shape[0], like, settings.backend)
    machine.single = not batched
    if not batched:
        for value in values:
            value.settle(value.tensor.unsqueeze(0))
            value.batched = True
    # Always both, in this order: one compiled kernel serves every program with these two
    machine.formulas.place(settings.relax)
    machine.formulas.place(settings.exit)
    return _given(values, machine)


def _given(values: list[Value], machine: Machine) -> Machine:
    """The values belong to it."""
    for value in values:
        value.machine = machine
    return machine

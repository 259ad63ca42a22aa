"""The machine that records: arithmetic on single numbers of a batch goes to a tape, and is carried out as one kernel.

A smooth program is mostly arithmetic on numbers, one per item of the batch. Running each operation by itself costs far
more than computing it. So numbers are rows of a tape: an operation appends one instruction (its code and the rows it
reads), and nothing runs until a tensor is asked for: at the end, before a loop looks at its mass, or when a function that
cannot be recorded needs it. What has run becomes the input of the next stretch. Everything else runs at once.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor

from algonet.core.tracing import compiling
from algonet.core.tracing import wrapped as transformed
from algonet.relax import BumpExit, Exit, Sigmoid, SmoothTent, Tent

from ..operation import TABLE, Formulas, Program, evaluate, steepness_tensor
from ..softness import Merge, Particles
from .eager import EAGER, GUARDED, Machine, wrapped
from .replay import Recall
from .values import NUMBERS, Value, flat, refilled

#: Exits that are 1 from a distance of 1 on: a position between two integers is neither of the others.
_NARROW = (Tent, SmoothTent, BumpExit)
#: One number per item as a table of one column.
_COLUMN: Any = operator.methodcaller("unsqueeze", 1)
#: Up to so many parts, the weights of a mixture are recorded; more are faster as one tensor.
FEW = 32
#: Functions that have an instruction of their own.
INSTRUCTIONS: dict[Any, str] = {
    getattr(home, name): name for name in ("exp", "log", "sqrt") for home in (torch, Tensor)
}


class Stretch(NamedTuple):
    """A finished part of the recording: enough to ask for rows that nobody wanted at the time."""

    first: int
    program: Program
    inputs: list[Tensor]
    scales: list[float | Tensor]


class TapeMachine(Machine):
    """The recorder of one run. Rows are numbered throughout; those before `first` have run already."""

    leads = by_parts = True

    def __init__(self, size: int, like: Tensor, backend: str):
        self.size = size
        self.like = like
        self.backend = backend
        #: Where the seed of random numbers comes from, in programs that draw some.
        self._draws: Any = None
        #: The code of each instruction; those of relaxations follow.
        self._codes = {name: code for code, name in enumerate(TABLE)}
        self.first = 0
        self._shared: dict[int, Value] = {}
        #: A number, or a vector, that all items share, as a table with a column for each number.
        self._spread: Callable[[Tensor], Tensor] = lambda tensor: tensor.reshape(1, -1).expand(size, -1)
        self.formulas = Formulas()
        self.stretches: list[Stretch] = []
        self._begin()

    def _begin(self) -> None:
        """An empty stretch."""
        #: The row of each instruction, in this order: equal ones on equal rows are one.
        self.code: dict[tuple[int, int, int, int], int] = {}
        #: The number of each constant, likewise.
        self.constants: dict[float, int] = {}
        self._inputs: list[Tensor] = []
        self._columns = 0
        self._places: dict[int, int] = {}

    # -- recording

    def operate(self, name: str, *operands: Any) -> Any:
        code, first, rows = self._codes.get(name), self.first, []
        if code is not None:
            for x in operands:
                # The common case without a call: this runs for every operation of a program
                row = x.row if type(x) is Value else None
                row = self.row(x) if row is None or row < first else row - first
                if row is None:
                    break
                rows.append(row)
            else:
                return self._new(code, *rows)
        elif name == "pow" and isinstance(operands[1], NUMBERS) and operands[1] in (2, 3):
            x = operands[0]
            return x * x if operands[1] == 2 else x * x * x
        return super().operate(name, *operands)

    def emit(self, name: str, a: int, b: int = 0, c: int = 0) -> int:
        """The row of an instruction, by name."""
        return self.code.setdefault((self._codes[name], a, b, c), len(self.code))

    def _new(self, code: int, a: int, b: int = 0, c: int = 0) -> Value:
        value = Value(None, True, self)
        value.row = self.first + self.code.setdefault((code, a, b, c), len(self.code))
        return value

    def relax(self, relax: Any, x: Value) -> Value:
        row = self.row(x)
        place = None if row is None else self.formulas.place(relax)
        if row is None or place is None:
            return super().relax(relax, x)
        return self._new(len(self._codes) + place[0], row, place[1])

    def call(self, function: Callable, args: tuple, kwargs: dict[str, Any]) -> Any:
        if len(args) == 1 and type(args[0]) is Value and not kwargs:
            name = known(INSTRUCTIONS, function)
            if name is not None and self.row(args[0]) is not None:
                return self.operate(name, args[0])
        # It may look at their numbers
        self.mark_unrecordable()
        return super().call(function, args, kwargs)

    def _over_batch(self, function: Callable, args: tuple, kwargs: dict[str, Any], values: list[Value]) -> Any:
        if not self.single:
            return super()._over_batch(function, args, kwargs, values)
        args, kwargs = refilled((args, kwargs), [value.bare for value in values])
        found = wrapped(function(*args, **kwargs))
        for value in flat(found):
            value.settle(value.tensor.unsqueeze(0))
            value.batched, value.machine = True, self
        return found

    def weights(self, exit_: Any, position: Value, count: int, hard: bool) -> list[Value]:
        if count > FEW or self.formulas.place(exit_) is None or self.row(position) is None:
            return super().weights(exit_, position, count, hard)
        inside = self.operate("clamp", position, -float(count), count - 1.0)
        if type(exit_) not in _NARROW:
            shares = [1.0 - self.relax(exit_, inside - float(k)) for k in range(-count, count)]
            shares = [a + b for a, b in zip(shares[:count], shares[count:], strict=True)]
            total = sum(shares[1:], shares[0])
            return shares if exit_.exact_on_integers else [share / total for share in shares]
        # No more than two neighbours count: a negative position is moved up by `count`, where -0 is one past the last part
        inside = self.operate("select", -inside, inside + float(count), inside)
        shares = [1.0 - self.relax(exit_, inside - float(k)) for k in range(count + 1)]
        return [shares[0] + shares[count], *shares[1:count]]

    # -- numbers from elsewhere

    def number(self, x: float, like: Value) -> Value:
        return self.at(self._constant(float(x)))

    def draw(self, name: str, draws: Any, size: int | None, precision: torch.dtype, *operands: Value) -> Value:
        rows = [row for x in operands if (row := self.row(x)) is not None]
        if len(rows) < len(operands):
            self.mark_unrecordable()
            return super().draw(name, draws, size, precision, *operands)
        self._draws = draws
        a, b = (*rows, draws.count(), 0)[:2]
        return self._new(self._codes[name], a, b)

    def row(self, x: Any) -> int | None:
        """The row of an operand in the present stretch, relative to its beginning, where what is older is taken in; None if it
        is not one number per item."""
        if type(x) is Value:
            row = x.row
            return row - self.first if row is not None and row >= self.first else self._input(x)
        if isinstance(x, NUMBERS):
            return self._constant(float(x))
        if isinstance(x, Tensor) and self._fits(x, batched=False):
            # A single number from outside, the same for all items; the value keeps it alive, so its id stays its own
            return self.row(self._shared.setdefault(id(x), Value(x, False, self)))
        return None

    def _constant(self, number: float) -> int:
        # -0.0 == 0.0 as keys, and they differ only in the sign of a zero
        return self.emit("const", self.constants.setdefault(number, len(self.constants)))

    def _input(self, x: Value) -> int | None:
        """Take in a number that exists already, or one recorded earlier that nobody asked for."""
        if x.source is None:
            if x.parted or (x.row is None and not self._fits(x.tensor, x.batched)):
                return None
            tensor = x.tensor
            if x.source is None:
                x.source = (self.derived(tensor, _COLUMN if x.batched else self._spread), 0)
        tensor, column = x.source
        place = self._places.get(id(tensor))
        if place is None:
            place = self._places[id(tensor)] = self._columns
            self._inputs.append(tensor)
            self._columns += tensor.shape[1]
        row = self.emit("input", place + column)
        x.row = row + self.first
        return row

    def _fits(self, tensor: Tensor, batched: bool) -> bool:
        return tensor.dim() == batched and tensor.dtype == self.like.dtype and tensor.device == self.like.device

    def at(self, row: int) -> Value:
        """A row of the present stretch as a value."""
        value = Value(None, True, self)
        value.row = row + self.first
        return value

    # -- running

    def settle(self, *nests: Any) -> None:
        """Carry out what was recorded, and give all values in these (numbers, or vectors kept as numbers) their tensors."""
        # Each once: a vector that was handed its tensor is parted no more
        own = [vector for value in flat(nests) if value.machine is self for vector in self._vectors(value)]
        groups = [(value, rows) for value in {id(v): v for v in own}.values() if (rows := self._waiting(value))]
        now = [group for group in groups if group[1][0] >= self.first]
        for value, rows in groups:
            if rows[0] < self.first:
                # Of a finished stretch, asked for late: computed once more
                self._run(next(s for s in reversed(self.stretches) if s.first <= rows[0]), [(value, rows)])
        if now:
            with self.unwatched():
                program = Program.of(self.code, self.constants, self.formulas.settings, self.like, self.backend)
            stretch = Stretch(self.first, program, self._inputs, [*self.formulas.steepness])
            self._run(stretch, now)
            self.stretches.append(stretch)
            self.first += len(self.code)
            self._begin()

    def _run(self, stretch: Stretch, groups: list[tuple[Value, list[int]]]) -> None:
        """Give numbers and vectors their rows of a stretch. Nobody watches: what is read in here is part of the trace."""
        with self.unwatched():
            _, program, inputs, scales = stretch
            rows = [row - stretch.first for _, group in groups for row in group]
            wanted = torch.tensor(rows, dtype=torch.int32, device="cpu")
            seed = None if self._draws is None else self._draws.seed
            outputs = evaluate(program, inputs, steepness_tensor(scales, self.like), wanted, self.size, seed)
            if self.trace is not None:
                self.trace.ran(program, inputs, scales, wanted, outputs, seed is not None)
            start = 0
            for value, group in groups:
                if value.parted:
                    for k, part in enumerate(value.parts):
                        if type(part) is Value:
                            part.source = (outputs, start + k)
                    value.settle(self.derived(outputs, _columns(start, start + len(group))))
                else:
                    value.source = (outputs, start)
                start += len(group)

    def _vectors(self, value: Value) -> Iterator[Value]:
        """A value that is one number or a list of numbers, or all such values inside one that is kept as nested parts."""
        if value.parted and not value.has_tensor and any(type(p) is Value and p.parted for p in value.parts):
            for part in value.parts:
                if type(part) is Value and part.machine is self:
                    yield from self._vectors(part)
        else:
            yield value

    def _waiting(self, value: Value) -> list[int]:
        """The rows that a value still waits for."""
        if value.has_tensor:
            return []
        if not value.parted:
            return [value.row] if value.row is not None and value.source is None else []
        recorded = [type(p) is Value and p.machine is self and p.recorded for p in value.parts]
        if any(recorded) and all(r or isinstance(p, NUMBERS) for p, r in zip(value.parts, recorded, strict=True)):
            # Those that ran in an earlier stretch, or never moved, come along as inputs
            return [r + self.first for p in value.parts if (r := self.row(p)) is not None]
        return []

    # -- looking at values

    def evaluate(self, value: Value) -> Tensor:
        if value.source is None:
            self.settle(value)
        if value.has_tensor:
            return value.tensor
        if value.source is not None:
            tensor, column = value.source
            return tensor.select(1, column)
        return super().evaluate(value)

    def parts(self, value: Value) -> list[Value]:
        """Those of a vector are single numbers, its tensor untouched."""
        tensor = value.tensor
        if not value.batched and self._fits(tensor, batched=True):
            # The same for all items: one table for the whole vector, of which every number is a column
            tensor = self.derived(tensor, self._spread)
        elif not value.batched:
            pieces = [self.derived(tensor, operator.itemgetter(k)) for k in range(tensor.shape[0])]
            return [Value(piece, False, self) for piece in pieces]
        if tensor.dim() != 2 or tensor.dtype != self.like.dtype:
            pieces = tensor.unbind(1)
            if self.trace is not None:
                self.trace.unbound(tensor, pieces)
            return [Value(piece, True, self) for piece in pieces]
        parts = [Value(None, True, self) for _ in range(tensor.shape[1])]
        for column, part in enumerate(parts):
            part.source = (tensor, column)
        return parts

    def ask(self, value: Value, question: Callable[[Tensor], Any]) -> Any:
        if value.machine is not self or value.row is None:
            self.mark_unrecordable()
            return super().ask(value, question)
        with self.unwatched():
            answer = question(value.tensor.detach())
        if self.trace is not None:
            self.trace.asked(value, question, answer)
        return answer

    def leave(self, mass: Value, epsilon: float, iterations: int) -> tuple[Value, Value | None, bool | None]:
        if mass.machine is not self or self.row(mass) is None:
            self.mark_unrecordable()
            return super().leave(mass, epsilon, iterations)
        cut = self.operate("cut", mass, epsilon)
        return cut, cut, None

    def clock(self) -> tuple[int, int]:
        return self.first, len(self.code)


def known(table: dict[Any, Any], function: Any) -> Any:
    """What a table has for a function; not every callable can be a key."""
    try:
        return table.get(function)
    except TypeError:
        return None


def _columns(first: int, last: int) -> Callable[[Tensor], Tensor]:
    # The gradient of a slice is a table of its own
    return lambda table: table if (first, last) == (0, table.shape[1]) else table[:, first:last]


def recordable(settings: Any) -> bool:
    """Whether runs with these settings are recorded at all."""
    if settings.hard or compiling():
        return False
    # Whose results are taken apart, which is done on the tape
    if settings.backend == "reference" and not isinstance(settings.paths, Particles):
        return False
    return all(isinstance(r, (Sigmoid, Exit)) and r.scalar is not None for r in (settings.relax, settings.exit))


def machine_for(
    values: list[Value], settings: Any, batched: bool, outside: tuple[Tensor, ...] = (), recall: Recall | None = None
) -> Machine:
    """The machine for a run on these arguments, which are its own from now on, and on parameters from outside.

    One item is recorded as a batch of one. What is recorded is noted for `recall`.
    """
    machine: Machine = EAGER if isinstance(settings.paths, Merge) or compiling() else GUARDED
    tensors = [v.tensor if batched else v.tensor.unsqueeze(0) for v in values if v.batched or not batched]
    like = next((t for t in tensors if t.dtype in (torch.float32, torch.float64)), None)
    plain = machine is EAGER and recall is not None and recall.plain
    fits = like is not None and like.shape[0] > 0 and not plain and recordable(settings)
    if like is not None and fits and not any(map(transformed, (*tensors, *outside))):
        machine = TapeMachine(like.shape[0], like, settings.backend)
        machine.single = not batched
        if not batched:
            for value in values:
                value.settle(value.tensor.unsqueeze(0))
                value.batched = True
        # Always both, in this order: one compiled kernel serves every program with these two
        machine.formulas.place(settings.relax)
        machine.formulas.place(settings.exit)
        machine.trace = None if recall is None else recall.begin(values)
    for value in values:
        value.machine = machine
    return machine

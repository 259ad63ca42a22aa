"""Arithmetic on single numbers of a batch is recorded instead of run, then carried out as one kernel.

A smooth program is mostly arithmetic on numbers, one per item of the batch. Running each operation by itself costs far
more than computing it. So numbers are rows of a `Tape`: an operation appends one instruction (its code and the rows it
reads), and nothing runs until a tensor is asked for: at the end, before a loop looks at its mass, or when a function that
cannot be recorded needs it. What has run becomes the input of the next stretch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import nullcontext
from typing import Any, NamedTuple

import torch
from torch import Tensor

from algonet.relax import Relaxation

from ..operation import Formulas, Program, evaluate, steepness_tensor
from . import instructions
from .eager import EagerMachine
from .replay import Journal
from .values import NUMBERS, Value


class Stretch:
    """A finished part of the recording: enough to ask for rows that nobody wanted at the time."""

    __slots__ = ("first", "inputs", "length", "program", "scales")

    def __init__(self, first: int, program: Program, inputs: list[Tensor], scales: list[float | Tensor]):
        self.first = first
        self.length = program.length
        self.program = program
        self.inputs = inputs
        self.scales = scales


class Tape(EagerMachine):
    """The recorder of one run. Rows are numbered throughout; those before `first` have run already.

    Methods called `record...` return None where an operand is not one number per item.
    """

    def __init__(self, size: int, like: Tensor, backend: str):
        self.size = size
        #: Notes for running all this again, where someone keeps them.
        self.journal: Journal | None = None
        self.like = like
        self.backend = backend
        #: Where the seed of random numbers comes from, in programs that draw some.
        self.draws: Any = None
        #: The code of each instruction; those of relaxations follow.
        self._codes = {name: code for code, name in enumerate(instructions.TABLE)}
        self._relax = len(self._codes)
        self.first = 0
        self._code: list[int] = []
        self._length = 0
        self._constants: list[float] = []
        self._constant_rows: dict[float, int] = {}
        self._inputs: list[Tensor] = []
        self._columns = 0
        self._places: dict[int, int] = {}
        self._shared: dict[int, Value] = {}
        self.formulas = Formulas()
        self._done: list[Stretch] = []

    # -- recording

    def _emit(self, code: int, a: int, b: int = 0, c: int = 0) -> int:
        self._code += (code, a, b, c)
        row = self.first + self._length
        self._length += 1
        return row

    def _new(self, code: int, a: int, b: int = 0, c: int = 0) -> Value:
        self._code += (code, a, b, c)
        value = Value(None, True, self)
        value.row = self.first + self._length
        self._length += 1
        return value

    def record(self, name: str, *operands: Any) -> Value | None:
        """An operation by name."""
        code = self._codes.get(name)
        if code is None:
            return None
        first, rows = self.first, []
        for x in operands:
            # The common case without a call: this runs for every operation of a program
            row = x.row if type(x) is Value else None
            row = self._row(x) if row is None or row < first else row - first
            if row is None:
                return None
            rows.append(row)
        return self._new(code, *rows)

    def record_comparison(self, relax: Relaxation, x: Any, y: Any) -> Value | None:
        """relax(x - y)."""
        place = self.formulas.place(relax)
        a, b = self._row(x), self._row(y)
        if a is None or b is None or place is None:
            return None
        self._code += (self._codes["sub"], a, b, 0)
        self._length += 1
        return self._new(self._relax + place[0], self._length - 1, place[1])

    def record_mix(self, p: Any, then: Any, other: Any) -> Value | None:
        """p then + (1 - p) other."""
        first = self.first
        a = p.row if type(p) is Value else None
        a = self._row(p) if a is None or a < first else a - first
        b = then.row if type(then) is Value else None
        b = self._row(then) if b is None or b < first else b - first
        c = other.row if type(other) is Value else None
        c = self._row(other) if c is None or c < first else c - first
        return None if a is None or b is None or c is None else self._new(self._codes["mix"], a, b, c)

    def record_parts(self, name: str, *columns: Any) -> list[Value] | None:
        """The same operation on every part; operands are lists of parts, or one number for all of them."""
        count = next(len(c) for c in columns if isinstance(c, list))
        row_of = self._row
        lists = [
            [row_of(part) for part in column] if isinstance(column, list) else [row_of(column)] * count
            for column in columns
        ]
        if any(None in rows for rows in lists):
            return None
        code, filler = self._codes[name], (0,) * (3 - len(columns))
        row = self.first + self._length
        found = []
        for rows in zip(*lists, strict=True):
            self._code += (code, *rows, *filler)
            value = Value(None, True, self)
            value.row = row + len(found)
            found.append(value)
        self._length += count
        return found

    def record_draw(self, name: str, counter: int, draws: Any, *operands: Any) -> Value | None:
        """An instruction that draws a random number; `draws` has the seed."""
        rows = [row for x in operands if (row := self._row(x)) is not None]
        if len(rows) < len(operands):
            return None
        self.draws = draws
        a, b, *_ = (*rows, counter, 0)
        return self._new(self._codes[name], a, b)

    def record_relaxation(self, relax: Relaxation, x: Value) -> Value | None:
        row = self._row(x)
        place = None if row is None else self.formulas.place(relax)
        return None if row is None or place is None else self._new(self._relax + place[0], row, place[1])

    def _row(self, x: Any) -> int | None:
        """The row of an operand in the present stretch, relative to its beginning; None if it is not one number per item."""
        if type(x) is Value:
            row = x.row
            if row is not None and row >= self.first:
                return row - self.first
            return self._input(x)
        if isinstance(x, NUMBERS):
            return self._constant(float(x))
        if isinstance(x, Tensor) and self._fits(x, batched=False):
            # A single number from outside, the same for all items; the value keeps it alive, so its id stays its own
            return self._row(self._shared.setdefault(id(x), Value(x, False, self)))
        return None

    def _constant(self, number: float) -> int:
        row = self._constant_rows.get(number)
        if row is None:
            self._constants.append(number)
            row = self._emit(self._codes["const"], len(self._constants) - 1) - self.first
            # -0.0 == 0.0 as keys, and they differ only in the sign of a zero
            self._constant_rows[number] = row
        return row

    def record_number(self, x: float) -> Value:
        """A constant as a value."""
        value = Value(None, True, self)
        value.row = self._constant(float(x)) + self.first
        return value

    def _input(self, x: Value) -> int | None:
        """Take in a number that exists already, or one recorded earlier that nobody asked for."""
        if x.source is None:
            if x.parted or (x.row is None and not self._fits(x.tensor, x.batched)):
                return None
            tensor = x.tensor
            if x.source is None:
                x.source = (self.derived(tensor, _column if x.batched else Spread(self.size)), 0)
        tensor, column = x.source
        x.row = self._emit(self._codes["input"], self._place(tensor) + column)
        return x.row - self.first

    def _fits(self, tensor: Tensor, batched: bool) -> bool:
        return tensor.dim() == batched and tensor.dtype == self.like.dtype and tensor.device == self.like.device

    def _place(self, tensor: Tensor) -> int:
        """The first column of a (batch, count) tensor among the inputs of this stretch."""
        place = self._places.get(id(tensor))
        if place is None:
            place = self._places[id(tensor)] = self._columns
            self._inputs.append(tensor)
            self._columns += tensor.shape[1]
        return place

    def derived(self, tensor: Tensor, how: Callable[[Tensor], Tensor]) -> Tensor:
        """how(tensor), in a way that can be found again."""
        child = how(tensor)
        if self.journal is not None:
            self.journal.derived(child, tensor, how)
        return child

    def spoil(self) -> None:
        """Something happens that no recording holds: the run cannot be repeated from its journal."""
        if self.journal is not None:
            self.journal.complete = False

    # -- the present stretch, by rows counted from its beginning

    @property
    def present(self) -> int:
        """How many instructions it has so far."""
        return self._length

    @property
    def stretches(self) -> int:
        """How many have run before it."""
        return len(self._done)

    def instruction(self, row: int) -> tuple[int, int, int, int]:
        code, a, b, c = self._code[4 * row : 4 * row + 4]
        return code, a, b, c

    def number_at(self, row: int) -> float:
        """The number of a constant."""
        return self._constants[self._code[4 * row + 1]]

    def place(self, x: Any) -> int | None:
        """The row of an operand, which is taken in where it is older; None if it is not one number per item."""
        return self._row(x)

    def emit(self, name: str, *rows: int) -> int:
        """One more instruction on rows."""
        return self._emit(self._codes[name], *rows) - self.first

    def vector(self, rows: list[int]) -> Value:
        """Rows as one value."""
        parts = []
        for row in rows:
            part = Value(None, True, self)
            part.row = row + self.first
            parts.append(part)
        return Value(None, True, self, parts)

    @property
    def length(self) -> int:
        """How many instructions were recorded so far, run or not."""
        return self.first + self._length

    # -- running

    def run(self, *wanted: Value) -> None:
        """Carry out what was recorded, and give all `wanted` values (numbers, or vectors kept as numbers) their tensors."""
        vectors = [vector for value in wanted if value.machine is self for vector in self._vectors(value)]
        groups = [(value, self._waiting(value)) for value in vectors]
        self._run_again([(value, rows) for value, rows in groups if rows and rows[0] < self.first])
        groups = [(value, rows) for value, rows in groups if rows and rows[0] >= self.first]
        if not groups:
            return
        rows = [row for _, group in groups for row in group]
        program = Program.of(self._code, self._constants, self.formulas.settings, self.like, self.backend)
        stretch = Stretch(self.first, program, self._inputs, self.formulas.steepness)
        self._hand_out(groups, self._rows(stretch, rows))
        self._done.append(stretch)
        self.first += self._length
        self._code, self._constants, self._inputs, self._length, self._columns = [], [], [], 0, 0
        self._constant_rows, self._places = {}, {}

    def _rows(self, stretch: Stretch, rows: list[int]) -> Tensor:
        """Rows of a stretch as columns."""
        program, inputs, scales = stretch.program, stretch.inputs, list(stretch.scales)
        wanted = torch.tensor(rows, dtype=torch.int32, device="cpu") - stretch.first
        with self.own_reading():
            seed = None if self.draws is None else self.draws.seed
            outputs = evaluate(program, inputs, steepness_tensor(scales, self.like), wanted, self.size, seed)
            if self.journal is not None:
                self.journal.ran(program, inputs, scales, wanted, outputs, seed is not None)
        return outputs

    def own_reading(self) -> Any:
        """Numbers that are read in here are the machine's business, and part of the journal: nobody watches."""
        return nullcontext() if self.journal is None else torch._C.DisableTorchFunction()

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
        parts = value.parts
        if not all(isinstance(p, NUMBERS) or self._recorded(p) for p in parts) or not any(map(self._recorded, parts)):
            return []
        # Those that ran in an earlier stretch, or never moved, come along as inputs
        return [r + self.first for p in parts if (r := self._row(p)) is not None]

    def _recorded(self, x: Any) -> bool:
        return type(x) is Value and x.machine is self and (x.row is not None or x.source is not None)

    def _hand_out(self, groups: list[tuple[Value, list[int]]], outputs: Tensor) -> None:
        start = 0
        for value, rows in groups:
            if value.parted:
                for k, part in enumerate(value.parts):
                    if type(part) is Value:
                        part.source = (outputs, start + k)
                value.settle(self.derived(outputs, _Columns(start, start + len(rows))))
            else:
                value.source = (outputs, start)
            start += len(rows)

    def _run_again(self, groups: list[tuple[Value, list[int]]]) -> None:
        """Rows of finished stretches, asked for late: computed once more."""
        for value, rows in groups:
            stretch = next(s for s in self._done if s.first <= rows[0] < s.first + s.length)
            self._hand_out([(value, rows)], self._rows(stretch, rows))


def _column(tensor: Tensor) -> Tensor:
    """One number per item as a table of one column."""
    return tensor.unsqueeze(1)


class Spread(NamedTuple):
    """A number, or a vector, that all items share, as a table with a column for each number."""

    size: int

    def __call__(self, tensor: Tensor) -> Tensor:
        return tensor.reshape(1, -1).expand(self.size, -1)


class _Columns(NamedTuple):
    first: int
    last: int

    def __call__(self, tensor: Tensor) -> Tensor:
        # The gradient of a slice is a table of its own
        whole = (self.first, self.last) == (0, tensor.shape[1])
        return tensor if whole else tensor[:, self.first : self.last]

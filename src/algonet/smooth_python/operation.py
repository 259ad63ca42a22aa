"""A recorded program as one differentiable operation: `y[..., k] = row wanted[k]` of instructions on `x[..., column]`.

The program is data: instructions (code, a, b, c), each making the next row; `machine/instructions.py` is the table of them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from algonet.core.identity import identity, interned
from algonet.core.operation import Operation
from algonet.relax import Relaxation

from .machine import instructions
from .machine.instructions import COUNTER, code_of
from .reference import run_program

#: Shorter programs run operation by operation when the backend is "auto": loading a kernel is not worth it, until so many
#: instructions of one have run that it would have been.
SHORT, REPAID = 128, 2**15


@dataclass(frozen=True)
class ProgramSettings:
    """The relaxations that a program uses, in the order of their numbers, without their steepness."""

    formulas: tuple[Relaxation, ...]


class Formulas:
    """The relaxations that a program uses: their formulas, which a kernel is made for, and every steepness they have."""

    def __init__(self):
        self.relaxations: list[Relaxation] = []
        self.steepness: list[float | Tensor] = []
        self._places: dict[int, tuple[int, int]] = {}
        self._held: list[Relaxation] = []

    def place(self, relax: Relaxation) -> tuple[int, int] | None:
        """(number of the formula, number of the steepness), None where kernels cannot have it."""
        known = self._places.get(id(relax))
        if known is not None:
            return known
        steepness: Any = getattr(relax, "steepness", 1.0)
        steepness = steepness if isinstance(steepness, Tensor) else float(steepness)
        if relax.scalar is None or (isinstance(steepness, Tensor) and steepness.dim() > 0):
            return None
        unit = interned(relax)
        number = next((k for k, r in enumerate(self.relaxations) if identity(r) == identity(unit)), None)
        if number is None:
            number = len(self.relaxations)
            self.relaxations.append(unit)
        self._held.append(relax)
        found = self._places[id(relax)] = number, self._scale(steepness)
        return found

    @property
    def settings(self) -> ProgramSettings:
        return ProgramSettings(tuple(self.relaxations))

    def _scale(self, steepness: float | Tensor) -> int:
        for k, known in enumerate(self.steepness):
            if known is steepness or (isinstance(known, float) and isinstance(steepness, float) and known == steepness):
                return k
        self.steepness.append(steepness)
        return len(self.steepness) - 1


class Program(NamedTuple):
    """Recorded instructions with their constants, the relaxations they use, and the backend that is to run them.

    `asked` is the backend that was asked for, which is another one for short programs.
    """

    instructions: Tensor
    constants: Tensor
    settings: ProgramSettings
    backend: str
    asked: str

    @staticmethod
    def of(code: list[int], constants: list[float], settings: ProgramSettings, like: Tensor, backend: str) -> Program:
        """From flat lists; `like` tells the precision and the device of the numbers."""
        short = backend == "auto" and len(code) < 4 * SHORT
        return Program(
            torch.from_numpy(np.array(code, dtype=np.int32).reshape(-1, 4)),
            torch.tensor(constants, dtype=like.dtype, device=like.device),
            settings,
            "reference" if short else backend,
            backend,
        )


def evaluate(
    program: Program, inputs: list[Tensor], steepness: Tensor, wanted: Tensor, size: int, seed: Tensor | None = None
) -> Tensor:
    """The wanted rows of a program as columns (size, len(wanted)); differentiable in inputs and steepness."""
    constants = program.constants
    x = inputs[0] if len(inputs) == 1 else torch.cat(inputs, dim=1) if inputs else constants.new_zeros(size, 0)
    seed = torch.zeros(2, dtype=torch.int64, device=x.device) if seed is None else seed
    tensors = [x, steepness, constants, program.instructions, wanted, seed]
    return PROGRAM(tensors, program.settings, program.backend)[0]


def steepness_tensor(scales: list[Any], like: Tensor) -> Tensor:
    """Numbers, and tensors of one number each, as one tensor that is differentiable in the latter."""
    if not any(isinstance(s, Tensor) for s in scales):
        return torch.tensor(scales, dtype=like.dtype, device=like.device)
    return torch.stack([torch.as_tensor(s, dtype=like.dtype, device=like.device) for s in scales])


def _example(device: str) -> tuple[list[Tensor], ProgramSettings]:
    x = torch.zeros(2, 2, device=device)
    first, second = code_of("input"), code_of("add")
    program = torch.tensor([[first, 0, 0, 0], [first, 1, 0, 0], [second, 0, 1, 0]], dtype=torch.int32)
    wanted = torch.tensor([2], dtype=torch.int32)
    return [x, x.new_zeros(0), x.new_zeros(0), program, wanted, torch.zeros(2, dtype=torch.int64)], ProgramSettings(())


#: x (*batch, columns), steepness (number of scales), constants, program (instructions, 4), wanted (rows) and seed (2) give
#: y (*batch, rows).
PROGRAM = Operation(
    "smooth_program",
    settings=ProgramSettings,
    inputs=("x", "steepness", "constants", "program", "wanted", "seed"),
    reference=run_program,
    kernels={"numba": ".kernels.numba", "triton": ".kernels.triton"},
    shared={"steepness", "constants", "program", "wanted", "seed"},
    hosted={"program", "wanted", "seed"},
    fake=lambda tensors, settings: [tensors[0].new_empty(*tensors[0].shape[:-1], tensors[4].shape[0])],
    example=_example,
)


_COMMUTES = frozenset(("add", "mul"))


def simplified(program: Program, wanted: Tensor) -> tuple[Program, Tensor]:
    """The same rows from fewer instructions: equal ones (on equal rows) run once, and 0 - a is -a. Draws stay as they are."""
    table = instructions.with_relaxations(len(program.settings.formulas))
    reads, names = [i.rows for i in table], [i.name for i in table]
    draws = [COUNTER in i.operands for i in table]
    sub, neg, const = (names.index(name) for name in ("sub", "neg", "const"))
    constants, code = program.constants.tolist(), program.instructions.tolist()
    place: list[int] = []
    kept: list[tuple[int, int, int, int]] = []
    rows_by_instruction: dict[tuple[int, int, int, int], int] = {}
    zero = -1
    for number, a, b, c in code:
        count = reads[number]
        if count:
            a = place[a]
            b = place[b] if count > 1 else b
            c = place[c] if count > 2 else c
            if number == sub and a == zero:
                number, a, b = neg, b, 0
            elif b < a and names[number] in _COMMUTES:
                a, b = b, a
        found = (number, a, b, c)
        row = rows_by_instruction.get(found)
        if row is None or draws[number]:
            row = rows_by_instruction[found] = len(kept)
            kept.append(found)
            if number == const and constants[a] == 0.0:
                zero = row
        place.append(row)
    if len(kept) == len(code):
        return program, wanted
    fewer = torch.tensor(kept, dtype=torch.int32, device=program.instructions.device).reshape(-1, 4)
    rows = torch.tensor([place[row] for row in wanted.tolist()], dtype=wanted.dtype, device=wanted.device)
    return program._replace(instructions=fewer), rows

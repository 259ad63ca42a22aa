"""A recorded program as one differentiable operation: `y[..., k] = row wanted[k]` of instructions on `x[..., column]`.

The program is data: instructions (code, a, b, c), each making the next row; `machine/instructions.py` is the table of them.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from algonet.core.identity import interned
from algonet.core.operation import Operation
from algonet.relax import Relaxation

from .machine.instructions import code_of
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
        # With the relaxations themselves: while they are held, no others have their ids
        self._places: dict[int, tuple[Relaxation, tuple[int, int] | None]] = {}

    def place(self, relax: Relaxation) -> tuple[int, int] | None:
        """(number of the formula, number of the steepness), None where kernels cannot have it."""
        if id(relax) not in self._places:
            steepness: Any = getattr(relax, "steepness", 1.0)
            steepness = steepness if isinstance(steepness, Tensor) else float(steepness)
            found = None
            if relax.scalar is not None and not (isinstance(steepness, Tensor) and steepness.dim()):
                found = _place(self.relaxations, interned(relax)), _place(self.steepness, steepness)
            self._places[id(relax)] = relax, found
        return self._places[id(relax)][1]

    @property
    def settings(self) -> ProgramSettings:
        return ProgramSettings(tuple(self.relaxations))


def _place(items: list[Any], item: Any) -> int:
    """Where an item is in a list, which it joins if it is not there yet; numbers are found by value."""
    for k, known in enumerate(items):
        if known is item or (type(known) is type(item) is float and known == item):
            return k
    items.append(item)
    return len(items) - 1


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
    def of(
        code: Iterable[Any], constants: Iterable[float], settings: ProgramSettings, like: Tensor, backend: str
    ) -> Program:
        """From its instructions and constants; `like` tells the precision and the device of the numbers."""
        rows = np.array([*code], dtype=np.int32).reshape(-1, 4)
        short = backend == "auto" and len(rows) < SHORT
        return Program(
            torch.from_numpy(rows),
            torch.tensor([*constants], dtype=like.dtype, device=like.device),
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

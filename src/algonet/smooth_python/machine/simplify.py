"""A recorded program without what it computes twice: done once, when it first runs again."""

from __future__ import annotations

import torch
from torch import Tensor

from ..operation import Program
from . import instructions
from .instructions import COUNTER

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

"""Generated kernels for recorded programs: what the CPU and the GPU share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from algonet.core.autograd import Plan
from algonet.core.codegen import generate as codegen
from algonet.core.identity import PLANS

from ..operation import TABLE, Instruction, ProgramSettings, with_relaxations


class ProgramPlan(Plan):
    """Nothing is kept between both passes: backward runs the program again."""

    def start(self, tensors: Sequence[Tensor], x: Tensor, y: Tensor) -> None:
        """Fills in the wanted rows for a table of inputs."""
        raise NotImplementedError

    def pull(self, tensors: Sequence[Tensor], x: Tensor, g: Tensor, gx: Tensor, needs: Sequence[bool]) -> Tensor:
        """Adds to the gradient of x by those of the wanted rows; returns that of every steepness."""
        raise NotImplementedError

    def forward(self, tensors: Sequence[Tensor]) -> tuple[list[Tensor], list[Tensor]]:
        y = tensors[0].new_empty(*tensors[0].shape[:-1], tensors[4].shape[0])
        self.start(tensors, _table(tensors[0]), y)
        return [y], []

    def backward(
        self, grads: Sequence[Any], tensors: Sequence[Tensor], saved: Sequence[Tensor], needs: Sequence[bool]
    ) -> list[Tensor | None]:
        x = _table(tensors[0])
        gx = torch.zeros_like(x)
        gs = self.pull(tensors, x, _table(grads[0]), gx, needs)
        constants = torch.zeros_like(tensors[2]) if needs[2] else None
        return [gx.reshape(tensors[0].shape), gs if needs[1] else None, constants, None, None, None]


def _table(x: Tensor) -> Tensor:
    return x.detach().reshape(-1, x.shape[-1]).contiguous()


def generated(make: Callable[[list[Instruction], str], str], settings: ProgramSettings, dialect: str) -> ModuleType:
    """The module for programs with these relaxations, whose source `make` writes; one for each state of the table."""

    def load() -> ModuleType:
        functions = [codegen.scalar_function(relax, f"curve{k}", dialect) for k, relax in enumerate(settings.formulas)]
        body = make(with_relaxations(len(functions)), dialect)
        return codegen.load(f"smooth_program_{dialect}", "\n\n".join([codegen.PRELUDES[dialect], *functions, body]))

    return PLANS.get(("smooth programs", settings.formulas, dialect, *TABLE.values()), load)

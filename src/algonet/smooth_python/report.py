"""What a smooth run has to say about itself: how long its loops ran and what they left undone."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor


@dataclass
class Report:
    """`iterations`: of each loop by source line (the longest run of it). `mass_left`: the probability, per item, that had
    not left the loop in that line when it was stopped; lines of loops that ended by themselves are not in it."""

    iterations: dict[int, int] = field(default_factory=dict)
    mass_left: dict[int, Tensor] = field(default_factory=dict)
    #: Smooth decisions that were taken while the program ran (none are counted while it is repeated).
    decisions: int = 0
    #: The first differences that exits were asked about, with their lines, until the run is over.
    gaps: list[Any] = field(default_factory=list, init=False, repr=False)

    def add(self, line: int, iterations: int) -> None:
        self.iterations[line] = max(iterations, self.iterations.get(line, 0))

    def left(self, line: int, mass: Tensor) -> None:
        before = self.mass_left.get(line)
        self.mass_left[line] = mass if before is None else torch.maximum(before, mass)

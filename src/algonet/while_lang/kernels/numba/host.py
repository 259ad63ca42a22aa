"""What calls the Numba kernels: threads, and room for what blocks sum up."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from algonet.core.codegen import generate as codegen
from algonet.core.threads import spread, workers

from ...compiler import KernelSpec
from ..runner import WhilePlan
from .device import LANES, source

#: Batches up to this size run on one thread: waking others costs more than it saves, far more on a busy machine.
ALONE = 512


class RunWhilePlan(WhilePlan):
    """On the CPU's cores."""

    def load(self, spec: KernelSpec) -> Any:
        return codegen.load("while_numba", source(spec, self.dtype == torch.float64)).run

    def starter(self, kernel: Any, spec: KernelSpec) -> Callable[[list[Tensor]], None]:
        numbers = self.settings.epsilon, self.settings.max_iterations, self.n

        def start(tensors: list[Tensor]) -> None:
            arguments = *[t.detach().numpy().reshape(-1) for t in tensors], *numbers
            if self.n <= ALONE:
                kernel(0, 1, *arguments)
            else:
                # As many threads as torch uses
                threads = workers()
                spread(kernel, [(i, threads, *arguments) for i in range(threads)])

        return start

    def partial_sums(self, directions: int, like: Tensor) -> Tensor:
        return torch.zeros((self.n + LANES - 1) // LANES, directions, dtype=like.dtype)

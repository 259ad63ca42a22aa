"""What launches the Triton kernels: every argument by name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from algonet.core.codegen import generate as codegen
from algonet.core.launch import Launch

from ...compiler import KernelSpec
from ..runner import WhilePlan
from .device import BLOCK, source


class RunWhilePlan(WhilePlan):
    """On a GPU, one element a thread."""

    def load(self, spec: KernelSpec) -> Any:
        return codegen.load("while_triton", source(spec)).run

    def starter(self, kernel: Any, spec: KernelSpec) -> Callable[[list[Tensor]], None]:
        epsilon, cap = self.settings.epsilon, self.settings.max_iterations
        launch = Launch(kernel, -(-self.n // BLOCK), warps=1, epsilon=epsilon, cap=cap, n=self.n, BLOCK=BLOCK)
        return lambda tensors: launch.start(**dict(zip(spec.arrays, tensors, strict=True)))

    def partial_sums(self, directions: int, like: Tensor) -> Tensor:
        return torch.empty((self.n + BLOCK - 1) // BLOCK, directions, dtype=like.dtype, device=like.device)

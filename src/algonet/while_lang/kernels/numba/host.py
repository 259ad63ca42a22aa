"""What calls the Numba kernels: threads, and room for what blocks sum up."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from algonet.core.codegen import generate as codegen
from algonet.core.threads import spread, workers

from ...compiler import KernelSpec
from ..runner import Dialect, passes
from .device import LANES, source

#: Batches up to this size run on one thread: waking others costs more than it saves, far more on a busy machine.
ALONE = 512


def _load(spec: KernelSpec, double: bool) -> Any:
    return codegen.load("while_numba", source(spec, double)).run


def _launch(run: Any, spec: KernelSpec, tensors: list[Tensor], epsilon: float, cap: int, n: int) -> None:
    # As many threads as torch uses
    arguments = [*(t.detach().numpy().reshape(-1) for t in tensors), epsilon, cap, n]
    threads = workers() if n > ALONE else 1
    spread(run, [(i, threads, *arguments) for i in range(threads)])


def _partial_sums(n: int, directions: int, like: Tensor) -> Tensor:
    return torch.zeros((n + LANES - 1) // LANES, directions, dtype=like.dtype)


run_while_forward, run_while_backward, run_while_saved = passes(Dialect("numba", _load, _launch, _partial_sums))

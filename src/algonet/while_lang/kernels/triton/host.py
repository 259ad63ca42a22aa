"""What launches the Triton kernels: every argument by name."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from algonet.core.cache import Cache
from algonet.core.codegen import generate as codegen
from algonet.core.launch import Launch

from ...compiler import KernelSpec
from ..runner import Dialect, passes
from .device import BLOCK, source

_LAUNCHES: Cache[Launch] = Cache("launches of WHILE-programs", 1024)


def _load(spec: KernelSpec, double: bool) -> Any:
    return codegen.load("while_triton", source(spec)).run


def _launch(run: Any, spec: KernelSpec, tensors: list[Tensor], epsilon: float, cap: int, n: int) -> None:
    key = (run, tensors[-1].dtype, tensors[-1].get_device(), epsilon, cap, n)
    launch = _LAUNCHES.find(key)
    if launch is None:
        made = Launch(run, -(-n // BLOCK), warps=1, epsilon=epsilon, cap=cap, n=n, BLOCK=BLOCK)
        launch = _LAUNCHES.put(key, made)
    launch.start(**dict(zip(spec.arrays, tensors, strict=True)))


def _partial_sums(n: int, directions: int, like: Tensor) -> Tensor:
    return torch.empty((n + BLOCK - 1) // BLOCK, directions, dtype=like.dtype, device=like.device)


run_while_forward, run_while_backward, run_while_saved = passes(Dialect("triton", _load, _launch, _partial_sums))

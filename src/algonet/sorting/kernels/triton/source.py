"""The Triton kernels of soft sorting, put together for a sigmoid, and what launches share."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

import torch
from torch import Tensor

from algonet.core.cache import cached, constant
from algonet.core.codegen.generate import load_template
from algonet.relax import Sigmoid

from .gates import prelude

#: The files that kernels are made of, `*_device.py` beside this one, where it is not one of the same name.
_TEMPLATES = {
    "odd_even": ("exchange", "quads", "odd_even"),
    "bitonic": ("exchange", "bitonic"),
    "threshold": ("threshold", "long_threshold"),
}
#: Scratch of a network's backward over all programs, in bytes: fewer programs run at once where each needs more.
SCRATCH = 64 * 2**20


def has_light_tails(sigmoid: Sigmoid) -> bool:
    """Whether 2e18 times the steepness gives exactly 0 or 1 without further ado."""
    return float(sigmoid.reach(1e-30)) < 1e3


def laid_out(grad: Tensor | None, x: Tensor) -> tuple[Tensor, int]:
    """A gradient as kernels read it, and the step between its numbers: 0 where one stands for all, as after a sum."""
    if grad is None:
        return constant(0.0, x.dtype, x.device), 0
    return (grad.contiguous(), 1) if any(grad.stride()) else (grad, 0)


@cached
def processors(device: torch.device) -> int:
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 2


@cached
def kernels(name: str, sigmoid: Sigmoid) -> ModuleType:
    """The kernels of a network or another method, with the sigmoid written into them."""
    paths = [Path(__file__).with_name(f"{part}_device.py") for part in _TEMPLATES.get(name, (name,))]
    return load_template(f"{name}_triton_{type(sigmoid).__name__ or 'nameless'}", prelude(sigmoid), *paths)

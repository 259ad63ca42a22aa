"""The Triton kernels of soft sorting, put together for a sigmoid, and what launches share."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

import torch
from torch import Tensor

from algonet.core.cache import cached, constant
from algonet.core.codegen.generate import PRELUDES, load_template, scalar_function
from algonet.relax import Logistic, Sigmoid

from ...reference import is_symmetric

#: The logistic by the processor's own exponential and reciprocal; an exponential that overflows has the reciprocal 0.
_LOGISTIC = """@triton.jit
def gate(z):
    e = quick_exp(-tl.abs(z))
    part = reciprocal(1.0 + e)
    return tl.where(z >= 0, 1.0, e) * part, e * part * part


@triton.jit
def chance(z):
    return reciprocal(1.0 + quick_exp(-z))
"""
_CHANCE = """@triton.jit
def chance(z):
    value, slope = gate(z)
    return value
"""
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


def prelude(sigmoid: Sigmoid) -> str:
    """What stands before a template: imports, `gate` and `chance` of this sigmoid."""
    names = PRELUDES["triton"] + "from algonet.core.codegen.triton_math import quick_exp, reciprocal\n\n"
    names += f"#: Whether r(-z) = 1 - r(z).\nSYMMETRIC = tl.constexpr({is_symmetric(sigmoid)})\n"
    if type(sigmoid) is Logistic:
        return "\n\n".join([names, _LOGISTIC])
    return "\n\n".join([names, scalar_function(sigmoid, "gate", "triton"), _CHANCE])


@cached
def kernels(name: str, sigmoid: Sigmoid) -> ModuleType:
    """The kernels of a network or another method, with the sigmoid written into them."""
    parts = ("exchange", name) if name in ("odd_even", "bitonic") else (name,)
    paths = [Path(__file__).with_name(f"{part}_device.py") for part in parts]
    return load_template(f"{name}_triton_{type(sigmoid).__name__ or 'nameless'}", prelude(sigmoid), *paths)

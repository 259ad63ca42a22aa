"""The Triton kernels of soft sorting, put together for a sigmoid, and what both networks' launches share."""

from __future__ import annotations

import functools
from pathlib import Path
from types import ModuleType

import torch
from torch import Tensor

from algonet.core.codegen import generate as codegen

from ...checks import constant
from ...plan import Plan

#: Shorter ways to the value alone, and to value and slope, where there are any. An exponential that overflows to infinity
#: has the reciprocal 0 that it should have.
_CHANCES = {"Logistic": "value = reciprocal(1.0 + quick_exp(-z))"}
_GATES = {
    "Logistic": """e = quick_exp(-tl.abs(z))
    part = reciprocal(1.0 + e)
    value = tl.where(z >= 0, 1.0, e) * part
    slope = e * part * part"""
}
#: The files that make up the kernels of each network, `*_device.py` beside this one.
_TEMPLATES = {"odd_even": ("exchange", "quads", "odd_even"), "bitonic": ("exchange", "bitonic")}


def laid_out(grad: Tensor | None, x: Tensor) -> tuple[Tensor, int]:
    """A gradient as kernels read it, and the step between its numbers: 0 where one stands for all, as after a sum."""
    if grad is None:
        return constant(0.0, x.dtype, x.device), 0
    return (grad.contiguous(), 1) if any(grad.stride()) else (grad, 0)


@functools.lru_cache(maxsize=16)
def processors(device: torch.device) -> int:
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 2


@functools.lru_cache(maxsize=64)
def kernels(form: str, network: str) -> ModuleType:
    """The kernels of a network, with the sigmoid (by its token) written into them."""
    gate = codegen.scalar_function(Plan(network, form).sigmoid, "gate", "triton")
    if form in _GATES:
        gate = f"@triton.jit\ndef gate(z):\n    {_GATES[form]}\n    return value, slope\n"
    chance = f"@triton.jit\ndef chance(z):\n    {_CHANCES.get(form, 'value, slope = gate(z)')}\n    return value\n"
    templates = [_template(name) for name in _TEMPLATES[network]]
    prelude = codegen.PRELUDES["triton"] + "from algonet.core.codegen.triton_math import quick_exp, reciprocal\n"
    parts = [prelude, gate, chance, *templates]
    return codegen.load(f"sort_{network}_triton_{form}", "\n\n".join(parts))


def _template(name: str) -> str:
    source = Path(__file__).with_name(f"{name}_device.py").read_text(encoding="utf-8")
    return source.split("# --- template ---\n")[1]

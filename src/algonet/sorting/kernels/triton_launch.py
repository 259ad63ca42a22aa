"""Loading and launching the Triton kernels of soft sorting with as little as possible between two launches."""

from __future__ import annotations

import functools
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from algonet import codegen

from ..checks import constant
from ..plan import Plan

#: Shorter formulas for the value alone. exp overflows to infinity for z < -88, of which the reciprocal is the 0 it should be.
_CHANCES = {"Logistic": "value = 1.0 / (1.0 + tl.exp(-z))"}
_COMPILED: dict[tuple, Any] = {}


class Launch:
    """A kernel with its grid, numbers and constants, to be called with its tensors.

    From the second time on without Triton's look at each argument, which costs more than a sort. That is sound because
    no argument is specialised (see `PLAIN` in the templates): the types alone choose the code.
    """

    def __init__(
        self, form: str, network: str, kernel: str, grid: int | tuple[int, int], numbers: tuple[int, ...],
        constants: tuple, warps: int, device: torch.device,
    ):  # fmt: skip
        self.kernel = getattr(kernels(form, network), kernel)
        self.key = (form, kernel, constants, warps, device)
        self.grid = (grid, 1, 1) if isinstance(grid, int) else (*grid, 1)
        self.numbers = (*numbers, *constants)
        self.warps, self.device = warps, device
        self.far_off = device.type == "cuda" and torch.cuda.device_count() > 1
        self.again: Any = None

    def __call__(self, *tensors: Tensor) -> None:
        if self.far_off and self.device.index != torch.cuda.current_device():
            with torch.cuda.device(self.device):
                self._run(tensors)
        else:
            self._run(tensors)

    def _run(self, tensors: tuple[Tensor, ...]) -> None:
        if self.again is not None:
            # Addresses: of tensors the launcher would ask the driver where they are
            self.again(*[t.data_ptr() for t in tensors], *self.numbers)
            return
        key = (*self.key, tensors[0].dtype)
        compiled = _COMPILED.get(key)
        if compiled is None:
            compiled = self.kernel[self.grid](*tensors, *self.numbers, num_warps=self.warps)
            if compiled is not None:  # the interpreter compiles nothing
                _COMPILED[key] = compiled
            return
        again = compiled[self.grid]
        try:
            again(*tensors, *self.numbers)
        except TypeError:  # releases before 3.3 want the arguments without constants
            self.kernel[self.grid](*tensors, *self.numbers, num_warps=self.warps)
        else:
            self.again = again


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
    """The kernels of a network, with the sigmoid written into them."""
    gate = codegen.scalar_function(Plan(network, form).sigmoid, "gate", "triton")
    chance = f"@triton.jit\ndef chance(z):\n    {_CHANCES.get(form, 'value, slope = gate(z)')}\n    return value\n"
    parts = [codegen.PRELUDES["triton"], gate, chance, _template("exchange"), _template(network)]
    return codegen.load(f"sort_{network}_triton_{form}", "\n\n".join(parts))


def _template(name: str) -> str:
    source = Path(__file__).with_name(f"triton_{name}.py").read_text(encoding="utf-8")
    return source.split("# --- template ---\n")[1]

"""Launching Triton kernels with little overhead.

A call through Triton's own front door looks at every argument and takes 50 to 100 microseconds for kernels with many; here a
kernel that was compiled once for the same constants and types is launched directly, in about ten.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

from algonet.backends import interpreting

_COMPILED: dict[tuple, Any] = {}


class Launch:
    """A kernel with its grid, sizes and constants: all that it takes but the tensors.

    Sizes and tensors must be ones that the kernel does not specialise on, so that the tensors' types alone, which must be
    the same in every call, choose the code.
    """

    def __init__(
        self,
        kernel: Any,
        grid: tuple[int, int],
        sizes: tuple[int, ...],
        constants: tuple,
        warps: int,
        registers: int | None = None,
    ):
        self.kernel, self.grid = kernel, grid
        # Said, because releases of Triton differ in what they do unasked
        self.options = {"num_warps": warps, "maxnreg": registers, "enable_fp_fusion": True}
        self.rest = (*sizes, *constants)
        # Triton takes numbers for 32 or 64 bits wide by their size, so kernels are shared between narrow ones only
        self.key = (kernel, constants, warps, registers) if max(sizes) < 2**31 else None
        self.run: Any = None

    def __call__(self, *tensors: Tensor) -> None:
        if self.run is not None:
            self.run(*tensors, *self.rest)
        elif self.grid[0] * self.grid[1]:
            self._first(tensors)

    def _first(self, tensors: tuple[Tensor, ...]) -> None:
        if interpreting():
            self.kernel[self.grid](*tensors, *self.rest)
            return
        key = (self.key, tensors[0].device, *(t.dtype for t in tensors))
        compiled = _COMPILED.get(key)
        if compiled is not None:
            self.run = compiled[(*self.grid, 1)]
            self.run(*tensors, *self.rest)
            return
        compiled = self.kernel[self.grid](*tensors, *self.rest, **self.options)
        if self.key is not None:
            _COMPILED[key] = compiled

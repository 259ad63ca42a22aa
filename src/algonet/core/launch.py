"""Starting Triton kernels with little between two starts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from algonet.core.backends import interpreting

_COMPILED: dict[tuple, Any] = {}


class Launch:
    """A Triton kernel with its grid, numbers and constants: all that it takes but its tensors.

    A call through Triton's own front door looks at every argument, which takes 50 to 100 microseconds: longer than many
    kernels run. From the second call on the compiled code is started directly, in about ten. That is sound for kernels
    that specialise on none of their tensors and numbers (`do_not_specialize`): then types alone choose the code, and the
    tensors of one `Launch` must have the same types, on the same device, in every call.
    """

    def __init__(
        self,
        kernel: Any,
        grid: int | Sequence[int],
        numbers: tuple,
        constants: tuple,
        warps: int,
        registers: int | None = None,
    ):
        self.kernel, self.grid = kernel, (*((grid,) if isinstance(grid, int) else grid), 1, 1)[:3]
        self.rest = (*numbers, *constants)
        # Said, because releases of Triton differ in what they do unasked
        self.options = {"num_warps": warps, "maxnreg": registers, "enable_fp_fusion": True}
        # Triton takes an integer for 32 or 64 bits wide by its size, so code is shared between narrow ones only
        narrow = all(abs(n) < 2**31 for n in numbers)
        self.key = (kernel, constants, warps, registers) if narrow else None
        self.again: Any = None
        self.device: int | None = None

    def __call__(self, *tensors: Tensor) -> None:
        if self.again is None:
            self._first(tensors)
        elif self.device is None or self.device == torch.cuda.current_device():
            self.again(*tensors, *self.rest)
        else:
            with torch.cuda.device(self.device):
                self.again(*tensors, *self.rest)

    def _first(self, tensors: tuple[Tensor, ...]) -> None:
        if 0 in self.grid:
            return
        if interpreting():
            self.kernel[self.grid](*tensors, *self.rest)
            return
        with torch.cuda.device(tensors[0].device):
            key = None if self.key is None else (self.key, tensors[0].device, *(t.dtype for t in tensors))
            compiled = _COMPILED.get(key) if key is not None else None
            if compiled is None:
                compiled = self.kernel[self.grid](*tensors, *self.rest, **self.options)
                if key is not None:
                    _COMPILED[key] = compiled
                return
            again = compiled[self.grid]
            try:
                again(*tensors, *self.rest)
            except TypeError:  # releases before 3.3 want the arguments without constants
                self.kernel[self.grid](*tensors, *self.rest, **self.options)
                return
        # With one device there is no other to be on
        self.device = tensors[0].device.index if torch.cuda.device_count() > 1 else None
        self.again = again

"""What calls the Numba kernels: cuts a batch into blocks, spreads them over threads, adds up what comes back."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType

import numpy as np
import torch
from torch import Tensor

from algonet.core.codegen.generate import load_template
from algonet.core.identity import Signature
from algonet.core.threads import spread

from ..reference import FAR_GRADIENT, FAR_PARAMETER, FAR_PIXELS, FAR_STATE, LEAST_SIGMA
from .layout import ChaosPlan, RasterPlan, blocks, laid_out

#: Numbers in a vector register, which inner loops run over; pictures are padded by as many.
LANES = 16
#: A block of points is worth a picture of its own from here on, and a picture of the whole batch needs no more blocks.
_SHORTEST, _MOST = 2048, 8


def kernels(name: str, dtype: torch.dtype) -> ModuleType:
    """The functions of `<name>_device.py` in one precision."""
    real = "float32" if dtype == torch.float32 else "float64"
    prelude = f"""import math

import numpy as np
from numba import float32, {real} as real

from algonet.core.codegen.jit import njit
from algonet.core.codegen.numba_math import exp32, log32

SINGLE, LANES = {real == "float32"}, {LANES}
FAR_PIXELS, LEAST_SIGMA = {FAR_PIXELS!r}, {LEAST_SIGMA!r}
FAR_STATE, FAR_PARAMETER, FAR_GRADIENT = {FAR_STATE!r}, {FAR_PARAMETER!r}, {FAR_GRADIENT!r}
"""
    return load_template(f"ifs_{name}_{real}", prelude, Path(__file__).with_name(f"{name}_device.py"))


def _arrays(*tensors: Tensor) -> list[np.ndarray]:
    return list(map(Tensor.numpy, tensors))


def _run(work: Callable[..., None], cut: Sequence[tuple[int, ...]]) -> None:
    """Work on each part of a cut; one part alone needs no threads."""
    if len(cut) == 1:
        work(*cut[0])
    else:
        spread(work, cut)


class SmoothRasterPlan(RasterPlan):
    """The picture by blocks of points, each with a picture of its own; its gradients by blocks of points, too."""

    def __init__(self, signature: Signature):
        super().__init__(signature)
        settings, double = self.settings, self.dtype == torch.float64
        pixels = settings.height * settings.width
        self.cut = blocks(self.items, self.count, max(_SHORTEST, pixels // 8), _MOST)
        self.back = blocks(self.items, self.count, _SHORTEST, 64)
        self.per_item = max(1, len(self.cut) // max(1, self.items))
        self.kernels = kernels("raster", self.dtype)
        self.reach = (np.float64 if double else np.float32)(settings.reach)

    def forward(self, tensors: Sequence[Tensor]) -> tuple[list[Tensor], list[Tensor]]:
        settings, reach, kernel = self.settings, self.reach, self.kernels.forward
        pictures = torch.zeros(
            self.items, self.per_item, self.layers, settings.height, settings.width + LANES, dtype=self.dtype
        )
        p, s, w, f, out = _arrays(*laid_out(tensors, self.shapes), pictures)
        broken: list[int] = []

        def work(i: int, k: int, first: int, last: int) -> None:
            if kernel(p[i], s[i], w[i], f[i], first, last, settings.width, reach, settings.logs, out[i, k]):
                broken.append(i)

        _run(work, self.cut)
        drawn = pictures[..., : settings.width]
        total = drawn.sum(1) if self.per_item > 1 else drawn[:, 0].clone()
        for i in set(broken):
            total[i] = torch.nan
        return [total.reshape(self.shape)], []

    def parts(self, needs: Sequence[bool]) -> int:
        return max(1, len(self.back) // max(1, self.items))

    def pull(self, given: Sequence[Tensor], found: Sequence[Tensor], needs: Sequence[bool]) -> None:
        settings, reach, kernel = self.settings, self.reach, self.kernels.backward
        g, p, s, w, f = _arrays(torch.nn.functional.pad(given[0], (0, LANES)), *given[1:])
        grad_p, grad_s, grad_w, grad_f = _arrays(*found)

        def work(i: int, k: int, first: int, last: int) -> None:
            grad_s[i, k] = kernel(
                g[i], p[i], s[i], w[i], f[i], first, last, settings.width, reach, settings.logs,
                grad_p[i], grad_w[i], grad_f[i],
            )  # fmt: skip

        _run(work, self.back)


class ChaosGamePlan(ChaosPlan):
    def __init__(self, signature: Signature):
        super().__init__(signature)
        self.kernels = kernels("chaos", self.dtype)
        self.cut = blocks(self.items, self.chains, 256, 8)
        self.parts, self.slots = max(1, len(self.cut) // max(1, self.items)), self.functions

    def draw(self, *tensors: Tensor) -> None:
        a, c, x, states, points = _arrays(*tensors)
        burn_in, kernel = self.settings.burn_in, self.kernels.forward
        _run(lambda i, _, *chains: kernel(a[i], c[i], x[i], *chains, burn_in, states[i], points[i]), self.cut)

    def pull(self, *tensors: Tensor) -> None:
        g, a, c, x, states, grad_a, grad_x = _arrays(*tensors)
        steps, kernel = (self.settings.burn_in, self.settings.horizon), self.kernels.backward

        def work(i: int, k: int, first: int, last: int) -> None:
            kernel(g[i], a[i], c[i], x[i], first, last, *steps, states[i], grad_a[i, k], grad_x[i])

        _run(work, self.cut)

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

from ...reference import FAR_GRADIENT, FAR_PARAMETER, FAR_PIXELS, FAR_STATE, LEAST_SIGMA
from ..layout import ChaosPlan, RasterPlan, blocks

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


def _arrays(tensors: Sequence[Tensor], shapes: Sequence[Sequence[int]]) -> list[np.ndarray]:
    return [t.detach().reshape(shape).contiguous().numpy() for t, shape in zip(tensors, shapes, strict=True)]


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
        self.back = [
            (n, i, first, last) for n, (i, _, first, last) in enumerate(blocks(self.items, self.count, _SHORTEST, 64))
        ]
        self.per_item = max(1, len(self.cut) // max(1, self.items))
        self.kernels = kernels("raster", self.dtype)
        self.reach = (np.float64 if double else np.float32)(settings.reach)

    def forward(self, tensors: Sequence[Tensor]) -> tuple[list[Tensor], list[Tensor]]:
        settings, reach, kernel = self.settings, self.reach, self.kernels.forward
        pictures = torch.zeros(
            self.items, self.per_item, self.layers, settings.height, settings.width + LANES, dtype=self.dtype
        )
        p, s, w, f = _arrays(tensors, self.shapes)
        out = pictures.numpy()
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

    def backward(
        self, grads: Sequence[Tensor], tensors: Sequence[Tensor], saved: Sequence[Tensor], needs: Sequence[bool]
    ) -> list[Tensor | None]:
        g = torch.nn.functional.pad(grads[0].reshape(self.flat_shape), (0, LANES))
        p, s, w, f, g = _arrays((*tensors, g), (*self.shapes, g.shape))
        by_block = torch.zeros(len(self.back), dtype=self.dtype)
        of_points, _, of_weights, of_features = [torch.zeros(shape, dtype=self.dtype) for shape in self.shapes]
        grad_p, grad_s, grad_w, grad_f = of_points.numpy(), by_block.numpy(), of_weights.numpy(), of_features.numpy()
        settings, reach, kernel = self.settings, self.reach, self.kernels.backward

        def work(number: int, i: int, first: int, last: int) -> None:
            grad_s[number] = kernel(
                g[i], p[i], s[i], w[i], f[i], first, last, settings.width, reach, settings.logs,
                grad_p[i], grad_w[i], grad_f[i],
            )  # fmt: skip

        _run(work, self.back)
        of_sigma = by_block.reshape(self.items, -1).sum(1) if self.back else torch.zeros(self.items, dtype=self.dtype)
        found = of_points, of_sigma, of_weights, of_features
        return [o.reshape(t.shape) for o, t in zip(found, tensors, strict=True)]


class ChaosGamePlan(ChaosPlan):
    """The points of all chains, and back along the states that were saved."""

    def __init__(self, signature: Signature):
        super().__init__(signature)
        self.kernels = kernels("chaos", self.dtype)
        self.cut = blocks(self.items, self.chains, 256, 8)
        self.per_item = max(1, len(self.cut) // max(1, self.items))

    def forward(self, tensors: Sequence[Tensor]) -> tuple[list[Tensor], list[Tensor]]:
        points, states = self.rooms()
        a, c, x = _arrays(tensors, self.shapes)
        visited, out = states.numpy(), points.numpy()
        burn_in, kernel = self.settings.burn_in, self.kernels.forward

        def work(i: int, k: int, first: int, last: int) -> None:
            kernel(a[i], c[i], x[i], first, last, burn_in, visited[i], out[i])

        _run(work, self.cut)
        return self.results(points, states)

    def backward(
        self, grads: Sequence[Tensor], tensors: Sequence[Tensor], saved: Sequence[Tensor], needs: Sequence[bool]
    ) -> list[Tensor | None]:
        parameters, _, start = tensors
        of_parameters, _, of_start = self.shapes
        grad_parameters = torch.zeros(self.items, self.per_item, *of_parameters[1:], dtype=self.dtype)
        grad_start = torch.zeros(of_start, dtype=self.dtype)
        shapes = (self.items, *self.drawn), *self.shapes, (self.items, *self.states)
        g, a, c, x, states = _arrays((*grads, *tensors, *saved), shapes)
        grad_a, grad_x = grad_parameters.numpy(), grad_start.numpy()
        settings, kernel = self.settings, self.kernels.backward

        def work(i: int, k: int, first: int, last: int) -> None:
            steps = first, last, settings.burn_in, settings.horizon
            kernel(g[i], a[i], c[i], x[i], *steps, states[i], grad_a[i, k], grad_x[i])

        _run(work, self.cut)
        return [grad_parameters.sum(1).reshape(parameters.shape), None, grad_start.reshape(start.shape)]


def decode_addresses(u: Tensor, bounds: Tensor, steps: int) -> Tensor:
    """Digits (items, points, steps) of each u (items, points) in the mixed code of `bounds` (items, n + 1)."""
    found = torch.empty(*u.shape, steps, dtype=torch.int64)
    kernel = kernels("chaos", torch.float64).decode_addresses
    for i in range(len(u)):
        kernel(u[i].numpy(), bounds[i].numpy(), found[i].numpy())
    return found

"""What calls the Numba kernels: cuts a batch into blocks, spreads them over threads, adds up what comes back."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from types import ModuleType

import torch
from torch import Tensor

from algonet.core.cache import cached
from algonet.core.codegen.generate import load_template
from algonet.core.threads import spread

from ...operation import ChaosSettings, RasterSettings
from ...reference import FAR_GRADIENT, FAR_PARAMETER, FAR_PIXELS, FAR_STATE, LEAST_SIGMA
from ..layout import blocks, flat
from ..layout import chaos_game_saved as chaos_game_saved

#: Numbers in a vector register, which inner loops run over; pictures are padded by as many.
LANES = 16
#: A block of points is worth a picture of its own from here on, and a picture of the whole batch needs no more blocks.
_SHORTEST, _MOST = 2048, 8


@cached(most=4)
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


def smooth_raster_forward(tensors: Sequence[Tensor], settings: RasterSettings) -> tuple[list[Tensor], list[Tensor]]:
    points, sigma, weights, features = tensors
    p, s, w, f = flat(points, 2), flat(sigma, 0), flat(weights, 1), flat(features, 2)
    items, count, layers = p.shape[0], p.shape[1], 1 + f.shape[2]
    cut = blocks(items, count, max(_SHORTEST, settings.height * settings.width // 8), _MOST)
    per_item = max(1, len(cut) // max(1, items))
    padded = settings.width + LANES
    pictures = torch.zeros(items, per_item, layers, settings.height, padded, dtype=p.dtype)
    arrays = p.numpy(), s.numpy(), w.numpy(), f.numpy(), pictures.numpy()
    kernel = kernels("raster", p.dtype).forward
    reach = arrays[0].dtype.type(settings.reach)
    broken: list[int] = []

    def work(i: int, k: int, first: int, last: int) -> None:
        p, s, w, f, out = arrays
        if kernel(p[i], s[i], w[i], f[i], first, last, settings.width, reach, settings.logs, out[i, k]):
            broken.append(i)

    spread(work, cut)
    total = pictures[..., : settings.width].sum(1) if per_item > 1 else pictures[:, 0, ..., : settings.width].clone()
    for i in set(broken):
        total[i] = torch.nan
    return [total.reshape(*points.shape[:-2], layers, settings.height, settings.width)], []


def smooth_raster_backward(
    grads: Sequence[Tensor],
    tensors: Sequence[Tensor],
    saved: Sequence[Tensor],
    settings: RasterSettings,
    needs: Sequence[bool],
) -> list[Tensor]:
    points, sigma, weights, features = tensors
    p, s, w, f = flat(points, 2), flat(sigma, 0), flat(weights, 1), flat(features, 2)
    g = torch.nn.functional.pad(flat(grads[0], 3), (0, LANES))
    cut = blocks(p.shape[0], p.shape[1], _SHORTEST, 64)
    out = [torch.zeros_like(p), torch.zeros(len(cut), dtype=p.dtype), torch.zeros_like(w), torch.zeros_like(f)]
    arrays = [t.numpy() for t in (g, p, s, w, f, *out)]
    kernel = kernels("raster", p.dtype).backward
    reach = arrays[0].dtype.type(settings.reach)

    def work(number: int, i: int, first: int, last: int) -> None:
        g, p, s, w, f, grad_p, grad_s, grad_w, grad_f = arrays
        grad_s[number] = kernel(
            g[i],
            p[i],
            s[i],
            w[i],
            f[i],
            first,
            last,
            settings.width,
            reach,
            settings.logs,
            grad_p[i],
            grad_w[i],
            grad_f[i],
        )

    spread(work, [(number, i, first, last) for number, (i, _, first, last) in enumerate(cut)])
    out[1] = out[1].reshape(s.shape[0], -1).sum(1) if len(cut) else torch.zeros_like(s)
    return [o.reshape(t.shape) for o, t in zip(out, tensors, strict=True)]


def chaos_game_forward(tensors: Sequence[Tensor], settings: ChaosSettings) -> tuple[list[Tensor], list[Tensor]]:
    parameters, choices, start = tensors
    burn_in = settings.burn_in
    a, c, x = flat(parameters, 2), flat(choices, 2), flat(start, 2)
    items, chains, steps = c.shape
    states = torch.empty(items, steps + 1, chains, 2, dtype=a.dtype)
    points = torch.empty(items, chains, steps - burn_in, 2, dtype=a.dtype)
    arrays = [t.numpy() for t in (a, c, x, states, points)]
    kernel = kernels("chaos", a.dtype).forward

    def work(i: int, k: int, first: int, last: int) -> None:
        a, c, x, states, out = arrays
        kernel(a[i], c[i], x[i], first, last, burn_in, states[i], out[i])

    spread(work, blocks(items, chains, 256, 8))
    batch = parameters.shape[:-2]
    return [points.reshape(*batch, *points.shape[1:])], [states.reshape(*batch, *states.shape[1:])]


def chaos_game_backward(
    grads: Sequence[Tensor],
    tensors: Sequence[Tensor],
    saved: Sequence[Tensor],
    settings: ChaosSettings,
    needs: Sequence[bool],
) -> list[Tensor | None]:
    parameters, choices, start = tensors
    a, c, x = flat(parameters, 2), flat(choices, 2), flat(start, 2)
    cut = blocks(c.shape[0], c.shape[1], 256, 8)
    per_item = max(1, len(cut) // max(1, c.shape[0]))
    grad_parameters = torch.zeros(a.shape[0], per_item, *a.shape[1:], dtype=a.dtype)
    grad_start = torch.zeros_like(x)
    arrays = [t.numpy() for t in (flat(grads[0], 3), a, c, x, flat(saved[0], 3), grad_parameters, grad_start)]
    kernel = kernels("chaos", a.dtype).backward

    def work(i: int, k: int, first: int, last: int) -> None:
        g, a, c, x, states, grad_a, grad_x = arrays
        kernel(
            g[i], a[i], c[i], x[i], first, last, settings.burn_in, settings.horizon, states[i], grad_a[i, k], grad_x[i]
        )

    spread(work, cut)
    return [grad_parameters.sum(1).reshape(parameters.shape), None, grad_start.reshape(start.shape)]


def decode_addresses(u: Tensor, bounds: Tensor, steps: int) -> Tensor:
    """Digits (items, points, steps) of each u (items, points) in the mixed code of `bounds` (items, n + 1)."""
    found = torch.empty(*u.shape, steps, dtype=torch.int64)
    kernel = kernels("chaos", torch.float64).decode_addresses
    for i in range(len(u)):
        kernel(u[i].numpy(), bounds[i].numpy(), found[i].numpy())
    return found

"""The Numba kernels as differentiable operators."""

from __future__ import annotations

import torch
from torch import Tensor

from algonet.core.autograd import Operator
from algonet.core.threads import spread

from .fakes import chaos_fake, chaos_reference, splat_fake, splat_reference
from .numba_chaos import KERNELS as CHAOS
from .numba_cpu import KERNELS as SPLAT
from .numba_cpu import LANES
from .settings import ChaosSettings, SplatSettings, blocks, flat

#: A block of points is worth a picture of its own from here on, and a picture of the whole batch needs no more blocks.
_SHORTEST, _MOST = 2048, 8


def _splat_forward(tensors: list[Tensor], settings: str) -> tuple[list[Tensor], list[Tensor]]:
    points, sigma, weights, features = tensors
    chosen = SplatSettings.decode(settings)
    p, s, w, f = flat(points, 2), flat(sigma, 0), flat(weights, 1), flat(features, 2)
    items, count, layers = p.shape[0], p.shape[1], 1 + f.shape[2]
    cut = blocks(items, count, max(_SHORTEST, chosen.height * chosen.width // 8), _MOST)
    per_item = max(1, len(cut) // max(1, items))
    padded = chosen.width + LANES
    pictures = torch.zeros(items, per_item, layers, chosen.height, padded, dtype=p.dtype)
    arrays = p.numpy(), s.numpy(), w.numpy(), f.numpy(), pictures.numpy()
    kernel = SPLAT[arrays[0].dtype][0]
    broken: list[int] = []

    def work(i: int, k: int, first: int, last: int) -> None:
        p, s, w, f, out = arrays
        reach = p.dtype.type(chosen.reach)
        if kernel(p[i], s[i], w[i], f[i], first, last, chosen.width, reach, chosen.logs, out[i, k]):
            broken.append(i)

    spread(work, cut)
    total = pictures[..., : chosen.width].sum(1) if per_item > 1 else pictures[:, 0, ..., : chosen.width].clone()
    for i in set(broken):
        total[i] = torch.nan
    return [total.reshape(*points.shape[:-2], layers, chosen.height, chosen.width)], []


def _splat_backward(
    grads: list[Tensor], tensors: list[Tensor], saved: list[Tensor], settings: str, needs: list[bool]
) -> list[Tensor]:
    points, sigma, weights, features = tensors
    chosen = SplatSettings.decode(settings)
    p, s, w, f = flat(points, 2), flat(sigma, 0), flat(weights, 1), flat(features, 2)
    g = torch.nn.functional.pad(flat(grads[0], 3), (0, LANES))
    cut = blocks(p.shape[0], p.shape[1], _SHORTEST, 64)
    out = [torch.zeros_like(p), torch.zeros(len(cut), dtype=p.dtype), torch.zeros_like(w), torch.zeros_like(f)]
    arrays = [t.numpy() for t in (g, p, s, w, f, *out)]
    kernel = SPLAT[arrays[1].dtype][1]

    def work(number: int, i: int, first: int, last: int) -> None:
        g, p, s, w, f, by_p, by_s, by_w, by_f = arrays
        reach = p.dtype.type(chosen.reach)
        by_s[number] = kernel(
            g[i], p[i], s[i], w[i], f[i], first, last, chosen.width, reach, chosen.logs, by_p[i], by_w[i], by_f[i]
        )

    spread(work, [(number, i, first, last) for number, (i, _, first, last) in enumerate(cut)])
    out[1] = out[1].reshape(s.shape[0], -1).sum(1) if len(cut) else torch.zeros_like(s)
    return [o.reshape(t.shape) for o, t in zip(out, tensors, strict=True)]


def _chaos_forward(tensors: list[Tensor], settings: str) -> tuple[list[Tensor], list[Tensor]]:
    parameters, choices, start = tensors
    burn_in = ChaosSettings.decode(settings).burn_in
    a, c, x = flat(parameters, 2), flat(choices, 2), flat(start, 2)
    items, chains, steps = c.shape
    states = torch.empty(items, steps + 1, chains, 2, dtype=a.dtype)
    points = torch.empty(items, chains, steps - burn_in, 2, dtype=a.dtype)
    arrays = [t.numpy() for t in (a, c, x, states, points)]
    kernel = CHAOS[arrays[0].dtype][0]

    def work(i: int, k: int, first: int, last: int) -> None:
        a, c, x, kept, out = arrays
        kernel(a[i], c[i], x[i], first, last, burn_in, kept[i], out[i])

    spread(work, blocks(items, chains, 256, 8))
    batch = parameters.shape[:-2]
    return [points.reshape(*batch, *points.shape[1:])], [states.reshape(*batch, *states.shape[1:])]


def _chaos_backward(
    grads: list[Tensor], tensors: list[Tensor], saved: list[Tensor], settings: str, needs: list[bool]
) -> list[Tensor]:
    parameters, choices, start = tensors
    chosen = ChaosSettings.decode(settings)
    a, c, x = flat(parameters, 2), flat(choices, 2), flat(start, 2)
    cut = blocks(c.shape[0], c.shape[1], 256, 8)
    per_item = max(1, len(cut) // max(1, c.shape[0]))
    by_parameters = torch.zeros(a.shape[0], per_item, *a.shape[1:], dtype=a.dtype)
    by_start = torch.zeros_like(x)
    arrays = [t.numpy() for t in (flat(grads[0], 3), a, c, x, flat(saved[0], 3), by_parameters, by_start)]
    kernel = CHAOS[arrays[1].dtype][1]

    def work(i: int, k: int, first: int, last: int) -> None:
        g, a, c, x, kept, by_a, by_x = arrays
        kernel(g[i], a[i], c[i], x[i], first, last, chosen.burn_in, chosen.horizon, kept[i], by_a[i, k], by_x[i])

    spread(work, cut)
    return [by_parameters.sum(1).reshape(parameters.shape), a.new_empty(0), by_start.reshape(start.shape)]


splat_operator = Operator(
    "ifs_splat_numba",
    forward=_splat_forward,
    backward=_splat_backward,
    reference=splat_reference,
    fake=splat_fake,
    outputs=1,
)
chaos_operator = Operator(
    "ifs_chaos_numba",
    forward=_chaos_forward,
    backward=_chaos_backward,
    reference=chaos_reference,
    fake=chaos_fake,
    outputs=1,
)

"""What launches the Triton kernels: lays out the batch, allocates the results, names every argument."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from algonet.core.cache import cached
from algonet.core.launch import Launch

from ...operation import ChaosSettings, RasterSettings
from ...reference import FAR_GRADIENT, FAR_PARAMETER
from ..layout import chaos_game_saved as chaos_game_saved
from ..layout import flat
from .chaos_device import chaos_backward_kernel, chaos_forward_kernel
from .raster_device import FIXED_POINT, splat_backward_kernel, splat_forward_kernel

#: (points per program, rows and columns of a tile, warps): chosen by timing a million points at sigma 1 px on an H200.
TILES = {"forward": (32, 1, 16, 4), "backward": (128, 1, 1, 4)}
#: Chains per program of the chaos game.
CHAINS = 128


def smooth_raster_forward(tensors: Sequence[Tensor], settings: RasterSettings) -> tuple[list[Tensor], list[Tensor]]:
    points, sigma, weights, features = tensors
    p, s, w, f = flat(points, 2), flat(sigma, 0), flat(weights, 1), flat(features, 2)
    items, count, layers = p.shape[0], p.shape[1], 1 + f.shape[2]
    fixed = settings.deterministic
    kind = torch.int64 if fixed else p.dtype
    total = torch.zeros(items, layers, settings.height, settings.width, dtype=kind, device=p.device)
    flags = torch.zeros(items, dtype=p.dtype, device=p.device)
    launch = _splat_forward(settings, items, count, layers - 1, w.shape[1] > 0, p.dtype, p.device)
    launch.start(points=p, sigma=s, weights=w, features=f, out=total, flags=flags)
    if fixed:
        total = (total.double() / FIXED_POINT).to(p.dtype)
    total += flags[:, None, None, None]
    return [total.reshape(*points.shape[:-2], layers, settings.height, settings.width)], []


def smooth_raster_backward(
    grads: Sequence[Tensor],
    tensors: Sequence[Tensor],
    saved: Sequence[Tensor],
    settings: RasterSettings,
    needs: Sequence[bool],
) -> list[Tensor]:
    points, sigma, weights, features = tensors
    g, p, s, w, f = flat(grads[0], 3), flat(points, 2), flat(sigma, 0), flat(weights, 1), flat(features, 2)
    items, count, channels = p.shape[0], p.shape[1], f.shape[2]
    grad_points, grad_weights, grad_features = torch.zeros_like(p), torch.zeros_like(w), torch.zeros_like(f)
    grad_sigma = torch.zeros(items, count if needs[1] else 1, dtype=p.dtype, device=p.device)
    launch = _splat_backward(settings, items, count, channels, w.shape[1] > 0, needs[1], p.dtype, p.device)
    launch.start(
        grads=g, points=p, sigma=s, weights=w, features=f,
        grad_points=grad_points, grad_sigma=grad_sigma, grad_weights=grad_weights, grad_features=grad_features,
    )  # fmt: skip
    found = [grad_points, grad_sigma.sum(1), grad_weights, grad_features]
    return [o.reshape(t.shape) for o, t in zip(found, tensors, strict=True)]


@cached(most=256)
def _splat_forward(
    settings: RasterSettings,
    items: int,
    count: int,
    channels: int,
    weighted: bool,
    dtype: torch.dtype,
    device: torch.device,
) -> Launch:
    per_program, rows, columns, warps = TILES["forward"]
    programs = -(-count // per_program)
    return Launch(
        splat_forward_kernel, items * programs, warps=warps,
        count=count, height=settings.height, width=settings.width, reach=settings.reach, programs=programs,
        CHANNELS=channels, WEIGHTED=weighted, LOGS=settings.logs, FIXED=settings.deterministic,
        P=per_program, BY=rows, BX=columns,
    )  # fmt: skip


@cached(most=256)
def _splat_backward(
    settings: RasterSettings,
    items: int,
    count: int,
    channels: int,
    weighted: bool,
    by_sigma: bool,
    dtype: torch.dtype,
    device: torch.device,
) -> Launch:
    per_program, rows, columns, warps = TILES["backward"]
    programs = -(-count // per_program)
    return Launch(
        splat_backward_kernel, items * programs, warps=warps,
        count=count, height=settings.height, width=settings.width, reach=settings.reach, programs=programs,
        CHANNELS=channels, WEIGHTED=weighted, LOGS=settings.logs, SIGMA=by_sigma,
        P=per_program, BY=rows, BX=columns,
    )  # fmt: skip


def _steps_first(choices: Tensor) -> Tensor:
    """(items, chains, steps) -> (items, steps, chains), so that neighbouring chains read neighbouring memory."""
    return flat(choices, 2).to(torch.int32).mT.contiguous()


def chaos_game_forward(tensors: Sequence[Tensor], settings: ChaosSettings) -> tuple[list[Tensor], list[Tensor]]:
    parameters, choices, start = tensors
    burn_in = settings.burn_in
    a, c, x = flat(parameters, 2), _steps_first(choices), flat(start, 2)
    items, steps, chains = c.shape
    states = torch.empty(items, steps + 1, chains, 2, dtype=a.dtype, device=a.device)
    points = torch.empty(items, chains, steps - burn_in, 2, dtype=a.dtype, device=a.device)
    launch = _chaos_forward(items, a.shape[1], chains, steps, burn_in, a.dtype, a.device)
    launch.start(parameters=a, choices=c, start=x, states=states, points=points)
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
    g, a, c, x = flat(grads[0], 3), flat(parameters, 2), _steps_first(choices), flat(start, 2)
    items, steps, chains = c.shape
    launch, programs, slots = _chaos_backward(settings, items, a.shape[1], chains, steps, a.dtype, a.device)
    partial = torch.zeros(items, programs, slots, 6, dtype=a.dtype, device=a.device)
    grad_start = torch.zeros_like(x)
    launch.start(
        grads=g, parameters=a, choices=c, start=x, states=flat(saved[0], 3),
        grad_parameters=partial, grad_start=grad_start,
    )  # fmt: skip
    total = partial.sum(1)[:, : a.shape[1]].clamp(-FAR_GRADIENT, FAR_GRADIENT)
    total = torch.where(a.abs() > FAR_PARAMETER, 0.0, total)
    return [total.reshape(parameters.shape), None, grad_start.reshape(start.shape)]


@cached(most=256)
def _chaos_forward(
    items: int, functions: int, chains: int, steps: int, burn_in: int, dtype: torch.dtype, device: torch.device
) -> Launch:
    programs = -(-chains // CHAINS)
    return Launch(
        chaos_forward_kernel, items * programs,
        functions=functions, chains=chains, steps=steps, burn_in=burn_in, programs=programs, BLOCK=CHAINS,
    )  # fmt: skip


@cached(most=256)
def _chaos_backward(
    settings: ChaosSettings,
    items: int,
    functions: int,
    chains: int,
    steps: int,
    dtype: torch.dtype,
    device: torch.device,
) -> tuple[Launch, int, int]:
    """The launch, its programs per item, and the slots for functions that each has."""
    slots = 1 << max(functions - 1, 0).bit_length()
    # Many functions need many registers per chain: fewer chains per program then
    block = max(16, min(CHAINS, 1024 // slots))
    programs = -(-chains // block)
    launch = Launch(
        chaos_backward_kernel, items * programs,
        functions=functions, chains=chains, steps=steps, burn_in=settings.burn_in, horizon=settings.horizon,
        programs=programs, BLOCK=block, SLOTS=slots,
    )  # fmt: skip
    return launch, programs, slots

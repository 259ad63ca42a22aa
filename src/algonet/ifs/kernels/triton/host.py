"""What launches the Triton kernels: lays out the batch, allocates the results, names every argument."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from algonet.core.identity import Signature
from algonet.core.launch import Launch

from ...reference import FAR_GRADIENT, FAR_PARAMETER
from ..layout import ChaosPlan, RasterPlan, laid_out
from .chaos_device import chaos_backward_kernel, chaos_forward_kernel
from .raster_device import FIXED_POINT, splat_backward_kernel, splat_forward_kernel

#: (points per program, rows and columns of a tile, warps): chosen by timing a million points at sigma 1 px on an H200.
TILES = {"forward": (32, 1, 16, 4), "backward": (128, 1, 1, 4)}
#: Chains per program of the chaos game.
CHAINS = 128


class SmoothRasterPlan(RasterPlan):
    """The picture by one launch over points; its gradients by another."""

    def __init__(self, signature: Signature):
        super().__init__(signature)
        self.draw = self._launch(splat_forward_kernel, "forward", FIXED=self.settings.deterministic)
        #: Without and with a gradient by sigma
        self.pull = [self._launch(splat_backward_kernel, "backward", SIGMA=by_sigma) for by_sigma in (False, True)]

    def _launch(self, kernel: Any, direction: str, **constants: bool) -> Launch:
        per_program, rows, columns, warps = TILES[direction]
        programs, settings = -(-self.count // per_program), self.settings
        return Launch(
            kernel, self.items * programs, warps=warps,
            count=self.count, height=settings.height, width=settings.width, reach=settings.reach, programs=programs,
            CHANNELS=self.layers - 1, WEIGHTED=self.weighted, LOGS=settings.logs, **constants,
            P=per_program, BY=rows, BX=columns,
        )  # fmt: skip

    def forward(self, tensors: Sequence[Tensor]) -> tuple[list[Tensor], list[Tensor]]:
        points, sigma, weights, features = laid_out(tensors, self.shapes)
        settings, fixed = self.settings, self.settings.deterministic
        kind = torch.int64 if fixed else self.dtype
        total = torch.zeros(self.items, self.layers, settings.height, settings.width, dtype=kind, device=self.device)
        flags = torch.zeros(self.items, dtype=self.dtype, device=self.device)
        self.draw.start(points=points, sigma=sigma, weights=weights, features=features, out=total, flags=flags)
        if fixed:
            total = (total.double() / FIXED_POINT).to(self.dtype)
        total += flags[:, None, None, None]
        return [total.reshape(self.shape)], []

    def backward(
        self, grads: Sequence[Tensor], tensors: Sequence[Tensor], saved: Sequence[Tensor], needs: Sequence[bool]
    ) -> list[Tensor | None]:
        g, p, s, w, f = laid_out((*grads, *tensors), (self.flat_shape, *self.shapes))
        grad_points, grad_weights, grad_features = torch.zeros_like(p), torch.zeros_like(w), torch.zeros_like(f)
        grad_sigma = torch.zeros(self.items, self.count if needs[1] else 1, dtype=self.dtype, device=self.device)
        self.pull[needs[1]].start(
            grads=g, points=p, sigma=s, weights=w, features=f,
            grad_points=grad_points, grad_sigma=grad_sigma, grad_weights=grad_weights, grad_features=grad_features,
        )  # fmt: skip
        found = [grad_points, grad_sigma.sum(1), grad_weights, grad_features]
        return [o.reshape(t.shape) for o, t in zip(found, tensors, strict=True)]


def _steps_first(choices: Tensor) -> Tensor:
    """(items, chains, steps) -> (items, steps, chains), so that neighbouring chains read neighbouring memory."""
    return choices.to(torch.int32).mT.contiguous()


class ChaosGamePlan(ChaosPlan):
    """The points of all chains, and back along the states that were saved."""

    def __init__(self, signature: Signature):
        super().__init__(signature)
        settings = self.settings
        sizes = {"functions": self.functions, "chains": self.chains, "steps": self.steps, "burn_in": settings.burn_in}
        programs = -(-self.chains // CHAINS)
        self.draw = Launch(chaos_forward_kernel, self.items * programs, **sizes, programs=programs, BLOCK=CHAINS)
        #: Room for functions that each program has
        self.slots = 1 << max(self.functions - 1, 0).bit_length()
        # Many functions need many registers per chain: fewer chains per program then
        block = max(16, min(CHAINS, 1024 // self.slots))
        self.programs = -(-self.chains // block)
        self.pull = Launch(
            chaos_backward_kernel, self.items * self.programs,
            **sizes, horizon=settings.horizon, programs=self.programs, BLOCK=block, SLOTS=self.slots,
        )  # fmt: skip

    def forward(self, tensors: Sequence[Tensor]) -> tuple[list[Tensor], list[Tensor]]:
        points, states = self.rooms()
        a, c, x = laid_out(tensors, self.shapes)
        self.draw.start(parameters=a, choices=_steps_first(c), start=x, states=states, points=points)
        return self.results(points, states)

    def backward(
        self, grads: Sequence[Tensor], tensors: Sequence[Tensor], saved: Sequence[Tensor], needs: Sequence[bool]
    ) -> list[Tensor | None]:
        parameters, _, start = tensors
        shapes = (self.items, *self.drawn), *self.shapes, (self.items, *self.states)
        g, a, c, x, states = laid_out((*grads, *tensors, *saved), shapes)
        partial = torch.zeros(self.items, self.programs, self.slots, 6, dtype=self.dtype, device=self.device)
        grad_start = torch.zeros_like(x)
        self.pull.start(
            grads=g, parameters=a, choices=_steps_first(c), start=x, states=states,
            grad_parameters=partial, grad_start=grad_start,
        )  # fmt: skip
        total = partial.sum(1)[:, : self.functions].clamp(-FAR_GRADIENT, FAR_GRADIENT)
        total = torch.where(a.abs() > FAR_PARAMETER, 0.0, total)
        return [total.reshape(parameters.shape), None, grad_start.reshape(start.shape)]

"""One call of the raster and of the chaos game, and which implementation takes it."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from algonet.core import backends

from . import reference
from .kernels.settings import ChaosSettings, SplatSettings


@dataclass(frozen=True, eq=False)
class SplatCall:
    """One call of the raster: points and sigma in pixels, weights (*batch, 0) for none, features with C = 0 for none."""

    points: Tensor
    sigma: Tensor
    weights: Tensor
    features: Tensor
    settings: SplatSettings

    @property
    def tensors(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        return self.points, self.sigma, self.weights, self.features


@dataclass(frozen=True, eq=False)
class ChaosCall:
    """One call of the chaos game, all tensors with the same leading batch dimensions."""

    parameters: Tensor
    choices: Tensor
    start: Tensor
    settings: ChaosSettings


def _numba_dtype(tensor: Tensor) -> str | None:
    known = tensor.dtype in (torch.float32, torch.float64)
    return None if known else f"kernels take float32 and float64, got {tensor.dtype}"


def _numba_supports(call: SplatCall) -> str | None:
    return backends.why_not_numba(*call.tensors) or _numba_dtype(call.points)


def _triton_supports(call: SplatCall) -> str | None:
    return backends.why_not_triton(*call.tensors) or _numba_dtype(call.points)


def _chaos_dimension(call: ChaosCall) -> str | None:
    return None if call.start.shape[-1] == 2 else "the kernels step points in the plane; 3-D systems use the reference"


def _chaos_numba_supports(call: ChaosCall) -> str | None:
    tensors = call.parameters, call.choices, call.start
    return backends.why_not_numba(*tensors) or _numba_dtype(call.parameters) or _chaos_dimension(call)


def _chaos_triton_supports(call: ChaosCall) -> str | None:
    tensors = call.parameters, call.choices, call.start
    return backends.why_not_triton(*tensors) or _numba_dtype(call.parameters) or _chaos_dimension(call)


@backends.register("smooth_raster", "reference")
def _splat_reference(call: SplatCall) -> Tensor:
    return reference.splat(*call.tensors, (call.settings.height, call.settings.width), call.settings.logs)


@backends.register("smooth_raster", "numba", supports=_numba_supports)
def _splat_numba(call: SplatCall) -> Tensor:
    from .kernels.numba_ops import splat_operator

    return splat_operator(call.tensors, call.settings.encode())[0]


@backends.register("smooth_raster", "triton", supports=_triton_supports)
def _splat_triton(call: SplatCall) -> Tensor:
    from .kernels.triton_gpu import splat_operator

    return splat_operator(call.tensors, call.settings.encode())[0]


@backends.register("chaos_game", "reference")
def _chaos_reference(call: ChaosCall) -> Tensor:
    return reference.chaos(call.parameters, call.choices, call.start, call.settings.burn_in, call.settings.horizon)


@backends.register("chaos_game", "numba", supports=_chaos_numba_supports)
def _chaos_numba(call: ChaosCall) -> Tensor:
    from .kernels.numba_ops import chaos_operator

    return chaos_operator([call.parameters, call.choices, call.start], call.settings.encode())[0]


@backends.register("chaos_game", "triton", supports=_chaos_triton_supports)
def _chaos_triton(call: ChaosCall) -> Tensor:
    from .kernels.triton_chaos import chaos_operator

    return chaos_operator([call.parameters, call.choices, call.start], call.settings.encode())[0]


@backends.register_example("smooth_raster")
def _splat_example(device: str) -> SplatCall:
    points = torch.rand(1, 64, 2, device=device) * 16
    none, sigma = points.new_empty(1, 0), points.new_ones(1)
    return SplatCall(points, sigma, none, points.new_empty(1, 64, 0), SplatSettings(16, 16, True, 1e-4))


@backends.register_example("chaos_game")
def _chaos_example(device: str) -> ChaosCall:
    parameters = torch.full((1, 3, 6), -0.5, device=device)
    choices = torch.zeros(1, 8, 4, dtype=torch.int64, device=device)
    return ChaosCall(parameters, choices, parameters.new_zeros(1, 8, 2), ChaosSettings(0, 0))

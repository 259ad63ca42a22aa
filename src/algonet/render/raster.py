"""The rasteriser behind one door: a `RasterCall` goes to the backend that takes it."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from algonet.core import backends
from algonet.core.autograd import Operator
from algonet.relax import BoundedSum, Probabilistic

from . import reference
from .settings import Raster, RasterCall, RasterSettings, decode, result_shapes

__all__ = ["rasterise", "reference_of", "result_shapes", "why_no_kernel"]

OPERATION = "render_attributes"
#: Positions in `RasterCall.tensors` of those without batch dimensions.
SHARED = frozenset({4, 5})


def rasterise(call: RasterCall, backend: str = "auto") -> Raster:
    """Run the call on the backend that `backend` names, or on the fastest that takes it."""
    return backends.dispatch(OPERATION, backend, call)


def reference_of(tensors: list[Tensor], settings: str) -> Raster:
    """The reference as an `Operator` wants it."""
    return reference.rasterise(tensors, decode(settings))


def _operator(kernels: str, **options: Any) -> Operator:
    """The operator of a kernel module: its `forward`, `backward` and `fake`, with the reference behind them.

    Defined at import, so that `torch.compile` finds it; the module itself is imported by the first call.
    """

    def late(name: str) -> Callable:
        found: list[Callable] = []

        def call(*arguments: Any) -> Any:
            if not found:
                found.append(getattr(importlib.import_module(f"algonet.render.kernels.{kernels}"), name))
            return found[0](*arguments)

        return call

    return Operator(
        f"render_{kernels}",
        forward=late("forward"),
        backward=late("backward"),
        reference=reference_of,
        fake=late("fake"),
        outputs=3,
        shared=SHARED,
        **options,
    )


_NUMBA, _TRITON = _operator("numba_cpu"), _operator("triton_gpu", partial=True)


@backends.register(OPERATION, "reference")
def _run_reference(call: RasterCall) -> Raster:
    return reference.rasterise(call.tensors, call.settings)


def why_no_kernel(call: RasterCall) -> str | None:
    """What no kernel takes: conorms that are not a streamed sum, and precisions other than float32 and float64."""
    conorm = call.settings.conorm
    if not isinstance(conorm, (BoundedSum, Probabilistic)):
        return f"kernels stream BoundedSum and Probabilistic silhouettes, not {type(conorm).__name__}"
    if isinstance(conorm, BoundedSum) and conorm.k > 64:
        return f"kernels bound the sum smoothly with k up to 64, got {conorm.k}"
    if call.points.dtype not in (torch.float32, torch.float64):
        return f"kernels compute in float32 and float64, got {call.points.dtype}"
    return None


def _why_not_numba(call: RasterCall) -> str | None:
    return backends.why_not_numba(*call.tensors) or why_no_kernel(call)


def _why_not_triton(call: RasterCall) -> str | None:
    return backends.why_not_triton(*call.tensors) or why_no_kernel(call)


@backends.register(OPERATION, "numba", supports=_why_not_numba)
def _run_numba(call: RasterCall) -> Raster:
    return Raster(*_NUMBA(reference.seen(call.tensors), call.settings.encode()))


def _encoded(settings: RasterSettings) -> str:
    return settings.encode() if torch.compiler.is_compiling() else _kept_text(settings)


#: Calls that come again and again bring the same settings object.
_kept_text = functools.lru_cache(maxsize=256)(RasterSettings.encode)


@backends.register(OPERATION, "triton", supports=_why_not_triton)
def _run_triton(call: RasterCall) -> Raster:
    return Raster(*_TRITON(call.tensors, _encoded(call.settings)))


@backends.register_example(OPERATION)
def _example(device: str) -> RasterCall:
    points = torch.tensor([[1.0, 1.0, 1.0], [1.0, 7.0, 1.0], [7.0, 1.0, 1.0]])
    faces = torch.tensor([[0, 1, 2]], device=device)
    return RasterCall(
        points=points.to(device),
        attributes=torch.ones(3, 3, device=device),
        background=torch.zeros(4, device=device),
        softness=torch.tensor([1.0, 1.0, 0.1], device=device),
        faces=faces,
        attribute_faces=faces,
        settings=RasterSettings(8, 8),
    )

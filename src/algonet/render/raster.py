"""The rasteriser behind one door: a `RasterCall` goes to the backend that takes it."""

from __future__ import annotations

import functools
import importlib
import importlib.util

import torch
from torch import Tensor

from algonet import backends
from algonet.operators import Operator
from algonet.relax import BoundedSum, Probabilistic

from . import reference
from .settings import Raster, RasterCall, RasterSettings, decode

OPERATION = "render_attributes"
#: Positions in `RasterCall.tensors` of those without batch dimensions.
SHARED = frozenset({4, 5})


def rasterise(call: RasterCall, backend: str = "auto") -> Raster:
    """Run the call on the backend that `backend` names, or on the fastest that takes it."""
    return backends.dispatch(OPERATION, backend, call)


def reference_of(tensors: list[Tensor], settings: str) -> Raster:
    """The reference as an `Operator` wants it."""
    return reference.rasterise(tensors, decode(settings))


def result_shapes(tensors: list[Tensor], settings: RasterSettings) -> list[Tensor]:
    """Empty tensors with the shapes of image, silhouette and depth."""
    points, attributes = tensors[:2]
    shape = (*points.shape[:-2], settings.height, settings.width)
    return [points.new_empty(*shape, attributes.shape[-1]), points.new_empty(shape), points.new_empty(shape)]


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
    reason = backends.why_not_triton(*call.tensors) or why_no_kernel(call)
    if reason is None and importlib.util.find_spec("algonet.render.kernels.triton_gpu") is None:
        return "this version has no Triton kernel for it"
    return reason


@backends.register(OPERATION, "numba", supports=_why_not_numba)
def _run_numba(call: RasterCall) -> Raster:
    return Raster(*_operator("numba_cpu")(call.tensors, call.settings.encode()))


@backends.register(OPERATION, "triton", supports=_why_not_triton)
def _run_triton(call: RasterCall) -> Raster:
    return Raster(*_operator("triton_gpu")(call.tensors, call.settings.encode()))


@functools.cache
def _operator(kernels: str) -> Operator:
    """The operator of a kernel module: its `forward`, `backward` and `fake`, with the reference behind them."""
    module = importlib.import_module(f"algonet.render.kernels.{kernels}")
    return Operator(
        f"render_{kernels}",
        forward=module.forward,
        backward=module.backward,
        reference=reference_of,
        fake=module.fake,
        outputs=3,
        shared=SHARED,
    )


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

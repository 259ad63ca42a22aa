"""The operation of this domain: all that a backend is told of a smooth run, and which one takes it.

Tensors are (steepness, weight, bias, inputs...). A single output has the shape of the batch, several are stacked behind it; if
`watched`, the diagnostics (*batch, 3) come second.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from algonet.core import tracing
from algonet.core.identity import Spec, up_to_date
from algonet.core.operation import Operation
from algonet.relax import Relaxation, Sech

from .reference import WhileSettings, run_reference

#: Programs beyond these take the reference: Python itself nests at most 20 loops, and compile times grow with size.
MAX_KERNEL_DEPTH = 12
MAX_KERNEL_OPS = 300

#: Positions of the tensors that all elements share, and of the first that they do not.
STEEPNESS, WEIGHT, BIAS, FIRST = 0, 1, 2, 3


def batch_shape(tensors: Sequence[Tensor] | Sequence[Spec]) -> torch.Size:
    return tensors[FIRST].shape if len(tensors) > FIRST else torch.Size()


def _fake(tensors: Sequence[Tensor], settings: WhileSettings) -> list[Tensor]:
    like = tensors[STEEPNESS]
    batch = batch_shape(tensors)
    values = like.new_empty(settings.output_shape(batch))
    return [values, like.new_empty((*batch, 3))] if settings.watched else [values]


def _refuse(tensors: Sequence[Tensor], settings: WhileSettings) -> str | None:
    exit = settings.exit
    # A tracer cannot follow formulas that format numbers; that the class states one is enough there
    if type(exit).scalar is Relaxation.scalar or (not tracing.compiling() and exit.scalar is None):
        return f"{type(exit).__name__} has no formula for kernels"
    if not up_to_date(type(exit), "scalar", "_value", "_argument", "__call__"):
        return f"{type(exit).__name__} changes its value but not `scalar`, the formula that kernels inline"
    code = settings.code
    if code.depth > MAX_KERNEL_DEPTH:
        return f"its loops nest {code.depth} levels deep and kernels take {MAX_KERNEL_DEPTH}"
    if len(code.ops) > MAX_KERNEL_OPS:
        return f"it has {len(code.ops)} operations and kernels take {MAX_KERNEL_OPS}"
    return None


def _example(device: str) -> tuple[list[Tensor], WhileSettings]:
    tensors = [torch.zeros(shape, device=device) for shape in ((), (), (), (2,))]
    settings = WhileSettings("x0 x1:w1 a0,1 a1,-1 e1", Sech(), (1,), (0,), 1e-6, 1000, False, False)
    return tensors, settings


RUN_WHILE = Operation(
    "run_while",
    settings=WhileSettings,
    inputs=("steepness", "weight", "bias", "*elements"),
    reference=run_reference,
    kernels={"numba": ".kernels.numba", "triton": ".kernels.triton"},
    outputs=lambda count, settings: 1 + settings.watched,
    shared={"steepness", "weight", "bias"},
    fake=_fake,
    refuse=_refuse,
    example=_example,
)

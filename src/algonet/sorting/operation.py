"""The operations of this domain that stand on no network: memberships by threshold, and soft counts over all pairs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from algonet.core.identity import interned, up_to_date
from algonet.core.operation import Operation
from algonet.relax import Logistic, Sigmoid

from .pairwise import pairwise_reference
from .threshold import threshold_reference


@dataclass(frozen=True)
class ThresholdSettings:
    """The sigmoid (interned), and whether there is a mask."""

    sigmoid: Sigmoid
    masked: bool


@dataclass(frozen=True)
class PairwiseSettings:
    """The sigmoid (interned); whether pairs are chosen by the order of the weights; whether weights may get a gradient."""

    sigmoid: Sigmoid
    ordered: bool = False
    differentiable_weights: bool = False


def refuse_formula(tensors: Sequence[Tensor], settings: ThresholdSettings | PairwiseSettings) -> str | None:
    kind = type(settings.sigmoid)
    if settings.sigmoid.scalar is None or not up_to_date(kind, "scalar", "_value"):
        return f"the sigmoid {kind.__name__} has no formula for kernels"
    return None


def _threshold_example(device: str) -> tuple[list[Tensor], ThresholdSettings]:
    x = torch.zeros(4, 8, device=device)
    mask, k = torch.empty(0, dtype=torch.bool, device=device), torch.ones(4, dtype=torch.float64, device=device)
    return [x, mask, x.new_ones(()), k], ThresholdSettings(interned(Logistic()), False)


#: x (*batch, n), mask (*batch, n) or empty, steepness (), k (*batch,) in float64 give the memberships p (*batch, n) with
#: p_i = r(steepness (x_i - b)), b such that they sum to k.
THRESHOLD: Operation[ThresholdSettings] = Operation(
    "soft_topk_mask",
    settings=ThresholdSettings,
    inputs=("x", "mask", "steepness", "k"),
    reference=threshold_reference,
    kernels={"numba": ".kernels.numba.threshold", "triton": ".kernels.triton.threshold"},
    shared={"steepness"},
    fake=lambda tensors, settings: [torch.empty_like(tensors[0], memory_format=torch.contiguous_format)],
    refuse=refuse_formula,
    example=_threshold_example,
)


def _pairwise_example(device: str) -> tuple[list[Tensor], PairwiseSettings]:
    x = torch.zeros(4, 8, device=device)
    return [x, torch.ones_like(x), x.new_ones(())], PairwiseSettings(interned(Logistic()))


#: x (*batch, n), weights (*batch, n), steepness () give counts (*batch, n): count_i = sum over j != i of
#: v_ij r(steepness (x_i - x_j)), v_ij = weights_j, or with `ordered` 1 where weights_i > weights_j and 0 elsewhere.
PAIRWISE: Operation[PairwiseSettings] = Operation(
    "soft_pairwise_count",
    settings=PairwiseSettings,
    inputs=("x", "weights", "steepness"),
    reference=pairwise_reference,
    kernels={"numba": ".kernels.numba.pairwise", "triton": ".kernels.triton.pairwise"},
    shared={"steepness"},
    fake=lambda tensors, settings: [torch.empty_like(tensors[0], memory_format=torch.contiguous_format)],
    refuse=refuse_formula,
    example=_pairwise_example,
)

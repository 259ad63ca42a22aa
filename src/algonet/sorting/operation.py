"""The operations of this domain: sorting by a network, its transpose, memberships by threshold, soft counts."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from algonet.core.identity import interned, up_to_date
from algonet.core.operation import KernelModule, Operation
from algonet.relax import Logistic

from .counts import CountSettings, LaplaceSettings, counts_reference, inverse_reference, laplace_reference
from .networks import Bitonic, OddEven
from .reference import (
    SortSettings,
    ThresholdSettings,
    empty_like,
    sort_reference,
    sort_settings,
    threshold_reference,
    transposed_reference,
)


def refuse_formula(tensors: Sequence[Tensor], settings: SortSettings | ThresholdSettings | CountSettings) -> str | None:
    """Why kernels cannot take the sigmoid: it has no formula for them, or inherits one of a value that it has changed."""
    kind = type(settings.sigmoid)
    if settings.sigmoid.scalar is None or not up_to_date(kind, "scalar", "_value", "__call__"):
        return f"the sigmoid {kind.__name__} has no formula for kernels"
    return None


def _refuse_on_gpu(tensors: Sequence[Tensor], settings: SortSettings) -> str | None:
    network, items = settings.network, tensors[0].shape[-1]
    if type(network) is Bitonic:
        return None
    if type(network) is not OddEven:
        return f"there is no Triton kernel for the network {network!r}; OddEven() and Bitonic() have one"
    if items > 4096:
        return f"OddEven() runs on up to 4096 items per row there, and x has {items}; Bitonic() on any number"
    return None


def _sort_example(device: str) -> tuple[list[Tensor], SortSettings]:
    x = torch.zeros(4, 8, device=device)
    lengths = torch.zeros(4, dtype=torch.int32, device=device)
    return [x, lengths, x.new_ones(()), x.unsqueeze(-1)], sort_settings(OddEven(), Logistic())


_OF_NETWORKS = {"numba": ".kernels.numba.host", "triton": KernelModule(".kernels.triton.host", refuse=_refuse_on_gpu)}
#: x (*batch, n), lengths (*batch,) (read if masked), steepness () and perhaps a payload (*batch, n, c) give the sorted values
#: (*batch, n) and, where there is one, the payload in the same order.
SORT: Operation[SortSettings] = Operation(
    "soft_sort",
    settings=SortSettings,
    inputs=("x", "lengths", "steepness", "payload"),
    reference=sort_reference,
    kernels=_OF_NETWORKS,
    outputs=lambda tensors, settings: tensors - 2,
    shared={"steepness"},
    fake=lambda tensors, settings: [empty_like(tensors[0]), *map(empty_like, tensors[3:])],
    refuse=refuse_formula,
    example=_sort_example,
)
#: The same and v (*batch, n, c) in sorted order give P^T v. With <g, P^T v> = <P g, v>, its kernels are those of sorting with
#: their roles exchanged.
TRANSPOSED: Operation[SortSettings] = Operation(
    "soft_sort_transposed",
    settings=SortSettings,
    inputs=("x", "lengths", "steepness", "v"),
    reference=transposed_reference,
    kernels=_OF_NETWORKS,
    shared={"steepness"},
    fake=lambda tensors, settings: [empty_like(tensors[3])],
    refuse=refuse_formula,
    example=_sort_example,
)


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
    kernels={"numba": ".kernels.numba.rows", "triton": ".kernels.triton.threshold"},
    shared={"steepness"},
    fake=lambda tensors, settings: [empty_like(tensors[0])],
    refuse=refuse_formula,
    example=_threshold_example,
)


def _laplace_example(device: str) -> tuple[list[Tensor], LaplaceSettings]:
    x = torch.zeros(4, 8, device=device)
    return [x, torch.ones_like(x), x.new_ones(())], LaplaceSettings()


#: x (*batch, n), weights (*batch, n), not negative and without a gradient, steepness () give counts (*batch, n):
#: count_i = sum over j != i of weights_j r(steepness (x_i - x_j)) for the Laplace sigmoid r, by sorting and a scan.
LAPLACE: Operation[LaplaceSettings] = Operation(
    "soft_laplace_count",
    settings=LaplaceSettings,
    inputs=("x", "weights", "steepness"),
    reference=laplace_reference,
    kernels={"numba": ".kernels.numba.rows"},
    shared={"steepness"},
    fake=lambda tensors, settings: [empty_like(tensors[0])],
    example=_laplace_example,
)


def _counts_example(device: str) -> tuple[list[Tensor], CountSettings]:
    x = torch.zeros(4, 8, dtype=torch.float64, device=device)
    return [x, x, x.unsqueeze(-1)], CountSettings(interned(Logistic()), True)


def _quantiles_example(device: str) -> tuple[list[Tensor], CountSettings]:
    (x, k, _), settings = _counts_example(device)
    return [x, torch.ones_like(x), k], settings


#: y (*batch, m), x (*batch, n), w (*batch, n, c), all in float64 and units of the sigmoid, give S_c(y) = sum_j w_jc r(y - x_j),
#: (*batch, m, c). Points y may be infinite, items x not.
COUNTS: Operation[CountSettings] = Operation(
    "soft_counts",
    settings=CountSettings,
    inputs=("y", "x", "w"),
    reference=counts_reference,
    kernels={"numba": ".kernels.numba.rows", "triton": ".kernels.triton.counts"},
    fake=lambda tensors, settings: [tensors[0].new_empty(*tensors[0].shape, tensors[2].shape[-1])],
    refuse=refuse_formula,
    example=_counts_example,
)
#: x (*batch, n), weights w (*batch, n), which get no gradient, and k (*batch, m) give y (*batch, m) with
#: sum_j w_j r(y - x_j) = k; infinite where k is not between 0 and the sum of the weights. Items of weight 0 may be anything.
QUANTILES: Operation[CountSettings] = Operation(
    "soft_quantiles",
    settings=CountSettings,
    inputs=("x", "w", "k"),
    reference=inverse_reference,
    kernels={"numba": ".kernels.numba.rows", "triton": ".kernels.triton.counts"},
    fake=lambda tensors, settings: [empty_like(tensors[2])],
    refuse=refuse_formula,
    example=_quantiles_example,
)

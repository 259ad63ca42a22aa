"""Everything that every operation owes its user, for each operation of this domain."""

import pytest
import torch

from algonet.relax import Cauchy, Logistic, SmoothStep
from algonet.sorting import (
    Bitonic,
    OddEven,
    expected_swaps,
    soft_argsort,
    soft_median,
    soft_quantile,
    soft_rank,
    soft_sort,
    soft_topk,
)
from helpers.contract import CHECKS, Case, normal

SOFT = Logistic(2.0)
FAR = torch.tensor([[3e38, -3e38, 0.0, 1.0, -3e38], [0.0, 0.0, 0.0, 0.0, 0.0], [1e-40, -1e30, 1e30, 1e-40, 5.0]])


def sort_values(x, backend="auto"):
    return soft_sort(x, relax=SOFT, backend=backend).values


def sort_bitonic(x, backend="auto"):
    return soft_sort(x, relax=Cauchy(3.0), method=Bitonic(), descending=True, backend=backend).values


def sort_payload(x, payload, backend="auto"):
    result = soft_sort(x, relax=SOFT, method=Bitonic(), payload=payload, backend=backend)
    return result.values, result.payload


def sort_masked(x, payload, backend="auto"):
    mask = torch.tensor([True, False, True, True, True, False])
    result = soft_sort(x, relax=SOFT, payload=payload, mask=mask, backend=backend)
    # What is absent comes back behind the four present items as it went in, and without a gradient on purpose
    return result.values[..., :4], result.payload[..., :4, :]


def sort_permutation(x, backend="auto"):
    return soft_sort(x, relax=SOFT, return_permutation=True, backend=backend).permutation


def sort_steepness(x, steepness, backend="auto"):
    relax = Logistic(1 + steepness.mean() ** 2)
    return soft_sort(x, relax=relax, method=Bitonic(), payload=x, steps=3, backend=backend).payload


def topk(x, backend="auto"):
    result = soft_topk(x, 2, relax=SOFT, return_permutation=True, backend=backend)
    return result.values, result.indices.to(x), result.permutation


#: Positions and counts come in float32 at least, whatever x is: the cases below bring them back to x's precision.
KERNELS = ("numba",)
CASES = [
    Case("odd_even", sort_values, normal(5), kernels=KERNELS, extremes=[(FAR,)]),
    Case("bitonic", sort_bitonic, normal(5), kernels=KERNELS, extremes=[(FAR,)]),
    Case("payload", sort_payload, lambda b, t, g: (*normal(5)(b, t, g), *normal(5, 2)(b, t, g)), kernels=KERNELS),
    Case("mask", sort_masked, lambda b, t, g: (*normal(6)(b, t, g), *normal(6, 1)(b, t, g)), kernels=KERNELS),
    Case("permutation", sort_permutation, normal(4), kernels=KERNELS, extremes=[(FAR,)]),
    # The steepness is one number for all rows: under vmap it would differ between items, and none is NaN's own
    Case("steepness", sort_steepness, normal(5, count=2), kernels=KERNELS, vmap=False, batched=(True, False)),
    Case(
        "argsort",
        lambda x, backend="auto": soft_argsort(x, relax=SOFT, backend=backend).to(x),
        normal(5),
        kernels=KERNELS,
    ),
    Case("rank", lambda x, backend="auto": soft_rank(x, relax=SOFT, backend=backend).to(x), normal(5), kernels=KERNELS),
    Case("topk", topk, normal(5), kernels=KERNELS),
    Case(
        "quantile",
        lambda x, backend="auto": soft_quantile(x, [0.2, 0.5], relax=SOFT, backend=backend),
        normal(5),
        kernels=KERNELS,
    ),
    Case("median", lambda x, backend="auto": soft_median(x, relax=SOFT, backend=backend), normal(6), kernels=KERNELS),
    Case(
        "fast median", lambda x: soft_median(x, method="fast", degree=2, relax=SOFT), normal(6), extremes=[(FAR / 10,)]
    ),
    # Plain torch over a cached table: Dynamo warns of the cache and traces around it, which here counts as an error
    Case("swaps", lambda x: expected_swaps(x, relax=SOFT).to(x), normal(4), compile=False),
    Case(
        "compact",
        lambda x, backend="auto": soft_sort(x, relax=SmoothStep(2, steepness=0.7), backend=backend).values,
        normal(4),
        kernels=KERNELS,
    ),
]


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_contract(case, check):
    check(case)


def test_kernels_are_deterministic():
    x, payload = torch.randn(200, 33), torch.randn(200, 33, 2)
    first, second = (soft_sort(x, payload=payload, method=OddEven(), backend="numba") for _ in range(2))
    assert torch.equal(first.values, second.values)
    assert torch.equal(first.payload, second.payload)

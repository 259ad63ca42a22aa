"""The contract of every relaxation and of the weighted softmax family."""

from __future__ import annotations

import pytest
import torch

from algonet import relax
from algonet.relax import BoundedSum, Hamacher, SmoothStep, SmoothTent, StudentT
from helpers.contract import CHECKS, Case, normal, uniform

FAR = tuple((torch.tensor([[v, -v, v / 3]]),) for v in (0.0, 1e-30, 1e-3, 1.0, 30.0, 1e4, 1e19, 3e38))
SIGMOIDS = [S() for S in relax.SIGMOIDS] + [SmoothStep(k) for k in (0, 2, 5)]
EXITS = [E() for E in relax.EXITS] + [SmoothTent(k) for k in (0, 2, 5)]
CONORMS = [C() for C in relax.CONORMS] + [BoundedSum(2), Hamacher(0), Hamacher(3.0)]


def _checked(relaxation) -> int:
    # Derivatives are compared with finite differences at random points, where a C^0 curve has its first, and so on
    return 0 if relaxation.smoothness < 0 else 2


def _probability_cases():
    corners = tuple(
        (torch.tensor([row]),) for row in ([0.0, 0.0, 0.0], [1.0, 0.0, 0.3], [1.0, 1.0, 1.0], [1e-30, 0.5, 1 - 6e-8])
    )
    for conorm in CONORMS:
        yield Case(
            f"conorm-{conorm.key}",
            conorm.reduce,
            uniform(4, low=0.05, high=0.9),
            smoothness=_checked(conorm),
            extremes=corners,
            nan_stays=True,
        )


def _softmax_cases():
    extremes = [
        (torch.tensor([[3e38, -3e38, 0.0]]), torch.tensor([[1.0, 1.0, 1.0]])),
        (torch.tensor([[5.0, 1.0, 2.0]]), torch.tensor([[0.0, 0.0, 0.0]])),
        (torch.tensor([[5.0, 1.0, 2.0]]), torch.tensor([[0.0, 1e-38, 1.0]])),
        (torch.tensor([[1e30, 1e30, 1e30]]), torch.tensor([[1.0, 0.0, 1.0]])),
    ]

    def inputs(batch, dtype, generator):
        (x,), (w,) = normal(4)(batch, dtype, generator), uniform(4, low=0.2)(batch, dtype, generator)
        return x, w

    yield Case("weighted_softmax", relax.weighted_softmax, inputs, extremes=extremes)
    yield Case("weighted_softmin", relax.weighted_softmin, inputs, extremes=extremes)
    for function in (relax.soft_max, relax.soft_min, relax.soft_argmax, relax.soft_argmin):
        yield Case(
            function.__name__,
            # Positions come in float32 at least, whatever x is
            lambda x, w, function=function: function(x, weights=w, steepness=2.0).to(x),
            inputs,
            extremes=extremes,
        )


CASES = [
    *(Case(f"sigmoid-{s.key}", s, normal(4), smoothness=_checked(s), extremes=FAR) for s in SIGMOIDS),
    *(
        Case(
            f"log-{s.key}",
            s.log,
            normal(4, scale=0.2),
            smoothness=_checked(s),
            extremes=FAR,
            # log 0 stops at the log of each precision's smallest number, so precisions differ there by design
            dtypes=(torch.float64,) if s.key == "Heaviside" else Case.dtypes,
        )
        for s in SIGMOIDS
    ),
    *(Case(f"exit-{e.key}", e, normal(4), smoothness=_checked(e), extremes=FAR) for e in EXITS),
    *(
        Case(f"tail-{n.key}", n.tail, uniform(4, low=0.1, high=4.0), extremes=FAR)
        for n in (relax.GaussianNoise(1.3), StudentT(2, scale=0.7), StudentT(8))
    ),
    *_probability_cases(),
    *_softmax_cases(),
]


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_contract(case, check):
    check(case)

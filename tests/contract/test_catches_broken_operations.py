"""The contract must fail for operations that break it: each is broken in one way, and one check must notice."""

from __future__ import annotations

import pytest
import torch

from algonet.core.autograd import Operator, Plan
from helpers import contract
from helpers.contract import Case, normal


class _WrongSlope(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * x

    @staticmethod
    def backward(ctx, grad):
        return grad * 2


class _FirstOnly(torch.autograd.Function):
    """A right first derivative whose own derivative is silently lost: what several peers ship."""

    @staticmethod
    def forward(x):
        return x**3

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(inputs[0])

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return grad * 3 * x.detach() ** 2


def _kernel(scale: float):
    """tanh(x)/1000 with a kernel whose gradient is `scale` times the right one; it is tiny, so tolerances alone pass it."""

    class Tanh(Plan):
        def forward(self, tensors):
            return [tensors[0].tanh() * 1e-3], []

        def backward(self, grads, tensors, saved, needs):
            return [scale * 1e-3 * grads[0] * (1 - tensors[0].tanh() ** 2)]

    operator = Operator(
        f"broken_{int(scale * 100)}",
        load=lambda: Tanh,
        reference=lambda tensors, settings: [tensors[0].tanh() * 1e-3],
        fake=lambda tensors, settings: [torch.empty_like(tensors[0])],
        outputs=1,
    )
    return lambda x, backend="numba": operator([x], "")[0] if backend == "numba" else x.tanh() * 1e-3


def _mutating(x):
    with torch.no_grad():
        x.add_(1)
    return x * 2


def _graph_break(x):
    return x * 2 if float(x.detach().sum()) > 0 else x * 3


SMALL = normal(3)
BROKEN = {
    "zero gradient": (contract.check_parity, Case("", _kernel(0.0), SMALL, kernels=("numba",))),
    "gradient off by 2 percent": (contract.check_parity, Case("", _kernel(1.02), SMALL, kernels=("numba",))),
    "wrong value": (
        contract.check_parity,
        Case("", lambda x, backend="numba": x * (1 + 1e-3 * (backend == "numba")), SMALL, kernels=("numba",)),
    ),
    "wrong derivative": (contract.check_first_derivative, Case("", _WrongSlope.apply, SMALL)),
    "lost second derivative": (contract.check_second_derivative, Case("", _FirstOnly.apply, SMALL)),
    "dtype changes": (contract.check_dtypes, Case("", lambda x: x.float(), SMALL)),
    "half overflows": (contract.check_dtypes, Case("", lambda x: (x * 1e3).exp().log() / 1e3, SMALL)),
    "empty batch": (contract.check_empty_batch, Case("", lambda x: x - x.max(), SMALL)),
    "strides": (contract.check_non_contiguous, Case("", lambda x: x.as_strided(x.shape, (3, 1)), SMALL)),
    "in place": (contract.check_inputs_untouched, Case("", _mutating, SMALL)),
    "batch mates": (contract.check_batch_invariance, Case("", lambda x: x - x.mean(), SMALL)),
    "NaN spreads": (contract.check_nan_stays, Case("", lambda x: x - x.mean(), SMALL)),
    "NaN swallowed": (contract.check_nan_stays, Case("", lambda x: x.nan_to_num(), SMALL)),
    "NaN gradient": (contract.check_extremes, Case("", lambda x: x.abs().sqrt(), SMALL)),
    "infinite value": (contract.check_extremes, Case("", lambda x: x.exp(), SMALL)),
    "vmap": (contract.check_vmap, Case("", lambda x: x * x.dim(), SMALL)),
    "graph break": (contract.check_compile, Case("", _graph_break, SMALL)),
}


@pytest.mark.parametrize("name", BROKEN)
def test_broken_operation_is_caught(name):
    check, case = BROKEN[name]
    with pytest.raises((AssertionError, RuntimeError)):
        check(case)


@pytest.mark.parametrize("check", contract.CHECKS, ids=lambda check: check.__name__)
def test_sound_operation_passes(check):
    check(Case("sound", _kernel(1.0), SMALL, kernels=("numba",)))


@pytest.mark.parametrize("check", contract.CHECKS, ids=lambda check: check.__name__)
def test_every_check_is_tested_on_something_broken(check):
    assert check in [broken for broken, _ in BROKEN.values()]

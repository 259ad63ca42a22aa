"""Layers: state, learnable steepness, and errors at the boundary of every function."""

import subprocess
import sys

import pytest
import torch
from torch import nn

from algonet.relax import Heaviside, Logistic, Sech, hardened, softness_report
from algonet.sorting import (
    Bitonic,
    OddEven,
    SoftArgsort,
    SoftMedian,
    SoftQuantile,
    SoftRank,
    SoftSort,
    SoftTopK,
    expected_swaps,
    permutation_cross_entropy,
    soft_argsort,
    soft_median,
    soft_quantile,
    soft_rank,
    soft_sort,
    soft_topk,
)

X = torch.tensor([[0.3, -1.0, 2.0, 0.4], [1.0, 0.9, 0.8, -3.0]])


@pytest.mark.parametrize(
    ("module", "function"),
    [
        (SoftSort(Logistic(3.0), method=Bitonic()), lambda x: soft_sort(x, relax=Logistic(3.0), method=Bitonic())),
        (SoftArgsort(Logistic(3.0), descending=True), lambda x: soft_argsort(x, relax=Logistic(3.0), descending=True)),
        (SoftRank(Logistic(3.0), dim=0), lambda x: soft_rank(x, relax=Logistic(3.0), dim=0)),
        (SoftTopK(2, Logistic(3.0), largest=False), lambda x: soft_topk(x, 2, relax=Logistic(3.0), largest=False)),
        (SoftQuantile([0.5], Logistic(3.0)), lambda x: soft_quantile(x, [0.5], relax=Logistic(3.0))),
        (
            SoftMedian(Logistic(3.0), method="fast", degree=3),
            lambda x: soft_median(x, method="fast", degree=3, relax=Logistic(3.0)),
        ),
    ],
    ids=lambda m: type(m).__name__,
)  # fmt: skip
def test_module_is_its_function(module, function):
    found, expected = module(X), function(X)
    for a, b in zip(*((r,) if isinstance(r, torch.Tensor) else r for r in (found, expected)), strict=True):
        assert a is b is None or torch.equal(a, b)
    assert "steepness" in module.state_dict()
    assert "steepness=3" in repr(module)


def test_learnable_steepness():
    layer = SoftSort(Logistic(nn.Parameter(torch.tensor(2.0))))
    layer(X).values[:, 0].sum().backward()
    assert layer.steepness.grad.abs() > 0
    other = SoftSort(Logistic(7.0))
    other.load_state_dict(layer.state_dict())
    assert torch.equal(other(X).values, layer(X).values)


def test_hardening():
    layer = SoftSort(Logistic(1.0))
    with hardened(layer):
        assert isinstance(layer.relax, Heaviside)
        assert torch.equal(layer(X).values, X.sort().values)
    assert not torch.equal(layer(X).values, X.sort().values)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: soft_sort([1.0]), TypeError, "soft_sort: expected a tensor, got list"),
        (lambda: soft_sort(torch.arange(3)), TypeError, "floating tensor, got torch.int64; call .float"),
        (lambda: soft_sort(torch.tensor(1.0)), ValueError, "at least one dimension"),
        (lambda: soft_sort(X, dim=2), ValueError, r"`dim` 2 is out of range for x of shape \(2, 4\); use -2 to 1"),
        (lambda: soft_sort(X, dim=None), TypeError, "`dim` must be an integer"),
        (lambda: soft_sort(X, payload=X[:, :3]), ValueError, "x has 4 items along dim -1, payload has 3"),
        (lambda: soft_sort(X, payload=X[0]), ValueError, "must have the shape of x"),
        (lambda: soft_sort(X, payload=X.long()), TypeError, "`payload` must be a floating tensor"),
        (lambda: soft_sort(X, payload=3), TypeError, "`payload` must be a floating tensor .*got int"),
        (lambda: soft_sort(X, mask=X), TypeError, "boolean tensor, True where an item is present; got torch.float32"),
        (lambda: soft_sort(X, mask=torch.ones(3, dtype=torch.bool)), ValueError, r"or broadcast to it; got \(3,\)"),
        (lambda: soft_sort(X, relax=Sech(2.0)), TypeError, "`relax` must be a sigmoid"),
        (lambda: soft_sort(X, method="bitonic"), TypeError, r"`method` must be a method such as .*, got 'bitonic'"),
        (lambda: soft_sort(X, steps=-1), ValueError, "`steps` must be an integer from 0 on, got -1"),
        (lambda: soft_sort(X, steps=1.5), ValueError, "`steps` must be an integer from 0 on, got 1.5"),
        (lambda: soft_sort(X, backend="cuda"), ValueError, "unknown backend 'cuda'; choose one of auto, triton, numba"),
        (lambda: soft_rank(X, backend="cuda"), ValueError, "^soft_rank: unknown backend 'cuda'"),
        (lambda: soft_topk(X, 1, backend="cuda"), ValueError, "^soft_topk: unknown backend 'cuda'"),
        (lambda: soft_sort(X, relax=Logistic(torch.ones(2))), ValueError, "one number for all exchanges"),
        (lambda: soft_topk(X, 5), ValueError, "`k` must be an integer from 0 to 4, got 5"),
        (lambda: soft_topk(X, 1.0), ValueError, "`k` must be an integer from 0 to 4, got 1.0"),
        (lambda: soft_quantile(X, 1.5), ValueError, r"`q` must lie in \[0, 1\], got 1.5"),
        (lambda: soft_quantile(X, "median"), TypeError, "`q` must be a number"),
        (lambda: soft_quantile(X[:, :0], 0.5), ValueError, "no items along dim -1"),
        (lambda: soft_median(X[:, :0]), ValueError, "no items along dim -1"),
        (lambda: soft_median(X, method="quick"), ValueError, "unknown method 'quick'; choose one of .*'fast', 'paper'"),
        (lambda: soft_median(X, method="fast", degree=-1), ValueError, "`degree` must be an integer from 0 on"),
        (lambda: permutation_cross_entropy(X, torch.arange(2)), ValueError, r"must be \(\*batch, n, n\)"),
        (lambda: permutation_cross_entropy(torch.eye(3), torch.arange(2)), ValueError, "`target` must be"),
        (lambda: expected_swaps(X, dim=5), ValueError, "out of range"),
        (lambda: SoftSort(method=3), TypeError, "SoftSort: `method` must be"),
    ],
)  # fmt: skip
def test_errors_say_what_to_do(call, error, message):
    with pytest.raises(error, match=message):
        call()


def test_triton_says_why_not():
    with pytest.raises(ValueError, match="backend 'triton' cannot take this call"):
        soft_sort(X, backend="triton")


def test_networks_are_equal_by_kind():
    assert OddEven() == OddEven()
    assert OddEven() != Bitonic()


def test_import_is_light():
    code = "import sys, algonet.sorting; print([m for m in ('numba', 'triton', 'matplotlib') if m in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"


def test_the_report_says_where_a_method_moves_values_further_than_one_over_the_steepness():
    x = torch.randn(4, 1000, generator=torch.Generator().manual_seed(0))
    # 1,000 layers move values by 0.18, and 1 / steepness is 0.1
    blurred = softness_report(SoftSort(method=OddEven()), x)
    assert blurred.suggestion.startswith("mostly blurred: OddEven() moves values by 0.")
    assert "1 / steepness" not in softness_report(SoftSort(), x).suggestion
    assert "1 / steepness" not in softness_report(SoftRank(method=OddEven()), x[:, :100]).suggestion
    unit = softness_report(SoftMedian(Logistic(10.0).relative()), 1e3 * x)
    assert "1 / steepness" not in unit.suggestion

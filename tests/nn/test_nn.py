"""The forward AlgoNet: insertion styles and thin layers."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from algonet.nn import (
    FiniteDifferences,
    Insert,
    Residual,
    Shortcut,
    WeightedSoftmax,
    WeightedSoftmin,
    finite_differences,
)
from helpers.contract import CHECKS, Case, normal, uniform


def _weighted(batch, dtype, generator):
    (x,), (w,) = normal(4)(batch, dtype, generator), uniform(4, low=0.2)(batch, dtype, generator)
    return x, w


CASES = [
    *(
        Case(f"finite_differences-{pad}-{center}", FiniteDifferences((-2, -1), center, pad), normal(3, 4))
        for pad in (None, "zero", "edge", "wrap")
        for center in (False, True)
    ),
    Case("WeightedSoftmax", WeightedSoftmax(2.0), _weighted),
    Case("WeightedSoftmin", WeightedSoftmin(2.0), _weighted),
    Case("Insert", Insert(torch.tanh), normal(4)),
    Case("Shortcut", Shortcut(torch.tanh, 0.5), normal(4)),
    Case("Residual", Residual(torch.tanh, nn.Tanh(), 0.25, dim=-2), normal(4, 2)),
]


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_contract(case, check):
    check(case)


def test_differences_of_a_linear_ramp_are_its_slope():
    ramp = 2 * torch.arange(5.0)[:, None] + 3 * torch.arange(6.0)
    torch.testing.assert_close(finite_differences(ramp, 0), torch.full((4, 6), 2.0))
    torch.testing.assert_close(finite_differences(ramp, 1), torch.full((5, 5), 3.0))
    torch.testing.assert_close(finite_differences(ramp, (0, 1)), torch.zeros(4, 5))


@pytest.mark.parametrize("pad", ["zero", "edge", "wrap"])
def test_padding_keeps_the_size(pad):
    x = torch.randn(2, 5)
    y = finite_differences(x, pad=pad)
    assert y.shape == x.shape
    torch.testing.assert_close(y[:, :-1], finite_differences(x))


def test_padding_values():
    x = torch.tensor([1.0, 4.0, 9.0])
    assert finite_differences(x, pad="zero")[-1] == 0
    assert finite_differences(x, pad="edge")[-1] == 5
    assert finite_differences(x, pad="wrap").sum() == 0


def test_center_shifts_the_mean_to_zero():
    y = finite_differences(torch.randn(3, 6), center=True)
    torch.testing.assert_close(y.mean(-1), torch.zeros(3), atol=1e-6, rtol=0)


def test_shortcut_gives_the_algorithm_the_last_share():
    x = torch.arange(8.0).reshape(1, 8)
    y = Shortcut(torch.neg, share=0.25)(x)
    torch.testing.assert_close(y, torch.tensor([[0.0, 1, 2, 3, 4, 5, -6, -7]]))


def test_residual_trains_its_body_and_carries_it_in_the_state():
    layer = Residual(torch.tanh, nn.Linear(3, 3), share=0.25)
    layer(torch.randn(2, 4)).sum().backward()
    assert layer.body.weight.grad.abs().sum() > 0
    assert set(layer.state_dict()) == {"body.weight", "body.bias"}


def test_algorithm_module_is_a_submodule_and_tuples_give_their_first():
    assert len(list(Insert(nn.Linear(2, 2)).parameters())) == 2
    torch.testing.assert_close(Insert(torch.sort)(torch.tensor([2.0, 1.0])), torch.tensor([1.0, 2.0]))


def test_feature_dimension_of_images():
    x = torch.randn(2, 6, 5, 5)
    y = Shortcut(lambda part: part.flip(-1), share=0.5, dim=1)(x)
    torch.testing.assert_close(y[:, :3], x[:, :3])
    torch.testing.assert_close(y[:, 3:], x[:, 3:].flip(-1))


def test_state_dict_and_device_moves():
    layer = WeightedSoftmax(3.0).to(torch.float64)
    assert layer.state_dict()["steepness"] == 3.0
    assert layer(torch.randn(2, 3, dtype=torch.float64)).dtype == torch.float64


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Insert(3), r"Insert: `algorithm` must be a module or a function, got 3"),
        (lambda: Shortcut(torch.neg, 1.0), r"Shortcut: `share` must lie strictly between 0 and 1, got 1.0"),
        (lambda: Shortcut(torch.neg, 0.1)(torch.ones(2, 4)), r"a share of 0.1 of 4 features gives the algorithm 0"),
        (
            lambda: Shortcut(torch.neg, dim=5)(torch.ones(2, 4)),
            r"feature dim 5 is out of range for x of shape \(2, 4\)",
        ),
        (lambda: Shortcut(lambda x: x[:1])(torch.ones(2, 4)), r"result \(1, 2\) does not fit beside .* \(2, 2\)"),
        (lambda: Insert(lambda x: 3)(torch.ones(1)), r"the algorithm returned int, wanted a tensor"),
        (lambda: Residual(torch.neg, torch.neg), r"Residual: `body` must be a module"),
        (lambda: finite_differences(torch.ones(3), pad="same"), r"unknown pad 'same'; choose one of None, 'zero'"),
        (lambda: finite_differences(torch.ones(3, 1)), r"dim -1 needs at least 2 items to subtract, .* \(3, 1\)"),
        (lambda: finite_differences(torch.ones(3, 3), 4), r"dim 4 is out of range"),
        (lambda: finite_differences(torch.ones(3, 3), (1, -1)), r"names a dimension twice: \(1, -1\)"),
    ],
)
def test_errors_say_what_was_wanted(make, message):
    with pytest.raises((TypeError, ValueError), match=message):
        make()

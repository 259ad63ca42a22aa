"""Softness as state: saved, moved, annealed, learned, and reported on."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from algonet.nn import WeightedSoftmax
from algonet.relax import Anneal, Heaviside, Logistic, SoftModule, hardened, softness_report


class Above(SoftModule):
    """The share of a row above its first item: a decision per item."""

    def forward(self, x):
        return self.relax(x - x[..., :1])


def test_steepness_is_a_buffer_that_is_saved_and_moved():
    layer = Above(Logistic(3.0))
    other = Above(Logistic(1.0))
    other.load_state_dict(layer.state_dict())
    assert float(other.relax.steepness) == 3.0
    assert layer.to(torch.float64).relax.steepness.dtype == torch.float64
    assert "Logistic, steepness=3" in repr(layer)


def test_parameter_steepness_is_learned():
    layer = Above(Logistic(nn.Parameter(torch.tensor(1.0))))
    optimizer = torch.optim.SGD(layer.parameters(), lr=1.0)
    (-layer(torch.tensor([0.0, 1.0]))[1]).backward()
    optimizer.step()
    assert float(layer.steepness.detach()) > 1.0


def test_anneal_sets_every_soft_module_inside():
    model = nn.Sequential(Above(Logistic(1.0)), nn.Linear(3, 3), WeightedSoftmax(1.0))
    anneal = Anneal(1.0, 16.0, steps=4).attach(model)
    seen = []
    for _ in range(6):
        anneal.step()
        assert float(model[0].steepness) == float(model[2].steepness)
        seen.append(round(float(model[0].steepness), 4))
    assert seen == [2.0, 4.0, 8.0, 16.0, 16.0, 16.0]


@pytest.mark.parametrize(("curve", "middle"), [("linear", 8.5), ("geometric", 4.0), ("cosine", 8.5)])
def test_anneal_curves(curve, middle):
    anneal = Anneal(1.0, 16.0, steps=10, curve=curve)
    assert anneal.value(0) == pytest.approx(1.0)
    assert anneal.value(5) == pytest.approx(middle)
    assert anneal.value(10) == pytest.approx(16.0)


def test_anneal_resumes_from_its_state():
    layer = Above(Logistic(1.0))
    anneal = Anneal(1.0, 16.0, steps=4).attach(layer)
    anneal.step()
    fresh = Above(Logistic(1.0))
    resumed = Anneal(1.0, 16.0, steps=4).attach(fresh)
    resumed.load_state_dict(anneal.state_dict())
    assert float(fresh.steepness) == 2.0


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Anneal(1, 2, 3, curve="square"), r"unknown curve 'square'; choose one of linear, geometric, cosine"),
        (lambda: Anneal(0, 2, 3), r"`start` and `end` must be positive"),
        (lambda: Anneal(1, 2, 0), r"`steps` must be an integer from 1 on, got 0"),
        (lambda: Anneal(1, 2, 3, field="tau"), r"`field` must be 'steepness' or 'scale'"),
        (lambda: Anneal(1, 2, 3).attach(nn.Linear(1, 1)), r"Linear holds no algonet module with a `steepness`"),
        (
            lambda: Anneal(1, 2, 3).attach(Above(Logistic(nn.Parameter(torch.tensor(1.0))))),
            r"Above.steepness is a learnable parameter",
        ),
        (lambda: Above("logistic"), r"`relax` must be an algonet relaxation such as Logistic\(10.0\), got 'logistic'"),
        (lambda: softness_report(nn.Linear(1, 1), torch.ones(1)), r"Linear holds no algonet module"),
        (lambda: softness_report(Above(Logistic()), torch.ones(1, dtype=torch.long)), r"at least one floating tensor"),
    ],
)
def test_errors_say_what_was_wanted(make, message):
    with pytest.raises((TypeError, ValueError), match=message):
        make()


def test_hardened_is_crisp_inside_the_block_only():
    layer = Above(Logistic(1.0))
    with hardened(layer):
        assert isinstance(layer.relax, Heaviside)
        assert layer(torch.tensor([0.0, -0.1, 0.1])).tolist() == [1.0, 0.0, 1.0]
    assert isinstance(layer.relax, Logistic)


def test_report_tells_hard_from_blurred_from_balanced():
    x = torch.randn(200, 8)
    hard = softness_report(Above(Logistic(1e5)), x)
    blurred = softness_report(Above(Logistic(0.3)), x)
    balanced = softness_report(Above(Logistic(10.0)), x)
    assert hard.vanished > 0.5
    assert hard.gap < balanced.gap < blurred.gap
    assert blurred.vanished <= balanced.vanished < 0.5
    assert "lower the steepness" in hard.suggestion
    assert "raise the steepness" in blurred.suggestion
    assert "balanced" in balanced.suggestion
    assert "Above.steepness = 10" in str(balanced)


def test_report_leaves_the_module_and_its_input_alone():
    layer, x = Above(Logistic(2.0)), torch.randn(4, 3)
    before = x.clone()
    softness_report(layer, x)
    assert torch.equal(x, before)
    assert not x.requires_grad
    assert isinstance(layer.relax, Logistic)

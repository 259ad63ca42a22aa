"""Weights and gates at the steps of algorithms: the algorithm itself at 1, a plain reading of the formula elsewhere."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from algonet.explain import sensitivity
from algonet.nn import FiniteDifferences, Insert, Trainable, finite_differences
from algonet.relax import Logistic, Tent
from algonet.smooth_python import smooth
from algonet.sorting import Bitonic, NeuralSort, OddEven, SoftMedian, SoftSort
from algonet.while_lang import WhileProgram

DIFFERENCES = [
    FiniteDifferences(),
    FiniteDifferences(0, pad="edge"),
    FiniteDifferences((0, 1), pad="wrap", center=True),
    FiniteDifferences((0, 1), pad="zero", stack=0),
    FiniteDifferences((-1, 0)),
]
LAYERS = [
    *DIFFERENCES,
    SoftSort(Logistic(3.0), method=OddEven()),
    SoftSort(Logistic(3.0), method=Bitonic(), descending=True),
    SoftSort(Logistic(3.0), method=NeuralSort()),
    SoftMedian(Logistic(3.0), method=OddEven()),
    SoftMedian(Logistic(3.0), method="fast", degree=3, keepdim=True),
    SoftMedian(Logistic(1.0), method="paper", dim=0),
    Insert(SoftSort(Logistic(3.0), method=OddEven())),
    Insert(WhileProgram.library("multiply")),
]


@smooth(relax=Logistic(2.0))
def larger(a, b):
    result = a
    if b > a:
        result = b
    return result


LAYERS.append(Insert(larger))


def _first(result):
    return result[0] if isinstance(result, tuple) else result


def _input(layer):
    width = 2 if isinstance(layer, Insert) and not isinstance(layer.algorithm, SoftSort) else 5
    return torch.rand(4, width, dtype=torch.float64) * 3


@pytest.mark.parametrize("layer", LAYERS, ids=lambda layer: repr(layer).replace("\n", " ")[:60])
def test_weights_of_one_are_the_algorithm(layer):
    x = _input(layer)
    trainable = Trainable(layer, x).double()
    torch.testing.assert_close(_first(trainable(x)), _first(layer(x)))
    assert len(set(trainable.labels)) == len(trainable.labels) == len(trainable.weight) > 0
    assert trainable.regularization() == 0
    _first(trainable(x)).square().sum().backward()
    assert trainable.weight.grad is not None
    assert trainable.weight.grad.abs().max() > 0
    assert "forward" not in vars(layer)


def test_weights_are_trained_and_pulled_back():
    """A sort that is to leave its items as they are learns to exchange nothing; the regulariser brings it back."""
    torch.manual_seed(0)
    x = torch.randn(64, 4)
    layer = Trainable(SoftSort(Logistic(5.0), method=OddEven()), x)

    def train(target, price):
        optimizer = torch.optim.Adam(layer.parameters(), lr=0.05)
        for _ in range(150):
            loss = (layer(x).values - target).square().mean() + price * layer.regularization()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        return layer.weight.detach()

    assert train(x, 0.0).abs().max() < 0.3
    assert (train(x, 10.0) - 1).abs().max() < 0.1


def test_stencils():
    x = torch.tensor([[1.0, 4.0, 9.0], [0.0, 2.0, 5.0]])
    layer = Trainable(FiniteDifferences((0, 1), pad="edge", stack=0), x)
    assert layer.labels == ("dim 0: x[1] - x[0]", "dim 1: x[1] - x[0]", "dim 1: x[2] - x[1]")
    with torch.no_grad():
        layer.weight.copy_(torch.tensor([2.0, 3.0, 10.0]))
    down, across = layer(x)
    assert down[0].tolist() == [-2.0, -4.0, -8.0]
    assert across.tolist() == [[9.0, 50.0, 50.0], [6.0, 30.0, 30.0]]
    # A mixed derivative weighs each of its two steps
    mixed = Trainable(FiniteDifferences((0, 1)), x)
    with torch.no_grad():
        mixed.weight.copy_(torch.tensor([2.0, 3.0, 10.0]))
    torch.testing.assert_close(mixed(x), 2 * finite_differences(x, (0, 1)) * torch.tensor([3.0, 10.0]))


@pytest.mark.parametrize("method", [OddEven(), "fast", "paper"])
def test_points_of_a_median(method):
    """By its definition: the share of point i in the median, times w_i x_i; shares by their effect on a payload."""
    x = torch.randn(3, 5, dtype=torch.float64)
    layer = Trainable(SoftMedian(Logistic(1.0), method=method), x).double()
    weight = torch.rand(5, dtype=torch.float64)
    with torch.no_grad():
        layer.weight.copy_(weight)
        shares = []
        for i in range(5):
            layer.weight.copy_(torch.nn.functional.one_hot(torch.tensor(i), 5).double())
            shares.append(layer(x) / x[:, i])
        layer.weight.copy_(weight)
        shares = torch.stack(shares, -1)
        torch.testing.assert_close(shares.sum(-1), torch.ones(3, dtype=torch.float64))
        assert (shares > -1e-12).all()
        torch.testing.assert_close(layer(x), (shares * weight * x).sum(-1))


@pytest.mark.parametrize(
    "layer", [FiniteDifferences(), SoftMedian(Logistic(2.0), method="fast")], ids=["stencils", "points"]
)
def test_sensitivity_inside(layer):
    """By finite differences of one gate."""
    x, target = torch.randn(6, 5, dtype=torch.float64), torch.zeros(6, dtype=torch.float64)

    def loss(output, target):
        return output.reshape(6, -1).square().sum(-1)

    found = sensitivity(nn.Sequential(layer), "0", (x, target), loss, inside=True)
    step = 1e-5
    slopes = []
    for i in range(len(found.labels)):
        change = torch.nn.functional.one_hot(torch.tensor(i), len(found.labels)).double() * step
        up, down = (
            loss(layer.run_gated(lambda batch, labels, like, g=gates: g.expand(*batch, -1), x), target)
            for gates in (1 + change, 1 - change)
        )
        slopes.append(((up - down) / (2 * step)).mean())
    torch.testing.assert_close(found.signed, torch.stack(slopes).float(), rtol=1e-4, atol=1e-5)


def test_other_sizes_and_layers_without_steps_are_refused():
    layer = Trainable(SoftSort(method=OddEven()), torch.zeros(4))
    with pytest.raises(ValueError, match="made for 6 steps, this input takes 10"):
        layer(torch.zeros(5))
    with pytest.raises(TypeError, match="Tanh has no gates at its steps; SoftSort, SoftMedian"):
        Trainable(nn.Tanh(), torch.zeros(4))
    with pytest.raises(TypeError, match="must be a module"):
        Trainable(torch.sort, torch.zeros(4))


def test_gates_within_weights():
    """Sensitivity of a trained sort: its gates come on top of its weights."""
    x = torch.randn(8, 4)
    layer = Trainable(SoftSort(Logistic(2.0), method=OddEven()), x)
    with torch.no_grad():
        layer.weight[0] = 0.0
    found = sensitivity(
        nn.Sequential(layer), "0", (x, x), lambda output, target: output.values.square()[..., 0], inside=True
    )
    assert found.labels == layer.labels
    assert found.magnitude[0] == 0
    assert found.magnitude[2:].max() > 0


def test_programs_are_gated_alone_too():
    program = WhileProgram("x0 := x1 x0 := x0 + 2", Tent())
    layer = Trainable(program, torch.zeros(()))
    with torch.no_grad():
        layer.weight.copy_(torch.tensor([1.0, 0.25]))
    assert layer(torch.tensor(1.0)).item() == 1.5

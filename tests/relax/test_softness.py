"""Softness as state: saved, moved, annealed, learned, and reported on."""

from __future__ import annotations

import copy
import pickle
from typing import NamedTuple

import pytest
import torch
from torch import nn

from algonet.nn import WeightedSoftmax
from algonet.relax import (
    Anneal,
    Choice,
    GaussianNoise,
    Heaviside,
    Logistic,
    Sech,
    SoftModule,
    hardened,
    softness_report,
)


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
        (lambda: Anneal(1, 2, 3, field="tau"), r"`field` must be a softness such as 'steepness' or 'scale', got 'tau'"),
        (lambda: Anneal(1, 2, 3).step(), r"call anneal.attach\(model\) first"),
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
    with pytest.raises((TypeError, ValueError, RuntimeError), match=message):
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


def test_hardened_blocks_nest():
    layer = Above(Logistic(1.0))
    model = nn.Sequential(layer, Leaving(Sech(2.0)))
    with hardened(model):
        with hardened(layer):
            assert isinstance(layer.relax, Heaviside)
        assert isinstance(layer.relax, Heaviside)
        with hardened(model):
            # A thousand times harder than it is, however deep the blocks
            assert float(model[1].relax.steepness) == 2000.0
        assert float(model[1].relax.steepness) == 2000.0
    assert isinstance(layer.relax, Logistic)
    assert float(model[1].relax.steepness) == 2.0


class Leaving(SoftModule):
    def forward(self, x):
        return self.relax(x)


def test_report_leaves_dropout_and_batch_statistics_alone():
    model = nn.Sequential(nn.BatchNorm1d(6), nn.Dropout(0.5), Above(Logistic(3.0)), nn.Dropout(0.5).eval())
    before = copy.deepcopy(model.state_dict())
    modes = [m.training for m in model.modules()]
    x = torch.randn(40, 6)
    first, second = softness_report(model, x), softness_report(model, x)
    assert first == second
    assert [m.training for m in model.modules()] == modes
    torch.testing.assert_close(model.state_dict(), before, rtol=0, atol=0)
    model.eval()
    assert softness_report(model, x) == first


def test_report_tells_layers_of_one_kind_apart():
    model = nn.Sequential(Above(Logistic(2.0)), nn.Sequential(Above(Logistic(50.0))))
    report = softness_report(model, torch.randn(5, 4))
    assert report.softness == {"0.steepness": 2.0, "1.0.steepness": 50.0}


class Drawing(SoftModule):
    """A decision, a choice and a blur in one module."""

    def __init__(self, steepness=2.0, depth=5.0, scale=0.5):
        super().__init__(Logistic(steepness), depth=Choice(depth), blur=GaussianNoise(scale))

    def forward(self, x):
        inside = self.relax(x) * self.relaxation("blur").tail(x)
        return (torch.softmax(self.relaxation("depth").steepness * x, -1) * inside).sum(-1)


def test_several_relaxations_are_one_state():
    layer = Drawing(depth=nn.Parameter(torch.tensor(5.0)))
    assert set(layer.state_dict()) == {"steepness", "depth_steepness", "blur_scale"}
    assert [name for name, _ in layer.named_parameters()] == ["depth_steepness"]
    assert repr(layer) == "Drawing(Logistic, steepness=2, depth_steepness=5, blur_scale=0.5)"
    other = Drawing(1.0, 1.0, 1.0)
    other.load_state_dict(layer.state_dict())
    x = torch.randn(3, 4)
    torch.testing.assert_close(other(x), layer(x))
    layer(x).sum().backward()
    assert layer.depth_steepness.grad.abs() > 0


def test_every_relaxation_is_hardened_annealed_and_reported():
    layer = Drawing()
    with hardened(layer):
        assert isinstance(layer.relax, Heaviside)
        assert float(layer.relaxation("depth").steepness) == 5000.0
        assert float(layer.relaxation("blur").scale) == pytest.approx(5e-4)
    Anneal(7.0, 9.0, steps=1, field="depth_steepness").attach(layer)
    assert (float(layer.steepness), float(layer.depth_steepness)) == (2.0, 7.0)
    Anneal(3.0, 9.0, steps=1, field="blur_scale").attach(nn.Sequential(layer))
    assert float(layer.blur_scale) == 3.0
    report = softness_report(layer, torch.rand(20, 4))
    assert report.softness == {"Drawing.steepness": 2.0, "Drawing.depth_steepness": 7.0, "Drawing.blur_scale": 3.0}
    with pytest.raises(ValueError, match=r"with a `tip_scale`; it has: Drawing.steepness, Drawing.depth_steepness, Dr"):
        Anneal(1.0, 2.0, steps=1, field="tip_scale").attach(layer)


class Curve(SoftModule):
    """Something with parameters and no input, as a drawing is."""

    def __init__(self):
        super().__init__(GaussianNoise(0.5))
        self.place = nn.Parameter(torch.linspace(-1, 1, 9))

    def forward(self, size):
        return self.relax.tail(self.place[:, None] - torch.linspace(-1, 1, size)).sum(0)


def test_without_tensors_the_report_looks_at_the_parameters():
    assert softness_report(Curve(), 16).softness == {"Curve.scale": 0.5}
    assert "raise the scale" in softness_report(_sharp(Curve()), 16).suggestion
    with pytest.raises(ValueError, match="give at least one floating tensor"):
        softness_report(Above(Logistic()), 16)


def _sharp(curve):
    with torch.no_grad():
        curve.scale.fill_(1e-4)
    return curve


@pytest.mark.parametrize("steepness", [torch.tensor([1.0, 2.0]), torch.ones(2, 3, dtype=torch.float64)])
def test_steepness_per_element_is_shown_by_its_shape(steepness):
    assert (
        repr(WeightedSoftmax(steepness))
        == f"WeightedSoftmax(Choice, steepness=tensor of shape {tuple(steepness.shape)})"
    )
    with torch.device("meta"):
        assert "tensor of shape ()" in repr(WeightedSoftmax(1.0))


def test_softness_made_by_a_graph_can_be_copied():
    made = torch.tensor(0.5, requires_grad=True).exp()
    layer = Above(Logistic(made))
    for twin in (copy.deepcopy(layer), pickle.loads(pickle.dumps(layer))):
        assert float(twin.relax.steepness) == float(made.detach())


def test_report_finds_tensors_inside_inputs():
    from algonet.render import Camera, SmoothRenderer, icosphere

    ball, camera = icosphere(1), Camera.look_at((0.0, 0.0, 3.0), fov=45.0)
    report = softness_report(SmoothRenderer(16), ball, camera)
    assert set(report.softness) == {"SmoothRenderer.scale", "SmoothRenderer.depth_steepness"}
    assert 0 < report.gap < 1
    assert report.vanished < 0.5
    assert not ball.vertices.requires_grad, "the inputs themselves stay as they are"
    assert not camera.matrix.requires_grad
    with pytest.raises(ValueError, match="got str"):
        softness_report(Above(Logistic()), "ball")


class Pair(NamedTuple):
    x: torch.Tensor
    count: int


@pytest.mark.parametrize(
    "hold",
    [lambda x: [x], lambda x: (x, 3), lambda x: {"x": x}, lambda x: Pair(x, 3)],
    ids=["list", "tuple", "dict", "named"],
)
def test_report_is_the_same_however_tensors_are_held(hold):
    class First(nn.Module):
        def __init__(self):
            super().__init__()
            self.above = Above(Logistic(5.0))

        def forward(self, held):
            return self.above(held["x"] if isinstance(held, dict) else held[0])

    x = torch.linspace(-1, 1, 9)
    assert softness_report(First(), hold(x)).vanished == softness_report(Above(Logistic(5.0)), x).vanished

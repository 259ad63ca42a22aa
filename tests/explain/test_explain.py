from __future__ import annotations

import copy
import math
from typing import NamedTuple

import pytest
import torch
from torch import Tensor, nn

from algonet.explain import activation, replace_gradually, sensitivity
from algonet.nn import Insert, Residual, Shortcut
from algonet.nn.steps import gated_steps
from algonet.relax import Logistic, Tent
from algonet.sorting import Bitonic, OddEven, SoftSort
from algonet.while_lang import WhileProgram


class Sorted(NamedTuple):
    values: Tensor
    indices: Tensor


def named_sort(x: Tensor) -> Sorted:
    return Sorted(*x.sort(-1))


class TwoPaths(nn.Module):
    """A used path and one whose output the head multiplies by zero."""

    def __init__(self):
        super().__init__()
        self.used, self.ignored = nn.Tanh(), nn.Tanh()
        self.head = nn.Linear(6, 1)
        with torch.no_grad():
            self.head.weight[:, 3:] = 0

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.cat([self.used(x), self.ignored(x)], -1))


def mean_square(output: Tensor, target: Tensor) -> Tensor:
    return (output - target).square().mean()


def test_sensitivity_is_output_times_gradient_by_output():
    model = TwoPaths()
    x, y = torch.randn(5, 3), torch.randn(5, 1)
    found = sensitivity(model, model.used, (x, y), mean_square)
    out = x.tanh()
    per_item = 2 * (model(x) - y).detach() * out * model.head.weight.detach()[0, :3]
    torch.testing.assert_close(found.magnitude, per_item.square().mean(0).sqrt())
    torch.testing.assert_close(found.signed, per_item.mean(0))
    assert found.total == pytest.approx(float(per_item.sum(-1).square().mean().sqrt()), rel=1e-5)


def test_what_the_head_ignores_has_no_sensitivity_but_is_active():
    model = TwoPaths()
    data = (torch.randn(5, 3), torch.randn(5, 1))
    found = sensitivity(model, "ignored", data, mean_square, against=["used"])
    assert found.total == 0
    assert found.share == 0
    assert sensitivity(model, "used", data, mean_square, against=["ignored"]).share == 1
    assert (activation(model, "ignored", data).std > 0).all()


def test_batches_do_not_matter():
    model = TwoPaths()
    x, y = torch.randn(6, 3), torch.randn(6, 1)
    whole = sensitivity(model, "used", (x, y), mean_square)
    parts = sensitivity(model, "used", [(x[:4], y[:4]), (x[4:], y[4:])], mean_square)
    torch.testing.assert_close(whole.magnitude, parts.magnitude)
    torch.testing.assert_close(whole.signed, parts.signed)
    parted = [(x[:4], y[:4]), (x[4:], y[4:])]
    for loss in (
        lambda out, target: (out - target).square().mean(-1),
        lambda out, target: (out - target).square().sum(),
    ):
        for data in ((x, y), parted):
            torch.testing.assert_close(sensitivity(model, "used", data, loss).magnitude, whole.magnitude)
    sorter, total = nn.Sequential(SoftSort()), lambda out, target: (out[0] - target).square().sum()
    found = [sensitivity(sorter, "0", data, total, inside=True) for data in ((x, x), [(x[:4], x[:4]), (x[4:], x[4:])])]
    torch.testing.assert_close(found[0].magnitude, found[1].magnitude)
    with pytest.raises(ValueError, match="neither a sum nor a mean over the items"):
        sensitivity(model, "used", (x, y), lambda out, target: (out - target).square().sum().square())


@pytest.mark.parametrize("algorithm", [named_sort, torch.tanh, nn.Tanh()], ids=["tuple", "function", "module"])
def test_only_the_algorithm_of_an_insertion_is_gated(algorithm):
    head = nn.Linear(4, 1, bias=False)
    with torch.no_grad():
        head.weight.copy_(torch.tensor([[1.0, 1.0, 0.0, 0.0]]))
    model = nn.Sequential(Shortcut(algorithm, share=0.5), head)
    data = (torch.randn(7, 4), torch.zeros(7, 1))
    # The head reads what skips the algorithm alone
    found = sensitivity(model, "0", data, mean_square)
    assert found.total == 0
    assert len(found.magnitude) == 2
    assert model[0].algorithm is algorithm


def test_insertion_styles_are_left_as_they_were():
    model = nn.Sequential(Residual(named_sort, nn.Linear(2, 2)), Insert(torch.neg), nn.Dropout(0.5), nn.Linear(4, 1))
    model[2].eval()
    before = copy.deepcopy(model.state_dict())
    modes = [m.training for m in model.modules()]
    x = torch.randn(3, 4)
    expected = model(x)
    data = (x, torch.zeros(3, 1))
    sensitivity(model, "0", data, mean_square, against=["1"])
    activation(model, "0", data)
    assert [m.training for m in model.modules()] == modes
    torch.testing.assert_close(model.state_dict(), before)
    torch.testing.assert_close(model(x), expected)
    assert all(p.grad is None for p in model.parameters())


def test_images_have_one_gate_per_channel():
    model = nn.Sequential(nn.Conv2d(1, 3, 3), nn.Flatten(), nn.LazyLinear(1))
    data = (torch.randn(4, 1, 6, 6), torch.randn(4, 1))
    model(data[0])
    found = sensitivity(model, "0", data, mean_square, dim=1)
    active = activation(model, "0", data, dim=1)
    assert found.magnitude.shape == active.mean.shape == (3,)
    out = model[0](data[0]).detach()
    torch.testing.assert_close(active.mean, out.mean((0, 2, 3)))
    torch.testing.assert_close(active.std, out.std((0, 2, 3), correction=0), atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(active.rms, out.square().mean((0, 2, 3)).sqrt())


def test_frozen_models_can_be_explained():
    model = TwoPaths().requires_grad_(False)
    with torch.no_grad():
        found = sensitivity(model, "used", (torch.randn(2, 3), torch.randn(2, 1)), mean_square)
    assert found.total > 0


def test_data_that_says_nothing():
    model, x = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 1)), torch.zeros(4, 2)
    with pytest.raises(ValueError, match="`data` is empty"):
        sensitivity(model, "0", (x[:0], x[:0, :1]), nn.functional.mse_loss)
    lost = sensitivity(model, "0", (x * math.nan, x[:, :1]), nn.functional.mse_loss, against=["1"])
    assert math.isnan(lost.total)
    assert math.isnan(lost.share)


def test_errors():
    model = TwoPaths()
    data = (torch.randn(2, 3), torch.randn(2, 1))
    with pytest.raises(ValueError, match="no layer 'sorter'; it has: used, ignored, head"):
        sensitivity(model, "sorter", data, mean_square)
    with pytest.raises(ValueError, match="not part of the model"):
        activation(model, nn.Tanh(), data)
    with pytest.raises(ValueError, match="`data` is empty"):
        activation(model, "used", [])
    with pytest.raises(TypeError, match=r"\(input, target\) pairs"):
        activation(model, "used", [torch.ones(2)])
    with pytest.raises(ValueError, match="one layer twice"):
        sensitivity(model, "used", data, mean_square, against=["used"])
    model.spare = nn.Tanh()
    with pytest.raises(ValueError, match="did not run its layer Tanh"):
        sensitivity(model, "spare", data, mean_square)
    with pytest.raises(ValueError, match="no part 'x'"):
        replace_gradually(model, "x", torch.sort, data, mean_square, score=lambda net: 0.0)
    with pytest.raises(ValueError, match="must give what the part gives"):
        replace_gradually(
            model, "used", lambda x: x[:, :2], data, mean_square, score=lambda net: float(net(data[0]).sum())
        )


def trained_sorter() -> tuple[nn.Module, tuple[Tensor, Tensor]]:
    """A network whose middle part computes a sort exactly, so that what replaces it can be judged exactly too."""
    x = torch.randn(64, 3)
    head = nn.Linear(3, 1)
    middle = nn.Sequential(nn.Linear(3, 3), Insert(torch.sort))
    with torch.no_grad():
        middle[0].weight.copy_(torch.eye(3))
        middle[0].bias.zero_()
        head.weight.copy_(torch.tensor([[0.0, 1.0, 0.0]]))
        head.bias.zero_()
    return nn.Sequential(middle, head), (x, x.median(-1, keepdim=True).values)


def test_the_right_algorithm_takes_over_and_the_wrong_one_does_not():
    network, data = trained_sorter()
    before = copy.deepcopy(network.state_dict())

    def score(net: nn.Module) -> float:
        assert not net.training
        return -float(mean_square(net(data[0]), data[1]))

    right = replace_gradually(network, "0", torch.sort, data, mean_square, score=score, levels=4, steps=0)
    wrong = replace_gradually(network, "0", torch.neg, data, mean_square, score=score, levels=4, steps=0)
    assert right.mixture == [0.0, 0.25, 0.5, 0.75, 1.0]
    assert right.score == pytest.approx([0.0] * 5, abs=1e-6)
    assert wrong.score == sorted(wrong.score, reverse=True)
    assert wrong.change < -0.1
    torch.testing.assert_close(network.state_dict(), before)
    torch.testing.assert_close(right.network(data[0]), data[1])


def test_the_rest_is_tuned_and_the_part_is_not():
    network, data = trained_sorter()
    parts = []

    def score(net: nn.Module) -> float:
        parts.append(net[0].part[0].weight.clone())
        return -float(mean_square(net(data[0]), data[1]))

    found = replace_gradually(
        network,
        "0",
        lambda x: 2 * x.sort(-1).values,
        data,
        mean_square,
        score=score,
        levels=3,
        steps=150,
        learning_rate=0.03,
    )
    assert all(torch.equal(p, torch.eye(3)) for p in parts)
    assert found.score[-1] > found.fixed[-1] + 0.01
    assert found.score[-1] > -0.02
    assert float(found.network[1].weight.detach()[0, 1]) == pytest.approx(0.5, abs=0.1)


def test_the_callers_algorithm_is_left_as_it_was():
    network, data = trained_sorter()
    algorithm = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3))
    before = copy.deepcopy(algorithm.state_dict())
    found = replace_gradually(network, "0", algorithm, data, mean_square, score=lambda net: 0.0, levels=2, steps=3)
    torch.testing.assert_close(algorithm.state_dict(), before, rtol=0, atol=0)
    assert all(p.grad is None for p in algorithm.parameters())
    assert not torch.equal(found.network[0][0].weight, algorithm[0].weight)


def test_what_network_and_algorithm_share_stays_shared():
    shared = nn.Linear(3, 3)
    network = nn.Sequential(shared, nn.Tanh(), nn.Linear(3, 1))
    data = (torch.randn(8, 3), torch.randn(8, 1))
    found = replace_gradually(network, "1", shared, data, mean_square, score=lambda net: 0.0, levels=1, steps=1)
    assert found.network[0] is found.network[1]
    assert found.network[0] is not shared


@pytest.mark.parametrize("method", [OddEven(), Bitonic()])
@pytest.mark.parametrize("descending", [False, True])
def test_gates_at_comparators_are_the_sort(method, descending):
    sorter = SoftSort(Logistic(3.0), descending=descending, method=method)
    model = nn.Sequential(nn.Linear(5, 5), Insert(sorter), nn.Linear(5, 1))
    data = (torch.randn(6, 5), torch.randn(6, 1))
    expected = model(data[0])
    seen = []

    def loss(output, target):
        seen.append(output.detach())
        return mean_square(output, target)

    found = sensitivity(model, "1", data, loss, inside=True)
    torch.testing.assert_close(seen[0], expected)
    assert len(found.labels) == len(found.magnitude)
    assert found.labels[0] == ("layer 0: 0-1" if isinstance(method, OddEven) else "layer 0: 3-4")
    torch.testing.assert_close(model(data[0]), expected)
    assert "forward" not in vars(sorter)


def test_comparators_that_reach_nothing_do_not_count():
    head = nn.Linear(4, 1, bias=False)
    with torch.no_grad():
        head.weight.copy_(torch.tensor([[1.0, 0.0, 0.0, 0.0]]))
    model = nn.Sequential(SoftSortValues(Logistic(2.0)), head)
    data = (torch.randn(50, 4), torch.zeros(50, 1))
    found = sensitivity(model, model[0].sorter, data, mean_square, inside=True)
    by_label = dict(zip(found.labels, found.magnitude.tolist(), strict=True))
    # Only the smallest is read: in the last layers, exchanges of the others lead nowhere
    assert by_label["layer 2: 2-3"] == 0
    assert by_label["layer 3: 1-2"] == 0
    assert by_label["layer 2: 0-1"] > 0
    # By finite differences of one gate
    step, label = 1e-3, found.labels.index("layer 0: 0-1")
    values = []
    for gate in (1 + step, 1 - step):
        with gated_steps(
            "test", model[0].sorter, lambda batch, labels, like, gate=gate: _gates(batch, labels, like, label, gate)
        ):
            values.append(mean_square(model(data[0]), data[1]).item())
    assert found.signed[label].item() == pytest.approx((values[0] - values[1]) / (2 * step), rel=1e-2, abs=1e-4)


class SoftSortValues(nn.Module):
    def __init__(self, relax):
        super().__init__()
        self.sorter = SoftSort(relax, method=OddEven())

    def forward(self, x):
        return self.sorter(x).values


def _gates(batch, labels, like, index, value):
    gates = like.new_ones(*batch, len(labels))
    gates[..., index] = value
    return gates


def test_gates_at_assignments_say_which_the_answer_hangs_on():
    program = WhileProgram(
        "x0 := x1\nx0 := x0 + 1\nx2 := x1\nWHILE x3 != 0 DO\n  x0 := x0 + 1\n  x3 := x3 - 1\nEND", Tent()
    )
    model = nn.Sequential(Insert(program))
    data = (torch.tensor([[2.0, 0.0, 3.0], [5.0, 0.0, 0.0]]), torch.zeros(2, 1))
    found = sensitivity(model, "0", data, lambda output, target: output.mean(-1), inside=True)
    assert found.labels == (
        "line 1: x0 := x1",
        "line 2: x0 := x0 + 1",
        "line 3: x2 := x1",
        "line 5: x0 := x0 + 1",
        "line 6: x3 := x3 - 1",
    )
    signed = dict(zip(found.labels, found.signed.tolist(), strict=True))
    # To about 1e-3: at integers the slope is taken a step towards 0
    assert signed["line 1: x0 := x1"] == pytest.approx(3.5, rel=2e-3)
    assert signed["line 2: x0 := x0 + 1"] == 1.0
    assert signed["line 3: x2 := x1"] == 0.0
    assert signed["line 5: x0 := x0 + 1"] == pytest.approx(1.5, rel=2e-3)
    torch.testing.assert_close(model(data[0]), torch.tensor([[6.0], [6.0]]))


def test_gates_inside_refuse_what_has_none():
    model = TwoPaths()
    data = (torch.randn(2, 3), torch.randn(2, 1))
    with pytest.raises(TypeError, match="Tanh has no gates at its steps"):
        sensitivity(model, "used", data, mean_square, inside=True)
    with pytest.raises(ValueError, match="leave out `against`"):
        sensitivity(model, "used", data, mean_square, inside=True, against=["ignored"])

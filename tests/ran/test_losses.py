from __future__ import annotations

import math
from functools import partial

import pytest
import torch

from algonet.ran import LossWeights, Paths, ran_loss
from algonet.ran.config import RunConfig
from algonet.ran.model import TOGETHER, Direct, Prior, Truth
from algonet.ran.networks import Repaint
from algonet.ran.problems import problem_of
from ran.toys import Discs, toy


def mean(values):
    return sum(values) / len(values)


def plainly(index, a, b1, b2, a1, a2, D):
    """The paper's five formulas, read aloud: lists of single pictures, D a probability."""
    items = range(len(a))

    def log_d(first, second):
        return mean([math.log(D(first[i], second[i])) for i in items])

    def log_not_d(first, second):
        return mean([math.log(1 - D(first[i], second[i])) for i in items])

    def norm(first, second):
        return mean([float((first[i] - second[i]).abs().sum()) for i in items])

    return {
        1: lambda: log_d(a, b2) + log_not_d(a, b1) + norm(b2, b1),
        2: lambda: log_d(a, b2) + log_not_d(a2, b2) + norm(a2, a),
        3: lambda: log_d(a, b1) + log_not_d(a2, b1) + norm(a1, a) + norm(b2, b1),
        4: lambda: log_d(a, b2) + log_not_d(a1, b2) + norm(a1, a) + norm(b2, b1),
        5: lambda: log_d(a, b1) + log_not_d(a1, b1) + norm(a1, a),
    }[index]()


@pytest.mark.parametrize("index", [1, 2, 3, 4, 5])
def test_losses_are_the_printed_ones(index):
    a, a1, a2 = torch.rand(3, 4, 3, 2, 2).unbind(0)
    b1, b2 = torch.rand(2, 4, 1, 2, 2).unbind(0)

    def logits(first, second):
        # Not symmetric, and different for every pair
        return 3 * first.flatten(1).mean(1) - 2 * second.flatten(1).square().mean(1)

    def probability(first, second):
        return float(torch.sigmoid(logits(first[None], second[None])))

    found = ran_loss(index, Paths(a, b1, b2, a1, a2), logits)
    assert float(found) == pytest.approx(plainly(index, a, b1, b2, a1, a2, probability), rel=1e-5)


@pytest.mark.parametrize("index", [1, 2, 3, 4, 5])
def test_logarithms_are_safe(index):
    pictures = [torch.rand(2, 1, 2, 2, requires_grad=True) for _ in range(5)]
    for sign in (1, -1):
        value = ran_loss(index, Paths(*pictures), lambda a, b, s=sign: s * 1e30 * (1 + (a + b).flatten(1).mean(1)))
        assert torch.isfinite(value)
        slopes = torch.autograd.grad(value, pictures, allow_unused=True)
        assert all(torch.isfinite(s).all() for s in slopes if s is not None)


def test_weights_of_the_parts():
    a, b1, b2 = torch.rand(2, 3, 4, 4), torch.rand(2, 1, 4, 4), torch.rand(2, 1, 4, 4)
    paths = Paths(a, b1, b2)

    def undecided(a, b):
        return a.new_zeros(len(a))

    norm = float((b2 - b1).abs().sum((1, 2, 3)).mean())
    logs = 2 * math.log(0.5)
    assert float(ran_loss(1, paths, undecided)) == pytest.approx(logs + norm)
    assert float(ran_loss(1, paths, undecided, LossWeights(adversarial=0.5))) == pytest.approx(logs / 2 + norm)
    assert float(ran_loss(1, paths, undecided, LossWeights(l1=3.0, adversarial=0))) == pytest.approx(3 * norm / 16)
    with pytest.raises(ValueError, match=r"`LossWeights\.alpha\[4\]` must be between 0\.0 and 1\.0, got 2"):
        LossWeights(alpha=(1, 1, 1, 1, 2))
    with pytest.raises(ValueError, match=r"`LossWeights\.alpha` must be a list of 5, got 0\.5"):
        LossWeights(alpha=0.5)  # pyright: ignore[reportArgumentType]
    with pytest.raises(ValueError, match="numbered 1 to 5"):
        ran_loss(6, paths, undecided)
    with pytest.raises(ValueError, match="needs `a2`"):
        ran_loss(2, paths, undecided)


def batch():
    data = Discs()
    return {"a": torch.stack([data[i]["a"] for i in range(4)])}


def test_each_section_sees_its_own_losses():
    model = toy(weights=LossWeights(alpha=(1, 0.5, 1, 1, 0.25), l1=1.0))
    assert [(s, model.numbers(s)) for s in model.sections] == [
        ("discriminator", (1, 2, 3, 4, 5)),
        ("b2a", (2, 3, 4, 5)),
        ("a2b", (1, 2, 3, 4, 5)),
    ]
    data = batch()
    paths = model.paths(data["a"])
    for index in range(1, 6):
        value = (
            float(ran_loss(index, paths, model.discriminator, model.weights).detach()) * model.weights.alpha[index - 1]
        )
        # D maximises what the others minimise
        assert float(model(data, "discriminator", index).detach()) == pytest.approx(-value, rel=1e-5)
        assert float(model(data, "b2a", index).detach()) == pytest.approx(value, rel=1e-5)
        regular = 0 if index == 5 else float(model.regulariser(model.reconstruct(data["a"])).detach()) / 4
        assert float(model(data, "a2b", index).detach()) == pytest.approx(value + regular, rel=1e-5)


@pytest.mark.parametrize("section", ["discriminator", "b2a", "a2b"])
def test_what_is_precomputed_changes_nothing(section):
    model, data = toy(), batch()
    precomputed = model(data, section, 0)
    with model.training_only(section):
        for index in model.numbers(section):
            parameters = [p for p in model.parameters() if p.requires_grad]
            plain = torch.autograd.grad(model(data, section, index), parameters, allow_unused=True)
            kept = torch.autograd.grad(model(data, section, index, precomputed), parameters, allow_unused=True)
            for one, other in zip(plain, kept, strict=True):
                torch.testing.assert_close(one, other)


def test_together_is_the_sum():
    separate, together = toy(), toy(separately=False)
    data = batch()
    for section in separate.sections:
        total = sum(separate(data, section, i) for i in (1, 2, 3, 4, 5))
        torch.testing.assert_close(together(data, section, TOGETHER), total)
    assert together.numbers("b2a") == (TOGETHER,)


def test_losses_can_be_left_out():
    model = toy(weights=LossWeights(alpha=(0, 1, 0, 0, 0)))
    assert model.numbers("a2b") == (2,)
    precomputed = model(batch(), "discriminator", 0)
    assert precomputed.b1 is None
    assert precomputed.a2 is not None


def test_direct_and_supervised():
    model = toy()
    direct = Direct(model.reconstructor, model.inverse, weights=LossWeights(l1=2.0))
    data = batch()
    # Once for each of the four losses that show it to a RAN's reconstructor
    expected = 4 * 2 * (model.inverse(model.reconstructor(data["a"])) - data["a"].mean(1, keepdim=True)).abs().mean()
    torch.testing.assert_close(direct(data, "reconstructor", 1), expected)

    problem = problem_of(RunConfig())
    compare = partial(problem.truth_loss, inverse=None)
    supervised = Direct(torch.nn.Identity(), lambda v: v, truth=Truth(problem.truth, compare))
    vertices, points = torch.rand(2, 5, 3), torch.rand(2, 7, 3)
    apart = (vertices[:, :, None] - points[:, None]).norm(dim=-1)
    expected = 4 * (apart.amin(1).mean() + apart.amin(2).mean())
    torch.testing.assert_close(supervised({"a": vertices, "points": points}, "reconstructor", 1), expected)
    with pytest.raises(ValueError, match="must hold the true `points`"):
        supervised({"a": vertices}, "reconstructor", 1)


def test_wrong_parts():
    model = toy()
    with pytest.raises(TypeError, match="`a2b` must be a module"):
        type(model)(model.reconstructor, model.inverse, 3, model.b2a, model.discriminator)
    with pytest.raises(TypeError, match="`inverse` must be a smooth algorithm"):
        type(model)(model.reconstructor, 3, model.a2b, model.b2a, model.discriminator)
    with pytest.raises(ValueError, match="say which section"):
        model(batch())


def test_a_prior_is_two_losses_that_can_be_left_out():
    def draw(count):
        return torch.rand(count, 3, generator=torch.Generator().manual_seed(0)) - torch.tensor([0.5, 0.5, -0.3])

    data = batch()
    model = toy(prior=Prior(draw, 2.0, 3.0))
    assert model.numbers("discriminator") == (1, 2, 3, 4, 5, 6)
    assert model.numbers("a2b") == (1, 2, 3, 4, 5, 6, 7)
    assert model.numbers("b2a") == (2, 3, 4, 5, 7)
    assert toy(prior=Prior(draw, 0.0, 1.0)).numbers("discriminator") == (1, 2, 3, 4, 5)
    a, b3 = data["a"], model.inverse(draw(4))
    a3, none = model.b2a(b3), torch.zeros_like(data["a"])

    judged = float((model.discriminator(none, b3) - model.discriminator(none, model.a2b(a))).mean().detach())
    back = (model.a2b(a3) - b3).abs().mean() + (model.inverse(model.reconstructor(a3)) - b3).abs().mean()
    assert float(model(data, "a2b", 6).detach()) == pytest.approx(2 * judged, rel=1e-4)
    assert float(model(data, "a2b", 7).detach()) == pytest.approx(3 * float(back.detach()), rel=1e-4)
    assert float(model(data, "discriminator", 6).detach()) == pytest.approx(-2 * judged, rel=1e-4)
    # b' teaches R and is not taught by it: without D nothing of the first loss reaches a2b
    model = toy(prior=Prior(draw), weights=LossWeights(l1=1.0, adversarial=0.0))
    with model.training_only("a2b"):
        model(data, "a2b", 1).backward()
    assert all(p.grad is None or not p.grad.any() for p in model.a2b.parameters())
    assert any(p.grad.any() for p in model.reconstructor.parameters())


def test_borrowed_colours_are_those_inside_and_outside():
    inside = (torch.rand(2, 1, 8, 8) > 0.5).float()
    a = torch.tensor([0.9, 0.2, 0.1]).view(1, 3, 1, 1) * inside + torch.tensor([0.1, 0.5, 0.8]).view(1, 3, 1, 1) * (
        1 - inside
    )
    net = Repaint(1, 3, 4)
    torch.testing.assert_close(net(inside, a), a, rtol=0, atol=0.02)
    # Nothing of a place passes: of a constant b one colour comes
    assert float(net(torch.full_like(inside, 0.5), a).detach().flatten(2).std(-1).max()) < 1e-3

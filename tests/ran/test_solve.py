"""A backward AlgoNet around anybody's algorithm, and what its report names."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from algonet.nn import Insert, Residual, Shortcut
from algonet.ran import Box, IFSInverse, RenderInverse, TrainConfig, networks, solve_inverse
from algonet.ran.report import findings, measures
from algonet.render import icosphere
from ran.toys import Discs, toy

LINE = torch.linspace(-1, 1, 8)


def disc(where):
    """(B, 2) to (B, 1, 8, 8)."""
    x, y = where[:, 0, None, None], where[:, 1, None, None]
    return torch.sigmoid(6 * (0.5 - ((LINE - x) ** 2 + (LINE[:, None] - y) ** 2 + 1e-4).sqrt()))[:, None]


def drawings(count: int = 32):
    """Discs in random colours on random grounds, and where they are."""
    random = torch.Generator().manual_seed(0)
    where = torch.rand(count, 2, generator=random) - 0.5
    paper = torch.rand(count, 3, 1, 1, generator=random)
    ink = (paper + 0.5) % 1  # as far from the paper in each channel as can be
    return paper + disc(where) * (ink - paper), where


BOX = Box([-0.6, -0.6], [0.6, 0.6])


def off(found, where):
    return float((found - where).abs().mean())


@pytest.mark.parametrize("method", ["ran", "weak", "supervised"])
def test_places_are_found_in_drawings_of_any_colour(tmp_path, method):
    pictures, where = drawings()
    truth = {"ran": None, "weak": where[:8], "supervised": where}[method]
    torch.manual_seed(0)
    steps = {"ran": 150, "weak": 4, "supervised": 60}[method]
    settings = TrainConfig(
        steps=steps, batch=8, learning_rate=2e-3, wait=20, warmup=5, reconstructor_rate=2.0, tensorboard=False, softness=(),
        accelerator="cpu", pictures_every=20,
    )  # fmt: skip
    small = {"a2b": networks.UNet(3, 1, 4, 2), "discriminator": networks.PairDiscriminator(3, 1, 4, 2)}
    options = {"parameters": BOX, "settings": settings, "method": method, "truth": truth, **small}
    result = solve_inverse(disc, pictures, **options, folder=tmp_path / "run")
    found = result.reconstruct(pictures)
    if method != "weak":
        assert off(found, where) < 0.7 * off(torch.zeros_like(where), where)
        assert result.report == []
    torch.testing.assert_close(result.reconstruct(pictures[3]), found[3], rtol=1e-4, atol=1e-5)
    result.save(tmp_path / "mine")
    again = solve_inverse(disc, pictures, **options, folder=tmp_path / "mine", resume=True)
    torch.testing.assert_close(again.reconstruct(pictures), found, rtol=0, atol=0)


def test_the_default_networks_find_places_before_a_ramp_and_in_noise():
    pictures, where = drawings()
    random = torch.Generator().manual_seed(1)
    ramp = 0.15 * LINE * (torch.rand(len(where), 1, 1, 1, generator=random) - 0.5)
    pictures = pictures + ramp + 0.03 * torch.randn(pictures.shape, generator=random)
    result = solve_inverse(disc, pictures, parameters=BOX, steps=60)
    found = result.reconstruct(pictures)
    middle = off(torch.zeros_like(where), where)  # 0.25; networks that see the contrast end there too, at 0.24
    assert off(found, where) < 0.3 * middle  # 0.02
    assert result.report == []
    # Neither brightness nor contrast say where
    torch.testing.assert_close(result.reconstruct(0.3 + 0.1 * pictures), found, rtol=0, atol=1e-3)
    assert result.reconstruct(torch.ones(3, 8, 8)).isfinite().all()
    assert result.trainer.checks[-1]["a''"] < 0.4
    with torch.no_grad():
        result.trainer.model.reconstructor.head.weight.neg_()  # now it answers the opposite side
    assert measures(result.trainer.model, pictures)["a''"] > 0.8


def test_an_inverse_may_have_any_range():
    pictures, where = drawings()
    settings = TrainConfig(
        steps=150, batch=8, learning_rate=2e-3, wait=20, warmup=5, reconstructor_rate=2.0, tensorboard=False, softness=(),
        accelerator="cpu", pictures_every=200,
    )  # fmt: skip
    torch.manual_seed(0)
    small = {"a2b": networks.UNet(3, 1, 4, 2), "discriminator": networks.PairDiscriminator(3, 1, 4, 2)}
    result = solve_inverse(lambda p: 100 * disc(p) - 30, 255 * pictures, parameters=BOX, settings=settings, **small)
    assert off(result.reconstruct(255 * pictures), where) < 0.7 * off(torch.zeros_like(where), where)
    made = result.trainer.model.inverse(BOX.draw(50))
    assert -0.1 < float(made.min()) < float(made.max()) < 1.1


def test_traces_are_inverted_too():
    def decay(rate):
        return torch.exp(-rate * torch.linspace(0, 2, 16))

    seen = 1 - decay(torch.rand(8, 1) + 0.5)
    for traces in (seen, seen[:, None]):
        found = solve_inverse(decay, traces, parameters=Box([0.1], [3.0]), steps=2)
        assert found.reconstruct(traces).shape == (8, 1)
        assert found.reconstruct(traces[0]).shape == (1,)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"method": "magic"}, "`method` must be one of ran, direct, supervised, weak, got 'magic'"),
        ({"pictures": torch.zeros(3)}, r"wanted pictures \(N, C, H, W\) or traces .*, got \(3,\)"),
        ({"pictures": torch.zeros(4, 3, 8, 4)}, r"\(2, C, 8, 4\), got \(2, 1, 8, 8\)"),
        ({"inverse": lambda p: disc(p.detach())}, "has no derivative"),
        ({"inverse": lambda p: disc(p)[:, 0, 0, 0]}, r"\(2, C, 8, 8\), got \(2,\)"),
        ({"inverse": lambda p: None}, "got NoneType"),
        ({"method": "supervised"}, r"needs `truth` \(4, 2\), got None"),
        ({"method": "weak", "truth": torch.zeros(2, 3)}, r"needs `truth` \(n, 2\), got \(2, 3\)"),
        ({"pictures": torch.zeros(4, 3, 7, 7), "inverse": lambda p: disc(p)[..., 1:, 1:]}, "7 x 7 cannot be halved"),
    ],
)
def test_what_does_not_fit_is_refused(changes, message):
    given = {"inverse": disc, "pictures": torch.zeros(4, 3, 8, 8), **changes}
    with pytest.raises(ValueError, match=message):
        solve_inverse(given.pop("inverse"), given.pop("pictures"), parameters=BOX, steps=1, **given)


def test_boxes_are_not_empty():
    with pytest.raises(ValueError, match="`low` must be below `high`"):
        Box([0.0, 1.0], [1.0, 1.0])


def test_inverses_stand_in_networks():
    ball = icosphere(0, 0.5)
    for inverse, count in ((RenderInverse(ball.faces, 8, 1), ball.vertices.numel()), (IFSInverse(2, 8, points=64), 12)):
        flat = 0.1 * torch.randn(2, count)
        assert Insert(inverse)(flat).shape == (2, 64)
        both = torch.cat([flat, flat], -1).requires_grad_()
        for layer in (Shortcut(inverse, 0.5), Residual(inverse, nn.Linear(count, 3), 0.5)):
            made = layer(both)
            assert made.shape == (2, (count if isinstance(layer, Shortcut) else 3) + 64)
            assert float(torch.autograd.grad(made.sum(), both)[0][:, count:].abs().sum()) > 0


def test_the_report_names_what_is_idle_or_collapsed():
    a = torch.stack([Discs()[i]["a"] for i in range(8)])
    model = toy()
    assert set(measures(model, a)) == {"reconstructor", "a2b", "b2a", "b''", "discriminator"}
    for part in (model.reconstructor, model.a2b):
        for p in part.parameters():
            nn.init.zeros_(p)
    nn.init.zeros_(model.discriminator.layers[-2].weight)
    nn.init.constant_(model.discriminator.layers[-2].bias, 1.0)
    check = measures(model, a)
    assert check["discriminator"] == 0.5  # it accepts whatever it is shown
    lines = findings([check] * 3)
    assert [line.split()[0] for line in lines] == ["reconstructor", "a2b", "b2a", "discriminator"]
    assert "discriminator is idle (right in 50% of the pairs)" in lines[-1]
    well = {"reconstructor": 0.1, "a2b": 0.1, "b2a": 0.1, "b''": 0.4, "discriminator": 0.7}
    assert findings([well, check, check]) == []
    assert findings([]) == []
    assert "has won" in findings([{**well, "discriminator": 1.0}])[0]
    assert "no nearer to b' than one picture for all inputs (1.2 times)" in findings([{**well, "b''": 1.2}])[0]
    assert "b'' explains little of a (90% of its variance" in findings([{**well, "a''": 0.9}])[0]
    # Where R follows a2b, D has nothing left to tell apart
    assert findings([{**well, "discriminator": 0.5}]) == []
    assert "is idle" in findings([{**well, "b''": 0.7, "discriminator": 0.5}])[0]


def test_the_report_names_a_reconstructor_that_contradicts_a2b():
    a = torch.stack([Discs()[i]["a"] for i in range(8)])
    model = toy()
    # A translator that sees the discs, and a reconstructor that sees other ones
    model.a2b.forward = lambda pictures: (pictures[:, :1] - pictures[:, 2:] + 0.8) / 1.7
    places = model.reconstructor(a).detach()
    places[:, :2] = torch.tensor([[0.5, 0.5], [-0.5, 0.5], [0.5, -0.5], [-0.5, -0.5]]).repeat(2, 1)
    model.reconstructor.forward = lambda pictures: places
    assert measures(model, a)["b''"] > 1
    true = torch.stack([torch.rand(1, 3, generator=torch.Generator().manual_seed(i))[0] for i in range(8)])
    true = true * torch.tensor([1.0, 1.0, 0.3]) + torch.tensor([-0.5, -0.5, 0.3])
    model.reconstructor.forward = lambda pictures: true
    assert measures(model, a)["b''"] < 0.5

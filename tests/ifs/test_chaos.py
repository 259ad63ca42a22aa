"""The chaos game, the bound on its maps, and how choices are drawn."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from algonet.core import backends
from algonet.ifs import area_weights, chaos_game, contraction, draw_addresses, draw_choices, residual_form
from algonet.ifs.maps import map_norms
from algonet.ifs.presets import PRESETS
from algonet.ifs.reference import join_parameters, split_parameters
from helpers.tolerances import assert_close

HALVES = residual_form(torch.tensor([[0.5, 0, 0, 0.5, 0, 0], [0.5, 0, 0, 0.5, 0.5, 0], [0.5, 0, 0, 0.5, 0.25, 0.5]]))


def test_it_is_the_textbook_loop():
    rows = torch.randn(3, 6, dtype=torch.float64) * 0.4
    choices = torch.randint(0, 3, (2, 6))
    found = chaos_game(residual_form(rows), choices, burn_in=2).reshape(2, 4, 2)
    for chain in range(2):
        x, y = 0.0, 0.0
        for step in range(6):
            a, b, c, d, e, f = rows[choices[chain, step]].tolist()
            x, y = a * x + b * y + e, c * x + d * y + f
            if step >= 2:
                assert found[chain, step - 2].tolist() == pytest.approx([x, y])


@pytest.mark.parametrize("backend", ["reference", "numba"])
def test_a_horizon_cuts_the_gradient_and_keeps_the_points(backend):
    choices = torch.randint(0, 3, (4, 9))
    slopes = []
    for horizon in (None, 9, 4, 1):
        a = HALVES.double().requires_grad_()
        points = chaos_game(a, choices, horizon=horizon, backend=backend)
        assert_close(points.detach(), chaos_game(a, choices).detach())
        slopes.append(torch.autograd.grad(points.sum(), a)[0])
    assert_close(slopes[0], slopes[1])
    assert float((slopes[1] - slopes[2]).norm()) > 1e-3
    assert float((slopes[2] - slopes[3]).norm()) > 1e-3


def test_a_batch_of_systems_shares_choices():
    systems = torch.stack([HALVES, HALVES * 0.9])
    choices = torch.randint(0, 3, (5, 7))
    together = chaos_game(systems, choices)
    assert_close(together[1], chaos_game(systems[1], choices))


def test_a_divergent_system_stays_finite():
    points = chaos_game(torch.full((1, 6), 3.0), torch.zeros(2, 200, dtype=torch.int64))
    assert points.isfinite().all()
    assert float(points.abs().max()) == pytest.approx(1e12)


@given(st.floats(-5, 5), st.floats(-5, 5), st.floats(-5, 5), st.floats(-5, 5), st.sampled_from([0.5, 0.97, 1.0]))
def test_contraction_bounds_every_map(a, b, c, d, bound):
    parameters = join_parameters(torch.zeros(1, 2).double(), torch.tensor([[[a, b], [c, d]]], dtype=torch.float64))
    _, linear = split_parameters(contraction(parameters, bound))
    assert float(torch.linalg.matrix_norm(linear, 2)) < bound + 1e-5


def test_contraction_leaves_contractive_maps_nearly_alone():
    for preset in PRESETS.values():
        parameters = preset.parameters(torch.float64)
        assert float((contraction(parameters, 1.0) - parameters).abs().max()) < 0.02


def test_norms_are_spectral_norms():
    maps = torch.randn(50, 6, dtype=torch.float64)
    exact = torch.linalg.matrix_norm(split_parameters(maps)[1], 2)
    assert_close(map_norms(maps), exact, factor=1e5)  # 1e-12 inside the roots


def test_choices_come_in_proportion():
    weights = torch.tensor([[0.5, 0.3, 0.2], [0.1, 0.1, 0.8]])
    choices = draw_choices(weights, 100, 7, torch.Generator().manual_seed(0))
    assert choices.shape == (2, 100, 7)
    for item in range(2):
        for step in range(7):
            counts = torch.bincount(choices[item, :, step], minlength=3) / 100
            assert float((counts - weights[item]).abs().max()) <= 0.011


def test_addresses_fill_every_cylinder(monkeypatch):
    weights = torch.tensor([0.6, 0.3, 0.1])
    drawn = draw_addresses(weights, 1000, 5, torch.Generator().manual_seed(0))
    for last in range(3):
        for before in range(3):
            share = float(((drawn[:, -1] == last) & (drawn[:, -2] == before)).sum()) / 1000
            assert share == pytest.approx(float(weights[last] * weights[before]), abs=2.1e-3)
    monkeypatch.setitem(backends._INSTALLED, "numba", False)
    assert torch.equal(draw_addresses(weights, 1000, 5, torch.Generator().manual_seed(0)), drawn)


def test_area_weights_are_shares_of_the_area():
    shares = area_weights(PRESETS["fern"].parameters(torch.float64), floor=1e-9)
    dets = torch.linalg.det(split_parameters(PRESETS["fern"].parameters(torch.float64))[1]).abs()
    assert_close(shares, dets / dets.sum(), factor=1e5)  # 1e-6 under the root that smooths |det|


@pytest.mark.parametrize(
    ("arguments", "options", "message"),
    [
        ((torch.rand(3, 5), torch.zeros(1, 2, dtype=torch.int64)), {}, r"must be \(\*batch, n, 6\) with n from 1 on"),
        ((torch.rand(0, 6), torch.zeros(1, 2, dtype=torch.int64)), {}, "n from 1 on"),
        (("fern", torch.zeros(1, 2, dtype=torch.int64)), {}, "expected an IFS or a floating tensor"),
        ((HALVES, torch.zeros(1, 2)), {}, "`choices` must be an integer tensor"),
        (
            (HALVES, torch.zeros(3, dtype=torch.int64)),
            {},
            r"`choices` must be an integer tensor \(\*batch, chains, steps\), got \(3,\)",
        ),
        ((HALVES, torch.tensor([[0, 3]])), {}, r"must lie in 0 .. 2, got values from 0 to 3"),
        ((HALVES, torch.tensor([[0, -1]])), {}, "must lie in 0 .. 2"),
        (
            (HALVES, torch.tensor([[0, 1]]), torch.zeros(2, 2)),
            {},
            r"`start` must be a tensor \(\*batch, 1, 2\), got \(2, 2\)",
        ),
        ((HALVES, torch.tensor([[0, 1]])), {"burn_in": 3}, "`burn_in` must be an integer from 0 to 2"),
        ((HALVES, torch.tensor([[0, 1]])), {"horizon": 0}, "`horizon` must be an integer from 1 on"),
    ],
)
def test_refuses(arguments, options, message):
    with pytest.raises((ValueError, TypeError), match=message):
        chaos_game(*arguments, **options)


def test_contraction_refuses_a_bound_that_is_none():
    with pytest.raises(ValueError, match=r"`bound` must lie in \(0, 1\], got 2"):
        contraction(HALVES, 2)

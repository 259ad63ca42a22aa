"""The smooth raster: its hard limit, what is conserved, what windows leave out, and what it refuses."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from algonet.ifs import Poisson, smooth_raster
from algonet.ifs.kernels.layout import blocks
from algonet.ifs.operation import RasterSettings
from algonet.relax import Probabilistic
from helpers.tolerances import assert_close

AGGREGATES = [Probabilistic(), Poisson()]


def marked(points, size):
    height, width = size
    picture = torch.zeros(size)
    for x, y in points.tolist():
        picture[height - 1 - int(y * height), int(x * width)] = 1.0
    return picture


@pytest.mark.parametrize("backend", ["reference", "numba"])
def test_hard_limit_marks_the_pixels_that_hold_a_point(backend):
    points = (torch.randint(0, 40, (30, 2)) + 0.5) / 40
    for size in ((8, 5), (1, 1), (3, 40)):
        found = smooth_raster(points, size, sigma=1e-4, backend=backend)
        assert_close(found, marked(points, size))


@pytest.mark.parametrize("backend", ["reference", "numba"])
def test_a_point_has_mass_one(backend):
    points = torch.full((1, 2), 0.5, dtype=torch.float64)
    picture = smooth_raster(points, (41, 31), sigma=2.0, aggregate=Poisson(), epsilon=1e-14, backend=backend)
    assert float(-torch.log1p(-picture).sum()) == pytest.approx(1.0, abs=1e-9)


def test_y_points_up():
    picture = smooth_raster(torch.tensor([[0.9, 0.9]]), (10, 10), sigma=0.5)
    assert divmod(int(picture.argmax()), 10) == (1, 8) or divmod(int(picture.argmax()), 10) == (0, 9)
    assert float(picture[:5, 5:].sum()) > 0.9


def test_aggregates_follow_their_formulas():
    points = torch.rand(6, 2, dtype=torch.float64)
    single = torch.stack([smooth_raster(p[None], (7, 7), aggregate=Probabilistic(), epsilon=1e-15) for p in points])
    for aggregate in AGGREGATES:
        found = smooth_raster(points, (7, 7), aggregate=aggregate, epsilon=1e-15)
        assert_close(found, aggregate.reduce(single, 0))


@pytest.mark.parametrize("aggregate", AGGREGATES, ids=lambda a: type(a).__name__)
@pytest.mark.parametrize("epsilon", [1e-2, 1e-4, 1e-6])
def test_windows_leave_out_less_than_epsilon_of_each_point(epsilon, aggregate):
    points = torch.rand(300, 2, dtype=torch.float64)
    sums = [
        -torch.log1p(-smooth_raster(points, (48, 40), sigma=1.3, epsilon=e, aggregate=aggregate, backend="numba"))
        for e in (epsilon, 1e-15)
    ]
    missing = sums[1] - sums[0]
    assert float(missing.min()) > -1e-12
    assert 0 < float(missing.sum()) < 300 * epsilon


def test_reach_holds_all_but_epsilon():
    for epsilon in (0.1, 1e-3, 1e-9):
        tail = math.erfc(RasterSettings(1, 1, True, epsilon).reach / math.sqrt(2))
        assert tail * (2 - tail) == pytest.approx(epsilon, rel=1e-6)


def test_separable_equals_windows():
    points = torch.rand(2, 50, 2, dtype=torch.float64, requires_grad=True)
    weights, colours = torch.rand(2, 50, dtype=torch.float64), torch.rand(2, 50, 3, dtype=torch.float64)
    results = [
        smooth_raster(
            points,
            (20, 24),
            sigma=6.0,
            aggregate=Poisson(),
            weights=weights,
            colours=colours,
            method=method,
            epsilon=1e-15,
        )
        for method in ("windows", "separable")
    ]
    assert_close(*results)
    slopes = [torch.autograd.grad(r.square().sum(), points)[0] for r in results]
    assert_close(*slopes)


def test_auto_takes_the_product_only_for_windows_that_cover_the_picture():
    from algonet.ifs import functional
    from algonet.ifs.operation import RasterSettings

    points, settings = torch.rand(1000, 2, device="meta"), RasterSettings(512, 512, False, 1e-4)
    assert not functional.separable_is_cheaper(points, settings, 1.0)
    assert functional.separable_is_cheaper(points, settings, 1000.0)
    options = (512, 512), (0, 1, 0, 1), 1e-4, "auto", False, "auto"
    for aggregate, may in ((Poisson(), True), (Probabilistic(), False)):
        assert functional._Raster(points, 1.0, aggregate, None, None, options).choosing == may


def test_colours_are_the_mean_of_the_points_times_the_coverage():
    points = torch.tensor([[0.25, 0.5], [0.75, 0.5]])
    colours = torch.tensor([[1.0, 0.0, 0.5], [0.0, 1.0, 0.5]])
    for aggregate in AGGREGATES:
        colour = smooth_raster(points, (1, 2), sigma=0.01, colours=colours, aggregate=aggregate)
        coverage = smooth_raster(points, (1, 2), sigma=0.01, aggregate=aggregate)
        assert_close(colour, colours.T[:, None, :] * coverage)


def test_weight_zero_and_points_far_outside_change_nothing():
    points = torch.rand(5, 2)
    more = torch.cat([points, torch.tensor([[0.5, 0.5], [1e20, 0.5], [0.5, -3e38], [float("inf"), 0.0]])])
    weights = torch.tensor([1.0] * 5 + [0.0, 1.0, 1.0, 1.0])
    assert_close(smooth_raster(more, (9, 9), weights=weights), smooth_raster(points, (9, 9)))


@pytest.mark.parametrize("backend", ["reference", "numba"])
def test_nan_fills_its_own_picture(backend):
    points = torch.rand(2, 4, 2)
    points[0, 1, 0] = torch.nan
    picture = smooth_raster(points, (6, 6), backend=backend)
    assert picture[0].isnan().all()
    assert picture[1].isfinite().all()


@given(st.integers(1, 40), st.integers(0, 5), st.integers(1, 30), st.integers(1, 9))
def test_blocks_cover_everything_once(length, items, shortest, most):
    cut = blocks(items, length, shortest, most)
    for item in range(items):
        pieces = sorted((first, last) for i, _, first, last in cut if i == item)
        assert [n for first, last in pieces for n in range(first, last)] == list(range(length))


def test_the_result_does_not_depend_on_the_number_of_threads():
    points = torch.rand(30_000, 2)
    before = torch.get_num_threads()
    pictures = []
    try:
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            pictures.append(smooth_raster(points, (32, 32), backend="numba"))
    finally:
        torch.set_num_threads(before)
    assert torch.equal(pictures[0], pictures[1])
    assert torch.equal(pictures[0], pictures[2])


POINTS = torch.rand(3, 2)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"points": torch.rand(3, 3)}, r"`points` must be a floating tensor \(\*batch, N, 2\), got \(3, 3\)"),
        ({"points": torch.ones(3, 2, dtype=torch.int64)}, "`points` must be a floating tensor"),
        ({"points": [[0.0, 0.0]]}, "`points` must be a floating tensor"),
        ({"size": (0, 4)}, r"`size` must be \(height, width\), both integers from 1 on"),
        ({"size": (4, 4, 4)}, "`size` must be"),
        ({"sigma": 0}, "`sigma` must be positive and finite"),
        ({"sigma": -1.0}, "`sigma` must be positive"),
        ({"sigma": math.inf}, "`sigma` must be positive and finite"),
        ({"sigma": math.nan}, "`sigma` must be positive and finite"),
        ({"sigma": "one"}, "`sigma` must be a positive number"),
        ({"sigma": torch.ones((), dtype=torch.int64)}, "`sigma` must be a number or a floating tensor"),
        ({"extent": (1, 0, 0, 1)}, "`extent` must have x0 < x1"),
        ({"extent": (0, math.nan, 0, 1)}, "`extent` must be four finite numbers"),
        ({"aggregate": "or"}, r"`aggregate` must be Probabilistic\(\) or Poisson\(\)"),
        ({"weights": torch.ones(4)}, r"`weights` must be a tensor \(\*batch, 3\), got \(4,\): one per point"),
        ({"colours": torch.ones(4, 3)}, r"`colours` must be a tensor \(\*batch, 3, C\)"),
        ({"colours": [1.0]}, "`colours` must be a tensor"),
        ({"epsilon": 0.0}, "`epsilon` must lie in"),
        ({"method": "fast"}, "unknown method 'fast'; choose one of auto, windows, separable"),
        ({"method": "separable"}, "sums shares: use aggregate"),
        ({"backend": "cuda"}, "unknown backend 'cuda'"),
    ],
)
def test_refuses(options, message):
    arguments = {"points": POINTS, "size": (4, 4), **options}
    with pytest.raises((ValueError, TypeError), match=message):
        smooth_raster(**arguments)

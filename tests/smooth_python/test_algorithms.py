"""Every shipped algorithm: its crisp limit, its derivatives, and what every operation owes its user."""

from __future__ import annotations

import inspect

import pytest
import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from algonet.relax import BumpExit, Cauchy, Logistic, Sech
from algonet.smooth_python.algorithms import (
    ALGORITHMS,
    bank_queue,
    binary_search,
    bubble_sort,
    flood_fill,
    levenshtein,
    point_in_polygon,
    shortest_path,
)
from helpers.contract import CHECKS, Case, check_compile

STAR = [(0.0, 1.0), (0.59, -0.81), (-0.95, 0.31), (0.95, 0.31), (-0.59, -0.81)]


def flat(result) -> tuple[Tensor, ...]:
    return tuple(leaf for leaf in pytree.tree_leaves(result) if isinstance(leaf, Tensor))


def run(function, item_dims: int, *constants, **options):
    """The function on a batch, or on one item when that is what comes (as inside vmap)."""

    def call(first: Tensor, *rest: Tensor, **more):
        batched = first.dim() > item_dims
        return flat(function(first, *rest, *constants, batched=batched, **options, **more))

    return call


def increasing(batch: int, dtype: torch.dtype, generator: torch.Generator) -> tuple[Tensor, ...]:
    gaps = 0.5 + torch.rand(batch, 6, generator=generator, dtype=torch.float64)
    values = 4 * torch.rand(batch, generator=generator, dtype=torch.float64)
    return gaps.cumsum(-1).to(dtype), values.to(dtype)


def uniform(*shapes: tuple[int, ...], scale: float = 1.0):
    def inputs(batch: int, dtype: torch.dtype, generator: torch.Generator) -> tuple[Tensor, ...]:
        return tuple(
            (scale * torch.rand(batch, *s, generator=generator, dtype=torch.float64)).to(dtype) for s in shapes
        )

    return inputs


def point(x: Tensor, y: Tensor, **options):
    corners = torch.tensor(STAR, dtype=torch.float64).to(x)
    corners = corners.expand(x.shape[0], 5, 2) if x.dim() else corners
    return point_in_polygon(x, y, corners, batched=x.dim() > 0, **options)


KERNELS = ("numba",)
CASES = [
    Case("bubble_sort", run(bubble_sort, 1), uniform((5,), scale=2.0), kernels=KERNELS),
    # float16 positions: between two items a rounded value moves the answer by up to 6e-3
    Case("binary_search", run(binary_search, 1), increasing, kernels=KERNELS, factor=4.0),
    Case("levenshtein", run(levenshtein, 1), uniform((4,), (3,), scale=3.0), kernels=KERNELS, factor=4.0),
    Case("shortest_path", run(shortest_path, 2), uniform((2, 3)), kernels=KERNELS),
    Case("flood_fill", run(flood_fill, 2, 0.5), uniform((2, 3)), kernels=KERNELS, factor=2.0),
    Case("point_in_polygon", point, uniform((), ()), kernels=KERNELS, factor=4.0),
    Case("bank_queue", run(bank_queue, 1, 2), uniform((4,), (4,), scale=2.0), kernels=KERNELS),
]


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_contract(case, check):
    if check is check_compile and case.name not in ("binary_search", "point_in_polygon"):
        pytest.skip("tracing an unrolled program takes seconds: see the slow test")
    check(case)


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES[:1], ids=lambda case: case.name)
def test_compiles_whole(case):
    check_compile(case)


def test_all_algorithms_are_covered():
    assert {case.name for case in CASES} == set(ALGORITHMS)


@pytest.mark.parametrize("name", sorted(ALGORITHMS))
def test_each_is_short(name):
    source = inspect.getsource(ALGORITHMS[name]._function)
    assert len(source.splitlines()) <= 40
    assert not ALGORITHMS[name].__doc__.startswith(" ")


# -- the crisp limit

HARD = {"steepness": 1e4}


def test_bubble_sort_limit():
    x = torch.randn(6, 7, dtype=torch.float64)
    values, swaps = bubble_sort(x, batched=True, **HARD)
    torch.testing.assert_close(values, x.sort().values)
    for row, count in zip(x, swaps, strict=True):
        assert bubble_sort.crisp(row.tolist())[1] == pytest.approx(float(count))


@pytest.mark.parametrize("n", [1, 2, 3, 7, 8, 9, 16])
def test_binary_search_limit(n):
    a = torch.arange(n, dtype=torch.float64) * 2
    values = torch.arange(n + 1, dtype=torch.float64) * 2 - 1
    found = binary_search(a.expand(n + 1, n), values, batched=True, **HARD)
    torch.testing.assert_close(found, torch.arange(n + 1, dtype=torch.float64))
    assert [binary_search.crisp(a.tolist(), v) for v in values.tolist()] == list(range(n + 1))


@pytest.mark.parametrize(("s", "t"), [("kitten", "sitting"), ("", "abc"), ("flaw", "lawn"), ("same", "same")])
def test_levenshtein_limit(s, t):
    codes = [torch.tensor([float(ord(c)) for c in word], dtype=torch.float64) for word in (s, t)]
    expected = levenshtein.crisp(s, t)
    assert float(levenshtein(*codes, **HARD)) == pytest.approx(expected, abs=1e-6)


def dijkstra(cost) -> float:
    """The shortest way by another algorithm, to test against."""
    rows, columns = len(cost), len(cost[0])
    done, open_cells = {}, {(0, 0): cost[0][0]}
    while open_cells:
        cell = min(open_cells, key=open_cells.__getitem__)
        done[cell] = open_cells.pop(cell)
        for step in ((1, 0), (-1, 0), (0, 1), (0, -1)):
            i, j = cell[0] + step[0], cell[1] + step[1]
            if 0 <= i < rows and 0 <= j < columns and (i, j) not in done:
                way = done[cell] + cost[i][j]
                open_cells[i, j] = min(way, open_cells.get((i, j), way))
    return done[rows - 1, columns - 1]


def test_shortest_path_limit():
    cost = torch.rand(4, 4, 5, dtype=torch.float64) + 0.1
    found = shortest_path(cost, batched=True, **HARD)
    for grid, length in zip(cost.tolist(), found, strict=True):
        assert shortest_path.crisp(grid) == pytest.approx(dijkstra(grid))
        assert float(length) == pytest.approx(dijkstra(grid), abs=1e-6)


def test_flood_fill_limit_runs_around_corners():
    height = [[0.0, 9.0, 0.0, 0.0], [0.0, 9.0, 0.0, 9.0], [0.0, 0.0, 0.0, 9.0], [9.0, 9.0, 9.0, 0.0]]
    expected = [[1.0, 0.0, 1.0, 1.0], [1.0, 0.0, 1.0, 0.0], [1.0, 1.0, 1.0, 0.0], [0.0, 0.0, 0.0, 0.0]]
    assert flood_fill.crisp(height, 1.0) == expected
    wet = flood_fill(torch.tensor(height), 1.0, steepness=50.0)
    torch.testing.assert_close(torch.tensor(wet), torch.tensor(expected))


def test_point_in_polygon_limit():
    points = torch.randn(40, 2, dtype=torch.float64)
    inside = point(points[:, 0], points[:, 1], steepness=1e7)
    expected = [point_in_polygon.crisp(x, y, STAR) for x, y in points.tolist()]
    torch.testing.assert_close(inside, torch.tensor(expected, dtype=torch.float64), atol=1e-6, rtol=0)
    assert 0 < sum(expected) < 40


def test_bank_queue_limit():
    arrivals, services = torch.rand(5, 9, dtype=torch.float64), 3 * torch.rand(5, 9, dtype=torch.float64)
    waits = bank_queue(arrivals, services, 3, batched=True, **HARD)
    expected = [bank_queue.crisp(a, s, 3) for a, s in zip(arrivals.tolist(), services.tolist(), strict=True)]
    torch.testing.assert_close(waits, torch.tensor(expected, dtype=torch.float64), atol=1e-5, rtol=0)


def test_results_are_tensors_whatever_the_data():
    swaps = bubble_sort(torch.zeros(3, 1), batched=True)[1]
    assert swaps.tolist() == [0.0, 0.0, 0.0]
    cells = flood_fill(torch.full((2, 2), 9.0), 1.0)
    assert all(isinstance(cell, Tensor) for row in cells for cell in row)


# -- softness matters


@pytest.mark.parametrize("options", [{"relax": Cauchy(10.0)}, {"relax": Logistic(2.0)}], ids=["family", "steepness"])
def test_relaxation_has_an_effect(options):
    x = torch.randn(2, 3)
    assert not torch.allclose(bubble_sort(x, batched=True, **options)[0], bubble_sort(x, batched=True)[0], atol=1e-3)


def test_exit_has_an_effect():
    s, t = torch.rand(2, 4) * 3, torch.rand(2, 3) * 3
    sech = levenshtein(s, t, batched=True, exit=Sech(3.0))
    assert not torch.allclose(sech, levenshtein(s, t, batched=True, exit=BumpExit()), atol=1e-3)


def test_swaps_fall_under_gradient_descent():
    x = torch.tensor([3.0, 2.0, 1.0, 0.0], requires_grad=True)
    before = float(bubble_sort(x, steepness=2.0)[1].detach())
    optimiser = torch.optim.SGD([x], lr=0.5)
    for _ in range(40):
        optimiser.zero_grad()
        bubble_sort(x, steepness=2.0)[1].backward()
        optimiser.step()
    after = float(bubble_sort(x, steepness=2.0)[1].detach())
    assert after < before - 2.0

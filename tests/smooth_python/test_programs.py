"""The programs people want, and their questions: crisp in a batch as in Python, short, and better after a few steps."""

from __future__ import annotations

import inspect

import pytest
import torch
from examples.simulations import PROGRAMS
from examples.simulations.problems import PROBLEMS, annealed

from algonet.smooth_python import Merge, Particles, Perturb, smooth

SMALL = {
    "bouncing ball": {"tiles": 1, "count": 8},
    "thermostat": {"days": 1, "count": 6},
    "inventory": {"days": 12, "count": 8},
    "traffic lights": {"lights": 2, "plans": 2, "steps": 36, "count": 4},
    "epidemic": {"people": 8, "rounds": 3, "count": 16},
    "tournament": {"players": 8, "count": 32},
}
#: How each is descended here: those whose mean state means something merged, the others by whole paths.
WAYS = {
    "bouncing ball": lambda done: {"paths": Particles(16)},
    "thermostat": annealed(2.0, 20.0),
    "inventory": lambda done: {"paths": Perturb(8, {"reorder": 2.0, "amount": 3.0})},
    "traffic lights": lambda done: {"paths": Perturb(16, {"green": 0.8, "red": 0.8, "first": 0.5})},
    "epidemic": lambda done: {"paths": Particles(8)},
    "tournament": lambda done: {"paths": Particles(8), "steepness": 4.0},
}


def numbers(x):
    return x.tolist() if isinstance(x, torch.Tensor) else x


@pytest.mark.parametrize("name", PROGRAMS)
def test_programs_are_short(name):
    assert len(inspect.getsource(inspect.getmodule(PROGRAMS[name].__wrapped__)).splitlines()) < 60


@pytest.mark.parametrize("name", PROBLEMS)
def test_the_objective_is_that_of_the_function_as_written(name):
    problem = PROBLEMS[name](1, **SMALL[name])
    x = torch.rand(3, problem.size, generator=torch.Generator().manual_seed(0)).double()
    scenarios = tuple(s.double() for s in problem.scenarios)
    for row, found in zip(x, problem.objective(x.float()), strict=True):
        results = []
        for k in range(problem.count):
            one = problem.arguments(row, tuple(s[k] for s in scenarios))[
                : len(inspect.signature(problem.program).parameters)
            ]
            results.append(problem.program.crisp(*map(numbers, one)))
        wanted = problem.score(torch.tensor(results, dtype=torch.float64), scenarios)
        torch.testing.assert_close(found.double(), wanted, rtol=2e-3, atol=1e-4)


@pytest.mark.parametrize("name", PROBLEMS)
def test_some_steps_make_it_better(name):
    problem = PROBLEMS[name](2, **SMALL[name])
    steps = list(problem.descend(WAYS[name], steps=25, rate=0.08, batch=16, seed=1))
    before = problem.objective(torch.full((1, problem.size), problem.start))
    after = problem.objective(steps[-1][None])
    assert float(after) < 0.95 * float(before)


def test_perturbations_of_some_parameters_leave_the_others_alone():
    @smooth
    def product(x, scales):
        return x * scales[0] + scales[1]

    x = torch.tensor([1.0, 2.0], requires_grad=True)
    scales = torch.tensor([3.0, 0.5], requires_grad=True)
    paths = Perturb(2000, {"scales": torch.tensor([0.5, 1e-6])})
    y = product(x, scales, batched=True, shared=("scales",), paths=paths, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(y, torch.tensor([3.5, 6.5]), atol=1e-3, rtol=0)
    (slope,) = torch.autograd.grad(y.sum(), scales)
    assert float(slope[0]) == pytest.approx(3.0, rel=0.15)
    assert not product(x, scales, batched=True, shared=("scales",), paths=Perturb(4, {"x": 0.1})).isnan().any()
    for scale, message in (({"y": 0.1}, "no parameter"), ({}, "names no parameter"), ({"x": -1.0}, "positive")):
        with pytest.raises(ValueError, match=message):
            product(x, scales, batched=True, shared=("scales",), paths=Perturb(4, scale))
    with pytest.raises(ValueError, match="no floating tensor"):
        product(x, [2.0, 3.0], batched=True, paths=Perturb(4, {"scales": 0.1}))


def test_lists_of_results_have_the_gradients_of_each():
    @smooth(steepness=5.0)
    def powers(x, base):
        found, y = [], 1.0
        for k in range(6):
            y = y * x if x > base[k] else y + base[k]
            found.append(y)
        return found

    base = torch.linspace(-1.0, 1.0, 6, dtype=torch.float64, requires_grad=True)
    x = torch.tensor([0.3, -0.2, 0.8], dtype=torch.float64, requires_grad=True)

    def run(backend):
        found = powers(x, base, batched=True, shared=("base",), backend=backend, paths=Merge(check=False))
        return [*found, *torch.autograd.grad(sum((k + 1) * f.square().sum() for k, f in enumerate(found)), (x, base))]

    run("numba")
    for one, other in zip(run("numba"), run("reference"), strict=True):
        torch.testing.assert_close(one, other)
    # What is returned may be changed in place, by itself
    first, second, *_ = powers(x, base, batched=True, shared=("base",), backend="numba")
    kept = second.detach().clone()
    first += 1.0
    assert torch.equal(second.detach(), kept)

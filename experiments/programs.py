"""Six simulations with decisions: how soon do gradients find good parameters, and how soon does a black box?

The programs and their questions are those of `examples.simulations`: restitutions of a floor from trajectories of
a ball, a thermostat's timetable, when and how much a shop orders, traffic lights, vaccination on a network, skills from the
results of tournaments. Every method is judged by the program as written (crisp) on the same scenarios; parameters lie in [0, 1]
and begin at the same point. Gradients come from merged states whose steepness rises (Merge), from particles, and from
perturbed crisp runs (Perturb), some scenarios a step, by Adam. Black boxes are random search and CMA-ES (the library
`cmaes`), on all scenarios and, as the gradients have it, on some of them, drawn anew for each generation; they run the crisp
program in one batch for the whole generation, on the same kernels.

Seconds are of one core, recording and compiling left out for all. A method is "there" when it has come within 1 % of the way
from the start to the best value that any black box found in its `--seconds`; "sooner" is the time of the first black box that
is there by that of the gradient. Medians over instances. Rates and softness were chosen on instances with other seeds.

Run: python -m experiments.programs [--seconds 10] [--seeds 0 1] [--figure FILE]
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
from examples.simulations.problems import PROBLEMS, Problem, annealed
from torch import Tensor

from algonet.core.files import write_bytes
from algonet.smooth_python import Particles, Perturb
from experiments.harness import Row, arguments, record

#: How near to the black box's best value counts as there, as a share of the way from the start.
NEAR = 0.01


@dataclass(frozen=True)
class Tuning:
    """What the gradients of one problem use: Merge's steepness at the start and at the end, and that of particles; the size
    of perturbations, by parameter; scenarios a step, particles (and whether their terms are averaged over coins that decide
    more) and perturbed copies of each, Adam's rate, momenta and steps."""

    steepness: tuple[float, float]
    drawn: float
    scale: dict[str, float]
    batch: int = 32
    particles: int = 2
    copies: int = 8
    rate: float = 0.1
    steps: int = 80
    expected: bool = False
    betas: tuple[float, float] = (0.9, 0.99)


TUNED = {
    "bouncing ball": Tuning((50.0, 500.0), 200.0, {"floor": 0.01}, particles=4, steps=100),
    "thermostat": Tuning((2.0, 20.0), 4.0, {"settings": 0.5}, batch=16),
    "inventory": Tuning((0.3, 5.0), 1.0, {"reorder": 2.0, "amount": 3.0}, particles=8, rate=0.07, steps=100),
    "traffic lights": Tuning(
        (1.0, 20.0), 2.0, {"green": 1.0, "red": 1.0, "first": 1.0}, batch=8, particles=16, copies=32, steps=120
    ),
    "epidemic": Tuning((10.0, 200.0), 50.0, {"doses": 0.2}, particles=4, copies=16, expected=True),
    "tournament": Tuning((4.0, 50.0), 4.0, {"skill": 0.3}, batch=256, steps=50, expected=True, betas=(0.7, 0.9)),
}


#: Sizes at which an instance takes no time.
QUICK: dict[str, dict[str, int]] = {
    "bouncing ball": {"tiles": 4, "count": 4},
    "thermostat": {"days": 1, "count": 4},
    "inventory": {"days": 10, "count": 4},
    "traffic lights": {"lights": 2, "steps": 24, "count": 4},
    "epidemic": {"people": 8, "rounds": 3, "count": 8},
    "tournament": {"players": 4, "count": 16},
}


class Point(NamedTuple):
    """Parameters that a method stood for after so many seconds."""

    seconds: float
    x: Tensor


Method = Callable[[Problem, Tuning, int], Iterator[Tensor]]


def descend(options: Callable[[Problem, Tuning], Callable[[float], dict[str, Any]]]) -> Method:
    def run(problem: Problem, tuning: Tuning, seed: int) -> Iterator[Tensor]:
        way = options(problem, tuning)
        return problem.descend(way, tuning.steps, tuning.rate, tuning.batch, seed, tuning.betas)

    return run


def merged(problem: Problem, tuning: Tuning) -> Callable[[float], dict[str, Any]]:
    return annealed(*tuning.steepness)


def drawn(problem: Problem, tuning: Tuning) -> Callable[[float], dict[str, Any]]:
    return lambda done: {"paths": Particles(tuning.particles, tuning.expected), "steepness": tuning.drawn}


def perturbed(problem: Problem, tuning: Tuning) -> Callable[[float], dict[str, Any]]:
    return lambda done: {"paths": Perturb(tuning.copies, tuning.scale)}


def random_search(problem: Problem, tuning: Tuning, seed: int) -> Iterator[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    best, found = torch.full((problem.size,), problem.start), math.inf
    while True:
        x = torch.rand(16, problem.size, generator=generator)
        values = problem.objective(x)
        k = int(values.argmin())
        if float(values[k]) < found:
            best, found = x[k], float(values[k])
        yield best


def cma(part: bool) -> Method:
    """CMA-ES from the common start; on all scenarios the best of all, on a part of them the distribution's mean."""

    def run(problem: Problem, tuning: Tuning, seed: int) -> Iterator[Tensor]:
        import numpy as np
        from cmaes import CMA

        generator = torch.Generator().manual_seed(seed)
        start = np.full(problem.size, problem.start)
        bounds = np.stack([np.zeros(problem.size), np.ones(problem.size)], 1)
        optimiser = CMA(mean=start, sigma=0.2, bounds=bounds, seed=seed)
        best, found = torch.tensor(start, dtype=torch.float32), math.inf
        while not optimiser.should_stop():
            asked = [optimiser.ask() for _ in range(optimiser.population_size)]
            which = torch.randperm(problem.count, generator=generator)[: tuning.batch] if part else None
            x = torch.tensor(np.stack(asked), dtype=torch.float32)
            values = problem.objective(x, which)
            optimiser.tell(list(zip(asked, values.tolist(), strict=True)))
            k = int(values.argmin())
            if part:
                best = torch.tensor(optimiser.mean, dtype=torch.float32).clamp(0.0, 1.0)
            elif float(values[k]) < found:
                best, found = x[k], float(values[k])
            yield best

    return run


GRADIENTS: dict[str, Method] = {
    "Merge, annealed": descend(merged),
    "Particles": descend(drawn),
    "Perturb": descend(perturbed),
}
BLACK_BOXES: dict[str, Method] = {
    "random search": random_search,
    "CMA-ES": cma(part=False),
    "CMA-ES, some scenarios": cma(part=True),
}


def curve(method: Method, problem: Problem, tuning: Tuning, seconds: float, seed: int) -> list[tuple[float, float]]:
    """(seconds, crisp objective) over time. Judging is not on the clock; nor is the first step, which records and compiles."""
    next(method(problem, tuning, seed))
    points, spent = [Point(0.0, torch.full((problem.size,), problem.start))], 0.0
    steps = method(problem, tuning, seed)
    while spent < seconds:
        begun = time.process_time()
        x = next(steps, None)
        spent += time.process_time() - begun
        if x is None:
            break
        # What has not changed or comes right after the last one is not judged
        if x is points[-1].x:
            continue
        close = len(points) > 1 and spent < 1.04 * points[-2].seconds
        points[len(points) - close :] = [Point(spent, x)]
    # Batches of one size: another one would be recorded anew
    every = torch.stack([p.x for p in points] + [points[-1].x] * (-len(points) % 8)).split(8)
    values = torch.cat([problem.objective(some) for some in every])[: len(points)].tolist()
    return [(p.seconds, v) for p, v in zip(points, values, strict=True)]


def first(found: list[tuple[float, float]], value: float) -> float:
    """Seconds until a curve is as low as this."""
    return next((seconds for seconds, v in found if v <= value), math.inf)


class Race(NamedTuple):
    """All methods on one instance: their curves, where they began, and the best that a black box found."""

    size: int
    curves: dict[str, list[tuple[float, float]]]
    start: float
    best: float

    def time(self, by: str, near: float = NEAR) -> float:
        return first(self.curves[by], self.best + near * (self.start - self.best))


def race(name: str, seed: int, seconds: float, quick: bool) -> Race:
    problem, tuning = PROBLEMS[name](seed, **QUICK[name]) if quick else PROBLEMS[name](seed), TUNED[name]
    curves = {}
    for by, method in (GRADIENTS | BLACK_BOXES).items():
        # Random search is nowhere near after a second, nor after ten
        limit = min(seconds, 2.0) if method is random_search else seconds
        # Another seed than the instance's, or random search would draw the truth first
        curves[by] = curve(method, problem, tuning, limit, seed + 10_000)
        print(f"{name}, seed {seed}, {by}: {curves[by][-1][1]:.5g} after {curves[by][-1][0]:.2f} s", flush=True)
    best = min(value for by in BLACK_BOXES for _, value in curves[by])
    return Race(problem.size, curves, curves["CMA-ES"][0][1], best)


def rows_of(name: str, races: list[Race]) -> list[Row]:
    """Medians over the instances; a method that does not arrive in more than half of them has no row."""
    rows = [Row(name, races[0].size, "score", "parameters")]
    rows.append(Row(name, statistics.median(r.start for r in races), "difference", "start"))
    rows.append(Row(name, statistics.median(r.best for r in races), "difference", "black box's best"))
    for by in GRADIENTS:
        rows.append(
            Row(name, statistics.median(min(v for _, v in r.curves[by]) for r in races), "difference", f"{by}: best")
        )
    for by in (*GRADIENTS, *BLACK_BOXES):
        seconds = statistics.median(r.time(by) for r in races)
        if math.isfinite(seconds):
            rows.append(Row(name, seconds, "s", f"{by}: there"))
    for by in GRADIENTS:
        ratios = [min(r.time(box) for box in BLACK_BOXES) / r.time(by) for r in races]
        rows.append(Row(name, statistics.median(ratios), "ratio", f"{by}: sooner"))
    return rows


def figure(races: dict[str, list[Race]]) -> bytes:
    """Objective over time, all methods, the first instance of each problem."""
    import matplotlib.pyplot as plt

    from algonet.apps.drawing import png

    colours = dict(
        zip((*GRADIENTS, *BLACK_BOXES), ("#1f4e79", "#d1495b", "#2a9d8f", "0.75", "0.35", "0.55"), strict=True)
    )
    drawing, axes = plt.subplots(2, 3, figsize=(12, 6.4), layout="constrained", squeeze=False)
    for axis, (name, found) in zip(axes.flat, races.items(), strict=False):
        for by, line in found[0].curves.items():
            lowest, points = math.inf, []
            for seconds, value in line:
                lowest = min(lowest, value)
                points.append((max(seconds, 1e-3), lowest))
            points.append((max(found[0].curves["CMA-ES"][-1][0], points[-1][0]), lowest))
            style = "-" if by in GRADIENTS else "--"
            axis.plot(*zip(*points, strict=True), style, color=colours[by], lw=2, label=by)
        axis.set_xscale("log")
        if found[0].best < 0.05 * found[0].start:
            axis.set_yscale("log")
        axis.set_title(f"{name}, {found[0].size} parameters", fontsize=10)
        axis.spines[["top", "right"]].set_visible(False)
    for axis in axes[-1]:
        axis.set_xlabel("seconds")
    axes[0][0].set_ylabel("objective as written, best so far")
    axes[0][0].legend(frameon=False, fontsize=8)
    return png(drawing)


def restitution(seeds: list[int], quick: bool) -> list[Row]:
    """A floor of one restitution, from the trajectories of eight balls: how far off it is, in per cent, by particles."""
    errors = []
    for seed in seeds:
        problem = PROBLEMS["bouncing ball"](seed, tiles=1, count=8)
        way = lambda done: {"paths": Particles(64)}  # noqa: E731
        *_, x = problem.descend(way, 3 if quick else 100, 0.05, 8, seed + 10_000)
        # The instance draws its restitution first
        truth = 0.5 + 0.45 * float(torch.rand(1, generator=torch.Generator().manual_seed(seed)))
        errors.append(100 * abs(0.5 + 0.45 * float(x) - truth) / truth)
    return [Row("bouncing ball, one tile", max(errors), "difference", "Particles: largest error of the restitution, %")]


def main() -> None:
    options = arguments(
        __doc__, choices={"problems": PROBLEMS}, seconds=10.0, seeds=[0, 1], problems=list(PROBLEMS), figure=""
    )
    if options.quick:
        options.seconds, options.seeds = 0.05, [0]
    races = {name: [race(name, s, options.seconds, options.quick) for s in options.seeds] for name in options.problems}
    if options.figure:
        write_bytes(Path(options.figure), figure(races))
    options.figure = None
    rows = [row for name, found in races.items() for row in rows_of(name, found)]
    record(options.json, rows + restitution(options.seeds, options.quick), options)


if __name__ == "__main__":
    main()

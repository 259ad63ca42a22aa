"""Each program with data and a question: parameters to be found, for the gallery and for comparing ways to find them.

Parameters are numbers in [0, 1], so that nobody has to know their units; `Problem.arguments` makes the program's of them.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from algonet.smooth_python import Merge, SmoothFunction

from .ball import bouncing_ball
from .epidemic import epidemic
from .inventory import inventory
from .thermostat import thermostat
from .tournament import knockout
from .traffic import traffic_lights

#: A steepness at which a smooth run is the crisp one, for all but ties.
CRISP = 1e6


@dataclass(frozen=True, eq=False)
class Problem:
    """`program` on `scenarios` (tensors with the scenarios in front), with `size` parameters in [0, 1], begun at `start`.

    `arguments(x, scenarios)` are the program's, for parameters x with or without a batch in front; `names` those that come
    from x. `score(results, scenarios)` is the objective of stacked results, whose scenarios lie along dimension -2 (or -1,
    where a program returns one number).
    """

    program: SmoothFunction
    size: int
    start: float
    scenarios: tuple[Tensor, ...]
    names: tuple[str, ...]
    arguments: Callable[[Tensor, tuple[Tensor, ...]], tuple[Any, ...]]
    score: Callable[[Tensor, tuple[Tensor, ...]], Tensor]

    @property
    def count(self) -> int:
        return self.scenarios[0].shape[0]

    def some(self, which: Tensor | None) -> tuple[Tensor, ...]:
        return self.scenarios if which is None else tuple(s[which] for s in self.scenarios)

    def loss(self, x: Tensor, which: Tensor | None = None, **options: Any) -> Tensor:
        """The smooth objective of parameters (size,) on the scenarios `which` (all of them), by the options of the call."""
        scenarios = self.some(which)
        results = self.program(*self.arguments(x, scenarios), batched=True, shared=self.names, **options)
        return self.score(_stacked(results), scenarios)

    @torch.no_grad()
    def objective(self, x: Tensor, which: Tensor | None = None) -> Tensor:
        """The program's own objective, crisp, of every row of x (rows, size): one batch."""
        scenarios = self.some(which)
        rows, count = x.shape[0], scenarios[0].shape[0]
        every = tuple(s.repeat(rows, *[1] * (s.dim() - 1)) for s in scenarios)
        arguments = self.arguments(x.repeat_interleave(count, 0), every)
        results = _stacked(self.program(*arguments, batched=True, steepness=CRISP, paths=Merge(check=False)))
        return self.score(results.unflatten(0, (rows, count)), scenarios)

    def descend(
        self,
        options: Callable[[float], dict[str, Any]],
        steps: int = 80,
        rate: float = 0.1,
        batch: int = 32,
        seed: int = 0,
        betas: tuple[float, float] = (0.9, 0.99),
    ) -> Iterator[Tensor]:
        """Parameters after each step of Adam, on `batch` scenarios drawn anew, with a rate that falls like a cosine.

        `options(share of the steps done)` are those of the program's call: how its paths are taken, how steep it is.
        """
        generator = torch.Generator().manual_seed(seed)
        x = torch.full((self.size,), self.start, requires_grad=True)
        optimiser = torch.optim.Adam([x], lr=rate, betas=betas)
        for step in range(steps):
            done = step / steps
            optimiser.param_groups[0]["lr"] = rate * (0.5 + 0.5 * math.cos(math.pi * done))
            which = torch.randperm(self.count, generator=generator)[:batch]
            (x.grad,) = torch.autograd.grad(self.loss(x, which, generator=generator, **options(done)), x)
            optimiser.step()
            with torch.no_grad():
                x.clamp_(0.0, 1.0)
            yield x.detach().clone()


def annealed(low: float, high: float) -> Callable[[float], dict[str, Any]]:
    """Options of merged states whose steepness rises from `low` to `high` as the steps go by."""
    # In a tensor: a number would be another program to record in every step
    return lambda done: {"paths": Merge(check=False), "steepness": torch.tensor(low * (high / low) ** done)}


def _stacked(results: Any) -> Tensor:
    return torch.stack(results, -1) if isinstance(results, list) else results


def _mean(results: Tensor, scenarios: tuple[Tensor, ...]) -> Tensor:
    return results.mean(-1)


def ball_problem(seed: int = 0, tiles: int = 20, count: int = 32) -> Problem:
    """Restitutions from 0.5 to 0.95 of the tiles of a floor, from measured trajectories."""
    generator = torch.Generator().manual_seed(seed)
    heights = torch.linspace(0.02, 1.5, count)
    truth = 0.5 + 0.45 * torch.rand(tiles, generator=generator)
    measured = _stacked(bouncing_ball(heights, truth, batched=True, shared=("floor",), steepness=CRISP))
    measured = measured + 0.003 * torch.randn(measured.shape, generator=generator)
    return Problem(
        *(bouncing_ball, tiles, 0.5, (heights, measured), ("floor",)),
        arguments=lambda x, scenarios: (scenarios[0], 0.5 + 0.45 * x),
        score=lambda results, scenarios: (results - scenarios[1]).square().mean((-1, -2)),
    )


def thermostat_problem(seed: int = 0, days: int = 7, count: int = 64) -> Problem:
    """A timetable for a week of cold days, a setting from 12 to 24 degrees for each hour; heat is dearer in the evening."""
    generator = torch.Generator().manual_seed(seed)
    hours = torch.arange(48 * days) / 2
    mean = (-2.0 + 4.0 * torch.randn(count, days, generator=generator)).repeat_interleave(48, 1)
    outside = mean - 4.0 * torch.cos((hours - 3) * (2 * torch.pi / 24)) + torch.randn(mean.shape, generator=generator)
    price = [2.0 if 17 <= h % 24 < 20 else 1.0 for h in hours.tolist()]
    wanted: list[float | None] = []
    for day in range(days):
        free = day >= 5
        for h in hours[:48].tolist():
            home = 8 <= h < 23 if free else 6.5 <= h < 8.5 or 16 <= h < 22.5
            wanted.append(21.0 if home else None if 8 <= h < 16 else 16.0)
    return Problem(
        *(thermostat, 24 * days, 0.5, (outside,), ("settings",)),
        arguments=lambda x, scenarios: (scenarios[0], 12.0 + 12.0 * x, price, wanted),
        score=_mean,
    )


def inventory_problem(seed: int = 0, days: int = 91, count: int = 128) -> Problem:
    """When to order (below 0 to 40 pieces) and how much (0 to 60), day by day; demand follows the week, and a feast comes."""
    generator = torch.Generator().manual_seed(seed)
    day = torch.arange(days)
    level = 4.0 + 3.0 * (day % 7 >= 5) + 8.0 * torch.exp(-(((day - 0.6 * days) / 2.5) ** 2))
    # Four exponential times in a row: a Gamma distribution of mean 1, drawn from a generator
    noise = -torch.rand(count, days, 4, generator=generator).clamp_min(1e-6).log().mean(-1)
    return Problem(
        *(inventory, 2 * days, 0.4, (level * noise,), ("reorder", "amount")),
        arguments=lambda x, scenarios: (scenarios[0], 40.0 * x[..., :days], 60.0 * x[..., days:]),
        score=_mean,
    )


def traffic_problem(seed: int = 0, lights: int = 6, plans: int = 3, steps: int = 120, count: int = 32) -> Problem:
    """Green and red times from 2 to 20 steps, plan by plan, and when each light begins; cars come in platoons, more at noon."""
    generator = torch.Generator().manual_seed(seed)
    busy = 0.25 + 0.3 * (torch.arange(steps // 6) * plans // (steps // 6) == plans // 2)
    platoons = 0.2 + 0.6 * (torch.rand(count, steps // 6, generator=generator) < busy)
    sides = (
        0.1 + 0.25 * torch.rand(lights, generator=generator) + 0.03 * torch.randn(count, lights, generator=generator)
    )
    times = plans * lights

    def arguments(x: Tensor, scenarios: tuple[Tensor, ...]) -> tuple[Any, ...]:
        green, red = (2.0 + 18.0 * x[..., k * times : (k + 1) * times].unflatten(-1, (plans, lights)) for k in range(2))
        return *scenarios, green, red, 12.0 * x[..., 2 * times :]

    return Problem(
        *(traffic_lights, 2 * times + lights, 0.4),
        scenarios=(platoons.repeat_interleave(6, 1), sides.clamp_min(0.02)),
        names=("green", "red", "first"),
        arguments=arguments,
        score=_mean,
    )


def epidemic_problem(seed: int = 0, people: int = 60, rounds: int = 8, count: int = 256) -> Problem:
    """Doses from 0 to 1 on a network with some well connected people and chance bridges."""
    generator, chance = torch.Generator().manual_seed(seed), random.Random(seed)
    pairs = {(i, (i + 1) % people) for i in range(people)}
    while len(pairs) < 2 * people:
        # The better connected somebody is, the more likely the next one knows them
        i, j = chance.choice(chance.choice(sorted(pairs))), chance.randrange(people)
        if i != j and (j, i) not in pairs:
            pairs.add((i, j))
    contacts = [sorted({j for p in pairs for j in p if i in p and j != i}) for i in range(people)]
    patient = torch.nn.functional.one_hot(torch.randint(people, (count,), generator=generator), people).float()
    luck = torch.rand(count, rounds, people, generator=generator)
    return Problem(
        *(epidemic, people, 0.3, (patient, luck), ("doses",)),
        arguments=lambda x, scenarios: (*scenarios, x, contacts),
        score=_mean,
    )


def tournament_problem(seed: int = 0, players: int = 64, count: int = 512) -> Problem:
    """Skills from -2 to 2 that explain how often each player won in 2,000 tournaments."""
    generator = torch.Generator().manual_seed(seed)
    truth = torch.randn(players, generator=generator).clamp(-1.9, 1.9)
    truth = truth - truth.mean()

    def draw(many: int) -> Tensor:
        u = torch.rand(many, players - 1, generator=generator).clamp(1e-6, 1 - 1e-6)
        return torch.log(u / (1 - u))

    luck, past = draw(count), draw(2000)
    outcomes = _stacked(
        knockout(truth, past, batched=True, shared=("skill",), steepness=CRISP, paths=Merge(check=False))
    )
    wins = outcomes.mean(0)
    return Problem(
        *(knockout, players, 0.5, (luck,), ("skill",)),
        arguments=lambda x, scenarios: (4.0 * x - 2.0, scenarios[0]),
        score=lambda results, scenarios: (results.mean(-2) - wins).square().mean(-1),
    )


PROBLEMS = {
    "bouncing ball": ball_problem,
    "thermostat": thermostat_problem,
    "inventory": inventory_problem,
    "traffic lights": traffic_problem,
    "epidemic": epidemic_problem,
    "tournament": tournament_problem,
}

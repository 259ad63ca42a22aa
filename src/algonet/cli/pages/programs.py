"""Six simulations in plain Python, and what gradients find in them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from algonet.cli.gallery import Figure, png
from algonet.cli.pages import BLUE, RED, open_frame
from algonet.smooth_python import Merge, Particles, Perturb
from algonet.smooth_python.programs import problems
from algonet.smooth_python.programs.problems import Problem, annealed

TITLE = "Programs people want"
INTRO = (
    "A ball, a thermostat, a shop, traffic lights, an epidemic, a tournament: each is a simulation in some thirty lines of "
    "plain Python, full of decisions. @smooth gives it gradients, and gradients find its parameters."
)


def figures(quick: bool) -> Iterator[Figure]:
    for name, draw in _FIGURES.items():
        yield Figure(name, draw(quick), _CAPTIONS[name])


def _found(
    problem: Problem, quick: bool, options: Callable[[float], dict[str, Any]], steps: int = 80, **more: Any
) -> tuple[Tensor, list[float]]:
    """The parameters after a descent, and the crisp objective of some of those on the way."""
    steps = 3 if quick else steps
    path = [torch.full((problem.size,), problem.start), *problem.descend(options, steps=steps, **more)]
    return path[-1], [float(problem.objective(x[None])[0]) for x in path[:: max(len(path) // 20, 1)]]


def _panels(height: float = 3.2, ratio: float = 1.8) -> Any:
    """A figure and its two axes, the left one wider."""
    import matplotlib.pyplot as plt

    return plt.subplots(1, 2, figsize=(11, height), width_ratios=[ratio, 1])


def _objective(axis: Any, values: list[float]) -> None:
    axis.plot(torch.linspace(0, 1, len(values)), values, color=RED, lw=2)
    axis.set_title("objective of the program as written", fontsize=10)
    axis.set_xlabel("share of the steps")
    open_frame(axis)


def _ball(quick: bool) -> bytes:
    problem = problems.ball_problem(3, *((5, 8) if quick else ()))
    found, values = _found(
        problem, quick, lambda done: {"paths": Particles(4), "steepness": 50.0}, steps=160, rate=0.05
    )
    heights, measured = problem.scenarios
    figure, axes = _panels()
    for x, colour, name in ((torch.full_like(found, problem.start), "0.75", "first guess"), (found, RED, "found")):
        floor = 0.5 + 0.45 * x
        line = problem.program.crisp(float(heights[-1]), floor.tolist())
        axes[0].plot(line, color=colour, lw=2, label=name)
    axes[0].plot(measured[-1], ".", color=BLUE, ms=4, label="measured")
    axes[0].set_xlabel("step")
    axes[0].set_title("height of the ball", fontsize=10)
    axes[0].legend(frameon=False, fontsize=8)
    axes[1].bar(range(len(found)), (0.5 + 0.45 * found).tolist(), color=RED, width=0.8, label="found")
    axes[1].set_ylim(0.4, 1.0)
    axes[1].set_title(f"restitution of each tile (objective {values[0]:.2g} to {values[-1]:.2g})", fontsize=10)
    open_frame(*axes)
    figure.tight_layout()
    return png(figure)


def _thermostat(quick: bool) -> bytes:
    problem = problems.thermostat_problem(3, *((1, 4) if quick else ()))
    found, values = _found(problem, quick, annealed(2.0, 20.0), batch=16)
    figure, axes = _panels()
    hours = torch.arange(problem.size)
    axes[0].step(hours, 12.0 + 12.0 * found, where="post", color=RED, lw=2, label="setting found")
    wanted = problem.arguments(found, problem.scenarios)[3]
    axes[0].plot(
        torch.arange(len(wanted)) / 2,
        [float("nan") if w is None else w for w in wanted],
        color=BLUE,
        lw=2,
        label="wanted",
    )
    axes[0].set_xlabel("hour")
    axes[0].set_ylabel("degrees")
    axes[0].legend(frameon=False, fontsize=8)
    open_frame(axes[0])
    _objective(axes[1], values)
    figure.tight_layout()
    return png(figure)


def _inventory(quick: bool) -> bytes:
    problem = problems.inventory_problem(3, *((10, 8) if quick else ()))
    found, values = _found(problem, quick, lambda done: {"paths": Particles(8)}, steps=150, rate=0.07)
    days = problem.size // 2
    figure, axes = _panels()
    axes[0].bar(range(days), problem.scenarios[0].mean(0).tolist(), color="0.75", label="mean demand")
    axes[0].step(range(days), (40.0 * found[:days]).tolist(), where="mid", color=RED, lw=2, label="order below")
    axes[0].set_xlabel("day")
    axes[0].legend(frameon=False, fontsize=8)
    open_frame(axes[0])
    _objective(axes[1], values)
    figure.tight_layout()
    return png(figure)


def _traffic(quick: bool) -> bytes:
    problem = problems.traffic_problem(3, *((2, 2, 24, 4) if quick else ()))
    scale = {"green": 1.0, "red": 1.0, "first": 1.0}
    found, values = _found(problem, quick, lambda done: {"paths": Perturb(32, scale)}, batch=8, steps=120)
    _, _, green, red, _ = problem.arguments(found, problem.scenarios)
    figure, axes = _panels()
    plans, lights = green.shape
    for plan in range(plans):
        where = torch.arange(lights) + 0.25 * (plan - (plans - 1) / 2)
        axes[0].bar(
            where, green[plan].tolist(), width=0.22, color="#2a9d8f", alpha=0.5 + 0.5 * plan / max(plans - 1, 1)
        )
        axes[0].bar(where, (-red[plan]).tolist(), width=0.22, color=RED, alpha=0.5 + 0.5 * plan / max(plans - 1, 1))
    axes[0].axhline(0, color="0.3", lw=0.8)
    axes[0].set_xticks(range(lights), [f"light {k + 1}" for k in range(lights)], fontsize=8)
    axes[0].set_title("steps of green (up) and red (down) for the street, plan by plan", fontsize=10)
    open_frame(axes[0])
    _objective(axes[1], values)
    figure.tight_layout()
    return png(figure)


def _epidemic(quick: bool) -> bytes:
    problem = problems.epidemic_problem(3, *((8, 3, 8) if quick else ()))
    found, values = _found(problem, quick, annealed(10.0, 200.0))
    contacts = problem.arguments(found, problem.scenarios)[3]
    angles = torch.arange(len(contacts)) * (2 * torch.pi / len(contacts))
    x, y = angles.cos(), angles.sin()
    figure, axes = _panels(4.4, 1.2)
    for i, friends in enumerate(contacts):
        for j in friends:
            axes[0].plot([x[i], x[j]], [y[i], y[j]], color="0.85", lw=0.8, zorder=1)
    sizes = [20 + 14 * len(friends) for friends in contacts]
    dots = axes[0].scatter(x, y, s=sizes, c=found, cmap="viridis", vmin=0, vmax=1, zorder=2, edgecolors="white")
    axes[0].set_aspect("equal")
    axes[0].axis("off")
    axes[0].set_title("dose of each person (size: contacts)", fontsize=10)
    figure.colorbar(dots, ax=axes[0], shrink=0.7)
    _objective(axes[1], values)
    figure.tight_layout()
    return png(figure)


def _tournament(quick: bool) -> bytes:
    problem = problems.tournament_problem(3, *((4, 16) if quick else ()))
    found, values = _found(problem, quick, lambda done: {"paths": Particles(4), "steepness": 4.0}, batch=64)
    skill = 4.0 * found - 2.0
    wins = problem.program(
        skill, *problem.scenarios, batched=True, shared=("skill",), steepness=problems.CRISP, paths=Merge(check=False)
    )
    figure, axes = _panels()
    players = len(wins)
    axes[0].bar(range(players), [float(w.mean()) for w in wins], color=BLUE, width=0.7, label="matches won")
    axes[0].plot(range(players), (skill - skill.mean()).tolist(), "o", ms=4, color=RED, label="skill found")
    axes[0].set_xlabel("player, in the order of the draw")
    axes[0].legend(frameon=False, fontsize=8)
    open_frame(axes[0])
    _objective(axes[1], values)
    axes[1].set_yscale("log")
    figure.tight_layout()
    return png(figure)


_FIGURES = {
    "bouncing_ball": _ball,
    "thermostat": _thermostat,
    "inventory": _inventory,
    "traffic_lights": _traffic,
    "epidemic": _epidemic,
    "knockout": _tournament,
}
_CAPTIONS = {
    "bouncing_ball": (
        "A ball rolls and bounces along a floor of tiles, each of another restitution. From measured trajectories gradients "
        "through the bounces find all of them at once."
    ),
    "thermostat": (
        "A heater that is either on or off, a week of cold days, heat that is dearer in the evening. The timetable that "
        "gradients find saves in the first hours when nobody is at home, and warms up before somebody comes."
    ),
    "inventory": (
        "A shop orders, two days ahead, when its stock falls below a level of that day. The levels are highest before the"
        " feast, and on most other days it does not order at all."
    ),
    "traffic_lights": (
        "Six lights along a street, three plans over the day. Lights switch by their timers, which nobody can differentiate as "
        "written: the gradient is that of crisp runs with perturbed times."
    ),
    "epidemic": (
        "Who should be vaccinated on a network of sixty people? Doses go to those through whom the disease would travel, and "
        "a dose is not spent where it would save nobody."
    ),
    "knockout": (
        "Sixty-four players, sixty-three matches, and how often each of them won in past tournaments: the skills that explain "
        "it. A player's results depend on whom the draw makes them meet."
    ),
}

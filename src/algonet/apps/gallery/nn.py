"""Algorithms between the layers of a network: three ways in, what they save, and a layer that differentiates."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from algonet.apps.drawing import BLUE, GOLD, GREY, RED, open_frame, png
from algonet.apps.gallery import Figure
from algonet.nn import FiniteDifferences, Insert, Residual, SmoothGraph, refine
from algonet.relax import Anneal, soft_max
from algonet.sorting import SoftSort, soft_sort

TITLE = "Forward AlgoNet: an algorithm between the layers"
INTRO = (
    "An algorithm has nothing to learn, but its gradient tells the layers before it what to give it. What the algorithm knows "
    "need not be learned from examples, and holds where there were none."
)
_SENSORS = 7


def figures(quick: bool) -> Iterator[Figure]:
    yield Figure("styles", _styles(), _STYLES_CAPTION)
    yield Figure("learning", _learning(300 if quick else 1000), _LEARNING_CAPTION)
    yield Figure("topology", _topology(300 if quick else 600), _TOPOLOGY_CAPTION)


def _box(axis: Any, x: float, y: float, size: tuple[float, float], text: str, colour: str) -> None:
    from matplotlib.patches import FancyBboxPatch

    width, height = size
    corner = (x - width / 2, y - height / 2)
    axis.add_patch(
        FancyBboxPatch(corner, width, height, boxstyle="round,pad=0,rounding_size=0.08", fc=colour, ec="none")
    )
    axis.text(x, y, text, color="white", ha="center", va="center", fontsize=11)


def _arrow(axis: Any, x: float, start: float, end: float) -> None:
    arrow = {"arrowstyle": "-|>", "color": GREY, "lw": 1.6, "shrinkA": 0, "shrinkB": 0}
    axis.annotate("", xy=(x, end), xytext=(x, start), arrowprops=arrow)


def _styles() -> bytes:
    """Three drawings: where the features go."""
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(1, 3, figsize=(9.4, 3.7))
    for axis, title in zip(axes, ("Insert(A)", "Shortcut(A)", "Residual(A, body)"), strict=True):
        whole = title.startswith("Insert")
        for y, text in ((2.7, "layers"), (0.3, "layers")):
            _box(axis, 1.0, y, (1.8, 0.42), text, BLUE)
        _box(axis, 1.0 if whole else 1.45, 1.5, (1.8 if whole else 0.9, 0.6), "algorithm", RED)
        if title.startswith("Residual"):
            _box(axis, 0.5, 1.5, (0.8, 0.6), "body", BLUE)
        for x in (1.0,) if whole else (0.5, 1.45):
            through = not (title.startswith("Shortcut") and x < 1)
            _arrow(axis, x, 2.47, 1.83 if through else 0.54)
            if through:
                _arrow(axis, x, 1.18, 0.54)
        axis.set_title(title, fontsize=12, family="monospace")
        axis.set_xlim(0, 2)
        axis.set_ylim(0, 3)
        axis.set_axis_off()
    figure.tight_layout()
    return png(figure)


def _sorted(x: Tensor) -> Tensor:
    return soft_sort(x).values


class Calibrate(nn.Module):
    """A gain and an offset per sensor, and what is left over as it came."""

    def __init__(self, past: int = 0):
        super().__init__()
        self.past = past
        self.gain, self.offset = nn.Parameter(torch.ones(_SENSORS)), nn.Parameter(torch.zeros(_SENSORS))

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([x[..., : self.past], self.gain * x + self.offset], -1)


def _networks() -> dict[str, nn.Module]:
    n = _SENSORS
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        body = nn.Sequential(nn.Linear(n, 32), nn.ReLU(), nn.Linear(32, n))
        return {
            "layers alone": nn.Sequential(nn.Linear(n, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 1)),
            "a sort beside layers": nn.Sequential(Calibrate(n), Residual(_sorted, body), nn.Linear(2 * n, 1)),
            "a sort between layers": nn.Sequential(Calibrate(), Insert(_sorted), nn.Linear(n, 1)),
        }


def _examples(count: int, seed: int, reach: float) -> tuple[Tensor, Tensor]:
    """What seven sensors say, each with a gain and an offset of its own, and how far their largest is from the median."""
    random, fixed = torch.Generator().manual_seed(seed), torch.Generator().manual_seed(11)
    gain, offset = 0.5 + 1.5 * torch.rand(_SENSORS, generator=fixed), torch.randn(_SENSORS, generator=fixed)
    true = reach * torch.randn(count, _SENSORS, generator=random)
    return gain * true + offset, true.amax(-1) - true.median(-1).values


def _learning(steps: int) -> bytes:
    import matplotlib.pyplot as plt

    (x, wanted), near, far = _examples(300, 1, 1.0), _examples(2000, 2, 1.0), _examples(2000, 3, 3.0)
    figure, (left, right) = plt.subplots(1, 2, figsize=(9.6, 3.4), width_ratios=[1.6, 1])
    for i, ((name, network), colour) in enumerate(zip(_networks().items(), (GREY, GOLD, RED), strict=True)):
        optimiser = torch.optim.Adam(network.parameters(), lr=1e-2)
        curve = []
        for step in range(steps):
            loss = nn.functional.mse_loss(network(x).squeeze(-1), wanted)
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            if step % (steps // 30) == 0 or step == steps - 1:
                curve.append((step + 1, _error(network, near)))
        left.plot(*zip(*curve, strict=True), color=colour, lw=2.2, label=name)
        right.bar(i, _error(network, far), color=colour, width=0.7)
    left.set_yscale("log")
    left.set_title("mean error on new examples", fontsize=11)
    left.set_xlabel("step, on 300 examples")
    left.legend(frameon=False, fontsize=9)
    right.set_title("on numbers three times as large", fontsize=11)
    right.set_xticks(range(3), ["layers\nalone", "sort\nbeside", "sort\nbetween"], fontsize=10)
    open_frame(left, right)
    figure.tight_layout()
    return png(figure)


@torch.no_grad()
def _error(network: nn.Module, examples: tuple[Tensor, Tensor]) -> float:
    return float((network(examples[0]).squeeze(-1) - examples[1]).abs().mean())


def _topology(steps: int) -> bytes:
    """A graph of layers and algorithms before and after it has found out which of them the task needs."""
    import matplotlib.pyplot as plt

    from algonet.nn.plots import draw_connections

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        network = nn.Sequential(_every_choice(), nn.Linear(6, 1))
    graph: Any = network[0]
    before = graph.connections
    random = torch.Generator().manual_seed(1)

    def spread_loss() -> Tensor:
        """On a new batch, between the network's answer and the spread of the inner four of six numbers."""
        x = torch.randn(128, 6, generator=random)
        ranked = x.sort(-1).values
        return nn.functional.mse_loss(network(x), ranked[:, -2:-1] - ranked[:, 1:2])

    others = [p for name, p in network.named_parameters() if name != "0.logits"]
    optimiser = torch.optim.Adam([{"params": others, "lr": 0.01}, {"params": [graph.logits], "lr": 0.03}])
    anneal = Anneal(1.0, 400.0, steps // 2, field="gate_steepness").attach(graph)
    for step in range(steps):
        searching = 3 * step < steps
        loss = spread_loss() if searching else spread_loss() + 0.003 * graph.price()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        if not searching:
            anneal.step()

    def refit() -> float:
        optimiser = torch.optim.Adam(others, lr=0.02)
        losses = []
        for step in range(steps // 3):
            optimiser.param_groups[0]["lr"] = 0.02 * (1 - 3 * step / steps)
            loss = spread_loss()
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            losses.append(loss.detach())
        # Every batch is new, so these are examples that it has not seen
        return float(torch.stack(losses[-8:]).mean())

    refine(network, refit, price=0.01)
    figure, axes = plt.subplots(2, 1, figsize=(9.6, 5.2))
    for axis, connections, title in zip(axes, (before, graph.connections), ("before", "after"), strict=True):
        draw_connections(axis, connections)
        axis.set_title(title, fontsize=12)
    figure.tight_layout(pad=0.4)
    return png(figure)


def _every_choice() -> nn.Module:
    return SmoothGraph(
        {
            "linear": nn.Linear(6, 6),
            "sort": SoftSort(),
            "maximum": lambda x: soft_max(x, steepness=10.0, keepdim=True),
            "differences": FiniteDifferences(pad="zero"),
            "relu": nn.Sequential(nn.Linear(6, 6), nn.ReLU()),
        }
    )


_STYLES_CAPTION = (
    "The three ways in: everything goes through the algorithm; part of the features goes past it; or that part goes through "
    "layers of its own, and the network may choose."
)
_LEARNING_CAPTION = (
    "How far is the largest of seven sensors from their median? Each has a gain and an offset that nobody knows, and 300 "
    "examples must do. With a sort beside its layers the network finds the gains, because only then the sort helps, and its "
    "answer holds beyond its examples. Layers alone learn the examples by heart; through nothing but "
    "the sort, the way is too narrow."
)
_TOPOLOGY_CAPTION = (
    "Connections with a gradient: given layers, a sort, a maximum and finite differences, all connected by halves, the network "
    "is asked for the spread of the inner four of six numbers, and pays for each connection. Red is what leads to the output "
    "in the end, after everything that the rest could do without was taken out: of the algorithms, the sort alone."
)

"""Which of the algorithms on offer does a network use?"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor, nn

from algonet.apps.drawing import BLUE, GOLD, RED, open_frame, png
from algonet.apps.gallery import Figure
from algonet.explain import Replacement, replace_gradually, sensitivity
from algonet.nn import FiniteDifferences, Insert
from algonet.relax import Logistic
from algonet.sorting import soft_sort

TITLE = "Does the network use the algorithm?"
INTRO = (
    "Put algorithms beside ordinary layers, train, and ask afterwards which of them the answer depends on: weights fixed at "
    "one are multiplied onto each branch, and the size of their gradients is its relevance. Or take a trained part out, bit by "
    "bit, and put an algorithm in its place."
)

BRANCHES = ("sort", "differences", "mixing", "layer")
TASKS: dict[str, Callable[[Tensor], Tensor]] = {
    "median": lambda x: x.median(-1).values,
    "second largest": lambda x: x.sort(-1).values[:, -2],
    "second minus first": lambda x: x[:, 1] - x[:, 0],
}


def _sorted(x: Tensor) -> Tensor:
    return soft_sort(x, relax=Logistic(60.0)).values


def _mixed(x: Tensor) -> Tensor:
    return torch.sin(7 * x * x.roll(2, -1))


class Branches(nn.Module):
    """Five numbers through three algorithms and a layer side by side, then a linear head."""

    def __init__(self):
        super().__init__()
        self.sort, self.mixing = Insert(_sorted), Insert(_mixed)
        self.differences = FiniteDifferences(pad="wrap")
        self.layer = nn.Sequential(nn.Linear(5, 5), nn.ReLU())
        self.head = nn.Linear(20, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.cat([getattr(self, name)(x) for name in BRANCHES], -1)).squeeze(-1)

    def penalty(self) -> Tensor:
        weights = [self.head.weight, *(p for p in self.layer.parameters() if p.dim() > 1)]
        return torch.stack([w.abs().sum() for w in weights]).sum()


def figures(quick: bool) -> Iterator[Figure]:
    yield Figure("use", _use(300 if quick else 900), _USE_CAPTION)
    yield Figure("replacement", _replacement(400 if quick else 1500), _REPLACE_CAPTION)


def _train(network: nn.Module, task: Callable[[Tensor], Tensor], steps: int, rate: float) -> tuple[Tensor, Tensor]:
    random = torch.Generator().manual_seed(0)
    optimiser = torch.optim.Adam(network.parameters(), lr=rate)
    for _ in range(steps):
        x = torch.rand(128, 5, generator=random)
        loss = nn.functional.mse_loss(network(x), task(x))
        if isinstance(network, Branches):
            loss = loss + 5e-4 * network.penalty()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    x = torch.rand(1000, 5, generator=random)
    return x, task(x)


def _use(steps: int) -> bytes:
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(1, len(TASKS), figsize=(11, 2.8), sharey=True)
    for axis, (name, task) in zip(axes, TASKS.items(), strict=True):
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            network = Branches()
        test = _train(network, task, steps, 1e-2)
        shares = []
        for branch in BRANCHES:
            others = [other for other in BRANCHES if other != branch]
            shares.append(sensitivity(network, branch, test, nn.functional.mse_loss, against=others).share)
        best = max(range(len(shares)), key=shares.__getitem__)
        colours = [BLUE if i == best else "#c5d3e0" for i in range(len(shares))]
        axis.bar(BRANCHES, shares, color=colours)
        axis.set_title(f"asked for: {name}", fontsize=10)
        axis.tick_params(axis="x", labelsize=8)
        open_frame(axis)
    axes[0].set_ylabel("share of sensitivity")
    figure.tight_layout()
    return png(figure)


def _replacement(steps: int) -> bytes:
    import matplotlib.pyplot as plt

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        middle = nn.Sequential(nn.Linear(5, 48), nn.ReLU(), nn.Linear(48, 48), nn.ReLU(), nn.Linear(48, 5))
        network = nn.Sequential(middle, nn.Linear(5, 1), nn.Flatten(0))
    x, y = _train(network, TASKS["median"], steps, 3e-3)

    def error(net: nn.Module) -> float:
        return -float((net(x) - y).abs().mean())

    def replaced(algorithm: Callable[[Tensor], Tensor]) -> Replacement:
        data = (x[:500], y[:500])
        return replace_gradually(
            network, "0", algorithm, data, nn.functional.mse_loss, score=error, steps=steps // 15, learning_rate=0.01
        )

    figure, axis = plt.subplots(figsize=(6.5, 3.2))
    for (name, algorithm), colour in zip(
        {"sort": _sorted, "differences": FiniteDifferences(pad="wrap"), "mixing": _mixed}.items(),
        (BLUE, RED, GOLD),
        strict=True,
    ):
        found = replaced(algorithm)
        axis.plot(found.mixture, [-s for s in found.score], color=colour, lw=2, marker="o", ms=4, label=name)
    axis.set_xlabel("share of the algorithm in the middle of the network")
    axis.set_ylabel("mean error")
    axis.set_ylim(bottom=0)
    axis.legend(frameon=False)
    open_frame(axis)
    figure.tight_layout()
    return png(figure)


_USE_CAPTION = (
    "Networks with the same four branches, trained on three questions about five numbers. For order statistics the smooth sort "
    "is used, for a difference the finite differences, and the wave of products that serves nothing is left alone."
)
_REPLACE_CAPTION = (
    "A network that learned the median with ordinary layers, whose middle part fades into an algorithm while the rest adapts. "
    "The sort takes over and even improves on what was learned; the others cannot."
)

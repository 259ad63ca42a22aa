"""Which algorithm does a network use? Five handwritten digits in, one number out, three algorithms on offer.

A small network reads each digit (scikit-learn's 8 x 8 scans) into one score and passes the five scores on four ways side
by side: through a smooth sort, through finite differences, through a fixed mixing that serves nothing, and through an
ordinary layer. What it is trained to answer decides which of them is of use, and the gates of `sensitivity` find out.

Then a network that has learned the median with ordinary layers only has its middle part replaced, gradually, by each
algorithm: the right one can take over, the others cannot.

    python examples/explain_digits.py [--steps 1500]
"""

from __future__ import annotations

import argparse
import copy
from collections.abc import Callable

import torch
from rich.console import Console
from rich.progress import track
from rich.table import Table
from sklearn.datasets import load_digits
from torch import Tensor, nn

from algonet.explain import activation, replace_gradually, sensitivity
from algonet.nn import FiniteDifferences
from algonet.relax import Logistic
from algonet.sorting import soft_sort

#: What is asked about the five digits (batch, 5); answers are about 0 to 1.
TASKS: dict[str, Callable[[Tensor], Tensor]] = {
    "median": lambda d: d.median(-1).values / 9,
    "second largest": lambda d: d.sort(-1).values[:, -2] / 9,
    "second minus first": lambda d: (d[:, 1] - d[:, 0]) / 9,
}
#: Weight of the L1 penalty on the head and the layer: it takes away what brings nothing, so that what is left is what is used.
SPARSITY = 1e-3
BRANCHES = ("sort", "differences", "mixing", "layer")


class Sort(nn.Module):
    def forward(self, scores: Tensor) -> Tensor:
        return soft_sort(scores, relax=Logistic(60.0)).values


class Mixing(nn.Module):
    """A wave of products: an algorithm nobody asked for."""

    def forward(self, scores: Tensor) -> Tensor:
        return torch.sin(7 * scores * scores.roll(2, -1))


class Reader(nn.Module):
    """Images (batch, 5, 64) to five scores, about a ninth of each digit."""

    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 1))

    def forward(self, images: Tensor) -> Tensor:
        return self.layers(images).squeeze(-1)


class Network(nn.Module):
    """Reader, the four branches side by side, and a linear head."""

    def __init__(self, reader: Reader):
        super().__init__()
        self.reader = copy.deepcopy(reader).requires_grad_(False)
        self.sort = Sort()
        self.differences = FiniteDifferences(pad="wrap")
        self.mixing = Mixing()
        self.layer = nn.Sequential(nn.Linear(5, 5), nn.ReLU())
        self.head = nn.Linear(20, 1)

    def forward(self, images: Tensor) -> Tensor:
        scores = self.reader(images)
        branches = [getattr(self, name)(scores) for name in BRANCHES]
        return self.head(torch.cat(branches, -1)).squeeze(-1)


def plain_network(reader: Reader) -> nn.Module:
    """Reader, a trained middle part of ordinary layers, and a linear head."""
    middle = nn.Sequential(nn.Linear(5, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 5))
    return nn.Sequential(copy.deepcopy(reader).requires_grad_(False), middle, nn.Linear(5, 1), nn.Flatten(0))


class Draws:
    """Endless random rows of five digits from one half of the scans."""

    def __init__(self, task: Callable[[Tensor], Tensor], held_out: bool, seed: int = 0):
        digits = load_digits()
        order = torch.randperm(len(digits.data), generator=torch.Generator().manual_seed(0))
        chosen = order[1200:] if held_out else order[:1200]
        self.images = torch.tensor(digits.data, dtype=torch.float32)[chosen] / 16
        self.values = torch.tensor(digits.target)[chosen]
        self.task = task
        self.generator = torch.Generator().manual_seed(seed)

    def batch(self, size: int) -> tuple[Tensor, Tensor]:
        pick = torch.randint(len(self.images), (size, 5), generator=self.generator)
        return self.images[pick], self.task(self.values[pick].float())


def train(network: nn.Module, draws: Draws, steps: int) -> None:
    optimizer = torch.optim.Adam(network.parameters(), lr=1e-2 if isinstance(network, Network) else 2e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    for _ in track(range(steps), description="training", transient=True):
        images, answers = draws.batch(128)
        loss = nn.functional.mse_loss(network(images), answers)
        if isinstance(network, Network):
            weights = network.head.weight.abs().sum() + network.layer[0].weight.abs().sum()
            loss = loss + SPARSITY * weights
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()


def right(network: nn.Module, test: tuple[Tensor, Tensor]) -> float:
    """The share of answers off by less than half a digit."""
    return float(((network(test[0]) - test[1]).abs() < 0.5 / 9).float().mean())


def found_algorithms(reader: Reader, steps: int, console: Console) -> None:
    table = Table(title="sensitivity of each branch (share), and right answers")
    for title in ("asked for", *BRANCHES, "right"):
        table.add_column(title, justify="right")
    for name, task in TASKS.items():
        torch.manual_seed(0)
        network = Network(reader)
        train(network, Draws(task, held_out=False), steps)
        test = Draws(task, held_out=True, seed=1).batch(2000)
        shares = []
        for branch in BRANCHES:
            others = [other for other in BRANCHES if other != branch]
            found = sensitivity(network, branch, test, nn.functional.mse_loss, against=others)
            shares.append(f"{found.share:.0%}")
        table.add_row(name, *shares, f"{right(network.eval(), test):.1%}")
    console.print(table)
    console.print(f"activation of the sort in the last one: {activation(network, 'sort', test)}")


def replaced_parts(reader: Reader, steps: int, console: Console) -> None:
    task = TASKS["median"]
    torch.manual_seed(0)
    network = plain_network(reader)
    draws = Draws(task, held_out=False)
    train(network, draws, steps)
    test = Draws(task, held_out=True, seed=1).batch(2000)
    data = [draws.batch(128) for _ in range(200)]
    table = Table(title="the median network's middle part, replaced")
    for title in ("by", "0 %", "50 %", "100 %"):
        table.add_column(title, justify="right")
    for name, algorithm in (("sort", Sort()), ("differences", FiniteDifferences(pad="wrap")), ("mixing", Mixing())):
        found = replace_gradually(
            network, "1", algorithm, data, nn.functional.mse_loss, score=lambda net: right(net, test), steps=steps // 10
        )
        middle = len(found.score) // 2
        table.add_row(name, *(f"{found.score[i]:.1%}" for i in (0, middle, -1)))
    console.print(table)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=1500, help="training steps of each network")
    arguments = parser.parse_args()
    console = Console()
    torch.manual_seed(0)
    reader = Reader()
    train(reader, Draws(lambda digits: digits / 9, held_out=False), arguments.steps)
    found_algorithms(reader, arguments.steps, console)
    replaced_parts(reader, arguments.steps, console)


if __name__ == "__main__":
    main()

"""Learn to read numbers from their order alone.

A small network gives each picture of a number a score; the scores are sorted softly, and the loss compares the soft
permutation with the right order. No label is ever shown. The same training runs with `diffsort` as the sorter, where it
is installed, from the same start and on the same pictures.

    python examples/sort_digits.py                      # two-digit numbers from scikit-learn's digits, under two minutes
    python examples/sort_digits.py --mnist path/to/idx  # four-digit numbers from MNIST's idx files (.gz or not)
"""

from __future__ import annotations

import argparse
import copy
import gzip
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from rich.console import Console
from rich.progress import Progress
from rich.table import Table
from torch import Tensor, nn

from algonet.relax import Cauchy
from algonet.sorting import OddEven, permutation_cross_entropy, soft_sort

Sorter = Callable[[Tensor], Tensor]
#: Sets that the accuracy is measured on.
TESTED = 4000


def main() -> None:
    options = arguments()
    torch.manual_seed(options.seed)
    torch.set_num_threads(options.threads)
    console = Console()
    images, labels = mnist(options.mnist) if options.mnist else digits()
    count = 4 if options.mnist else 2
    split = len(images) * 4 // 5
    start = scorer(images.shape[1], images.shape[2] * count)
    results = {}
    for name, sorter in sorters(options.n, options.steepness).items():
        network = copy.deepcopy(start)
        numbers = Numbers(images[:split], labels[:split], count, options.n, options.seed)
        seconds = train(network, sorter, numbers, options, name, console)
        test = Numbers(images[split:], labels[split:], count, options.n, options.seed + 1)
        results[name] = (*accuracy(network, test), seconds, sorting_time(sorter, options.batch, options.n))
    report(results, options, console)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mnist", type=Path, help="folder with MNIST's idx files")
    parser.add_argument("--n", type=int, default=5, help="how many numbers are sorted at a time")
    parser.add_argument("--steps", type=int, default=800)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--steepness", type=float, default=10.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=1)
    return parser.parse_args()


class Numbers:
    """Sets of n different numbers, each a picture of `count` digits side by side."""

    def __init__(self, images: Tensor, labels: Tensor, count: int, n: int, seed: int):
        self.images, self.labels, self.count, self.n = images, labels, count, n
        self.generator = torch.Generator().manual_seed(seed)

    def draw(self, batch: int) -> tuple[Tensor, Tensor]:
        """(pictures (batch, n, height, width), values (batch, n))."""
        # Twice as many as needed, so that equal numbers can be passed over
        chosen = torch.randint(len(self.images), (batch, 2 * self.n, self.count), generator=self.generator)
        values = (self.labels[chosen] * 10 ** torch.arange(self.count - 1, -1, -1)).sum(-1)
        twins = (values.unsqueeze(-1) == values.unsqueeze(-2)).tril(-1).any(-1)
        first = torch.argsort(twins.int(), dim=-1, stable=True)[:, : self.n]
        chosen = torch.gather(chosen, 1, first.unsqueeze(-1).expand(-1, -1, self.count))
        pictures = torch.cat(self.images[chosen].unbind(2), -1)
        return pictures, torch.gather(values, 1, first)


def digits() -> tuple[Tensor, Tensor]:
    from sklearn.datasets import load_digits

    data = load_digits()
    order = torch.randperm(len(data.images), generator=torch.Generator().manual_seed(0))
    return torch.tensor(data.images / 16, dtype=torch.float32)[order], torch.tensor(data.target)[order]


def mnist(folder: Path) -> tuple[Tensor, Tensor]:
    """All pictures and labels in the idx files of a folder."""
    images = sorted(folder.glob("*images-idx3-ubyte*"))
    if not images:
        raise SystemExit(f"sort_digits: no *images-idx3-ubyte[.gz] in {folder}")
    pairs = [(idx(path), idx(path.with_name(path.name.replace("images-idx3", "labels-idx1")))) for path in images]
    pictures = np.concatenate([p for p, _ in pairs])
    labels = np.concatenate([v for _, v in pairs])
    return torch.tensor(pictures / 255, dtype=torch.float32), torch.tensor(labels, dtype=torch.long)


def idx(path: Path) -> np.ndarray:
    data = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    dimensions = data[3]
    shape = np.frombuffer(data, ">i4", dimensions, 4)
    return np.frombuffer(data, np.uint8, offset=4 + 4 * dimensions).reshape(shape)


def scorer(height: int, width: int) -> nn.Module:
    """Picture -> score."""
    blocks: list[nn.Module] = []
    channels = 1
    for wide in (16, 32) if height < 20 else (16, 32, 64):
        blocks += [nn.Conv2d(channels, wide, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)]
        channels, height, width = wide, height // 2, width // 2
    return nn.Sequential(*blocks, nn.Flatten(), nn.Linear(channels * height * width, 64), nn.ReLU(), nn.Linear(64, 1))


def sorters(n: int, steepness: float) -> dict[str, Sorter]:
    """Name -> a function from scores (batch, n) to soft permutations (batch, n, n)."""

    def ours(scores: Tensor) -> Tensor:
        permutation = soft_sort(scores, relax=Cauchy(steepness), method=OddEven(), return_permutation=True).permutation
        assert permutation is not None
        return permutation

    found: dict[str, Sorter] = {"algonet": ours}
    try:
        from diffsort import DiffSortNet
    except ImportError:
        return found
    peer = DiffSortNet("odd_even", n, steepness=steepness, distribution="cauchy")
    return {**found, "diffsort": lambda scores: peer(scores)[1].mT}


def score(network: nn.Module, pictures: Tensor) -> Tensor:
    batch, n, height, width = pictures.shape
    return network(pictures.reshape(batch * n, 1, height, width)).reshape(batch, n)


def train(network: nn.Module, sorter: Sorter, numbers: Numbers, options, name: str, console: Console) -> float:
    optimizer = torch.optim.Adam(network.parameters(), lr=3e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, options.steps)
    sorter(torch.zeros(options.batch, options.n))  # compiles on first use, which is not training
    began = time.perf_counter()
    with Progress(*Progress.get_default_columns(), "loss {task.fields[loss]:.3f}", console=console) as progress:
        task = progress.add_task(f"training with {name:8}", total=options.steps, loss=float("nan"))
        for _ in range(options.steps):
            pictures, values = numbers.draw(options.batch)
            permutation = sorter(score(network, pictures))
            loss = permutation_cross_entropy(permutation, values.argsort(-1))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
            progress.update(task, advance=1, loss=loss.item())
    return time.perf_counter() - began


@torch.no_grad()
def accuracy(network: nn.Module, numbers: Numbers) -> tuple[float, float]:
    """(share of sets in exactly the right order, share of numbers in the right place)."""
    exact, single = [], []
    for _ in range(TESTED // 100):
        pictures, values = numbers.draw(100)
        right = score(network, pictures).argsort(-1) == values.argsort(-1)
        exact.append(right.all(-1).float().mean())
        single.append(right.float().mean())
    return float(torch.stack(exact).mean()), float(torch.stack(single).mean())


def sorting_time(sorter: Sorter, batch: int, n: int) -> float:
    """Milliseconds for one forward and backward pass of the sorter alone."""
    scores = torch.randn(batch, n, requires_grad=True)
    times = []
    for _ in range(10):
        began = time.perf_counter()
        sorter(scores).square().sum().backward()
        times.append(time.perf_counter() - began)
    return min(times) * 1e3


def report(results: dict[str, tuple[float, float, float, float]], options, console: Console) -> None:
    table = Table(title=f"{options.n} numbers sorted at a time, {options.steps} steps of {options.batch} sets")
    for column in ("sorter", "all in order", "each in place", "training (s)", "sorting f+b (ms)"):
        table.add_column(column, justify="left" if column == "sorter" else "right")
    for name, (exact, single, seconds, sorting) in results.items():
        table.add_row(name, f"{exact:.1%}", f"{single:.1%}", f"{seconds:.1f}", f"{sorting:.2f}")
    console.print(table)
    error = (results["algonet"][0] * (1 - results["algonet"][0]) / TESTED) ** 0.5
    console.print(f"{TESTED} sets of unseen pictures: 'all in order' has a standard error of {error:.1%}.")
    if "diffsort" in results:
        ours, peer = results["algonet"], results["diffsort"]
        console.print(
            f"algonet sorts {peer[3] / ours[3]:.1f} times faster; training is {peer[2] / ours[2]:.2f} times faster."
        )


if __name__ == "__main__":
    main()

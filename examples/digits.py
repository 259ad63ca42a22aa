"""A small network on scikit-learn's digits, with and without an algorithmic layer between its layers.

The algorithm is finite differences: half of the channels are differentiated along both axes (where the strokes' edges
are), half skip it. Both networks have the same number of weights and see the same few training images.

It needs scikit-learn: pip install scikit-learn.

    python examples/digits.py [--seeds 5] [--images 200]
"""

from __future__ import annotations

import argparse
import statistics

import torch
from rich.progress import track
from torch import Tensor, nn

from algonet.nn import FiniteDifferences, Shortcut

STYLES = {
    "without": lambda: nn.Identity(),
    "with finite differences": lambda: Shortcut(FiniteDifferences(dims=(-2, -1), pad="edge"), share=0.5, dim=1),
}


def network(layer: nn.Module) -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1),
        layer,
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(16 * 16, 10),
    )


def data(images: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Training images, their labels, and the same of everything else."""
    from sklearn.datasets import load_digits

    digits = load_digits()
    x = torch.tensor(digits.images, dtype=torch.float32)[:, None] / 16
    y = torch.tensor(digits.target)
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(0))
    train, test = order[:images], order[images:]
    return x[train], y[train], x[test], y[test]


def accuracy(layer: nn.Module, seed: int, split: tuple[Tensor, Tensor, Tensor, Tensor], steps: int = 150) -> float:
    """Train from `seed` and return the share of right answers on the held-out digits."""
    torch.manual_seed(seed)
    model = network(layer)
    x, y, test_x, test_y = split
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    for _ in range(steps):
        pick = torch.randint(len(x), (64,))
        loss = nn.functional.cross_entropy(model(x[pick]), y[pick])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    with torch.no_grad():
        return float((model(test_x).argmax(-1) == test_y).float().mean())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--images", type=int, default=200, help="training images")
    arguments = parser.parse_args()
    split = data(arguments.images)
    print(f"trained on {len(split[0])} digits, tested on {len(split[2])}, {arguments.seeds} seeds")
    for style, layer in STYLES.items():
        seeds = track(range(arguments.seeds), description=style, transient=True)
        found = [accuracy(layer(), seed, split) for seed in seeds]
        spread = statistics.stdev(found) if len(found) > 1 else 0.0
        print(f"{style:>24}: {statistics.mean(found):.2%} ± {spread:.2%}")


if __name__ == "__main__":
    main()

"""Top-k supervision on other digits: two of scikit-learn's scans side by side, on a CPU.

The losses and the network of `topk`, on 8 x 8 scans of handwritten digits: pairs of them are one of 100 classes, of which few
pictures are seen. One half of the 1,797 scans makes the pictures to train with, the other those that are tested.

Run: python -m experiments.topk_small [--steps 600] [--seeds 5] [--pictures 500] [--batch 64] [--width 8] [--rate 2e-3]
"""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from experiments.topk import run


def scans(_: Path | None, train: bool) -> tuple[Tensor, Tensor]:
    """Every other one of the scans (count, 8, 8) in [0, 1], and their digits."""
    from sklearn.datasets import load_digits

    found = load_digits()
    half = slice(int(train), None, 2)
    return torch.tensor(found.images[half] / 16, dtype=torch.float32), torch.tensor(found.target[half])


def main() -> None:
    run(__doc__, scans, 2, steps=600, seeds=5, pictures=500, batch=64, width=8, rate=2e-3)


if __name__ == "__main__":
    main()

"""A backward AlgoNet that trains in milliseconds: find the place and size of a disc from a coloured picture of it."""

from __future__ import annotations

import json
import multiprocessing
import os
import subprocess
import sys
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

from algonet.ran import RAN, LossWeights
from algonet.ran.config import TrainConfig
from algonet.relax import Logistic, SoftModule

SIZE = 8


class Disc(SoftModule):
    """(x, y, radius) to a smooth disc (B, 1, SIZE, SIZE)."""

    def __init__(self):
        super().__init__(Logistic(1.0))

    def forward(self, where: Tensor) -> Tensor:
        line = torch.linspace(-1, 1, SIZE)
        x, y, radius = (where[:, i, None, None] for i in range(3))
        apart = ((line[None, None] - x) ** 2 + (line[None, :, None] - y) ** 2 + 1e-4).sqrt()
        return self.relax((radius - apart) * 6)[:, None]


class Finder(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Flatten(), nn.Linear(3 * SIZE**2, 16), nn.Tanh(), nn.Linear(16, 3))

    def forward(self, picture: Tensor) -> Tensor:
        return self.layers(picture) + torch.tensor([0.0, 0.0, 0.5])


class Pair(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Flatten(), nn.Linear(4 * SIZE**2, 8), nn.Tanh(), nn.Linear(8, 1), nn.Flatten(0))

    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        return self.layers(torch.cat([a, b], 1))


class Discs(Dataset):
    """Orange discs on blue; item i is a function of i alone. `poison`: this item is not a number."""

    def __init__(self, count: int = 24, poison: int | None = None):
        self.count, self.poison = count, poison

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        random = torch.Generator().manual_seed(index)
        where = torch.rand(1, 3, generator=random) * torch.tensor([1.0, 1.0, 0.3]) + torch.tensor([-0.5, -0.5, 0.3])
        disc = Disc()(where)[0]
        picture = torch.cat([disc * 0.9, disc * 0.4, 0.8 - disc * 0.7]) + 0.02 * torch.randn(
            3, SIZE, SIZE, generator=random
        )
        return {"a": picture * torch.nan if index == self.poison else picture}


def spread(where: Tensor) -> Tensor:
    return 0.01 * where.square().mean()


def toy(seed: int = 0, **options) -> RAN:
    """A RAN of one-layer networks, the same for every seed; its regulariser keeps discs near the middle."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        options = {"weights": LossWeights(l1=1.0), "regulariser": spread, **options}
        return RAN(Finder(), Disc(), nn.Conv2d(3, 1, 3, padding=1), nn.Conv2d(1, 3, 3, padding=1), Pair(), **options)


def settings(**changes) -> TrainConfig:
    plain = {
        "steps": 6, "batch": 4, "learning_rate": 3e-3, "warmup": 2, "wait": 0, "checkpoint_every": 2, "log_every": 1, "keep": 2,
        "accelerator": "cpu", "tensorboard": False, "translator_rate": 1.0, "reconstructor_rate": 1.0,
    }  # fmt: skip
    return TrainConfig(**{**plain, **changes})


TESTS = Path(__file__).parents[1]
_FORKS = multiprocessing.get_context("forkserver")
ENVIRONMENT = {**os.environ, "PYTHONPATH": f"{TESTS}:{TESTS.parent / 'src'}", "OMP_NUM_THREADS": "1"}


def run_toy(*arguments, before: tuple[str, ...] = (), **changes: str) -> subprocess.Popen:
    """The toy in a process of its own; `changes` are of the environment."""
    command = [sys.executable, *before, str(TESTS / "ran" / "run_toy.py"), *map(str, arguments)]
    environment = {**ENVIRONMENT, **changes}
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def fork_toy(folder: Path, *numbers: int) -> tuple[Any, Connection]:
    """The toy in a process of its own and what it tells; forked from one that has imported everything, which takes longer
    than to train it."""
    _FORKS.set_forkserver_preload(["lightning_fabric", "ran.run_toy"])
    hears, tells = _FORKS.Pipe(duplex=False)
    process = _FORKS.Process(target=_told_to, args=(tells, folder, *numbers))
    process.start()
    tells.close()
    return process, hears


def _told_to(tells: Connection, folder: Path, *numbers: int) -> None:
    from ran.run_toy import train

    train(tells.send, folder, *numbers)


def finished(process: subprocess.Popen) -> list[dict[str, float]]:
    out, error = process.communicate(timeout=600)
    assert process.returncode == 0, error[-2000:]
    return json.loads(next(line for line in out.splitlines() if line.startswith("[")))

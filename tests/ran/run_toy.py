"""Trains the toy in a process of its own: python run_toy.py FOLDER STEPS [batch] [accumulate] [checkpoint_every] [until];
prints "ready", "step" after the first step, and the losses as JSON. It stops after `until` of the steps, if given."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

import torch

from algonet.ran import RANTrainer
from ran.toys import Discs, settings, toy


def train(
    tell: Callable[[str], None],
    folder: str | Path,
    steps: int,
    batch: int = 4,
    accumulate: int = 1,
    every: int = 1,
    until: int | None = None,
) -> None:
    torch.set_num_threads(1)
    chosen = settings(steps=steps, batch=batch, accumulate=accumulate, checkpoint_every=every)
    trainer = RANTrainer(toy(), Discs(), chosen, folder, progress=False)
    tell("ready")
    begun = []

    def tell_of_the_first(*_) -> None:
        if not begun:
            tell("step")
            begun.append(True)

    history = trainer.fit(until, resume=True, on_step=tell_of_the_first)
    if trainer.fabric.is_global_zero:
        tell(json.dumps(history))


if __name__ == "__main__":
    train(lambda text: print(text, flush=True), sys.argv[1], *map(int, sys.argv[2:]))

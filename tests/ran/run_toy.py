"""Trains the toy in a process of its own: python run_toy.py FOLDER STEPS [batch] [accumulate] [checkpoint_every]; prints
"ready", "step" after the first step, and the losses as JSON."""

from __future__ import annotations

import json
import sys

import torch

from algonet.ran import RANTrainer
from ran.toys import Discs, settings, toy


def main() -> None:
    torch.set_num_threads(1)
    folder, steps = sys.argv[1], int(sys.argv[2])
    batch, accumulate, every = _numbers()
    chosen = settings(steps=steps, batch=batch, accumulate=accumulate, checkpoint_every=every)
    trainer = RANTrainer(toy(), Discs(), chosen, folder, progress=False)
    print("ready", flush=True)
    begun = []

    def tell(*_) -> None:
        if not begun:
            print("step", flush=True)
            begun.append(True)

    history = trainer.fit(resume=True, on_step=tell)
    if trainer.fabric.is_global_zero:
        print(json.dumps(history), flush=True)


def _numbers() -> tuple[int, int, int]:
    given = [int(argument) for argument in sys.argv[3:]]
    batch, accumulate, every = [*given, *(4, 1, 1)[len(given) :]]
    return batch, accumulate, every


if __name__ == "__main__":
    main()

"""Trains the toy in a process of its own: python run_toy.py FOLDER STEPS [batch] [accumulate]; prints the losses as JSON."""

from __future__ import annotations

import json
import sys

import torch

from algonet.ran import RANTrainer
from ran.toys import Discs, settings, toy


def main() -> None:
    torch.set_num_threads(1)
    folder, steps = sys.argv[1], int(sys.argv[2])
    batch = int(sys.argv[3]) if len(sys.argv) > 3 else 4
    accumulate = int(sys.argv[4]) if len(sys.argv) > 4 else 1
    chosen = settings(steps=steps, batch=batch, accumulate=accumulate, checkpoint_every=1)
    trainer = RANTrainer(toy(), Discs(), chosen, folder, progress=False)
    print("ready", flush=True)
    history = trainer.fit(resume=True)
    if trainer.fabric.is_global_zero:
        print(json.dumps(history), flush=True)


if __name__ == "__main__":
    main()

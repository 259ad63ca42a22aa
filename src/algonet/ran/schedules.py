"""What depends on the step alone, so that nothing about it needs saving: learning rates, softness, the order of the data,
randomness."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator

import numpy as np
import torch
from torch import nn

from algonet.fit.progress import decay
from algonet.relax import Anneal
from algonet.relax.modules import softnesses

from .config import TrainConfig


def learning_rate(settings: TrainConfig, step: int, wait: int = 0) -> float:
    """0 for `wait` steps, a linear warm-up, and a cosine down to `final_rate` of the full rate at the last step."""
    if step < wait:
        return 0.0
    rise = min(1.0, (step - wait + 1) / settings.warmup) if settings.warmup else 1.0
    return settings.learning_rate * rise * decay(step / settings.steps, settings.final_rate)


def component_rate(settings: TrainConfig, step: int, component: str, alone: bool = False) -> float:
    """The learning rate of one component: translators are fast, the reconstructor of a RAN is slow and waits."""
    if component in ("a2b", "b2a"):
        return settings.translator_rate * learning_rate(settings, step)
    if component == "reconstructor" and not alone:
        return settings.reconstructor_rate * learning_rate(settings, step, settings.wait)
    return learning_rate(settings, step)


def softness_at(settings: TrainConfig, step: int) -> float:
    """Geometric from the first to the last softness over the first four fifths of the steps."""
    first, last = settings.softness
    return Anneal(first, last, max(1, math.ceil(0.8 * settings.steps))).value(step)


@torch.no_grad()
def set_softness(inverse: nn.Module, value: float) -> None:
    """Give the main relaxation of `inverse` this softness: noise a `scale` of it, a decision a `steepness` of 1 / it.

    An inverse that holds none itself passes it on to the modules inside; what stands inside one that does keeps its own.
    """
    own = [s for s in softnesses(inverse) if s.module is inverse]
    for softness in own or softnesses(inverse):
        if softness.attribute == softness.field:
            softness.value.fill_(value if softness.field == "scale" else 1 / value)


def seed_random(*numbers: int) -> None:
    """Begin torch's, the GPU's, Python's and NumPy's random generators anew, as these numbers say."""
    random.seed(repr(numbers))
    torch.manual_seed(random.getrandbits(63))
    np.random.seed(random.getrandbits(32))


def order(
    count: int, batch: int, seed: int, start: int, stop: int, rank: int = 0, processes: int = 1
) -> Iterator[list[int]]:
    """Batches of indices for one process, from step `start` on: epochs of seeded permutations, cut into batches.

    Which items make up step t depends on the seed and t alone, so that a resumed run, and one with more processes, sees
    the same data.
    """
    if count < 1:
        raise ValueError("RANTrainer: the data set is empty.")
    own, epoch, items = batch // processes, -1, []
    for step in range(start, stop):
        chosen = []
        for place in range(step * batch + rank * own, step * batch + (rank + 1) * own):
            if place // count != epoch:
                epoch = place // count
                generator = torch.Generator().manual_seed(seed * 1_000_003 + epoch)
                items = torch.randperm(count, generator=generator).tolist()
            chosen.append(items[place % count])
        yield chosen

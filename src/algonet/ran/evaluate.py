"""How good a trained model is, in the lines that the command prints."""

from __future__ import annotations

from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor

from .build import build_data
from .config import RunConfig
from .data import CachedItems
from .data.folder import Folder
from .model import RAN, Trainable
from .problems import problem_of
from .report import findings, measures


class Figures(NamedTuple):
    """`scores`: for the template that training began from and for the model, each figure by its name; over `items`
    held-out items. `report`: what is idle or collapsed."""

    scores: dict[str, dict[str, float]]
    items: int
    report: list[str]


def figures(model: Trainable, config: RunConfig) -> Figures:
    """Where the model began and where it is, on the configuration's held-out items.

    Of a user's folder the truth is not known: the only row says how far the two ways from A to B agree.
    """
    problem, data = problem_of(config), build_data(config, "test")
    if isinstance(data, Folder):
        rows = {config.method: agreement(model, data)}
    else:
        rows = {"template": problem.evaluate(None, data), config.method: problem.evaluate(model, data)}
    shown = data.batch(list(range(min(16, len(data)))), ("a",))["a"].to(next(model.parameters()).device)
    return Figures(rows, len(data), findings([measures(model, shown)]) if len(shown) > 1 else [])


def lines(found: Figures) -> list[str]:
    """One line per row of figures."""
    shown = [
        (name, "  ".join(f"{key} {value:.3f}" for key, value in row.items())) for name, row in found.scores.items()
    ]
    return [*(f"{name:>12}: {text}  ({found.items} held-out items)" for name, text in shown), *found.report]


@torch.no_grad()
def agreement(model: Trainable, data: CachedItems) -> dict[str, float]:
    """Mean absolute difference per pixel between b'' = Inv(R(a)) and b' = a2b(a), or a itself where there is no a2b:
    `apart`; and `varied`, the same between the b'' of neighbouring items, which is near 0 if R answers every input
    alike."""
    device = next(model.parameters()).device
    apart, drawn = [], []
    for index in range(len(data)):
        a = data[index]["a"][None].to(device)
        b2 = model.invert(model.reconstruct(a), a)
        wanted: Tensor = model.a2b(a) if isinstance(model, RAN) else a.mean(1, keepdim=True).expand_as(b2)
        apart.append(float((b2 - wanted).abs().mean()))
        drawn.append(b2)
    varied = [float((x - y).abs().mean()) for x, y in pairwise(drawn)]
    return {"apart": sum(apart) / len(apart), "varied": sum(varied) / max(1, len(varied))}

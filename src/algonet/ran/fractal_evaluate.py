"""How good a reconstructed function system is: SSIM between its smooth picture and that of the true one."""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor

from algonet.ifs import ssim

from .config import RunConfig
from .fractal_data import Fractals
from .fractal_model import IFSInverse
from .model import Trainable


@torch.no_grad()
def evaluate_fractals(
    model: Trainable | None, data: Fractals, start: Tensor, softness: float = 1.0
) -> dict[str, float]:
    """Mean over `data` of the SSIM between pictures of the systems found (of `start`, without a model) and of the true ones.

    Both are drawn by an inverse of this function's own, `softness` pixels wide, with other and more points than in training.
    """
    inverse = IFSInverse(data.functions, data.size, points=4096, depth=16, softness=softness, seed=1).to(start.device)
    scores = []
    for first in range(0, len(data), 64):
        items = data.batch(list(range(first, min(first + 64, len(data)))), ("a", "parameters"))
        a, true = items["a"].to(start.device), items["parameters"].to(start.device)
        found = start.expand_as(true) if model is None else model.reconstruct(a)
        scores.append(ssim(inverse(found)[:, 0], inverse(true)[:, 0]))
    return {"ssim": float(torch.cat(scores).mean())}


def fractal_rows(model: Trainable, config: RunConfig, data: Fractals) -> dict[str, dict[str, float]]:
    """The template's and the model's figures on `data`."""
    start = cast(Tensor, model.reconstructor.start)
    return {"template": evaluate_fractals(None, data, start), config.method: evaluate_fractals(model, data, start)}

"""How good a reconstructed function system is: SSIM between its smooth picture and that of the true one."""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor

from algonet.ifs import ssim

from .config import RunConfig
from .fractal_data import Fractals
from .fractal_model import IFSInverse
from .model import Trainable


@torch.no_grad()
def evaluate_fractals(model: Trainable | None, data: Fractals, inverse: IFSInverse, start: Tensor) -> dict[str, float]:
    """Mean SSIM between the smooth pictures of the systems found (of `start`, without a model) and of the true ones."""
    scores = []
    device = inverse.choices.device
    for index in range(len(data)):
        item = data[index]
        found = start.to(device) if model is None else model.reconstruct(item["a"][None].to(device))[0]
        pictures = inverse(torch.stack([found, item["parameters"].to(device)]))[:, 0]
        scores.append(float(ssim(pictures[0], pictures[1])))
    return {"ssim": sum(scores) / len(scores)}


def fractal_rows(model: Trainable, config: RunConfig, data: Fractals) -> dict[str, dict[str, float]]:
    """The start's and the model's figures on `data`."""
    inverse: Any = model.inverse
    begin = cast(Tensor, model.reconstructor.start)
    return {
        "start": evaluate_fractals(None, data, inverse, begin),
        config.method: evaluate_fractals(model, data, inverse, begin),
    }

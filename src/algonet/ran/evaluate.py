"""What a trained model is good for: figures, in the lines that the command prints; and reconstructions of a user's files."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from algonet.core.files import check_outputs, write_files
from algonet.core.pictures import png_bytes

from .build import build_data, load_model
from .config import RunConfig
from .data import CachedItems, Folder
from .model import RAN, Trainable
from .problems import problem_of
from .report import coloured, findings, measures


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
    rows = {name: "  ".join(f"{key} {value:.3f}" for key, value in row.items()) for name, row in found.scores.items()}
    return [*(f"{name:>12}: {row}  ({found.items} held-out items)" for name, row in rows.items()), *found.report]


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


@torch.no_grad()
def reconstruct_files(checkpoint: Path, inputs: list[Path], out: Path, *, overwrite: bool = True) -> list[Path]:
    """Reconstruct each input: the answer in a file of its problem's format, and a picture of both beside each other
    (.png). Both are written together, or neither; files that exist are left alone without `overwrite`."""
    check_outputs([out / f"{path.stem}.png" for path in inputs], force=overwrite, inputs=inputs)
    model, config = load_model(checkpoint)
    problem = problem_of(config)
    written = []
    for path in inputs:
        a = problem.read(path)[None]
        found = model.reconstruct(a)
        # The first item, of a tensor or of each in a tuple
        first = found[0] if isinstance(found, Tensor) else type(found)(*(t[0] for t in found))
        ending, content = problem.encoded(first)
        written.append(out / f"{path.stem}{ending}")
        files = {written[-1]: content, out / f"{path.stem}.png": _beside(model, a, found)}
        check_outputs(files, force=overwrite, inputs=inputs)
        write_files(files, overwrite=overwrite)
    return written


def _beside(model: Trainable, a: Tensor, found: Any) -> bytes:
    shown = [coloured(picture) for picture in (a, model.invert(found, a))]
    both = torch.cat(shown, -2 if a.shape[-1] > a.shape[-2] else -1)[0].clamp(0, 1)
    scale = max(1, 256 // a.shape[-2])
    return png_bytes(both.repeat_interleave(scale, -1).repeat_interleave(scale, -2).movedim(0, -1))

"""From a user's files to reconstructions in files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from algonet.core.files import check_outputs, write_files
from algonet.core.pictures import png_bytes

from .build import load_model
from .model import Trainable
from .problems import problem_of
from .report import coloured


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
        ending, content = problem.encoded(_first(found))
        written.append(out / f"{path.stem}{ending}")
        files = {written[-1]: content, out / f"{path.stem}.png": _beside(model, a, found)}
        check_outputs(files, force=overwrite, inputs=inputs)
        write_files(files, overwrite=overwrite)
    return written


def _first(found: Any) -> Any:
    """The first item of a reconstruction: of a tensor, or of each in a tuple."""
    return found[0] if isinstance(found, Tensor) else type(found)(*(t[0] for t in found))


def _beside(model: Trainable, a: Tensor, found: Any) -> bytes:
    shown = [coloured(picture) for picture in (a, model.invert(found, a))]
    both = torch.cat(shown, -2 if a.shape[-1] > a.shape[-2] else -1)[0].clamp(0, 1)
    scale = max(1, 256 // a.shape[-2])
    return png_bytes(both.repeat_interleave(scale, -1).repeat_interleave(scale, -2).movedim(0, -1))

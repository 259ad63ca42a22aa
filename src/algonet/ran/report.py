"""What a person sees of a training run: the progress bar and the grid of pictures."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .losses import Paths
from .model import RAN, Trainable


class Progress:
    """A bar with the mean loss of each section; in a context. Disabled, it does nothing."""

    def __init__(self, step: int, total: int, *, enabled: bool):
        self.enabled = enabled
        if not enabled:
            return
        from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
        from rich.progress import Progress as Bar

        self._bar: Any = Bar(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
        )
        self._task = self._bar.add_task("training", total=total, completed=step)

    def __enter__(self) -> Progress:
        if self.enabled:
            self._bar.start()
        return self

    def __exit__(self, *error: object) -> None:
        if self.enabled:
            self._bar.stop()

    def show(self, step: int, losses: dict[str, float]) -> None:
        if self.enabled:
            sums: dict[str, list[float]] = {}
            for name, value in losses.items():
                sums.setdefault(name.split("/")[0], []).append(value)
            shown = "  ".join(f"{name} {sum(values) / len(values):.3f}" for name, values in sums.items())
            self._bar.update(self._task, completed=step, description=shown)


@torch.no_grad()
def picture_grid(model: Trainable, a: Tensor) -> Tensor:
    """One row per input (3, H, W) in [0, 1]: a, then b' b'' a' a'' of a RAN, or the inverse of the reconstruction alone."""
    if isinstance(model, RAN):
        paths = model.paths(a)
    else:
        paths = Paths(a, b2=model.invert(model.reconstruct(a), a))
    height, width = a.shape[-2:]
    shown = [
        _framed(t.float().cpu(), height, width)
        for t in (paths.a, paths.b1, paths.b2, paths.a1, paths.a2)
        if t is not None
    ]
    rows = torch.cat(shown, -1)
    return torch.cat(list(rows), -2).clamp(0, 1)


def coloured(pictures: Tensor) -> Tensor:
    """Pictures (B, C, H, W) as (B, 3, H, W): grey ones repeated; of four channels, which are a silhouette and colours
    before black, the colours."""
    if pictures.shape[1] == 4:
        return pictures[:, 1:]
    if pictures.shape[1] != 3:
        pictures = pictures.mean(1, keepdim=True).expand(-1, 3, -1, -1)
    return pictures


def _framed(pictures: Tensor, height: int, width: int) -> Tensor:
    framed = torch.nn.functional.pad(coloured(pictures), (0, 2, 0, 2), value=1.0)
    return framed[..., : height + 2, : width + 2]

"""The sections of the gallery, one module each, and what their figures share: colours and frames."""

from __future__ import annotations

from typing import Any

BLUE, RED, GOLD, GREY = "#1f4e79", "#d1495b", "#c9b458", "#8a93a0"


def open_frame(*axes: Any) -> None:
    """Leave out the frame above and to the right."""
    for axis in axes:
        axis.spines[["top", "right"]].set_visible(False)


def no_ticks(axis: Any) -> None:
    axis.set_xticks([])
    axis.set_yticks([])

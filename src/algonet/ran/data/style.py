"""Style A, in which procedural pictures are painted: warm objects before a cool backdrop.

Both are about equally bright: brightness does not tell them apart, colour and texture do.
"""

from __future__ import annotations

import torch
from torch import Generator as Random
from torch import Tensor

from . import uniform


def warm_colours(random: Random, count: int) -> Tensor:
    """Colours (count, 3) of objects."""
    red, green, blue = (uniform(random, *span, count) for span in ((0.65, 1.0), (0.2, 0.6), (0.0, 0.35)))
    return torch.stack([red, green, blue], -1)


def cool_colours(random: Random) -> Tensor:
    """The two colours (2, 3) of a backdrop."""
    red, green, blue = (uniform(random, *span, 2) for span in ((0.0, 0.4), (0.2, 0.7), (0.45, 1.0)))
    return torch.stack([red, green, blue], -1)


def backdrop(cool: Tensor, slopes: Tensor, size: tuple[int, int]) -> Tensor:
    """A ramp (..., H, W, 3) between two colours `cool` (..., 2, 3), as steep across and down as `slopes` (..., 2)."""
    down, across = (torch.linspace(-1, 1, n, device=cool.device) for n in size)
    ramp = torch.sigmoid(across * slopes[..., 0, None, None] + down[:, None] * slopes[..., 1, None, None])[..., None]
    first, second = cool[..., None, None, :].unbind(-4)
    return first * ramp + second * (1 - ramp)

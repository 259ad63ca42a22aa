"""Read the time from drawings of clocks, told nothing but how a clock is drawn.

python examples/ran_clock.py [--steps 600]

The smooth inverse draws two grey hands. The drawings to be read are in coloured ink on coloured paper, with a rim, hands that
taper, and stains; not one comes with its time.
"""

from __future__ import annotations

import argparse
import math

import torch
from torch import Tensor

from algonet.ran import Box, solve_inverse

SIZE = 24


def hands(tips: Tensor, thick: tuple[float, float] = (0.1, 0.1)) -> Tensor:
    """Tips (B, 4) of the hour and the minute hand in [-1, 1]^2 to pictures (B, 1, SIZE, SIZE): soft segments."""
    line = torch.linspace(-1, 1, SIZE, device=tips.device)
    place = torch.stack(torch.meshgrid(line, line, indexing="xy"), -1)[None]
    shown = torch.zeros(())
    for tip, near, far in ((tips[:, :2], thick[0], thick[1]), (tips[:, 2:], thick[0], thick[1])):
        tip = tip[:, None, None]
        along = ((place * tip).sum(-1) / (tip.square().sum(-1) + 1e-3)).clamp(0, 1)
        apart = ((place - along[..., None] * tip).square().sum(-1) + 1e-4).sqrt()
        hand = torch.sigmoid(20 * (near + (far - near) * along - apart))
        shown = shown + hand - shown * hand
    return shown[:, None]


def drawings(count: int, seed: int) -> tuple[Tensor, Tensor]:
    """Clocks (count, 3, SIZE, SIZE) as people draw them, and the true tips."""
    random = torch.Generator().manual_seed(seed)
    minutes = 720 * torch.rand(count, generator=random)
    angles = torch.stack([minutes / 720, minutes / 60 % 1], -1) * 2 * math.pi
    tips = (torch.stack([angles.sin(), -angles.cos()], -1) * torch.tensor([[0.45], [0.85]])).flatten(1)
    paper = torch.rand(count, 3, 1, 1, generator=random)
    ink = (paper + 0.35 + 0.3 * torch.rand(count, 3, 1, 1, generator=random)) % 1
    line = torch.linspace(-1, 1, SIZE)
    rim = torch.sigmoid(30 * (0.05 - ((line**2 + line[:, None] ** 2).sqrt() - 0.98).abs()))
    inked = torch.maximum(hands(tips, (0.16, 0.04)), rim)
    return (paper + inked * (ink - paper) + 0.04 * torch.randn(count, 3, SIZE, SIZE, generator=random)).clamp(
        0, 1
    ), tips


def minutes_of(tips: Tensor) -> Tensor:
    """The time on a clock of 720 minutes: the hour hand says about when, the minute hand when exactly."""
    hour, minute = (torch.atan2(t[:, 0], -t[:, 1]) / (2 * math.pi) % 1 for t in (tips[:, :2], tips[:, 2:]))
    return (((hour * 12 - minute).round() + minute) * 60) % 720


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=600)
    options = parser.parse_args()
    pictures, _ = drawings(400, seed=0)
    box = Box([-0.5, -0.5, -0.9, -0.9], [0.5, 0.5, 0.9, 0.9])
    result = solve_inverse(hands, pictures, parameters=box, steps=options.steps, progress=True)
    unseen, tips = drawings(64, seed=1)
    off = (minutes_of(result.reconstruct(unseen).cpu()) - minutes_of(tips) + 360) % 720 - 360
    print(f"64 clocks that training never saw: off by {float(off.abs().median()):.0f} minutes (median)")
    for line in result.report:
        print(line)


if __name__ == "__main__":
    main()

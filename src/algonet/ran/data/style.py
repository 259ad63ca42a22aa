"""Styles of domain A: how procedural pictures are painted, and which single cue gives the object away."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Generator as Random
from torch import Tensor
from torch.nn.functional import pad

from . import CachedItems, number, split_seed, uniform


@dataclass(frozen=True)
class Style:
    """`palettes`: warm objects before a cool backdrop, about equally bright. The first lesson: the hue of a pixel alone says
    what it shows."""

    #: What tells object from backdrop pixel by pixel; "" if nothing does
    cue: ClassVar[str] = "hue"

    def colours(self, random: Random, count: int) -> Tensor:
        """Colours (count + 2, 3): `count` of the object, then two of the backdrop."""
        spans = ((0.65, 1.0), (0.2, 0.6), (0.0, 0.35)), ((0.0, 0.4), (0.2, 0.7), (0.45, 1.0))
        warm, cool = (
            torch.stack([uniform(random, *span, n) for span in rgb], -1)
            for rgb, n in zip(spans, (count, 2), strict=True)
        )
        return torch.cat([warm, cool])

    def backdrop(self, random: Random, colours: Tensor, inside: Tensor) -> Tensor:
        """What is behind the object, (..., H, W, 3): a ramp between two `colours`."""
        ramp = _ramp(random, inside)
        return colours[0] * ramp + colours[1] * (1 - ramp)

    def light(self, random: Random, inside: Tensor) -> Tensor | float:
        """The light on what has no light of its own."""
        return 1.0

    def sound(self, spectrogram: Tensor, random: Random) -> Tensor:
        """A spectrogram (H, W) as a picture (C, H, W): itself, where what is loud is bright as in domain B."""
        return spectrogram[None]

    def paint(self, inside: Tensor, blend: Tensor, random: Random, noise: float, light: Tensor | None = None) -> Tensor:
        """A picture (3, ..., H, W) of an object that covers `inside` (..., H, W) and mixes its colours by `blend` (..., H, W,
        n); `light` (..., H, W, 1) falls on the object, that of the room on the backdrop and on objects without."""
        # Drawn on the CPU, so that an item looks alike on every device
        colours = self.colours(random, blend.shape[-1]).to(blend)
        room = self.light(random, inside)
        covered = inside[..., None]
        painted = (blend @ colours[:-2]) * (room if light is None else light)
        behind = self.backdrop(random, colours[-2:], inside) * room
        grain = noise * torch.randn((*inside.shape, 3), generator=random)
        return (behind + covered * (painted - behind) + grain.to(inside)).clamp(0, 1).movedim(-1, 0)


@dataclass(frozen=True)
class Painted(Style):
    """`painted`: object and backdrop take their colours from one distribution, far apart within a picture. No colour means
    object: what tells it apart is that it is one body in the middle."""

    cue: ClassVar[str] = ""
    #: How far colours of one thing lie from its own mean, and how far apart the means of the two are at least
    spread: float = 0.1
    contrast: float = 0.5

    def colours(self, random: Random, count: int) -> Tensor:
        means = uniform(random, 0.1, 0.9, 64, 2, 3)
        far = (means[:, 0] - means[:, 1]).norm(dim=-1) > self.contrast
        own, other = means[int(far.int().argmax())]
        return torch.cat([own.expand(count, 3), other.expand(2, 3)]) + uniform(
            random, -self.spread, self.spread, count + 2, 3
        )

    def sound(self, spectrogram: Tensor, random: Random) -> Tensor:
        """From one random colour where it is silent to another where it is loud: either may be the brighter."""
        return self.paint(spectrogram.clamp(0, 1), torch.ones_like(spectrogram)[..., None], random, 0.0)

    def light(self, random: Random, inside: Tensor) -> Tensor:
        return 0.5 + 0.5 * _ramp(random, inside)


@dataclass(frozen=True)
class Textured(Painted):
    """`textured`: as `painted`, with waves of the object's own family on the backdrop, colours of one thing that differ more,
    and a cast shadow."""

    spread: float = 0.25

    def backdrop(self, random: Random, colours: Tensor, inside: Tensor) -> Tensor:
        height, width = inside.shape[-2:]
        line = torch.stack(
            torch.meshgrid(torch.linspace(1, -1, height), torch.linspace(-1, 1, width), indexing="ij"), -1
        )
        blend = waves(random, torch.cat([line, torch.zeros(height, width, 1)], -1)).to(inside)
        moved = [round(number(random, -0.2, 0.2) * width), round(number(random, 0.05, 0.2) * height)]
        shadow = pad(inside, (moved[0], -moved[0], moved[1], -moved[1]))[..., None]
        return (blend @ colours) * (1 - 0.5 * shadow)


#: The `style` of a configuration.
STYLES: dict[str, Style] = {"palettes": Style(), "painted": Painted(), "textured": Textured()}


class Procedural(CachedItems):
    """Made items of one look. `split`: "train", "validation" or "test" have different seeds; `style`: see `STYLES`."""

    def __init__(self, count: int, size: int, seed: int, *, split: str = "train", noise: float = 0.03,
                 style: str = "palettes"):  # fmt: skip
        super().__init__(count)
        self.size, self.noise, self.style = size, noise, STYLES[style]
        self.seed = split_seed(seed, split)


def waves(random: Random, place: Tensor) -> Tensor:
    """A solid texture: how much of two colours (..., 2) there is at `place` (..., 3), in waves of a random direction."""
    direction, phase = uniform(random, -1, 1, 3) * number(random, 4, 14), number(random, 0, 6)
    blend = torch.sigmoid(number(random, 2, 8) * torch.sin(place @ direction.to(place) + phase))
    return torch.stack([blend, 1 - blend], -1)


def _ramp(random: Random, like: Tensor) -> Tensor:
    """A ramp (H, W, 1) in [0, 1] across a picture, steeper or less."""
    slopes = uniform(random, -2, 2, 2)
    down, across = (torch.linspace(-1, 1, n) for n in like.shape[-2:])
    return torch.sigmoid(across * slopes[0] + down[:, None] * slopes[1])[..., None].to(like)

"""Networks to begin with: encoders to what is reconstructed, translators between the domains, the discriminator.

All of them treat each picture on its own (group, never batch, normalisation), and every one can be replaced.
"""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils.parametrizations import spectral_norm


class Encoder(nn.Module):
    """Pictures (B, C, H, views * W) to codes (B, width): strided convolutions, shared by the views, then a layer over all.

    The picture shows the views side by side; H and W are multiples of 2^levels.
    """

    def __init__(
        self, channels: int, size: tuple[int, int], views: int = 1, width: int = 256, base: int = 32, levels: int = 4
    ):
        super().__init__()
        height, across = size
        if across % views or height % 2**levels or (across // views) % 2**levels:
            raise ValueError(
                f"Encoder: pictures of {height} x {across} with {views} views cannot be halved {levels} times; "
                f"take multiples of {2**levels} for each view."
            )
        self.views = views
        widths = [min(base * 2**i, 8 * base) for i in range(levels)]
        layers: list[nn.Module] = []
        for before, after in zip([channels, *widths[:-1]], widths, strict=True):
            layers += _normalised(nn.Conv2d(before, after, 4, stride=2, padding=1))
        self.features = nn.Sequential(*layers)
        cells = (height >> levels) * (across // views >> levels)
        self.code = nn.Sequential(
            nn.Linear(widths[-1] * cells * views, width), nn.SiLU(), nn.Linear(width, width), nn.SiLU()
        )

    def forward(self, pictures: Tensor) -> Tensor:
        apart = torch.stack(pictures.chunk(self.views, -1), 1)
        found = self.features(apart.flatten(0, 1))
        return self.code(found.unflatten(0, apart.shape[:2]).flatten(1))


class UNet(nn.Module):
    """A small translator between domains: pictures (B, C, H, W) to pictures (B, C', H, W) in [0, 1].

    `levels` halvings with skip connections; H and W / views are multiples of 2^levels. Each of the `views` side by side is
    translated on its own.
    """

    def __init__(self, channels: int, out_channels: int, base: int = 24, levels: int = 3, views: int = 1):
        super().__init__()
        self.views = views
        widths = [base * 2**i for i in range(levels + 1)]
        self.enter = _block(channels, base)
        self.down = nn.ModuleList(_block(a, b) for a, b in pairwise(widths))
        self.up = nn.ModuleList(_block(a + b, a) for a, b in pairwise(widths))
        self.leave = nn.Conv2d(base, out_channels, 1)

    def forward(self, pictures: Tensor) -> Tensor:
        multiple = 2 ** len(self.down)
        if pictures.shape[-1] % (multiple * self.views) or pictures.shape[-2] % multiple:
            raise ValueError(
                f"UNet: height and width must be multiples of {multiple}, got {tuple(pictures.shape[-2:])}."
            )
        x = self.enter(torch.cat(pictures.chunk(self.views, -1)))
        skipped = []
        for layer in self.down:
            skipped.append(x)
            x = layer(functional.avg_pool2d(x, 2))
        for layer, skip in zip(reversed(self.up), reversed(skipped), strict=True):
            x = layer(torch.cat([functional.interpolate(x, scale_factor=2.0, mode="nearest"), skip], 1))
        return torch.cat(torch.sigmoid(self.leave(x)).chunk(self.views), -1)


class LocalTranslator(nn.Module):
    """A translator that looks `reach` pixels around each pixel: pictures (B, C, H, W) to pictures (B, C', H, W) in [0, 1].

    `reach` convolutions of 3 x 3 with edges repeated, then pointwise layers, so that nothing depends on where a pixel is.
    Such a translator can change the style of a picture but not invent its content, hide it elsewhere, or move an outline by
    more than `reach`.
    """

    def __init__(self, channels: int, out_channels: int, base: int = 24, reach: int = 1, layers: int = 3):
        super().__init__()
        parts: list[nn.Module] = []
        for i, (before, after) in enumerate(pairwise([channels, *[base] * layers])):
            size = 3 if i < reach else 1
            edges = {"padding": 1, "padding_mode": "replicate"} if size > 1 else {}
            parts += [nn.Conv2d(before, after, size, **edges), nn.SiLU()]
        self.layers = nn.Sequential(*parts, nn.Conv2d(base, out_channels, 1))

    def forward(self, pictures: Tensor) -> Tensor:
        return torch.sigmoid(self.layers(pictures))


class Repaint(nn.Module):
    """A b2a that borrows its colours: pictures b (B, C, H, W) and a (B, C', H, W) that it should look like to (B, C', H, W).

        a' = W [b; 1] + local(b),    W = argmin of ||a - W [b; 1]||^2 over pixels

    Where colours say nothing of the content, no b2a can guess them from b. Here only the colours of the content's channels pass
    from a to a', never a place: a' is near a only if b shows what a shows. For a silhouette they are the mean colours inside
    and outside, and ||a' - a|| is the functional of Chan and Vese. `local` is learned and begins near 0."""

    borrows = True

    def __init__(self, channels: int, out_channels: int, base: int = 24):
        super().__init__()
        self.local = LocalTranslator(channels, out_channels, base)
        last: Any = self.local.layers[-1]
        nn.init.normal_(last.weight, std=1e-3)
        nn.init.zeros_(last.bias)

    def forward(self, b: Tensor, a: Tensor) -> Tensor:
        with torch.autocast(b.device.type, enabled=False):
            b, a = b.float(), a.float()
            rows = torch.cat([b, torch.ones_like(b[:, :1])], 1).flatten(2)
            squares = rows @ rows.mT / rows.shape[-1]
            # A constant b has no colours of its own: a little more than nothing on the diagonal keeps the fit finite
            ridge = 1e-3 * torch.eye(squares.shape[-1], device=b.device)
            w = torch.linalg.solve(squares + ridge, rows @ a.flatten(2).mT / rows.shape[-1])
            painted = (w.mT @ rows).unflatten(-1, b.shape[-2:])
        return painted + self.local(b) - 0.5


class KeepColours(nn.Module):
    """A translator of pictures (B, 3, H, W) that only learns where the object is: (B, 4, H, W), the silhouette s of
    `inner`, and s times the picture's own colours. A translator that may choose colours can agree with B on any, black
    among them."""

    def __init__(self, inner: nn.Module):
        super().__init__()
        self.inner = inner

    def forward(self, pictures: Tensor) -> Tensor:
        silhouette = self.inner(pictures)
        return torch.cat([silhouette, silhouette * pictures], 1)


class PairDiscriminator(nn.Module):
    """Logits (B,) that a picture from A and one from B show the same: convolutions over both, averaged over places, or with
    `patches` a logit for each place (B, places).

    Spectral normalisation bounds the slope of every layer by 1 and so of the whole: that is what keeps the game stable.
    """

    def __init__(self, a_channels: int, b_channels: int, base: int = 32, levels: int = 3,
                 *, patches: bool = False):  # fmt: skip
        super().__init__()
        widths = [base * 2**i for i in range(levels)]
        layers: list[nn.Module] = []
        for before, after in zip([a_channels + b_channels, *widths[:-1]], widths, strict=True):
            layers += [spectral_norm(nn.Conv2d(before, after, 4, stride=2, padding=1)), nn.LeakyReLU(0.2)]
        layers.append(spectral_norm(nn.Conv2d(widths[-1], 1, 3, padding=1)))
        self.layers = nn.Sequential(*layers)
        self.patches = patches

    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        logits = self.layers(torch.cat([a, b], 1)).flatten(1)
        return logits if self.patches else logits.mean(1)


def levels_of(size: int) -> int:
    """Halvings down to cells of about 4 pixels."""
    return max(1, min(4, int(math.log2(size)) - 2))


def _block(before: int, after: int) -> nn.Module:
    layers = [nn.Conv2d(count, after, 3, padding=1) for count in (before, after)]
    return nn.Sequential(*_normalised(layers[0]), *_normalised(layers[1]))


def _normalised(layer: nn.Conv2d) -> tuple[nn.Module, ...]:
    channels = layer.out_channels
    return layer, nn.GroupNorm(math.gcd(8, channels), channels), nn.SiLU()


def head(width: int, out: int) -> nn.Module:
    """From a code of this width to `out` numbers, at first close to 0."""
    return nn.Sequential(nn.Linear(width, width), nn.SiLU(), near_zero(nn.Linear(width, out)))


def near_zero(layer: nn.Linear) -> nn.Linear:
    """The layer with weights drawn close to zero, so that a network begins at its template."""
    nn.init.normal_(layer.weight, std=1e-3)
    nn.init.zeros_(layer.bias)
    return layer

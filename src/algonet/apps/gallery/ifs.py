"""The gallery's fractals: presets, a fit as a film strip, and a fern in the wind."""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from torch import Tensor

from algonet.apps.drawing import gif_bytes, png, to_bytes
from algonet.apps.gallery import Figure

TITLE = "Smooth iterated function systems"
INTRO = (
    "A handful of affine maps, applied in random order, draws a fern. Choose the order in advance and let each point be "
    "a Gaussian, and the picture becomes a smooth function of the maps: it can be bent, animated, and fitted."
)
_NAMES = ("fern", "maple", "dragon", "tree", "sierpinski", "snowflake", "levy", "spiral")
#: Background, and the colours from few to many points.
_DARK, _GLOW = (0.043, 0.075, 0.067), ((0.11, 0.32, 0.24), (0.42, 0.75, 0.42), (0.98, 0.98, 0.80))


def figures(quick: bool) -> Iterator[Figure]:
    """All figures of the section; `quick` draws fewer points and fits more roughly."""
    yield _presets(quick)
    yield _levels_of_detail(quick)
    yield _film_strip(quick)
    yield _sway(quick)


def _glow(picture: Tensor) -> Tensor:
    """A grey picture (H, W) as colours (H, W, 3), dark green to pale yellow."""
    stops = torch.tensor([_DARK, *_GLOW])
    place = picture.detach().clamp(0, 1).sqrt() * (len(stops) - 1)
    low = place.floor().long().clamp(0, len(stops) - 2)
    part = (place - low)[..., None]
    return stops[low] * (1 - part) + stops[low + 1] * part


def _presets(quick: bool) -> Figure:
    import matplotlib.pyplot as plt

    from algonet.ifs import IFS

    names = _NAMES[:4] if quick else _NAMES
    figure, axes = plt.subplots(len(names) // 2, 4, figsize=(9.4, 1.25 * len(names)))
    for index, name in enumerate(names):
        above, below = axes[2 * (index // 4) : 2 * (index // 4) + 2, index % 4]
        ifs = IFS.preset(name, points=30_000 if quick else 100_000)
        with torch.no_grad():
            soft = ifs((220, 220), sigma=0.8)
        above.imshow(_glow(soft).numpy())
        below.imshow(1 - ifs.crisp((220, 220), points=60_000).numpy(), cmap="gray")
        above.set_title(name, fontsize=11)
    for axis in axes.flat:
        axis.set_axis_off()
    figure.tight_layout(pad=0.3)
    caption = "Famous systems: above, the smooth picture, which has gradients; below, the ordinary chaos game, its hard limit."
    return Figure("Presets", png(figure), caption)


def _levels_of_detail(quick: bool) -> Figure:
    import matplotlib.pyplot as plt

    from algonet.ifs import IFS

    fern = IFS.preset("fern", points=20_000 if quick else 60_000)
    sigmas = (16.0, 8.0, 4.0, 2.0, 1.0)
    figure, axes = plt.subplots(1, len(sigmas), figsize=(2.4 * len(sigmas), 2.7))
    for axis, sigma in zip(axes, sigmas, strict=True):
        with torch.no_grad():
            axis.imshow(_glow(fern((200, 200), sigma=sigma)).numpy())
        axis.set_title(f"σ = {sigma:g} px", fontsize=13)
        axis.set_axis_off()
    figure.tight_layout(pad=0.3)
    caption = (
        "Levels of detail: with a large standard deviation gradients reach far, with a small one the picture is exact."
    )
    return Figure("Levels of detail", png(figure), caption)


def _film_strip(quick: bool) -> Figure:
    import matplotlib.pyplot as plt

    from algonet.ifs import IFS, FitPlan, Level, Search, fit_ifs

    with torch.no_grad():
        target = IFS.preset("sierpinski", points=30_000)((64, 64))
    level = Level(side=64, sigma=(3.0, 1.0), steps=40 if quick else 60, rate=0.01, points=1024, depth=14, keep=2)
    search = Search(candidates=8, points=64, steps=16, side=48)
    result = fit_ifs(target, functions=3, plan=FitPlan(10, search, (level,)), seed=0)
    shown = [result.frames[round(k * (len(result.frames) - 1) / 5)] for k in range(6)]
    figure, axes = plt.subplots(1, 7, figsize=(15.4, 2.5))
    for k, (axis, frame) in enumerate(zip(axes, shown, strict=False)):
        axis.imshow(_glow(frame / 255.0).numpy())
        axis.set_title("the start" if k == 0 else "found" if k == 5 else "", fontsize=17)
    axes[6].imshow(_glow(target).numpy())
    axes[6].set_title("the target", fontsize=17)
    for axis in axes:
        axis.set_axis_off()
    figure.tight_layout(pad=0.3)
    caption = (
        "The inverse problem: three maps found for a picture by gradients through the chaos game and the raster, "
        f"from a random start (structural similarity {result.similarity:.2f})."
    )
    return Figure("A fit", png(figure), caption)


def _sway(quick: bool) -> Figure:
    from algonet.ifs import IFS

    fern = IFS.preset("fern", points=15_000 if quick else 40_000)
    rest = fern.parameters_.detach().clone()
    count, side = (10, 260) if quick else (24, 400)
    frames = []
    with torch.no_grad():
        for k in range(count):
            wind = math.sin(2 * math.pi * k / count)
            fern.parameters_.copy_(rest)
            # the largest map turns by a few degrees: everything above bends a little further
            fern.parameters_[1, 2] += 0.035 * wind
            fern.parameters_[1, 4] -= 0.035 * wind
            picture = _glow(fern((side, side), sigma=0.9 * side / 260))
            frames.append(to_bytes(picture))
    caption = "A fern sways when one map turns by two degrees to and fro: 24 numbers hold the whole plant."
    return Figure("A fern in the wind", gif_bytes(frames), caption)

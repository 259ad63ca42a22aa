"""`fit_ifs`: the inverse problem, an iterated function system for a picture."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from algonet.core.checks import check_integer
from algonet.core.pictures import open_picture, to_bytes
from algonet.core.tracing import outside_autocast
from algonet.ifs import IFS, area_weights, contraction
from algonet.relax import GaussianNoise

from .ifs_search import Level, Search, Shape, Systems, find_maps, likeness, refine, replace_each
from .progress import progress_of
from .targets import border, looked_up

#: Brighter than this a pixel counts as saturated: its density is unknown.
_SATURATED = 1 - 1 / 512
#: A silhouette has so much of its light in pixels brighter than this: files are seldom white to the last bit.
_SOLID_SHARE, _WHITE = 0.75, 0.98
#: Below this SSIM the picture found has another shape than the target.
POOR = 0.8
#: How many maps a fit takes unless told: what most classic fractals have, and what the outline of a silhouette needs.
_FEW, _OF_A_SILHOUETTE = 4, 12


@dataclass(frozen=True)
class FitPlan:
    """The stages of a fit. `restarts` systems are found by the search; each level refines those that survived the last.

    Sigma goes from coarse to fine within each level, and from level to level in units of the picture: the paper's levels
    of detail.
    """

    restarts: int = 96
    search: Search = field(default_factory=Search)
    levels: tuple[Level, ...] = (
        Level(side=32, sigma=(2.0, 1.0), steps=32, rate=0.006, points=768, depth=20, keep=32),
        Level(side=64, sigma=(2.5, 1.0), steps=80, rate=0.004, points=2048, depth=24, keep=6),
        Level(side=64, sigma=(2.0, 1.0), steps=60, rate=0.004, points=2048, depth=24, keep=6, replace=True),
        Level(side=128, sigma=(2.0, 1.0), steps=120, rate=0.003, points=8192, depth=32, keep=3),
        Level(side=128, sigma=(1.3, 1.0), steps=100, rate=0.002, points=12288, depth=36, keep=3, tone=True),
    )
    bound: float = 0.97


class FitResult(NamedTuple):
    """What `fit_ifs` found. `ifs` is trainable; everything else is plain data.

    `similarity` is the SSIM of `picture` (the final system, drawn with many points at its own sigma) with `target` (the
    image in grey, foreground bright). `similarities` are those of the systems drawn at the end: all that survived, and the
    best of each level before. `history` has one row per logged step: stage, step, loss, seconds. `frames` are grey pictures
    (uint8) of the best system on the way.
    """

    ifs: IFS
    similarity: float
    picture: Tensor
    target: Tensor
    similarities: list[float]
    history: list[dict[str, float]]
    frames: list[Tensor]

    def __repr__(self) -> str:
        height, width = self.target.shape
        return f"FitResult({self.ifs.functions} functions, {self.verdict} at {height} x {width} pixels)"

    @property
    def verdict(self) -> str:
        """The similarity in words: below 0.8 the shape found is another one."""
        return f"similarity (SSIM) {self.similarity:.3f}{', a poor likeness' * (self.similarity < POOR)}"


@outside_autocast
def fit_ifs(
    image: Tensor | str | os.PathLike[str],
    functions: int | None = None,
    *,
    plan: FitPlan = FitPlan(),
    foreground: str = "auto",
    seed: int = 0,
    device: torch.device | str | None = None,
    progress: bool = False,
) -> FitResult:
    """Find an iterated function system whose picture is `image`, from a random start.

    First a search for maps that send the shape into itself (`algonet.fit.ifs_search`), in `plan.restarts` random ways; then
    Adam through the chaos game and the smooth raster, all systems in one batch, sigma annealed from coarse to fine and
    the worse systems dropped from level to level; selection weights are learned along, and in silhouettes the exposure and
    the scale of the noise at the end. Ends by itself.

    `image`: a tensor (H, W), (C, H, W) or (H, W, C) with values in [0, 1] (or uint8), or an image file; any size. In grey
    the foreground is bright; "auto" inverts pictures with a bright border ("bright", "dark": as said). Colour pictures
    also get one colour per function. `functions` is how many maps the system has: unless told, 12 of a silhouette, whose
    outline is all there is to fit, and 4 of other pictures. The result is on the CPU, with coordinates in units of the longer
    side.

    >>> from algonet.ifs import IFS
    >>> triangle = IFS.preset("sierpinski")((64, 64)).detach()
    >>> quick = FitPlan(restarts=2, search=Search(candidates=4, steps=5), levels=(Level(32, (2.0, 1.0), 4, 0.01, 256, 12, 1),))
    >>> fit_ifs(triangle, functions=3, plan=quick).ifs.functions
    3
    """
    if functions is not None:
        functions = check_integer("fit_ifs", "functions", functions, 1)
    target, colours = read_picture(image, foreground)
    device = device or ("cuda" if torch.cuda.is_available() else "cpu")
    generator = torch.Generator().manual_seed(seed)
    finest = max(level.side for level in plan.levels)
    full = Shape(target).resized(min(finest, max(target.shape)))
    # As in a silhouette: most of the foreground is white, its density is unknown, and its outline is what counts
    solid = float(full.density[full.density > _WHITE].sum()) > _SOLID_SHARE * float(full.density.sum())
    if functions is None:
        functions = _OF_A_SILHOUETTE if solid else _FEW
    # resized in brightness, then as a density: a saturated pixel's density is unknown
    shape = Shape(-torch.log1p(-full.density.clamp(0, _SATURATED)).to(device))
    steps = sum(level.steps for level in plan.levels)
    with torch.no_grad(), progress_of(steps, "searching", progress) as advance:
        advance(0, "searching for self-similarity")
        systems = _begun(find_maps(shape, functions, plan.restarts, plan.search, generator), shape)
        cloud = shape.sample(20_000, generator)
        history, frames, drawn, began = [], [], [], time.perf_counter()

        def watch(stage: int, loss: float, picture: Tensor) -> None:
            seconds = time.perf_counter() - began
            history.append({"stage": stage, "step": len(history), "loss": loss, "seconds": seconds})
            if len(history) % 2 == 1:
                frames.append(torch.from_numpy(to_bytes(picture)))
            advance(4, f"level {stage}, loss {loss:.4f}")

        for stage, level in enumerate(plan.levels, start=1):
            if level.replace:
                rivals = replace_each(shape, contraction(systems.parameters, plan.bound), plan.search, generator)
                systems = systems.joined(_begun(rivals, shape))
            level = level if solid else replace(level, tone=False)
            told = partial(watch, stage)
            systems = refine(systems, shape, level, cloud, plan.bound, told, generator)
            kept = systems if stage == len(plan.levels) else systems.best(1)
            drawn += [_finished(kept, i, shape, full.density, plan.bound) for i in range(len(kept.losses))]
    drawn.sort(key=lambda result: -result[1])
    options, similarity, picture = drawn[0]
    ifs = IFS(**options, seed=seed)
    if colours is not None:
        ifs = IFS(**options, seed=seed, colours=_mean_colours(ifs, colours, max(target.shape)))
    frames.append(torch.from_numpy(to_bytes(picture)))
    return FitResult(ifs, similarity, picture, full.density, [r[1] for r in drawn], history, frames)


def _begun(maps: Tensor, shape: Shape) -> Systems:
    """Systems of these maps, selected by area and exposed as the shape is."""
    exposures = shape.density.mean().log().expand(len(maps))
    return Systems(maps, area_weights(maps).log(), exposures, maps.new_zeros(len(maps)), maps.new_zeros(len(maps)))


def _finished(
    systems: Systems, index: int, shape: Shape, target: Tensor, bound: float
) -> tuple[dict[str, Any], float, Tensor]:
    """One system as arguments of an `IFS`, its likeness to the target, and its picture, drawn with many points."""
    options = {
        "parameters": contraction(systems.parameters[index], bound).cpu(),
        "weights": systems.logits[index].softmax(-1).cpu(),
        "extent": shape.extent,
        "exposure": float(systems.exposures[index].exp()),
        "noise": GaussianNoise(float(systems.scales[index].exp())),
    }
    picture = IFS(**options, points=2**16)(tuple(target.shape))
    return options, float(likeness(picture, target)), picture


@torch.no_grad()
def _mean_colours(ifs: IFS, colours: Tensor, side: int) -> Tensor:
    """The mean colour (n, 3) that the image has where each function's points lie."""
    points, last = ifs.points(), ifs.choices[:, -1].long()
    places = torch.stack([points[:, 0] * side, colours.shape[-2] - points[:, 1] * side], -1)
    below = looked_up(colours, places, "nearest").T
    own = [below[last == k] for k in range(ifs.functions)]
    return torch.stack([(points if len(points) else below).mean(0) for points in own])


def read_picture(image: Tensor | str | os.PathLike[str], foreground: str = "auto") -> tuple[Tensor, Tensor | None]:
    """(brightness of the foreground (H, W) in [0, 1], colours (3, H, W) or None for grey pictures)."""
    if foreground not in ("auto", "bright", "dark"):
        raise ValueError(f"fit_ifs: unknown foreground {foreground!r}; choose one of auto, bright, dark.")
    if not isinstance(image, (Tensor, str, os.PathLike)):
        raise TypeError(f"fit_ifs: the image must be a tensor or the name of a file, got {type(image).__name__}.")
    if isinstance(image, Tensor):
        name, values = "fit_ifs: the image", image
    else:
        name, values = str(image), torch.from_numpy(np.array(open_picture(image)))
        values = values.movedim(-1, 0) if values.ndim == 3 else values
    channels = range(1, 5)
    values = values.detach().cpu().float() / (255.0 if values.dtype == torch.uint8 else 1.0)
    if values.ndim == 3 and values.shape[0] not in channels and values.shape[-1] in channels:
        values = values.movedim(-1, 0)
    if values.ndim == 2:
        values = values[None]
    if values.ndim != 3 or values.shape[0] not in channels:
        raise ValueError(
            f"{name}: wanted (H, W), (C, H, W) or (H, W, C) with 1 to 4 channels, got {tuple(values.shape)}."
        )
    if values.numel() == 0:
        raise ValueError(f"{name}: is empty ({tuple(values.shape)}).")
    if not torch.isfinite(values).all():
        raise ValueError(f"{name}: holds NaN or infinity; wanted values in [0, 1].")
    if float(values.max()) > 1.01 or float(values.min()) < -0.01:
        got = f"{float(values.min()):.3g} to {float(values.max()):.3g}"
        raise ValueError(f"{name}: wanted values in [0, 1], got {got}; divide bytes by 255.")
    colours, alpha = values[:3] if len(values) >= 3 else None, values[-1] if len(values) in (2, 4) else None
    if alpha is not None and float(alpha.max() - alpha.min()) > 0.02:
        grey = alpha
    else:
        grey = values[:3].mean(0) if len(values) >= 3 else values[0]
        if foreground == "dark" or (foreground == "auto" and float(border(grey).mean()) > 0.5):
            grey = 1 - grey
    grey = grey.clamp(0, 1)
    if float(grey.max() - grey.min()) < 0.02:
        raise ValueError(f"{name}: has one brightness all over ({float(grey.mean()):.3g}); there is nothing to fit.")
    return grey, colours

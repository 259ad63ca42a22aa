"""The smooth raster against the dense one that a user would write, and how well and fast fits go.

The dense raster (every point at every pixel, plain autograd) is timed on a tenth of the points on the CPU, where all of
them would need 10 GiB, and its time counts tenfold: it is linear in the points. One thread. Fits are from each target's own
picture, from a random start, best of the restarts.

    python -m benchmarks.ifs [--json FILE] [--quick]
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from algonet.ifs import IFS, Poisson, fit_ifs, smooth_raster
from algonet.relax import Probabilistic
from benchmarks import harness
from benchmarks.harness import Row

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
KERNEL = "triton" if DEVICE == "cuda" else "numba"
TOLERANCE = 1e-3


def leaf(side: int) -> Tensor:
    """A lobed leaf with its stalk, drawn by a formula: a silhouette that no system of a few maps made. (side, side)."""
    fine = 4 * side
    position = (torch.arange(fine) + 0.5) / fine
    x, y = position[None, :] - 0.5, 0.62 - position[:, None]
    angle, radius = torch.atan2(x, y), torch.hypot(x, y)
    # seven lobes that shrink towards the stalk, with small teeth
    outline = 0.24 + 0.16 * torch.cos(angle / 2) ** 2 + 0.075 * torch.cos(7 * angle) + 0.012 * torch.cos(31 * angle)
    blade = torch.sigmoid((outline - radius) * fine / 2)
    stalk = torch.sigmoid((0.012 - (x - 0.12 * (y + 0.1) ** 2).abs()) * fine / 2) * ((y < 0) & (y > -0.34))
    return torch.nn.functional.avg_pool2d(torch.maximum(blade, stalk)[None, None], 4)[0, 0]


def dense(points: Tensor, side: int, sigma: float = 1.0) -> Tensor:
    """1 - prod(1 - p) with every point at every pixel, as a user would write it."""
    edges = torch.arange(side + 1, device=points.device) / sigma
    scaled = points * side / sigma
    cumulative = 0.5 * (1 + torch.erf((edges - scaled[..., None]) / math.sqrt(2)))
    across, down = (cumulative[:, axis, 1:] - cumulative[:, axis, :-1] for axis in (0, 1))
    share = down.flip(-1)[:, :, None] * across[:, None, :]
    return 1 - torch.exp(torch.log1p(-share).sum(0))


def parity() -> None:
    """Raise unless kernel and dense raster agree, in values and gradients."""
    points = torch.rand(500, 2, device=DEVICE, requires_grad=True)
    weights = torch.randn(64, 64, device=DEVICE)
    results = []
    for picture in (dense(points, 64), smooth_raster(points, (64, 64), backend=KERNEL)):
        results.append((picture, torch.autograd.grad(picture, points, weights)[0]))
    for name, a, b in zip(("values", "gradients"), *results, strict=True):
        error = float((a - b).detach().abs().max() / a.detach().abs().max())
        if error > TOLERANCE:
            raise SystemExit(f"{KERNEL} deviates from the dense raster in its {name} by {error:.1e}: not timed")


def both_ways(draw: Any, points: Tensor, gradient: Tensor) -> Any:
    return lambda: torch.autograd.grad(draw(points), points, gradient)


def cpu_rows(quick: bool) -> list[Row]:
    side, count = 128, 50_000
    gradient = torch.randn(side, side)
    few = torch.rand(500 if quick else 5_000, 2, requires_grad=True)
    many = torch.rand(count, 2, requires_grad=True)
    slow = harness.milliseconds(both_ways(lambda p: dense(p, side), few, gradient), seconds=0, least=2, warmup=0)
    slow *= count / len(few)
    rows = []
    for aggregate in (Probabilistic(), Poisson()):
        name = f"50,000 points x 128^2, {type(aggregate).__name__}"
        run = both_ways(lambda p, a=aggregate: smooth_raster(p, (side, side), aggregate=a), many, gradient)
        fast = harness.milliseconds(run)
        rows += [Row(name, fast, "ms", "f+b"), Row(name, harness.peak_mebibytes(run), "MiB", "memory")]
        rows += [Row(name, slow, "ms", "f+b", by="dense eager"), Row(name, slow / fast, "ratio", "times faster")]
    return rows


def gpu_rows() -> list[Row]:
    points = torch.rand(1_000_000, 2, device="cuda", requires_grad=True)
    gradient = torch.randn(512, 512, device="cuda")
    rows = []
    for aggregate in (Probabilistic(), Poisson()):
        for exact in (False, True):
            name = f"1,000,000 points x 512^2, {type(aggregate).__name__}{', deterministic' if exact else ''}"
            run = both_ways(
                lambda p, a=aggregate, e=exact: smooth_raster(p, (512, 512), aggregate=a, deterministic=e),
                points,
                gradient,
            )
            rows += [
                Row(name, harness.milliseconds(run), "ms", "f+b"),
                Row(name, harness.peak_mebibytes(run), "MiB", "memory"),
            ]
    return rows


def fit_rows(quick: bool) -> Iterator[list[Row]]:
    # Minutes of a core each: the CPU does three of them
    for name in ("sierpinski", "leaf", "fern", "dragon")[: 1 if quick else 3 if DEVICE == "cpu" else 4]:
        if name == "leaf":
            target, functions = leaf(128), 12
        else:
            source = IFS.preset(name, points=2**17)
            target, functions = source((128, 128)).detach(), source.functions
        began = time.perf_counter()
        result = fit_ifs(target, functions=functions, device=DEVICE)
        yield [
            Row(f"fit of {name}, {functions} functions, seconds", time.perf_counter() - began, "s"),
            Row(f"fit of {name}, {functions} functions, SSIM", result.similarity, "score"),
        ]


def main() -> None:
    options = harness.arguments(__doc__)
    torch.set_num_threads(1)  # threads that wait for a busy core would make the ratios a matter of luck
    parity()
    rows = gpu_rows() if DEVICE == "cuda" else cpu_rows(options.quick)
    show(rows)
    for fits in fit_rows(options.quick):
        rows += fits
        show(fits)
        harness.save(options.json, rows)
    harness.record(options.json, rows)


def show(rows: list[Row]) -> None:
    for row in rows:
        name = ", ".join(part for part in (row.name, row.by if row.by != "algonet" else "", row.column) if part)
        print(f"{name:66} {row.value:10.3f} {row.unit}", flush=True)


if __name__ == "__main__":
    main()

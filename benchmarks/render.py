"""The smooth renderer on the CPU: against what a user would write in eager PyTorch, and how its cost grows.

The dense baseline is a silhouette, 1 - prod(1 - sigmoid(signed squared distance)) over all faces and pixels, forward and
backward: less work per face and pixel than ours, which also gives depth and RGBA with their gradients. Parity with the
dense reference (values within 1e-4, float64 truth) is checked before anything is timed. The GPU has benchmarks.render_gpu.

These figures are of the formula before 0.3, a soft minimum over depths. The section "Hard and smooth
pictures on a GPU" has the present one.

    python -m benchmarks.render [--json FILE] [--quick] [--plot FILE]
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

from algonet.relax import StudentT
from algonet.render import Camera, FilteredCoverage, Mesh, icosphere, render_attributes
from benchmarks import harness
from benchmarks.harness import Row

CAMERA = Camera.look_at((0.0, 0.0, 2.732), fov=60.0)
COVERAGE = FilteredCoverage(StudentT(df=8, scale=0.0035), units="ndc")
TOLERANCE = 1e-4


def dense_silhouette(vertices: Tensor, faces: Tensor, size: int) -> Tensor:
    """What a user would write: every face at every pixel."""
    seen = CAMERA.project(vertices, (size, size))[..., :2] * (2 / size) - 1
    corners = seen[faces]
    grid = (torch.arange(size) + 0.5) * (2 / size) - 1
    pixels = torch.stack(torch.meshgrid(grid, grid, indexing="xy"), -1).reshape(-1, 2)
    inside, nearest = None, None
    for i in range(3):
        a, edge = corners[:, None, i], (corners[:, (i + 1) % 3] - corners[:, i])[:, None]
        away = pixels - a
        cross = edge[..., 0] * away[..., 1] - edge[..., 1] * away[..., 0]
        along = ((away * edge).sum(-1) / edge.square().sum(-1).clamp_min(1e-12)).clamp(0, 1)
        square = (away - along[..., None] * edge).square().sum(-1)
        inside = cross.sign() if inside is None else inside + cross.sign()
        nearest = square if nearest is None else torch.minimum(nearest, square)
    assert inside is not None
    assert nearest is not None
    p = torch.sigmoid(torch.where(inside.abs() > 2, nearest, -nearest) / 1e-4)
    return 1 - torch.exp(torch.log1p(-p * (1 - 1e-6)).sum(0))


def ours(mesh: Mesh, size: int, batch: int = 1) -> Callable[[], object]:
    """RGBA, silhouette and depth, forward and backward to vertices and colours."""
    vertices = mesh.vertices.clone().requires_grad_()
    colors = torch.cat([mesh.vertices * 0.5 + 0.5, torch.ones(len(mesh.vertices), 1)], -1).requires_grad_()
    generator = torch.Generator().manual_seed(0)
    weights = [torch.randn(*shape, generator=generator) for shape in ((size, size, 4), (size, size), (size, size))]

    def run() -> object:
        out = render_attributes(vertices, mesh.faces, colors, CAMERA, size=(size, size), coverage=COVERAGE)
        return torch.autograd.grad(list(out), [vertices, colors], weights)

    return run


def baseline(mesh: Mesh, size: int) -> Callable[[], object]:
    vertices = mesh.vertices.clone().requires_grad_()
    weights = torch.randn(size * size)

    def run() -> object:
        return torch.autograd.grad(dense_silhouette(vertices, mesh.faces, size), vertices, weights)

    return run


def parity(level: int, size: int) -> float:
    """The largest difference between the kernel in float32 and the dense reference in float64."""
    mesh = icosphere(level, 0.9)
    exact = mesh.to(torch.float64)
    kernel = render_attributes(mesh.vertices, mesh.faces, mesh.vertices, CAMERA, size=(size, size), coverage=COVERAGE)
    truth = render_attributes(
        exact.vertices, exact.faces, exact.vertices, CAMERA.to(torch.float64), size=(size, size), coverage=COVERAGE,
        backend="reference",
    )  # fmt: skip
    return max(float((k.double() - t).abs().max()) for k, t in zip(kernel, truth, strict=True))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--plot", type=Path, help="plot cost against faces to this file")
    options = parser.parse_args()
    levels = (3, 4) if options.quick else (3, 4, 5, 6)
    ours(icosphere(0), 64)()
    # Before anything dense has run: memory that it has freed would hide what ours takes
    memories = {level: harness.peak_mebibytes(ours(icosphere(level, 0.9), 256)) for level in levels}
    difference = parity(2, 32)
    print(f"parity with the dense reference: {difference:.1e}")
    if not difference < TOLERANCE:
        raise SystemExit(f"parity failed ({difference:.1e} > {TOLERANCE:.0e}): no times are given")
    seconds = 0.5 if options.quick else 2.0
    rows = [Row("largest difference from the dense reference in float64", difference, "difference")]
    print(f"\n{'cost, f+b of RGBA at 256^2':28} {'ms':>10} {'MiB':>8}")
    counts, times = [], []
    for level in levels:
        mesh = icosphere(level, 0.9)
        took = harness.milliseconds(ours(mesh, 256), seconds=seconds)
        name = f"{len(mesh.faces)} faces x 256^2"
        print(f"{name:28} {took:10.1f} {memories[level]:8.0f}")
        rows += [Row(name, took, "ms", "f+b"), Row(name, memories[level], "MiB", "memory")]
        counts.append(len(mesh.faces))
        times.append(took)
    print(f"\n{'silhouette baseline':28} {'eager ms':>10} {'ours ms':>10} {'ratio':>8} {'eager MiB':>10}")
    for level in (3,) if options.quick else (3, 4):
        mesh = icosphere(level, 0.9)
        dense, fast = baseline(mesh, 64), ours(mesh, 64)
        memory = harness.peak_mebibytes(dense)
        own, slow = harness.milliseconds(fast, seconds=seconds), harness.milliseconds(dense, seconds=seconds, warmup=0)
        name = f"{len(mesh.faces)} faces x 64^2"
        print(f"{name:28} {slow:10.1f} {own:10.2f} {slow / own:7.0f}x {memory:10.0f}")
        rows += [Row(name, own, "ms", "f+b"), Row(name, slow, "ms", "silhouette, f+b", by="dense eager")]
        rows += [Row(name, memory, "MiB", "memory", by="dense eager"), Row(name, slow / own, "ratio", "times faster")]
    print("\nfor CUDA devices: python -m benchmarks.render_gpu")
    harness.record(options.json, rows)
    if options.plot:
        _plot(counts, times, options.plot)


def _plot(counts: list[int], times: list[float], path: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axis = plt.subplots(figsize=(5, 3.5))
    axis.loglog(counts, times, "o-", label="smooth renderer, f+b")
    axis.loglog(counts, [times[0] * c / counts[0] for c in counts], ":", color="grey", label="faces x pixels")
    axis.set(xlabel="faces (same visible area)", ylabel="ms at 256 x 256, RGBA")
    axis.legend()
    figure.savefig(path, dpi=120, bbox_inches="tight")


if __name__ == "__main__":
    main()

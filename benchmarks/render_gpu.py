"""The smooth renderer on a CUDA device: RGB, silhouette and depth of spheres, forward and backward.

Workload: a sphere of 20 * 4^k faces, radius 0.9, seen from 2.732 with a half field of view of 30 degrees, vertex colours,
noise of 0.0035 NDC with df = 8, epsilon 1e-4. Each row is compared first, at random pixels, with the dense reference in
float64 (values within 1e-4, gradients within 1e-3 and none missing), and is not timed where it differs. "graph" is the same
replayed as a CUDA graph: what the device does, without the host; "at best" is the least of all calls. Peers' figures (f+b,
milliseconds) were measured on an H200 with torch 2.11. Whole calls, softness and real meshes follow: see
`benchmarks/render_calls.py`, whose rows these are, and all that runs with --device cpu.

These figures are of the formula before 0.3, a soft minimum over depths. The section "Hard and smooth
pictures on a GPU" has the present one.

Run: python -m benchmarks.render_gpu [--device cuda|cpu] [--quick] [--meshes FOLDER] [--json FILE]
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable, Iterator
from itertools import chain
from pathlib import Path

import torch
from torch import Tensor

from algonet.relax import StudentT
from algonet.render import Camera, FilteredCoverage, icosphere, reference, render_attributes
from algonet.render.settings import RasterSettings

from . import render_calls
from .harness import Row, milliseconds, record, record_all, times

#: batch, level of the sphere, size, and f+b of SoftRas, GenDR, PyTorch3D (K = 10), nvdiffrast (hard)
ROWS = (
    (64, 3, 64, 5.6, 5.2, 10.3, 1.52),
    (1, 3, 256, 1.5, 1.8, 3.1, 1.10),
    (8, 3, 256, 6.5, 7.4, 9.9, 1.20),
    (8, 4, 256, 18.9, 27.3, 10.7, 1.24),
    (1, 5, 512, 31.7, 57.2, 6.3, 1.17),
    (8, 5, 512, 239, 398, 105, 1.39),
    (1, 6, 1024, 492, 722, 32.8, 1.21),
)
PEERS = ("SoftRas", "GenDR", "PyTorch3D, 10 faces per pixel", "nvdiffrast (hard)")
NOTE = "measured earlier on the same kind of device with torch 2.11"
SCALE, STEEPNESS, NEAR = 0.0035, 5.0, 0.1
#: Small scenes are bound by the host, which takes some calls to reach its pace.
TIMING = {"seconds": 0.4, "warmup": 20}
#: Pixels at which a picture is compared with the dense reference.
SAMPLE = 1024


class Scene:
    """One row's tensors, and the functions that are timed."""

    def __init__(self, batch: int, level: int, size: int):
        ball = icosphere(level, 0.9)
        angles = 0.3 * torch.arange(batch)
        turn = torch.stack([angles.cos(), angles.sin(), -angles.sin(), angles.cos()], -1).reshape(batch, 2, 2)
        vertices = ball.vertices.repeat(batch, 1, 1)
        vertices[..., [0, 2]] = vertices[..., [0, 2]] @ turn
        self.size, self.faces = size, ball.faces.cuda()
        self.vertices = vertices.cuda().requires_grad_()
        self.colours = ((ball.vertices + 1) / 2).repeat(batch, 1, 1).cuda().requires_grad_()
        self.camera = Camera.look_at((0.0, 0.0, 2.732), fov=60.0, near=NEAR).to("cuda")
        self.coverage = FilteredCoverage(StudentT(df=8, scale=SCALE), units="ndc")
        self.weights = [torch.randn(batch, size, size, *c, device="cuda") for c in ((3,), (), ())]

    def forward(self):
        return render_attributes(
            self.vertices, self.faces, self.colours, self.camera, size=(self.size, self.size), coverage=self.coverage,
            depth_steepness=STEEPNESS, backend="triton",
        )  # fmt: skip

    def both(self):
        return torch.autograd.grad(list(self.forward()), [self.vertices, self.colours], self.weights)

    def memory(self) -> float:
        """MiB beyond inputs and outputs, at the worst moment of forward and backward."""
        self.both()
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        outputs = self.forward()
        inside = before + sum(o.nbytes for o in outputs)
        extra = torch.cuda.max_memory_allocated() - inside
        torch.cuda.reset_peak_memory_stats()
        grads = torch.autograd.grad(list(outputs), [self.vertices, self.colours], self.weights)
        later = torch.cuda.max_memory_allocated() - inside - sum(g.nbytes for g in grads)
        return max(extra, later) / 2**20


def differences(scene: Scene) -> tuple[float, float, int]:
    """Against the dense reference in float64, of the first item: values, gradients (relative), and how many are missing."""
    size = scene.size
    generator = torch.Generator().manual_seed(0)
    # Half of them near the outline, where everything happens
    everywhere = torch.randint(0, size * size, (SAMPLE,), generator=generator).cuda()
    with torch.no_grad():
        silhouette = scene.forward().silhouette[0].flatten()
    edge = torch.nonzero((silhouette > 1e-3) & (silhouette < 0.999))[:, 0]
    chosen = torch.cat([everywhere, edge[torch.randint(0, len(edge), (SAMPLE,), generator=generator).cuda()]]).unique()
    masks = [torch.zeros_like(w) for w in scene.weights]
    for mask, weight in zip(masks, scene.weights, strict=True):
        mask[0].flatten(0, 1)[chosen] = weight[0].flatten(0, 1)[chosen]
    outputs = scene.forward()
    slopes = torch.autograd.grad(list(outputs), [scene.vertices, scene.colours], masks)
    vertices, colours = (t.detach()[0].double().requires_grad_() for t in (scene.vertices, scene.colours))
    truth = _dense(scene, vertices, colours, chosen)
    weights = [m[0].flatten(0, 1)[chosen].double() for m in masks]
    expected = torch.autograd.grad(list(truth), [vertices, colours], weights)
    values = max(
        float((o[0].flatten(0, 1)[chosen].double() - t).detach().abs().max())
        for o, t in zip(outputs, truth, strict=True)
    )
    slope, missing = 0.0, 0
    for found, right in zip(slopes, expected, strict=True):
        slope = max(slope, float((found[0].double() - right).norm() / right.norm()))
        missing += int(((found[0] == 0) & (right.abs() > 1e-3 * right.abs().max())).sum())
    return values, slope, missing


def _dense(scene: Scene, vertices: Tensor, colours: Tensor, chosen: Tensor) -> list[Tensor]:
    """The reference at the chosen pixels only."""
    size = scene.size
    settings = RasterSettings(size, size)
    matrix = scene.camera.pixel_matrix((size, size)).double()
    points = vertices @ matrix[:, :3].mT + matrix[:, 3]
    background, softness = points.new_zeros(4), points.new_tensor([SCALE * size / 2, STEEPNESS, NEAR])
    pixels = torch.stack([chosen % size, chosen // size], -1).double() + 0.5

    def run(points: Tensor, colours: Tensor, background: Tensor, softness: Tensor, pixels: Tensor, faces: Tensor):
        corners = reference.project(points, softness[2], settings)[faces]
        means, silhouette, depth = reference.visible_at(corners, colours[faces], softness, pixels, settings)
        return silhouette[:, None] * means, silhouette, silhouette * depth

    parts = [
        reference.recomputed(run, points, colours, background, softness, piece, scene.faces)
        for piece in pixels.split(max(1, (1 << 32) // (len(scene.faces) * 512)))
    ]
    return [torch.cat(column) for column in zip(*parts, strict=True)]


def spread(function: Callable[[], object]) -> tuple[float, float]:
    """Median and least time of a call: small scenes are bound by the host, whose jitter is between them."""
    found = times(function, **TIMING)
    return statistics.median(found), min(found)


def captured(function: Callable[[], object]) -> Callable[[], None]:
    """The function as a CUDA graph."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        function()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        function()
    return graph.replay


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    parser.add_argument("--quick", action="store_true", help="smaller workloads, for a look")
    parser.add_argument("--meshes", type=Path, help="a folder of mesh files")
    parser.add_argument("--json", type=Path, help="write the rows to this file; - prints them as one line")
    options = parser.parse_args(argv)
    if options.device == "cuda" and not torch.cuda.is_available():
        print("no CUDA device: all rows of this benchmark are skipped; --device cpu runs those that can")
        record(options.json, [])
        return
    alone = spheres(options.quick) if options.device == "cuda" else ()
    record_all(options.json, chain(alone, render_calls.measured(options.device, options.quick, options.meshes)))


def spheres(quick: bool) -> Iterator[list[Row]]:
    """The rasteriser's kernel alone, beside its peers."""
    peers = "".join(f"{name:>9}" for name in ("SoftRas", "GenDR", "P3D", "hard"))
    print(f"{'batch x faces x pixels':24}{peers} | f      f+b    least  graph  MiB    differs by")
    for batch, level, size, *peers in ROWS[: 3 if quick else None]:
        name = f"{batch} x {20 * 4**level} x {size}^2"
        scene = Scene(batch, level, size)
        values, slope, missing = differences(scene)
        shown = f"{name:24}" + "".join(f"{p:9}" for p in peers)
        found = f"{values:.1e} {slope:.1e} {missing}"
        if not (values <= 1e-4 and slope <= 1e-3 and missing == 0):
            print(f"{shown} | not timed: it differs from the reference by {found}", flush=True)
            continue
        with torch.no_grad():
            forward = milliseconds(scene.forward, **TIMING)
        (both, least), device = spread(scene.both), milliseconds(captured(scene.both), **TIMING)
        extra = scene.memory()
        print(f"{shown} | {forward:<7.3f}{both:<7.3f}{least:<7.3f}{device:<7.3f}{extra:<7.1f}{found}", flush=True)
        own = {"f": forward, "f+b": both, "f+b at best": least, "f+b as a graph": device}
        yield [
            *(Row(name, ms, "ms", column) for column, ms in own.items()),
            Row(name, extra, "MiB", "memory"),
            *(Row(name, ms, "ms", "f+b", by=peer, note=NOTE) for peer, ms in zip(PEERS, peers, strict=True)),
            Row(name, min(peers[:3]) / both, "ratio", "times faster than the fastest soft peer", note=NOTE),
        ]
    x, ones = torch.zeros(100, device="cuda", requires_grad=True), torch.ones(100, device="cuda")
    host = spread(lambda: torch.autograd.grad(x.sigmoid(), x, ones))
    print(f"for scale, the gradient of a sigmoid: {host[0]:.3f}, at best {host[1]:.3f}")
    yield [
        Row("gradient of a sigmoid of 100 numbers", ms, "ms", c)
        for ms, c in zip(host, ("f+b", "f+b at best"), strict=True)
    ]


if __name__ == "__main__":
    main()

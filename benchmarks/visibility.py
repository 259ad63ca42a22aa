"""Hard and smooth pictures on a CUDA device, in a minute or two: do they agree with the CPU's and the reference's, and times.

Faces of the hard rasteriser are compared with the CPU's from the same points; lit pictures and their gradients with the dense
reference in float64. Then medians in milliseconds and the memory beyond inputs and outputs: of `rasterize` (faces alone, and
with barycentrics), of `interpolate` with gradients, and of whole lit calls of `SmoothRenderer` with its defaults.

Run: python -m benchmarks.visibility [--seconds 0.5]
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

import torch

from algonet.relax import StudentT
from algonet.render import FilteredCoverage, SmoothRenderer, interpolate, rasterize
from algonet.render.functional import camera_points
from algonet.render.operation import VISIBLE
from algonet.render.visibility import VisibilitySettings
from benchmarks.render_calls import BATCHES, Scene, ball

#: Batch, level of the sphere, size; and nvdiffrast's forward pass on an H200.
HARD = ((1, 3, 256, 0.097), (8, 4, 256, 0.179), (8, 5, 512, 0.316), (1, 6, 1024, 0.223), (4, 6, 512, 0.412))


def median(call: Callable[[], object], seconds: float) -> float:
    """Milliseconds by the device's own clock."""
    for _ in range(3):
        call()
    torch.cuda.synchronize()
    times, until = [], time.monotonic() + seconds
    while len(times) < 5 or time.monotonic() < until:
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        call()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end))
    return statistics.median(times)


def memory(call: Callable[[], object]) -> float:
    """The most MiB that a call takes, its result among them."""
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    call()
    return (torch.cuda.max_memory_allocated() - before) / 2**20


def hard_rows(seconds: float) -> None:
    for batch, level, size, peer in HARD:
        scene = Scene(ball(level), size, 0.7, "cuda", (batch,))
        vertices, faces, colors = scene.vertices, scene.mesh.faces, scene.colors
        points = camera_points(vertices.detach(), scene.camera, (size, size))
        near = torch.full((batch,), 0.1)
        settings = VisibilitySettings(size, size)
        ours = VISIBLE([points, near.cuda(), faces], settings)[0]
        right = VISIBLE([points.cpu(), near, faces.cpu()], settings)[0]
        weights = torch.randn(batch, size, size, 3, device="cuda")
        inputs = [points, near.cuda(), faces]

        def picture(vertices=vertices, faces=faces, colors=colors, scene=scene, size=size):
            seen = rasterize(vertices, faces, scene.camera, size=(size, size))
            return interpolate(colors, seen, faces)

        def both(picture=picture, vertices=vertices, colors=colors, weights=weights):
            return torch.autograd.grad(picture(), [vertices, colors], weights)

        times = [
            median(lambda: VISIBLE(inputs, settings), seconds),  # noqa: B023
            median(picture, seconds),
            median(both, seconds),
        ]
        print(
            f"hard {batch} x {len(faces)} x {size}^2: {int((ours.cpu() != right).sum())} of {right.numel()} faces differ; "
            f"faces {times[0]:.3f} (nvdiffrast {peer}), picture {times[1]:.3f}, f+b {times[2]:.3f} ms, {memory(both):.0f} MiB",
            flush=True,
        )


def lit_parity() -> None:
    for scale, steepness, two_sided in ((0.7, 5.0, True), (0.7, 100.0, False), (3.0, 20.0, True), (6.0, 5.0, False)):
        scene = Scene(ball(2), 48, scale, "cuda")
        found = []
        for dtype, backend in ((torch.float32, "auto"), (torch.float64, "reference")):
            renderer = SmoothRenderer(
                48,
                FilteredCoverage(StudentT(scale=scale)),
                depth_steepness=steepness,
                two_sided=two_sided,
                background_depth=0.0,
                backend=backend,
            ).to("cuda", dtype)
            vertices, colors = (t.detach().to(dtype).requires_grad_() for t in (scene.vertices, scene.colors))
            mesh = scene.mesh.to(dtype).replace(vertices=vertices, vertex_colors=colors)
            out = list(renderer(mesh, scene.camera.to(dtype)))[:3]
            slopes = torch.autograd.grad(out, [vertices, colors], [w.to(dtype) for w in scene.weights])
            found.append(([t.detach().double() for t in out], [t.double() for t in slopes]))
        values = [float((a - b).abs().max()) for a, b in zip(found[0][0], found[1][0], strict=True)]
        slopes = [float((a - b).norm() / b.norm()) for a, b in zip(found[0][1], found[1][1], strict=True)]
        said = " ".join(f"{v:.1e}" for v in values), " ".join(f"{s:.1e}" for s in slopes)
        print(f"lit, scale {scale}, steepness {steepness}: values off by {said[0]}, gradients by {said[1]}", flush=True)


def lit_rows(seconds: float) -> None:
    for batch, level, size, noise, peer in BATCHES:
        scene = Scene(ball(level), size, noise * size / 2, "cuda", (batch,))
        lit, attributes = median(scene.lit, seconds), median(scene.attributes, seconds)
        print(
            f"{batch} x {20 * 4**level} x {size}^2, noise of {noise} NDC: lit {lit:.3f}, attributes {attributes:.3f} ms "
            f"(nvdiffrast {peer}), {memory(scene.lit):.0f} MiB",
            flush=True,
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=0.5, help="for each time")
    seconds = parser.parse_args().seconds
    if not torch.cuda.is_available():
        raise SystemExit("benchmarks.visibility: wants a CUDA device")
    hard_rows(seconds)
    lit_parity()
    lit_rows(seconds)


if __name__ == "__main__":
    main()

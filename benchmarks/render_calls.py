"""The renderer as it is called, on the CPU or a CUDA device: lit pictures, any softness, real meshes.

All rows are forward and backward, to vertices and colours, in float32. "lit" is a whole call of `SmoothRenderer` with its
default arguments on a mesh with vertex colours; "attributes" is `render_attributes` of the same colours, the rasteriser
alone. Both are compared first with the dense reference in float64 on a small scene (values within 1e-4), and not timed
where they differ. Softness: the same call at noise of 2 to 40 pixels, as it is (wide noise is sampled sparsely and
interpolated) and with every pixel its own sample. Times that are compared are taken in turns. On the CPU the least of all
calls counts, because machines are busy. On a CUDA device medians count, with the least beside them, and rows are batches
with noise of 0.0035 NDC.

These figures are of the formula before 0.3, a soft minimum over depths. The section "Hard and smooth
pictures on a GPU" has the present one.

Run: python -m benchmarks.render_calls [--device cpu|cuda] [--quick] [--meshes DIR] [--json FILE] [--plot FILE] [--recorded ...]
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable, Iterator
from pathlib import Path
from unittest import mock

import torch

from algonet.relax import StudentT
from algonet.render import Camera, FilteredCoverage, Mesh, SmoothRenderer, icosphere, render_attributes
from benchmarks import harness
from benchmarks.harness import Row

SCALES = (0.7, 2.0, 5.0, 10.0, 20.0, 40.0)
TOLERANCE = 1e-4
MESHES = (".obj", ".ply", ".stl", ".off", ".glb")
#: On a CUDA device: batch, level of the sphere, size, noise in NDC, and f+b of nvdiffrast (hard, without light).
BATCHES = (
    (1, 3, 256, 0.0035, 1.00),
    (8, 4, 256, 0.0035, 1.15),
    (64, 3, 64, 0.0035, 1.60),
    (8, 5, 512, 0.0035, 1.36),
    (1, 6, 1024, 0.0035, 1.41),
    (4, 6, 512, 0.0035, 1.37),
    (8, 4, 256, 0.01, None),
    (8, 4, 256, 0.03, None),
    (8, 4, 256, 0.1, None),
)
NOTE = "measured earlier on the same kind of device with torch 2.11"
Call = Callable[[], object]


class Scene:
    """A mesh with colours by place, and the calls that are timed."""

    def __init__(self, mesh: Mesh, size: int, scale: float, device: str, batch: tuple[int, ...] = ()):
        self.camera = Camera.look_at((0.0, 0.0, 2.732), fov=60.0).to(device)
        self.mesh, self.size = mesh.to(device), size
        self.vertices = self.mesh.vertices.repeat(*batch, 1, 1).requires_grad_()
        self.colors = (self.vertices.detach() * 0.4 + 0.5).clamp(0, 1).requires_grad_()
        self.coverage = FilteredCoverage(StudentT(scale=scale))
        self.renderer = SmoothRenderer(size, self.coverage).to(device)
        shapes = ((*batch, size, size, 3), (*batch, size, size), (*batch, size, size))
        self.weights = [torch.randn(*shape, generator=torch.Generator().manual_seed(0)).to(device) for shape in shapes]

    def lit(self) -> object:
        """rgb, silhouette and depth of the module, and their gradients."""
        out = self.renderer(self.mesh.replace(vertices=self.vertices, vertex_colors=self.colors), self.camera)
        return torch.autograd.grad(list(out)[:3], [self.vertices, self.colors], self.weights)

    def attributes(self) -> object:
        """The colours as they are."""
        out = render_attributes(
            self.vertices, self.mesh.faces, self.colors, self.camera, size=(self.size, self.size),
            coverage=self.coverage,
        )  # fmt: skip
        return torch.autograd.grad(list(out), [self.vertices, self.colors], self.weights)


def ball(level: int) -> Mesh:
    return icosphere(level, 0.9)


def parity(device: str) -> float:
    """The largest difference of lit pictures from the dense reference in float64, sharp and wide."""
    worst = 0.0
    for scale in (0.7, 6.0):
        scene = Scene(ball(1), 32, scale, device)
        mesh = scene.mesh.replace(vertex_colors=scene.colors.detach())
        # Depth over a background: where next to nothing is seen, what is left out moves the surface's own depth
        made = (
            SmoothRenderer(32, FilteredCoverage(StudentT(scale=scale)), backend=b, background_depth=0.0)
            for b in ("auto", "reference")
        )
        fast, truth = (renderer.to(device) for renderer in made)
        with torch.no_grad():
            ours = fast(mesh, scene.camera)
            right = truth.double()(mesh.to(torch.float64), scene.camera.to(torch.float64))
        worst = max(worst, *(float((a.double() - b).abs().max()) for a, b in zip(ours[:3], right[:3], strict=True)))
    return worst


def in_turns(calls: dict[str, Call], seconds: float) -> dict[str, float]:
    """The least time of each call in milliseconds, called in turns until each has taken its share of the seconds."""
    return {name: min(times) for name, times in all_in_turns(calls, seconds).items()}


def all_in_turns(calls: dict[str, Call], seconds: float) -> dict[str, list[float]]:
    found: dict[str, list[float]] = {name: [] for name in calls}
    for call in calls.values():
        # The first calls of a form compile; on a CUDA device the third is the first that is quick
        for _ in range(3 if torch.cuda.is_available() else 1):
            call()
    waiting = list(calls)
    while waiting:
        for name in waiting:
            found[name] += harness.times(calls[name], seconds=0.0, least=1, warmup=0)
        waiting = [name for name in waiting if len(found[name]) < 2 or sum(found[name]) < 1e3 * seconds / len(calls)]
    return found


def batch_rows(quick: bool, seconds: float) -> Iterator[list[Row]]:
    """Whole calls and the rasteriser alone on a CUDA device."""
    for batch, level, size, noise, hard in BATCHES[:1] if quick else BATCHES:
        name = f"{batch} x {20 * 4**level} x {size}^2" + ("" if noise == 0.0035 else f", noise of {noise:g} NDC")
        rows = medians(name, Scene(ball(level), size, noise * size / 2, "cuda", (batch,)), seconds)
        peer = [] if hard is None else [Row(name, hard, "ms", "f+b", by="nvdiffrast (hard, no light)", note=NOTE)]
        yield [*rows, *peer]


def medians(name: str, scene: Scene, seconds: float) -> list[Row]:
    rows: list[Row] = []
    for kind, times in all_in_turns({"lit": scene.lit, "attributes": scene.attributes}, seconds).items():
        rows.append(Row(name, statistics.median(times), "ms", f"{kind}, f+b"))
        rows.append(Row(name, min(times), "ms", f"{kind}, f+b at best"))
    print(f"{name:40}" + "".join(f"  {row.column} {row.value:.3f}" for row in rows), flush=True)
    return rows


def shading_rows(device: str, quick: bool, seconds: float) -> Iterator[list[Row]]:
    """Whole calls against the rasteriser alone."""
    if device == "cuda":
        yield from batch_rows(quick, seconds)
        return
    for level, size in ((2, 32),) if quick else ((3, 256), (4, 256), (5, 512)):
        scene = Scene(ball(level), size, 0.7, device)
        yield compared(f"{20 * 4**level} faces x {size}^2", scene, seconds)


def mesh_rows(folder: Path, device: str, quick: bool, seconds: float) -> Iterator[list[Row]]:
    """The same for the mesh files of a folder."""
    paths = sorted(p for p in folder.glob("*") if p.suffix.lower() in MESHES)
    if not paths:
        raise SystemExit(f"benchmarks: {folder} holds no mesh files ({', '.join(MESHES)})")
    for path in paths:
        mesh = Mesh.load(path).normalised(0.9)
        if device == "cuda":
            size, batch = (32, 1) if quick else (512, 4)
            name = f"{batch} x {len(mesh.faces)} x {size}^2 ({path.stem})"
            own = Scene(Mesh(mesh.vertices, mesh.faces), size, 0.0035 * size / 2, device, (batch,))
            yield medians(name, own, seconds)
            continue
        size = 32 if quick else 256
        name = f"{path.stem}, {len(mesh.faces)} faces x {size}^2"
        yield compared(name, Scene(Mesh(mesh.vertices, mesh.faces), size, 0.7, device), seconds)


def compared(name: str, scene: Scene, seconds: float) -> list[Row]:
    found = in_turns({"lit": scene.lit, "attributes": scene.attributes}, seconds)
    ratio = found["lit"] / found["attributes"]
    print(f"{name:36} lit {found['lit']:8.2f}  attributes {found['attributes']:8.2f}  ratio {ratio:.2f}", flush=True)
    rows = [Row(name, ms, "ms", f"{kind}, f+b") for kind, ms in found.items()]
    return [*rows, Row(name, ratio, "difference", "lit / attributes")]


def softness_rows(device: str, quick: bool, seconds: float) -> list[Row]:
    """Cost against the noise's scale, sampled sparsely and in full."""
    level, size = (1, 24) if quick else (3, 128) if device == "cpu" else (4, 256)
    # One picture is the host's time alone on a CUDA device
    batch = (8,) if device == "cuda" and not quick else ()
    scales = (2.0, 6.0) if quick else SCALES
    calls: dict[str, Call] = {}
    for scale in scales:
        scene = Scene(ball(level), size, scale, device, batch)
        calls[f"{scale:g}"] = scene.lit
        calls[f"{scale:g} full"] = in_full(scene.lit)
    found = in_turns(calls, seconds * len(calls) / 2)
    rows: list[Row] = []
    for scale in scales:
        name = f"{'8 x ' if batch else ''}{20 * 4**level} faces x {size}^2, noise of {scale:g} pixels"
        sparse, full = found[f"{scale:g}"], found[f"{scale:g} full"]
        print(f"{name:48} {sparse:8.2f} ms, every pixel sampled {full:8.2f}", flush=True)
        rows += [Row(name, sparse, "ms", "lit, f+b"), Row(name, full, "ms", "every pixel sampled")]
        rows.append(Row(name, sparse / found["2"], "difference", "times the cost at 2 pixels"))
    return rows


def in_full(call: Call) -> Call:
    """The call with every pixel its own sample, however wide the noise."""

    def run() -> object:
        with mock.patch("algonet.render.modules.is_sharp", return_value=True):
            return call()

    return run


def plot(rows: list[Row], path: Path) -> None:
    """Cost against softness, before and after: a panel for each scene."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    soft = [row for row in rows if row.name.endswith(" pixels") and ", noise of " in row.name]
    scenes = list(dict.fromkeys(row.name.split(",")[0] for row in soft))
    figure, axes = plt.subplots(1, len(scenes), figsize=(0.6 + 4.4 * len(scenes), 3.4), squeeze=False)
    for axis, scene in zip(axes[0], scenes, strict=True):
        for column, label, style in (
            ("every pixel sampled", "every pixel sampled", "o:"),
            ("lit, f+b", "sampled as the noise needs", "o-"),
        ):
            found = [row for row in soft if row.column == column and row.name.split(",")[0] == scene]
            scales = [float(row.name.split()[-2]) for row in found]
            axis.loglog(scales, [row.value for row in found], style, label=label)
        axis.set(xlabel="noise in pixels", title=scene.replace("^2", "²"))
        axis.grid(alpha=0.3)
    axes[0][0].set_ylabel("lit call, f+b, ms")
    axes[0][-1].legend(frameon=False, loc="upper left", fontsize="small")
    figure.savefig(path, dpi=160, bbox_inches="tight")


def measured(device: str, quick: bool, meshes: Path | None) -> Iterator[list[Row]]:
    """All rows, part by part; raises SystemExit where pictures differ from the reference."""
    difference = parity(device)
    print(f"largest difference from the dense reference: {difference:.1e}")
    if not difference < TOLERANCE:
        raise SystemExit(f"parity failed ({difference:.1e} > {TOLERANCE:.0e}): no times are given")
    seconds = 0.05 if quick else 0.6 if device == "cuda" else 4.0
    yield from shading_rows(device, quick, seconds)
    yield softness_rows(device, quick, seconds)
    if meshes:
        yield from mesh_rows(meshes, device, quick, seconds)


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--quick", action="store_true", help="tiny workloads, for a look")
    parser.add_argument("--meshes", type=Path, help="a folder of mesh files")
    parser.add_argument("--plot", type=Path, help="plot cost against softness to this file")
    parser.add_argument("--recorded", type=Path, nargs="+", help="plot rows of these files; nothing is measured")
    parser.add_argument("--json", type=Path, help="write the rows to this file; - prints them as one line")
    options = parser.parse_args(argv)
    if options.recorded:
        rows = [row for path in options.recorded for row in harness.recorded(path)]
    else:
        rows = harness.record_all(options.json, measured(options.device, options.quick, options.meshes))
    if options.plot:
        plot(rows, options.plot)


if __name__ == "__main__":
    main()

"""`algonet render`, `fit-mesh` and `fit-camera`: a mesh to pictures, pictures to a mesh, and where they were taken from."""

from __future__ import annotations

import io
import math
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer import Argument, Option, echo

from algonet.cli.common import (
    STANDARD_OUTPUT,
    Force,
    Json,
    Size,
    check_out,
    deliver,
    examples,
    out_option,
    parse_size,
    print_result,
    report_bytes,
)
from algonet.core.pictures import gif_bytes, png_bytes, to_bytes

if TYPE_CHECKING:
    from torch import Tensor

    from algonet.render import Camera, Mesh

#: What --quick computes at most.
QUICK_STEPS, QUICK_SIZE, QUICK_ROTATIONS = 80, 64, 48
PROCEDURAL = ("icosphere", "box", "torus", "cylinder")
Layer = StrEnum("Layer", ["rgb", "silhouette", "depth"])
Backend = StrEnum("Backend", ["auto", "reference", "numba", "triton"])
Coverage = Annotated[
    str,
    Option(help="How pixels are covered: filtered, gaussian, edges or euclidean; all but the first are slow."),
]
Side = Annotated[int, Option(help="Pixels along the longer side of the pictures.", min=8, max=2048)]
MESHES = (".obj", ".ply", ".stl", ".off", ".glb")


def _procedural(start: str) -> list[str]:
    return [name for name in PROCEDURAL if name.startswith(start)]


MeshName = Annotated[
    str, Argument(help=f"A mesh file, or one of: {', '.join(PROCEDURAL)}.", autocompletion=_procedural)
]

Fov = Annotated[float, Option(help="Full vertical angle of view in degrees.")]
#: That of `Camera.look_at`, whose import brings torch, for which --help need not wait.
DEFAULT_FOV = 60.0

app = typer.Typer()


@app.command(
    epilog=examples(
        "algonet render torus --out torus.png --scale 2",
        "algonet render chair.obj --out chair.gif --views 24",
        "algonet render chair.obj --out views/ --views 12",
        "algonet render box --layer depth --size 640x480 --out - > depth.png",
    )
)
def render(
    mesh: MeshName,
    out: Annotated[
        Path,
        out_option(
            "Picture to write (.png, or .gif for a film), - for standard output; or a folder for a picture of each view "
            "with cameras.json, which fit-mesh reads.",
        ),
    ] = Path("render.png"),
    size: Size = "256",
    scale: Annotated[float, Option(help="How soft: the noise's scale in pixels.")] = 0.7,
    layer: Annotated[Layer, Option(help="What is drawn.")] = Layer.rgb,
    views: Annotated[int, Option(help="Cameras on a circle around the mesh.", min=1, max=1000)] = 1,
    elevation: Annotated[float, Option(help="Degrees above the equator.")] = 25.0,
    azimuth: Annotated[float, Option(help="Degrees around the vertical axis, of the first view.")] = 30.0,
    fov: Fov = DEFAULT_FOV,
    coverage: Coverage = "filtered",
    backend: Annotated[Backend, Option(help="Which kernels render.")] = Backend.auto,
    force: Force = False,
) -> None:
    """Render a mesh smoothly to a picture."""
    from algonet.core.memory import check_memory
    from algonet.render import BlinnPhong, SmoothRenderer
    from algonet.render.cameras import camera_file
    from algonet.render.coverage import coverage_named

    width, height = parse_size(size)
    folder = out != STANDARD_OUTPUT and (out.is_dir() or not out.suffix)
    names = [f"view{i:03}.png" for i in range(views)]
    paths = [out / name for name in (*names, "cameras.json")] if folder else [out]
    _picture_format(paths[0])
    check_out(*paths, force=force, inputs=[Path(mesh)])
    # All frames are kept until the film is written
    check_memory("render", f"{views} views of {width} x {height}", 3 * views * width * height)
    loaded = _mesh(mesh)
    renderer = SmoothRenderer(
        (height, width), coverage_named(coverage, scale), background=1.0, surface=BlinnPhong(), backend=str(backend)
    )
    cameras = _circle(views, elevation, azimuth, fov)
    if folder:
        pictures = [png_bytes(_cut_out_view(renderer(loaded, cameras[i]))) for i in range(views)]
        text = camera_file(cameras, names, (height, width)).encode()
        done = f"wrote {out}/ ({views} views of {width} x {height}, and cameras.json)"
        deliver(dict(zip(paths, (*pictures, text), strict=True)), done, force=force)
        return
    frames = [_layer(renderer(loaded, cameras[i]), layer) for i in range(views)]
    counted = f"{len(loaded.faces)} faces, {views} view{'s' if views > 1 else ''}, {width} x {height}"
    deliver({out: _encoded(frames, out)}, f"wrote {out} ({counted})", force=force)


@app.command(
    "fit-mesh",
    epilog=examples(
        "algonet fit-mesh views/ --quick --out run/",
        "algonet fit-mesh photos/ --cameras colmap/transforms.json --out run/",
        "algonet fit-mesh photos/ --out fit.glb",
    ),
)
def fit(
    pictures: Annotated[Path, Argument(help="A folder of pictures, such as `algonet render --views 12` writes.")],
    out: Annotated[
        Path,
        out_option("Folder of the run; or a mesh to write (.obj, .glb, ...), with its folder beside it."),
    ] = Path("fit"),
    cameras: Annotated[
        Path | None, Option(help="A transforms.json with the pictures' cameras; without it, cameras on a circle.")
    ] = None,
    steps: Annotated[int, Option(help="Steps of the fit.", min=1, max=1_000_000)] = 500,
    quick: Annotated[bool, Option("--quick", help="At most 80 steps on pictures of 64 pixels.")] = False,
    level: Annotated[
        int | None,
        Option(help="Begin with a sphere of so many subdivisions, not with the visual hull.", min=0, max=6),
    ] = None,
    texture: Annotated[
        int,
        Option(
            help="Texels along each side of the texture (more if the faces need it); 0: no texture.", min=0, max=8192
        ),
    ] = 1024,
    size: Side = 128,
    elevation: Annotated[float, Option(help="Degrees above the equator, of cameras on a circle.")] = 25.0,
    fov: Fov = DEFAULT_FOV,
    coverage: Coverage = "filtered",
    seed: Annotated[int, Option(help="Seed of the views that are drawn at each step.")] = 0,
    force: Force = False,
    as_json: Json = False,
) -> None:
    """Find the mesh that looks like the pictures.

    Where pictures were taken is read from --cameras, or from cameras.json or transforms.json in the folder. Without these,
    the pictures are taken as views at even angles on a circle around the object, in the order of their names. Transparent
    pixels are background; so are white ones where there is no alpha. The run's folder holds progress.png while the fit
    goes on, then mesh, texture, fit.gif and report.json. An interrupted run goes on where it stopped when called again.
    """
    from algonet.cli.fitting_runs import FitRun, check_run
    from algonet.fit import MeshFitter, Remesh, Targets
    from algonet.fit.mesh import around_targets
    from algonet.fit.targets import camera_file_in, picture_files
    from algonet.render import icosphere
    from algonet.render.coverage import coverage_named

    covered = coverage_named(coverage)
    folder, mesh_file = _run_folder(out)
    check_run(folder, mesh_file, bool(texture), force)
    if not pictures.is_dir():
        raise ValueError(
            f"fit-mesh: {pictures} is no folder of pictures; `algonet render MESH --views 24 --out views/` makes one of a mesh."
        )
    if quick:
        steps, size = min(steps, QUICK_STEPS), min(size, QUICK_SIZE)
    known = cameras or camera_file_in(pictures) or _circle(len(picture_files(pictures)), elevation, 0.0, fov)
    targets = Targets.load(pictures, known, size=size)
    options = {"steps": steps, "level": level, "size": size, "coverage": coverage, "seed": seed}
    ball = None if level is None else around_targets(icosphere(level, 0.5), targets)
    fitter = MeshFitter(targets, ball, steps=steps, remesh=Remesh(), coverage=covered, seed=seed)
    run = FitRun(folder, mesh_file, fitter, options, str(pictures))
    if run.resumed_at and not as_json:
        echo(f"going on from step {run.resumed_at} of {run.checkpoint}")
    if not run.advance(shown=not as_json):
        echo(f"stopped at step {fitter.taken} of {steps}; the same command goes on from there", err=True)
        raise typer.Exit(130)
    result, report = run.finish(texture, force)
    counted = (
        f"{len(targets)} views, {steps} steps, {result.quality.faces} faces, {result.quality.share:.2%} of them bad"
    )
    for note in () if as_json else result.notes:
        echo(f"note: {note}", err=True)
    lines = [f"wrote {mesh_file} ({counted}); film and report in {folder}"]
    print_result({"folder": str(folder), "mesh": str(mesh_file), **report}, as_json, lines)


@app.command(
    epilog=examples(
        "algonet fit-camera chair.obj photo.png --out run/",
        "algonet fit-camera chair.obj turntable/ --fov 35 --learn-fov --out run/",
    )
)
def fit_camera(
    mesh: MeshName,
    pictures: Annotated[Path, Argument(help="A picture, or a folder of pictures.")],
    out: Annotated[Path, out_option("Folder of the run.")] = Path("fit-camera"),
    fov: Fov = DEFAULT_FOV,
    learn_fov: Annotated[bool, Option("--learn-fov", help="Find the angle of view too.")] = False,
    rotations: Annotated[int, Option(help="How many rotations the search starts from.", min=1)] = 128,
    size: Side = 128,
    quick: Annotated[
        bool,
        Option("--quick", help="At most 48 rotations, on pictures of 64 pixels: faster, but misses some poses."),
    ] = False,
    silhouette: Annotated[bool, Option("--silhouette", help="Compare outlines only, not colours.")] = False,
    coverage: Coverage = "filtered",
    force: Force = False,
    as_json: Json = False,
) -> None:
    """Find the cameras from which a mesh looks like the pictures. No start is needed.

    Writes cameras.json (a transforms.json, as fit-mesh reads it), overlay.png (each picture above the mesh seen from its
    camera) and report.json, with every distinct minimum and its loss.
    """
    import json

    from algonet.cli.fitting_runs import thumbnail
    from algonet.fit import PoseSearch, Targets, rotation_error
    from algonet.fit import fit_camera as search
    from algonet.fit.targets import cut_out, picture_files
    from algonet.render.cameras import camera_file
    from algonet.render.coverage import coverage_named

    covered = coverage_named(coverage)
    paths = out / "cameras.json", out / "overlay.png", out / "report.json"
    check_out(*paths, force=force, inputs=[Path(mesh), pictures])
    if quick:
        rotations, size = min(rotations, QUICK_ROTATIONS), min(size, QUICK_SIZE)
    loaded = _mesh(mesh, normalised=False)
    files = picture_files(pictures) if pictures.is_dir() else [pictures]
    names, images = [file.name for file in files], cut_out(files, size)
    colored = not silhouette and (loaded.vertex_colors, loaded.face_colors, loaded.texture) != (None, None, None)
    found = search(
        loaded, images if colored else images[..., 3:], fov=fov, learn_fov=learn_fov,
        search=PoseSearch(rotations=rotations), coverage=covered, progress=not as_json,
    )  # fmt: skip
    height, width = images.shape[1:3]
    cameras = camera_file(found.camera, names, (height, width))
    overlay = thumbnail(loaded, Targets(found.camera, rgb=images), len(names))
    report = [
        {
            "picture": name,
            "loss": float(minima.losses[0]),
            "minima": [
                {"loss": float(loss), "degrees_from_best": float(rotation_error(minima.cameras[i], minima.cameras[0]))}
                for i, loss in enumerate(minima.losses)
            ],
        }
        for name, minima in zip(names, found.minima, strict=True)
    ]
    contents = cameras.encode(), _encoded([overlay], paths[1]), report_bytes(report)
    deliver(dict(zip(paths, contents, strict=True)), force=force)
    losses = ", ".join(f"{name}: {float(loss):.5f}" for name, loss in zip(names, found.losses, strict=True))
    result = {"files": [str(path) for path in paths], "cameras": json.loads(cameras)["frames"], "pictures": report}
    print_result(result, as_json, [f"wrote {out}/cameras.json (loss of {losses})"])


def _run_folder(out: Path) -> tuple[Path, Path]:
    """The folder of a run, and the mesh to write."""
    if out.suffix and not out.is_dir():
        if out.suffix.lower() not in MESHES:
            raise ValueError(
                f"{out}: meshes are written as {', '.join(MESHES)}; choose one of these endings, or a folder."
            )
        return out.with_suffix(""), out
    return out, out / "mesh.obj"


def _mesh(name: str, *, normalised: bool = True) -> Mesh:
    from algonet import render
    from algonet.render import Mesh

    if name in PROCEDURAL:
        mesh = getattr(render, name)().normalised()
        return mesh.replace(vertex_colors=(mesh.vertices * 0.4 + 0.55).clamp(0, 1))
    if not Path(name).exists():
        raise ValueError(f"{name}: there is no such file; give a mesh file or one of {', '.join(PROCEDURAL)}.")
    mesh = Mesh.load(name)
    return mesh.normalised() if normalised else mesh


def _circle(views: int, elevation: float, azimuth: float, fov: float) -> Camera:
    """Cameras at even angles around the unit ball, which fills the picture."""
    import torch

    from algonet.render.cameras import Camera, check_fov

    check_fov("--fov", fov)
    for name, angle in (("--elevation", elevation), ("--azimuth", azimuth)):
        if not math.isfinite(angle):
            raise ValueError(f"{name}: an angle in degrees, got {angle:g}.")
    angle = torch.arange(views) * (2 * math.pi / views) + math.radians(azimuth)
    tilt = torch.full((views,), math.radians(elevation))
    ray = torch.stack([angle.sin() * tilt.cos(), tilt.sin(), angle.cos() * tilt.cos()], -1)
    return Camera.look_at(ray * (1.1 / math.sin(math.radians(fov / 2))), fov=fov)


def _cut_out_view(out: Any) -> Tensor:
    """RGBA (H, W, 4) of a rendering over white."""
    import torch

    alpha = out.silhouette.detach()[..., None]
    color = (out.rgb.detach() - (1 - alpha)) / alpha.clamp_min(1e-3)
    return torch.cat([color, alpha], -1).clamp(0, 1)


def _layer(out: Any, layer: str) -> Any:
    """A picture (H, W, 3) of bytes."""
    value = getattr(out, layer).detach()
    if layer == "depth":
        # Out of the mixture with the background's depth, which is 0
        value = value / out.silhouette.clamp(min=1e-6)
        covered = value[out.silhouette > 0.5]
        low, high = (float(covered.min()), float(covered.max())) if len(covered) else (0.0, 1.0)
        value = (1 - (value - low) / max(high - low, 1e-6)).clamp(0, 1) * out.silhouette
    return to_bytes(value, colored=True)


def _picture_format(out: Path) -> str:
    """What Pillow calls the format of a file of this name."""
    from PIL import Image

    if out == STANDARD_OUTPUT:
        return "PNG"
    found = Image.registered_extensions().get(out.suffix.lower())
    if found not in Image.SAVE:
        raise ValueError(f"{out}: pictures cannot be written with the ending {out.suffix!r}; use .png, .jpg or .gif.")
    return str(found)


def _encoded(frames: list, out: Path) -> bytes:
    """Several views as the frames of a GIF, in other formats side by side."""
    import numpy as np
    from PIL import Image

    format = _picture_format(out)
    if format == "GIF":
        return gif_bytes(frames)
    buffer = io.BytesIO()
    Image.fromarray(np.concatenate(frames, 1)).save(buffer, format)
    return buffer.getvalue()

"""`algonet render`, `fit-mesh` and `fit-camera`: a mesh to pictures, pictures to a mesh, and where they were taken from."""

from __future__ import annotations

import io
import math
import re
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from algonet.cli.common import STANDARD_OUTPUT, Force, Json, check_out, deliver, examples, parse_size, print_json, say
from algonet.core.pictures import gif_bytes, to_bytes

if TYPE_CHECKING:
    from torch import Tensor

    from algonet.render import Camera, Mesh, Targets

PROCEDURAL = ("icosphere", "box", "torus", "cylinder")
Layer = StrEnum("Layer", ["rgb", "silhouette", "depth"])
Backend = StrEnum("Backend", ["auto", "reference", "numba", "triton"])
Coverage = Annotated[
    str,
    typer.Option(help="How pixels are covered: filtered, gaussian, edges or euclidean; all but the first are slow."),
]
MESHES = (".obj", ".ply", ".stl", ".off", ".glb")
PICTURES = (".png", ".jpg", ".jpeg", ".webp", ".bmp")


def _default_fov() -> float:
    # Called when a command runs: importing the camera brings torch, for which --help need not wait
    from algonet.render.cameras import DEFAULT_FOV

    return DEFAULT_FOV


Fov = Annotated[
    float,
    typer.Option(
        help="Full vertical angle of view in degrees.", default_factory=_default_fov,
        show_default="60, as Camera.look_at",
    ),
]  # fmt: skip


def register(app: typer.Typer) -> None:
    """Add the commands to the program."""
    app.command(
        "render",
        epilog=examples(
            "algonet render torus --out torus.png --scale 2",
            "algonet render chair.obj --out chair.gif --views 24",
            "algonet render box --layer depth --size 640x480 --out - > depth.png",
        ),
    )(render)
    app.command(
        "fit-mesh",
        epilog=examples(
            "algonet fit-mesh torus --out run/",
            "algonet fit-mesh photos/ --cameras photos/transforms.json --out run/",
            "algonet fit-mesh photos/ --out fit.glb",
        ),
    )(fit)
    app.command(
        "fit-camera",
        epilog=examples(
            "algonet fit-camera chair.obj photo.png --out run/",
            "algonet fit-camera chair.obj turntable/ --fov 35 --learn-fov --out run/",
        ),
    )(fit_camera)


def _procedural(start: str) -> list[str]:
    return [name for name in PROCEDURAL if name.startswith(start)]


def render(
    mesh: Annotated[
        str,
        typer.Argument(help="A mesh file, or one of: icosphere, box, torus, cylinder.", autocompletion=_procedural),
    ],
    out: Annotated[
        Path, typer.Option("--out", "-o", help="Picture to write (.png, or .gif for a film), - for standard output.")
    ] = Path("render.png"),
    size: Annotated[str, typer.Option(help="Width x height in pixels, or one number for a square.")] = "256",
    scale: Annotated[float, typer.Option(help="How soft: the noise's scale in pixels.")] = 0.7,
    layer: Annotated[Layer, typer.Option(help="What is drawn.")] = Layer.rgb,
    views: Annotated[int, typer.Option(help="Cameras on a circle around the mesh.", min=1, max=1000)] = 1,
    elevation: Annotated[float, typer.Option(help="Degrees above the equator.")] = 25.0,
    azimuth: Annotated[float, typer.Option(help="Degrees around the vertical axis, of the first view.")] = 30.0,
    *,
    fov: Fov,
    coverage: Coverage = "filtered",
    backend: Annotated[Backend, typer.Option(help="What runs it.")] = Backend.auto,
    force: Force = False,
) -> None:
    """Render a mesh smoothly to a picture."""
    from algonet.core.memory import check_memory
    from algonet.render import BlinnPhong, SmoothRenderer
    from algonet.render.coverage import coverage_named

    width, height = parse_size(size)
    _picture_format(out)
    check_out(out, force=force, inputs=[Path(mesh)])
    # All frames are kept until the film is written
    check_memory("render", f"{views} views of {width} x {height}", 3 * views * width * height)
    loaded = _mesh(mesh)
    renderer = SmoothRenderer(
        (height, width), coverage_named(coverage, scale), background=1.0, surface=BlinnPhong(), backend=str(backend)
    )
    cameras = _circle(views, elevation, azimuth, fov)
    frames = [_layer(renderer(loaded, cameras[i]), layer) for i in range(views)]
    counted = f"{len(loaded.faces)} faces, {views} view{'s' if views > 1 else ''}, {width} x {height}"
    deliver({out: _encoded(frames, out)}, force=force)
    say(out, f"wrote {out} ({counted})")


def fit(
    source: Annotated[
        str, typer.Argument(help="A mesh file (or icosphere, box, torus, cylinder), or a folder of pictures.")
    ],
    out: Annotated[
        Path,
        typer.Option(
            "--out", "-o", help="Folder of the run; or a mesh to write (.obj, .glb, ...), with its folder beside it."
        ),
    ] = Path("fit"),
    cameras: Annotated[
        Path | None, typer.Option(help="A transforms.json with the pictures' cameras; else they stand on a circle.")
    ] = None,
    steps: Annotated[int, typer.Option(help="Steps of the fit.", min=1, max=1_000_000)] = 500,
    level: Annotated[int, typer.Option(help="Subdivisions of the sphere to begin with.", min=0, max=6)] = 3,
    remesh: Annotated[bool, typer.Option(help="Refine the mesh where the pictures show detail.")] = True,
    texture: Annotated[
        int, typer.Option(help="Texels a side of the texture (more if the faces need it); 0: none.", min=0, max=8192)
    ] = 1024,
    size: Annotated[int, typer.Option(help="Pixels along the longer side of the pictures.", min=8, max=2048)] = 128,
    views: Annotated[int, typer.Option(help="Number of views when the source is a mesh.", min=1, max=1000)] = 24,
    elevation: Annotated[
        float, typer.Option(help="Degrees above the equator (a mesh is also seen from below).")
    ] = 25.0,
    *,
    fov: Fov,
    coverage: Coverage = "filtered",
    seed: Annotated[int, typer.Option(help="Which views are drawn at each step.")] = 0,
    force: Force = False,
    as_json: Json = False,
) -> None:
    """Shape a sphere until it looks like the pictures (or like a mesh, seen from all around).

    Pictures of a folder, in order of their names and the numbers in them, are taken as views on a circle around the object
    at even angles, unless --cameras says where each was taken. What is transparent, or white where there is no alpha, is
    background. The folder of the run holds progress.png while it goes on, then mesh, texture, fit.gif and report.json. A
    run that was interrupted goes on where it stopped when it is called again.
    """
    from algonet.cli.fitting_runs import FitRun, RunFiles
    from algonet.render import MeshFitter, Remesh, icosphere
    from algonet.render.coverage import coverage_named
    from algonet.render.fitting.mesh import around_targets

    covered = coverage_named(coverage)
    folder, mesh_file = _run_folder(out)
    run_files = RunFiles(folder, mesh_file, textured=bool(texture))
    run_files.check(force, inputs=[Path(source)])
    targets = _targets(Path(source), source, cameras, size, views, elevation, fov)
    options = {"steps": steps, "level": level, "remesh": remesh, "size": size, "coverage": coverage, "seed": seed}
    again = Remesh() if remesh else None
    ball = around_targets(icosphere(level, 0.5), targets)
    fitter = MeshFitter(targets, ball, steps=steps, remesh=again, coverage=covered, seed=seed)
    run = FitRun(run_files, fitter, options, source)
    if run.resumed_at and not as_json:
        typer.echo(f"going on from step {run.resumed_at} of {run.checkpoint}")
    if not run.advance(shown=not as_json):
        typer.echo(f"stopped at step {fitter.taken} of {steps}; the same command goes on from there", err=True)
        raise typer.Exit(130)
    result, report = run.finish(texture, force)
    if as_json:
        print_json({"folder": str(folder), "mesh": str(mesh_file), **report})
        return
    counted = (
        f"{len(targets)} views, {steps} steps, {result.quality.faces} faces, {result.quality.share:.2%} of them bad"
    )
    typer.echo(f"wrote {mesh_file} ({counted}); film and report in {folder}")


def fit_camera(
    mesh: Annotated[str, typer.Argument(help="A mesh file, or one of: icosphere, box, torus, cylinder.")],
    pictures: Annotated[Path, typer.Argument(help="A picture, or a folder of pictures.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder of the run.")] = Path("fit-camera"),
    *,
    fov: Fov,
    learn_fov: Annotated[bool, typer.Option("--learn-fov", help="Find the angle of view too.")] = False,
    rotations: Annotated[int, typer.Option(help="How many rotations the search starts from.", min=1)] = 128,
    size: Annotated[int, typer.Option(help="Pixels along the longer side of the pictures.", min=8, max=2048)] = 128,
    silhouette: Annotated[bool, typer.Option("--silhouette", help="Compare outlines only, not colours.")] = False,
    coverage: Coverage = "filtered",
    force: Force = False,
    as_json: Json = False,
) -> None:
    """Find the cameras from which a mesh looks like the pictures, among all there are.

    Writes cameras.json (a transforms.json, as fit-mesh reads it), overlay.png (each picture above the mesh seen from its
    camera) and report.json, with every distinct minimum and its loss.
    """
    import json

    from algonet.cli.fitting_runs import camera_file, thumbnail
    from algonet.render import PoseSearch, Targets, rotation_error
    from algonet.render import fit_camera as search
    from algonet.render.coverage import coverage_named

    covered = coverage_named(coverage)
    paths = out / "cameras.json", out / "overlay.png", out / "report.json"
    check_out(*paths, force=force, inputs=[Path(mesh), pictures])
    loaded = _mesh(mesh, normalised=False)
    names, images = _pictures_of(pictures, size)
    colored = not silhouette and (loaded.vertex_colors, loaded.face_colors, loaded.texture) != (None, None, None)
    found = search(
        loaded, images if colored else images[..., 3], fov=fov, learn_fov=learn_fov,
        search=PoseSearch(rotations=rotations), coverage=covered, progress=not as_json,
    )  # fmt: skip
    height, width = images.shape[1:3]
    cameras = camera_file(found.camera, names, width / height)
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
    contents = cameras.encode(), _encoded([overlay], paths[1]), f"{json.dumps(report, indent=1)}\n".encode()
    deliver(dict(zip(paths, contents, strict=True)), force=force)
    if as_json:
        print_json(
            {"files": [str(path) for path in paths], "cameras": json.loads(cameras)["frames"], "pictures": report}
        )
        return
    losses = ", ".join(f"{name}: {float(loss):.5f}" for name, loss in zip(names, found.losses, strict=True))
    typer.echo(f"wrote {out}/cameras.json (loss of {losses})")


def _run_folder(out: Path) -> tuple[Path, Path]:
    """The folder of a run, and the mesh to write."""
    if out.suffix and not out.is_dir():
        if out.suffix.lower() not in MESHES:
            raise ValueError(
                f"{out}: meshes are written as {', '.join(MESHES)}; choose one of these endings, or a folder."
            )
        return out.with_suffix(""), out
    return out, out / "mesh.obj"


def _targets(
    folder: Path, source: str, cameras: Path | None, size: int, views: int, elevation: float, fov: float
) -> Targets:
    """Pictures with cameras: of a folder, by a camera file or on a circle; or of a mesh."""
    from algonet.cli.fitting_runs import read_cameras
    from algonet.render import Targets

    if not folder.is_dir():
        if cameras is not None:
            raise ValueError(f"--cameras goes with a folder of pictures; {source} is none.")
        around = _circle(views, elevation, 0.0, fov, alternate=True)
        return Targets(around, rgb=_views_of(_mesh(source), around, size))
    if cameras is None:
        pictures = _cut_out(_picture_files(folder), size)
        return Targets(_circle(len(pictures), elevation, 0.0, fov), rgb=pictures)
    names, _ = read_cameras(cameras, (size, size))
    paths = [_frame_file(name, cameras, folder) for name in names]
    pictures = _cut_out(paths, size)
    _, placed = read_cameras(cameras, (int(pictures.shape[1]), int(pictures.shape[2])))
    return Targets(placed, rgb=pictures)


def _frame_file(name: str, cameras: Path, folder: Path) -> Path:
    """The picture that a camera file names: beside it or in the folder, with or without its ending."""
    places = cameras.parent.resolve(), folder.resolve()
    for base in (cameras.parent / name, folder / name, folder / Path(name).name):
        for path in (base, *(base.with_name(base.name + ending) for ending in PICTURES)):
            # A camera file from elsewhere does not choose what is read elsewhere
            if path.is_file() and any(path.resolve().is_relative_to(place) for place in places):
                return path
    raise ValueError(f"{cameras}: names the picture {name}, which is neither beside it nor in {folder}.")


def _mesh(name: str, *, normalised: bool = True) -> Mesh:
    from algonet import render
    from algonet.render import Mesh

    if name in PROCEDURAL:
        mesh = getattr(render, name)()
        return mesh.normalised().replace(vertex_colors=(mesh.normalised().vertices * 0.4 + 0.55).clamp(0, 1))
    if not Path(name).exists():
        raise ValueError(f"{name}: there is no such file; give a mesh file or one of {', '.join(PROCEDURAL)}.")
    return Mesh.load(name).normalised() if normalised else Mesh.load(name)


def _circle(views: int, elevation: float, azimuth: float, fov: float, *, alternate: bool = False) -> Camera:
    """Cameras at even angles around the unit ball, which fills the picture; with `alternate`, every other one from below."""
    import torch

    from algonet.render import Camera

    if not 0 < fov < 180:
        raise ValueError(f"--fov: the full vertical angle in degrees, in (0, 180), got {fov:g}.")
    for name, angle in (("--elevation", elevation), ("--azimuth", azimuth)):
        if not math.isfinite(angle):
            raise ValueError(f"{name}: an angle in degrees, got {angle:g}.")
    angle = torch.arange(views) * (2 * math.pi / views) + math.radians(azimuth)
    tilt = torch.full((views,), math.radians(elevation))
    if alternate:
        tilt[1::2] *= -1
    ray = torch.stack([angle.sin() * tilt.cos(), tilt.sin(), angle.cos() * tilt.cos()], -1)
    return Camera.look_at(ray * (1.1 / math.sin(math.radians(fov / 2))), fov=fov)


def _views_of(mesh: Mesh, cameras: Camera, size: int) -> Any:
    """RGBA pictures by the hard rasteriser, in the mesh's own colours."""
    import torch

    from algonet.render import render_hard, sample_texture

    looks, rows = torch.full_like(mesh.vertices, 0.7), None
    if mesh.texture is not None and mesh.uv is not None:
        looks, rows = mesh.uv, mesh.uv_faces
    elif mesh.vertex_colors is not None:
        looks = mesh.vertex_colors
    elif mesh.face_colors is not None:
        looks, rows = mesh.face_colors, torch.arange(len(mesh.faces))[:, None].expand(-1, 3)
    rendered = render_hard(mesh.vertices, mesh.faces, looks, cameras, size=(size, size), attribute_faces=rows)
    image = rendered.image if mesh.texture is None else sample_texture(mesh.texture, rendered.image)
    alpha = rendered.silhouette[..., None]
    return torch.cat([image * alpha, alpha], -1)


def _picture_files(folder: Path) -> list[Path]:
    """All pictures of a folder, in order of their names; numbers in names count as numbers: view 2 comes before view 10."""
    paths = [p for p in folder.iterdir() if p.suffix.lower() in PICTURES]
    if not paths:
        raise ValueError(f"{folder}: holds no pictures (.png, .jpg, .webp, .bmp).")
    return sorted(paths, key=lambda p: [int(s) if s.isdecimal() else s for s in re.split(r"(\d+)", p.name)])


def _pictures_of(path: Path, size: int) -> tuple[list[str], Any]:
    """Names and pictures of a file, or of a folder's."""
    paths = _picture_files(path) if path.is_dir() else [path]
    return [p.name for p in paths], _cut_out(paths, size)


def _cut_out(paths: list[Path], size: int) -> Tensor:
    """Pictures as `read_pictures` gives them; in those without alpha, what is white is transparent."""
    pictures = read_pictures(paths, size)
    for path, pixels in zip(paths, pictures, strict=True):
        if bool((pixels[..., 3] > 0.99).all()):
            pixels[..., 3] = (pixels[..., :3].amin(-1) < 0.95).float()
            _check_background(path, pixels[..., 3])
    return pictures


def read_pictures(paths: list[Path], size: int) -> Tensor:
    """Pictures as RGBA (N, H, W, 4) with the longer side `size` pixels."""
    import numpy as np
    import torch
    from PIL import Image

    from algonet.core.pictures import open_picture

    pictures, shapes = [], {}
    for path in paths:
        whole = open_picture(path).convert("RGBA")
        share = size / max(whole.size)
        width, height = (max(1, round(n * share)) for n in whole.size)
        pixels = np.asarray(whole.resize((width, height), Image.Resampling.BOX)).astype(np.float32) / 255
        shapes.setdefault((width, height), path)
        pictures.append(torch.from_numpy(pixels))
    if len(shapes) > 1:
        listed = ", ".join(f"{path.name} {w} x {h}" for (w, h), path in list(shapes.items())[:3])
        raise ValueError(f"{paths[0].parent}: all pictures must have the same proportions; at this size, {listed}.")
    return torch.stack(pictures)


def _check_background(path: Path, covered: Tensor) -> None:
    """Raise where most of the border of a picture without alpha is not white: nothing says what the object is."""
    border = [*covered[0].tolist(), *covered[-1].tolist(), *covered[:, 0].tolist(), *covered[:, -1].tolist()]
    if sum(border) > len(border) / 2:
        raise ValueError(
            f"{path}: no background is known: the picture has no alpha, and most of its border is not white; "
            "cut the object out, with alpha or on white."
        )


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

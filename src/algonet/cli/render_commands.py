"""`algonet render` and `algonet fit-mesh`: a mesh to pictures, and pictures to a mesh."""

from __future__ import annotations

import io
import math
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from algonet.cli.common import STANDARD_OUTPUT, check_writable, deliver, examples, parse_size

if TYPE_CHECKING:
    from algonet.render import Camera, Mesh

PROCEDURAL = ("icosphere", "box", "torus", "cylinder")
Layer = StrEnum("Layer", ["rgb", "silhouette", "depth"])
Backend = StrEnum("Backend", ["auto", "reference", "numba", "triton"])
MESHES = (".obj", ".ply", ".stl", ".off", ".glb")


def register(app: typer.Typer) -> None:
    """Add both commands to the program."""
    app.command(
        "render",
        epilog=examples(
            "algonet render torus --out torus.png --scale 2",
            "algonet render chair.obj --out chair.gif --views 24",
            "algonet render box --layer depth --size 640x480 --out - > depth.png",
        ),
    )(render)
    app.command(
        "fit-mesh", epilog=examples("algonet fit-mesh torus --out fit.obj", "algonet fit-mesh photos/ --out fit.obj")
    )(fit)


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
    fov: Annotated[float, typer.Option(help="Full vertical angle of view in degrees.")] = 40.0,
    backend: Annotated[Backend, typer.Option(help="What runs it.")] = Backend.auto,
) -> None:
    """Render a mesh smoothly to a picture."""
    from algonet.relax import StudentT
    from algonet.render import BlinnPhong, FilteredCoverage, SmoothRenderer

    width, height = parse_size(size)
    _picture_format(out)
    check_writable(out)
    loaded = _mesh(mesh)
    coverage = FilteredCoverage(StudentT(scale=scale))
    renderer = SmoothRenderer((height, width), coverage, background=1.0, surface=BlinnPhong(), backend=str(backend))
    cameras = _circle(views, elevation, azimuth, fov)
    frames = [_layer(renderer(loaded, cameras[i]), layer) for i in range(views)]
    counted = f"{len(loaded.faces)} faces, {views} view{'s' if views > 1 else ''}, {width} x {height}"
    deliver(out, _encoded(frames, out), f"wrote {out} ({counted})")


def fit(
    source: Annotated[
        str, typer.Argument(help="A mesh file (or icosphere, box, torus, cylinder), or a folder of pictures.")
    ],
    out: Annotated[Path, typer.Option("--out", "-o", help="Mesh to write (.obj, .ply, .stl, .off, .glb).")] = Path(
        "fit.obj"
    ),
    steps: Annotated[int, typer.Option(help="Steps of the fit.", min=1)] = 300,
    level: Annotated[int, typer.Option(help="Subdivisions of the sphere to begin with.", min=0, max=6)] = 3,
    size: Annotated[int, typer.Option(help="Height and width of the pictures in pixels.", min=8)] = 64,
    views: Annotated[int, typer.Option(help="Number of views when the source is a mesh.", min=1)] = 12,
    elevation: Annotated[
        float, typer.Option(help="Degrees above the equator (a mesh is also seen from below).")
    ] = 25.0,
    fov: Annotated[float, typer.Option(help="Full vertical angle of view in degrees.")] = 40.0,
    seed: Annotated[int, typer.Option(help="Which views are drawn at each step.")] = 0,
) -> None:
    """Shape a sphere until it looks like the pictures (or like a mesh, seen from all around).

    Pictures of a folder, in order of their names, are taken as views on a circle around the object at even angles; what is
    transparent, or white where there is no alpha, is background.
    """
    from algonet.render import fit_mesh, icosphere

    if out.suffix.lower() not in MESHES:
        raise ValueError(f"{out}: meshes are written as {', '.join(MESHES)}; choose one of these endings.")
    check_writable(out)
    folder = Path(source)
    if folder.is_dir():
        targets = _read_pictures(folder, size)
        cameras = _circle(len(targets), elevation, 0.0, fov)
    else:
        cameras = _circle(views, elevation, 0.0, fov, alternate=True)
        targets = _views_of(_mesh(source), cameras, size)
    result = fit_mesh(targets, cameras, icosphere(level, 0.7), steps=steps, progress=True, seed=seed)
    result.mesh.save(out)
    last = result.history[-1] if result.history else {"pictures": math.nan}
    counted = f"{len(targets)} views, {len(result.history)} steps, picture loss {last['pictures']:.4f}"
    typer.echo(f"wrote {out} ({counted})")


def _mesh(name: str) -> Mesh:
    from algonet import render
    from algonet.render import Mesh

    if name in PROCEDURAL:
        mesh = getattr(render, name)()
        return mesh.normalised().replace(vertex_colors=(mesh.normalised().vertices * 0.4 + 0.55).clamp(0, 1))
    if not Path(name).exists():
        raise ValueError(f"{name}: there is no such file; give a mesh file or one of {', '.join(PROCEDURAL)}.")
    return Mesh.load(name).normalised()


def _circle(views: int, elevation: float, azimuth: float, fov: float, *, alternate: bool = False) -> Camera:
    """Cameras at even angles around the unit ball, which fills the picture; with `alternate`, every other one from below."""
    import torch

    from algonet.render import Camera

    angle = torch.arange(views) * (2 * math.pi / views) + math.radians(azimuth)
    tilt = torch.full((views,), math.radians(elevation))
    if alternate:
        tilt[1::2] *= -1
    ray = torch.stack([angle.sin() * tilt.cos(), tilt.sin(), angle.cos() * tilt.cos()], -1)
    return Camera.look_at(ray * (1.1 / math.sin(math.radians(fov / 2))), fov=fov)


def _views_of(mesh: Mesh, cameras: Camera, size: int) -> Any:
    """RGBA pictures by the hard rasteriser."""
    import torch

    from algonet.render import render_hard

    colors = mesh.vertex_colors if mesh.vertex_colors is not None else torch.full_like(mesh.vertices, 0.7)
    seen = render_hard(mesh.vertices, mesh.faces, colors, cameras, size=(size, size))
    return torch.cat([seen.image, seen.silhouette[..., None]], -1)


def _read_pictures(folder: Path, size: int) -> Any:
    import numpy as np
    import torch
    from PIL import Image

    from algonet.core.pictures import open_picture

    paths = sorted(p for p in folder.iterdir() if p.suffix.lower() in (".png", ".jpg", ".jpeg", ".webp", ".bmp"))
    if not paths:
        raise ValueError(f"algonet fit-mesh: {folder} holds no pictures (.png, .jpg, .webp, .bmp).")
    pictures = []
    for path in paths:
        whole = open_picture(path).convert("RGBA").resize((size, size), Image.Resampling.BOX)
        pixels = torch.from_numpy(np.asarray(whole).astype(np.float32) / 255)
        if bool((pixels[..., 3] > 0.99).all()):
            pixels[..., 3] = (pixels[..., :3].amin(-1) < 0.95).float()
        pictures.append(pixels)
    return torch.stack(pictures)


def _layer(out: Any, layer: str) -> Any:
    """A picture (H, W, 3) of bytes."""
    import numpy as np

    value = getattr(out, layer).detach()
    if layer == "depth":
        seen = value[out.silhouette > 0.5]
        low, high = (float(seen.min()), float(seen.max())) if len(seen) else (0.0, 1.0)
        value = (1 - (value - low) / max(high - low, 1e-6)).clamp(0, 1) * out.silhouette
    pixels = (value.clamp(0, 1) * 255).round().byte().cpu().numpy()
    return pixels if pixels.ndim == 3 else np.repeat(pixels[..., None], 3, -1)


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
    from PIL import Image

    images, format = [Image.fromarray(f) for f in frames], _picture_format(out)
    more: dict[str, Any] = {}
    if format == "GIF":
        more = {"save_all": True, "append_images": images[1:], "duration": 80, "loop": 0}
    elif len(images) > 1:
        strip = Image.new("RGB", (images[0].width * len(images), images[0].height))
        for i, image in enumerate(images):
            strip.paste(image, (i * image.width, 0))
        images = [strip]
    buffer = io.BytesIO()
    images[0].save(buffer, format, **more)
    return buffer.getvalue()

"""`algonet ifs`: draw iterated function systems, and find one for a picture."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from typer import Argument, Option

from algonet.cli.common import (
    Force,
    Json,
    Size,
    check_out,
    deliver,
    examples,
    out_option,
    parse_size,
    print_result,
)
from algonet.core.pictures import gif_bytes, png_bytes

if TYPE_CHECKING:
    from torch import Tensor

    from algonet.ifs import IFS

app = typer.Typer(
    no_args_is_help=True,
    help="Iterated function systems: draw fractals, find one for a picture.",
    epilog=examples("algonet ifs list", "algonet ifs render fern", "algonet ifs fit leaf.png"),
)

Foreground = StrEnum("Foreground", ["auto", "bright", "dark"])


@app.command(epilog=examples("algonet ifs fit leaf.png --out leaf", "algonet ifs fit fern.png --functions 4 --seed 1"))
def fit(
    image: Annotated[Path, Argument(help="The picture: any image file, bright on dark or dark on bright.")],
    functions: Annotated[
        int | None,
        Option(help="How many maps the system has (default: 12 for a silhouette, else 4).", min=1, max=255),
    ] = None,
    out: Annotated[Path, out_option("Folder for the parameters, the picture and the film.")] = Path("out"),
    restarts: Annotated[int, Option(help="How many random starts are followed.", min=1, max=10_000)] = 96,
    seed: Annotated[int, Option(help="Seed of the random starts.")] = 0,
    foreground: Annotated[Foreground, Option(help="Whether the shape is bright or dark.")] = Foreground.auto,
    quick: Annotated[bool, Option("--quick", help="Fewer and shorter searches: a rough fit in seconds.")] = False,
    force: Force = False,
    as_json: Json = False,
) -> None:
    """Find a system whose picture is IMAGE: parameters (JSON), a picture (PNG) and a film of the fit (GIF)."""
    from algonet.fit import FitPlan, Level, Search, fit_ifs
    from algonet.fit.ifs import POOR

    stem = image.stem or "ifs"
    paths = [out / f"{stem}.json", out / f"{stem}.png", out / f"{stem}.gif"]
    check_out(*paths, force=force, inputs=[image])
    plan = FitPlan(restarts=restarts)
    if quick:
        level = Level(side=64, sigma=(2.5, 1.0), steps=40, rate=0.006, points=1024, depth=20, keep=2)
        plan = FitPlan(restarts=min(restarts, 6), search=Search(candidates=8, steps=25, points=96), levels=(level,))
    result = fit_ifs(image, functions, plan=plan, foreground=str(foreground), seed=seed, progress=not as_json)
    height, width = (4 * n for n in result.target.shape)
    drawn, film = _drawn(result.ifs, height, width), to_gif(result.frames, side=max(256, *result.target.shape))
    deliver(dict(zip(paths, (result.ifs.to_json().encode(), to_png(drawn), film), strict=True)), force=force)
    lines = [f"{result.verdict}; the best of {len(result.similarities)}"]
    if result.similarity < POOR:
        lines.append(f"Try more than {result.ifs.functions} functions, another seed or more restarts.")
    lines += [f"wrote {path}" for path in paths]
    print_result({"similarity": result.similarity, "files": [str(path) for path in paths]}, as_json, lines)


@app.command(
    epilog=examples(
        "algonet ifs render fern --out fern.png",
        "algonet ifs render leaf.json --size 1024x768",
        "algonet ifs render dragon --size 256 --out - > dragon.png",
    )
)
def render(
    system: Annotated[str, Argument(help="A JSON file written by `algonet ifs fit`, or the name of a preset.")],
    size: Size = "1024x768",
    out: Annotated[
        Path | None,
        out_option("The PNG to write, - for standard output (default: named after SYSTEM)."),
    ] = None,
    sigma: Annotated[float, Option(help="Standard deviation of a point, in pixels.")] = 0.7,
    points: Annotated[int, Option(help="How many points are drawn.", min=1, max=100_000_000)] = 500_000,
    crisp: Annotated[bool, Option("--crisp", help="The ordinary chaos game: black and white.")] = False,
    force: Force = False,
) -> None:
    """Draw a system at any size."""
    width, height = parse_size(size)
    path = out or Path(f"{Path(system).stem}.png")
    check_out(path, force=force, inputs=[Path(system)], ending=".png")
    ifs = open_system(system, points)
    picture = ifs.crisp((height, width), points=points) if crisp else _drawn(ifs, height, width, sigma)
    deliver({path: to_png(picture)}, f"wrote {path} ({width} x {height})", force=force)


@app.command("list", epilog=examples("algonet ifs list"))
def list_presets(as_json: Json = False) -> None:
    """Name the presets."""
    from algonet.ifs import PRESETS

    counts = {name: len(preset.rows) for name, preset in PRESETS.items()}
    lines = (f"{name:12} {count} functions" for name, count in counts.items())
    print_result({name: {"functions": count} for name, count in counts.items()}, as_json, lines)


def open_system(name: str, points: int) -> IFS:
    """The preset of that name, or the system in that file."""
    from algonet.ifs import IFS, PRESETS

    if name in PRESETS:
        return IFS.preset(name, points=points)
    if not Path(name).exists():
        raise ValueError(f"{name}: no such file, and no such preset; presets are {', '.join(PRESETS)}.")
    return IFS.load(name, points=points)


def _drawn(ifs: IFS, height: int, width: int, sigma: float = 1.0) -> Tensor:
    import torch

    with torch.no_grad():
        return ifs((height, width), sigma=sigma)


def to_png(picture: Tensor) -> bytes:
    """A picture (H, W) or (C, H, W) with values in [0, 1] as PNG."""
    return png_bytes(picture.movedim(0, -1).contiguous() if picture.ndim == 3 else picture)


def to_gif(frames: list[Tensor], side: int = 256, most: int = 80, milliseconds: int = 80) -> bytes:
    """Grey frames (H, W) of uint8, of any size, as an animated GIF whose longer side is `side`; it rests at the end."""
    from PIL import Image

    step = max(1, len(frames) // most)
    chosen = [*frames[:-1:step], frames[-1]]
    height, width = frames[-1].shape
    size = round(width * side / max(height, width)), round(height * side / max(height, width))
    images = [Image.fromarray(f.numpy()).resize(size, Image.Resampling.BILINEAR) for f in chosen]
    return gif_bytes(images, milliseconds, rest=2000)

"""`algonet ran train` and `algonet ran reconstruct`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from algonet.cli.common import examples, make_folder

app = typer.Typer(
    no_args_is_help=True,
    help="Train a reconstructor through a smooth inverse, without supervision (RAN).",
    epilog=examples("algonet ran train run.toml --out runs/shapes", "algonet ran reconstruct runs/shapes photo.png"),
)


@app.command(
    epilog=examples(
        "algonet ran train examples/configs/ran_cpu.toml --out runs/shapes",
        "algonet ran train examples/configs/ran_cpu.toml --out runs/shapes --resume",
    )
)
def train(
    config: Annotated[Path, typer.Argument(help="The run's TOML file.")],
    out: Annotated[
        Path, typer.Option("--out", "-o", help="Folder for checkpoints, TensorBoard events and pictures.")
    ] = Path("runs/ran"),
    resume: Annotated[bool, typer.Option("--resume", help="Continue from the folder's last checkpoint.")] = False,
    steps: Annotated[int | None, typer.Option(help="Train up to this step instead of the file's.", min=1)] = None,
) -> None:
    """Train what CONFIG describes, evaluate it on held-out items, and print where it is."""
    from algonet.ran import build_trainer, load_config
    from algonet.ran.evaluate import report

    settings = load_config(config)
    make_folder(out)
    trainer = build_trainer(settings, out)
    trainer.fit(steps, resume=resume)
    if trainer.fabric.is_global_zero:
        for line in report(trainer.model, settings):
            typer.echo(line)
        typer.echo(str(out.resolve()))


@app.command(epilog=examples("algonet ran reconstruct runs/shapes photo.png --out found"))
def reconstruct(
    checkpoint: Annotated[Path, typer.Argument(help="A checkpoint, or a run's folder (its last one is taken).")],
    images: Annotated[list[Path], typer.Argument(help="Pictures; several views stand side by side in one.")],
    out: Annotated[
        Path, typer.Option("--out", "-o", help="Folder for meshes or function systems, and side-by-side pictures.")
    ] = Path("found"),
) -> None:
    """Write what each picture shows: a mesh (.obj) or a function system (.json), and a picture to compare."""
    from algonet.ran.reconstruct import reconstruct_files

    for path in reconstruct_files(checkpoint, images, make_folder(out)):
        typer.echo(str(path))

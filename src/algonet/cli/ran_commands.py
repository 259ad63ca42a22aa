"""`algonet ran train` and `algonet ran reconstruct`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from typer import Argument, Option, echo

from algonet.cli.common import Force, Json, check_out, deliver, examples, out_option, print_result

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
    config: Annotated[Path, Argument(help="The run's TOML file.")],
    out: Annotated[Path, out_option("Folder for checkpoints, TensorBoard events and pictures.")] = Path("runs/ran"),
    resume: Annotated[
        bool, Option("--resume", help="Continue from the folder's last checkpoint, if it has one.")
    ] = False,
    steps: Annotated[int | None, Option(help="Train up to this step instead of the file's.", min=1)] = None,
    as_json: Json = False,
) -> None:
    """Train what CONFIG describes, evaluate it on held-out items, and print where it is."""
    from algonet.core.files import make_folder
    from algonet.ran import build_trainer, load_config
    from algonet.ran.build import figures, lines

    settings = load_config(config)
    if not resume and not (out / "checkpoints").exists():
        # A run's folder is its own, and is only continued; another one's files stay as they are
        check_out(out / "pictures.png", force=False)
    trainer = build_trainer(settings, make_folder(out), progress=not as_json)
    trainer.fit(steps, resume=resume)
    if trainer.fabric.is_global_zero:
        found = figures(trainer.model, settings)
        folder = str(out.resolve())
        result = {"folder": folder, "step": trainer.step, **found._asdict()}
        print_result(result, as_json, [*lines(found), folder])


CONFIGS = ("cpu", "gpu", "ifs", "ifs_gpu", "speech")


@app.command(epilog=examples("algonet ran init", "algonet ran init ifs --out fractals.toml"))
def init(
    name: Annotated[str, Argument(help=f"Which example: {', '.join(CONFIGS)}.")] = "cpu",
    out: Annotated[Path, out_option("The TOML file to write.")] = Path("run.toml"),
    force: Force = False,
) -> None:
    """Write an example configuration to begin with."""
    if name not in CONFIGS:
        raise ValueError(f"ran init: unknown example {name!r}; choose one of {', '.join(CONFIGS)}.")
    check_out(out, force=force)
    deliver({out: _config(name).encode()}, f"wrote {out}; next: algonet ran train {out}", force=force)


def _config(name: str) -> str:
    """The text of an example configuration: in the wheel, or in the repository of an editable install."""
    from importlib import resources

    shipped = resources.files("algonet").joinpath("configs", f"ran_{name}.toml")
    if shipped.is_file():
        return shipped.read_text(encoding="utf-8")
    return (Path(__file__).parents[3] / "examples" / "configs" / f"ran_{name}.toml").read_text(encoding="utf-8")


@app.command(epilog=examples("algonet ran reconstruct runs/shapes photo.png --out found"))
def reconstruct(
    checkpoint: Annotated[Path, Argument(help="A checkpoint, or a run's folder (its last one is taken).")],
    images: Annotated[list[Path], Argument(help="Pictures, several views side by side in one; for speech, WAV files.")],
    out: Annotated[Path, out_option("Folder for what is found, and side-by-side pictures.")] = Path("found"),
    force: Force = False,
) -> None:
    """Write what each input shows: a mesh (.obj, .ply), a function system or a transcript (.json), and a picture to compare."""
    from algonet.ran.build import reconstruct_files

    for path in reconstruct_files(checkpoint, images, out, overwrite=force):
        echo(str(path))

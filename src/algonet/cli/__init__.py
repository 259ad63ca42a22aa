"""The `algonet` command: doctor, demo, and the commands of each domain.

Errors that a user can do something about are one line on standard error and exit code 1; `--debug` shows the traceback.
"""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(
    name="algonet",
    help="Smooth algorithmic layers for PyTorch.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
)


@app.callback()
def options(
    debug: Annotated[bool, typer.Option("--debug", help="Show the full traceback of an error.")] = False,
) -> None:
    """Smooth algorithmic layers for PyTorch."""


@app.command(epilog="Example:  algonet doctor")
def doctor() -> None:
    """Print versions, devices, and for each operation which backends can run here, and why not."""
    from algonet.cli.doctor import print_report

    print_report()


@app.command(epilog="Examples:  algonet demo   |   algonet demo --quick --out /tmp/gallery")
def demo(
    out: Annotated[Path, typer.Option(help="Folder for the page.")] = Path("gallery"),
    quick: Annotated[
        bool, typer.Option("--quick", help="Smaller pictures and shorter fits, in a fraction of the time.")
    ] = False,
) -> None:
    """Render the gallery: one self-contained HTML page with a section per domain."""
    from algonet.cli.demo import run

    run(out, quick)


#: Groups of commands, by the name they are called under.
GROUPS = {"while": "while_commands", "ifs": "ifs_commands", "ran": "ran_commands"}


def _mount() -> None:
    """Add the commands of the domains."""
    for name, module in GROUPS.items():
        if importlib.util.find_spec(f"algonet.cli.{module}"):
            app.add_typer(importlib.import_module(f"algonet.cli.{module}").app, name=name)
    if importlib.util.find_spec("algonet.cli.render_commands"):
        importlib.import_module("algonet.cli.render_commands").register(app)


def main() -> None:
    """The entry point: one-line errors, exit codes."""
    _mount()
    debug = "--debug" in sys.argv
    try:
        app()
    except (ValueError, TypeError, OSError, ImportError) as error:
        if debug:
            raise
        reason = " ".join(str(error).split()) or type(error).__name__
        print(f"algonet: {reason}", file=sys.stderr)
        sys.exit(1)

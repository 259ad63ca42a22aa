"""The `algonet` command: doctor, demo, and the commands of each domain.

Exit codes: 0 done; 1 the input is wrong or something failed, said in one line on standard error (`--debug` shows the
traceback); 2 the command was called wrongly; 130 interrupted (Ctrl-C).
"""

from __future__ import annotations

import gc
import importlib
import signal
import sys
import time
from pathlib import Path
from typing import Annotated, Any

import typer
from typer import Option, echo

from algonet.cli.common import Force, Json, check_out, deliver, examples, out_option, print_json, print_result
from algonet.core.extras import EXTRAS

app = typer.Typer(
    name="algonet",
    help="Smooth algorithmic layers for PyTorch.",
    epilog=examples(
        "algonet doctor", "algonet demo --quick", "algonet play", "algonet while run multiply x1=3 x2=4",
        "algonet ifs render fern", "algonet render torus --out torus.png", "algonet ran train run.toml",
    ),
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
)  # fmt: skip


def _version(wanted: bool) -> None:
    if wanted:
        from algonet import __version__

        echo(__version__)
        raise typer.Exit


@app.callback()
def options(
    debug: Annotated[bool, Option("--debug", help="Show the full traceback of an error.")] = False,
    version: Annotated[bool, Option("--version", help="Print the version.", callback=_version, is_eager=True)] = False,
) -> None:
    """Smooth algorithmic layers for PyTorch."""


@app.command(epilog=examples("algonet doctor", "algonet doctor --json"))
def doctor(as_json: Json = False) -> None:
    """Print versions and devices, and which backends run here for each operation, and why the others don't."""
    from algonet.cli.doctor import print_report, survey

    if as_json:
        print_json(survey())
    else:
        print_report()


@app.command(epilog=examples("algonet demo", "algonet demo --quick --out /tmp/gallery"))
def demo(
    out: Annotated[Path, out_option("Folder for the page.")] = Path("gallery"),
    quick: Annotated[
        bool, Option("--quick", help="Smaller pictures and shorter fits, in a fraction of the time.")
    ] = False,
    force: Force = False,
) -> None:
    """Render the gallery: one self-contained HTML page with a section per domain."""
    from algonet.apps import gallery
    from algonet.core.files import write_text
    from algonet.fit.progress import progress_of

    path = out / gallery.PAGE
    check_out(path, force=force)
    start = time.perf_counter()
    begun = {""}
    with progress_of(len(gallery.PAGES), "starting", True) as advance:

        def progress(section: str, figure: str) -> None:
            advance(int(section not in begun and len(begun) > 1), f"{section}: {figure}")
            begun.add(section)

        sections = gallery.build(quick, progress)
    write_text(path, gallery.page(sections), overwrite=force)
    print(f"{sum(len(section.figures) for section in sections)} pictures in {time.perf_counter() - start:.0f} s")
    print(path.resolve())


@app.command(epilog=examples("algonet paper", "algonet paper --out figures", "algonet paper --json"))
def paper(
    out: Annotated[Path | None, out_option("Folder for the paper's figures.")] = None,
    as_json: Json = False,
    force: Force = False,
) -> None:
    """Check every equation of the paper against a plain reading of it, and draw its figures."""
    import dataclasses

    from algonet.apps import paper as read

    files = {} if out is None else {out / f"{name.replace(' ', '_')}.png": name for name in read.FIGURES}
    if files:
        check_out(*files, force=force)
    found = []
    for check in read.checks():
        found.append(check)
        if not as_json:
            print(f"{check.section:<6} {check.equation:<46} {check.verdict:<12} {check.note}".rstrip(), flush=True)
    if as_json:
        print_json([{**dataclasses.asdict(check), "verdict": check.verdict} for check in found])
    if out is not None:
        drawn = dict(read.figures())
        done = f"{len(files)} figures in {out}"
        deliver({path: drawn[name] for path, name in files.items()}, done, force=force)
    if any(check.verdict != "equal" for check in found):
        raise ValueError("the library deviates from the paper; see above.")


@app.command(epilog=examples("algonet play", "algonet play --port 9000 --no-show", "algonet play --host 0.0.0.0"))
def play(
    host: Annotated[str, Option(help="Where to listen; 0.0.0.0 lets other machines in.")] = "127.0.0.1",
    port: Annotated[int, Option(help="The port.", min=1, max=65535)] = 8137,
    show: Annotated[bool, Option("--show/--no-show", help="Open it in the browser.")] = True,
) -> None:
    """Open the playground: five rooms in the browser, computed on this machine while you drag."""
    from algonet.apps.play import serve

    serve(host, port, show)


@app.command(epilog=examples("algonet cache", "algonet cache --clear"))
def cache(
    clear: Annotated[bool, Option("--clear", help="Remove all generated kernels and their machine code.")] = False,
    as_json: Json = False,
) -> None:
    """Show where compiled kernels are kept and how much there is, or clear it."""
    from algonet.core.codegen import store

    folder, found = store.cache_folder(), store.entries()
    size = sum(entry.size for entry in found)
    removed = store.clear() if clear else 0
    lines = [f"{folder}: {len(found)} files, {size / 2**20:.1f} MiB of at most {store.MOST_BYTES / 2**20:.0f} MiB"]
    lines += [f"removed {removed} files"] if clear else []
    print_result({"folder": str(folder), "files": len(found), "bytes": size, "removed": removed}, as_json, lines)


@app.command(epilog=examples("algonet warmup"))
def warmup() -> None:
    """Compile the kernels of a typical call of every operation, forward and backward, so that first calls are quick."""
    from algonet.cli.doctor import devices, load_domains
    from algonet.core.codegen import store
    from algonet.core.operation import example_calls

    load_domains()
    for device in devices():
        for operation, call in example_calls(device).items():
            begun = time.perf_counter()
            ran = _run_example(operation, *call)
            print(f"{operation} on {device} ({ran}): {time.perf_counter() - begun:.1f} s")
    print(f"kept in {store.cache_folder()}")


def _run_example(operation: str, tensors: Any, settings: Any) -> str:
    """Run a call of the operation and its gradient; says on which backend."""
    import torch

    from algonet.core.operation import OPERATIONS

    for tensor in tensors:
        tensor.requires_grad_(tensor.is_floating_point())
    backend = OPERATIONS[operation].choose(tensors, settings, "auto")
    outputs = OPERATIONS[operation].on(backend, tensors, settings)(tensors)
    moving = [o.sum() for o in outputs if o.requires_grad]
    if moving:
        torch.stack(moving).sum().backward()
    return backend


#: Groups of commands, by the name they are called under.
GROUPS = {"while": "while_commands", "ifs": "ifs_commands", "ran": "ran_commands", "speech": "speech_commands"}


def mount() -> typer.Typer:
    """The program with the commands of all domains; calling it again changes nothing."""
    if not app.registered_groups:
        for name, module in GROUPS.items():
            app.add_typer(importlib.import_module(f"algonet.cli.{module}").app, name=name)
        app.registered_commands += importlib.import_module("algonet.cli.render_commands").app.registered_commands
    return app


def command() -> Any:
    """The program as one click command, whose help shows no type beside flags."""
    program = typer.main.get_command(mount())
    waiting: list[Any] = [program]
    for found in waiting:
        waiting += getattr(found, "commands", {}).values()
        for option in [*found.params, found.get_help_option(typer.Context(found, **program.context_settings))]:
            if getattr(option, "is_flag", False):
                option.metavar = ""
    return program


def main() -> None:
    """The entry point: one-line errors, exit codes."""
    debug = "--debug" in sys.argv
    # Wherever it stands: the option belongs to the whole program
    sys.argv = [sys.argv[0], *(["--debug"] if debug else []), *(a for a in sys.argv[1:] if a != "--debug")]
    # Not KeyboardInterrupt, which click would turn into exit code 1; temporary files are removed on the way out
    signal.signal(signal.SIGINT, _stop)
    signal.signal(signal.SIGTERM, _stop)
    try:
        command()()
    except Exception as error:
        if debug:
            raise
        print(f"algonet: {describe(error)}", file=sys.stderr)
        sys.exit(1)


def describe(error: Exception) -> str:
    """An error in one line."""
    if isinstance(error, OSError) and error.strerror and error.filename:
        return f"{error.filename}: {error.strerror}."
    reason = " ".join(str(error).split())
    extra = EXTRAS.get(error.name or "") if isinstance(error, ModuleNotFoundError) else None
    if extra is not None:
        return f"{reason}: pip install 'algonet-torch[{extra}]'."
    if isinstance(error, (ValueError, TypeError, OSError, ImportError)) and reason:
        return reason
    # Not foreseen: the type helps to find out what happened
    return f"{type(error).__name__}{f': {reason}' if reason else ''} (run again with --debug to see where)"


def _stop(number: int, frame: Any) -> None:
    # Python would walk through all that torch has loaded in search of cycles before it ends: most of a second
    gc.freeze()
    raise SystemExit(128 + number)

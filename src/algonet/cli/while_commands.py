"""`algonet while`: show, run and plot WHILE-programs."""

from __future__ import annotations

import math
import re
from contextlib import suppress
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from typer import Argument, Option, echo

from algonet.cli.common import Force, Json, check_out, deliver, examples, out_option, print_json, print_result

if TYPE_CHECKING:
    from algonet.relax import Exit
    from algonet.while_lang import Program

app = typer.Typer(
    no_args_is_help=True,
    help="Programs of the WHILE-language: loops, increments and copies, run smoothly.",
    epilog=examples("algonet while list", "algonet while run multiply x1=3 x2=4", "algonet while plot my.while"),
)


#: No program is longer, in bytes: it would be parsed for longer than anyone waits.
MOST_BYTES = 2**20


def _library(start: str = "") -> list[str]:
    """Names of the library's programs, without loading torch: a shell asks while the user types."""
    programs = resources.files("algonet").joinpath("while_lang", "programs").iterdir()
    return sorted(stem for path in programs if (stem := Path(path.name).stem).startswith(start))


File = Annotated[
    str,
    Argument(help="A file with a WHILE or GOTO program, or the name of a library program.", autocompletion=_library),
]
Exits = Annotated[str, Option("--exit", help="How loops are left: sech, sech:STEEPNESS, tent, smooth:K (C^K) or bump.")]


Rounds = Annotated[int, Option(help="Most rounds of a loop before it is cut off.", min=1)]


@app.command("list", epilog=examples("algonet while list"))
def list_programs(as_json: Json = False) -> None:
    """Name the programs of the library, with what they compute."""
    from algonet.while_lang import LIBRARY, library_source

    found = {name: library_source(name).splitlines()[0].lstrip("/ ") for name in LIBRARY}
    print_result(found, as_json, (f"{name:12} {what}" for name, what in found.items()))


@app.command(epilog=examples("algonet while show gcd --core", "algonet while show my.while"))
def show(
    file: File,
    core: Annotated[bool, Option("--core", help="In the paper's grammar alone.")] = False,
) -> None:
    """Print a program, neatly laid out."""
    from algonet.while_lang import desugar

    program = _read(file)
    echo((desugar(program) if core else program).text, nl=False)


@app.command(epilog=examples("algonet while run multiply x1=3 x2=4", "algonet while run gcd x1=12 x2=18 --exit bump"))
def run(
    file: File,
    values: Annotated[list[str] | None, Argument(help="Inputs such as x1=3 x2=4.5; others start at 0.")] = None,
    smooth: Annotated[bool, Option("--smooth", help="Only the smooth program.")] = False,
    exit: Exits = "sech",
    output: Annotated[list[str] | None, Option("--output", help="Variable to print; may be repeated.")] = None,
    max_iterations: Rounds = 1000,
    max_steps: Annotated[int, Option(help="Most operations of the discrete program.", min=1)] = 1_000_000,
    as_json: Json = False,
) -> None:
    """Run a program on numbers: the discrete and the smooth result side by side, with the smooth one's gradient."""
    from rich.console import Console
    from rich.table import Table

    from algonet.while_lang import WhileProgram

    program = WhileProgram(_read(file), _exit(exit), outputs=output or ("x0",), max_iterations=max_iterations)
    inputs = _inputs(values or [])
    crisp = None if smooth else _crisp(program, inputs, max_steps)
    outputs, slopes, cut = _smooth(program, inputs)
    if as_json:
        found = {
            name: {
                "discrete": crisp[i] if crisp else None,
                "smooth": outputs[i],
                "gradient": dict(zip(inputs, slopes[i], strict=True)),
            }
            for i, name in enumerate(program.outputs)
        }
        print_json({"outputs": found, "warning": cut or None})
        return
    table = Table()
    for heading in (
        "output",
        *(() if smooth else ("discrete",)),
        f"smooth ({exit})",
        *(f"d/d{name}" for name in inputs),
    ):
        table.add_column(heading, justify="left" if heading == "output" else "right")
    for i, name in enumerate(program.outputs):
        discrete = () if smooth else (crisp[i] if crisp else "needs integers",)
        table.add_row(name, *discrete, f"{outputs[i]:.6g}", *(f"{slope:.6g}" for slope in slopes[i]))
    Console(width=None if Console().is_terminal else 120).print(table)
    if cut:
        echo(cut)


@app.command(epilog=examples("algonet while plot multiply", "algonet while plot my.while --out my.png --to 4"))
def plot(
    file: File,
    out: Annotated[
        Path | None,
        out_option("The PNG to write (default: the program's name), - for standard output."),
    ] = None,
    low: Annotated[float, Option("--from", help="Where the axes of x1 and x2 begin.")] = 0.0,
    high: Annotated[float, Option("--to", help="Where the axes of x1 and x2 end.")] = 6.0,
    size: Annotated[int, Option(help="Points along each axis.", min=2, max=1000)] = 64,
    exit: Exits = "sech",
    max_iterations: Rounds = 1000,
    force: Force = False,
) -> None:
    """Draw the paper's figure: height is the result over x1 and x2, colour the size of the analytic gradient."""
    import matplotlib

    matplotlib.use("Agg")
    from algonet.apps.drawing import png
    from algonet.while_lang.plots import surfaces

    if not low < high:
        raise ValueError(f"while plot: --from must lie below --to, got {low:g} and {high:g}.")
    out = Path(f"{Path(file).stem}.png") if out is None else out
    check_out(out, force=force, inputs=[Path(file)], ending=".png")
    library = file if _is_library(file) else None
    figure = surfaces(_read(file), library, _exit(exit), (low, high), size, max_iterations)
    deliver({out: png(figure)}, f"wrote {out}", force=force)


def _is_library(file: str) -> bool:
    from algonet.while_lang import LIBRARY

    return file in LIBRARY and not Path(file).is_file()


def _read(file: str) -> Program:
    """The program in a file or of the library; a mistake in it is shown with its place."""
    from algonet.core.files import read_file
    from algonet.while_lang import LIBRARY, WhileSyntaxError, load_program, read_source

    if _is_library(file):
        return load_program(file)
    if not Path(file).exists():
        raise ValueError(f"while: no file {file!r}; give a file, or a library program: {', '.join(LIBRARY)}.")
    try:
        return read_source(read_file(file, MOST_BYTES).decode())
    except UnicodeDecodeError:
        raise ValueError(f"while: {file} is not a text file (UTF-8).") from None
    except WhileSyntaxError as error:
        # The caret must keep its place, which a one-line message would lose
        echo(f"algonet: {file}: {error}", err=True)
        raise typer.Exit(1) from None


def _exit(text: str) -> Exit:
    from algonet.relax import BumpExit, Sech, SmoothTent, Tent

    name, _, argument = text.partition(":")
    try:
        if name == "sech":
            return Sech(float(argument)) if argument else Sech()
        if name == "smooth":
            return SmoothTent(int(argument)) if argument else SmoothTent()
    except ValueError as error:
        raise ValueError(f"while: --exit {text!r}: {error}") from None
    if name in ("tent", "bump") and not argument:
        return Tent() if name == "tent" else BumpExit()
    raise ValueError(f"while: unknown --exit {text!r}; choose one of sech, sech:STEEPNESS, tent, smooth:K, bump.")


def _inputs(values: list[str]) -> dict[str, float]:
    found: dict[str, float] = {}
    for value in values:
        match = re.fullmatch(r"(x\d+)=(\S+)", value)
        if match is None:
            raise ValueError(f"while: inputs look like x1=3, got {value!r}.")
        name, number = match.groups()
        if name in found:
            raise ValueError(f"while: {name} is given twice.")
        with suppress(ValueError):
            found[name] = float(number)
        if not math.isfinite(found.get(name, math.nan)):
            raise ValueError(f"while: {name} must be a finite number, got {number!r}.")
    return found


def _crisp(program, inputs: dict[str, float], max_steps: int) -> list[str] | None:
    """The discrete results as text, `None` where the inputs are no integers."""
    from algonet.while_lang import DidNotHaltError

    if not all(value.is_integer() for value in inputs.values()):
        return None
    try:
        found = program.crisp(max_steps=max_steps, **{name: int(value) for name, value in inputs.items()})
    except DidNotHaltError:
        return [f"no halt in {max_steps} steps"] * len(program.outputs)
    return [str(value) for value in (found if isinstance(found, tuple) else (found,))]


#: Operations of the discrete program up to which the reference is sooner done (some 0.5 ms each) than a kernel is compiled.
SHORT_RUN = 1000


def _is_short(program, inputs: dict[str, float]) -> bool:
    """Whether the program ends soon, judged by the discrete one on the nearest integers."""
    from algonet.while_lang import DidNotHaltError

    try:
        program.crisp(max_steps=SHORT_RUN, **{name: round(value) for name, value in inputs.items()})
    except DidNotHaltError:
        return False
    except (OverflowError, ValueError):  # infinity and NaN have no nearest integer: such an element does not run
        return True
    return True


def _smooth(program, inputs: dict[str, float]) -> tuple[list[float], list[list[float]], str]:
    """Outputs, their gradients in each input, and what to say if a loop was cut off."""
    import warnings

    import torch

    from algonet.while_lang import NonHaltingWarning

    if _is_short(program, inputs):
        program.backend = "reference"
    leaves = {name: torch.tensor(value, dtype=torch.float64, requires_grad=True) for name, value in inputs.items()}
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", NonHaltingWarning)
        result = program.run(**leaves)
    slopes = []
    for output in result.outputs.values():
        moving = list(leaves.values()) if output.requires_grad else []
        found = torch.autograd.grad(output, moving, retain_graph=True, allow_unused=True) if moving else []
        slopes.append([0.0 if g is None else float(g) for g in found] or [0.0] * len(leaves))
    cut = next((str(w.message) for w in caught if issubclass(w.category, NonHaltingWarning)), "")
    return [float(o.detach()) for o in result.outputs.values()], slopes, cut and f"warning: {cut}"

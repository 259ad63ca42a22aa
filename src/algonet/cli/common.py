"""What the commands share: how examples are shown, how sizes are written, and where output goes."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any

from typer import Option, echo

#: No picture larger than this: it would not fit into memory together with its gradient.
_MOST_PIXELS = 2**26
#: As the name of an output file: standard output.
STANDARD_OUTPUT = Path("-")


#: The option of every command that prints a result.
Json = Annotated[bool, Option("--json", help="Print the result as JSON, for programs.")]
#: The option of every command that draws; see `parse_size`.
Size = Annotated[str, Option(help="Width x height in pixels, or one number for a square.")]
#: The option of every command that writes files.
Force = Annotated[bool, Option("--force", help="Overwrite files that are there.")]


def out_option(help: str) -> Any:
    """The option of every command that writes to a file or folder of the user's choice."""
    return Option("--out", "-o", help=help)


def report_bytes(report: Any) -> bytes:
    """A report as the content of a JSON file."""
    return f"{json.dumps(report, indent=1)}\n".encode()


def print_json(result: Any) -> None:
    """A result on one line; numbers that are not finite become null, which JSON has no other word for."""
    finite = json.loads(json.dumps(result), parse_constant=lambda name: None)
    echo(json.dumps(finite, ensure_ascii=False))


def print_result(result: Any, as_json: bool, lines: Iterable[str]) -> None:
    """A result as JSON, or as these lines."""
    if as_json:
        print_json(result)
    else:
        for line in lines:
            echo(line)


def examples(*lines: str) -> str:
    """The end of a help page: each line below the other."""
    return "\n\n".join(["Examples:" if len(lines) > 1 else "Example:", *lines])


def parse_size(text: str) -> tuple[int, int]:
    """(width, height) of "1024x768", or of "256" for a square."""
    found = re.fullmatch(r"\s*(\d{1,18})\s*(?:[xX]\s*(\d{1,18})\s*)?", text)
    if found is None:
        raise ValueError(f"--size: wanted WIDTHxHEIGHT such as 1024x768, or one number, got {text!r}.")
    width, height = int(found[1]), int(found[2] or found[1])
    if width < 1 or height < 1 or width * height > _MOST_PIXELS:
        raise ValueError(f"--size: wanted between 1 and {_MOST_PIXELS} pixels in all, got {text!r}.")
    return width, height


def check_out(out: Path, *others: Path, force: bool, inputs: Iterable[Path] = (), ending: str = "") -> None:
    """Raise before long work if what it makes could not be written, or would take the place of something, or if a file with
    this `ending` would get a name of another format: programs would not open it."""
    from algonet.core.files import check_outputs

    check_outputs([path for path in (out, *others) if path != STANDARD_OUTPUT], force=force, inputs=inputs)
    if ending and out != STANDARD_OUTPUT and out.suffix.lower() != ending:
        raise ValueError(
            f"--out: a {ending[1:].upper()} file is written; wanted a name that ends in {ending}, got {str(out)!r}."
        )


def deliver(files: Mapping[Path, bytes], *done: str, force: bool) -> None:
    """Write results, all whole or none, and say what was done; or write to standard output where that is asked for, as `-`."""
    from algonet.core.files import write_files

    files = dict(files)
    piped = files.pop(STANDARD_OUTPUT, None)
    if piped is not None:
        sys.stdout.buffer.write(piped)
        sys.stdout.buffer.flush()
    write_files(files, overwrite=force)
    for line in done if piped is None else ():
        echo(line)

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


def check_out(*paths: Path, force: bool, inputs: Iterable[Path] = ()) -> None:
    """Raise before long work if what it makes could not be written, or would take the place of something."""
    from algonet.core.files import check_outputs

    check_outputs([path for path in paths if path != STANDARD_OUTPUT], force=force, inputs=inputs)


def check_ending(out: Path, ending: str) -> None:
    """Raise where a file of one format is to be written under a name of another: programs would not open it."""
    if out != STANDARD_OUTPUT and out.suffix.lower() != ending:
        raise ValueError(
            f"--out: a {ending[1:].upper()} file is written; wanted a name that ends in {ending}, got {str(out)!r}."
        )


def deliver(files: Mapping[Path, bytes], *, force: bool) -> None:
    """Write results, all whole or none; to `-`, standard output."""
    from algonet.core.files import write_files

    for path, data in files.items():
        if path == STANDARD_OUTPUT:
            sys.stdout.buffer.write(data)
            sys.stdout.buffer.flush()
    write_files({path: data for path, data in files.items() if path != STANDARD_OUTPUT}, overwrite=force)


def say(out: Path, done: str) -> None:
    """Say what was done, unless standard output is where the result went."""
    if out != STANDARD_OUTPUT:
        echo(done)

"""What the commands share: how examples are shown, how sizes are written, and where output goes."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

#: No picture larger than this: it would not fit into memory together with its gradient.
_MOST_PIXELS = 2**26
#: As the name of an output file: standard output.
STANDARD_OUTPUT = Path("-")


#: The option of every command that prints a result.
Json = Annotated[bool, typer.Option("--json", help="Print the result as JSON, for programs.")]


def print_json(result: Any) -> None:
    """A result on one line; numbers that are not finite become null, which JSON has no other word for."""
    typer.echo(json.dumps(_finite(result), ensure_ascii=False))


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not abs(value) < float("inf") else value


def examples(*lines: str) -> str:
    """The end of a help page: each line below the other."""
    return "\n\n".join(["Examples:" if len(lines) > 1 else "Example:", *lines])


def parse_size(text: str) -> tuple[int, int]:
    """(width, height) of "1024x768", or of "256" for a square."""
    found = re.fullmatch(r"\s*(\d{1,6})\s*(?:[xX]\s*(\d{1,6})\s*)?", text)
    if found is None:
        raise ValueError(f"--size: wanted WIDTHxHEIGHT such as 1024x768, or one number, got {text!r}.")
    width, height = int(found[1]), int(found[2] or found[1])
    if width < 1 or height < 1 or width * height > _MOST_PIXELS:
        raise ValueError(f"--size: wanted between 1 and {_MOST_PIXELS} pixels in all, got {text!r}.")
    return width, height


def deliver(out: Path, data: bytes, done: str) -> None:
    """Write a result whole or not at all and say so; to `-`, standard output, without a word."""
    from algonet.core.files import write_bytes

    if out == STANDARD_OUTPUT:
        sys.stdout.buffer.write(data)
        sys.stdout.buffer.flush()
        return
    write_bytes(out, data)
    typer.echo(done)


def check_writable(out: Path) -> None:
    """Raise before long work if what it makes could not be written; folders on the way are made."""
    if out == STANDARD_OUTPUT:
        return
    if out.is_dir():
        raise IsADirectoryError(f"{out}: is a folder; wanted the name of a file to write.")
    make_folder(out.parent)


def make_folder(folder: Path) -> Path:
    """Make a folder for output, or raise naming what is in the way."""
    import os

    try:
        folder.mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError):
        raise NotADirectoryError(f"{folder}: a file is in the way of this folder; choose another name.") from None
    if not os.access(folder, os.W_OK):
        raise PermissionError(f"{folder}: nothing may be written into this folder.")
    return folder

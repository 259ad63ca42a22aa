"""Files that are whole or absent: written under a temporary name beside their place, then renamed."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def replacing(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Yield a temporary path (same folder, same suffix) to write to; on success it takes the place of `path`.

    On an error the temporary file is removed and `path` is as it was. Missing folders are made.
    """
    target = Path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        descriptor, name = tempfile.mkstemp(dir=target.parent, prefix=".", suffix=target.suffix)
    except OSError as error:
        # The user knows the target, not the temporary name
        raise type(error)(error.errno, error.strerror, str(target)) from None
    os.close(descriptor)
    temporary = Path(name)
    try:
        yield temporary
        # mkstemp makes files private; give this one what a plain open() would have given
        umask = os.umask(0)
        os.umask(umask)
        temporary.chmod(0o666 & ~umask)
        os.replace(temporary, target)
    finally:
        temporary.unlink(missing_ok=True)


def write_text(path: str | os.PathLike[str], text: str) -> Path:
    """Write `text` to `path`, whole or not at all; returns the path."""
    with replacing(path) as temporary:
        temporary.write_text(text, encoding="utf-8")
    return Path(path)


def write_bytes(path: str | os.PathLike[str], data: bytes) -> Path:
    """Write `data` to `path`, whole or not at all; returns the path."""
    with replacing(path) as temporary:
        temporary.write_bytes(data)
    return Path(path)

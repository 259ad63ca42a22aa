"""Files that are whole or absent, and that take the place of nothing unless told to.

Commands ask `check_outputs` before they work and hand what they made to `write_files`; both know the same rules, so that an
hour's work does not end at a name that was taken.
"""

from __future__ import annotations

import errno
import json
import os
import stat
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

PathLike = str | os.PathLike[str]

#: What is said of a name that is in use.
TAKEN = "exists; choose another name, or --force to overwrite it"

#: Larger JSON files hold something else: the numbers of a hundred thousand maps or ten thousand cameras fit.
MOST_JSON = 2**24


def read_file(path: PathLike, most: int | None = None) -> bytes:
    """The content of an ordinary file, of at most `most` bytes; raises an OSError of one sentence for anything else.

    Pipes and devices may have no end, or never begin: they are told apart without waiting for them.
    """
    path = Path(path)
    try:
        descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
    except FileNotFoundError:
        raise FileNotFoundError(f"{path}: there is no such file.") from None
    except OSError as error:
        if path.is_dir():  # Windows does not open folders
            raise IsADirectoryError(f"{path}: a folder, not a file.") from None
        raise type(error)(f"{path}: {error.strerror}.") from None
    try:
        about = os.fstat(descriptor)
        if stat.S_ISDIR(about.st_mode):
            raise IsADirectoryError(f"{path}: a folder, not a file.")
        if not stat.S_ISREG(about.st_mode):
            raise OSError(f"{path}: a pipe or a device, not an ordinary file.")
        if most is not None and about.st_size > most:
            raise OSError(f"{path}: {about.st_size} bytes, of which at most {most} are read.")
        with open(descriptor, "rb", closefd=False) as file:
            return file.read() if most is None else file.read(most)
    finally:
        os.close(descriptor)


def read_json(path: PathLike) -> Any:
    """What a JSON file says. Raises OSError where it cannot be read; ValueError, which does not name it, for what is wrong."""
    try:
        return json.loads(read_file(path, MOST_JSON).decode(), object_pairs_hook=_once, parse_constant=_refused)
    except RecursionError:
        raise ValueError("brackets nest too deep") from None
    except UnicodeDecodeError:
        raise ValueError("it is no text (UTF-8)") from None


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        seen: set[str] = set()
        twice = next(key for key, _ in pairs if key in seen or seen.add(key))
        raise ValueError(f"the key {twice[:40]!r} is there twice")
    return found


def _refused(name: str) -> Any:
    raise ValueError(f"{name} is no number")


def check_outputs(paths: Iterable[PathLike], *, force: bool = False, inputs: Iterable[PathLike] = ()) -> None:
    """Raise an OSError of one sentence unless every path could be written now; nothing is made.

    A file that exists is refused unless `force`, one of `inputs` always, as are two outputs of one name, folders, devices
    and pipes, and places whose folder cannot be made or written to.
    """
    read = {os.path.realpath(path) for path in inputs}
    seen: set[str] = set()
    for path in map(Path, paths):
        real = os.path.realpath(path)
        if real in seen:
            raise FileExistsError(f"{path}: two results would get this name; rename one of the inputs.")
        seen.add(real)
        if real in read:
            raise FileExistsError(f"{path}: is what is read; choose another --out.")
        _check_place(path)
        if not force and os.path.lexists(path):
            raise FileExistsError(f"{path}: {TAKEN}.")
        check_folder(path.parent)


def check_folder(folder: PathLike) -> None:
    """Raise an OSError of one sentence unless the folder can be written to, or made; it is not made.

    At the root of the file system no folder is made: a path that begins there with a name nobody knows is a slip.
    """
    folder = Path(folder)
    missing, nearest = None, folder.absolute()
    while not os.path.lexists(nearest):
        missing, nearest = nearest, nearest.parent
    if not nearest.is_dir():
        raise NotADirectoryError(f"{nearest}: a file is in the way of this folder; choose another name.")
    if missing is not None and nearest.resolve() == Path(nearest.anchor):
        raise FileNotFoundError(
            f"{missing}: there is no such folder, and none is made at the root of the file system; choose another place."
        )
    if not os.access(nearest, os.W_OK | os.X_OK):
        raise PermissionError(f"{folder}: nothing may be written into {'this folder' if missing is None else nearest}.")


def make_folder(folder: PathLike) -> Path:
    """Make a folder for output with those above it, or raise what `check_folder` raises."""
    folder = Path(folder)
    check_folder(folder)
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def write_files(files: Mapping[Path, bytes], *, overwrite: bool = True, private: bool = False) -> None:
    """Write all files, or none: each is complete under a temporary name before the first gets its own.

    On an error names are as they were; a process that is killed leaves at most a hidden temporary file. Without `overwrite`
    FileExistsError is raised for a name that is taken, also by someone who came in between. `private` files are for this
    user alone, whatever the umask.
    """
    for path in files:
        _check_place(path)
        make_folder(path.parent)
    with ExitStack() as stack:
        complete = [(path, stack.enter_context(_complete(path, data, private))) for path, data in files.items()]
        placed: list[Path] = []
        try:
            for path, source in complete:
                with _naming(path):
                    _place(source, path, overwrite)
                placed.append(path)
        except OSError:
            # Only names that were free may be freed again: of an overwritten file nothing is left to bring back
            for path in () if overwrite else placed:
                path.unlink(missing_ok=True)
            raise


def write_bytes(path: PathLike, data: bytes, *, overwrite: bool = True, private: bool = False) -> Path:
    """Write `data` to `path`, whole or not at all; returns the path."""
    write_files({Path(path): data}, overwrite=overwrite, private=private)
    return Path(path)


def write_text(path: PathLike, text: str, *, overwrite: bool = True) -> Path:
    """Write `text` in UTF-8 to `path`, whole or not at all; returns the path."""
    return write_bytes(path, text.encode(), overwrite=overwrite)


def _check_place(path: Path) -> None:
    try:
        mode = path.stat().st_mode
    except OSError:  # not there: `check_folder` and the writing say what is wrong
        return
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(f"{path}: is a folder; wanted the name of a file to write.")
    if not stat.S_ISREG(mode):
        # Renaming onto a device would remove it
        raise OSError(f"{path}: is no ordinary file; --out - writes to standard output.")


@contextmanager
def _complete(target: Path, data: bytes, private: bool) -> Iterator[Path]:
    """A file with `data` beside `target`, under a temporary name that is removed unless it is renamed."""
    with _naming(target):
        descriptor, name = tempfile.mkstemp(dir=target.parent, prefix=".", suffix=target.suffix)
    try:
        with _naming(target):
            with open(descriptor, "wb") as file:
                file.write(data)
            if not private:
                # mkstemp makes files private; give this one what a plain open() would have given
                umask = os.umask(0)
                os.umask(umask)
                os.chmod(name, 0o666 & ~umask)
        yield Path(name)
    finally:
        Path(name).unlink(missing_ok=True)


@contextmanager
def _naming(target: Path) -> Iterator[None]:
    """The user knows the target, not the temporary name."""
    try:
        yield
    except OSError as error:
        raise type(error)(error.errno, error.strerror, str(target)) from None


def _place(source: Path, target: Path, overwrite: bool) -> None:
    """Give a complete file its name."""
    if overwrite:
        os.replace(source, target)
        return
    try:
        os.link(source, target)
    except FileExistsError:
        raise FileExistsError(errno.EEXIST, TAKEN, str(target)) from None
    except OSError:
        if os.path.lexists(target):
            raise
        os.rename(source, target)  # a file system without links

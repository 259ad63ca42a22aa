"""The folder of generated kernels and their machine code: ours, or not used.

What lies there is executed, so the folder must belong to this user, and nobody else may be able to write to it or to rename
what holds it. Where that cannot be had, kernels go to a private folder that lives as long as the process, and one line says so.
Files are written whole or not at all; a file that is not what it should be is written again; the oldest go when it grows.
"""

from __future__ import annotations

import atexit
import hmac
import os
import shutil
import stat
import sys
import tempfile
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from algonet.core.cache import cached
from algonet.core.files import read_file, write_bytes

#: The folder may grow to this; the files that were used longest ago go first. A kernel takes some 100 kB.
MOST_BYTES = 512 * 2**20
#: Owners that folders above ours may have: root, and root's stand-in inside a container.
_ROOTS = (0, 65534)
#: Names of files that this library writes there; others are never touched.
_PREFIX = "algonet_generated_"
#: The file of the key that machine code is sealed with.
_KEY = ".algonet_key"
#: Permissions of a file that only its owner can read and write: code that others can write is not run.
_OURS = stat.S_IFREG | 0o600
_PRUNE_EVERY = 60.0
_INLINED = ("numba_math", "numba_pointers", "triton_math")

_lock = threading.RLock()
#: What `cache_folder` answered last, and of which folder and process; each process's private folder.
_chosen: tuple[tuple[Path | None, int], Path] | None = None
_private: dict[int, Path] = {}
_pruned = 0.0
_said = False
#: What `guard_triton` put into the environment: anything else there is the user's.
_given_to_triton: str | None = None


def _new_lock() -> None:
    global _lock
    _lock = threading.RLock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_new_lock)


def cache_folder() -> Path:
    """Where generated kernels live: $ALGONET_CACHE, else the user's cache folder, else one of this process alone."""
    global _chosen
    key = wanted, _ = wanted_folder(), os.getpid()
    if _chosen is not None and _chosen[0] == key and _chosen[1].is_dir():
        return _chosen[1]
    with _lock:
        reason = "there is no home folder" if wanted is None else _why_not(wanted)
        if reason is not None:
            place = wanted or "the kernel cache"
            _say_once(f"{place} is not used: {reason}. Kernels are compiled for this process alone; see ALGONET_CACHE.")
        folder = wanted if wanted is not None and reason is None else private_folder()
        _chosen = key, folder
        return folder


def wanted_folder() -> Path | None:
    """The folder that the environment asks for; `None` where there is nothing to go by."""
    if chosen := os.environ.get("ALGONET_CACHE"):
        return Path(chosen).absolute()
    base = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return Path(base) / "algonet" if os.path.isabs(base) else None


def private() -> bool:
    """Whether the kernels of this process are kept for it alone."""
    return cache_folder() == _private.get(os.getpid())


def private_folder() -> Path:
    """A fresh folder that only this user can enter; removed when the process ends."""
    with _lock:
        process = os.getpid()
        found = _private.get(process)
        if found is None or not found.is_dir():
            found = _private[process] = Path(tempfile.mkdtemp(prefix="algonet-"))
            atexit.register(_remove, found, process)
        return found


def guard_triton() -> None:
    """Let Triton keep its machine code below our folder, unless the user chose one: what lies in it is executed too.

    To be called before Triton compiles. Its own choice is ~/.triton, which nobody looks at.
    """
    global _given_to_triton
    asked = os.environ.get("TRITON_CACHE_DIR")
    if asked and asked != _given_to_triton:
        return
    folder = cache_folder() / "triton"
    reason = _why_not(folder)
    # Triton's own folders and files have the modes that the umask leaves them
    if reason is None and os.name != "nt" and folder.stat().st_mode & 0o077:
        reason = "others can enter it"
    if reason is not None:
        _say_once(f"{folder} is not used: {reason}. Triton kernels are compiled for this process alone.")
        folder = private_folder() / "triton"
        folder.mkdir(mode=0o700, exist_ok=True)
    _given_to_triton = os.environ["TRITON_CACHE_DIR"] = str(folder)


def _remove(folder: Path, process: int) -> None:
    # A forked child inherits the list of what to do at exit
    if os.getpid() == process:
        shutil.rmtree(folder, ignore_errors=True)


def _why_not(folder: Path) -> str | None:
    """`None`, or why kernels may not be kept in this folder; it is made if it is missing."""
    try:
        # One by one: `mkdir(parents=True)` leaves the modes of parents to the umask
        for place in (*reversed(folder.parents), folder):
            if not place.exists():
                place.mkdir(mode=0o700, exist_ok=True)
        folder = folder.resolve(strict=True)
        if not os.access(folder, os.W_OK | os.X_OK):
            return "it cannot be written to"
        return None if os.name == "nt" else _why_not_ours(folder)
    except (OSError, RuntimeError) as error:
        return f"it cannot be made ({getattr(error, 'strerror', None) or error})"


def _why_not_ours(folder: Path) -> str | None:
    """`None`, or who else could put code there."""
    me = os.getuid()
    for place in (folder, *folder.parents):
        about = place.stat()
        if about.st_uid != me and (place == folder or about.st_uid not in _ROOTS):
            return f"{place} belongs to another user"
        others = about.st_mode & stat.S_IWOTH or (about.st_mode & stat.S_IWGRP and not _group_of_one(about.st_gid))
        # In a sticky folder like /tmp, only the owner can rename what is ours
        if others and (place == folder or not about.st_mode & stat.S_ISVTX):
            return f"others can write to {place}"
    return None


def _group_of_one(group: int) -> bool:
    """Whether it is the group that many systems give each user alone."""
    import grp
    import pwd

    try:
        found, me = grp.getgrgid(group), pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return False
    return found.gr_name == me and set(found.gr_mem) <= {me}


def put(name: str, data: bytes) -> Path | None:
    """The path of the file of that name, which holds `data` afterwards, whatever was there; `None` where no disk has room."""
    for folder in (cache_folder, private_folder):
        try:
            path = folder() / name
            if not path.is_file() or path.read_bytes() != data:
                _delete(path)
                write_bytes(path, data, private=True)
                prune()
            return path
        except OSError as error:
            _say_once(f"a kernel cannot be kept ({error.strerror or error}): it is compiled for this process alone.")
    return None


def read_sealed(name: str) -> bytes | None:
    """What `write_sealed` wrote under this name; `None` where there is nothing, or a file that is not whole or that others
    could have written, which is removed."""
    path = cache_folder() / name
    try:
        sealed = _read_ours(path)
        seal, data = sealed[:32], sealed[32:]
        if hmac.compare_digest(_seal(name, data), seal):
            os.utime(path)  # in use: not the next to go
            return data
    except FileNotFoundError:
        return None
    except OSError:
        pass
    discard(name)
    return None


def write_sealed(name: str, data: bytes) -> None:
    """Keep `data` with a seal, for later processes; a full disk keeps nothing."""
    try:
        write_bytes(cache_folder() / name, _seal(name, data) + data, private=True)
        prune()
    except OSError:
        discard(name)


def _read_ours(path: Path) -> bytes:
    """What a file holds that only this user can read and write; nothing of any other file."""
    about = path.lstat()
    return read_file(path) if os.name == "nt" or (about.st_uid, about.st_mode) == (os.getuid(), _OURS) else b""


def _seal(name: str, data: bytes) -> bytes:
    """A checksum of a file's name and content that cannot be made without the folder's key."""
    return hmac.digest(_key(cache_folder() / _KEY), name.encode() + b"\0" + data, "sha256")


def _key(path: Path) -> bytes:
    """The random number of the folder, which its owner alone can read; made anew where there is none to rely on."""
    if path.exists():
        if len(key := _read_ours(path)) == 32:
            return key
        path.unlink(missing_ok=True)
    with suppress(FileExistsError):  # another process was faster
        write_bytes(path, os.urandom(32), overwrite=False, private=True)
    return _read_ours(path)


def discard(name: str) -> None:
    _delete(cache_folder() / name)


class Entry(NamedTuple):
    """A file, or a folder of Triton's, which is whole or not at all."""

    path: Path
    size: int
    used: float


def entries() -> list[Entry]:
    """The files of this library (and Triton's folders) in the folder, those used longest ago first."""
    folder = cache_folder()
    found = map(_entry, (*folder.glob(f"{_PREFIX}*"), *(folder / "triton").glob("*")))
    return sorted((entry for entry in found if entry is not None), key=lambda entry: entry.used)


def _entry(path: Path) -> Entry | None:
    try:
        about = [part.lstat() for part in (path, *(path.iterdir() if path.is_dir() else ()))]
    except OSError:  # another process was faster
        return None
    size = sum(part.st_size for part in about if stat.S_ISREG(part.st_mode))
    return Entry(path, size, max(part.st_mtime for part in about))


def _delete(path: Path) -> None:
    try:
        path.unlink(missing_ok=True)
    except OSError:  # a folder
        shutil.rmtree(path, ignore_errors=True)


def prune(most: int | None = None, now: bool = False) -> int:
    """Remove what was used longest ago until the rest fits; returns the bytes removed. Looks once a minute, or `now`."""
    global _pruned
    if not now and time.monotonic() - _pruned < _PRUNE_EVERY:
        return 0
    _pruned = time.monotonic()
    found = entries()
    excess = sum(entry.size for entry in found) - (MOST_BYTES if most is None else most)
    removed = 0
    for entry in found:
        if removed >= excess:
            break
        _delete(entry.path)
        removed += entry.size
    return removed


def clear() -> int:
    """Remove every file of this library from the folder; returns how many there were."""
    found = entries()
    for path in (*(entry.path for entry in found), cache_folder() / _KEY):
        _delete(path)
    return len(found)


def _say_once(line: str) -> None:
    global _said
    if not _said and not os.environ.get("ALGONET_QUIET"):
        print(f"algonet: {line}", file=sys.stderr)
    _said = True


@cached
def inlined() -> bytes:
    """The functions that generated kernels inline: an edit of these must not find yesterday's machine code."""
    return b"".join((Path(__file__).parent / f"{name}.py").read_bytes() for name in _INLINED)

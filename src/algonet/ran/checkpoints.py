"""Checkpoints: a folder each, with the tensors in safetensors and the rest in JSON. Whole or absent, and never unpickled.

checkpoints/step-00000200/model.safetensors     parameters and buffers
                          training.safetensors  state of the optimisers
                          state.json            step, configuration, checksums of all three
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from algonet.core.extras import require

PREFIX = "step-"
STATE_FILE = "state.json"
#: Parameters and buffers; states of the optimisers.
TENSOR_FILES = ("model.safetensors", "training.safetensors")
#: Names that begin with this are unfinished or about to be removed.
HIDDEN = ".unfinished-"


@dataclass(frozen=True, eq=False)
class Checkpoint:
    """What a folder holds."""

    path: Path
    step: int
    model: dict[str, Tensor]
    training: dict[str, Tensor]
    state: dict[str, Any]


def list_checkpoints(folder: Path) -> list[Path]:
    """The checkpoints in `folder`, oldest first: all under a final name, damaged ones too."""
    return sorted(path for path in folder.glob(f"{PREFIX}*") if path.is_dir())


def save_checkpoint(
    folder: Path, step: int, model: dict[str, Tensor], training: dict[str, Tensor], state: dict[str, Any], keep: int
) -> Path:
    """Write a checkpoint under a hidden name, make it durable, rename it; then remove all but the last `keep`.

    On an error (a full disk, a folder that may not be written) what was begun is removed and the others stay as they are.
    """
    require("safetensors")
    from safetensors.torch import save as serialised

    folder.mkdir(parents=True, exist_ok=True)
    hidden = folder / f"{HIDDEN}{os.getpid()}"
    shutil.rmtree(hidden, ignore_errors=True)
    try:
        hidden.mkdir()
        checksums = {}
        for name, tensors in zip(TENSOR_FILES, (model, training), strict=True):
            data = serialised(detached(tensors))
            checksums[name] = _checksum(data)
            _write(hidden / name, data)
        state = {"step": step, **state}
        state["checksums"] = {**checksums, STATE_FILE: _checksum(_canonical(state))}
        _write(hidden / STATE_FILE, json.dumps(state).encode())
        target = folder / f"{PREFIX}{step:08d}"
        if target.exists():
            _remove(target)
        hidden.rename(target)
    finally:
        shutil.rmtree(hidden, ignore_errors=True)
    _flush(folder)
    for old in list_checkpoints(folder)[:-keep]:
        _remove(old)
    return target


def load_checkpoint(path: Path) -> Checkpoint:
    """Read a checkpoint folder; raises ValueError naming what is missing, damaged or not what was written."""
    require("safetensors")
    from safetensors.torch import load as parsed

    try:
        for name in (STATE_FILE, *TENSOR_FILES):
            if not (path / name).is_file():
                raise ValueError(f"{name} is missing")
        state = json.loads((path / STATE_FILE).read_text(encoding="utf-8"))
        content = {name: (path / name).read_bytes() for name in TENSOR_FILES}
        written = state.pop("checksums")
        found = {STATE_FILE: _checksum(_canonical(state)), **{n: _checksum(data) for n, data in content.items()}}
        changed = [name for name, checksum in found.items() if written[name] != checksum]
        if changed:
            raise ValueError(f"{changed[0]} is not what was written (its checksum differs)")
        model, training = (parsed(content[name]) for name in TENSOR_FILES)
        return Checkpoint(path, int(state["step"]), model, training, state)
    except Exception as error:  # whatever a hostile file may make the readers raise
        reason = f"{error} is missing" if isinstance(error, KeyError) else " ".join(str(error).split())
        raise ValueError(f"{path}: the checkpoint cannot be read: {reason}") from None


def newest_checkpoint(path: Path) -> Checkpoint:
    """The checkpoint that `path` means: itself, or the last one of a run's folder that is whole; damaged ones are named
    in a warning.

    Raises ValueError where there is none.
    """
    if any((path / name).is_file() for name in (STATE_FILE, *TENSOR_FILES)):
        return load_checkpoint(path)
    found = list_checkpoints(path / "checkpoints") or list_checkpoints(path)
    if not found:
        raise ValueError(f"{path}: holds no checkpoint.")
    for candidate in reversed(found):
        try:
            return load_checkpoint(candidate)
        except ValueError as error:
            if candidate == found[0]:
                raise
            warnings.warn(f"{error}; the one before it is taken.", RuntimeWarning, stacklevel=2)
    raise AssertionError("unreachable: the first candidate returns or raises")


def remove_unfinished(folder: Path) -> None:
    """Remove what an interrupted run left unfinished."""
    if folder.is_dir():
        for path in folder.glob(f"{HIDDEN}*"):
            shutil.rmtree(path, ignore_errors=True)


def detached(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Copies on the CPU: safetensors takes no views that share memory."""
    return {name: t.detach().cpu().contiguous().clone() for name, t in tensors.items()}


def _checksum(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _canonical(state: dict[str, Any]) -> bytes:
    """A state as text that does not depend on the order of its keys."""
    return json.dumps(state, sort_keys=True).encode()


def _write(path: Path, data: bytes) -> None:
    """Write a file and wait until it is on the disk."""
    with path.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def _remove(path: Path) -> None:
    # Renamed first: a half-deleted checkpoint must not look like one
    hidden = path.with_name(f"{HIDDEN}old-{path.name}")
    shutil.rmtree(hidden, ignore_errors=True)
    path.rename(hidden)
    shutil.rmtree(hidden, ignore_errors=True)


def _flush(path: Path) -> None:
    """Wait until a file or folder is on the disk."""
    try:
        descriptor = os.open(path, os.O_RDONLY)
    except PermissionError:  # folders cannot be opened everywhere
        return
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)

"""JSON from files of unknown origin: bounded in size, each key once, finite numbers."""

from __future__ import annotations

import json
import os
from typing import Any

from algonet.core.files import read_file

#: Larger files hold something else: the numbers of a hundred thousand maps or ten thousand cameras fit.
MOST_BYTES = 2**24


def read_json(path: str | os.PathLike[str]) -> Any:
    """What a JSON file says. Raises OSError where it cannot be read; ValueError, which does not name it, for what is wrong."""
    try:
        return json.loads(read_file(path, MOST_BYTES).decode(), object_pairs_hook=_once, parse_constant=_refused)
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

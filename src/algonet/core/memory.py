"""Whether there is memory for what was asked: absurd sizes are refused before anything is taken.

Sizes that follow from tensors are the caller's own; sizes that follow from a number (`size=10**9`) are usually a slip, and a
machine that swaps or kills the process is no answer to it.
"""

from __future__ import annotations

import math
import os
from pathlib import Path

import torch

from algonet.core import tracing

#: Below this many bytes free memory is not looked up, which keeps calls quick.
UNASKED = 2**29
_UNITS = ("bytes", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB")


def check_memory(where: str, what: str, needed: float, device: torch.device | str | None = None) -> None:
    """Raise ValueError if `needed` bytes, for `what`, are more than the device has free.

    >>> check_memory("IFS", "a picture of 8 x 8", 256)
    >>> check_memory("IFS", "a picture of 1000000 x 1000000", 4e12 * 1000)
    Traceback (most recent call last):
    ValueError: IFS: a picture of 1000000 x 1000000 would take 3.6 PiB, ...
    """
    if tracing.compiling() or needed <= UNASKED:
        return
    asked = torch.device("cpu" if device is None else device)
    free = free_memory(asked)
    if free is not None and needed > free:
        place = "this machine" if asked.type == "cpu" else str(asked)
        raise ValueError(
            f"{where}: {what} would take {pretty(needed)}, and {place} has {pretty(free)} free; ask for less."
        )


def free_memory(device: torch.device) -> int | None:
    """Bytes that can still be taken on the device; `None` where that cannot be known."""
    if device.type == "cuda" and torch.cuda.is_available():
        if torch.cuda.is_current_stream_capturing():
            return None
        free, _ = torch.cuda.mem_get_info(device)
        # What torch keeps for itself without using it can be taken too
        return free + torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    if device.type != "cpu":
        return None
    found = [limit for limit in (_available(), _address_space()) if limit is not None]
    return min(found, default=None)


def pretty(count: float) -> str:
    """A number of bytes as people read it.

    >>> pretty(3 * 2**30), pretty(100), pretty(2**90)
    ('3.0 GiB', '100 bytes', '1073741824 EiB')
    """
    step = min(len(_UNITS) - 1, int(math.log(max(count, 1), 1024)))
    value = count / 1024**step
    return f"{value:.1f} {_UNITS[step]}" if step > 0 and value < 1024 else f"{value:.0f} {_UNITS[step]}"


def _available() -> int | None:
    """What the system says is free, or at least how much there is."""
    try:
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    except (OSError, ValueError, IndexError):
        pass
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        return None


def _address_space() -> int | None:
    """What is left of a limit on this process (`ulimit -v`)."""
    try:
        import resource

        limit = resource.getrlimit(resource.RLIMIT_AS)[0]
        if limit == resource.RLIM_INFINITY:
            return None
        return max(0, limit - int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE"))
    except (ImportError, OSError, ValueError):
        return None

"""A line while a kernel compiles for the first time: twenty seconds of silence would look like a hang."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

#: Whoever waits longer than this is told why.
PATIENCE = 1.0

_lock = threading.Lock()
_timers: dict[tuple[int, str], threading.Timer] = {}
_said = False


def begin(name: str) -> None:
    """A compilation begins; if it is not over within `PATIENCE` seconds, one line says so, once per process."""
    if _said or os.environ.get("ALGONET_QUIET"):
        return
    timer = threading.Timer(PATIENCE, _say)
    timer.daemon = True
    with _lock:
        if len(_timers) > 64:
            _timers.clear()
        _timers[threading.get_ident(), name] = timer
    timer.start()


def end(name: str) -> None:
    with _lock:
        timer = _timers.pop((threading.get_ident(), name), None)
    if timer is not None:
        timer.cancel()


@contextmanager
def compiling(name: str) -> Iterator[None]:
    """Around a compilation."""
    begin(name)
    try:
        yield
    finally:
        end(name)


def _say() -> None:
    global _said
    with _lock:
        if _said:
            return
        _said = True
    from algonet.core.codegen.store import cache_folder, private

    folder = cache_folder()
    rest = "" if private() else f", later ones and later processes load them from {folder}"
    print(
        f"algonet: compiling kernels, once: this call takes some seconds{rest} (ALGONET_QUIET=1 hides this line)",
        file=sys.stderr,
        flush=True,
    )

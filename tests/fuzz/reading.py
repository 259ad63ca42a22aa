"""The property that every fuzz target checks: a reader gives a result or explains itself."""

from __future__ import annotations

import os
import resource
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, settings

#: Set by `python -m fuzz`; the test run takes a small sample that is always the same.
EXAMPLES = int(os.environ.get("ALGONET_FUZZ_EXAMPLES", "0"))
#: What reading a file of a few kilobytes may take, in seconds of our own computing: a busy machine does not count.
SECONDS = 20
MEBIBYTES = 1024


def budget(examples: int) -> settings:
    """Settings of a target: `examples` inputs in the test run, or as many as `python -m fuzz` asks for."""
    return settings(
        max_examples=EXAMPLES or examples,
        derandomize=not EXAMPLES,
        database=None,
        deadline=None,  # a hang is caught below, and a busy machine must not fail a test
        suppress_health_check=list(HealthCheck),
    )


class TooLongError(BaseException):
    """Not an Exception: a reader that turns every Exception into its own must not hide it."""


@contextmanager
def bounded(seconds: int = SECONDS, mebibytes: int = MEBIBYTES) -> Iterator[None]:
    """Fail after `seconds` of computing, and refuse memory beyond what is used now plus `mebibytes`."""

    def stop(*_: Any) -> None:
        raise TooLongError(f"still reading after {seconds} s")

    used = int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    before = signal.signal(signal.SIGPROF, stop)
    signal.setitimer(signal.ITIMER_PROF, seconds)
    resource.setrlimit(resource.RLIMIT_AS, (used + mebibytes * 2**20, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)


def read_or_explain(read: Callable[[], Any], *, names: str = "", lines: int = 1, seconds: int = SECONDS) -> Any:
    """What `read()` gives, or None where it raised a ValueError or OSError whose message has at most `lines` lines and
    holds `names`; anything else fails."""
    try:
        with bounded(seconds):
            return read()
    except (ValueError, OSError) as error:
        refused = error
    message = str(refused)
    assert message, f"an empty message: {refused!r}"
    assert len(message.splitlines()) <= lines, f"not one line: {message!r}"
    assert names in message, f"does not name {names}: {message!r}"
    assert len(message) < 2000, f"too long to read: {message[:200]!r}"
    assert not _out_of_memory(refused), f"asked for too much memory: {message!r}"
    return None


def _out_of_memory(error: BaseException | None) -> bool:
    """Whether an error, or one that it replaced, is a lack of memory (torch raises a RuntimeError for it)."""
    while error is not None:
        if isinstance(error, MemoryError) or "can't allocate memory" in str(error):
            return True
        error = error.__cause__ or error.__context__
    return False

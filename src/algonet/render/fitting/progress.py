"""What the fits share: learning rates that fall, loops that can be stopped, and a progress bar."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress


def decay(share: float) -> float:
    """1 at the start, 0.1 at the end, along a cosine."""
    return 0.1 + 0.9 * (1 + math.cos(math.pi * min(share, 1.0))) / 2


@contextmanager
def stop_on_interrupt() -> Iterator[None]:
    """Ctrl-C ends the loop inside, not the program: the fit so far is kept."""
    with suppress(KeyboardInterrupt):
        yield


@contextmanager
def progress_bar(numbers: Iterable[int], text: str, shown: bool) -> Iterator[Iterable[int]]:
    """The numbers, with a bar on the terminal if `shown`."""
    if not shown:
        yield numbers
        return
    from rich.progress import Progress

    with Progress() as bar:
        yield bar.track(list(numbers), description=text)

"""What the fits share: learning rates that fall, and progress shown."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

#: Where there is no terminal, a line is written every so many seconds.
EVERY = 10.0


def decay(share: float, last: float = 0.1) -> float:
    """1 at the start, `last` at the end, along a cosine."""
    return last + (1 - last) * (1 + math.cos(math.pi * min(share, 1.0))) / 2


def geometric(ends: tuple[float, float], share: float) -> float:
    """From the first of `ends` to the second, by equal factors."""
    return ends[0] * (ends[1] / ends[0]) ** share


@contextmanager
def progress_of(total: int, text: str, shown: bool, done: int = 0) -> Iterator[Callable[..., None]]:
    """`advance(steps, text)`, by default one step of the same text: on a terminal it moves a bar, elsewhere it writes a line
    every ten seconds to standard error; both say how long it still takes. Nothing unless `shown`."""
    if not shown:
        yield lambda steps=1, text=text: None
        return
    if not sys.stderr.isatty():
        yield _lines(total, text, done)
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    columns = TextColumn("{task.description}"), BarColumn(), TimeRemainingColumn()
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(text, total=total, completed=done)
        yield lambda steps=1, text=text: bar.update(task, advance=steps, description=text)


def _lines(total: int, text: str, done: int) -> Callable[..., None]:
    """Progress as lines."""
    # The first step compiles kernels, so its time says nothing of the others
    first, began, said = -1, 0.0, time.monotonic()

    def advance(steps: int = 1, text: str = text) -> None:
        nonlocal done, first, began, said
        done, now = done + steps, time.monotonic()
        if first < 0:
            first, began = done, now
        elif now - said >= EVERY and done > first:
            said, left = now, (total - done) * (now - began) / (done - first)
            duration = f"{left:.0f} s" if left < 120 else f"{left / 60:.0f} min"
            print(f"{text}: {done} of {total}, about {duration} left", file=sys.stderr, flush=True)

    return advance

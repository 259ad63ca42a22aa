"""What the fits share: learning rates that fall, loops that can be stopped, and progress shown."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Iterable, Iterator
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
def progress_of(total: int, text: str, shown: bool, done: int = 0) -> Iterator[Callable[[int, str], None]]:
    """`advance(steps, text)`: on a terminal it moves a bar, elsewhere it writes a line every ten seconds to standard error;
    both say how long it still takes. Nothing unless `shown`."""
    if not shown:
        yield lambda steps, text: None
        return
    if not sys.stderr.isatty():
        yield _lines(total, done)
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    columns = TextColumn("{task.description}"), BarColumn(), TimeRemainingColumn()
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(text, total=total, completed=done)
        yield lambda steps, text: bar.update(task, advance=steps, description=text)


def _lines(total: int, done: int) -> Callable[[int, str], None]:
    """Progress as lines."""
    # The first step compiles kernels, so its time says nothing of the others
    first, began, said = -1, 0.0, time.monotonic()

    def advance(steps: int, text: str) -> None:
        nonlocal done, first, began, said
        done, now = done + steps, time.monotonic()
        if first < 0:
            first, began = done, now
        elif now - said >= EVERY and done > first:
            said, left = now, (total - done) * (now - began) / (done - first)
            print(f"{text}: {done} of {total}, about {_duration(left)} left", file=sys.stderr, flush=True)

    return advance


def _duration(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.0f} min"


def counted(numbers: Iterable[int], advance: Callable[[int, str], None], text: str) -> Iterator[int]:
    """The numbers, each counted when what is done with it is done."""
    for number in numbers:
        yield number
        advance(1, text)


@contextmanager
def progress_bar(numbers: range, text: str, shown: bool) -> Iterator[Iterable[int]]:
    """The numbers, their progress shown if `shown`."""
    with progress_of(len(numbers), text, shown) as advance:
        yield counted(numbers, advance, text)

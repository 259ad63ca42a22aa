"""Kernels on several cores: one pool of threads for all of them, safe to use from any thread and after a fork.

Numba's own parallel loops cannot be entered from two threads at once, or from a forked child, on every platform. Kernels that
release the interpreter lock and are given disjoint ranges of work can; this is all the machinery they need.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch


def workers() -> int:
    """How many threads kernels use: as many as torch was told to (`torch.set_num_threads`)."""
    return max(1, torch.get_num_threads())


def spread(function: Callable[..., Any], calls: Iterable[tuple]) -> None:
    """`function(*arguments)` for each of `calls`, side by side; returns when all are done, raising what one raised."""
    calls = list(calls)
    if len(calls) <= 1 or workers() == 1:
        for arguments in calls:
            function(*arguments)
        return
    first, *others = calls
    pool = _pool(workers(), os.getpid())
    waiting = [pool.submit(function, *arguments) for arguments in others]
    try:
        function(*first)
    finally:
        for future in waiting:
            future.result()


#: The pool with its number of threads and its process: a forked child inherits the record, but none of the threads.
_made: tuple[int, int, ThreadPoolExecutor] | None = None


def _pool(threads: int, process: int) -> ThreadPoolExecutor:
    global _made
    made = _made
    if made is None or made[:2] != (threads, process):
        made = _made = threads, process, ThreadPoolExecutor(threads, thread_name_prefix="algonet")
    return made[2]

"""What every benchmark shares: fair timing, the machine's name, and a JSON of rows that can be compared later.

A benchmark module has `main()` that takes `--json FILE`, checks parity before it times anything, prints a table, and records
rows. A ratio to a peer measured in the same run is worth more than milliseconds: machines differ, ratios less so.

What `record` writes, and `docs/benchmarks.md` is made from (`python -m benchmarks --page`):

    benchmarks/results/NAME.json        rows of benchmarks/NAME.py on a machine without a GPU
    benchmarks/results/NAME_gpu.json    rows of the same module (or of benchmarks/NAME_gpu.py) where there is a CUDA device

    {"machine": {"cpu", "gpu", "torch", "date", ...}, "rows": [{"name", "value", "unit", "column", "by", "note"}, ...]}

Rows with a `column` become a table: one line per `name` (the workload: "1000 x 32"), one column per `by` and `column`, in the
order in which they first come. Rows without one become a list below it. A table of three columns for a workload:

    Row("1000 x 32", 1.5, "ms", "odd-even, f+b")
    Row("1000 x 32", 620.0, "ms", "odd-even, f+b", by="diffsort")
    Row("1000 x 32", 413.0, "ratio", "odd-even, times faster")

`by` names the peer whose figure it is; `note` says where a figure comes from that was not measured in this run. Neither counts
as a regression of ours. `--json -` prints the JSON as one line instead, for machines from which only text comes back.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.metadata
import json
import os
import platform
import statistics
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, fields
from pathlib import Path

import torch

from algonet.core.files import write_text


@dataclass(frozen=True)
class Row:
    """One figure: `value` in `unit` ("ms", "s", "MiB", "ratio", "score"); more is better of ratios and scores."""

    name: str
    value: float
    unit: str
    column: str = ""
    by: str = "algonet"
    note: str = ""


def machine() -> dict[str, str]:
    """What the figures were measured on, and when."""
    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else "none"
    found = {
        "cpu": f"{_processor()}, {os.cpu_count()} cores",
        "gpu": gpu,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
    }
    for package in ("numba", "triton", "diffsort", "algovision", "torchsort", "cmaes"):
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            found[package] = importlib.metadata.version(package)
    return found


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()


def milliseconds(function: Callable[[], object], *, seconds: float = 1.0, least: int = 3, warmup: int = 2) -> float:
    """Median time of a call, repeated for about `seconds`: by CUDA events where there is a GPU, else by the clock."""
    return statistics.median(times(function, seconds=seconds, least=least, warmup=warmup))


def times(function: Callable[[], object], *, seconds: float = 1.0, least: int = 3, warmup: int = 2) -> list[float]:
    """The times of all calls behind `milliseconds`; on a busy host the least tells more than the median."""
    for _ in range(warmup):
        function()
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    timed = _by_events if torch.cuda.is_available() else _by_the_clock
    found: list[float] = []
    end = time.perf_counter() + seconds
    while len(found) < least or time.perf_counter() < end:
        found.append(timed(function))
    return found


def _by_the_clock(function: Callable[[], object]) -> float:
    start = time.perf_counter()
    function()
    return (time.perf_counter() - start) * 1e3


def _by_events(function: Callable[[], object]) -> float:
    start, stop = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    start.record()
    function()
    stop.record()
    stop.synchronize()
    return start.elapsed_time(stop)


def peak_mebibytes(function: Callable[[], object]) -> float:
    """How far memory rises during a call: the allocator's count on a GPU, the process's resident size on the CPU."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        function()
        torch.cuda.synchronize()
        return (torch.cuda.max_memory_allocated() - before) / 2**20
    before = peak = _resident()
    done = threading.Event()

    def watch() -> None:
        nonlocal peak
        while not done.is_set():
            peak = max(peak, _resident())
            time.sleep(0.002)

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        function()
    finally:
        done.set()
        watcher.join()
    return (max(peak, _resident()) - before) / 2**20


def _resident() -> int:
    try:
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return 0


def arguments(description: str | None) -> argparse.Namespace:
    """The options that every benchmark takes."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, help="write the rows to this file; - prints them as one line")
    parser.add_argument("--quick", action="store_true", help="smaller workloads, for a look")
    return parser.parse_args()


def record(path: Path | None, rows: list[Row]) -> None:
    """Write the rows, with the machine they were measured on."""
    if path is not None and str(path) == "-":
        print(json.dumps(_content(rows)))
    save(path, rows)


def save(path: Path | None, rows: list[Row]) -> None:
    """Write the rows so far, if it is to a file: a run that is stopped leaves those it had."""
    if path is not None and str(path) != "-":
        write_text(path, json.dumps(_content(rows), indent=1) + "\n")


def _content(rows: list[Row]) -> dict:
    return {"machine": machine(), "rows": [_short(row) for row in rows]}


def record_all(path: Path | None, parts: Iterable[list[Row]]) -> list[Row]:
    """Record the rows part by part, so that a run which is cut short leaves those that it came to; returns all."""
    rows: list[Row] = []
    for part in parts:
        rows += part
        if str(path) != "-":
            record(path, rows)
    if str(path) == "-":
        record(path, rows)
    return rows


def recorded(path: Path) -> list[Row]:
    """The rows of a file that `record` wrote."""
    return [Row(**row) for row in json.loads(path.read_text(encoding="utf-8"))["rows"]]


def _short(row: Row) -> dict[str, str | float]:
    """The row without what is at its default, and without digits that no clock has."""
    kept = {f.name: getattr(row, f.name) for f in fields(row) if getattr(row, f.name) != f.default}
    return kept | {"value": float(f"{row.value:.5g}")}

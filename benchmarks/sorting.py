"""Soft sorting against diffsort, in one run: logistic, steepness 10, float32, forward and backward.

On the CPU both of our networks stand beside both of diffsort's, and the last column says how many times faster than
diffsort's bitonic network ours would have to be to match torchsort, which needs a compiler to install (from published
figures of the three on one machine). On the GPU only ours are timed unless diffsort is installed.

    python -m benchmarks.sorting [--json FILE] [--quick]
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ProcessPoolExecutor
from typing import Any

import torch
from torch import Tensor

from algonet.sorting import Bitonic, Network, OddEven, soft_sort
from benchmarks import harness
from benchmarks.harness import Row

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
KERNEL = "triton" if DEVICE == "cuda" else "numba"
TOLERANCE = 1e-4
NETWORKS: dict[str, Network] = {"odd-even": OddEven(), "bitonic": Bitonic()}
#: batch, n -> how many times faster than diffsort's bitonic torchsort was measured on the CPU.
CPU = {(1000, 16): 20.8, (1000, 32): 52.0, (100, 128): 326.0, (10, 512): 2018.0, (1, 1024): 8655.0}
#: batch, n -> milliseconds that odd-even must reach on an H200.
GPU = {
    (1000, 16): 0.25,
    (10000, 16): 0.25,
    (1000, 32): 0.3,
    (1000, 128): 0.5,
    (100, 128): 0.3,
    (100, 512): 1.0,
    (10, 1024): 1.0,
}
#: What the printed table shows: (column, by) -> its head.
COLUMNS = {
    ("odd-even, f+b", "algonet"): "odd-even",
    ("odd-even with 3 channels, f+b", "algonet"): "+3",
    ("bitonic, f+b", "algonet"): "bitonic",
    ("bitonic with 3 channels, f+b", "algonet"): "+3",
    ("odd-even, f+b", "diffsort"): "diffsort o-e",
    ("odd-even, times faster", "algonet"): "ratio",
    ("bitonic, f+b", "diffsort"): "diffsort bit.",
    ("bitonic, times faster", "algonet"): "ratio",
}
#: diffsort's odd-even multiplies dense matrices in each of n layers: beyond this batch * n^4 it takes minutes on the CPU.
PATIENCE = 3e10
#: On the GPU it takes up to 50 GiB; beyond so many items it is left out.
MOST_ON_GPU = 32


def both_ways(sort: Callable[[Tensor], Tensor], x: Tensor, gradient: Tensor) -> Callable[[], Any]:
    return lambda: torch.autograd.grad(sort(x), x, gradient)


def with_payload(network: Network, x: Tensor, payload: Tensor) -> Callable[[], Any]:
    def run() -> Any:
        result = soft_sort(x, method=network, payload=payload)
        return torch.autograd.grad([result.values, result.payload], [x, payload], [x.detach(), payload.detach()])

    return run


def parity(network: Network, n: int) -> float:
    """The largest deviation of the kernel from the reference, in values and gradients; raises beyond the tolerance."""
    x = torch.randn(7, n, device=DEVICE, requires_grad=True)
    weights = torch.randn_like(x)
    found = []
    for backend in ("reference", KERNEL):
        y = soft_sort(x, method=network, backend=backend).values
        found.append([y.detach(), torch.autograd.grad(y, x, weights)[0]])
    worst = max(float((k - r).abs().max() / r.abs().max()) for r, k in zip(*found, strict=True))
    if not worst < TOLERANCE:
        raise SystemExit(f"no parity: the kernel deviates by {worst:.1e}; timings would mean nothing")
    return worst


def peer(name: str, batch: int, n: int) -> Callable[[Tensor], Tensor] | None:
    """diffsort's network of this name as a function from x to values, where it is installed and feasible."""
    if n > MOST_ON_GPU if DEVICE == "cuda" else name == "odd_even" and batch * n**4 > PATIENCE:
        return None
    try:
        from diffsort import DiffSortNet
    except ImportError:
        return None
    network = DiffSortNet(name, n, device=DEVICE, steepness=10.0, distribution="logistic")
    return lambda x: network(x)[0]


def once(function: Callable[[], Any], repeats: int) -> float:
    """The best of a few: a peer that takes seconds is not worth a median."""
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        function()
        if DEVICE == "cuda":
            torch.cuda.synchronize()
        times.append(time.perf_counter() - start)
    return min(times) * 1e3


def rows_of(batch: int, n: int, name: str, seconds: float, peers: bool = True) -> list[Row]:
    """Milliseconds of a network, with and without a payload, beside diffsort's; on the GPU the memory it takes."""
    x = torch.randn(batch, n, device=DEVICE, requires_grad=True)
    gradient, payload = torch.randn_like(x), torch.randn(batch, n, 3, device=DEVICE, requires_grad=True)
    network = NETWORKS[name]
    run = both_ways(lambda t: soft_sort(t, method=network).values, x, gradient)
    ours = harness.milliseconds(run, seconds=seconds)
    along = harness.milliseconds(with_payload(network, x, payload), seconds=seconds)
    found = [("ms", f"{name}, f+b", ours), ("ms", f"{name} with 3 channels, f+b", along)]
    if DEVICE == "cuda":
        found.append(("MiB", f"{name}, memory", harness.peak_mebibytes(run)))
    rows = [Row(f"{batch} x {n}", value, unit, column) for unit, column, value in found]
    sort = peer(name.replace("-", "_"), batch, n) if peers else None
    if sort is not None:
        theirs = once(both_ways(sort, x, gradient), 1 if batch * n**4 > PATIENCE / 2 else 3)
        rows.append(Row(f"{batch} x {n}", theirs, "ms", f"{name}, f+b", by="diffsort"))
        rows.append(Row(f"{batch} x {n}", theirs / ours, "ratio", f"{name}, times faster"))
    return rows


def once_each(batch: int, n: int, name: str) -> None:
    """What compiles the kernels of a row."""
    rows_of(batch, n, name, 0.0, peers=False)


def compile_ahead(sizes: Iterable[tuple[int, int]]) -> None:
    """Fill Triton's cache from several processes at once: one kernel after the other takes more than a minute."""
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(max_workers=min(12, os.cpu_count() or 1), mp_context=context) as pool:
        for done in [pool.submit(once_each, *size, name) for size in sizes for name in NETWORKS]:
            with contextlib.suppress(Exception):  # then they compile when they are called
                done.result()


def line_of(rows: list[Row]) -> str:
    found = {(row.column, row.by): f"{row.value:.3g}" for row in rows}
    return "".join(f"{found.get(column, '-'):>15}" for column in COLUMNS)


def main() -> None:
    options = harness.arguments(__doc__)
    torch.set_num_threads(1)  # threads that wait for a busy core would make the ratios a matter of luck
    rows: list[Row] = []
    print(f"{DEVICE}; deviation from the reference:", end=" ")
    print(", ".join(f"{name} {parity(network, 40):.0e}" for name, network in NETWORKS.items()), "\n")
    sizes = list(CPU if DEVICE == "cpu" else GPU)[: 2 if options.quick else None]
    if DEVICE == "cuda":
        compile_ahead(sizes)
    print("milliseconds, forward and backward; +3: with a payload of three channels\n")
    print(f"{'batch x n':>13}" + ("{:>15}" * len(COLUMNS)).format(*COLUMNS.values()), "   must reach")
    for batch, n in sizes:
        # A call takes the GPU less than a millisecond
        seconds = 0.2 if options.quick or DEVICE == "cuda" else 1.0
        fresh = [row for name in NETWORKS for row in rows_of(batch, n, name, seconds)]
        rows += fresh
        goal = f"{GPU[batch, n]} ms odd-even" if DEVICE == "cuda" else f"{CPU[batch, n]:.0f} bitonic ratio"
        print(f"{batch:>6} x {n:<4}{line_of(fresh)}   {goal}", flush=True)
        harness.save(options.json, rows)
    if DEVICE == "cpu":
        print("\nNo CUDA device: the GPU rows were skipped.")
    harness.record(options.json, rows)


if __name__ == "__main__":
    main()

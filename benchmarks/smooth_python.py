"""Smooth Python against algovision on its README's program: bubble sort until nothing was swapped.

Both run in one process, in turns of a few calls each, float32, on new numbers in every call; the least disturbed call of each
counts, medians are given beside. Values and gradients are compared first, and nothing is timed where they differ. A first
call is recorded, which later ones are not: it is timed by itself.
Run: python -m benchmarks.smooth_python [--quick] [--json FILE]
"""

from __future__ import annotations

import gc
import statistics
import time
import warnings
from collections.abc import Callable

import torch
from torch import Tensor

from algonet.relax import Logistic
from algonet.smooth_python import smooth

from .harness import Row, arguments, record, save

SIZES = ((100, 8), (100, 16), (100, 32))


@smooth(relax=Logistic(5.0))
def bubble_until_sorted(array):
    swapped, swaps = 1.0, 0.0
    last = len(array) - 1
    while swapped:
        swapped = 0.0
        for i in range(last):
            if array[i] > array[i + 1]:
                array[i], array[i + 1] = array[i + 1], array[i]
                swapped = 1.0
                swaps += 1.0
        last -= 1
    return array, swaps


@smooth(relax=Logistic(10.0))
def bubble_sort(array):
    swaps = 0.0
    for i in range(len(array)):
        for j in range(len(array) - 1 - i):
            if array[j] > array[j + 1]:
                array[j], array[j + 1] = array[j + 1], array[j]
                swaps += 1.0
    return array, swaps


def peer_program(device: str) -> Callable:
    """The same algorithm in algovision's language."""
    from algovision import GT, Algorithm, For, If, Input, IsTrue, Let, LetInt, Output, Var, VarInt, While

    zero, one = torch.tensor(0.0, device=device), torch.tensor(1.0, device=device)
    exchange = [
        Let("array", [lambda i: i + 1], "left"),
        Let("array", ["i"], "right"),
        Let("swapped", 1.0),
        Let("swaps", lambda swaps: swaps + 1.0),
    ]
    return Algorithm(
        Input("array"),
        Var("left", zero),
        Var("right", zero),
        Var("swapped", one),
        Var("swaps", zero),
        VarInt("last", lambda array: array.shape[1] - 1),
        While(
            IsTrue("swapped"),
            Let("swapped", 0),
            For(
                "i",
                "last",
                Let("left", "array", ["i"]),
                Let("right", "array", [lambda i: i + 1]),
                If(GT("left", "right"), if_true=exchange),
            ),
            LetInt("last", lambda last: last - 1),
        ),
        Output("array"),
        Output("swaps"),
        beta=5.0,
    )


def once(function: Callable, x: Tensor) -> tuple[float, float, tuple[Tensor, Tensor, Tensor]]:
    """Seconds of forward, of forward and backward, and (values, swaps, gradient)."""
    leaf = x.clone().requires_grad_()
    places = torch.arange(x.shape[1], device=x.device, dtype=x.dtype)
    _wait(x)
    start = time.perf_counter()
    values, swaps = function(leaf)
    _wait(x)
    middle = time.perf_counter()
    ((values * places).sum() + swaps.sum()).backward()
    _wait(x)
    end = time.perf_counter()
    assert leaf.grad is not None
    return middle - start, end - start, (values.detach(), swaps.detach(), leaf.grad)


def turns(peer: Callable, ours: Callable, inputs: list[Tensor], calls: int = 4) -> list:
    """(seconds of peer, seconds of ours) on each input: in a loop, as training does, and each in its turn."""
    runs = []
    for start in range(0, len(inputs), calls):
        found = []
        for function in (peer, ours):
            # What the other one left behind is not to be cleaned up on this one's time
            gc.collect()
            found.append([once(function, x)[:2] for x in inputs[start : start + calls]])
        runs += zip(*found, strict=True)
    return runs


def _times(runs: list, which: Callable) -> list[list[float]]:
    """Milliseconds [[peer f, peer f+b], [ours f, ours f+b]] of all runs: their minimum or median."""
    return [[which(run[who][what] for run in runs) * 1e3 for what in (0, 1)] for who in (0, 1)]


def _wait(x: Tensor) -> None:
    if x.is_cuda:
        torch.cuda.synchronize()


def peak(function: Callable, x: Tensor) -> float:
    """MiB beyond the input: allocated on the GPU; on the CPU what autograd holds after the forward pass."""
    if x.is_cuda:
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        once(function, x)
        return (torch.cuda.max_memory_allocated() - before) / 2**20
    held: dict[int, int] = {}

    def pack(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        held[storage.data_ptr()] = storage.nbytes()
        return tensor

    leaf = x.clone().requires_grad_()
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        results = function(leaf)
    del results
    return sum(held.values()) / 2**20


def main() -> None:
    options = arguments(__doc__)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    if device == "cpu":
        torch.set_num_threads(2)
    warnings.simplefilter("ignore")
    peer, rows = peer_program(device), []

    def ours(x: Tensor):
        return bubble_until_sorted(x, batched=True)

    def recorded(x: Tensor):
        bubble_until_sorted.recordings.forget()
        return bubble_until_sorted(x, batched=True)

    print(
        "batch x n   algovision f / f+b    smooth Python f / f+b    times faster (medians)     first call   MiB peer / ours"
    )
    for batch, n in SIZES[:2] if options.quick else SIZES:
        generator = torch.Generator().manual_seed(0)
        inputs = [torch.randn(batch, n, generator=generator).to(device) for _ in range(5 if options.quick else 17)]
        expected, found = once(peer, inputs[0])[2], once(ours, inputs[0])[2]
        for name, e, f in zip(("values", "swaps", "gradient"), expected, found, strict=True):
            error = float((e - f).abs().max() / e.abs().max())
            assert error < 1e-4, f"{name} differ by {error:.2g} at {batch} x {n}: not timed"
        runs = turns(peer, ours, inputs[1:])
        (pf, pb), (of, ob) = _times(runs, min)
        (pfm, pbm), (ofm, obm) = _times(runs, statistics.median)
        first = min(once(recorded, x)[0] for x in inputs[1:4]) * 1e3
        held = peak(peer, inputs[0]), peak(ours, inputs[0])
        print(
            f"{batch} x {n:<5} {pf:7.1f} / {pb:7.1f} ms   {of:7.3f} / {ob:7.3f} ms   {pf / of:5.1f} / {pb / ob:5.1f}"
            f" ({pfm / ofm:5.1f} / {pbm / obm:5.1f})   {first:7.2f} ms   {held[0]:6.2f} / {held[1]:.2f}",
            flush=True,
        )
        case = f"bubble sort of {batch} x {n}"
        rows += [Row(case, of, "ms", "f"), Row(case, ob, "ms", "f+b"), Row(case, first, "ms", "first call, f")]
        rows += [Row(case, pf, "ms", "f", by="algovision"), Row(case, pb, "ms", "f+b", by="algovision")]
        rows += [Row(case, pf / of, "ratio", "f, times faster"), Row(case, pb / ob, "ratio", "f+b, times faster")]
        rows += [Row(case, held[1], "MiB", "memory"), Row(case, held[0], "MiB", "memory", by="algovision")]
        save(options.json, rows)
    record(options.json, rows)


if __name__ == "__main__":
    main()

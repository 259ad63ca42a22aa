"""Compiled WHILE-programs against the eager reference, in one run.

The paper's multiplication on a grid over [0, 6]^2: with Sech(2), which halts, and with Sech(5) capped at 60 x 60
iterations, which does not. f is the result, f+b also its gradient by both inputs.

    python -m benchmarks.while_lang [--json FILE] [--quick]
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import warnings

import torch
from torch import Tensor

from algonet.relax import BumpExit, Exit, Sech, Tent
from algonet.while_lang import NonHaltingWarning, WhileProgram
from benchmarks import harness
from benchmarks.harness import Row

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
KERNEL = "triton" if DEVICE == "cuda" else "numba"
#: Largest error relative to the largest entry, of the same kernel in float64: where a program runs away, it amplifies the
#: rounding of float32 to percents (in the reference as well).
TOLERANCE = 1e-6


def grid(size: int) -> tuple[Tensor, Tensor]:
    axis = torch.linspace(0, 6, size, device=DEVICE)
    a, b = (t.clone().requires_grad_() for t in torch.meshgrid(axis, axis, indexing="ij"))
    return a, b


def programs(exit: Exit, cap: int) -> dict[str, WhileProgram]:
    return {
        backend: WhileProgram.library("multiply", exit, max_iterations=cap, backend=backend).to(DEVICE)
        for backend in ("reference", KERNEL)
    }


def parity(pair: dict[str, WhileProgram], a: Tensor, b: Tensor) -> float:
    """The largest deviation of values and gradients, relative to the largest entry; raises beyond the tolerance."""
    found = []
    a, b = (t.detach().double().requires_grad_() for t in (a, b))
    for program in pair.values():
        y = program(x1=a, x2=b)
        found.append([y.detach(), *torch.autograd.grad(y.sum(), (a, b))])
    worst = max(float((k - r).abs().max() / r.abs().max()) for r, k in zip(*found, strict=True))
    if not worst < TOLERANCE:
        raise SystemExit(f"no parity: the kernel deviates by {worst:.1e}; timings would mean nothing")
    return worst


def first_calls() -> list[Row]:
    """The first call of a process, with an empty cache and with a full one."""
    script = (
        "import time, torch\nfrom algonet.while_lang import WhileProgram\n"
        f"p = WhileProgram.library('multiply', backend='{KERNEL}').to('{DEVICE}')\n"
        f"x = torch.rand(64, 64, device='{DEVICE}', requires_grad=True)\nstart = time.perf_counter()\n"
        "torch.autograd.grad(p(x1=x, x2=x).sum(), x)[0].sum().item()\nprint(time.perf_counter() - start)"
    )
    rows = []
    with tempfile.TemporaryDirectory() as cache:
        environment = {**os.environ, "ALGONET_CACHE": cache, "TRITON_CACHE_DIR": f"{cache}/triton"}
        for name in ("compiling", "from the cache"):
            done = subprocess.run(
                [sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=True
            )
            rows.append(Row(f"first call, {name}", float(done.stdout) * 1e3, "ms"))
    return rows


def main() -> None:
    options = harness.arguments(__doc__)
    warnings.simplefilter("ignore", NonHaltingWarning)
    rows: list[Row] = []
    size = 32 if options.quick else 64
    a, b = grid(size)
    gradient = torch.ones_like(a)
    workloads = [("Sech(2)", Sech(2.0), 1000), ("Sech(5) capped 60x60", Sech(5.0), 60)]
    if not options.quick:
        workloads += [("Tent", Tent(), 1000), ("BumpExit", BumpExit(), 1000)]
    print(f"{DEVICE}, {size} x {size}, float32; medians\n")
    print(f"{'workload':24} {'deviation':>10} {'f':>9} {'f+b':>9} {'eager f':>9} {'eager f+b':>10} {'f+b ratio':>10}")
    for name, exit, cap in workloads:
        pair = programs(exit, cap)
        deviation = parity(pair, a, b)

        def both(program: WhileProgram) -> None:
            torch.autograd.grad(program(x1=a, x2=b), (a, b), gradient)

        def forward(program: WhileProgram) -> None:
            with torch.no_grad():
                program(x1=a, x2=b)

        seconds = 0.5 if options.quick or DEVICE == "cuda" else 1.5
        times = {
            (backend, job.__name__): harness.milliseconds(
                lambda job=job, p=p: job(p), seconds=seconds, warmup=1, least=2
            )
            for backend, p in pair.items()
            for job in (forward, both)
        }
        f, fb, ef, efb = (times[k, j] for k in (KERNEL, "reference") for j in ("forward", "both"))
        print(f"{name:24} {deviation:10.1e} {f:9.3f} {fb:9.3f} {ef:9.1f} {efb:10.1f} {efb / fb:10.0f}", flush=True)
        case = f"{name}, {size} x {size}"
        rows += [Row(case, f, "ms", "f"), Row(case, fb, "ms", "f+b")]
        rows += [Row(case, ef, "ms", "f", by="eager"), Row(case, efb, "ms", "f+b", by="eager")]
        rows += [Row(case, ef / f, "ratio", "f, times faster"), Row(case, efb / fb, "ratio", "f+b, times faster")]
        harness.save(options.json, rows)

    rows += first_calls()
    print()
    for row in rows[-2:]:
        print(f"{row.name}: {row.value / 1e3:.1f} s")
    harness.record(options.json, rows)


if __name__ == "__main__":
    main()

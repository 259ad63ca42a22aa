"""Tests on Triton's interpreter, which is chosen when Triton is imported and so wants a process of its own.

`interpret("sorting.test_contract", "sorting.test_triton:check", path)` runs there, in one process, all contract cases of a
file that have kernels, a function, and a file of Python. All kernels that they launch must also be such as the compiler
takes: see `helpers.translated`.
"""

from __future__ import annotations

import importlib
import os
import runpy
import subprocess
import sys
import tempfile
import traceback
from pathlib import Path

import numpy as np
import pytest
import torch

from helpers.contract import Case, assert_parity
from helpers.translated import translate, watched

TESTS = Path(__file__).parents[1]


#: All cases of these files run the same kernels, which take the program as data: one precision for each case is enough.
SHARED_KERNELS = ("smooth_python.test_algorithms",)


def interpret(*what: str | Path) -> list[str]:
    """Run contract cases, functions or files in the interpreter; returns the lines they printed, having failed if one of
    them did, or if the compiler refuses a kernel that ran."""
    pytest.importorskip("triton")
    environment = {**os.environ, "TRITON_INTERPRET": "1", "PYTHONPATH": os.pathsep.join([str(TESTS), *sys.path])}
    with tempfile.TemporaryDirectory() as folder:
        launched = Path(folder) / "launched.json"
        command = [sys.executable, "-m", "helpers.interpreted", str(launched), *map(str, what)]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=1800)
        failed = [part for part in done.stdout.split("\n\n") if " | failed" in part]
        assert done.returncode == 0, "\n\n".join([*failed, done.stderr[-3000:]])
        refused = translate(launched)
    assert not refused, "\n".join(refused)
    return done.stdout.splitlines()


def run_case(case: Case, draws: tuple[tuple[torch.dtype, int], ...]) -> str:
    """Compare a case's Triton kernels with its reference in each (precision, batch); one that they refuse says why."""
    try:
        for seed, (dtype, batch) in enumerate(draws, start=1):
            assert_parity(case, "triton", dtype, batch, seed)
    except ValueError as error:
        if "cannot take this call" not in str(error):
            raise
        return f"refused: {error}"
    return "equal"


def main(what: str) -> int:
    """Run one of the things that `interpret` takes; returns how many cases failed."""
    if what.endswith(".py"):
        runpy.run_path(what)
        return 0
    module, _, function = what.partition(":")
    found = importlib.import_module(module)
    if function:
        getattr(found, function)()
        return 0
    failed = 0
    draws = (torch.float32, 3), (torch.float64, 1)
    for number, case in enumerate(case for case in found.CASES if case.kernels):
        chosen = draws[number % 2 :][:1] if module in SHARED_KERNELS else draws
        try:
            print(f"{module}: {case.name} | {run_case(case, chosen)}", flush=True)
        except Exception:
            failed += 1
            print(f"{module}: {case.name} | failed: {traceback.format_exc()}", flush=True)
    return failed


if __name__ == "__main__":
    with watched(Path(sys.argv[1])), np.errstate(all="ignore"):
        failures = sum(map(main, sys.argv[2:]))
    sys.exit(failures)

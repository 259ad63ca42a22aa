"""Tests on Triton's interpreter, which is chosen when Triton is imported and so wants a process of its own.

`interpret("sorting.test_contract")` runs all contract cases of a file there that have kernels,
`interpret("sorting.test_triton:check")` a function of it, and `interpret(path)` a file of Python. All kernels that they
launch must also be such as the compiler takes: see `helpers.translated`.
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


def interpret(what: str | Path) -> list[str]:
    """Run contract cases, a function or a file in the interpreter; returns the lines it printed, having failed if something
    did, or if the compiler refuses a kernel that ran."""
    pytest.importorskip("triton")
    environment = {**os.environ, "TRITON_INTERPRET": "1", "PYTHONPATH": os.pathsep.join([str(TESTS), *sys.path])}
    with tempfile.TemporaryDirectory() as folder:
        launched = Path(folder) / "launched.json"
        command = [sys.executable, "-m", "helpers.interpreted", str(what), str(launched)]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=1800)
        assert done.returncode == 0, f"{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
        refused = translate(launched)
    assert not refused, "\n".join(refused)
    return done.stdout.splitlines()


def run_case(case: Case) -> str:
    """Compare a case's Triton kernels with its reference; one that they refuse says why."""
    try:
        assert_parity(case, "triton", torch.float32, 3, 1)
        assert_parity(case, "triton", torch.float64, 1, 2)
    except ValueError as error:
        if "cannot take this call" not in str(error):
            raise
        return f"refused: {error}"
    return "equal"


def main(what: str) -> int:
    if what.endswith(".py"):
        runpy.run_path(what)
        return 0
    module, _, function = what.partition(":")
    found = importlib.import_module(module)
    failed = 0
    with np.errstate(all="ignore"):
        if function:
            getattr(found, function)()
            return 0
        for case in found.CASES:
            if case.kernels:
                try:
                    print(f"{case.name} | {run_case(case)}", flush=True)
                except Exception:
                    failed += 1
                    print(f"{case.name} | failed: {traceback.format_exc()}", flush=True)
    return failed


if __name__ == "__main__":
    with watched(Path(sys.argv[2])):
        failures = main(sys.argv[1])
    sys.exit(failures)

"""Tests on Triton's interpreter, which is chosen when Triton is imported and so wants a process of its own.

`interpret("sorting.test_contract")` runs all contract cases of a file there that have kernels, and
`interpret("sorting.test_triton:check")` a function of it.
"""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
import traceback
from pathlib import Path

import numpy as np
import pytest
import torch

from helpers.contract import Case, assert_parity

TESTS = Path(__file__).parents[1]


def interpret(what: str) -> list[str]:
    """Run contract cases or a function in the interpreter; returns the lines it printed, having failed if something did."""
    pytest.importorskip("triton")
    environment = {**os.environ, "TRITON_INTERPRET": "1", "PYTHONPATH": os.pathsep.join([str(TESTS), *sys.path])}
    command = [sys.executable, "-m", "helpers.interpreted", what]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=1800)
    assert done.returncode == 0, f"{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
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
    sys.exit(main(sys.argv[1]))

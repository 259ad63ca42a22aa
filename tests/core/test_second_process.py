"""The second process of each domain finds its kernels compiled: nothing is written again."""

from __future__ import annotations

import json
import subprocess
import sys

#: Runs a typical call of every operation, forward and backward, and tells what it had to compile.
SCRIPT = """
import json
from algonet.cli.cache_commands import _run_example
from algonet.cli.doctor import DOMAINS
from algonet.core import backends
from algonet.core.codegen import store
import importlib

compiled = []
write = store.write_sealed
store.write_sealed = lambda name, data: (compiled.append(name), write(name, data))
for domain in DOMAINS:
    importlib.import_module(f"algonet.{domain}")
ran = {operation: _run_example(operation, "cpu") for operation in backends.operations()}
print(json.dumps({"compiled": compiled, "ran": ran}))
"""


def run() -> dict:
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, timeout=1800)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


def test_the_second_process_finds_every_kernel():
    first, second = run(), run()
    assert set(second["ran"].values()) == {"numba"}
    assert second["ran"] == first["ran"]
    assert second["compiled"] == []

"""The second process of each domain finds its kernels compiled: nothing is written again, unless what it finds is damaged."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

#: Runs a typical call of the operations named (or of every one), forward and backward; tells what it read and had to compile.
SCRIPT = """
import json
from algonet.cli import _run_example
from algonet.cli.doctor import DOMAINS
from algonet.core.operation import example_calls
from algonet.core.codegen import store
from numba.core import compiler
import importlib
import sys

read, written, compiled = [], [], []
write, read_sealed, compile_extra = store.write_sealed, store.read_sealed, compiler.compile_extra
store.write_sealed = lambda name, data: (written.append(name), write(name, data))
compiler.compile_extra = lambda *a, **k: (compiled.append(a[2].__qualname__), compile_extra(*a, **k))[1]
store.read_sealed = lambda name: (read.append(name), read_sealed(name))[1]
for domain in DOMAINS:
    importlib.import_module(f"algonet.{domain}")
calls = example_calls("cpu")
ran = {operation: _run_example(operation, *calls[operation]) for operation in sys.argv[1:] or calls}
found = {"read": read, "written": written, "compiled": compiled, "ran": ran, "folder": str(store.cache_folder())}
print(json.dumps(found))
"""


#: One for each domain that has kernels, those that compile soonest.
ONE_EACH = ("chaos_game", "rasterize", "run_while", "soft_laplace_count")


def run(*operations: str, **environment: str) -> dict:
    command = [sys.executable, "-c", SCRIPT, *operations]
    done = subprocess.run(command, env={**os.environ, **environment}, capture_output=True, text=True, timeout=1800)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


def test_the_second_process_finds_every_kernel():
    # This process may know operations of other tests
    first, second = run(), run()
    assert set(second["ran"].values()) == {"numba"}
    assert second["ran"] == first["ran"]
    # A kernel that is never kept is not written either
    assert second["compiled"] == second["written"] == []


@pytest.mark.slow
def test_a_cache_whose_every_file_is_damaged_is_compiled_anew(tmp_path):
    warm = run(*ONE_EACH)
    names = {*warm["read"], *warm["written"]}
    # The sources too: a file of machine code is called like its source, and more
    names |= {f"{name.split('.')[0]}.py" for name in names}
    ours = tmp_path / "cache"
    ours.mkdir(mode=0o700)
    damaged = 0
    for place, name in enumerate(sorted(names)):
        path = Path(warm["folder"]) / name
        if path.is_file():
            data = path.read_bytes()
            (ours / name).write_bytes(
                (data[: len(data) // 2], b"", b"\0" * len(data), b"raise SystemExit(7)\n")[place % 4]
            )
            damaged += 1
    assert damaged > len(ONE_EACH)
    first = run(*ONE_EACH, ALGONET_CACHE=str(ours))
    assert first["ran"] == warm["ran"] == dict.fromkeys(ONE_EACH, "numba")
    assert set(first["written"]) >= {name for name in names if name.endswith(".machine_code")}
    again = run(*ONE_EACH, ALGONET_CACHE=str(ours))
    assert again["compiled"] == again["written"] == []

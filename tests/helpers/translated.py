"""Triton kernels translated for a GPU that is not there.

The interpreter runs kernels as Python, in which a name may be a number in one branch and a block in the other; the compiler
refuses that. So what is launched in the interpreter is written down (`watched`), and `translate` takes each kernel, with the
types and constants it was launched with, to Triton's own language for an sm_90. That needs no device and a second or less.
"""

from __future__ import annotations

import contextlib
import importlib
import inspect
import json
import linecache
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

TESTS = Path(__file__).parents[1]
_POINTERS = {
    torch.float64: "*fp64", torch.float32: "*fp32", torch.float16: "*fp16", torch.bfloat16: "*bf16", torch.int64: "*i64",
    torch.int32: "*i32", torch.int16: "*i16", torch.int8: "*i8", torch.uint8: "*u8", torch.bool: "*i1",
}  # fmt: skip


@contextlib.contextmanager
def watched(path: Path) -> Iterator[None]:
    """Write all kernels that are launched inside, with the types of their arguments, to a file."""
    from triton.runtime.interpreter import InterpretedFunction

    found: dict[str, dict[str, Any]] = {}
    run = InterpretedFunction.run

    def noting(self: Any, *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> Any:
        launch = _launch(self.fn, args, kwargs)
        found.setdefault(json.dumps(launch, sort_keys=True), launch)
        return run(self, *args, grid=grid, warmup=warmup, **kwargs)

    InterpretedFunction.run = noting
    try:
        yield
    finally:
        InterpretedFunction.run = run
        path.write_text(json.dumps(list(found.values())), encoding="utf-8")


def _launch(function: Any, args: tuple, kwargs: dict[str, Any]) -> dict[str, Any]:
    names = list(inspect.signature(function).parameters)
    given = dict(zip(names, args, strict=False)) | {k: v for k, v in kwargs.items() if k in names}
    given |= {
        p.name: p.default
        for p in inspect.signature(function).parameters.values()
        if p.name not in given and p.default is not p.empty
    }
    fixed = {name for name, kind in function.__annotations__.items() if "constexpr" in str(kind)}
    path, home = function.__code__.co_filename, sys.modules[function.__module__].__spec__
    return {
        "module": function.__module__,
        "source": "".join(linecache.getlines(path)) if home is None else "",  # generated
        "kernel": function.__name__,
        "types": {name: type_of(given[name]) for name in names if name not in fixed},
        "constants": {name: given[name] for name in names if name in fixed},
    }


def type_of(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        return _POINTERS[value.dtype]
    if isinstance(value, bool):
        return "i1"
    if isinstance(value, int):
        return "i32" if -(2**31) <= value < 2**31 else "i64"
    return "fp32" if isinstance(value, float) else "constexpr"


def translate(path: Path) -> list[str]:
    """Translate what `watched` wrote, in a process without the interpreter; returns a line for each that fails."""
    environment = {**os.environ, "TRITON_INTERPRET": "0", "PYTHONPATH": os.pathsep.join([str(TESTS), *sys.path])}
    command = [sys.executable, "-m", "helpers.translated", str(path)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=1800)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout.splitlines()


def main(path: Path) -> None:
    from triton._C.libtriton import ir
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource
    from triton.compiler.compiler import make_backend

    from algonet.core.codegen import generate

    target = GPUTarget("cuda", 90, 32)
    backend = make_backend(target)
    options = backend.parse_options({})
    for launch in json.loads(path.read_text(encoding="utf-8")):
        source = launch["source"]
        module = generate.load("translated", source) if source else importlib.import_module(launch["module"])
        names = getattr(module, launch["kernel"]).arg_names
        constants = launch["constants"] | {name: None for name, kind in launch["types"].items() if kind == "constexpr"}
        context = ir.context()
        ir.load_dialects(context)
        backend.load_dialects(context)
        try:
            ASTSource(
                fn=getattr(module, launch["kernel"]),
                signature={name: launch["types"].get(name, "constexpr") for name in names},
                constexprs={(names.index(name),): value for name, value in constants.items()},
            ).make_ir(target, options, backend.get_codegen_implementation(options), backend.get_module_map(), context)
        except Exception as error:
            said = " ".join(str(error.__cause__ or error).split())
            print(f"{launch['module']}.{launch['kernel']} {launch['types']} {launch['constants']}: ... {said[-300:]}")


if __name__ == "__main__":
    main(Path(sys.argv[1]))

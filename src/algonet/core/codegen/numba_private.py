"""The insides of Numba, which it does not promise: all of them are used here.

`jit` imports this file when the first kernel is declared, tries it, and does without where a release has moved something: the
same numbers, from machine code that is made in every process.

Numba's own cache raises when a file of it is truncated, runs what a flipped bit made of one, and misses in every process when
a kernel is a closure. This one has a file per kernel and signature with a checksum, in the folder that `store` vouches for.
"""

from __future__ import annotations

import hashlib
import os
import pickle
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numba
from numba.core.caching import CompileResultCacheImpl, _Cache
from numba.core.ccallback import CFunc
from numba.core.compiler import Compiler
from numba.core.serialize import dumps
from numba.core.sigutils import normalize_signature

from algonet.core.codegen import store

#: Whoever waits longer than this for a compilation is told why: twenty seconds of silence would look like a hang.
PATIENCE = 1.0
#: Held by whoever has told it.
_TOLD = threading.Lock()


class KernelCache(_Cache):
    """The machine code of one function, by signature. `stamp` changes with its source and with all that it inlines."""

    def __init__(self, function: Callable, stamp: str):
        self._name = f"{function.__module__.rpartition('.')[2]}.{function.__qualname__}"
        self._stamp = stamp
        # Numba's own conversions between machine code and bytes, without the files
        self._convert = object.__new__(CompileResultCacheImpl)
        self._convert._lineno = function.__code__.co_firstlineno

    @property
    def cache_path(self) -> str:
        return str(store.cache_folder())

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        target_context.refresh()
        name = self._file(sig, target_context.codegen())
        data = store.read_sealed(name)
        if data is not None:
            try:
                return self._convert.rebuild(target_context, pickle.loads(data))
            except Exception:  # of another build of Numba, say: whatever it is, compiling helps
                store.discard(name)
        return None

    def save_overload(self, sig: Any, data: Any) -> None:
        try:
            if self._convert.check_cachable(data):
                store.write_sealed(self._file(sig, data.codegen), dumps(self._convert.reduce(data)))
        except (OSError, pickle.PicklingError, TypeError):
            return

    def enable(self) -> None: ...

    def disable(self) -> None: ...

    def flush(self) -> None: ...

    def _file(self, sig: Any, codegen: Any) -> str:
        version = (numba.__version__, sys.implementation.cache_tag, codegen.magic_tuple())
        text = repr((self._stamp, self._name, sig, version))
        safe = "".join(c if c.isalnum() or c in "._" else "_" for c in self._name.removeprefix("algonet_generated_"))
        return f"algonet_generated_{safe[:80]}_{hashlib.sha256(text.encode()).hexdigest()[:24]}.machine_code"


class KernelCompiler(Compiler):
    """Numba's compiler, which says so where it takes long."""

    def compile_extra(self, func: Callable) -> Any:
        with announced():
            return super().compile_extra(func)


@contextmanager
def announced() -> Iterator[None]:
    """Around a compilation: if it takes long, one line says so, once per process."""
    timer = threading.Timer(PATIENCE, _tell)
    timer.daemon = True
    if not _TOLD.locked() and not os.environ.get("ALGONET_QUIET"):
        timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _tell() -> None:
    if _TOLD.acquire(blocking=False):
        rest = "" if store.private() else f", later ones and later processes load them from {store.cache_folder()}"
        line = f"algonet: compiling kernels, once: this call takes some seconds{rest} (ALGONET_QUIET=1 hides this line)"
        print(line, file=sys.stderr, flush=True)


def dispatcher(function: Callable, stamp: str | None, options: dict[str, Any]) -> Any:
    """A kernel, which is cached under its `stamp`; or, without one, a function that only kernels call."""
    # Functions that only kernels call need no wrappers
    options = {"no_cfunc_wrapper": True, "no_cpython_wrapper": stamp is None, **options}
    made = numba.njit(pipeline_class=KernelCompiler, **options)(function)
    if stamp is not None:
        made._cache = KernelCache(function, stamp)
    return made


def c_function(function: Callable, signature: Any, stamp: str | None, options: dict[str, Any]) -> CFunc:
    """A C function, which is cached under its `stamp`."""
    made: Any = CFunc(function, normalize_signature(signature), {}, options, pipeline_class=KernelCompiler)
    if stamp is not None:
        made._cache = KernelCache(function, stamp)
    made.compile()
    return made


def trial() -> None:
    """Raise whatever a release of Numba has against the way above, at a function and a kernel of one line each."""
    one = dispatcher(lambda x: x + 1, None, {})
    kernel = numba.njit(pipeline_class=KernelCompiler)(lambda x: one(x) + 1)
    if kernel(1) != 3:
        raise RuntimeError("a kernel computes something else")
    KernelCache(trial, "")._convert.reduce(*kernel.overloads.values())

"""Numba's compiler with a cache that survives whatever happens to its files.

Numba's own cache raises when a file of it is truncated, runs what a flipped bit made of one, and misses in every process when
a kernel is a closure. This one has a file per kernel and signature with a checksum, in the folder that `store` vouches for.

Most of a first call is spent in Numba's Python, not in LLVM: what can be left out of it is left out here.
"""

from __future__ import annotations

import hashlib
import pickle
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numba
from numba.core import caching, types
from numba.core.ccallback import CFunc
from numba.core.compiler import Compiler
from numba.core.serialize import dumps

from algonet.core.codegen import notice, store
from algonet.core.codegen.stamps import inlined


class KernelCache(caching._Cache):
    """The machine code of one function, by signature. `stamp` changes with its source and with all that it inlines."""

    def __init__(self, function: Callable, stamp: str):
        self._name = f"{function.__module__.rpartition('.')[2]}.{function.__qualname__}"
        self._stamp = stamp
        # Numba's own conversions between machine code and bytes, without the files
        self._convert = object.__new__(caching.CompileResultCacheImpl)
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
    """Numba's compiler, which looks up only once what an operator makes of given types of numbers.

    Numba asks every overload of `+` (of lists, strings, dates, ...) at each addition: a seventh of a compilation.
    """

    def compile_extra(self, func: Callable) -> Any:
        with notice.compiling(func.__qualname__), _remembered(self.state.typingctx):
            return super().compile_extra(func)


@contextmanager
def _remembered(context: Any) -> Iterator[None]:
    """Within it (and the functions that are compiled along with a kernel), calls on numbers are resolved once per signature.

    Numba's lock of compilation is held by whoever is here, so nobody else sees the difference.
    """
    # Private to Numba, so it may go; what is within then compiles as it always did
    if "_resolve_user_function_type" in vars(context) or not hasattr(context, "_resolve_user_function_type"):
        yield
        return
    resolve, found = context._resolve_user_function_type, {}

    def remember(func: Any, args: tuple, kws: dict, literals: Any = None) -> Any:
        kind = context._lookup_global(func) or func
        if kws or type(kind) is not types.Function or not all(isinstance(a, _NUMBERS) for a in args):
            return resolve(func, args, kws, literals)
        key = id(kind), args
        if key not in found:
            # With the function itself, so that its id stays its own
            found[key] = resolve(func, args, kws, literals), kind
        return found[key][0]

    context._resolve_user_function_type = remember
    try:
        yield
    finally:
        del context._resolve_user_function_type


_NUMBERS = (types.Number, types.Boolean, types.IntegerLiteral)


def njit(*, cache: bool = False, **options: Any) -> Callable[[Callable], Any]:
    """`numba.njit` for kernels, which are cached, and (without `cache`) for functions that only kernels call.

    Python must never call the latter: the wrappers it would need take as long to compile as they do, and are left out.
    """
    options = {"no_cfunc_wrapper": True, "no_cpython_wrapper": not cache, "pipeline_class": KernelCompiler, **options}

    def decorate(function: Callable) -> Any:
        kernel = numba.njit(**options)(function)
        if cache:
            kernel._cache = KernelCache(function, _stamp(function))
        return kernel

    return decorate


class LazyCFunc(CFunc):
    """A C function that is compiled when its address is first asked for."""

    @property
    def address(self) -> int:
        if self._wrapper_address is None:
            self.compile()
        return super().address


def cfunc(signature: Any, *, cache: bool = False, **options: Any) -> Callable[[Callable], LazyCFunc]:
    """`numba.cfunc`, cached here; it is compiled when its `address` is first asked for."""

    def decorate(function: Callable) -> LazyCFunc:
        kernel = LazyCFunc(
            function, numba.core.sigutils.normalize_signature(signature), {}, options, pipeline_class=KernelCompiler
        )
        if cache:
            kernel._cache = KernelCache(function, _stamp(function))
        return kernel

    return decorate


def _stamp(function: Callable) -> str:
    """A name for the text of the function's module and of what kernels inline."""
    generated = function.__globals__.get("__algonet_stamp__")
    if generated is not None:
        return generated
    return hashlib.sha256(Path(function.__code__.co_filename).read_bytes() + inlined()).hexdigest()

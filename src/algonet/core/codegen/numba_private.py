"""The insides of Numba that its first call waits for, and that it does not promise: all of them are used here.

`jit` imports this file when the first kernel is declared, tries it, and does without where a release has moved something: the
same numbers, from machine code that takes longer to make and is made in every process.

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
from types import CodeType
from typing import Any

import numba
from numba._dynfunc import make_function
from numba.core import caching
from numba.core.ccallback import CFunc
from numba.core.codegen import JITCodeLibrary
from numba.core.compiler import Compiler
from numba.core.compiler_machinery import register_pass
from numba.core.serialize import dumps
from numba.core.sigutils import normalize_signature
from numba.core.typed_passes import NativeLowering

from algonet.core.codegen import store

#: Whoever waits longer than this for a compilation is told why: twenty seconds of silence would look like a hang.
PATIENCE = 1.0
#: Held by whoever has told it.
_TOLD = threading.Lock()


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


class KernelLibrary(JITCodeLibrary):
    """The LLVM code of a kernel."""

    def _optimize_functions(self, ll_module: Any) -> None:
        # As Numba does, but with one pass manager for all, and none for what is only declared
        ll_module.data_layout = self._codegen._data_layout
        manager, builder = self._codegen._function_pass_manager()
        for function in ll_module.functions:
            if not function.is_declaration:
                manager.run(function, builder)


class DeviceLibrary(KernelLibrary):
    """The LLVM code of a function that only kernels call: it is optimised, and becomes machine code, as a part of them."""

    def finalize(self) -> None:
        self._raise_if_finalized()
        for library in dict.fromkeys(self._linking_libraries):
            self._reload_init.update(library._reload_init)
            self._final_module.link_in(library._get_module_for_linking(), preserve=True)
        self._finalized = True


@register_pass(mutates_CFG=True, analysis_only=False)
class KernelLowering(NativeLowering):
    """From Numba's types to LLVM, for kernels."""

    _name = "kernel_lowering"
    library: type[KernelLibrary] = KernelLibrary

    def run_pass(self, state: Any) -> bool:
        state.library = self.library(state.targetctx.codegen(), state.func_id.func_qualname)
        state.library.enable_object_caching()
        return super().run_pass(state)


@register_pass(mutates_CFG=True, analysis_only=False)
class DeviceLowering(KernelLowering):
    """From Numba's types to LLVM and no further, for functions that only kernels call."""

    _name = "device_lowering"
    library = DeviceLibrary

    def run_pass(self, state: Any) -> bool:
        state.flags.no_compile = True
        super().run_pass(state)
        lowered, library = state["cr"], state.library
        described = lowered.fndesc
        # Callers find the library by this object; it has no address that Python could call
        function = make_function(described.lookup_module(), described.qualname, "", 0, lowered.env, (library,))
        state.targetctx.insert_user_function(function, described, [library])
        state.reload_init.extend(library._reload_init)
        state["cr"] = lowered._replace(cfunc=function)
        return True


#: Passes for what kernels do not do (`with` blocks, inlining of Python functions, loops over tuples of several types,
#: expressions of whole arrays), which take their time in every function.
_LEFT_OUT = {
    "with_lifting",
    "inline_inlinables",
    "find_literally",
    "literal_unroll",
    "LiteralPropagation",
    "nopython_rewrites",
}


class KernelCompiler(Compiler):
    """Numba's compiler without what kernels can do without.

    Most of a first call is spent in Numba's Python, not in LLVM: passes that find nothing to do, functions that are made
    callable from Python although only kernels call them.
    """

    lowering: type[KernelLowering] = KernelLowering

    def define_pipelines(self) -> list:
        pipelines = super().define_pipelines()
        closures = any(isinstance(value, CodeType) for value in self.state.func_id.code.co_consts)
        left_out = _LEFT_OUT if closures else {*_LEFT_OUT, "inline_closure_likes"}
        for pipeline in pipelines:
            pipeline.passes = [
                (self.lowering if kind is NativeLowering else kind, text)
                for kind, text in pipeline.passes
                if kind._name not in left_out
            ]
        return pipelines

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


class DeviceCompiler(KernelCompiler):
    """The compiler of functions that only kernels call."""

    lowering = DeviceLowering


def dispatcher(function: Callable, stamp: str | None, options: dict[str, Any]) -> Any:
    """A kernel, which is cached under its `stamp`; or, without one, a function that only kernels call."""
    compiler = DeviceCompiler if stamp is None else KernelCompiler
    options = {"no_cfunc_wrapper": True, "no_cpython_wrapper": stamp is None, "pipeline_class": compiler, **options}
    made = numba.njit(**options)(function)
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

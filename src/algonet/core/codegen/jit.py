"""Numba's compiler with a cache that survives whatever happens to its files.

Numba's own cache raises when a file of it is truncated, runs what a flipped bit made of one, and misses in every process when
a kernel is a closure. This one has a file per kernel and signature with a checksum, in the folder that `store` vouches for.

Most of a first call is spent in Numba's Python, not in LLVM: what can be left out of it is left out here.
"""

from __future__ import annotations

import gc
import hashlib
import pickle
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import CodeType
from typing import Any

import numba
from numba._dynfunc import make_function
from numba.core import caching, errors, types
from numba.core.ccallback import CFunc
from numba.core.codegen import JITCodeLibrary
from numba.core.compiler import Compiler
from numba.core.compiler_machinery import register_pass
from numba.core.serialize import dumps
from numba.core.typed_passes import NativeLowering

from algonet.core.cache import Cache
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
#: Whether the lowerings above were tried with this Numba, whose insides they build on; any other compiles as it always did.
_LEAN = (0, 63) <= numba.version_info.short <= (0, 68)


class KernelCompiler(Compiler):
    """Numba's compiler without what kernels can do without.

    Numba asks every overload of `+` (of lists, strings, dates, ...) at each addition, and once more when it lowers it. It
    words a coloured message at each statement in case that fails, and makes so many objects that collecting garbage among
    all of torch's takes a tenth of the time.
    """

    lowering: type[KernelLowering] = KernelLowering

    def define_pipelines(self) -> list:
        pipelines = super().define_pipelines()
        if not _LEAN:
            return pipelines
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
        with notice.compiling(func.__qualname__), _resolved_once(self.state.flags), _without_colours(), _uncollected():
            return super().compile_extra(func)


class DeviceCompiler(KernelCompiler):
    """The compiler of functions that only kernels call."""

    lowering = DeviceLowering


_resolve = types.Function.get_call_type
#: Signatures by typing context, function and types of arguments; a cache for each set of flags, as overloads inherit these.
_SIGNATURES: Cache[Cache[Any]] = Cache("flags of Numba's compilations", 16)


# Numba's lock of compilation is held by whoever is in one of the following, so nobody else sees the difference.


@contextmanager
def _resolved_once(flags: Any) -> Iterator[None]:
    """Within it, calls of Numba's own functions (operators, indexing) are resolved once per signature and process."""
    signatures = _SIGNATURES.get(flags.copy(), lambda: Cache("signatures that Numba resolved", 4096))

    def resolve_once(function: Any, context: Any, args: tuple, kws: dict) -> Any:
        if kws:
            return _resolve(function, context, args, kws)
        if args and isinstance(args[0], types.Array):
            # The value of an index does not matter to arrays
            args = tuple(types.unliteral(a) for a in args)
        return signatures.get((context, function, args), lambda: _resolve(function, context, args, kws))

    before, types.Function.get_call_type = types.Function.get_call_type, resolve_once
    try:
        yield
    finally:
        types.Function.get_call_type = before


class _Uncoloured:
    """What every style makes of a text: the text."""

    def __getattr__(self, style: str) -> Callable[[str], str]:
        return str


@contextmanager
def _without_colours() -> Iterator[None]:
    before, errors._termcolor_inst = getattr(errors, "_termcolor_inst", None), _Uncoloured()
    try:
        yield
    finally:
        errors._termcolor_inst = before


@contextmanager
def _uncollected() -> Iterator[None]:
    collecting = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collecting:
            gc.enable()


def njit(*, cache: bool = False, **options: Any) -> Callable[[Callable], Any]:
    """`numba.njit` for kernels, which are cached, and (without `cache`) for functions that only kernels call.

    Python must never call the latter, which have neither wrappers for it nor machine code of their own.
    """
    compiler = KernelCompiler if cache else DeviceCompiler
    options = {"no_cfunc_wrapper": True, "no_cpython_wrapper": not cache, "pipeline_class": compiler, **options}

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

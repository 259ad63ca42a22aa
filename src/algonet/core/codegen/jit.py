"""Numba's compiler, whose results are kept where its release allows; else as it comes."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numba

from algonet.core import tracing
from algonet.core.cache import cached
from algonet.core.codegen.store import inlined

#: Releases of Numba whose insides `numba_private` was written for; any other is tried before it is trusted.
_TRIED = (0, 63), (0, 68)


@cached
def private() -> Any:
    """The module that knows Numba's insides; `None`, and one line, where they are others."""
    try:
        from algonet.core.codegen import numba_private

        if not _TRIED[0] <= numba.version_info.short <= _TRIED[1]:
            numba_private.trial()
        return numba_private
    except Exception as error:  # whatever it is, Numba's public interface does without
        name = str(error).splitlines()[0] if str(error) else type(error).__name__
        tracing.say_missing("numba", f"insides as they were ({name})", "kernels are compiled in every process")
        return None


def njit(*, cache: bool = False, **options: Any) -> Callable[[Callable], Any]:
    """`numba.njit` for kernels, which are cached, and (without `cache`) for functions that only kernels call.

    Python must never call the latter, which have neither wrappers for it nor machine code of their own.
    """

    def decorate(function: Callable) -> Any:
        inside = private()
        if inside is None:
            return numba.njit(**options)(function)
        return inside.dispatcher(function, _stamp(function) if cache else None, options)

    return decorate


class CFunc:
    """A C function, compiled when its address is first asked for."""

    def __init__(self, make: Callable[[], Any]):
        self._make, self._made = make, None

    @property
    def address(self) -> int:
        self._made = self._made or self._make()
        return self._made.address


def cfunc(signature: Any, *, cache: bool = False, **options: Any) -> Callable[[Callable], CFunc]:
    """`numba.cfunc`, cached here."""

    def decorate(function: Callable) -> CFunc:
        inside = private()
        if inside is None:
            return CFunc(lambda: numba.cfunc(signature, **options)(function))
        return CFunc(lambda: inside.c_function(function, signature, _stamp(function) if cache else None, options))

    return decorate


def _stamp(function: Callable) -> str:
    """A name for the text of the function's module and of what kernels inline."""
    generated = function.__globals__.get("__algonet_stamp__")
    if generated is not None:
        return generated
    return hashlib.sha256(Path(function.__code__.co_filename).read_bytes() + inlined()).hexdigest()

"""The compiler of kernels: what it leaves out, and what it must not leave behind."""

from __future__ import annotations

import gc

import numba
import numpy as np
import pytest
from numba.core import errors, types

from algonet.core.cache import Cache
from algonet.core.codegen import jit


@jit.njit(error_model="numpy")
def inner(x):
    return x * x + 1.0


@jit.njit(error_model="numpy")
def outer(x):
    return inner(x) * inner(x + 1.0)


def _kernel():
    """Numba's dispatcher of a kernel with two functions below it, not yet compiled; without a cache, which would hide it."""

    def kernel(x, y):
        for i in range(x.shape[0]):
            y[i] = outer(x[i])

    return numba.njit(pipeline_class=jit.KernelCompiler, error_model="numpy")(kernel)


def _check(kernel):
    x, y = np.arange(3.0), np.empty(3)
    kernel(x, y)
    assert y.tolist() == [2.0, 10.0, 50.0]


def test_calls_are_resolved_once(monkeypatch):
    asked = []
    resolve = jit._resolve
    monkeypatch.setattr(jit, "_SIGNATURES", Cache("signatures of a test", 4))
    monkeypatch.setattr(jit, "_resolve", lambda *call: asked.append(call[:3]) or resolve(*call))

    @numba.njit(pipeline_class=jit.KernelCompiler)
    def polynomial(x):
        return ((x[0] * x[1] + x[0]) * x[1] + x[0]) * x[1] + x[0]

    assert polynomial(np.array([2.0, 2.0])) == 30.0
    assert asked
    assert len(asked) == len(set(asked))


@pytest.mark.skipif(not jit._LEAN, reason="this release of Numba compiles as it always did")
def test_functions_of_kernels_have_no_machine_code():
    _check(_kernel())
    for function in (inner, outer):
        (compiled,) = function.overloads.values()
        assert isinstance(compiled.library, jit.DeviceLibrary)
        assert not compiled.library.codegen._engine.is_symbol_defined(compiled.fndesc.llvm_func_name)


def test_an_unknown_release_of_numba_compiles_as_it_always_did(monkeypatch):
    monkeypatch.setattr(jit, "_LEAN", False)
    kernel = _kernel()
    _check(kernel)
    (compiled,) = kernel.overloads.values()
    assert not isinstance(compiled.library, jit.KernelLibrary)


def test_kernels_may_have_closures():
    @numba.njit(pipeline_class=jit.KernelCompiler)
    def shifted(x, by):
        def shift(value):
            return value + by

        return [shift(value) for value in x]

    assert shifted(np.arange(3.0), 1.0) == [1.0, 2.0, 3.0]


def test_a_failed_compilation_leaves_nothing_behind():
    @numba.njit(pipeline_class=jit.KernelCompiler)
    def wrong(x):
        return x.nothing

    colours = errors._termcolor_inst
    with pytest.raises(numba.TypingError):
        wrong(1.0)
    assert types.Function.get_call_type is jit._resolve
    assert errors._termcolor_inst is colours
    assert gc.isenabled()

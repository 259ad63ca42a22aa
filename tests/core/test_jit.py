"""The compiler of kernels: what it leaves out, and what it must not leave behind."""

from __future__ import annotations

import inspect

import numba
import numpy as np

from algonet.core.codegen import jit, numba_private


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

    return numba.njit(pipeline_class=numba_private.KernelCompiler, error_model="numpy")(kernel)


def _check(kernel):
    x, y = np.arange(3.0), np.empty(3)
    kernel(x, y)
    assert y.tolist() == [2.0, 10.0, 50.0]


def test_functions_of_kernels_have_no_machine_code():
    _check(_kernel())
    for function in (inner, outer):
        (compiled,) = function.overloads.values()
        assert isinstance(compiled.library, numba_private.DeviceLibrary)
        assert not compiled.library.codegen._engine.is_symbol_defined(compiled.fndesc.llvm_func_name)


def test_an_unknown_release_of_numba_is_tried(monkeypatch):
    private = inspect.unwrap(jit.private)
    monkeypatch.setattr(jit, "_TRIED", ((0, 1), (0, 2)))
    assert private() is numba_private
    monkeypatch.setattr(numba_private.KernelLowering, "run_pass", lambda self: 1 / 0)
    assert private() is None


def test_kernels_may_have_closures():
    @numba.njit(pipeline_class=numba_private.KernelCompiler)
    def shifted(x, by):
        def shift(value):
            return value + by

        return [shift(value) for value in x]

    assert shifted(np.arange(3.0), 1.0) == [1.0, 2.0, 3.0]

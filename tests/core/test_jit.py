"""The compiler of kernels: functions that only kernels call, and releases of Numba that nobody has tried."""

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


def test_kernels_call_functions_without_wrappers():
    @numba.njit(pipeline_class=numba_private.KernelCompiler, error_model="numpy")
    def kernel(x, y):
        for i in range(x.shape[0]):
            y[i] = outer(x[i])

    x, y = np.arange(3.0), np.empty(3)
    kernel(x, y)
    assert y.tolist() == [2.0, 10.0, 50.0]
    for function in (inner, outer):
        (compiled,) = function.overloads.values()
        assert compiled.library.get_defined_functions()
        assert not [f for f in compiled.library.get_defined_functions() if f.name.startswith("_ZN7cpython")]


def test_an_unknown_release_of_numba_is_tried(monkeypatch):
    private = inspect.unwrap(jit.private)
    monkeypatch.setattr(jit, "_TRIED", ((0, 1), (0, 2)))
    assert private() is numba_private
    monkeypatch.setattr(numba_private.KernelCompiler, "compile_extra", lambda self, function: 1 / 0)
    assert private() is None

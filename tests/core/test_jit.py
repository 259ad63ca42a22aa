"""The compiler of kernels: what it leaves out, and what it must not leave behind."""

from __future__ import annotations

import numba
import pytest
from numba.core.registry import cpu_target

from algonet.core.codegen.jit import KernelCompiler


def test_operators_are_looked_up_once_and_the_compiler_is_left_as_it_was(monkeypatch):
    context = cpu_target.typing_context
    asked = []
    found = type(context)._resolve_user_function_type
    monkeypatch.setattr(
        type(context),
        "_resolve_user_function_type",
        lambda self, func, *rest: asked.append((func, rest[0])) or found(self, func, *rest),
    )

    @numba.njit(pipeline_class=KernelCompiler)
    def polynomial(x):
        return ((x * x + x) * x + x) * x + x

    assert polynomial(2.0) == 30.0
    on_numbers = [call for call in asked if all(isinstance(kind, numba.types.Number) for kind in call[1])]
    assert on_numbers
    assert len(on_numbers) == len(set(on_numbers))
    assert "_resolve_user_function_type" not in vars(context)


def test_a_failed_compilation_leaves_nothing_behind():
    @numba.njit(pipeline_class=KernelCompiler)
    def wrong(x):
        return x.nothing

    with pytest.raises(numba.TypingError):
        wrong(1.0)
    assert "_resolve_user_function_type" not in vars(cpu_target.typing_context)

"""Triton stands in the contract like Numba: each domain's cases run on its kernels too, in the interpreter."""

from __future__ import annotations

import pytest

from helpers.interpreted import interpret

#: Where each domain keeps its cases.
FILES = (
    "sorting.test_contract",
    "ifs.test_contract",
    "render.test_contract",
    "while_lang.test_smooth",
    "smooth_python.test_algorithms",
)


@pytest.mark.parametrize("module", FILES)
def test_triton_contract(module):
    lines = interpret(module)
    assert [line for line in lines if line.endswith(" | equal")], "no case ran on Triton"

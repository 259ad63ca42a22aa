"""Triton stands in the contract like Numba: each domain's cases run on its kernels too, in the interpreter."""

from __future__ import annotations

from helpers.interpreted import interpret

#: Where each domain keeps its cases.
FILES = (
    "sorting.test_contract",
    "ifs.test_contract",
    "render.test_contract",
    "while_lang.test_smooth",
    "smooth_python.test_algorithms",
)
#: Options that the contract does not turn.
FUNCTIONS = ("ifs.test_triton:check_kernels",)


def test_triton_contract():
    """In one test: to start the interpreter and the compiler takes as long as many a domain's cases."""
    lines = interpret(*FILES, *FUNCTIONS)
    for module in FILES:
        equal = [line for line in lines if line.startswith(f"{module}: ") and line.endswith(" | equal")]
        assert equal, f"no case of {module} ran on Triton"

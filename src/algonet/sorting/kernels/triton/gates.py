"""The sigmoid as Triton kernels inline it: `gate` (value and slope) and `chance` (the value alone)."""

from __future__ import annotations

from algonet.core.codegen.generate import PRELUDES, scalar_function
from algonet.relax import Logistic, Sigmoid

from ..symmetry import is_symmetric

#: The logistic by the processor's own exponential and reciprocal; an exponential that overflows has the reciprocal 0.
_LOGISTIC = """@triton.jit
def gate(z):
    e = quick_exp(-tl.abs(z))
    part = reciprocal(1.0 + e)
    return tl.where(z >= 0, 1.0, e) * part, e * part * part


@triton.jit
def chance(z):
    return reciprocal(1.0 + quick_exp(-z))
"""
_CHANCE = """@triton.jit
def chance(z):
    value, slope = gate(z)
    return value
"""


def prelude(sigmoid: Sigmoid) -> str:
    """What stands before a template: imports, `gate` and `chance` of this sigmoid."""
    names = PRELUDES["triton"] + "from algonet.core.codegen.triton_math import quick_exp, reciprocal\n\n"
    names += f"#: Whether r(-z) = 1 - r(z).\nSYMMETRIC = tl.constexpr({is_symmetric(sigmoid)})\n"
    if type(sigmoid) is Logistic:
        return "\n\n".join([names, _LOGISTIC])
    return "\n\n".join([names, scalar_function(sigmoid, "gate", "triton"), _CHANCE])

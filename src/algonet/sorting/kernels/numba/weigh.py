"""The one step of sorting that knows the sigmoid, as a C function that kernels call by its address."""

from __future__ import annotations

from llvmlite import ir
from numba import types  # pyright: ignore[reportAttributeAccessIssue]
from numba.extending import intrinsic

#: Template of the module for one sigmoid: its `gate` stands before it. An infinite difference is a crisp decision.
SOURCE = """
OPTIONS = {"fastmath": {"contract"}, "error_model": "numpy", "nogil": True}
INF = REAL(np.inf)


@njit(**OPTIONS)
def weigh_all(d, alpha, slope, steepness):
    for j in range(len(d)):
        x = d[j]
        crisp = np.abs(x) == INF
        z = steepness * x
        far = np.abs(z) > REAL(1e18)
        z = where(far, where(z > REAL(0.0), REAL(1e18), REAL(-1e18)), z)
        value, rise = gate(z)
        value = where(z == z, value, z)
        # By the sign of the steepness, which is negative for a descending sort; 0 times infinity would be NaN
        in_order = (x > REAL(0.0)) == (steepness >= REAL(0.0))
        alpha[j] = where(crisp, where(in_order, REAL(1.0), REAL(0.0)), value)
        slope[j] = where(crisp | far, REAL(0.0), rise)
        d[j] = where(crisp, REAL(0.0), x)


@cfunc(types.void(POINTER, POINTER, POINTER, types.intp, REAL), cache=True)
def weigh(d, alpha, slope, count, steepness):
    weigh_all(carray(d, count), carray(alpha, count), carray(slope, count), steepness)
"""


@intrinsic
def call_at(typing_context, address, d, alpha, slope, count, steepness):
    """Call `weigh` at an address; d, alpha and slope are addresses too."""

    def generate(context, builder, signature, arguments):
        word = arguments[0].type
        kinds = [word, word, word, word, arguments[5].type]
        function = builder.inttoptr(arguments[0], ir.FunctionType(ir.VoidType(), kinds).as_pointer())
        builder.call(function, arguments[1:])
        return context.get_dummy_value()

    return types.void(types.intp, types.uintp, types.uintp, types.uintp, types.intp, steepness), generate


__all__ = ["SOURCE", "call_at"]

"""The one step of sorting that knows the sigmoid, as a C function that kernels call by its address."""

from __future__ import annotations

#: Template of the module for one sigmoid: its `gate` stands before it. An infinite difference is a crisp decision.
SOURCE = """
OPTIONS = {"fastmath": {"contract"}, "error_model": "numpy"}
INF = REAL(np.inf)


@cfunc(types.void(POINTER, POINTER, POINTER, types.intp, REAL), cache=True, **OPTIONS)
def weigh(d, alpha, slope, count, steepness):
    for j in range(count):
        x = d[j]
        crisp = abs(x) == INF
        z = steepness * x
        far = abs(z) > REAL(1e18)
        z = where(far, where(z > REAL(0.0), REAL(1e18), REAL(-1e18)), z)
        value, rise = gate(z)
        value = where(z == z, value, z)
        # By the sign of the steepness, which is negative for a descending sort; 0 times infinity would be NaN
        in_order = (x > REAL(0.0)) == (steepness >= REAL(0.0))
        alpha[j] = where(crisp, where(in_order, REAL(1.0), REAL(0.0)), value)
        slope[j] = where(crisp | far, REAL(0.0), rise)
        d[j] = where(crisp, REAL(0.0), x)
"""

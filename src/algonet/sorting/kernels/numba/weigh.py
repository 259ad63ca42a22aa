"""The one step of sorting that knows the sigmoid, as a C function that kernels call by its address."""

from __future__ import annotations

#: Template of the module for one sigmoid: its `gate` stands before it. An infinite difference is a crisp decision.
SOURCE = """
OPTIONS = {"fastmath": {"contract"}, "error_model": "numpy"}
INF = REAL(np.inf)


@cfunc(types.void(POINTER, POINTER, POINTER, types.intp, REAL), cache=True, **OPTIONS)
def weigh(d, alpha, slope, count, steepness):
    # By the sign of the steepness, which is negative for a descending sort; 0 times infinity would be NaN
    larger = where(steepness >= REAL(0.0), REAL(1.0), REAL(0.0))
    smaller = REAL(1.0) - larger
    for j in range(count):
        x = d[j]
        crisp = abs(x) == INF
        z = steepness * x
        far = abs(z) > REAL(1e18)
        z = where(far, where(z > REAL(0.0), REAL(1e18), REAL(-1e18)), z)
        value, rise = gate(z)
        value = where(z == z, value, z)
        alpha[j] = where(crisp, where(x > REAL(0.0), larger, smaller), value)
        slope[j] = where(crisp | far, REAL(0.0), rise)
        d[j] = where(crisp, REAL(0.0), x)
"""

"""The chaos game on the CPU: blocks of chains, stepped side by side; the backward pass walks the stored states back.

A template: what follows the marker is loaded once with `real` = float32 and once with float64.
"""

from __future__ import annotations

import numpy as np
from numba import float32 as real

from algonet.core.codegen.jit import njit
from algonet.ifs.reference import FAR_GRADIENT, FAR_PARAMETER, FAR_STATE

# --- template ---
_OPTIONS = {"fastmath": {"contract"}, "error_model": "numpy", "nogil": True}
one, zero = real(1.0), real(0.0)
#: States, parameters and adjoints of a divergent system are clamped here.
far, most, steepest = real(FAR_STATE), real(FAR_PARAMETER), real(FAR_GRADIENT)


@njit(**_OPTIONS)
def bounded(x, limit):
    return -limit if x < -limit else (limit if x > limit else x)


@njit(**_OPTIONS)
def table_of(parameters):
    """Rows (offset, linear part) of the maps, clamped: the residual form with the identity added."""
    table = np.empty_like(parameters)
    for n in range(parameters.shape[0]):
        for k in range(6):
            table[n, k] = bounded(parameters[n, k], most)
        table[n, 1] += one
        table[n, 5] += one
    return table


@njit(**_OPTIONS, cache=True)
def forward(parameters, choices, start, first, last, burn_in, states, points):
    """Run chains first to last: states (steps + 1, chains, 2), and points (chains, steps - burn_in, 2)."""
    table, steps = table_of(parameters), choices.shape[1]
    for c in range(first, last):
        for d in range(2):
            states[0, c, d] = bounded(start[c, d], far)
    for s in range(steps):
        for c in range(first, last):
            f = choices[c, s]
            x, y = states[s, c, 0], states[s, c, 1]
            new_x = bounded(table[f, 0] + table[f, 1] * x + table[f, 2] * y, far)
            new_y = bounded(table[f, 3] + table[f, 4] * x + table[f, 5] * y, far)
            states[s + 1, c, 0] = new_x
            states[s + 1, c, 1] = new_y
            if s >= burn_in:
                points[c, s - burn_in, 0] = new_x
                points[c, s - burn_in, 1] = new_y


@njit(**_OPTIONS, cache=True)
def backward(grads, parameters, choices, start, first, last, burn_in, horizon, states, grad_parameters, grad_start):
    """Walk chains first to last backwards; adds to grad_parameters (n, 6), sets grad_start (chains, 2)."""
    table, steps = table_of(parameters), choices.shape[1]
    gx = np.zeros(last - first, parameters.dtype)
    gy = np.zeros(last - first, parameters.dtype)
    for s in range(steps - 1, -1, -1):
        cut = horizon > 0 and s > 0 and s % horizon == 0
        for c in range(first, last):
            f, k = choices[c, s], c - first
            x, y = states[s, c, 0], states[s, c, 1]
            px, py = gx[k], gy[k]
            if s >= burn_in:
                px += grads[c, s - burn_in, 0]
                py += grads[c, s - burn_in, 1]
            px = zero if abs(states[s + 1, c, 0]) >= far else bounded(px, steepest)
            py = zero if abs(states[s + 1, c, 1]) >= far else bounded(py, steepest)
            grad_parameters[f, 0] += px
            grad_parameters[f, 1] += px * x
            grad_parameters[f, 2] += px * y
            grad_parameters[f, 3] += py
            grad_parameters[f, 4] += py * x
            grad_parameters[f, 5] += py * y
            gx[k] = zero if cut else table[f, 1] * px + table[f, 4] * py
            gy[k] = zero if cut else table[f, 2] * px + table[f, 5] * py
    for c in range(first, last):
        inside_x, inside_y = abs(start[c, 0]) <= far, abs(start[c, 1]) <= far
        grad_start[c, 0] = bounded(gx[c - first], steepest) if inside_x else zero
        grad_start[c, 1] = bounded(gy[c - first], steepest) if inside_y else zero

"""Triton: vectors as tuples of three numbers, or of three blocks of numbers."""

# pyright: reportAttributeAccessIssue=false
from __future__ import annotations

import triton
import triton.language as tl

from ...shading import GUARD

GUARD2 = tl.constexpr(GUARD**2)


@triton.jit
def dot(a, b):
    return a[0] * b[0] + a[1] * b[1] + a[2] * b[2]


@triton.jit
def plus(a, b):
    return a[0] + b[0], a[1] + b[1], a[2] + b[2]


@triton.jit
def minus(a, b):
    return a[0] - b[0], a[1] - b[1], a[2] - b[2]


@triton.jit
def times(a, s):
    return a[0] * s, a[1] * s, a[2] * s


@triton.jit
def each_times(a, b):
    return a[0] * b[0], a[1] * b[1], a[2] * b[2]


@triton.jit
def plus_times(a, b, s):
    return a[0] + b[0] * s, a[1] + b[1] * s, a[2] + b[2] * s


@triton.jit
def cross(a, b):
    return a[1] * b[2] - a[2] * b[1], a[2] * b[0] - a[0] * b[2], a[0] * b[1] - a[1] * b[0]


@triton.jit
def normalised(v):
    """v / sqrt(|v|^2 + GUARD^2), and what v was multiplied by."""
    scale = 1.0 / tl.sqrt(dot(v, v) + GUARD2)
    return times(v, scale), scale


@triton.jit
def normalised_back(direction, scale, grad):
    """The gradient by v from the one by its direction."""
    return times(plus_times(grad, direction, -dot(direction, grad)), scale)


@triton.jit
def load_three(place):
    return tl.load(place), tl.load(place + 1), tl.load(place + 2)


@triton.jit
def load_vector(place, i, live):
    x, y = tl.load(place + i * 3, mask=live, other=0.0), tl.load(place + i * 3 + 1, mask=live, other=0.0)
    return x, y, tl.load(place + i * 3 + 2, mask=live, other=0.0)


@triton.jit
def store_vector(place, i, v, live):
    for k in tl.static_range(3):
        tl.store(place + i * 3 + k, v[k], mask=live)


@triton.jit
def store_sums(place, v):
    """The sums of a vector's blocks."""
    for k in tl.static_range(3):
        tl.store(place + k, tl.sum(v[k]))


@triton.jit
def add_vector(target, vertex, v, live, WIDTH: tl.constexpr):
    for k in tl.static_range(3):
        tl.atomic_add(target + vertex * WIDTH + k, v[k], mask=live, sem="relaxed")

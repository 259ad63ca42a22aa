"""Triton: vectors and lights in memory.

A light is eight numbers: the way it shines (directional) or its place (point), its colour, and one over the square of the
radius at which it has fallen to half. What kind each is, is known when the kernel is compiled: a digit of KINDS to base 4.
"""

# pyright: reportAttributeAccessIssue=false
from __future__ import annotations

import triton
import triton.language as tl

from ... import shading

LIGHT = tl.constexpr(shading.LIGHT)


@triton.constexpr_function
def kind_of(kinds, i):
    return kinds // 4**i % 4


@triton.jit
def light_vector(lights, i):
    return load_three(lights + i * LIGHT)


@triton.jit
def light_color(lights, i):
    return load_three(lights + i * LIGHT + 3)


@triton.jit
def light_falloff(lights, i):
    return tl.load(lights + i * LIGHT + 6)


@triton.jit
def store_light(by_lights, i, by_vector, by_color):
    store_sums(by_lights + i * LIGHT, by_vector)
    store_sums(by_lights + i * LIGHT + 3, by_color)
    tl.store(by_lights + i * LIGHT + 6, 0.0)
    tl.store(by_lights + i * LIGHT + 7, 0.0)


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

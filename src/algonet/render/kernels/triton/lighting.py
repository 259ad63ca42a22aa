"""Triton: light on surface points, forward and backward. `render/README.md` has the formulas, `shading.py` the reference.

A light is eight numbers: the way it shines (directional) or its place (point), its colour, and one over the square of the
radius at which it has fallen to half. What kind each is, is known when the kernel is compiled: a digit of KINDS to base 3.
"""

# pyright: reportAttributeAccessIssue=false, reportOperatorIssue=false
from __future__ import annotations

import triton
import triton.language as tl

from ... import shading
from .vectors import dot, each_times, load_three, minus, normalised, normalised_back, plus, plus_times, times

AMBIENT, DIRECTIONAL, LIGHT = (tl.constexpr(n) for n in (shading.AMBIENT, shading.DIRECTIONAL, shading.LIGHT))
ROUNDING2 = tl.constexpr(shading.ROUNDING**2)
INVERSE_TOP = tl.constexpr(1 / shading.TOP)
TURN2, NOWHERE2 = tl.constexpr(shading.TURN**2), tl.constexpr(shading.NOWHERE**2)


@triton.jit
def positive(x):
    """max(0, x) with a rounded corner, and its slope."""
    root = tl.sqrt(x * x + ROUNDING2)
    # For x < 0 the sum would cancel
    value = tl.where(x > 0, 0.5 * (x + root), 0.5 * ROUNDING2 / (root - tl.minimum(x, 0.0)))
    return value, value / root


@triton.jit
def arriving(light, p, KIND: tl.constexpr):
    """The direction to a light, what its vector was divided by, that vector, and how much of it arrives."""
    own, share = load_three(light), p[0] * 0.0 + 1.0
    if KIND == DIRECTIONAL:
        way = minus(times(p, 0.0), own)
    else:
        way = minus(own, p)
        share = 1.0 / (1.0 + dot(way, way) * tl.load(light + 6))
    direction, scale = normalised(way)
    return direction, scale, way, share


@triton.jit
def turned(n, way):
    """cosine / sqrt(cosine^2 + TURN^2) of a normal and the way to the eye: the factor that turns it there; and its parts."""
    side = dot(n, way)
    scale = 1.0 / tl.sqrt(side * side + TURN2 * dot(way, way) + NOWHERE2)
    return side * scale, side, scale


@triton.jit
def gloss_of(cosine, shininess, strength):
    return strength * tl.exp2(shininess * tl.log2(tl.minimum(cosine * INVERSE_TOP, 1.0)))


@triton.jit
def lit(
    n, p, eye, albedo, lights, shininess, strength,
    LIGHTS: tl.constexpr, KINDS: tl.constexpr, TWO_SIDED: tl.constexpr, GLOSSY: tl.constexpr,
):  # fmt: skip
    """The colour of surface points with mean normals n at p, seen from the eye, of some albedo."""
    n, _scale = normalised(n)
    way = minus(eye, p)
    if TWO_SIDED:
        turn, _side, _by = turned(n, way)
        n = times(n, turn)
    view, _scale = normalised(way)
    matt, shine = times(p, 0.0), times(p, 0.0)
    for i in tl.static_range(LIGHTS):
        light = lights + i * LIGHT
        color = load_three(light + 3)
        if (KINDS // 3**i) % 3 == AMBIENT:
            matt = plus(matt, color)
        else:
            direction, _s, _way, share = arriving(light, p, (KINDS // 3**i) % 3)
            steep, _slope = positive(dot(n, direction))
            matt = plus_times(matt, color, steep * share)
            if GLOSSY:
                half, _s = normalised(plus(direction, view))
                cosine, _slope = positive(dot(n, half))
                shine = plus_times(shine, color, share * gloss_of(cosine, shininess, strength))
    return plus(each_times(albedo, matt), shine)


@triton.jit
def lit_back(
    n, p, eye, albedo, grad, lights, shininess, strength, by_lights,
    LIGHTS: tl.constexpr, KINDS: tl.constexpr, TWO_SIDED: tl.constexpr, GLOSSY: tl.constexpr, SUMS: tl.constexpr,
):  # fmt: skip
    """Gradients by normal, position, eye and albedo, from the gradient by the colour.

    SUMS: those by the lights, summed over the points, are stored in `by_lights`.
    """
    given, n_scale = normalised(n)
    n, way = given, minus(eye, p)
    if TWO_SIDED:
        turn, side, turn_scale = turned(n, way)
        n = times(n, turn)
    view, view_scale = normalised(way)
    none = times(p, 0.0)
    matt, by_n, by_p, by_view = none, none, none, none
    by_matt = each_times(grad, albedo)
    for i in tl.static_range(LIGHTS):
        light = lights + i * LIGHT
        target, color = by_lights + i * LIGHT, load_three(light + 3)
        by_way, by_color = none, by_matt
        if (KINDS // 3**i) % 3 == AMBIENT:
            matt = plus(matt, color)
        else:
            direction, scale, to_light, share = arriving(light, p, (KINDS // 3**i) % 3)
            steep, slope = positive(dot(n, direction))
            matt = plus_times(matt, color, steep * share)
            # What the light's diffuse and glossy parts are worth to the colour
            worth = dot(by_matt, color)
            by_share, by_cosine = worth * steep, worth * share * slope
            by_n, by_direction = plus_times(by_n, direction, by_cosine), times(n, by_cosine)
            by_color = times(by_matt, share * steep)
            if GLOSSY:
                half, half_scale = normalised(plus(direction, view))
                cosine, slope = positive(dot(n, half))
                gloss, worth = gloss_of(cosine, shininess, strength), dot(grad, color)
                by_share += worth * gloss
                by_cosine = worth * share * shininess * gloss / cosine * slope
                by_n = plus_times(by_n, half, by_cosine)
                by_half = normalised_back(half, half_scale, times(n, by_cosine))
                by_direction, by_view = plus(by_direction, by_half), plus(by_view, by_half)
                by_color = plus_times(by_color, grad, share * gloss)
            by_way = normalised_back(direction, scale, by_direction)
            if (KINDS // 3**i) % 3 == DIRECTIONAL:
                by_way = times(by_way, -1.0)
            else:
                by_way = plus_times(by_way, to_light, -2.0 * share * share * tl.load(light + 6) * by_share)
                by_p = minus(by_p, by_way)
        if SUMS:
            for k in tl.static_range(3):
                tl.store(target + k, tl.sum(by_way[k]))
                tl.store(target + 3 + k, tl.sum(by_color[k]))
            tl.store(target + 6, 0.0)
            tl.store(target + 7, 0.0)
    by_eye = normalised_back(view, view_scale, by_view)
    if TWO_SIDED:
        by_turn = dot(by_n, given)
        by_side = by_turn * turn_scale * (1.0 - turn * turn)
        by_square = -by_turn * side * turn_scale * turn_scale * turn_scale * TURN2
        by_n = plus_times(times(by_n, turn), way, by_side)
        by_eye = plus_times(plus_times(by_eye, given, by_side), way, by_square)
    return normalised_back(given, n_scale, by_n), minus(by_p, by_eye), by_eye, each_times(grad, matt)

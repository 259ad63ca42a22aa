"""Triton: light on surface points, forward and backward. `render/README.md` has the formulas, `shading.py` the reference.

A light is eight numbers: the way it shines (directional) or its place (point), its colour, and one over the square of the
radius at which it has fallen to half. What kind each is, is known when the kernel is compiled: a digit of KINDS to base 3.
"""

# pyright: reportAttributeAccessIssue=false, reportOperatorIssue=false
from __future__ import annotations

import triton
import triton.language as tl

from ... import shading

AMBIENT, DIRECTIONAL, LIGHT = (tl.constexpr(n) for n in (shading.AMBIENT, shading.DIRECTIONAL, shading.LIGHT))
ROUNDING2 = tl.constexpr(shading.ROUNDING**2)
GUARD2 = tl.constexpr(shading.GUARD**2)
TURN2, NOWHERE2 = tl.constexpr(shading.TURN**2), tl.constexpr(shading.NOWHERE**2)


@triton.jit
def dot(ax, ay, az, bx, by, bz):
    return ax * bx + ay * by + az * bz


@triton.jit
def normalised(x, y, z):
    """v / sqrt(|v|^2 + GUARD^2), and what v was multiplied by."""
    scale = 1.0 / tl.sqrt(x * x + y * y + z * z + GUARD2)
    return x * scale, y * scale, z * scale, scale


@triton.jit
def normalised_back(x, y, z, scale, gx, gy, gz):
    """The gradient by v from the one by its direction (x, y, z)."""
    along = dot(x, y, z, gx, gy, gz)
    return scale * (gx - x * along), scale * (gy - y * along), scale * (gz - z * along)


@triton.jit
def positive(x):
    """max(0, x) with a rounded corner, and its slope."""
    root = tl.sqrt(x * x + ROUNDING2)
    # For x < 0 the sum would cancel
    value = tl.where(x > 0, 0.5 * (x + root), 0.5 * ROUNDING2 / (root - tl.minimum(x, 0.0)))
    return value, value / root


@triton.jit
def arriving(light, px, py, pz, KIND: tl.constexpr):
    """The direction to a light, what its vector was divided by, that vector, and how much of it arrives."""
    vx, vy, vz = tl.load(light), tl.load(light + 1), tl.load(light + 2)
    if KIND == DIRECTIONAL:
        wx, wy, wz = px * 0.0 - vx, py * 0.0 - vy, pz * 0.0 - vz
        share = px * 0.0 + 1.0
    else:
        wx, wy, wz = vx - px, vy - py, vz - pz
        share = 1.0 / (1.0 + (wx * wx + wy * wy + wz * wz) * tl.load(light + 6))
    lx, ly, lz, scale = normalised(wx, wy, wz)
    return lx, ly, lz, scale, wx, wy, wz, share


@triton.jit
def turned(nx, ny, nz, wx, wy, wz):
    """cosine / sqrt(cosine^2 + TURN^2) of a normal and the way to the eye: the factor that turns it there; and its parts."""
    side = dot(nx, ny, nz, wx, wy, wz)
    scale = 1.0 / tl.sqrt(side * side + TURN2 * dot(wx, wy, wz, wx, wy, wz) + NOWHERE2)
    return side * scale, side, scale


@triton.jit
def lit(
    nx, ny, nz, px, py, pz, ex, ey, ez, r, g, b, lights, shininess, strength,
    LIGHTS: tl.constexpr, KINDS: tl.constexpr, TWO_SIDED: tl.constexpr, GLOSSY: tl.constexpr,
):  # fmt: skip
    """The colour of surface points with mean normals n at p, seen from e, of albedo (r, g, b)."""
    nx, ny, nz, _scale = normalised(nx, ny, nz)
    wx, wy, wz = ex - px, ey - py, ez - pz
    if TWO_SIDED:
        turn, _side, _by = turned(nx, ny, nz, wx, wy, wz)
        nx, ny, nz = nx * turn, ny * turn, nz * turn
    vx, vy, vz, _scale = normalised(wx, wy, wz)
    dr, dg, db = px * 0.0, px * 0.0, px * 0.0
    sr, sg, sb = dr, dg, db
    for i in tl.static_range(LIGHTS):
        light = lights + i * LIGHT
        cr, cg, cb = tl.load(light + 3), tl.load(light + 4), tl.load(light + 5)
        if (KINDS // 3**i) % 3 == AMBIENT:
            dr, dg, db = dr + cr, dg + cg, db + cb
        else:
            lx, ly, lz, _s, _x, _y, _z, share = arriving(light, px, py, pz, (KINDS // 3**i) % 3)
            steep, _slope = positive(dot(nx, ny, nz, lx, ly, lz))
            steep = steep * share
            dr, dg, db = dr + cr * steep, dg + cg * steep, db + cb * steep
            if GLOSSY:
                hx, hy, hz, _s = normalised(lx + vx, ly + vy, lz + vz)
                gloss, _slope = positive(dot(nx, ny, nz, hx, hy, hz))
                gloss = share * strength * tl.exp2(shininess * tl.log2(gloss))
                sr, sg, sb = sr + cr * gloss, sg + cg * gloss, sb + cb * gloss
    return r * dr + sr, g * dg + sg, b * db + sb


@triton.jit
def lit_back(
    nx, ny, nz, px, py, pz, ex, ey, ez, r, g, b, gr, gg, gb, lights, shininess, strength, by_lights,
    LIGHTS: tl.constexpr, KINDS: tl.constexpr, TWO_SIDED: tl.constexpr, GLOSSY: tl.constexpr, SUMS: tl.constexpr,
):  # fmt: skip
    """Gradients by normal, position, eye and albedo, from the gradient (gr, gg, gb) by the colour.

    SUMS: those by the lights, summed over the points, are stored in `by_lights`.
    """
    n0x, n0y, n0z, n_scale = normalised(nx, ny, nz)
    nx, ny, nz = n0x, n0y, n0z
    wx, wy, wz = ex - px, ey - py, ez - pz
    if TWO_SIDED:
        turn, side, turn_scale = turned(nx, ny, nz, wx, wy, wz)
        nx, ny, nz = nx * turn, ny * turn, nz * turn
    vx, vy, vz, v_scale = normalised(wx, wy, wz)
    zero = px * 0.0
    ar, ag, ab = zero, zero, zero
    bnx, bny, bnz, bpx, bpy, bpz, bvx, bvy, bvz = zero, zero, zero, zero, zero, zero, zero, zero, zero
    for i in tl.static_range(LIGHTS):
        light = lights + i * LIGHT
        cr, cg, cb = tl.load(light + 3), tl.load(light + 4), tl.load(light + 5)
        if (KINDS // 3**i) % 3 == AMBIENT:
            ar, ag, ab = ar + cr, ag + cg, ab + cb
            if SUMS:
                tl.store(by_lights + i * LIGHT + 3, tl.sum(gr * r))
                tl.store(by_lights + i * LIGHT + 4, tl.sum(gg * g))
                tl.store(by_lights + i * LIGHT + 5, tl.sum(gb * b))
        else:
            lx, ly, lz, l_scale, qx, qy, qz, share = arriving(light, px, py, pz, (KINDS // 3**i) % 3)
            steep, slope = positive(dot(nx, ny, nz, lx, ly, lz))
            ar, ag, ab = ar + cr * steep * share, ag + cg * steep * share, ab + cb * steep * share
            # What the light's diffuse and glossy parts are worth to the colour
            matt = gr * r * cr + gg * g * cg + gb * b * cb
            by_share = matt * steep
            by_cosine = matt * share * slope
            bnx, bny, bnz = bnx + by_cosine * lx, bny + by_cosine * ly, bnz + by_cosine * lz
            blx, bly, blz = by_cosine * nx, by_cosine * ny, by_cosine * nz
            gloss = zero
            if GLOSSY:
                hx, hy, hz, h_scale = normalised(lx + vx, ly + vy, lz + vz)
                base, slope = positive(dot(nx, ny, nz, hx, hy, hz))
                gloss = strength * tl.exp2(shininess * tl.log2(base))
                shine = gr * cr + gg * cg + gb * cb
                by_share += shine * gloss
                by_cosine = shine * share * shininess * gloss / base * slope
                bnx, bny, bnz = bnx + by_cosine * hx, bny + by_cosine * hy, bnz + by_cosine * hz
                bhx, bhy, bhz = normalised_back(hx, hy, hz, h_scale, by_cosine * nx, by_cosine * ny, by_cosine * nz)
                blx, bly, blz = blx + bhx, bly + bhy, blz + bhz
                bvx, bvy, bvz = bvx + bhx, bvy + bhy, bvz + bhz
            bqx, bqy, bqz = normalised_back(lx, ly, lz, l_scale, blx, bly, blz)
            if (KINDS // 3**i) % 3 != DIRECTIONAL:
                fall = -2.0 * share * share * tl.load(light + 6) * by_share
                bqx, bqy, bqz = bqx + fall * qx, bqy + fall * qy, bqz + fall * qz
                bpx, bpy, bpz = bpx - bqx, bpy - bqy, bpz - bqz
            if SUMS:
                sign = -1.0 if (KINDS // 3**i) % 3 == DIRECTIONAL else 1.0
                tl.store(by_lights + i * LIGHT, tl.sum(bqx) * sign)
                tl.store(by_lights + i * LIGHT + 1, tl.sum(bqy) * sign)
                tl.store(by_lights + i * LIGHT + 2, tl.sum(bqz) * sign)
                tl.store(by_lights + i * LIGHT + 3, tl.sum(gr * share * (r * steep + gloss)))
                tl.store(by_lights + i * LIGHT + 4, tl.sum(gg * share * (g * steep + gloss)))
                tl.store(by_lights + i * LIGHT + 5, tl.sum(gb * share * (b * steep + gloss)))
        if SUMS:
            if (KINDS // 3**i) % 3 == AMBIENT:
                for k in tl.static_range(3):
                    tl.store(by_lights + i * LIGHT + k, 0.0)
            tl.store(by_lights + i * LIGHT + 6, 0.0)
            tl.store(by_lights + i * LIGHT + 7, 0.0)
    bwx, bwy, bwz = normalised_back(vx, vy, vz, v_scale, bvx, bvy, bvz)
    if TWO_SIDED:
        by_turn = dot(bnx, bny, bnz, n0x, n0y, n0z)
        by_side = by_turn * turn_scale * (1.0 - turn * turn)
        by_square = -by_turn * side * turn_scale * turn_scale * turn_scale * TURN2
        bnx, bny, bnz = bnx * turn + by_side * wx, bny * turn + by_side * wy, bnz * turn + by_side * wz
        bwx, bwy, bwz = (
            bwx + by_side * n0x + by_square * wx,
            bwy + by_side * n0y + by_square * wy,
            bwz + by_side * n0z + by_square * wz,
        )
    bnx, bny, bnz = normalised_back(n0x, n0y, n0z, n_scale, bnx, bny, bnz)
    # With g r dr: the gradient by albedo
    return (
        bnx, bny, bnz, bpx - bwx, bpy - bwy, bpz - bwz, bwx, bwy, bwz, gr * ar, gg * ag, gb * ab
    )  # fmt: skip

"""Triton: from what a face's pixels pull on it, as sums, to gradients by its points, attributes and softness.

All three corners at once: a lane takes corner i of the face, whose next and previous corners are i + 1 and i + 2 modulo 3.
Edge i starts at corner i; the edge opposite to corner i runs from its next corner to its previous one.
"""

# pyright: reportAttributeAccessIssue=false
from __future__ import annotations

import triton
import triton.language as tl

from .formulas import CORNERS, DIRECTIONS, FAR, FLAT, FLIP, GUARD, LENGTHS, LIMIT, PI, TURN
from .setup import horizon, project_corner
from .surface import normal_at


@triton.jit
def of_corner(i, a, b, c):
    """a, b or c for corner 0, 1 or 2."""
    return tl.where(i == 0, a, tl.where(i == 1, b, c))


@triton.jit
def at_corner(lane, values, corner: tl.constexpr):
    """The value of one corner, for all."""
    return tl.sum(tl.where(lane == corner, values, 0.0), axis=0)


@triton.jit
def corner_pull(gx, gy, gz, gw, gp, x, y, z, inverse, slope, near, PERSPECTIVE: tl.constexpr):
    """From gradients by screen position, depth, 1/w and presence to those by the point and the near distance."""
    by_step = gp * slope / near
    by_near = -by_step * z / near
    by_z = gz + by_step
    px = tl.where(tl.abs(x) < FAR, gx * inverse, 0.0)
    py = tl.where(tl.abs(y) < FAR, gy * inverse, 0.0)
    if PERSPECTIVE:
        by_w = -(px * x + py * y) - gw * inverse * inverse
        in_front = z > 0.5 * near
        by_z += tl.where(in_front, by_w, 0.0)
        by_near += tl.where(in_front, 0.0, 0.5 * by_w)
    return px, py, by_z, by_near


@triton.jit
def world_pull(points, matrix, index, live, x, y, z, WORLD: tl.constexpr):
    """A gradient by what the matrix sees of a point as one by the point."""
    if WORLD:
        gx = tl.load(matrix) * x + tl.load(matrix + 4) * y + tl.load(matrix + 8) * z
        gy = tl.load(matrix + 1) * x + tl.load(matrix + 5) * y + tl.load(matrix + 9) * z
        gz = tl.load(matrix + 2) * x + tl.load(matrix + 6) * y + tl.load(matrix + 10) * z
        x = tl.where(tl.abs(tl.load(points + index * 3, mask=live, other=0.0)) <= LIMIT, gx, 0.0)
        y = tl.where(tl.abs(tl.load(points + index * 3 + 1, mask=live, other=0.0)) <= LIMIT, gy, 0.0)
        z = tl.where(tl.abs(tl.load(points + index * 3 + 2, mask=live, other=0.0)) <= LIMIT, gz, 0.0)
    return x, y, z


@triton.jit
def add(place, value, live, KEEP: tl.constexpr):
    if KEEP:
        tl.store(place, value, mask=live)
    else:
        tl.atomic_add(place, value, mask=live, sem="relaxed")


@triton.jit
def hand_down(
    record, points, matrix, attributes, normals, face, attribute_face, by_points, by_attributes, by_normals, near, spacing,
    margin, channels,
    along, ends, by_factor, by_turn, by_gx, by_gy, d, z_sums, planes,
    CHANNELS: tl.constexpr, NORMALS: tl.constexpr, AREAS: tl.constexpr, WORLD: tl.constexpr, PULL: tl.constexpr,
    PERSPECTIVE: tl.constexpr, KEEP: tl.constexpr,
):  # fmt: skip
    """Hand the sums of one face down to its points and attributes; returns the gradient by the near distance.

    Sums are by edge (what pulls on it, and that times the distance to its end), by the factor of its coverage, its turn and its
    centroid, and by the planes of denominator, depth and attributes; lengths are in samples. Pointers are those of the item,
    `face` and `attribute_face` those of the face's three numbers; KEEP: targets are the face's own places, nobody else's.
    """
    lane = tl.arange(0, 4)
    live = lane < 3
    i, after, before = lane % 3, (lane + 1) % 3, (lane + 2) % 3
    vertex = tl.load(face + i).to(tl.int64)
    row = tl.load(attribute_face + i).to(tl.int64)
    x, y = tl.load(record + CORNERS + 2 * i), tl.load(record + CORNERS + 2 * i + 1)
    _x, _y, z, weight, presence, slope = project_corner(points, matrix, vertex, live, near, WORLD, PERSPECTIVE)
    ox = tl.load(record + 2 * before) - tl.load(record + 2 * after)
    oy = tl.load(record + 2 * before + 1) - tl.load(record + 2 * after + 1)
    ax, ay = tl.load(record), tl.load(record + 1)
    bx, by, cx, cy = tl.load(record + 2), tl.load(record + 3), tl.load(record + 4), tl.load(record + 5)
    twice = (by - ay) * (cx - ax) - (bx - ax) * (cy - ay)
    flip = FLIP / (spacing * spacing)
    square = twice * twice + flip * flip
    inverse = twice / square
    # A corner's weight is its 1/w times 1/3 + n1 x + n2 y; t: the gradient by these three
    n1, n2 = inverse * oy, -inverse * ox
    z0, z1, z2 = z_sums[0], z_sums[1], z_sums[2]
    t0, t1, t2 = d[0] + z * z0, d[1] + z * z1, d[2] + z * z2
    normal = (x, y, z)
    if NORMALS > 0:
        normal = normal_at(normals, vertex, live, AREAS)
    for k in tl.static_range(CHANNELS):
        g0, g1, g2 = planes[k][0], planes[k][1], planes[k][2]
        pull = weight * (g0 * (1.0 / 3.0) + g1 * n1 + g2 * n2)
        if k < CHANNELS - NORMALS:
            value = tl.load(attributes + row * channels + k, mask=live, other=0.0)
            if KEEP:
                add(by_attributes + i * (CHANNELS - NORMALS) + k, pull, live, KEEP)
            else:
                add(by_attributes + row * channels + k, pull, live, KEEP)
        else:
            value = normal[k - CHANNELS + NORMALS]
            if KEEP:
                add(by_normals + i * 3 + (k - CHANNELS + NORMALS), pull, live, KEEP)
            else:
                add(by_normals + vertex * 3 + (k - CHANNELS + NORMALS), pull, live, KEEP)
        t0, t1, t2 = t0 + value * g0, t1 + value * g1, t2 + value * g2
    by_depth = weight * (z0 * (1.0 / 3.0) + z1 * n1 + z2 * n2)
    by_weight = t0 * (1.0 / 3.0) + t1 * n1 + t2 * n2
    t1, t2 = weight * t1, weight * t2
    by_inverse = tl.sum(tl.where(live, t1 * oy - t2 * ox, 0.0), axis=0)
    pa, pb, pc = at_corner(lane, presence, 0), at_corner(lane, presence, 1), at_corner(lane, presence, 2)
    by_factor = by_factor * (0.5 / PI)
    # turn = twice / (slope scale), slope^2 = |sum level opposite|^2 + (guard + FLAT sum |opposite|^2) mean level^2
    level = z
    if PERSPECTIVE:
        level = weight
    vx, vy, lowest, mean, slope2 = horizon(
        at_corner(lane, level, 0), at_corner(lane, level, 1), at_corner(lane, level, 2), ax, ay, bx, by, cx, cy,
        GUARD / (spacing * spacing),
    )  # fmt: skip
    turned = by_turn * tl.load(record + TURN)
    half = -turned / tl.where(slope2 == 0.0, 1.0, slope2)
    by_level = half * (vx * ox + vy * oy + lowest * level * (1.0 / 3.0))
    by_ox, by_oy = half * (vx * level + FLAT * mean * ox), half * (vy * level + FLAT * mean * oy)
    by_area = by_inverse * (flip * flip - twice * twice) / (square * square)
    by_area += by_turn * tl.load(record + TURN) / tl.where(twice == 0.0, 1.0, twice)
    if PERSPECTIVE:
        by_weight += by_level
    else:
        by_depth += by_level
    # Both ends of an edge take together what pulls on it, along its normal (-uy, ux)
    start = of_corner(i, ends[0], ends[1], ends[2]) / tl.maximum(tl.load(record + LENGTHS + i), 1e-30)
    last = of_corner(before, along[0], along[1], along[2])
    last -= of_corner(before, ends[0], ends[1], ends[2]) / tl.maximum(tl.load(record + LENGTHS + before), 1e-30)
    ux, uy = tl.load(record + DIRECTIONS + 2 * i), tl.load(record + DIRECTIONS + 1 + 2 * i)
    vx, vy = tl.load(record + DIRECTIONS + 2 * before), tl.load(record + DIRECTIONS + 1 + 2 * before)
    ta1, tb1, tc1 = at_corner(lane, t1, 0), at_corner(lane, t1, 1), at_corner(lane, t1, 2)
    ta2, tb2, tc2 = at_corner(lane, t2, 0), at_corner(lane, t2, 1), at_corner(lane, t2, 2)
    gx = by_gx * (1.0 / 3.0) - uy * start - vy * last + by_area * oy
    gx += inverse * (of_corner(before, ta2, tb2, tc2) - of_corner(after, ta2, tb2, tc2))
    gy = by_gy * (1.0 / 3.0) + ux * start + vx * last - by_area * ox
    gy += inverse * (of_corner(after, ta1, tb1, tc1) - of_corner(before, ta1, tb1, tc1))
    # The edge opposite to the next corner ends here, that opposite to the one before begins here
    gx += of_corner(after, at_corner(lane, by_ox, 0), at_corner(lane, by_ox, 1), at_corner(lane, by_ox, 2))
    gx -= of_corner(before, at_corner(lane, by_ox, 0), at_corner(lane, by_ox, 1), at_corner(lane, by_ox, 2))
    gy += of_corner(after, at_corner(lane, by_oy, 0), at_corner(lane, by_oy, 1), at_corner(lane, by_oy, 2))
    gy -= of_corner(before, at_corner(lane, by_oy, 0), at_corner(lane, by_oy, 1), at_corner(lane, by_oy, 2))
    by_presence = by_factor * of_corner(i, pb * pc, pa * pc, pa * pb)
    # From samples back to pixels
    gx, gy = gx / spacing, gy / spacing
    x, y = (x - (margin + 0.5)) * spacing + 0.5, (y - (margin + 0.5)) * spacing + 0.5
    px, py, pz, by_near = corner_pull(
        gx, gy, by_depth, by_weight, by_presence, x, y, z, weight, slope, near, PERSPECTIVE
    )
    px, py, pz = world_pull(points, matrix, vertex, live, px, py, pz, PULL)
    if KEEP:
        place = by_points + i * 3
    else:
        place = by_points + vertex * 3
    add(place, px, live, KEEP)
    add(place + 1, py, live, KEEP)
    add(place + 2, pz, live, KEEP)
    return tl.sum(tl.where(live, by_near, 0.0), axis=0)

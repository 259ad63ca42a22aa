"""The Triton kernel of the smooth rasteriser's backward pass.

One program per face walks over the samples within its reach, recomputes what the forward pass computed there, and keeps
the face's gradient in registers: sums along the normals of its edges, and by the planes of its record. Only at the end are
they brought back to corners and added to the vertices, once per face. Gradients by samples come from `pixels`.
"""

# pyright: reportAttributeAccessIssue=false
# ruff: noqa: RUF005 - Triton knows no starred tuples
from __future__ import annotations

import triton
import triton.language as tl

from algonet.core.codegen.triton_math import kernel, reciprocal

from .corners import add, hand_down
from .formulas import (
    BACK,
    CORNERS,
    COUNTERS,
    DENOMINATOR,
    DEPTH,
    DIRECTIONS,
    END,
    FACTOR,
    GRAD_BASE,
    GRAD_BEHIND,
    GRAD_DEPTH,
    GRAD_FRONT,
    GRADS,
    LEAST,
    LENGTHS,
    LOG2E,
    PLANES,
    TURN,
    coverage,
    falling,
    kept,
    mean_position,
    place_of,
    turned,
)
from .sampling import sample_grid
from .setup import load_box, window


@triton.jit
def edge_pull(sums, ends, gp, gmx, gmy, t, d, r, e, length, ux, uy, p0, p1, HALF: tl.constexpr):
    """What the gradients (by coverage, by moment) pull on an edge, added to its sums: the integral of density times pull,
    and that times the distance to its end, which the start takes along the normal. Also the former times d."""
    end = t + length
    difference = end * p1 - t * p0
    # K0, K1, K2: 2 pi times the integrals of the noise density times 1, t, t^2 along the edge
    k0 = (difference + ((2 * HALF - 1) * falling(HALF)) * e) * r
    k1 = p0 - p1
    k2 = falling(HALF) * e - difference
    flat = gp + d * (gmy * ux - gmx * uy)
    slope = gmx * ux + gmy * uy
    pull = flat * k0 + slope * k1
    ends = ends + end * pull
    ends = ends - flat * k1
    ends = ends - slope * k2
    return sums + pull, ends, d * pull


@triton.jit
def load_planes(record, CHANNELS: tl.constexpr):
    """The three numbers of each channel's plane."""
    planes = ()
    for k in tl.static_range(CHANNELS):
        place = record + (PLANES + 3 * k)
        planes = planes + ((tl.load(place), tl.load(place + 1), tl.load(place + 2)),)
    return planes


@triton.jit
def sum_plane(sums):
    return tl.sum(sums[0]), tl.sum(sums[1]), tl.sum(sums[2])


@triton.jit
def add_plane(sums, g, gx, gy):
    """A gradient by a plane at a position, added to its sums."""
    return sums[0] + g, sums[1] + gx, sums[2] + gy


@kernel
def backward_kernel(
    work, counters, softness, pixel_grads,
    points, matrix, attributes, normals, faces, attribute_faces, by_points, by_attributes, by_normals, by_softness,
    first, items, count, padded, height, width, softness_stride, points_stride, matrix_stride, attributes_stride,
    normals_stride, by_points_stride, by_attributes_stride, by_normals_stride, work_stride, channels, first_channel,
    first_mean, limit,
    WIDTH: tl.constexpr, CHANNELS: tl.constexpr, NORMALS: tl.constexpr, AREAS: tl.constexpr, HALF: tl.constexpr,
    REACH: tl.constexpr, NEAR_REACH: tl.constexpr, SPACING: tl.constexpr, FIRST: tl.constexpr,
    GRAD: tl.constexpr, HUGE: tl.constexpr, WORLD: tl.constexpr, PULL: tl.constexpr, PERSPECTIVE: tl.constexpr,
    TWO_SIDED: tl.constexpr, SOFTNESS: tl.constexpr, KEEP: tl.constexpr, JOBS: tl.constexpr, P: tl.constexpr,
):  # fmt: skip
    # The first programs take bands of large faces, as far as there are any; they last longest
    program = tl.program_id(0)
    which, band = program - items * JOBS, -1
    face, slot = which % count, which // count
    if JOBS > 0:  # noqa: SIM102 - known when compiled, the other is not
        if which < 0:
            slot = program // JOBS
            queue = counters + slot.to(tl.int64) * (COUNTERS + 2 * JOBS)
            job = queue + COUNTERS + (program % JOBS) * 2
            face = tl.where(program % JOBS < tl.load(queue + 4), tl.load(job), -1)
            band = tl.load(job + 1)
    slot = slot.to(tl.int64)
    item = slot + first
    idle = face < 0
    face = tl.maximum(face, 0)
    scale = tl.load(softness + item * softness_stride)
    steepness = tl.load(softness + item * softness_stride + 1)
    near = tl.load(softness + item * softness_stride + 2)
    spacing, margin, grid_rows, grid_columns = sample_grid(scale, height, width, SPACING)
    scale = scale / spacing
    sigma2 = 2 * HALF * scale * scale
    # As in the forward pass, places are in units of log 2
    steepness2 = steepness * LOG2E
    records = work + slot * work_stride
    lx, ly, hx, hy = load_box(records + padded.to(tl.int64) * WIDTH, face, padded, face < count)
    reach = NEAR_REACH * tl.sqrt(sigma2)
    if band >= 0:
        # Bands are those of the full window
        reach = REACH * tl.sqrt(sigma2)
    left, top, columns, rows = window(lx, ly, hx, hy, reach, grid_rows, grid_columns)
    r = records + face.to(tl.int64) * WIDTH
    ax, ay = tl.load(r + CORNERS), tl.load(r + (CORNERS + 1))
    bx, by = tl.load(r + (CORNERS + 2)), tl.load(r + (CORNERS + 3))
    cx, cy = tl.load(r + (CORNERS + 4)), tl.load(r + (CORNERS + 5))
    ux0, uy0 = tl.load(r + DIRECTIONS), tl.load(r + (DIRECTIONS + 1))
    ux1, uy1 = tl.load(r + (DIRECTIONS + 2)), tl.load(r + (DIRECTIONS + 3))
    ux2, uy2 = tl.load(r + (DIRECTIONS + 4)), tl.load(r + (DIRECTIONS + 5))
    l0, l1, l2 = tl.load(r + LENGTHS), tl.load(r + (LENGTHS + 1)), tl.load(r + (LENGTHS + 2))
    factor = tl.load(r + FACTOR)
    d0, d1, d2 = tl.load(r + DENOMINATOR), tl.load(r + (DENOMINATOR + 1)), tl.load(r + (DENOMINATOR + 2))
    z0, z1, z2 = tl.load(r + DEPTH), tl.load(r + (DEPTH + 1)), tl.load(r + (DEPTH + 2))
    least, turn = tl.load(r + LEAST), tl.load(r + TURN)
    if band >= 0:
        top, rows = top + band, tl.minimum(rows - band, tl.maximum(limit // tl.maximum(columns, 1), 1)).to(tl.int32)
    elif least < 0:
        rows = 0
    least = tl.abs(least)
    pixels = tl.where(idle, 0, columns * rows)
    gx, gy = (ax + bx + cx) * (1.0 / 3.0), (ay + by + cy) * (1.0 / 3.0)
    planes = load_planes(r, CHANNELS)
    grads = pixel_grads + slot * height * width * GRAD
    lane = tl.arange(0, P)
    by_columns = 1.0 / tl.maximum(columns, 1).to(tl.float32)
    zero = tl.zeros([P], dtype=scale.dtype)
    a0, b0, a1, b1, a2, b2 = zero, zero, zero, zero, zero, zero
    s_factor, s_turn, s_gx, s_gy, s_scale, s_steepness = zero, zero, zero, zero, zero, zero
    s_denominator, s_depth, s_planes = (zero, zero, zero), (zero, zero, zero), ((zero, zero, zero),) * CHANNELS
    for start in range(0, pixels, P):
        # Lanes beyond the window see its last pixel, without gradients, which comes to nothing
        live = start + lane < pixels
        i = tl.minimum(start + lane, pixels - 1)
        line = tl.floor((i.to(tl.float32) + 0.5) * by_columns).to(tl.int32)
        column = i - line * columns
        if HUGE:
            # In so large a window, rounding may be one line off
            line += tl.where(column < 0, -1, 0) + tl.where(column >= columns, 1, 0)
            column = i - line * columns
        at = (top + line) * width + left + column
        qx, qy = (left + column).to(scale.dtype) + 0.5, (top + line).to(scale.dtype) + 0.5
        own = grads + at * GRAD
        end = tl.load(own + END)
        base, by_depth = tl.load(own + GRAD_BASE, mask=live, other=0.0), tl.load(own + GRAD_DEPTH, mask=live, other=0.0)
        by_front = tl.load(own + GRAD_FRONT, mask=live, other=0.0)
        by_back = tl.load(own + GRAD_BEHIND, mask=live, other=0.0)
        if not FIRST:
            # All but the means count once, in the first pass over the channels
            base, by_depth, by_front, by_back = zero, zero, zero, zero

        # The forward pass again
        p, mx, my, t0, t1, t2, e0, e1, e2, r0, r1, r2, m0, m1, m2, pa, pb, pc = coverage(
            ax - qx, ay - qy, bx - qx, by - qy, cx - qx, cy - qy,
            ux0, uy0, ux1, uy1, ux2, uy2, l0, l1, l2, sigma2, HALF,
        )  # fmt: skip
        qgx, qgy = qx - gx, qy - gy
        px, py, inverse = mean_position(p, mx, my, qgx, qgy)
        denominator = d0 + px * d1 + py * d2
        weight = reciprocal(tl.maximum(denominator, least))
        z = (z0 + px * z1 + py * z2) * weight
        level = z
        if PERSPECTIVE:
            level = denominator
        c, front, side, t = turned(p, level, turn, factor, TWO_SIDED)
        place, root = place_of(z, steepness2, front, t)
        share = kept(end, place)
        w = c * share

        # The sample's gradient along the planes of all channels together; then by weight, coverage, place
        whole0, whole1, whole2 = zero, zero, zero
        for k in tl.static_range(CHANNELS):
            g = tl.load(own + (GRADS + k) + first_mean, mask=live, other=0.0)
            whole0, whole1, whole2 = whole0 + g * planes[k][0], whole1 + g * planes[k][1], whole2 + g * planes[k][2]
        by_means = (whole0 + px * whole1 + py * whole2) * weight
        excess = by_means + by_depth * z - base
        by_c = share * excess
        by_place = -w * (1.0 - share) * excess
        rest, bend = 1.0 - front, front * (1.0 - front)
        if TWO_SIDED:
            by_c += by_front * front + by_back * rest
            by_side = c * (by_front - by_back)
            covering = by_c * factor
        else:
            by_c += by_front
            covering = by_c * factor * front
            by_side = by_c * tl.maximum(p * side, 0.0) * factor
        further = steepness * z * BACK * root
        by_side -= by_place * further
        # tanh(t) = 2 front - 1; the slope of front is 2 front (1 - front)
        right = p * side > 0.0
        by_turn = 2.0 * bend * by_side - by_place * further * rest * t * root * root
        by_turn += tl.where(right, 4.0 * bend * covering * p, 0.0)
        by_p = tl.where(right, covering * side, 0.0)
        by_z = w * by_depth + by_place * steepness * (1.0 + BACK * rest * root)
        if not PERSPECTIVE:
            by_z += by_turn * turn
        nz = by_z * weight
        nd = tl.where(denominator > least, -(w * by_means + by_z * z) * weight, 0.0)
        if PERSPECTIVE:
            nd += by_turn * turn
        pull = w * weight
        by_px, by_py = pull * whole1 + nz * z1 + nd * d1, pull * whole2 + nz * z2 + nd * d2
        # With h = p^2 + FAINT^2, x - g = (p^2 (q - g) + p M) / h, so its slope by p is (M + 2 p (q - x)) / h
        twice, share_m = p + p, p * inverse
        full = p * share_m
        gmx, gmy = share_m * by_px, share_m * by_py
        gp = inverse * (by_px * (mx + twice * (qgx - px)) + by_py * (my + twice * (qgy - py))) + by_p
        s_gx, s_gy = s_gx - full * by_px, s_gy - full * by_py

        a0, b0, s_0 = edge_pull(a0, b0, gp, gmx, gmy, t0, e0, r0, m0, l0, ux0, uy0, pa, pb, HALF)
        a1, b1, s_1 = edge_pull(a1, b1, gp, gmx, gmy, t1, e1, r1, m1, l1, ux1, uy1, pb, pc, HALF)
        a2, b2, s_2 = edge_pull(a2, b2, gp, gmx, gmy, t2, e2, r2, m2, l2, ux2, uy2, pc, pa, HALF)
        s_turn += by_turn * level
        if SOFTNESS:
            s_scale += gmx * mx + gmy * my - s_0 - s_1 - s_2 - by_turn * t
            s_steepness += by_place * z * (1.0 + BACK * rest * root)
        s_factor += tl.where(right, by_c * p * side * (1.0 if TWO_SIDED else front), 0.0)
        s_denominator = add_plane(s_denominator, nd, nd * px, nd * py)
        s_depth = add_plane(s_depth, nz, nz * px, nz * py)
        more = ()
        for k in tl.static_range(CHANNELS):
            g = tl.load(own + (GRADS + k) + first_mean, mask=live, other=0.0) * pull
            more = more + (add_plane(s_planes[k], g, g * px, g * py),)
        s_planes = more

    if pixels > 0:
        if KEEP:
            points_to = by_points + (slot * count + face) * 9
            attributes_to = by_attributes + (slot * count + face) * (3 * (CHANNELS - NORMALS))
            normals_to = by_normals + (slot * count + face) * 9
        else:
            points_to = by_points + item * by_points_stride
            attributes_to = by_attributes + item * by_attributes_stride + first_channel
            normals_to = by_normals + item * by_normals_stride
        summed = ()
        for k in tl.static_range(CHANNELS):
            summed = summed + (sum_plane(s_planes[k]),)
        by_near = hand_down(
            r, points + item * points_stride, matrix + item * matrix_stride,
            attributes + item * attributes_stride + first_channel, normals + item * normals_stride,
            faces + face * 3, attribute_faces + face * 3, points_to, attributes_to, normals_to, near, spacing, margin,
            channels,
            (tl.sum(a0), tl.sum(a1), tl.sum(a2)), (tl.sum(b0), tl.sum(b1), tl.sum(b2)),
            tl.sum(s_factor), tl.sum(s_turn), tl.sum(s_gx), tl.sum(s_gy),
            sum_plane(s_denominator), sum_plane(s_depth), summed,
            CHANNELS, NORMALS, AREAS, WORLD, PULL, PERSPECTIVE, KEEP,
        )  # fmt: skip
        if SOFTNESS:
            soft = by_softness + (slot * count + face) * 3
            add(soft, tl.sum(s_scale) / (scale * spacing), pixels > 0, KEEP)
            add(soft + 1, tl.sum(s_steepness), pixels > 0, KEEP)
            add(soft + 2, by_near, pixels > 0, KEEP)

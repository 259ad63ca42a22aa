"""The Triton kernel of the smooth rasteriser's backward pass.

One program per face walks over the samples within its reach, recomputes what the forward pass computed there, and keeps
the face's gradient in registers: sums along the normals of its edges, and by the planes of its record. Only at the end are
they brought back to corners and added to the vertices, once per face. Gradients by samples come from `pixels`.
"""

# pyright: reportAttributeAccessIssue=false
from __future__ import annotations

import triton
import triton.language as tl

from algonet.core.codegen.triton_math import quick_exp2, reciprocal, short_of_one

from .corners import add, hand_down
from .formulas import (
    CORNERS,
    COUNTERS,
    DENOMINATOR,
    DEPTH,
    DIRECTIONS,
    FACTOR,
    FAINTEST2,
    GRAD_TOTAL,
    GRADS,
    LATERAL_ROOT,
    LEAST,
    LENGTHS,
    LOG2E,
    PLANES,
    POINTERS,
    SIZES,
    coverage,
    falling,
    load_two,
    mean_position,
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
def plane(record, CHANNEL: tl.constexpr, CHANNELS: tl.constexpr):
    """The three numbers of a channel's plane. Channels past the last read channel 0; nothing uses the result."""
    if CHANNEL < CHANNELS:
        place = record + (PLANES + 3 * CHANNEL)
    else:
        place = record + PLANES
    return tl.load(place), tl.load(place + 1), tl.load(place + 2)


@triton.jit
def load_sample_grads(place, first_mean, live, CHANNELS: tl.constexpr, FIRST: tl.constexpr):
    """Of samples: the logarithm of the normaliser, gradients by means, by depth and by the total, and gradients times means.

    All but the means' count once, in the first pass over the channels.
    """
    log_norm, dot = load_two(place)
    by_total, by_depth = load_two(place + GRAD_TOTAL)
    dot, by_total, by_depth = tl.where(live, dot, 0.0), tl.where(live, by_total, 0.0), tl.where(live, by_depth, 0.0)
    if not FIRST:
        dot, by_total, by_depth = dot * 0.0, by_total * 0.0, by_depth * 0.0
    grads = place + (GRADS + first_mean)
    g0 = tl.load(grads, mask=live, other=0.0)
    g1, g2, g3, g4, g5 = g0, g0, g0, g0, g0
    if CHANNELS > 1:
        g1 = tl.load(grads + 1, mask=live, other=0.0)
    if CHANNELS > 2:
        g2 = tl.load(grads + 2, mask=live, other=0.0)
    if CHANNELS > 3:
        g3 = tl.load(grads + 3, mask=live, other=0.0)
    if CHANNELS > 4:
        g4 = tl.load(grads + 4, mask=live, other=0.0)
    if CHANNELS > 5:
        g5 = tl.load(grads + 5, mask=live, other=0.0)
    return log_norm, dot, by_total, by_depth, g0, g1, g2, g3, g4, g5


@triton.jit(do_not_specialize=SIZES, do_not_specialize_on_alignment=POINTERS)
def backward_kernel(
    work, counters, softness, pixel_grads,
    points, matrix, attributes, normals, faces, attribute_faces, by_points, by_attributes, by_normals, by_softness,
    first, items, count, padded, height, width, softness_stride, points_stride, matrix_stride, attributes_stride,
    normals_stride, by_points_stride, by_attributes_stride, by_normals_stride, work_stride, channels, first_channel,
    first_mean, limit,
    WIDTH: tl.constexpr, CHANNELS: tl.constexpr, NORMALS: tl.constexpr, AREAS: tl.constexpr, HALF: tl.constexpr,
    BOUNDED: tl.constexpr, REACH: tl.constexpr, NEAR_REACH: tl.constexpr, SPACING: tl.constexpr, FIRST: tl.constexpr,
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
    reach2 = (REACH * REACH) * sigma2
    # As in the forward pass, exponents are in units of log 2
    steepness2, by_reach2 = steepness * LOG2E, LATERAL_ROOT / reach2
    lateral_rate = by_reach2 * (-8.0 / LOG2E)
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
    least = tl.load(r + LEAST)
    if band >= 0:
        top, rows = top + band, tl.minimum(rows - band, tl.maximum(limit // tl.maximum(columns, 1), 1)).to(tl.int32)
    elif least < 0:
        rows = 0
    least = tl.abs(least)
    pixels = tl.where(idle, 0, columns * rows)
    gx, gy = (ax + bx + cx) * (1.0 / 3.0), (ay + by + cy) * (1.0 / 3.0)
    c00, c01, c02 = plane(r, 0, CHANNELS)
    c10, c11, c12 = plane(r, 1, CHANNELS)
    c20, c21, c22 = plane(r, 2, CHANNELS)
    c30, c31, c32 = plane(r, 3, CHANNELS)
    c40, c41, c42 = plane(r, 4, CHANNELS)
    c50, c51, c52 = plane(r, 5, CHANNELS)
    grads = pixel_grads + slot * height * width * GRAD
    # Beyond the reach the lateral term turns rounding of a faint coverage into any share at all, and the silhouette is nothing
    if scale.dtype == tl.float64:
        most = 1e30
    else:
        most = 64.0 * LOG2E
    lane = tl.arange(0, P)
    by_columns = 1.0 / tl.maximum(columns, 1).to(tl.float32)
    zero = tl.zeros([P], dtype=scale.dtype)
    a0, b0, a1, b1, a2, b2 = zero, zero, zero, zero, zero, zero
    s_factor, s_gx, s_gy, s_scale, s_steepness = zero, zero, zero, zero, zero
    s_d0, s_d1, s_d2, s_z0, s_z1, s_z2 = zero, zero, zero, zero, zero, zero
    s00, s01, s02, s10, s11, s12 = zero, zero, zero, zero, zero, zero
    s20, s21, s22, s30, s31, s32 = zero, zero, zero, zero, zero, zero
    s40, s41, s42, s50, s51, s52 = zero, zero, zero, zero, zero, zero
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
        log_norm, dot, by_total, by_depth, g0, g1, g2, g3, g4, g5 = load_sample_grads(
            grads + at * GRAD, first_mean, live, CHANNELS, FIRST
        )

        # The forward pass again
        p, mx, my, t0, t1, t2, e0, e1, e2, r0, r1, r2, m0, m1, m2, pa, pb, pc = coverage(
            ax - qx, ay - qy, bx - qx, by - qy, cx - qx, cy - qy,
            ux0, uy0, ux1, uy1, ux2, uy2, l0, l1, l2, sigma2, HALF,
        )  # fmt: skip
        qgx, qgy = qx - gx, qy - gy
        px, py, wx, wy, inverse, rough = mean_position(p, mx, my, qgx, qgy)
        c = p * factor
        denominator = d0 + px * d1 + py * d2
        weight = reciprocal(tl.maximum(denominator, least))
        z = (z0 + px * z1 + py * z2) * weight
        distance = (wx * wx + wy * wy) * by_reach2
        side = tl.minimum(distance, 1e3 * LATERAL_ROOT)
        cube = side * side * side
        burden = side * cube
        included = (c > 1.2e-38) & (burden < most)
        rate = quick_exp2(tl.minimum(-(steepness2 * z + burden) - log_norm, 126.0))
        # A share is at most 1
        rate = tl.where(included, tl.minimum(rate, reciprocal(tl.where(included, c, 1.0))), 0.0)
        share = c * rate

        # The sample's gradient along the planes of all channels together; then gradients by coverage, depth, planes
        whole0, whole1, whole2 = g0 * c00, g0 * c01, g0 * c02
        if CHANNELS > 1:
            whole0, whole1, whole2 = whole0 + g1 * c10, whole1 + g1 * c11, whole2 + g1 * c12
        if CHANNELS > 2:
            whole0, whole1, whole2 = whole0 + g2 * c20, whole1 + g2 * c21, whole2 + g2 * c22
        if CHANNELS > 3:
            whole0, whole1, whole2 = whole0 + g3 * c30, whole1 + g3 * c31, whole2 + g3 * c32
        if CHANNELS > 4:
            whole0, whole1, whole2 = whole0 + g4 * c40, whole1 + g4 * c41, whole2 + g4 * c42
        if CHANNELS > 5:
            whole0, whole1, whole2 = whole0 + g5 * c50, whole1 + g5 * c51, whole2 + g5 * c52
        by_means = (whole0 + px * whole1 + py * whole2) * weight
        excess = by_means + by_depth * z - dot
        f = share * excess
        if BOUNDED:
            by_c = rate * excess + by_total
        else:
            inside = (c >= 0.0) & (c <= 1.0)
            by_c = rate * excess - tl.where(inside, by_total / (1.0 - short_of_one(tl.maximum(c, 0.0))), 0.0)
        by_z = share * by_depth - steepness * f
        nz = by_z * weight
        nd = tl.where(denominator > least, -(share * by_means + by_z * z) * weight, 0.0)
        # Where the lateral term is at its bound it is constant
        lateral = tl.where(distance < 1e3 * LATERAL_ROOT, f * cube * lateral_rate, 0.0)
        by_wx, by_wy = lateral * wx, lateral * wy
        pull = share * weight
        by_px, by_py = pull * whole1 + nz * z1 + nd * d1, pull * whole2 + nz * z2 + nd * d2
        # With h = p^2 + FAINT^2, x - g = (p^2 (q - g) + p M) / h, so its slope by p is (M + 2 p (q - x)) / h;
        # likewise x - q with FAINTEST, whose slope is (M - 2 p (x - q)) / h
        twice, share_m, near_m = p + p, p * inverse, p * rough
        full, rest = p * share_m, FAINTEST2 * rough
        gmx, gmy = share_m * by_px + near_m * by_wx, share_m * by_py + near_m * by_wy
        gp = inverse * (by_px * (mx + twice * (qgx - px)) + by_py * (my + twice * (qgy - py))) + factor * by_c
        gp += rough * (by_wx * (mx - twice * wx) + by_wy * (my - twice * wy))
        s_gx, s_gy = s_gx - full * by_px, s_gy - full * by_py
        s_gx, s_gy = s_gx + rest * by_wx, s_gy + rest * by_wy

        a0, b0, s_0 = edge_pull(a0, b0, gp, gmx, gmy, t0, e0, r0, m0, l0, ux0, uy0, pa, pb, HALF)
        a1, b1, s_1 = edge_pull(a1, b1, gp, gmx, gmy, t1, e1, r1, m1, l1, ux1, uy1, pb, pc, HALF)
        a2, b2, s_2 = edge_pull(a2, b2, gp, gmx, gmy, t2, e2, r2, m2, l2, ux2, uy2, pc, pa, HALF)
        if SOFTNESS:
            moved = tl.where(distance < 1e3 * LATERAL_ROOT, (8.0 / LOG2E) * f * burden, 0.0)
            s_scale += gmx * mx + gmy * my - s_0 - s_1 - s_2 + moved
            s_steepness -= z * f
        s_factor += by_c * p
        s_d0, s_d1, s_d2 = s_d0 + nd, s_d1 + nd * px, s_d2 + nd * py
        s_z0, s_z1, s_z2 = s_z0 + nz, s_z1 + nz * px, s_z2 + nz * py
        pull0 = g0 * pull
        s00, s01, s02 = s00 + pull0, s01 + pull0 * px, s02 + pull0 * py
        if CHANNELS > 1:
            pull1 = g1 * pull
            s10, s11, s12 = s10 + pull1, s11 + pull1 * px, s12 + pull1 * py
        if CHANNELS > 2:
            pull2 = g2 * pull
            s20, s21, s22 = s20 + pull2, s21 + pull2 * px, s22 + pull2 * py
        if CHANNELS > 3:
            pull3 = g3 * pull
            s30, s31, s32 = s30 + pull3, s31 + pull3 * px, s32 + pull3 * py
        if CHANNELS > 4:
            pull4 = g4 * pull
            s40, s41, s42 = s40 + pull4, s41 + pull4 * px, s42 + pull4 * py
        if CHANNELS > 5:
            pull5 = g5 * pull
            s50, s51, s52 = s50 + pull5, s51 + pull5 * px, s52 + pull5 * py

    if pixels > 0:
        if KEEP:
            points_to = by_points + (slot * count + face) * 9
            attributes_to = by_attributes + (slot * count + face) * (3 * (CHANNELS - NORMALS))
            normals_to = by_normals + (slot * count + face) * 9
        else:
            points_to = by_points + item * by_points_stride
            attributes_to = by_attributes + item * by_attributes_stride + first_channel
            normals_to = by_normals + item * by_normals_stride
        by_near = hand_down(
            r, points + item * points_stride, matrix + item * matrix_stride,
            attributes + item * attributes_stride + first_channel, normals + item * normals_stride,
            faces + face * 3, attribute_faces + face * 3, points_to, attributes_to, normals_to, near, spacing, margin,
            channels,
            tl.sum(a0), tl.sum(a1), tl.sum(a2), tl.sum(b0), tl.sum(b1), tl.sum(b2),
            tl.sum(s_factor), tl.sum(s_gx), tl.sum(s_gy),
            tl.sum(s_d0), tl.sum(s_d1), tl.sum(s_d2), tl.sum(s_z0), tl.sum(s_z1), tl.sum(s_z2),
            tl.sum(s00), tl.sum(s01), tl.sum(s02), tl.sum(s10), tl.sum(s11), tl.sum(s12),
            tl.sum(s20), tl.sum(s21), tl.sum(s22), tl.sum(s30), tl.sum(s31), tl.sum(s32),
            tl.sum(s40), tl.sum(s41), tl.sum(s42), tl.sum(s50), tl.sum(s51), tl.sum(s52),
            CHANNELS, NORMALS, AREAS, WORLD, PULL, PERSPECTIVE, TWO_SIDED, KEEP,
        )  # fmt: skip
        if SOFTNESS:
            soft = by_softness + (slot * count + face) * 3
            add(soft, tl.sum(s_scale) / (scale * spacing), pixels > 0, KEEP)
            add(soft + 1, tl.sum(s_steepness), pixels > 0, KEEP)
            add(soft + 2, by_near, pixels > 0, KEEP)


@triton.jit(do_not_specialize=SIZES, do_not_specialize_on_alignment=POINTERS)
def gather_kernel(
    pulls, order, bounds, target, corners, vertices_count, stride, width, BLOCK: tl.constexpr, WIDTH: tl.constexpr
):
    """Add the corners' pulls (items, corners, WIDTH) to their vertices, in the same order on every run."""
    item = tl.program_id(1).to(tl.int64)
    vertex = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    live = vertex < vertices_count
    first = tl.load(bounds + vertex, mask=live, other=0)
    count = tl.load(bounds + vertex + 1, mask=live, other=0) - first
    most = tl.max(count, axis=0)
    for c in tl.static_range(WIDTH):
        total = tl.load(target + item * stride + vertex * width + c, mask=live, other=0.0)
        for i in range(most):
            mine = i < count
            corner = tl.load(order + first + i, mask=mine, other=0)
            total += tl.load(pulls + (item * corners + corner) * WIDTH + c, mask=mine, other=0.0)
        tl.store(target + item * stride + vertex * width + c, total, mask=live)

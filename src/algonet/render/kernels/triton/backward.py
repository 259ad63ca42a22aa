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

from algonet.core.codegen.triton_math import kernel

from .formulas import (
    BACK,
    CORNERS,
    COUNTERS,
    DENOMINATOR,
    DIRECTIONS,
    END,
    FLAT,
    FLIP,
    GRAD_BASE,
    GRAD_BEHIND,
    GRAD_DEPTH,
    GRAD_FRONT,
    GRADS,
    GUARD,
    LENGTHS,
    LIMIT,
    LOG2E,
    PI,
    PLANES,
    TURN,
    coverage,
    edge_worth,
    falling,
    kept,
    load_four,
    seen_at,
    seen_at_back,
    spread_of,
)
from .pixels import sample_grid
from .setup import load_box, normal_at, project_corner, window
from .shared import corner_pull, dot, horizon, load_live, load_three, load_vector, plus, weighted


@triton.jit
def edge_pull(
    sums, ends, gp, gmx, gmy, by_second, t, d, r, e, odd, length, ux, uy, p0, p1, sigma2, HALF: tl.constexpr
):  # fmt: skip
    """What the gradients (by coverage, by both moments) pull on an edge, added to its sums: the integral of density times pull,
    and that times the distance to its end, which the start takes along the normal. Also the former times d."""
    end = t + length
    difference = end * p1 - t * p0
    # K0, K1, K2, K3: 2 pi times the integrals of the noise density times 1, t, t^2, t^3 along the edge
    k0 = (difference + ((2 * HALF - 1) * falling(HALF)) * e) * r
    k1 = p0 - p1
    k2 = falling(HALF) * e - difference
    k3 = (2.0 * HALF) * odd - (d * d + sigma2) * k1
    flat, slope, curve = edge_worth(gp, gmx, gmy, by_second, d, ux, uy)
    pull = flat * k0 + slope * k1 + curve * k2
    ends = ends + end * pull
    ends = ends - flat * k1
    ends = ends - slope * k2
    ends = ends - curve * k3
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
def add_plane(sums, g, x, y):
    """A gradient by a plane at a position, added to its sums."""
    return sums[0] + g, sums[1] + g * x, sums[2] + g * y


@kernel
def backward_kernel(
    work, counters, softness, pixel_grads,
    points, matrix, attributes, normals, faces, attribute_faces, grad_points, grad_attributes, grad_normals, grad_softness,
    first, items, count, padded, height, width, softness_stride, points_stride, matrix_stride, attributes_stride,
    normals_stride, grad_points_stride, grad_attributes_stride, grad_normals_stride, work_stride, channels, first_channel,
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
    steepness = 2.0 * tl.load(softness + item * softness_stride + 1)
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
    ax, ay, bx, by = load_four(r)
    cx, cy, ux0, uy0 = load_four(r + 4)
    ux1, uy1, ux2, uy2 = load_four(r + 8)
    l0, l1, l2, factor = load_four(r + 12)
    d0, d1, d2, z0 = load_four(r + DENOMINATOR)
    z1, z2, least, turn = load_four(r + (DENOMINATOR + 4))
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
        base, by_depth = load_live(own + GRAD_BASE, live), load_live(own + GRAD_DEPTH, live)
        by_front = load_live(own + GRAD_FRONT, live)
        by_back = load_live(own + GRAD_BEHIND, live)
        if not FIRST:
            # All but the means count once, in the first pass over the channels
            base, by_depth, by_front, by_back = zero, zero, zero, zero

        # The forward pass again
        p, mx, my, second, t0, t1, t2, e0, e1, e2, r0, r1, r2, m0, m1, m2, pa, pb, pc, odd0, odd1, odd2 = coverage(
            ax - qx, ay - qy, bx - qx, by - qy, cx - qx, cy - qy,
            ux0, uy0, ux1, uy1, ux2, uy2, l0, l1, l2, sigma2, HALF,
        )  # fmt: skip
        qgx, qgy = qx - gx, qy - gy
        mean, centre, sides = seen_at(
            p, mx, my, spread_of(p, mx, my, second, HALF), qgx, qgy, (d0, d1, d2), (z0, z1, z2), least, turn, factor,
            steepness2, PERSPECTIVE, TWO_SIDED,
        )  # fmt: skip
        share = kept(end, sides[4])
        shown = sides[0] * share

        # The sample's gradient along the planes of all channels together
        whole0, whole1, whole2 = zero, zero, zero
        for k in tl.static_range(CHANNELS):
            g = load_live(own + (GRADS + k) + first_mean, live)
            whole0, whole1, whole2 = whole0 + g * planes[k][0], whole1 + g * planes[k][1], whole2 + g * planes[k][2]
        pull, nz, by_d, full, by_ox, by_oy, gp, gmx, gmy, by_second, by_turn, by_place, by_c, right, rest = seen_at_back(
            mean, centre, sides, p, mx, my, second, qgx, qgy, (d0, d1, d2), (z0, z1, z2), least, turn, factor, steepness, share,
            shown, (whole0, whole1, whole2), (base, by_depth, by_front, by_back), HALF, PERSPECTIVE, TWO_SIDED,
        )  # fmt: skip
        px, py, _denominator, _weight, z, level = mean
        _c, front, side, t, _place, root = sides
        s_gx, s_gy = s_gx - full * by_ox, s_gy - full * by_oy

        a0, b0, s_0 = edge_pull(
            a0, b0, gp, gmx, gmy, by_second, t0, e0, r0, m0, odd0, l0, ux0, uy0, pa, pb, sigma2, HALF
        )
        a1, b1, s_1 = edge_pull(
            a1, b1, gp, gmx, gmy, by_second, t1, e1, r1, m1, odd1, l1, ux1, uy1, pb, pc, sigma2, HALF
        )
        a2, b2, s_2 = edge_pull(
            a2, b2, gp, gmx, gmy, by_second, t2, e2, r2, m2, odd2, l2, ux2, uy2, pc, pa, sigma2, HALF
        )
        s_turn += by_turn * level
        if SOFTNESS:
            s_scale += gmx * mx + gmy * my + 2.0 * dot(by_second, second) - s_0 - s_1 - s_2 - by_turn * t
            s_steepness += by_place * z * (1.0 + BACK * rest * root)
        s_factor += tl.where(right, by_c * p * side * (1.0 if TWO_SIDED else front), 0.0)
        s_denominator = plus(s_denominator, by_d)
        s_depth = add_plane(s_depth, nz, px, py)
        more = ()
        for k in tl.static_range(CHANNELS):
            g = load_live(own + (GRADS + k) + first_mean, live) * pull
            more = more + (add_plane(s_planes[k], g, px, py),)
        s_planes = more

    if pixels > 0:
        if KEEP:
            points_to = grad_points + (slot * count + face) * 9
            attributes_to = grad_attributes + (slot * count + face) * (3 * (CHANNELS - NORMALS))
            normals_to = grad_normals + (slot * count + face) * 9
        else:
            points_to = grad_points + item * grad_points_stride
            attributes_to = grad_attributes + item * grad_attributes_stride + first_channel
            normals_to = grad_normals + item * grad_normals_stride
        summed = ()
        for k in tl.static_range(CHANNELS):
            summed = summed + (sum_plane(s_planes[k]),)
        by_near = scatter_face_grads(
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
            soft = grad_softness + (slot * count + face) * 3
            add(soft, tl.sum(s_scale) / (scale * spacing), pixels > 0, KEEP)
            add(soft + 1, 2.0 * tl.sum(s_steepness), pixels > 0, KEEP)
            add(soft + 2, by_near, pixels > 0, KEEP)


@triton.jit
def of_corner(i, a, b, c):
    """a, b or c for corner 0, 1 or 2."""
    return tl.where(i == 0, a, tl.where(i == 1, b, c))


@triton.jit
def at_corners(lane, values):
    """The corners' values, for all."""
    a, b = tl.sum(tl.where(lane == 0, values, 0.0), axis=0), tl.sum(tl.where(lane == 1, values, 0.0), axis=0)
    return a, b, tl.sum(tl.where(lane == 2, values, 0.0), axis=0)


@triton.jit
def around(lane, values):
    """For each corner: the value of the next one less that of the previous one."""
    a, b, c = at_corners(lane, values)
    return of_corner(lane % 3, b - c, c - a, a - b)


@triton.jit
def world_pull(points, matrix, index, live, x, y, z, WORLD: tl.constexpr):
    """A gradient by what the matrix sees of a point as one by the point."""
    if WORLD:
        g = weighted(load_three(matrix), load_three(matrix + 4), load_three(matrix + 8), x, y, z)
        p = load_vector(points, index, live)
        x = tl.where(tl.abs(p[0]) <= LIMIT, g[0], 0.0)
        y = tl.where(tl.abs(p[1]) <= LIMIT, g[1], 0.0)
        z = tl.where(tl.abs(p[2]) <= LIMIT, g[2], 0.0)
    return x, y, z


@triton.jit
def add(place, value, live, KEEP: tl.constexpr):
    if KEEP:
        tl.store(place, value, mask=live)
    else:
        tl.atomic_add(place, value, mask=live, sem="relaxed")


@triton.jit
def scatter_face_grads(
    record, points, matrix, attributes, normals, face, attribute_face, grad_points, grad_attributes, grad_normals, near,
    spacing, margin, channels,
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
    if KEEP:
        grad_points, grad_normals = grad_points + i * 3, grad_normals + i * 3
        grad_attributes += i * (CHANNELS - NORMALS)
    else:
        grad_points, grad_normals = grad_points + vertex * 3, grad_normals + vertex * 3
        grad_attributes += row * channels
    x, y = tl.load(record + CORNERS + 2 * i), tl.load(record + CORNERS + 2 * i + 1)
    _x, _y, z, weight, presence, slope = project_corner(points, matrix, vertex, live, near, WORLD, PERSPECTIVE)
    ox = tl.load(record + 2 * before) - tl.load(record + 2 * after)
    oy = tl.load(record + 2 * before + 1) - tl.load(record + 2 * after + 1)
    ax, ay, bx, by = load_four(record)
    cx, cy, _ux, _uy = load_four(record + 4)
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
            value = load_live(attributes + row * channels + k, live)
            add(grad_attributes + k, pull, live, KEEP)
        else:
            value = normal[k - CHANNELS + NORMALS]
            add(grad_normals + (k - CHANNELS + NORMALS), pull, live, KEEP)
        t0, t1, t2 = t0 + value * g0, t1 + value * g1, t2 + value * g2
    by_depth = weight * (z0 * (1.0 / 3.0) + z1 * n1 + z2 * n2)
    by_weight = t0 * (1.0 / 3.0) + t1 * n1 + t2 * n2
    t1, t2 = weight * t1, weight * t2
    by_inverse = tl.sum(tl.where(live, t1 * oy - t2 * ox, 0.0), axis=0)
    pa, pb, pc = at_corners(lane, presence)
    by_factor = by_factor * (0.5 / PI)
    # turn = twice / (slope scale), slope^2 = |sum level opposite|^2 + (guard + FLAT sum |opposite|^2) mean level^2
    level = z
    if PERSPECTIVE:
        level = weight
    la, lb, lc = at_corners(lane, level)
    vx, vy, lowest, mean, slope2 = horizon(la, lb, lc, ax, ay, bx, by, cx, cy, GUARD / (spacing * spacing))
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
    gx = by_gx * (1.0 / 3.0) - uy * start - vy * last + by_area * oy
    gy = by_gy * (1.0 / 3.0) + ux * start + vx * last - by_area * ox
    # The edge opposite to the next corner ends here, that opposite to the one before begins here
    gx += around(lane, by_ox - inverse * t2)
    gy += around(lane, by_oy + inverse * t1)
    by_presence = by_factor * of_corner(i, pb * pc, pa * pc, pa * pb)
    # From samples back to pixels
    gx, gy = gx / spacing, gy / spacing
    x, y = (x - (margin + 0.5)) * spacing + 0.5, (y - (margin + 0.5)) * spacing + 0.5
    px, py, pz, by_near = corner_pull(
        gx, gy, by_depth, by_weight, by_presence, x, y, z, weight, slope, near, PERSPECTIVE
    )
    px, py, pz = world_pull(points, matrix, vertex, live, px, py, pz, PULL)
    add(grad_points, px, live, KEEP)
    add(grad_points + 1, py, live, KEEP)
    add(grad_points + 2, pz, live, KEEP)
    return tl.sum(tl.where(live, by_near, 0.0), axis=0)

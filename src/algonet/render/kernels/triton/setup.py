"""Triton kernels that prepare the faces of a scene for the smooth rasteriser, and normals of vertices, forward and backward.

`setup_kernel` sees the corners through the camera's matrix and writes, per face, a record (corners, edge directions, and the
planes over which depth, attributes and their common denominator are linear) and its bounding box. `bin_kernel` lists, for
each bin of BIN x BIN pixels, the faces within reach of it, in order; a bin whose list does not fit says so.

Of each item, `work` holds the records, then the boxes (six rows of `padded` numbers); `counters` hold the places taken in the
lists, the numbers of bins with many and with few faces, the faces' bins in all, the number of jobs, then the jobs (face, first
row); `scratch` holds each face's span of bins, then the lists, the bins' heads (start, length), and the order of the bins.
"""

# pyright: reportAttributeAccessIssue=false
from __future__ import annotations

import triton
import triton.language as tl

from algonet.core.codegen.triton_math import kernel

from .formulas import (
    BACK,
    CORNERS,
    COUNTERS,
    DENOMINATOR,
    DEPTH,
    DIRECTIONS,
    FAR,
    FLIP,
    GUARD,
    LENGTHS,
    LIMIT,
    NOWHERE,
    PI,
    PLANES,
    corner_planes,
    store_four,
)
from .pixels import clear, sample_grid
from .shared import (
    add_vector,
    area_back,
    cross,
    dot,
    guarded_area,
    guarded_area_back,
    horizon,
    load_corners,
    load_live,
    load_three,
    load_vector,
    minus,
    plus,
    smooth_step,
    store_vector,
    times,
    weighted,
)

#: Scales of the noise behind its horizon from which a face is not seen: exp(-2 UNSEEN) of it is left.
UNSEEN = tl.constexpr(20.0)


@triton.jit
def within_limit(x):
    """x, or the limit that it is beyond; minimum and maximum drop NaN, and the sum brings it back."""
    return tl.minimum(tl.maximum(x, -LIMIT), LIMIT) + tl.where(x == x, 0.0, x)


@triton.jit
def quotient(x, y):
    """x / y to the last digit, which Triton's own is not in float32: on the outline, pictures show it."""
    if x.dtype == tl.float64:
        q = x / y
    else:
        q = tl.div_rn(x, y)
    return q


@triton.jit
def project_corner(points, matrix, index, live, near, WORLD: tl.constexpr, PERSPECTIVE: tl.constexpr):
    """Screen x, y, depth, 1/w, presence and its slope of a point; WORLD: a point that the matrix has yet to see."""
    px, py, z = load_vector(points, index, live)
    if WORLD:
        p = (within_limit(px), within_limit(py), within_limit(z))
        px = dot(load_three(matrix), p) + tl.load(matrix + 3)
        py = dot(load_three(matrix + 4), p) + tl.load(matrix + 7)
        z = dot(load_three(matrix + 8), p) + tl.load(matrix + 11)
    if PERSPECTIVE:
        w = tl.maximum(z, 0.5 * near)
    else:
        w = z * 0.0 + 1.0
    inverse = 1.0 / w
    x = tl.minimum(tl.maximum(quotient(px, w), -FAR), FAR)
    y = tl.minimum(tl.maximum(quotient(py, w), -FAR), FAR)
    presence, slope = smooth_step(z / near - 1.0)
    # Minimum and maximum drop NaN; the sum brings it back
    return x + px * 0.0, y + py * 0.0, z, inverse, presence, slope


@triton.jit
def least(a, b, c):
    return tl.minimum(tl.minimum(a, b), c)


@triton.jit
def largest(a, b, c):
    return tl.maximum(tl.maximum(a, b), c)


@triton.jit
def direction(ex, ey):
    """The unit vector along an edge, and its length along it."""
    if ex.dtype == tl.float64:
        r = 1.0 / tl.sqrt(ex * ex + ey * ey + GUARD * GUARD)
    else:
        r = 1.0 / tl.sqrt(ex * ex + ey * ey + GUARD)
    return ex * r, ey * r, (ex * ex + ey * ey) * r


@kernel
def setup_kernel(
    points, matrix, attributes, normals, softness, faces, attribute_faces, work, counters, scratch,
    first, count, blocks, points_stride, matrix_stride, attributes_stride, normals_stride, softness_stride, work_stride,
    scratch_stride, channels, first_channel, height, width, limit,
    WIDTH: tl.constexpr, CHANNELS: tl.constexpr, NORMALS: tl.constexpr, AREAS: tl.constexpr, WORLD: tl.constexpr,
    PERSPECTIVE: tl.constexpr, TWO_SIDED: tl.constexpr, BLOCK: tl.constexpr, HALF: tl.constexpr, REACH: tl.constexpr,
    SPACING: tl.constexpr, BIN: tl.constexpr, JOBS: tl.constexpr,
):  # fmt: skip
    padded = blocks * BLOCK
    slot = tl.program_id(1).to(tl.int64)
    item = slot + first
    f = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    live = f < count
    near = tl.load(softness + item * softness_stride + 2)
    ia, ib, ic = load_corners(faces, f, live)
    points += item * points_stride
    matrix += item * matrix_stride
    ax, ay, az, aw, ap, _sa = project_corner(points, matrix, ia, live, near, WORLD, PERSPECTIVE)
    bx, by, bz, bw, bp, _sb = project_corner(points, matrix, ib, live, near, WORLD, PERSPECTIVE)
    cx, cy, cz, cw, cp, _sc = project_corner(points, matrix, ic, live, near, WORLD, PERSPECTIVE)
    # From here on lengths are distances between samples: a pixel, unless the noise is wide
    scale = tl.load(softness + item * softness_stride)
    spacing, margin, rows, columns = sample_grid(scale, height, width, SPACING)
    by_spacing = 1.0 / spacing
    scale = scale * by_spacing
    ax, ay = (ax - 0.5) * by_spacing + (margin + 0.5), (ay - 0.5) * by_spacing + (margin + 0.5)
    bx, by = (bx - 0.5) * by_spacing + (margin + 0.5), (by - 0.5) * by_spacing + (margin + 0.5)
    cx, cy = (cx - 0.5) * by_spacing + (margin + 0.5), (cy - 0.5) * by_spacing + (margin + 0.5)
    area = (by - ay) * (cx - ax) - (bx - ax) * (cy - ay)
    flip = FLIP * by_spacing * by_spacing
    factor = ap * bp * cp
    rest = area * 0.0 + az * 0.0 + bz * 0.0 + cz * 0.0 + near * 0.0
    broken = rest != rest
    inverse = area / (area * area + flip * flip)
    la, lb, lc = az, bz, cz
    if PERSPECTIVE:
        la, lb, lc = aw, bw, cw
    _vx, _vy, _least, _mean, square = horizon(la, lb, lc, ax, ay, bx, by, cx, cy, GUARD * by_spacing * by_spacing)
    turn = area / (tl.sqrt(tl.where(square == 0.0, 1.0, square)) * scale)
    least_turn = turn * least(la, lb, lc)
    seen = live & ((factor != 0.0) | broken)
    if not TWO_SIDED:
        # Nothing is left of a face that turns its back everywhere
        seen = seen & ((least_turn > -UNSEEN) | broken)

    work += slot * work_stride
    record = work + f.to(tl.int64) * WIDTH
    ux0, uy0, l0 = direction(bx - ax, by - ay)
    ux1, uy1, l1 = direction(cx - bx, cy - by)
    ux2, uy2, l2 = direction(ax - cx, ay - cy)
    store_four(record + CORNERS, ax, ay, bx, by, live)
    store_four(record + (CORNERS + 4), cx, cy, ux0, uy0, live)
    store_four(record + (DIRECTIONS + 2), ux1, uy1, ux2, uy2, live)
    store_four(record + LENGTHS, l0, l1, l2, tl.where(broken, float("nan"), factor * (0.5 / PI)), live)

    a, b, c = corner_planes(ax, ay, bx, by, cx, cy, aw, bw, cw, inverse)
    attributes += item * attributes_stride + first_channel
    normals += item * normals_stride
    na, nb, nc = (ax, ay, az), (bx, by, bz), (cx, cy, cz)
    if NORMALS > 0:
        # They belong to the vertices, whatever the attributes are looked up by
        na = normal_at(normals, ia, live, AREAS)
        nb = normal_at(normals, ib, live, AREAS)
        nc = normal_at(normals, ic, live, AREAS)
    ja, jb, jc = ia, ib, ic
    if CHANNELS > NORMALS:
        ja, jb, jc = load_corners(attribute_faces, f, live)

    lx = tl.where(seen, tl.where(broken, -NOWHERE, least(ax, bx, cx)), NOWHERE)
    ly = tl.where(seen, tl.where(broken, -NOWHERE, least(ay, by, cy)), NOWHERE)
    hx = tl.where(seen, tl.where(broken, NOWHERE, largest(ax, bx, cx)), -NOWHERE)
    hy = tl.where(seen, tl.where(broken, NOWHERE, largest(ay, by, cy)), -NOWHERE)
    box = work + padded.to(tl.int64) * WIDTH + f
    # With as much as a face seen from the back lies further, at most: see `formulas.seen_at`
    rest = tl.where(least_turn > 0.0, 1.0 / (1.0 + tl.exp(tl.minimum(2.0 * least_turn, 80.0))), 1.0)
    further = 1.0 + BACK * rest * tl.rsqrt(1.0 + least_turn * least_turn)
    lz, hz = tl.where(seen, least(az, bz, cz), NOWHERE), tl.where(seen, largest(az, bz, cz) * further, -NOWHERE)
    for k in tl.static_range(6):
        tl.store(box + k * padded, (lx, ly, hx, hy, lz, hz)[k])
    counters += slot * (COUNTERS + 2 * JOBS)
    reach = REACH * tl.sqrt(2 * HALF * scale * scale)
    if BIN > 0:
        # Columns and rows of bins within reach, a byte each; a scale of NaN is within reach of everything
        word = bin_of(lx - reach, BIN) | (bin_of(ly - reach, BIN) << 16)
        word |= bin_of(tl.where(reach == reach, hx + reach, NOWHERE), BIN) << 8
        word |= bin_of(tl.where(reach == reach, hy + reach, NOWHERE), BIN) << 24
        tl.store(scratch + slot * scratch_stride + f, tl.where(seen, word, 255))
        across = ((word >> 8) & 255) - (word & 255) + 1
        down = ((word >> 24) & 255) - ((word >> 16) & 255) + 1
        tl.atomic_add(counters + 3, tl.sum(tl.where(seen, across * down, 0), axis=0), sem="relaxed")
    floor = 0.5 * least(aw, bw, cw)
    if JOBS > 0:
        # Large faces are cut into bands of rows for several programs of the backward pass; a minus sign says so
        _left, _top, across, down = window(lx, ly, hx, hy, reach, rows, columns)
        band = tl.maximum(limit // tl.maximum(across, 1), 1)
        parts = tl.where(across * down > limit, (down + band - 1) // band, 0)
        place = tl.atomic_add(counters + 4 + parts * 0, parts, mask=parts > 0, sem="relaxed")
        cut = (parts > 0) & (place + parts <= JOBS)
        floor = tl.where(cut, -floor, floor)
        for part in range(tl.max(parts, axis=0)):
            job = counters + COUNTERS + (place + part) * 2
            mine = (part < parts) & (place + part < JOBS)
            tl.store(job, tl.where(cut, f, -1), mask=mine)
            tl.store(job + 1, part * band, mask=mine)
    d, z = plus(plus(a, b), c), weighted(a, b, c, az, bz, cz)
    store_four(record + DENOMINATOR, d[0], d[1], d[2], z[0], live)
    store_four(record + (DEPTH + 1), z[1], z[2], floor, turn, live)
    for channel in tl.static_range(CHANNELS):
        if channel < CHANNELS - NORMALS:
            fa = load_live(attributes + ja * channels + channel, live)
            fb = load_live(attributes + jb * channels + channel, live)
            fc = load_live(attributes + jc * channels + channel, live)
        else:
            fa, fb, fc = (
                na[channel - CHANNELS + NORMALS],
                nb[channel - CHANNELS + NORMALS],
                nc[channel - CHANNELS + NORMALS],
            )
        store_vector(record + (PLANES + 3 * channel), 0, weighted(a, b, c, fa, fb, fc), live)


@triton.jit
def window(lx, ly, hx, hy, reach, height, width):
    """Left, top, columns and rows of the pixels whose centres come within reach of a box."""
    left = tl.ceil(tl.minimum(tl.maximum(lx - reach, 0.5), width + 1.0) - 0.5).to(tl.int32)
    top = tl.ceil(tl.minimum(tl.maximum(ly - reach, 0.5), height + 1.0) - 0.5).to(tl.int32)
    right = tl.floor(tl.minimum(tl.maximum(hx + reach, -1.0), width + 1.0) - 0.5).to(tl.int32)
    bottom = tl.floor(tl.minimum(tl.maximum(hy + reach, -1.0), height + 1.0) - 0.5).to(tl.int32)
    columns = tl.maximum(tl.minimum(right, width - 1) - left + 1, 0)
    rows = tl.maximum(tl.minimum(bottom, height - 1) - top + 1, 0)
    return left, top, columns, rows


@triton.jit
def bin_of(x, BIN: tl.constexpr):
    """The column or row of bins that a coordinate lies in, from 0 to 255; 0 for NaN."""
    return tl.minimum(tl.maximum(tl.where(x == x, x, 0.0) * (1.0 / BIN), 0.0), 255.0).to(tl.int32)


@triton.jit
def load_box(boxes, index, stride, live):
    lx = tl.load(boxes + index, mask=live, other=NOWHERE)
    ly = tl.load(boxes + stride + index, mask=live, other=NOWHERE)
    hx = tl.load(boxes + 2 * stride + index, mask=live, other=-NOWHERE)
    hy = tl.load(boxes + 3 * stride + index, mask=live, other=-NOWHERE)
    return lx, ly, hx, hy


@triton.jit
def in_bin(spans, index, padded, column, row):
    """1 for faces whose span holds the bin."""
    word = tl.load(spans + index, mask=index < padded, other=255)
    across = ((word & 255) <= column) & (((word >> 8) & 255) >= column)
    return tl.where(across & (((word >> 16) & 255) <= row) & (((word >> 24) & 255) >= row), 1, 0)


@kernel
def bin_kernel(
    counters, scratch, blocks, bins_x, bins, capacity, scratch_stride,
    JOBS: tl.constexpr, BLOCK: tl.constexpr, STEP: tl.constexpr,
):  # fmt: skip
    place, slot = tl.program_id(0), tl.program_id(1).to(tl.int64)
    column, row = place % bins_x, place // bins_x
    # Known to be multiples of a block, so that loads are wide
    padded = blocks * BLOCK
    spans = tl.multiple_of(scratch, 16) + tl.multiple_of(slot * scratch_stride, 16)
    lists = spans + padded
    heads = lists + capacity
    order = heads + 2 * bins
    counters += slot * (COUNTERS + 2 * JOBS)
    step = tl.arange(0, STEP)
    found = tl.zeros([STEP], dtype=tl.int32)
    for first in range(0, padded, STEP):
        found += in_bin(spans, first + step, padded, column, row)
    count = tl.sum(found, axis=0)
    head = heads + place * 2
    start = 0
    if count > 0:
        start = tl.atomic_add(counters, count, sem="relaxed")
    # Bins with more than their share come first, so that no long ones are left at the end; the others from behind
    if count.to(tl.int64) * bins > tl.load(counters + 3):
        rank = tl.atomic_add(counters + 1, 1, sem="relaxed")
    else:
        rank = bins - 1 - tl.atomic_add(counters + 2, 1, sem="relaxed")
    tl.store(order + rank, place)
    # Lists lie in the pool in any order, but each is itself in order of faces
    start = tl.where(start + count <= capacity, start, -1)
    tl.store(head, start)
    tl.store(head + 1, count)
    if (count > 0) & (start >= 0):
        target = lists + start
        for first in range(0, padded, STEP):
            hit = in_bin(spans, first + step, padded, column, row)
            here = tl.sum(hit, axis=0)
            # Neighbours in a mesh are often neighbours in its list, so most steps find none
            if here > 0:
                behind = tl.cumsum(hit, axis=0) - 1
                tl.store(target + behind, first + step, mask=hit != 0)
            target += here


@triton.jit
def load_edges(points, a, b, c, live):
    """Two edges of faces, from corner a to b and to c."""
    start = load_vector(points, a, live)
    return minus(load_vector(points, b, live), start), minus(load_vector(points, c, live), start)


@kernel
def sum_areas_kernel(points, faces, sums, counters, count, rows, points_stride, clear_counters, BLOCK: tl.constexpr):
    """Add each face's area vector and the squares of two of its edges to its vertices: four numbers each.

    Clears the counters of the next kernel.
    """
    clear(counters, clear_counters, BLOCK)
    item = tl.program_id(1).to(tl.int64)
    f = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    live = f < count
    a, b, c = load_corners(faces, f, live)
    e, f = load_edges(points + item * points_stride, a, b, c, live)
    area, square = cross(e, f), dot(e, e) + dot(f, f)
    sums += item * rows * 4
    for vertex in tl.static_range(3):
        place = (a, b, c)[vertex]
        add_vector(sums, place, area, live, 4)
        tl.atomic_add(sums + place * 4 + 3, square, mask=live, sem="relaxed")


@triton.jit
def load_area(sums, v, live):
    """The sums of areas and of squares at a vertex."""
    x, y = load_live(sums + v * 4, live), load_live(sums + v * 4 + 1, live)
    z, square = load_live(sums + v * 4 + 2, live), load_live(sums + v * 4 + 3, live)
    return (x, y, z), square


@triton.jit
def normal_at(normals, v, live, AREAS: tl.constexpr):
    """The normal of a vertex; AREAS: from the sums of its areas."""
    if AREAS:
        area, square = load_area(normals, v, live)
        area, _square, _by_size, scale = guarded_area(area, square)
        normal = times(area, scale)
    else:
        normal = load_vector(normals, v, live)
    return normal


@kernel
def normals_kernel(sums, normals, rows, BLOCK: tl.constexpr):
    """Areas as directions."""
    v = tl.program_id(1).to(tl.int64) * rows + tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    live = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK) < rows
    store_vector(normals, v, normal_at(sums, v, live, True), live)


@triton.jit
def sums_back(sums, grad_normals, v, live):
    """From gradients by normals to gradients by the sums of a vertex's areas and squares."""
    area, square = load_area(sums, v, live)
    return guarded_area_back(area, square, load_vector(grad_normals, v, live))


@kernel
def spread_normals_kernel(
    points, faces, sums, grad_normals, grad_points, count, rows, points_stride, BLOCK: tl.constexpr
):
    """From gradients by the vertices' normals to gradients by the points, which they are added to."""
    item = tl.program_id(1).to(tl.int64)
    f = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    live = f < count
    a, b, c = load_corners(faces, f, live)
    e, f = load_edges(points + item * points_stride, a, b, c, live)
    sums += item * rows * 4
    grad_normals += item * rows * 3
    g, square = sums_back(sums, grad_normals, a, live)
    g1, square1 = sums_back(sums, grad_normals, b, live)
    g2, square2 = sums_back(sums, grad_normals, c, live)
    by_b, by_c = area_back(e, f, plus(plus(g, g1), g2), square + square1 + square2)
    grad_points += item * rows * 3
    add_vector(grad_points, b, by_b, live, 3)
    add_vector(grad_points, c, by_c, live, 3)
    add_vector(grad_points, a, times(plus(by_b, by_c), -1.0), live, 3)

"""Triton kernels of the smooth rasteriser: the setup of faces, and the forward pass.

`setup_kernel` writes a record per face (corners, edge directions, and the planes over which depth, attributes and their
common denominator are linear) and its bounding box. `bin_kernel` lists, for each bin of BIN x BIN pixels, the faces within
reach of it, in order; a bin whose list does not fit says so. `forward_kernel` has one program per small tile of pixels: it
looks through its bin's list, or through all faces where there is none, and streams those within its reach through a
running soft minimum. Nothing is ever left out, and nothing waits for the host.
"""

from __future__ import annotations

import triton
import triton.language as tl

from .triton_math import (
    FAR,
    FLIP,
    GUARD,
    LATERAL_WEIGHT,
    LOG2E,
    NOWHERE,
    PI,
    SIZES,
    beyond,
    bits_of,
    coverage,
    log_complement,
    lowest_bit,
    mean_position,
    reciprocal,
    short_of_one,
    smooth_step,
)


@triton.jit
def project_corner(points, index, live, near, PERSPECTIVE: tl.constexpr):
    """Screen x, y, depth, 1/w and presence of a point, with the point's own two numbers."""
    px = tl.load(points + index * 3, mask=live, other=0.0)
    py = tl.load(points + index * 3 + 1, mask=live, other=0.0)
    z = tl.load(points + index * 3 + 2, mask=live, other=0.0)
    if PERSPECTIVE:
        inverse = 1.0 / tl.maximum(z, 0.5 * near)
    else:
        inverse = z * 0.0 + 1.0
    x = tl.minimum(tl.maximum(px * inverse, -FAR), FAR)
    y = tl.minimum(tl.maximum(py * inverse, -FAR), FAR)
    presence, slope = smooth_step(z / near - 1.0)
    # Minimum and maximum drop NaN; the sum brings it back
    return x + px * 0.0, y + py * 0.0, z, inverse, presence, slope


@triton.jit
def direction(ex, ey):
    """The unit vector along an edge, and its length along it."""
    if ex.dtype == tl.float64:
        r = 1.0 / tl.sqrt(ex * ex + ey * ey + GUARD * GUARD)
    else:
        r = 1.0 / tl.sqrt(ex * ex + ey * ey + GUARD)
    return ex * r, ey * r, (ex * ex + ey * ey) * r


@triton.jit
def face_factor(area, TWO_SIDED: tl.constexpr):
    """The factor that makes a signed coverage positive, and its slope."""
    front, slope = smooth_step(area / FLIP)
    if TWO_SIDED:
        back, back_slope = smooth_step(-area / FLIP)
        front, slope = front - back, slope + back_slope
    return front, slope / FLIP


@triton.jit(do_not_specialize=SIZES)
def setup_kernel(
    points, attributes, softness, faces, attribute_faces, records, boxes, spans, filled, jobs,
    count, blocks, points_stride, attributes_stride, softness_stride, channels, first_channel, height, width, limit,
    WIDTH: tl.constexpr, CHANNELS: tl.constexpr, PERSPECTIVE: tl.constexpr, TWO_SIDED: tl.constexpr, BLOCK: tl.constexpr,
    HALF: tl.constexpr, REACH: tl.constexpr, BIN: tl.constexpr, JOBS: tl.constexpr,
):  # fmt: skip
    padded = blocks * BLOCK
    item = tl.program_id(1).to(tl.int64)
    f = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    live = f < count
    near = tl.load(softness + item * softness_stride + 2)
    ia = tl.load(faces + f * 3, mask=live, other=0).to(tl.int64)
    ib = tl.load(faces + f * 3 + 1, mask=live, other=0).to(tl.int64)
    ic = tl.load(faces + f * 3 + 2, mask=live, other=0).to(tl.int64)
    points += item * points_stride
    ax, ay, az, aw, ap, _sa = project_corner(points, ia, live, near, PERSPECTIVE)
    bx, by, bz, bw, bp, _sb = project_corner(points, ib, live, near, PERSPECTIVE)
    cx, cy, cz, cw, cp, _sc = project_corner(points, ic, live, near, PERSPECTIVE)
    area = (by - ay) * (cx - ax) - (bx - ax) * (cy - ay)
    factor, _slope = face_factor(area, TWO_SIDED)
    factor = factor * ap * bp * cp
    rest = area * 0.0 + az * 0.0 + bz * 0.0 + cz * 0.0 + near * 0.0
    broken = rest != rest
    seen = live & ((factor != 0.0) | broken)
    inverse = area / (area * area + FLIP * FLIP)

    record = records + (item * count + f) * WIDTH
    tl.store(record + 0, ax, mask=live)
    tl.store(record + 1, ay, mask=live)
    tl.store(record + 2, bx, mask=live)
    tl.store(record + 3, by, mask=live)
    tl.store(record + 4, cx, mask=live)
    tl.store(record + 5, cy, mask=live)
    ux, uy, length = direction(bx - ax, by - ay)
    tl.store(record + 6, ux, mask=live)
    tl.store(record + 7, uy, mask=live)
    tl.store(record + 12, length, mask=live)
    ux, uy, length = direction(cx - bx, cy - by)
    tl.store(record + 8, ux, mask=live)
    tl.store(record + 9, uy, mask=live)
    tl.store(record + 13, length, mask=live)
    ux, uy, length = direction(ax - cx, ay - cy)
    tl.store(record + 10, ux, mask=live)
    tl.store(record + 11, uy, mask=live)
    tl.store(record + 14, length, mask=live)
    tl.store(record + 15, tl.where(broken, float("nan"), factor * (0.5 / PI)), mask=live)

    # Each corner's weight is w' (1/3 + cross(x - g, opposite edge) inverse): linear in x - g
    a0, a1, a2 = aw / 3, aw * inverse * (cy - by), -aw * inverse * (cx - bx)
    b0, b1, b2 = bw / 3, bw * inverse * (ay - cy), -bw * inverse * (ax - cx)
    c0, c1, c2 = cw / 3, cw * inverse * (by - ay), -cw * inverse * (bx - ax)
    tl.store(record + 16, a0 + b0 + c0, mask=live)
    tl.store(record + 17, a1 + b1 + c1, mask=live)
    tl.store(record + 18, a2 + b2 + c2, mask=live)
    tl.store(record + 19, az * a0 + bz * b0 + cz * c0, mask=live)
    tl.store(record + 20, az * a1 + bz * b1 + cz * c1, mask=live)
    tl.store(record + 21, az * a2 + bz * b2 + cz * c2, mask=live)
    attributes += item * attributes_stride + first_channel
    ja = tl.load(attribute_faces + f * 3, mask=live, other=0).to(tl.int64) * channels
    jb = tl.load(attribute_faces + f * 3 + 1, mask=live, other=0).to(tl.int64) * channels
    jc = tl.load(attribute_faces + f * 3 + 2, mask=live, other=0).to(tl.int64) * channels
    for c in tl.static_range(CHANNELS):
        fa = tl.load(attributes + ja + c, mask=live, other=0.0)
        fb = tl.load(attributes + jb + c, mask=live, other=0.0)
        fc = tl.load(attributes + jc + c, mask=live, other=0.0)
        tl.store(record + (23 + 3 * c), fa * a0 + fb * b0 + fc * c0, mask=live)
        tl.store(record + (24 + 3 * c), fa * a1 + fb * b1 + fc * c1, mask=live)
        tl.store(record + (25 + 3 * c), fa * a2 + fb * b2 + fc * c2, mask=live)

    lx = tl.where(seen, tl.where(broken, -NOWHERE, tl.minimum(tl.minimum(ax, bx), cx)), NOWHERE)
    ly = tl.where(seen, tl.where(broken, -NOWHERE, tl.minimum(tl.minimum(ay, by), cy)), NOWHERE)
    hx = tl.where(seen, tl.where(broken, NOWHERE, tl.maximum(tl.maximum(ax, bx), cx)), -NOWHERE)
    hy = tl.where(seen, tl.where(broken, NOWHERE, tl.maximum(tl.maximum(ay, by), cy)), -NOWHERE)
    box = boxes + item * 4 * padded + f
    tl.store(box, lx)
    tl.store(box + padded, ly)
    tl.store(box + 2 * padded, hx)
    tl.store(box + 3 * padded, hy)
    scale = tl.load(softness + item * softness_stride)
    if BIN > 0:
        # Columns and rows of bins within reach, a byte each; a scale of NaN is within reach of everything
        reach = REACH * tl.sqrt(2 * HALF * scale * scale)
        word = bin_of(lx - reach, BIN) | (bin_of(ly - reach, BIN) << 16)
        word |= bin_of(tl.where(reach == reach, hx + reach, NOWHERE), BIN) << 8
        word |= bin_of(tl.where(reach == reach, hy + reach, NOWHERE), BIN) << 24
        tl.store(spans + item * padded + f, tl.where(seen, word, 255))
        across = ((word >> 8) & 255) - (word & 255) + 1
        down = ((word >> 24) & 255) - ((word >> 16) & 255) + 1
        tl.atomic_add(filled + 4 * item + 3, tl.sum(tl.where(seen, across * down, 0), axis=0), sem="relaxed")
    least = 0.5 * tl.minimum(tl.minimum(aw, bw), cw)
    if JOBS > 0:
        # Large faces are cut into bands of rows for several programs of the backward pass; a minus sign says so
        _left, _top, columns, rows = window(lx, ly, hx, hy, scale, height, width, HALF, REACH)
        band = tl.maximum(limit // tl.maximum(columns, 1), 1)
        parts = tl.where(columns * rows > limit, (rows + band - 1) // band, 0)
        queue = jobs + item * (2 * JOBS + 2)
        slot = tl.atomic_add(queue + parts * 0, parts, mask=parts > 0, sem="relaxed")
        cut = (parts > 0) & (slot + parts <= JOBS)
        least = tl.where(cut, -least, least)
        for part in range(tl.max(parts, axis=0)):
            job = queue + 2 + (slot + part) * 2
            mine = (part < parts) & (slot + part < JOBS)
            tl.store(job, tl.where(cut, f, -1), mask=mine)
            tl.store(job + 1, part * band, mask=mine)
    tl.store(record + 22, least, mask=live)


@triton.jit
def window(lx, ly, hx, hy, scale, height, width, HALF: tl.constexpr, REACH: tl.constexpr):
    """Left, top, columns and rows of the pixels whose centres come within reach of a box."""
    reach = REACH * tl.sqrt(2 * HALF * scale * scale)
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


@triton.jit(do_not_specialize=SIZES)
def bin_kernel(
    spans, lists, heads, order, filled,
    blocks, bins_x, bins, capacity,
    BLOCK: tl.constexpr, STEP: tl.constexpr,
):  # fmt: skip
    place, item = tl.program_id(0), tl.program_id(1).to(tl.int64)
    column, row = place % bins_x, place // bins_x
    # Known to be a multiple of the block, so that loads are wide
    padded = blocks * BLOCK
    spans += item * padded
    step = tl.arange(0, STEP)
    found = tl.zeros([STEP], dtype=tl.int32)
    for first in range(0, padded, STEP):
        found += in_bin(spans, first + step, padded, column, row)
    count = tl.sum(found, axis=0)
    head = heads + (item * bins + place) * 2
    start = 0
    if count > 0:
        start = tl.atomic_add(filled + 4 * item, count, sem="relaxed")
    # Bins with more than their share come first, so that no long ones are left at the end; the others from behind
    if count.to(tl.int64) * bins > tl.load(filled + 4 * item + 3):
        rank = tl.atomic_add(filled + 4 * item + 1, 1, sem="relaxed")
    else:
        rank = bins - 1 - tl.atomic_add(filled + 4 * item + 2, 1, sem="relaxed")
    tl.store(order + item * bins + rank, place)
    # Lists lie in the pool in any order, but each is itself in order of faces
    start = tl.where(start + count <= capacity, start, -1)
    tl.store(head, start)
    tl.store(head + 1, count)
    if (count > 0) & (start >= 0):
        target = lists + item * capacity + start
        for first in range(0, padded, STEP):
            hit = in_bin(spans, first + step, padded, column, row)
            behind = tl.cumsum(hit, axis=0) - 1
            tl.store(target + behind, first + step, mask=hit != 0)
            target += tl.sum(hit, axis=0)


@triton.jit
def bounded(total, POWER):
    """S / (1 + S^k)^(1/k), by the k-th power of the smaller of S and 1/S."""
    size = tl.abs(total)
    large = size > 1.0
    small = tl.where(large, 1.0 / tl.where(large, size, 1.0), size)
    # S = 0: log2 of a tiny number instead of -inf
    raised = tl.exp2(POWER * tl.log2(tl.maximum(small, 1e-37)))
    root = tl.exp2(tl.log2(1.0 + raised) * (-1.0 / POWER))
    return tl.where(large, tl.where(total < 0, -root, root), total * root)


@triton.jit(do_not_specialize=SIZES)
def forward_kernel(
    records, boxes, lists, heads, order, softness, background, image, silhouette, depth, saved,
    count, padded, bins_x, bins, capacity, height, width, tiles_x, softness_stride, background_stride,
    channels, first_channel, planes,
    WIDTH: tl.constexpr, CHANNELS: tl.constexpr, HALF: tl.constexpr, BOUNDED: tl.constexpr, REACH: tl.constexpr,
    POWER: tl.constexpr, FIRST: tl.constexpr, BIN: tl.constexpr, TX: tl.constexpr, TY: tl.constexpr,
):  # fmt: skip
    tile, item = tl.program_id(0), tl.program_id(1).to(tl.int64)
    lane = tl.arange(0, TX * TY)
    if BIN > 0:
        place = tl.load(order + item * bins + tile // ((BIN // TX) * (BIN // TY)))
        tile = tile % ((BIN // TX) * (BIN // TY))
        left, top = (
            (place % bins_x) * BIN + (tile % (BIN // TX)) * TX,
            (place // bins_x) * BIN + (tile // (BIN // TX)) * TY,
        )
    else:
        left, top = (tile % tiles_x) * TX, (tile // tiles_x) * TY
    col, row = left + lane % TX, top + lane // TX
    scale = tl.load(softness + item * softness_stride)
    steepness = tl.load(softness + item * softness_stride + 1)
    sigma2 = 2 * HALF * scale * scale
    reach2 = (REACH * REACH) * sigma2
    by_reach2 = 1.0 / reach2
    qx, qy = col.to(scale.dtype) + 0.5, row.to(scale.dtype) + 0.5
    x0, y0 = left.to(scale.dtype) + 0.5, top.to(scale.dtype) + 0.5
    x1, y1 = x0 + (TX - 1), y0 + (TY - 1)
    records += item * count * WIDTH
    boxes += item * 4 * padded
    step = tl.arange(0, 32)
    if BIN > 0:
        head = heads + (item * bins + place) * 2
        begin, end = tl.load(head), tl.load(head + 1)
        listed = begin >= 0
        end = tl.where(listed, end, padded)
        # A bin may reach over the image's edge; its tiles there have nothing to do
        end = tl.where((left < width) & (top < height), end, 0)
        own = lists + item * capacity + tl.maximum(begin, 0)
    else:
        end = padded

    zero = qx * 0.0
    peak, norm, total, depths = zero - 1e30, zero, zero, zero
    sum0, sum1, sum2, sum3 = zero, zero, zero, zero
    for start in range(0, end, 32):
        live = start + step < end
        index = start + step
        if BIN > 0:
            index = tl.where(listed, tl.load(own + index, mask=live & (index * 0 + begin >= 0), other=0), index)
        lx, ly, hx, hy = load_box(boxes, index, padded, live)
        near = bits_of(beyond(lx, ly, hx, hy, x0, y0, x1, y1, reach2) == 0, step)
        while near != 0:
            face = start + lowest_bit(near)
            near = near & (near - 1)
            if BIN > 0:
                face = tl.where(listed, tl.load(own + tl.where(listed, face, 0)), face)
            r = records + face.to(tl.int64) * WIDTH
            ax, ay = tl.load(r), tl.load(r + 1)
            bx, by = tl.load(r + 2), tl.load(r + 3)
            cx, cy = tl.load(r + 4), tl.load(r + 5)
            p, mx, my, _a, _b, _c, _d, _e, _f, _g, _h, _i, _j, _k, _l, _m, _n, _o = coverage(
                ax - qx, ay - qy, bx - qx, by - qy, cx - qx, cy - qy,
                tl.load(r + 6), tl.load(r + 7), tl.load(r + 8), tl.load(r + 9), tl.load(r + 10), tl.load(r + 11),
                tl.load(r + 12), tl.load(r + 13), tl.load(r + 14), sigma2, HALF,
            )  # fmt: skip
            px, py, wx, wy, _inverse, _rough = mean_position(
                p, mx, my, qx - (ax + bx + cx) * (1.0 / 3.0), qy - (ay + by + cy) * (1.0 / 3.0)
            )
            c = p * tl.load(r + 15)
            denominator = tl.load(r + 16) + px * tl.load(r + 17) + py * tl.load(r + 18)
            weight = reciprocal(tl.maximum(denominator, tl.abs(tl.load(r + 22))))
            z = (tl.load(r + 19) + px * tl.load(r + 20) + py * tl.load(r + 21)) * weight
            side = tl.minimum((wx * wx + wy * wy) * by_reach2, 1e3)
            side = side * side
            burden = (steepness * z + LATERAL_WEIGHT * side * side) * LOG2E
            # No coverage at all counts as the least there is: what is then mixed, the silhouette leaves out
            e = tl.log2(tl.maximum(c, 1.2e-38)) - burden
            top_e = tl.maximum(peak, e)
            fade = tl.exp2(peak - top_e)
            e = tl.exp2(e - top_e)
            peak = top_e
            norm = norm * fade + e
            depths = depths * fade + e * z
            if BOUNDED:
                total += c
            else:
                total += log_complement(short_of_one(c))
            e = e * weight
            sum0 = sum0 * fade + e * (tl.load(r + 23) + px * tl.load(r + 24) + py * tl.load(r + 25))
            if CHANNELS > 1:
                sum1 = sum1 * fade + e * (tl.load(r + 26) + px * tl.load(r + 27) + py * tl.load(r + 28))
            if CHANNELS > 2:
                sum2 = sum2 * fade + e * (tl.load(r + 29) + px * tl.load(r + 30) + py * tl.load(r + 31))
            if CHANNELS > 3:
                sum3 = sum3 * fade + e * (tl.load(r + 32) + px * tl.load(r + 33) + py * tl.load(r + 34))

    seen = norm > 0
    inverse = tl.where(seen, 1.0 / tl.where(seen, norm, 1.0), 0.0)
    if BOUNDED:
        s = bounded(total, POWER)
    else:
        s = tl.where(
            total > -0.01, -total * (1.0 + total * (0.5 + total * (1.0 / 6.0 + total / 24.0))), 1.0 - tl.exp(total)
        )
    live = (col < width) & (row < height)
    area = height * width
    at = row * width + col
    pixel = item * area + at
    background += item * background_stride
    store = saved + item * planes * area + at
    if FIRST:
        mean = depths * inverse
        tl.store(silhouette + pixel, s, mask=live)
        tl.store(depth + pixel, s * mean + (1.0 - s) * tl.load(background + channels), mask=live)
        lse = tl.where(seen, peak + tl.log2(tl.where(seen, norm, 1.0)), 1e30)
        tl.store(store, lse, mask=live)
        tl.store(store + area, s, mask=live)
        tl.store(store + 2 * area, mean, mask=live)
    background += first_channel
    image += pixel * channels + first_channel
    store += (3 + first_channel) * area
    mean = sum0 * inverse
    tl.store(image, s * mean + (1.0 - s) * tl.load(background), mask=live)
    tl.store(store, mean, mask=live)
    if CHANNELS > 1:
        mean = sum1 * inverse
        tl.store(image + 1, s * mean + (1.0 - s) * tl.load(background + 1), mask=live)
        tl.store(store + area, mean, mask=live)
    if CHANNELS > 2:
        mean = sum2 * inverse
        tl.store(image + 2, s * mean + (1.0 - s) * tl.load(background + 2), mask=live)
        tl.store(store + 2 * area, mean, mask=live)
    if CHANNELS > 3:
        mean = sum3 * inverse
        tl.store(image + 3, s * mean + (1.0 - s) * tl.load(background + 3), mask=live)
        tl.store(store + 3 * area, mean, mask=live)

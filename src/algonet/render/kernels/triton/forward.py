"""The Triton kernel of the smooth rasteriser's forward pass: from faces to samples.

One program per small tile of samples looks through its bin's list, or through all faces where there is none, and streams
those within its reach through a running soft minimum. Nothing is ever left out, and nothing waits for the host.
"""

# pyright: reportAttributeAccessIssue=false
from __future__ import annotations

import triton
import triton.language as tl

from algonet.core.codegen.triton_math import log_complement, quick_exp2, reciprocal, short_of_one

from .formulas import (
    LATERAL_ROOT,
    LOG2E,
    LOG_NORM,
    MEAN_DEPTH,
    MEANS,
    POINTERS,
    SIZES,
    TOTAL,
    bits_of,
    coverage,
    distance2,
    load_four,
    lowest_bit,
    mean_position,
    small_coverage,
)
from .sampling import sample_grid, split
from .setup import load_box


@triton.jit(do_not_specialize=SIZES, do_not_specialize_on_alignment=POINTERS)
def forward_kernel(
    work, scratch, softness, samples,
    first, padded, bins_x, bins, capacity, height, width, tiles_x, softness_stride, work_stride, scratch_stride,
    first_mean,
    WIDTH: tl.constexpr, CHANNELS: tl.constexpr, HALF: tl.constexpr, BOUNDED: tl.constexpr, REACH: tl.constexpr,
    SMALL: tl.constexpr, SPACING: tl.constexpr, FIRST: tl.constexpr, SAMPLE: tl.constexpr, BIN: tl.constexpr, TX: tl.constexpr,
    TY: tl.constexpr,
):  # fmt: skip
    tile, slot = tl.program_id(0), tl.program_id(1).to(tl.int64)
    item = slot + first
    lane = tl.arange(0, TX * TY)
    if BIN > 0:
        lists = scratch + slot * scratch_stride + padded
        heads = lists + capacity
        place = tl.load(heads + 2 * bins + tile // ((BIN // TX) * (BIN // TY)))
        tile = tile % ((BIN // TX) * (BIN // TY))
        left, top = (
            (place % bins_x) * BIN + (tile % (BIN // TX)) * TX,
            (place // bins_x) * BIN + (tile // (BIN // TX)) * TY,
        )
    else:
        left, top = (tile % tiles_x) * TX, (tile // tiles_x) * TY
    scale = tl.load(softness + item * softness_stride)
    spacing, margin, rows, columns = sample_grid(scale, height, width, SPACING)
    part, parts = 0, 1
    if SPACING > 0.0:  # noqa: SIM102 - known when compiled, the other is not
        if margin > 0:
            parts, across, used = split(rows, columns, height, width, tl.num_programs(0), TX, TY)
            part = tl.program_id(0) // used
            left, top = (tl.program_id(0) % used % across) * TX, (tl.program_id(0) % used // across) * TY
            if BIN > 0:
                place = (top // BIN) * bins_x + left // BIN
    col, row = left + lane % TX, top + lane // TX
    scale = scale / spacing
    steepness = tl.load(softness + item * softness_stride + 1) * LOG2E
    sigma2 = 2 * HALF * scale * scale
    reach2 = (REACH * REACH) * sigma2
    by_reach2 = LATERAL_ROOT / reach2
    qx, qy = col.to(scale.dtype) + 0.5, row.to(scale.dtype) + 0.5
    x0, y0 = left.to(scale.dtype) + 0.5, top.to(scale.dtype) + 0.5
    x1, y1 = x0 + (TX - 1), y0 + (TY - 1)
    records = work + slot * work_stride
    boxes = records + padded.to(tl.int64) * WIDTH
    step = tl.arange(0, 32)
    if BIN > 0:
        head = heads + place * 2
        begin, end = tl.load(head), tl.load(head + 1)
        listed = begin >= 0
        end = tl.where(listed, end, padded)
        own = lists + tl.maximum(begin, 0)
    else:
        end = padded
    # Bins reach over the image's edge, and wide noise leaves most of the picture without samples: nothing to do there
    end = tl.where((left < columns) & (top < rows) & (part < parts), end, 0)

    zero = qx * 0.0
    peak, norm, total, depths = zero - 1e30, zero, zero, zero
    sum0, sum1, sum2, sum3, sum4, sum5 = zero, zero, zero, zero, zero, zero
    for start in range(part * 32, end, parts * 32):
        live = start + step < end
        index = start + step
        if BIN > 0:
            index = tl.where(listed, tl.load(own + index, mask=live & (index * 0 + begin >= 0), other=0), index)
        lx, ly, hx, hy = load_box(boxes, index, padded, live)
        apart2 = distance2(lx, ly, hx, hy, x0, y0, x1, y1)
        # Not farther than the reach, which NaN never is
        within = (apart2 > reach2) == 0
        near = bits_of(within, step)
        if SMALL > 0.0:
            across2 = (hx - lx) * (hx - lx) + (hy - ly) * (hy - ly)
            # Bounded, as the square of what fills up a record is beyond float32
            ratio = tl.minimum(apart2, reach2) / sigma2 + 1.0
            small = bits_of(within & (across2 <= SMALL * sigma2 * (ratio * ratio if HALF > 3 else ratio)), step)
        while near != 0:
            first_bit = lowest_bit(near)
            face = start + first_bit
            near = near & (near - 1)
            if BIN > 0:
                face = tl.where(listed, tl.load(own + tl.where(listed, face, 0)), face)
            r = records + face.to(tl.int64) * WIDTH
            ax, ay, bx, by = load_four(r)
            cx, cy, ux0, uy0 = load_four(r + 4)
            l0, l1, l2, factor = load_four(r + 12)
            gx, gy = (ax + bx + cx) * (1.0 / 3.0), (ay + by + cy) * (1.0 / 3.0)
            exact = True
            if SMALL > 0.0:
                exact = (small >> first_bit.to(tl.uint32)) & 1 == 0
            if exact:
                ux1, uy1, ux2, uy2 = load_four(r + 8)
                p, mx, my, _a, _b, _c, _d, _e, _f, _g, _h, _i, _j, _k, _l, _m, _n, _o = coverage(
                    ax - qx, ay - qy, bx - qx, by - qy, cx - qx, cy - qy,
                    ux0, uy0, ux1, uy1, ux2, uy2, l0, l1, l2, sigma2, HALF,
                )  # fmt: skip
            else:
                p, mx, my = small_coverage(gx - qx, gy - qy, ax, ay, bx, by, gx, gy, sigma2, HALF)
            px, py, wx, wy, _inverse, _rough = mean_position(p, mx, my, qx - gx, qy - gy)
            c = p * factor
            d0, d1, d2, z0 = load_four(r + 16)
            z1, z2, least, c00 = load_four(r + 20)
            weight = reciprocal(tl.maximum(d0 + px * d1 + py * d2, tl.abs(least)))
            z = (z0 + px * z1 + py * z2) * weight
            # The lateral term and the steepness are in units of log 2
            side = tl.minimum((wx * wx + wy * wy) * by_reach2, 1e3 * LATERAL_ROOT)
            side = side * side
            # Of the exponents before and now, the lower one fades by their difference. No coverage at all counts as the least
            # there is: what is then mixed, the silhouette leaves out
            exponent = -(steepness * z + side * side)
            fade = quick_exp2(-tl.abs(exponent - peak))
            rises = exponent > peak
            e = tl.maximum(c, 1.2e-38)
            e, fade = tl.where(rises, e, e * fade), tl.where(rises, fade, 1.0)
            peak = tl.maximum(peak, exponent)
            norm = norm * fade + e
            depths = depths * fade + e * z
            if BOUNDED:
                total += c
            else:
                total += log_complement(short_of_one(tl.maximum(c, 0.0)))
            e = e * weight
            c01, c02, c10, c11 = load_four(r + 24)
            sum0 = sum0 * fade + e * (c00 + px * c01 + py * c02)
            if CHANNELS > 1:
                c12, c20, c21, c22 = load_four(r + 28)
                sum1 = sum1 * fade + e * (c10 + px * c11 + py * c12)
            if CHANNELS > 2:
                sum2 = sum2 * fade + e * (c20 + px * c21 + py * c22)
            if CHANNELS > 3:
                c30, c31, c32, c40 = load_four(r + 32)
                sum3 = sum3 * fade + e * (c30 + px * c31 + py * c32)
            if CHANNELS > 4:
                c41, c42, c50, c51 = load_four(r + 36)
                sum4 = sum4 * fade + e * (c40 + px * c41 + py * c42)
            if CHANNELS > 5:
                c52, _a, _b, _c = load_four(r + 40)
                sum5 = sum5 * fade + e * (c50 + px * c51 + py * c52)

    seen = norm > 0
    inverse = tl.where(seen, 1.0 / tl.where(seen, norm, 1.0), 0.0)
    live = (col < columns) & (row < rows) & (part < parts)
    sample = samples + (item * height * width + (part * rows + row) * columns + col) * SAMPLE
    if FIRST:
        # A sample that no face reaches has a normaliser so large that no face has a share of it
        tl.store(sample + LOG_NORM, tl.where(seen, peak + tl.log2(tl.where(seen, norm, 1.0)), 1e30), mask=live)
        tl.store(sample + TOTAL, total, mask=live)
        tl.store(sample + MEAN_DEPTH, depths * inverse, mask=live)
    sample += MEANS + first_mean
    tl.store(sample, sum0 * inverse, mask=live)
    if CHANNELS > 1:
        tl.store(sample + 1, sum1 * inverse, mask=live)
    if CHANNELS > 2:
        tl.store(sample + 2, sum2 * inverse, mask=live)
    if CHANNELS > 3:
        tl.store(sample + 3, sum3 * inverse, mask=live)
    if CHANNELS > 4:
        tl.store(sample + 4, sum4 * inverse, mask=live)
    if CHANNELS > 5:
        tl.store(sample + 5, sum5 * inverse, mask=live)


@triton.jit(do_not_specialize=SIZES, do_not_specialize_on_alignment=POINTERS)
def join_kernel(
    softness, samples, first, height, width, softness_stride, tiles,
    SAMPLE: tl.constexpr, SPACING: tl.constexpr, TX: tl.constexpr, TY: tl.constexpr, P: tl.constexpr,
):  # fmt: skip
    """Put the parts of wide items' samples together: totals add up, means count by their normalisers."""
    item = tl.program_id(1).to(tl.int64) + first
    scale = tl.load(softness + item * softness_stride)
    _spacing, margin, rows, columns = sample_grid(scale, height, width, SPACING)
    if margin > 0:
        parts, _across, _used = split(rows, columns, height, width, tiles, TX, TY)
        if parts > 1:
            for start in range(tl.program_id(0) * P, rows * columns, tl.num_programs(0) * P):
                i = start + tl.arange(0, P)
                live = i < rows * columns
                own = samples + (item * height * width + i) * SAMPLE
                norm = tl.load(own + LOG_NORM, mask=live, other=1e30)
                # 1e30 says that no face is there; as a logarithm it is none
                norm = tl.where(norm > 1e29, -1e30, norm)
                for part in range(1, parts):
                    other = own + part * rows * columns * SAMPLE
                    more = tl.load(other + LOG_NORM, mask=live, other=1e30)
                    more = tl.where(more > 1e29, -1e30, more)
                    top = tl.maximum(norm, more)
                    mine, theirs = tl.exp2(norm - top), tl.exp2(more - top)
                    share = theirs / (mine + theirs)
                    tl.store(
                        own + TOTAL, tl.load(own + TOTAL, mask=live) + tl.load(other + TOTAL, mask=live), mask=live
                    )
                    for c in range(MEAN_DEPTH, SAMPLE):
                        mean = tl.load(own + c, mask=live)
                        tl.store(own + c, mean + share * (tl.load(other + c, mask=live) - mean), mask=live)
                    norm = tl.where(top > -1e29, top + tl.log2(mine + theirs), -1e30)
                tl.store(own + LOG_NORM, tl.where(norm > -1e29, norm, 1e30), mask=live)

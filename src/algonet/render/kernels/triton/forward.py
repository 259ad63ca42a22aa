"""The Triton kernel of the smooth rasteriser's forward pass: from faces to samples.

One program per small tile of samples streams the faces within its reach, from its bin's list, or from all where there is none,
several times: for the depths they lie at; to count, at seven places at a time, how much is hidden behind each, until the end of
the nearest unit of coverage is known; and to mix what lies before it. Nothing is left out or waits for the host.
"""

# pyright: reportAttributeAccessIssue=false
# ruff: noqa: RUF005 - Triton knows no starred tuples
from __future__ import annotations

import triton
import triton.language as tl

from algonet.core.codegen.triton_math import kernel

from ...vectors import FURTHEST
from .formulas import (
    BEHIND,
    DENOMINATOR,
    END,
    FRONT,
    LOG2E,
    MEAN_DEPTH,
    MEANS,
    PLANES,
    bits_of,
    coverage,
    distance2,
    kept,
    load_four,
    lowest_bit,
    seen_at,
    small_coverage,
    spread_of,
)
from .pixels import sample_grid, silhouette_of
from .setup import load_box
from .shared import load_live

#: How far beyond all depths the nearest unit may end, in units of log 2; places that one pass counts at; passes at most.
BEYOND, PLACES, PASSES = tl.constexpr(FURTHEST * 1.4426950408889634), tl.constexpr(7), tl.constexpr(40)


@triton.jit
def candidates(
    boxes, own, start, end, padded, listed, tile, reach2, sigma2,
    HALF: tl.constexpr, SMALL: tl.constexpr, BIN: tl.constexpr,
):  # fmt: skip
    """Of 32 faces from `start` on: those within reach of the tile and the small among them, as bits, and their least and
    greatest depth."""
    step = tl.arange(0, 32)
    live = start + step < end
    index = start + step
    if BIN > 0:
        index = tl.where(listed, tl.load(own + index, mask=live & listed, other=0), index)
    lx, ly, hx, hy = load_box(boxes, index, padded, live)
    apart2 = distance2(lx, ly, hx, hy, tile[0], tile[1], tile[2], tile[3])
    # Not farther than the reach, which NaN never is
    within = (apart2 > reach2) == 0
    small = within & False
    if SMALL > 0.0:
        across2 = (hx - lx) * (hx - lx) + (hy - ly) * (hy - ly)
        # Bounded, as the square of what fills up a record is beyond float32
        ratio = tl.minimum(apart2, reach2) / sigma2 + 1.0
        small = within & (across2 <= SMALL * sigma2 * (ratio * ratio if HALF > 3 else ratio))
    mine = within & live
    low = tl.min(tl.load(boxes + 4 * padded + index, mask=mine, other=1e30), axis=0)
    high = tl.max(tl.load(boxes + 5 * padded + index, mask=mine, other=-1e30), axis=0)
    return bits_of(mine, step), bits_of(small, step), low, high


@triton.jit
def next_face(own, start, near, listed, BIN: tl.constexpr):
    """The first face of some bits, the bits that are left, and its place among them."""
    bit = lowest_bit(near)
    face = start + bit
    if BIN > 0:
        face = tl.where(listed, tl.load(own + tl.where(listed, face, 0)), face)
    return face, near & (near - 1), bit


@triton.jit
def see(
    r, small, bit, qx, qy, sigma2, steepness,
    HALF: tl.constexpr, SMALL: tl.constexpr, PERSPECTIVE: tl.constexpr, TWO_SIDED: tl.constexpr,
):  # fmt: skip
    """What pixels see of a face: coverage, how much of it from the front, its place in depth, depth, weight, and position."""
    ax, ay, bx, by = load_four(r)
    cx, cy, ux0, uy0 = load_four(r + 4)
    l0, l1, l2, factor = load_four(r + 12)
    gx, gy = (ax + bx + cx) * (1.0 / 3.0), (ay + by + cy) * (1.0 / 3.0)
    exact = True
    if SMALL > 0.0:
        exact = (small >> bit.to(tl.uint32)) & 1 == 0
    if exact:
        ux1, uy1, ux2, uy2 = load_four(r + 8)
        found = coverage(
            ax - qx, ay - qy, bx - qx, by - qy, cx - qx, cy - qy, ux0, uy0, ux1, uy1, ux2, uy2, l0, l1, l2, sigma2, HALF
        )
        p, mx, my = found[0], found[1], found[2]
        spread = spread_of(p, mx, my, found[3], HALF)
    else:
        p, mx, my = small_coverage(gx - qx, gy - qy, ax, ay, bx, by, gx, gy, sigma2, HALF)
        # That of a triangle in even density
        square = p * p * (1.0 / 12.0)
        xx = (ax - gx) * (ax - gx) + (bx - gx) * (bx - gx) + (cx - gx) * (cx - gx)
        xy = (ax - gx) * (ay - gy) + (bx - gx) * (by - gy) + (cx - gx) * (cy - gy)
        yy = (ay - gy) * (ay - gy) + (by - gy) * (by - gy) + (cy - gy) * (cy - gy)
        spread = (square * xx, square * xy, square * yy)
    d0, d1, d2, z0 = load_four(r + DENOMINATOR)
    z1, z2, least, turn = load_four(r + (DENOMINATOR + 4))
    mean, _centre, sides = seen_at(
        p, mx, my, spread, qx - gx, qy - gy, (d0, d1, d2), (z0, z1, z2), tl.abs(least), turn, factor, steepness, PERSPECTIVE,
        TWO_SIDED,
    )  # fmt: skip
    return sides[0], sides[1], sides[4], mean[4], mean[3], mean[0], mean[1]


@triton.jit
def log_ratio(lost, total):
    """log2 of what is hidden over what is not."""
    return tl.log2(tl.maximum(lost, 1e-30)) - tl.log2(tl.maximum(total - lost, 1e-30))


@triton.jit
def unit_end(low, high, low_lost, high_lost, hidden, total):
    """Where as much is hidden as should be, between two places: what is hidden falls like a logistic there."""
    a, b = log_ratio(low_lost, total), log_ratio(high_lost, total)
    share = (a - log_ratio(hidden, total)) / tl.where(a > b, a - b, 1.0)
    return low + (high - low) * tl.where(a > b, tl.minimum(tl.maximum(share, 0.0), 1.0), 0.5)


@kernel
def forward_kernel(
    work, scratch, softness, samples,
    first, padded, bins_x, bins, capacity, height, width, tiles_x, softness_stride, work_stride, scratch_stride,
    first_mean,
    WIDTH: tl.constexpr, CHANNELS: tl.constexpr, HALF: tl.constexpr, POWER: tl.constexpr, REACH: tl.constexpr,
    SMALL: tl.constexpr, SPACING: tl.constexpr, FIRST: tl.constexpr, SAMPLE: tl.constexpr, PERSPECTIVE: tl.constexpr,
    TWO_SIDED: tl.constexpr, PRECISE: tl.constexpr, BIN: tl.constexpr, TX: tl.constexpr, TY: tl.constexpr,
):  # fmt: skip
    tile, slot = tl.program_id(0), tl.program_id(1).to(tl.int64)
    item = slot + first
    lane = tl.arange(0, TX * TY)
    scale = tl.load(softness + item * softness_stride)
    spacing, _margin, rows, columns = sample_grid(scale, height, width, SPACING)
    records = work + slot * work_stride
    boxes = records + padded.to(tl.int64) * WIDTH
    if BIN > 0:
        lists = scratch + slot * scratch_stride + padded
        heads = lists + capacity
        bin_at = tl.load(heads + 2 * bins + tile // ((BIN // TX) * (BIN // TY)))
        tile = tile % ((BIN // TX) * (BIN // TY))
        left, top = (
            (bin_at % bins_x) * BIN + (tile % (BIN // TX)) * TX,
            (bin_at // bins_x) * BIN + (tile // (BIN // TX)) * TY,
        )
        begin, end = tl.load(heads + bin_at * 2), tl.load(heads + bin_at * 2 + 1)
        listed = begin >= 0
        end = tl.where(listed, end, padded)
        own = lists + tl.maximum(begin, 0)
    else:
        left, top = (tile % tiles_x) * TX, (tile // tiles_x) * TY
        listed, end, own = False, padded, scratch
    # Bins reach over the image's edge, and wide noise leaves most of the picture without samples: nothing to do there
    end = tl.where((left < columns) & (top < rows), end, 0)
    col, row = left + lane % TX, top + lane // TX
    scale = scale / spacing
    steepness = 2.0 * tl.load(softness + item * softness_stride + 1) * LOG2E
    sigma2 = 2 * HALF * scale * scale
    reach2 = (REACH * REACH) * sigma2
    qx, qy = col.to(scale.dtype) + 0.5, row.to(scale.dtype) + 0.5
    x0, y0 = left.to(scale.dtype) + 0.5, top.to(scale.dtype) + 0.5
    sides = (x0, y0, x0 + (TX - 1), y0 + (TY - 1))
    live = (col < columns) & (row < rows)
    sample = samples + (item * height * width + row * columns + col) * SAMPLE
    zero = qx * 0.0

    if FIRST:
        nearest, farthest = scale * 0.0 + 1e30, scale * 0.0 - 1e30
        for start in range(0, end, 32):
            _near, _small, low, high = candidates(
                boxes, own, start, end, padded, listed, sides, reach2, sigma2, HALF, SMALL, BIN
            )
            nearest, farthest = tl.minimum(nearest, low), tl.maximum(farthest, high)
        end = tl.where(nearest <= farthest, end, 0)
        nearest = tl.where(nearest <= farthest, steepness * nearest, 0.0)
        farthest = tl.where(end > 0, steepness * farthest, 0.0)
        lowest, highest = zero + (nearest - BEYOND), zero + (farthest + BEYOND)
        low_end, high_end, low_lost, high_lost = lowest, highest, zero, zero
        by_front, by_back, hidden = zero, zero, zero
        place0, gap = zero + nearest, zero + (farthest - nearest) * (1.0 / (PLACES - 1))
        turns = tl.where(end > 0, 0, PASSES)
        while turns < PASSES:
            by_front, by_back = zero, zero
            lost = (zero,) * PLACES
            for start in range(0, end, 32):
                near, small, _low, _high = candidates(
                    boxes, own, start, end, padded, listed, sides, reach2, sigma2, HALF, SMALL, BIN
                )
                while near != 0:
                    face, near, bit = next_face(own, start, near, listed, BIN)
                    c, front, place, _z, _weight, _px, _py = see(
                        records + face.to(tl.int64) * WIDTH, small, bit, qx, qy, sigma2, steepness, HALF, SMALL, PERSPECTIVE,
                        TWO_SIDED,
                    )  # fmt: skip
                    if TWO_SIDED:
                        by_front, by_back = by_front + c * front, by_back + c * (1.0 - front)
                    else:
                        by_front += c
                    more = ()
                    for k in tl.static_range(PLACES):
                        more = more + (lost[k] + c * kept(place, place0 + k * gap),)
                    lost = more
            total = by_front + by_back
            hidden = tl.maximum(total - silhouette_of(by_front, by_back, POWER), 0.0)
            low_lost = tl.where(turns == 0, total, low_lost)
            for k in tl.static_range(PLACES):
                above = lost[k] > hidden
                low_end = tl.where(above, place0 + k * gap, low_end)
                low_lost = tl.where(above, lost[k], low_lost)
            for k in tl.static_range(PLACES):
                below = (lost[PLACES - 1 - k] > hidden) == 0
                high_end = tl.where(below, place0 + (PLACES - 1 - k) * gap, high_end)
                high_lost = tl.where(below, lost[PLACES - 1 - k], high_lost)
            gap = (high_end - low_end) * (1.0 / (PLACES + 1))
            place0 = low_end + gap
            # Between places that hide as much, any will do
            unsure = (hidden > 1e-12 * total) & (low_lost - high_lost > PRECISE * 1e-5 * total)
            widest = tl.max(tl.where(unsure, high_end - low_end, 0.0), axis=0)
            turns = tl.where(widest > PRECISE, turns + 1, PASSES)
        total = by_front + by_back
        found = unit_end(low_end, high_end, low_lost, high_lost, hidden, total)
        y, silhouette = tl.where(hidden > 1e-12 * total, found, highest), total - hidden
        tl.store(sample + FRONT, by_front, mask=live)
        tl.store(sample + BEHIND, by_back, mask=live)
    else:
        y = load_live(sample + END, live)
        silhouette = silhouette_of(load_live(sample + FRONT, live), load_live(sample + BEHIND, live), POWER)

    norm, slope = zero, zero
    sums, slopes = (zero,) * (CHANNELS + 1), (zero,) * (CHANNELS + 1)
    for start in range(0, end, 32):
        near, small, _low, _high = candidates(
            boxes, own, start, end, padded, listed, sides, reach2, sigma2, HALF, SMALL, BIN
        )
        while near != 0:
            face, near, bit = next_face(own, start, near, listed, BIN)
            r = records + face.to(tl.int64) * WIDTH
            c, _front, place, z, weight, px, py = see(
                r, small, bit, qx, qy, sigma2, steepness, HALF, SMALL, PERSPECTIVE, TWO_SIDED
            )
            share = kept(y, place)
            w = c * share
            u = w * (1.0 - share)
            norm, slope = norm + w, slope + u
            more, steeper = (sums[0] + w * z,), (slopes[0] + u * z,)
            w, u = w * weight, u * weight
            for k in tl.static_range(CHANNELS):
                plane = r + (PLANES + 3 * k)
                value = tl.load(plane) + px * tl.load(plane + 1) + py * tl.load(plane + 2)
                more, steeper = more + (sums[k + 1] + w * value,), steeper + (slopes[k + 1] + u * value,)
            sums, slopes = more, steeper
    # A last step of Newton's, from what was summed anyway
    step = tl.where(slope > 1e-30, (silhouette - norm) / tl.maximum(slope, 1e-30), 0.0)
    step = tl.minimum(tl.maximum(step, -PRECISE), PRECISE)
    if FIRST:
        tl.store(sample + END, y + step * LOG2E, mask=live)
    by_norm, by_slope = 1.0 / tl.maximum(norm + step * slope, 1e-30), 1.0 / tl.maximum(slope, 5e-31)
    for k in tl.static_range(CHANNELS + 1):
        if k > 0:
            store_means(
                sample + (MEANS + k - 1 + first_mean),
                sums[k] + step * slopes[k],
                slopes[k],
                by_norm,
                by_slope,
                live,
                SAMPLE,
            )
        elif FIRST:
            store_means(sample + MEAN_DEPTH, sums[k] + step * slopes[k], slopes[k], by_norm, by_slope, live, SAMPLE)


@triton.jit
def store_means(target, total, steep, by_norm, by_slope, live, SAMPLE: tl.constexpr):
    """A mean by weights and, behind those of all channels, by how much the weights change with the unit's end."""
    mean = total * by_norm
    tl.store(target, mean, mask=live)
    # Where nothing is hidden nothing depends on where it ends
    tl.store(target + (SAMPLE - MEAN_DEPTH) // 2, tl.where(by_slope < 1e30, steep * by_slope, mean), mask=live)

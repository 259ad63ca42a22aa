"""The Triton kernel of the smooth rasteriser's forward pass.

One program per small tile of pixels looks through its bin's list, or through all faces where there is none, and streams
those within its reach through a running soft minimum. Nothing is ever left out, and nothing waits for the host.
"""

from __future__ import annotations

import triton
import triton.language as tl

from algonet.core.codegen.triton_math import quick_log2, reciprocal

from .triton_math import (
    LATERAL_ROOT,
    LOG2E,
    POINTERS,
    SIZES,
    beyond,
    bits_of,
    coverage,
    load_four,
    log_complement,
    lowest_bit,
    mean_position,
    short_of_one,
)
from .triton_setup import load_box


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


@triton.jit(do_not_specialize=SIZES, do_not_specialize_on_alignment=POINTERS)
def forward_kernel(
    work, scratch, softness, background, image, silhouette, depth, saved,
    first, padded, bins_x, bins, capacity, height, width, tiles_x, softness_stride, background_stride,
    work_stride, scratch_stride, channels, first_channel,
    WIDTH: tl.constexpr, CHANNELS: tl.constexpr, HALF: tl.constexpr, BOUNDED: tl.constexpr, REACH: tl.constexpr,
    POWER: tl.constexpr, FIRST: tl.constexpr, NOTES: tl.constexpr, BIN: tl.constexpr, TX: tl.constexpr, TY: tl.constexpr,
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
    col, row = left + lane % TX, top + lane // TX
    scale = tl.load(softness + item * softness_stride)
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
        # A bin may reach over the image's edge; its tiles there have nothing to do
        end = tl.where((left < width) & (top < height), end, 0)
        own = lists + tl.maximum(begin, 0)
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
            ax, ay, bx, by = load_four(r)
            cx, cy, ux0, uy0 = load_four(r + 4)
            ux1, uy1, ux2, uy2 = load_four(r + 8)
            l0, l1, l2, factor = load_four(r + 12)
            p, mx, my, _a, _b, _c, _d, _e, _f, _g, _h, _i, _j, _k, _l, _m, _n, _o = coverage(
                ax - qx, ay - qy, bx - qx, by - qy, cx - qx, cy - qy,
                ux0, uy0, ux1, uy1, ux2, uy2, l0, l1, l2, sigma2, HALF,
            )  # fmt: skip
            px, py, wx, wy, _inverse, _rough = mean_position(
                p, mx, my, qx - (ax + bx + cx) * (1.0 / 3.0), qy - (ay + by + cy) * (1.0 / 3.0)
            )
            c = p * factor
            d0, d1, d2, z0 = load_four(r + 16)
            z1, z2, least, c00 = load_four(r + 20)
            weight = reciprocal(tl.maximum(d0 + px * d1 + py * d2, tl.abs(least)))
            z = (z0 + px * z1 + py * z2) * weight
            # The lateral term and the steepness are in units of log 2
            side = tl.minimum((wx * wx + wy * wy) * by_reach2, 1e3 * LATERAL_ROOT)
            side = side * side
            # No coverage at all counts as the least there is: what is then mixed, the silhouette leaves out
            e = quick_log2(tl.maximum(c, 1.2e-38)) - (steepness * z + side * side)
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
            c01, c02, c10, c11 = load_four(r + 24)
            sum0 = sum0 * fade + e * (c00 + px * c01 + py * c02)
            if CHANNELS > 1:
                c12, c20, c21, c22 = load_four(r + 28)
                sum1 = sum1 * fade + e * (c10 + px * c11 + py * c12)
            if CHANNELS > 2:
                sum2 = sum2 * fade + e * (c20 + px * c21 + py * c22)
            if CHANNELS > 3:
                c30, c31, c32, _none = load_four(r + 32)
                sum3 = sum3 * fade + e * (c30 + px * c31 + py * c32)

    seen = norm > 0
    inverse = tl.where(seen, 1.0 / tl.where(seen, norm, 1.0), 0.0)
    if BOUNDED:
        s = bounded(total, POWER)
    else:
        s = tl.where(
            total > -0.01, -total * (1.0 + total * (0.5 + total * (1.0 / 6.0 + total / 24.0))), 1.0 - tl.exp(total)
        )
    live = (col < width) & (row < height)
    pixel = item * height * width + row * width + col
    background += item * background_stride
    note = saved + pixel * NOTES
    if FIRST:
        mean = depths * inverse
        tl.store(silhouette + pixel, s, mask=live)
        tl.store(depth + pixel, s * mean + (1.0 - s) * tl.load(background + channels), mask=live)
        lse = tl.where(seen, peak + tl.log2(tl.where(seen, norm, 1.0)), 1e30)
        tl.store(note, lse, mask=live)
        tl.store(note + 1, s, mask=live)
        tl.store(note + 2, mean, mask=live)
    background += first_channel
    image += pixel * channels + first_channel
    note += 3 + first_channel
    mean = sum0 * inverse
    tl.store(image, s * mean + (1.0 - s) * tl.load(background), mask=live)
    tl.store(note, mean, mask=live)
    if CHANNELS > 1:
        mean = sum1 * inverse
        tl.store(image + 1, s * mean + (1.0 - s) * tl.load(background + 1), mask=live)
        tl.store(note + 1, mean, mask=live)
    if CHANNELS > 2:
        mean = sum2 * inverse
        tl.store(image + 2, s * mean + (1.0 - s) * tl.load(background + 2), mask=live)
        tl.store(note + 2, mean, mask=live)
    if CHANNELS > 3:
        mean = sum3 * inverse
        tl.store(image + 3, s * mean + (1.0 - s) * tl.load(background + 3), mask=live)
        tl.store(note + 3, mean, mask=live)

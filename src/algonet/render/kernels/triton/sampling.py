"""Triton: where the samples of a softly seen picture lie, and how pixels are interpolated from them.

Where the noise is wide against a pixel, the picture is evaluated on a coarser grid: sample j is `spacing` (j - margin) pixels
from the first pixel's centre. Each item of a batch has its own grid, by its own scale, and nothing waits for the host:
grids are never larger than the picture, and an item's samples lie one after the other where its pixels would.
"""

# pyright: reportAttributeAccessIssue=false
# ruff: noqa: RUF005 - Triton knows no starred tuples
from __future__ import annotations

import math

import triton
import triton.language as tl

from algonet.core.codegen.triton_math import kernel

from ... import constants
from .formulas import GRAD_FRONT

TAPS = tl.constexpr(constants.TAPS)
MARGIN = tl.constexpr(constants.MARGIN)
LEAST_SPACING = tl.constexpr(constants.LEAST_SPACING)
MOST_SAMPLES = tl.constexpr(constants.MOST_SAMPLES)
#: Wider spacings than this are taken to be this.
WIDEST = tl.constexpr(1e6)


@triton.jit
def sample_grid(scale, height, width, SPACING: tl.constexpr):
    """The spacing of an item's samples in pixels, those beyond the edge, rows and columns: the pixels' own if it is sharp."""
    spacing = scale * SPACING
    # NaN compares as sharp
    wide = spacing >= LEAST_SPACING
    spacing = tl.where(wide, tl.minimum(spacing, WIDEST), 1.0)
    rows = tl.ceil((height - 1) / spacing).to(tl.int32) + (1 + 2 * MARGIN)
    columns = tl.ceil((width - 1) / spacing).to(tl.int32) + (1 + 2 * MARGIN)
    few = rows.to(tl.float32) * columns.to(tl.float32) <= height.to(tl.float32) * width.to(tl.float32) * MOST_SAMPLES
    wide = wide & (rows <= height) & (columns <= width) & few
    return (
        tl.where(wide, spacing, 1.0).to(scale.dtype),
        tl.where(wide, MARGIN, 0),
        tl.where(wide, rows, height),
        tl.where(wide, columns, width),
    )


@triton.constexpr_function
def tap_factor(tap):
    """1 / product of (tap - k) over the other taps k."""
    return (-1.0) ** (constants.TAPS - 1 - tap) / (math.factorial(tap) * math.factorial(constants.TAPS - 1 - tap))


@triton.jit
def outer_product(u):
    """The product of u - k over all taps but the two that u lies between."""
    product = u * 0.0 + 1.0
    for k in tl.static_range(TAPS):
        if (k != TAPS // 2 - 1) & (k != TAPS // 2):
            product = product * (u - k)
    return product


@triton.jit
def tap_weight(u, product, tap):
    """What a sample counts at u, in samples from the first one: Lagrange's polynomial, from the `outer_product` of u.

    For taps that are known only at run time; see `fixed_tap_weight`.
    """
    factor = u * 0.0
    for k in tl.static_range(TAPS):
        factor = tl.where(tap == k, tap_factor(k), factor)
    below, above = u - (TAPS // 2 - 1), u - (TAPS // 2)
    outer = (tap != TAPS // 2 - 1) & (tap != TAPS // 2)
    inner = tl.where(tap == TAPS // 2, below, above)
    inner = tl.where(outer, below * above / tl.where(outer, u - tap, 1.0), inner)
    return product * inner * factor


@triton.jit
def fixed_tap_weight(u, product, TAP: tl.constexpr):
    """The same for one tap."""
    below, above = u - (TAPS // 2 - 1), u - (TAPS // 2)
    if TAP == TAPS // 2 - 1:
        inner = above
    elif TAP == TAPS // 2:
        inner = below
    else:
        inner = below * above / (u - TAP)
    return product * inner * tap_factor(TAP)


@triton.jit
def first_tap(place, spacing, margin):
    """For a pixel: its first sample, and how far behind it the pixel lies, in samples."""
    at = place / spacing + margin
    first = tl.floor(at) - (TAPS // 2 - 1)
    return first.to(tl.int32), at - first


@triton.jit
def add_four(found, place, weight, channel, SAMPLE: tl.constexpr):
    """Four numbers and so much of those at a place, of which there are as many as a sample has."""
    more = ()
    for k in tl.static_range(4):
        more = more + (found[k] + weight * tl.load(place + k, mask=channel + k < SAMPLE, other=0.0),)
    return more


@triton.jit
def load_samples(samples, where, channel, SAMPLE: tl.constexpr):
    """Four of a sample's numbers from `channel` on, interpolated where the spacing is not 1; 0 past the last one.

    `where`: the pixels' rows and columns, then the spacing, the margin and the columns of samples.
    """
    row, column, spacing, margin, columns = where
    zero = row.to(spacing.dtype) * 0.0
    found = (zero, zero, zero, zero)
    if margin > 0:
        first_row, uy = first_tap(row.to(spacing.dtype), spacing, margin)
        first_column, ux = first_tap(column.to(spacing.dtype), spacing, margin)
        start = samples + (first_row * columns + first_column).to(tl.int64) * SAMPLE + channel
        outer_y, outer_x = outer_product(uy), outer_product(ux)
        # A loop over rows: a line for each would take a minute to compile. Columns' weights are the same in all of them
        for j in range(TAPS):
            wy = tap_weight(uy, outer_y, j)
            for i in tl.static_range(TAPS):
                weight = wy * fixed_tap_weight(ux, outer_x, i)
                found = add_four(found, start + (j * columns + i) * SAMPLE, weight, channel, SAMPLE)
    else:
        found = add_four(
            found, samples + (row * columns + column).to(tl.int64) * SAMPLE + channel, 1.0, channel, SAMPLE
        )
    return found


@kernel
def gather_kernel(
    softness, pixel_grads, sample_grads, first, height, width, softness_stride,
    GRAD: tl.constexpr, CHANNELS: tl.constexpr, SPACING: tl.constexpr, ROWS: tl.constexpr, P: tl.constexpr,
):  # fmt: skip
    """The transpose of interpolation, of wide items only. First along rows (ROWS): from pixels to [row of pixels, column of
    samples]; then along columns: from there to samples, where the pixels' gradients were."""
    slot = tl.program_id(1).to(tl.int64)
    scale = tl.load(softness + (slot + first) * softness_stride)
    spacing, margin, rows, columns = sample_grid(scale, height, width, SPACING)
    if margin > 0:
        if ROWS:
            lines, size, step, source, target = height, width, GRAD, pixel_grads, sample_grads
        else:
            lines, size, step, source, target = rows, height, width * GRAD, sample_grads, pixel_grads
        across = (columns + P - 1) // P
        for block in range(tl.program_id(0), lines * across, tl.num_programs(0)):
            row, column = block // across, (block % across) * P + tl.arange(0, P)
            live = column < columns
            place = row + column * 0
            if ROWS:
                place = column
            own = ((slot * height + row) * width + column) * GRAD
            start = own - place.to(tl.int64) * step
            # A pixel u samples behind the margin has taps floor(u) - (TAPS/2 - 1) to floor(u) + TAPS/2; at times one more
            low = tl.maximum(tl.floor((place - TAPS // 2 - margin) * spacing), 0.0).to(tl.int32)
            high = tl.ceil((place + TAPS // 2 - margin) * spacing) + 1.0
            high = tl.minimum(tl.maximum(high, 0.0), size * 1.0).to(tl.int32)
            for c in range(GRAD_FRONT, GRAD_FRONT + CHANNELS + 3):
                total = spacing * 0.0 + place * 0.0
                for i in range(tl.max(high - low)):
                    x = low + i
                    inside = live & (x < high)
                    weight = tl.where(inside, pixel_weight(x, place, spacing, margin), 0.0)
                    total += weight * tl.load(source + start + x * step + c, mask=inside, other=0.0)
                tl.store(target + own + c, total, mask=live)


@triton.jit
def pixel_weight(place, sample, spacing, margin):
    """What a sample counts in pixels: the same arithmetic as in `load_samples`, 0 outside of their taps."""
    at = place.to(spacing.dtype) / spacing + margin
    start = tl.floor(at) - (TAPS // 2 - 1)
    tap = sample - start.to(tl.int32)
    inside = (tap >= 0) & (tap < TAPS)
    u = at - start
    return tl.where(inside, tap_weight(u, outer_product(u), tap), 0.0)

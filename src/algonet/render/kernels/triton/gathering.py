"""Triton: gradients at pixels brought to the samples that the pixels were interpolated from, where noise is wide."""

# pyright: reportAttributeAccessIssue=false
from __future__ import annotations

import triton
import triton.language as tl

from algonet.core.codegen.triton_math import kernel

from .formulas import GRAD_FRONT
from .sampling import TAPS, outer_product, sample_grid, tap_weight


@kernel
def gather_columns_kernel(
    softness, pixel_grads, sample_grads, first, height, width, softness_stride,
    GRAD: tl.constexpr, CHANNELS: tl.constexpr, SPACING: tl.constexpr, P: tl.constexpr,
):  # fmt: skip
    """The transpose of interpolation along rows: gradients at [row of pixels, column of samples], of wide items only."""
    slot = tl.program_id(1).to(tl.int64)
    scale = tl.load(softness + (slot + first) * softness_stride)
    spacing, margin, _rows, columns = sample_grid(scale, height, width, SPACING)
    if margin > 0:
        across = (columns + P - 1) // P
        for block in range(tl.program_id(0), height * across, tl.num_programs(0)):
            row, column = block // across, (block % across) * P + tl.arange(0, P)
            live = column < columns
            low, high = pixel_range(column, spacing, margin, width)
            line = (slot * height + row) * width
            gather_taps(pixel_grads + line * GRAD, sample_grads + (line + column) * GRAD, GRAD, column, low, high, live,
                        spacing, margin, CHANNELS)  # fmt: skip


@kernel
def gather_rows_kernel(
    softness, pixel_grads, sample_grads, first, height, width, softness_stride,
    GRAD: tl.constexpr, CHANNELS: tl.constexpr, SPACING: tl.constexpr, P: tl.constexpr,
):  # fmt: skip
    """The transpose along columns: from [row of pixels, column of samples] to samples, where the pixels' gradients were."""
    slot = tl.program_id(1).to(tl.int64)
    scale = tl.load(softness + (slot + first) * softness_stride)
    spacing, margin, rows, columns = sample_grid(scale, height, width, SPACING)
    if margin > 0:
        across = (columns + P - 1) // P
        for block in range(tl.program_id(0), rows * across, tl.num_programs(0)):
            row, column = block // across, (block % across) * P + tl.arange(0, P)
            live = column < columns
            low, high = pixel_range(row + column * 0, spacing, margin, height)
            target = pixel_grads + ((slot * height + row) * width + column) * GRAD
            gather_taps(sample_grads + (slot * height * width + column) * GRAD, target, width * GRAD, row + column * 0,
                        low, high, live, spacing, margin, CHANNELS)  # fmt: skip


@triton.jit
def gather_taps(source, target, step, place, low, high, live, spacing, margin, CHANNELS: tl.constexpr):
    """Add up, number by number, what the pixels from `low` to `high` along a line count in samples at `place`."""
    for c in range(CHANNELS + 3):
        total = spacing * 0.0 + place * 0.0
        for i in range(tl.max(high - low)):
            x = low + i
            inside = live & (x < high)
            weight = tl.where(inside, pixel_weight(x, place, spacing, margin), 0.0)
            total += weight * tl.load(source + x * step + (GRAD_FRONT + c), mask=inside, other=0.0)
        tl.store(target + (GRAD_FRONT + c), total, mask=live)


@triton.jit
def pixel_range(sample, spacing, margin, size):
    """The first pixel that a row or column of samples counts in, and the one behind the last; at times one too many."""
    # A pixel at u = place / spacing + margin has its taps from floor(u) - (TAPS/2 - 1) to floor(u) + TAPS/2
    low = tl.floor((sample - TAPS // 2 - margin) * spacing)
    high = tl.ceil((sample + TAPS // 2 - margin) * spacing) + 1.0
    return tl.maximum(low, 0.0).to(tl.int32), tl.minimum(tl.maximum(high, 0.0), size * 1.0).to(tl.int32)


@triton.jit
def pixel_weight(place, sample, spacing, margin):
    """What a sample counts in pixels: the same arithmetic as in `load_samples`, 0 outside of their taps."""
    at = place.to(spacing.dtype) / spacing + margin
    start = tl.floor(at) - (TAPS // 2 - 1)
    tap = sample - start.to(tl.int32)
    inside = (tap >= 0) & (tap < TAPS)
    u = at - start
    return tl.where(inside, tap_weight(u, outer_product(u), tap), 0.0)

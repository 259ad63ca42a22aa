"""Triton: from samples to pixels of any attributes, and back.

`composite_kernel` makes pictures; it takes samples as they are where every pixel has its own, and interpolates them where the
noise is wide. Its twin turns gradients by pictures into gradients by what was seen at the pixels.
"""

# pyright: reportAttributeAccessIssue=false
from __future__ import annotations

import triton
import triton.language as tl

from algonet.core.codegen.triton_math import kernel

from .formulas import (
    BEHIND,
    END,
    FRONT,
    GRAD_BASE,
    GRAD_BEHIND,
    GRAD_DEPTH,
    GRAD_FRONT,
    GRADS,
    MEAN_DEPTH,
    MEANS,
)
from .lighting import placed
from .sampling import load_samples, sample_grid


@triton.jit
def unit_power(x, POWER: tl.constexpr):
    """x^POWER for x in [0, 1]."""
    # x = 0: log2 of a tiny number instead of -inf
    return tl.exp2(POWER * tl.log2(tl.maximum(x, 1e-37)))


@triton.jit
def silhouette_of(front, back, POWER: tl.constexpr):
    """T = N / (1 + N^k)^(1/k), N = (front^k + back^k)^(1/k): see `reference.opaque`."""
    small, large = tl.minimum(front, back), tl.maximum(tl.maximum(front, back), 1e-30)
    n = large * tl.exp2(tl.log2(1.0 + unit_power(small / large, POWER)) * (1.0 / POWER))
    beyond = n > 1.0
    root = tl.exp2(tl.log2(1.0 + unit_power(tl.where(beyond, 1.0 / n, n), POWER)) * (-1.0 / POWER))
    # Maximum drops NaN; the sum brings it back
    return tl.where(beyond, root, n * root) + (front + back) * 0.0


@triton.jit
def silhouette_slopes(front, back, POWER: tl.constexpr):
    """Its slopes by both: T / N / (1 + N^k) times (front / N)^(k - 1) or (back / N)^(k - 1)."""
    s = silhouette_of(front, back, POWER)
    small, large = tl.minimum(front, back), tl.maximum(tl.maximum(front, back), 1e-30)
    ratio = small / large
    raised = unit_power(ratio, POWER)
    n = large * tl.exp2(tl.log2(1.0 + raised) * (1.0 / POWER))
    beyond = n > 1.0
    inner = unit_power(tl.where(beyond, 1.0 / n, n), POWER)
    outer = s / n * tl.where(beyond, inner, 1.0) / (1.0 + inner)
    by_large = outer * tl.exp2(tl.log2(1.0 + raised) * ((1.0 - POWER) / POWER))
    by_small = by_large * tl.exp2((POWER - 1.0) * tl.log2(tl.maximum(ratio, 1e-37)))
    return tl.where(front >= back, by_large, by_small), tl.where(front >= back, by_small, by_large)


@triton.jit
def clear(target, count, BLOCK: tl.constexpr):
    """Fill numbers with 0, all programs together: it costs no launch of its own before a kernel that adds to them."""
    program = tl.program_id(0) + tl.program_id(1) * tl.num_programs(0)
    for start in range(program * BLOCK, count, tl.num_programs(0) * tl.num_programs(1) * BLOCK):
        i = start + tl.arange(0, BLOCK)
        tl.store(target + i, tl.zeros([BLOCK], dtype=target.dtype.element_ty), mask=i < count)


@triton.jit
def pixel_block(softness, samples, first, height, width, softness_stride, SPACING: tl.constexpr, SAMPLE: tl.constexpr,
                BLOCK: tl.constexpr):  # fmt: skip
    """The program's pixels, their item, its grid and samples."""
    slot = tl.program_id(1).to(tl.int64)
    item = slot + first
    pixel = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    live = pixel < height * width
    pixel = tl.minimum(pixel, height * width - 1)
    row, column = pixel // width, pixel % width
    scale = tl.load(softness + item * softness_stride)
    spacing, margin, _rows, columns = sample_grid(scale, height, width, SPACING)
    return slot, item, pixel, live, row, column, spacing, margin, columns, samples + item * height * width * SAMPLE


@kernel
def composite_kernel(
    samples, softness, background, image, silhouette, depth,
    first, height, width, softness_stride, background_stride, channels,
    SAMPLE: tl.constexpr, POWER: tl.constexpr, OVER: tl.constexpr, SPACING: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    _slot, item, pixel, live, row, column, spacing, margin, columns, own = pixel_block(
        softness, samples, first, height, width, softness_stride, SPACING, SAMPLE, BLOCK
    )
    front, back, z, _mean = load_samples(own, row, column, spacing, margin, columns, FRONT, SAMPLE, SAMPLE)
    s = silhouette_of(front, back, POWER)
    pixel = pixel + item * height * width
    ground = background + item * background_stride
    tl.store(silhouette + pixel, s, mask=live)
    seen_depth, _by_z, _by_s, _by_far = placed(z, s, tl.load(ground + channels), OVER)
    tl.store(depth + pixel, seen_depth, mask=live)
    for c in range(0, channels, 4):
        means = load_samples(own, row, column, spacing, margin, columns, MEANS + c, SAMPLE, SAMPLE)
        for k in tl.static_range(4):
            if c + k < channels:
                color = s * means[k] + (1.0 - s) * tl.load(ground + c + k)
                tl.store(image + pixel * channels + c + k, color, mask=live)


@kernel
def composite_backward_kernel(
    samples, softness, background, grad_image, grad_silhouette, grad_depth, pixel_grads, partial,
    by_points, by_attributes,
    first, height, width, softness_stride, background_stride, channels, clear_points, clear_attributes,
    image_item, image_pixel, image_channel, silhouette_item, silhouette_pixel, depth_item, depth_pixel,
    SAMPLE: tl.constexpr, GRAD: tl.constexpr, POWER: tl.constexpr, OVER: tl.constexpr, SPACING: tl.constexpr,
    NEEDED: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Gradients by coverages, mean depth and means at the pixels; NEEDED: also sums of the gradient by the background.

    Clears the gradients that the next kernel adds to.
    """
    clear(by_points, clear_points, BLOCK)
    clear(by_attributes, clear_attributes, BLOCK)
    slot, item, pixel, live, row, column, spacing, margin, columns, own = pixel_block(
        softness, samples, first, height, width, softness_stride, SPACING, SAMPLE, BLOCK
    )
    front, back, z, _mean = load_samples(own, row, column, spacing, margin, columns, FRONT, SAMPLE, SAMPLE)
    s = silhouette_of(front, back, POWER)
    ground = background + item * background_stride
    target = pixel_grads + (slot * height * width + pixel) * GRAD
    partial += (slot * tl.num_programs(0) + tl.program_id(0)) * (channels + 1)
    grad_image += item * image_item + pixel * image_pixel
    by_depth = tl.load(grad_depth + item * depth_item + pixel * depth_pixel, mask=live, other=0.0)
    by_s = tl.load(grad_silhouette + item * silhouette_item + pixel * silhouette_pixel, mask=live, other=0.0)
    _depth, depth_z, depth_s, depth_far = placed(z, s, tl.load(ground + channels), OVER)
    by_s += by_depth * depth_s
    for c in range(0, channels, 4):
        means = load_samples(own, row, column, spacing, margin, columns, MEANS + c, SAMPLE, SAMPLE)
        for k in tl.static_range(4):
            if c + k < channels:
                grad = tl.load(grad_image + (c + k) * image_channel, mask=live, other=0.0)
                tl.store(target + GRADS + c + k, s * grad, mask=live)
                by_s += grad * (means[k] - tl.load(ground + c + k))
                if NEEDED:
                    tl.store(partial + c + k, tl.sum((1.0 - s) * grad))
    if NEEDED:
        tl.store(partial + channels, tl.sum(depth_far * by_depth))
    store_by_coverage(target, front, back, by_s, depth_z * by_depth, live, POWER)


@triton.jit
def store_by_coverage(target, front, back, by_s, by_z, live, POWER: tl.constexpr):
    """Gradients by coverage from the front and from the back, and by mean depth, of pixels."""
    slope_front, slope_back = silhouette_slopes(front, back, POWER)
    tl.store(target + GRAD_FRONT, by_s * slope_front, mask=live)
    tl.store(target + GRAD_BEHIND, by_s * slope_back, mask=live)
    tl.store(target + GRAD_DEPTH, by_z, mask=live)


@kernel
def unit_backward_kernel(
    samples, softness, pixel_grads, first, height, width, softness_stride,
    SAMPLE: tl.constexpr, GRAD: tl.constexpr, CHANNELS: tl.constexpr, POWER: tl.constexpr, SPACING: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """From gradients by means at samples to what faces take: through where the nearest unit of coverage ends.

    With weights w_f, their slopes u_f by the unit's end y, means m = sum w a / T and m' = sum u a / sum u, gradients g by m and
    h = g / T: an attribute counts h (a - m') for the weight it gets, and a change of y by T, which coverage brings about,
    h (m' - m).
    """
    slot = tl.program_id(1).to(tl.int64)
    item = slot + first
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    _spacing, _margin, rows, columns = sample_grid(tl.load(softness + item * softness_stride), height, width, SPACING)
    live = i < rows * columns
    own = samples + (item * height * width + i) * SAMPLE
    place = pixel_grads + (slot * height * width + (i // columns) * width + i % columns) * GRAD
    front, back = tl.load(own + FRONT, mask=live, other=0.0), tl.load(own + BEHIND, mask=live, other=0.0)
    s = silhouette_of(front, back, POWER)
    by_weight = tl.where(s > 1e-30, 1.0 / tl.maximum(s, 1e-30), s * 0.0)
    base, by_end = s * 0.0, s * 0.0
    for c in range(CHANNELS + 1):
        grad = tl.load(place + GRAD_DEPTH + c, mask=live, other=0.0) * by_weight
        mean = tl.load(own + MEAN_DEPTH + c, mask=live, other=0.0)
        steep = tl.load(own + (SAMPLE + MEAN_DEPTH) // 2 + c, mask=live, other=0.0)
        tl.store(place + GRAD_DEPTH + c, grad, mask=live)
        base += grad * steep
        by_end += grad * (steep - mean)
    slope_front, slope_back = silhouette_slopes(front, back, POWER)
    by_front = tl.load(place + GRAD_FRONT, mask=live, other=0.0) + by_end * slope_front
    by_back = tl.load(place + GRAD_BEHIND, mask=live, other=0.0) + by_end * slope_back
    tl.store(place + GRAD_FRONT, by_front, mask=live)
    tl.store(place + GRAD_BEHIND, by_back, mask=live)
    tl.store(place + END, tl.load(own + END, mask=live, other=0.0), mask=live)
    tl.store(place + GRAD_BASE, base, mask=live)

"""Triton: from samples to pixels of any attributes, and back.

`composite_kernel` makes pictures; it takes samples as they are where every pixel has its own, and interpolates them where the
noise is wide. Its twin turns gradients by pictures into gradients by what was seen at the pixels.
"""

# pyright: reportAttributeAccessIssue=false
from __future__ import annotations

import triton
import triton.language as tl

from algonet.core.codegen.triton_math import quick_log2

from .formulas import (
    GRAD_TOTAL,
    GRADS,
    LOG_NORM,
    MEANS,
    POINTERS,
    SIZES,
    TOTAL,
    store_two,
)
from .sampling import load_samples, sample_grid


@triton.jit
def bounded(total, POWER: tl.constexpr):
    """S / (1 + S^k)^(1/k), by the k-th power of the smaller of S and 1/S."""
    size = tl.abs(total)
    large = size > 1.0
    small = tl.where(large, 1.0 / tl.where(large, size, 1.0), size)
    # S = 0: log2 of a tiny number instead of -inf
    raised = tl.exp2(POWER * tl.log2(tl.maximum(small, 1e-37)))
    root = tl.exp2(tl.log2(1.0 + raised) * (-1.0 / POWER))
    return tl.where(large, tl.where(total < 0, -root, root), total * root)


@triton.jit
def silhouette_of(total, BOUNDED: tl.constexpr, POWER: tl.constexpr):
    """The silhouette from a total: a bounded sum, or 1 - exp of a sum of logarithms."""
    if BOUNDED:
        s = bounded(total, POWER)
    else:
        s = tl.where(
            total > -0.01, -total * (1.0 + total * (0.5 + total * (1.0 / 6.0 + total / 24.0))), 1.0 - tl.exp(total)
        )
    return s


@triton.jit
def silhouette_slope(s, BOUNDED: tl.constexpr, POWER: tl.constexpr):
    """Its slope by the total: (1 - s^k)^(1 + 1/k), or s - 1."""
    if BOUNDED:
        raised = tl.exp2(POWER * quick_log2(tl.maximum(tl.abs(s), 1e-37)))
        slope = tl.exp2((1.0 + 1.0 / POWER) * quick_log2(tl.maximum(1.0 - raised, 1e-37)))
    else:
        slope = s - 1.0
    return slope


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


@triton.jit(do_not_specialize=SIZES, do_not_specialize_on_alignment=POINTERS)
def composite_kernel(
    samples, softness, background, image, silhouette, depth,
    first, height, width, softness_stride, background_stride, channels,
    SAMPLE: tl.constexpr, BOUNDED: tl.constexpr, POWER: tl.constexpr, SPACING: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    _slot, item, pixel, live, row, column, spacing, margin, columns, own = pixel_block(
        softness, samples, first, height, width, softness_stride, SPACING, SAMPLE, BLOCK
    )
    total, mean_z, mean0, mean1 = load_samples(own, row, column, spacing, margin, columns, TOTAL, SAMPLE, SAMPLE)
    s = silhouette_of(total, BOUNDED, POWER)
    pixel = pixel + item * height * width
    ground = background + item * background_stride
    tl.store(silhouette + pixel, s, mask=live)
    tl.store(depth + pixel, s * mean_z + (1.0 - s) * tl.load(ground + channels), mask=live)
    image += pixel * channels
    tl.store(image, s * mean0 + (1.0 - s) * tl.load(ground), mask=live)
    if channels > 1:
        tl.store(image + 1, s * mean1 + (1.0 - s) * tl.load(ground + 1), mask=live)
    for c in range(2, channels, 4):
        mean0, mean1, mean2, mean3 = load_samples(own, row, column, spacing, margin, columns, MEANS + c, SAMPLE, SAMPLE)
        tl.store(image + c, s * mean0 + (1.0 - s) * tl.load(ground + c), mask=live)
        if c + 1 < channels:
            tl.store(image + c + 1, s * mean1 + (1.0 - s) * tl.load(ground + c + 1), mask=live)
        if c + 2 < channels:
            tl.store(image + c + 2, s * mean2 + (1.0 - s) * tl.load(ground + c + 2), mask=live)
        if c + 3 < channels:
            tl.store(image + c + 3, s * mean3 + (1.0 - s) * tl.load(ground + c + 3), mask=live)


@triton.jit
def composite_channel(grad_image, ground, target, partial, mean, s, c, step, live, dot, by_s, NEEDED: tl.constexpr):
    """One channel's part of a pixel's gradient: stored, and added to gradients times means and to that by the silhouette."""
    grad = tl.load(grad_image + c * step, mask=live, other=0.0)
    tl.store(target + c, s * grad, mask=live)
    if NEEDED:
        tl.store(partial + c, tl.sum((1.0 - s) * grad))
    return dot + s * grad * mean, by_s + grad * (mean - tl.load(ground + c))


@triton.jit(do_not_specialize=SIZES, do_not_specialize_on_alignment=POINTERS)
def composite_backward_kernel(
    samples, softness, background, grad_image, grad_silhouette, grad_depth, pixel_grads, partial,
    by_points, by_attributes,
    first, height, width, softness_stride, background_stride, channels, clear_points, clear_attributes,
    image_item, image_pixel, image_channel, silhouette_item, silhouette_pixel, depth_item, depth_pixel,
    SAMPLE: tl.constexpr, GRAD: tl.constexpr, BOUNDED: tl.constexpr, POWER: tl.constexpr, SPACING: tl.constexpr,
    NEEDED: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Gradients by total, mean depth and means at the pixels; NEEDED: also sums of the gradient by the background.

    Clears the gradients that the next kernel adds to.
    """
    clear(by_points, clear_points, BLOCK)
    clear(by_attributes, clear_attributes, BLOCK)
    slot, item, pixel, live, row, column, spacing, margin, columns, own = pixel_block(
        softness, samples, first, height, width, softness_stride, SPACING, SAMPLE, BLOCK
    )
    total, mean_z, mean0, mean1 = load_samples(own, row, column, spacing, margin, columns, TOTAL, SAMPLE, SAMPLE)
    s = silhouette_of(total, BOUNDED, POWER)
    ground = background + item * background_stride
    target = pixel_grads + (slot * height * width + pixel) * GRAD
    partial += (slot * tl.num_programs(0) + tl.program_id(0)) * (channels + 1)
    grad_image += item * image_item + pixel * image_pixel
    by_z = tl.load(grad_depth + item * depth_item + pixel * depth_pixel, mask=live, other=0.0)
    by_s = tl.load(grad_silhouette + item * silhouette_item + pixel * silhouette_pixel, mask=live, other=0.0)
    by_s += by_z * (mean_z - tl.load(ground + channels))
    dot = s * by_z * mean_z
    means = target + GRADS
    dot, by_s = composite_channel(
        grad_image, ground, means, partial, mean0, s, 0, image_channel, live, dot, by_s, NEEDED
    )
    if channels > 1:
        dot, by_s = composite_channel(
            grad_image, ground, means, partial, mean1, s, 1, image_channel, live, dot, by_s, NEEDED
        )
    for c in range(2, channels, 4):
        mean0, mean1, mean2, mean3 = load_samples(own, row, column, spacing, margin, columns, MEANS + c, SAMPLE, SAMPLE)
        dot, by_s = composite_channel(
            grad_image, ground, means, partial, mean0, s, c, image_channel, live, dot, by_s, NEEDED
        )
        if c + 1 < channels:
            dot, by_s = composite_channel(
                grad_image, ground, means, partial, mean1, s, c + 1, image_channel, live, dot, by_s, NEEDED
            )
        if c + 2 < channels:
            dot, by_s = composite_channel(
                grad_image, ground, means, partial, mean2, s, c + 2, image_channel, live, dot, by_s, NEEDED
            )
        if c + 3 < channels:
            dot, by_s = composite_channel(
                grad_image, ground, means, partial, mean3, s, c + 3, image_channel, live, dot, by_s, NEEDED
            )
    if NEEDED:
        tl.store(partial + channels, tl.sum((1.0 - s) * by_z))
    # Where noise is wide, the normaliser is not this pixel's; then nobody reads it here
    store_two(target + LOG_NORM, tl.load(own + pixel * SAMPLE + LOG_NORM), dot, live)
    store_two(target + GRAD_TOTAL, by_s * silhouette_slope(s, BOUNDED, POWER), s * by_z, live)

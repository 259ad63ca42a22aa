"""Triton: from samples to pixels and back.

`composite_kernel` makes pictures of any attributes, `shade_kernel` lit ones; both take samples as they are where every pixel
has its own, and interpolate them where the noise is wide. Their twins turn gradients by pictures into gradients by what was
seen at the pixels, and `gather_*` bring those to the samples that the pixels were interpolated from.
"""

# pyright: reportAttributeAccessIssue=false
from __future__ import annotations

import triton
import triton.language as tl

from algonet.core.codegen.triton_math import quick_log2

from .formulas import (
    GRAD_DEPTH,
    GRAD_DOT,
    GRAD_TOTAL,
    GRADS,
    LOG_NORM,
    MEANS,
    POINTERS,
    SIZES,
    TOTAL,
)
from .lighting import LIGHT, lit, lit_back
from .sampling import TAPS, load_samples, outer_product, sample_grid, tap_weight

#: Sums over pixels that lit pictures give: by background and its depth, eye, and camera matrix, before those by the lights.
SUMS = tl.constexpr(4 + 3 + 12)


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
    """The program's pixels, their item and its grid."""
    slot = tl.program_id(1).to(tl.int64)
    item = slot + first
    pixel = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    live = pixel < height * width
    pixel = tl.minimum(pixel, height * width - 1)
    row, column = pixel // width, pixel % width
    scale = tl.load(softness + item * softness_stride)
    spacing, margin, _rows, _columns = sample_grid(scale, height, width, SPACING)
    return slot, item, pixel, live, row, column, spacing, margin, samples + item * height * width * SAMPLE


@triton.jit(do_not_specialize=SIZES, do_not_specialize_on_alignment=POINTERS)
def composite_kernel(
    samples, softness, background, image, silhouette, depth,
    first, height, width, softness_stride, background_stride, channels,
    SAMPLE: tl.constexpr, BOUNDED: tl.constexpr, POWER: tl.constexpr, SPACING: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    _slot, item, pixel, live, row, column, spacing, margin, own = pixel_block(
        softness, samples, first, height, width, softness_stride, SPACING, SAMPLE, BLOCK
    )
    total, mean_z, mean0, mean1 = load_samples(own, row, column, spacing, margin, width, TOTAL, SAMPLE, SAMPLE)
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
        mean0, mean1, mean2, mean3 = load_samples(own, row, column, spacing, margin, width, MEANS + c, SAMPLE, SAMPLE)
        tl.store(image + c, s * mean0 + (1.0 - s) * tl.load(ground + c), mask=live)
        if c + 1 < channels:
            tl.store(image + c + 1, s * mean1 + (1.0 - s) * tl.load(ground + c + 1), mask=live)
        if c + 2 < channels:
            tl.store(image + c + 2, s * mean2 + (1.0 - s) * tl.load(ground + c + 2), mask=live)
        if c + 3 < channels:
            tl.store(image + c + 3, s * mean3 + (1.0 - s) * tl.load(ground + c + 3), mask=live)


@triton.jit
def composite_channel(
    grad_image, ground, target, partial, mean, s, c, step, live, dot, by_s, NEEDED: tl.constexpr, BLOCK: tl.constexpr
):
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
    slot, item, pixel, live, row, column, spacing, margin, own = pixel_block(
        softness, samples, first, height, width, softness_stride, SPACING, SAMPLE, BLOCK
    )
    total, mean_z, mean0, mean1 = load_samples(own, row, column, spacing, margin, width, TOTAL, SAMPLE, SAMPLE)
    s = silhouette_of(total, BOUNDED, POWER)
    ground = background + item * background_stride
    target = pixel_grads + (slot * height * width + pixel) * GRAD
    partial += (slot * tl.num_programs(0) + tl.program_id(0)) * (channels + 1)
    grad_image += item * image_item + pixel * image_pixel
    by_z = tl.load(grad_depth + item * depth_item + pixel * depth_pixel, mask=live, other=0.0)
    by_s = tl.load(grad_silhouette + item * silhouette_item + pixel * silhouette_pixel, mask=live, other=0.0)
    by_s += by_z * (mean_z - tl.load(ground + channels))
    dot = s * by_z * mean_z
    dot, by_s = composite_channel(
        grad_image, ground, target + GRADS, partial, mean0, s, 0, image_channel, live, dot, by_s, NEEDED, BLOCK
    )
    if channels > 1:
        dot, by_s = composite_channel(
            grad_image, ground, target + GRADS, partial, mean1, s, 1, image_channel, live, dot, by_s, NEEDED, BLOCK
        )
    for c in range(2, channels, 4):
        mean0, mean1, mean2, mean3 = load_samples(own, row, column, spacing, margin, width, MEANS + c, SAMPLE, SAMPLE)
        dot, by_s = composite_channel(
            grad_image, ground, target + GRADS, partial, mean0, s, c, image_channel, live, dot, by_s, NEEDED, BLOCK
        )
        if c + 1 < channels:
            dot, by_s = composite_channel(
                grad_image,
                ground,
                target + GRADS,
                partial,
                mean1,
                s,
                c + 1,
                image_channel,
                live,
                dot,
                by_s,
                NEEDED,
                BLOCK,
            )
        if c + 2 < channels:
            dot, by_s = composite_channel(
                grad_image,
                ground,
                target + GRADS,
                partial,
                mean2,
                s,
                c + 2,
                image_channel,
                live,
                dot,
                by_s,
                NEEDED,
                BLOCK,
            )
        if c + 3 < channels:
            dot, by_s = composite_channel(
                grad_image,
                ground,
                target + GRADS,
                partial,
                mean3,
                s,
                c + 3,
                image_channel,
                live,
                dot,
                by_s,
                NEEDED,
                BLOCK,
            )
    if NEEDED:
        tl.store(partial + channels, tl.sum((1.0 - s) * by_z))
    # Where noise is wide, the normaliser is not this pixel's; then nobody reads it here
    tl.store(target + LOG_NORM, tl.load(own + pixel * SAMPLE + LOG_NORM), mask=live)
    tl.store(target + GRAD_DOT, dot, mask=live)
    tl.store(target + GRAD_TOTAL, by_s * silhouette_slope(s, BOUNDED, POWER), mask=live)
    tl.store(target + GRAD_DEPTH, s * by_z, mask=live)


@triton.jit(do_not_specialize=SIZES, do_not_specialize_on_alignment=POINTERS)
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


@triton.jit(do_not_specialize=SIZES, do_not_specialize_on_alignment=POINTERS)
def gather_rows_kernel(
    samples, softness, pixel_grads, sample_grads, first, height, width, softness_stride,
    SAMPLE: tl.constexpr, GRAD: tl.constexpr, CHANNELS: tl.constexpr, SPACING: tl.constexpr, P: tl.constexpr,
):  # fmt: skip
    """The transpose along columns: from [row of pixels, column of samples] to samples, where the pixels' gradients were."""
    slot = tl.program_id(1).to(tl.int64)
    item = slot + first
    scale = tl.load(softness + item * softness_stride)
    spacing, margin, rows, columns = sample_grid(scale, height, width, SPACING)
    if margin > 0:
        across = (columns + P - 1) // P
        for block in range(tl.program_id(0), rows * across, tl.num_programs(0)):
            row, column = block // across, (block % across) * P + tl.arange(0, P)
            live = column < columns
            low, high = pixel_range(row + column * 0, spacing, margin, height)
            target = pixel_grads + ((slot * height + row) * width + column) * GRAD
            sample = samples + ((item * height + row) * width + column) * SAMPLE
            dot = gather_taps(sample_grads + (slot * height * width + column) * GRAD, target, width * GRAD, row + column * 0,
                              low, high, live, spacing, margin, CHANNELS, sample)  # fmt: skip
            tl.store(target + LOG_NORM, tl.load(sample + LOG_NORM, mask=live, other=0.0), mask=live)
            tl.store(target + GRAD_DOT, dot, mask=live)


@triton.jit
def gather_taps(source, target, step, place, low, high, live, spacing, margin, CHANNELS: tl.constexpr, sample=None):
    """Add up, channel by channel, what the pixels from `low` to `high` along a line count in samples at `place`; returns that
    times the samples' means, where they are given."""
    dot = spacing * 0.0 + place * 0.0
    for c in range(0, CHANNELS + 2, 4):
        a, b, d, e = dot * 0.0, dot * 0.0, dot * 0.0, dot * 0.0
        for i in range(tl.max(high - low)):
            x = low + i
            inside = live & (x < high)
            weight = tl.where(inside, pixel_weight(x, place, spacing, margin), 0.0)
            grad = source + x * step + (GRAD_TOTAL + c)
            a += weight * tl.load(grad, mask=inside, other=0.0)
            b += weight * tl.load(grad + 1, mask=inside & (c + 1 < CHANNELS + 2), other=0.0)
            d += weight * tl.load(grad + 2, mask=inside & (c + 2 < CHANNELS + 2), other=0.0)
            e += weight * tl.load(grad + 3, mask=inside & (c + 3 < CHANNELS + 2), other=0.0)
        to = target + (GRAD_TOTAL + c)
        tl.store(to, a, mask=live)
        tl.store(to + 1, b, mask=live & (c + 1 < CHANNELS + 2))
        tl.store(to + 2, d, mask=live & (c + 2 < CHANNELS + 2))
        tl.store(to + 3, e, mask=live & (c + 3 < CHANNELS + 2))
        if sample is not None:
            mean = sample + (TOTAL + c)
            # The total is no mean
            dot += a * tl.load(mean, mask=live & (c > 0), other=0.0)
            dot += b * tl.load(mean + 1, mask=live & (c + 1 < CHANNELS + 2), other=0.0)
            dot += d * tl.load(mean + 2, mask=live & (c + 2 < CHANNELS + 2), other=0.0)
            dot += e * tl.load(mean + 3, mask=live & (c + 3 < CHANNELS + 2), other=0.0)
    return dot


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


@triton.jit
def cofactors(matrix):
    """The rows of the camera's matrix crossed with each other, one over its determinant, and its last column."""
    ax, ay, az, tx = tl.load(matrix), tl.load(matrix + 1), tl.load(matrix + 2), tl.load(matrix + 3)
    bx, by, bz, ty = tl.load(matrix + 4), tl.load(matrix + 5), tl.load(matrix + 6), tl.load(matrix + 7)
    cx, cy, cz, tz = tl.load(matrix + 8), tl.load(matrix + 9), tl.load(matrix + 10), tl.load(matrix + 11)
    ux, uy, uz = by * cz - bz * cy, bz * cx - bx * cz, bx * cy - by * cx
    vx, vy, vz = cy * az - cz * ay, cz * ax - cx * az, cx * ay - cy * ax
    wx, wy, wz = ay * bz - az * by, az * bx - ax * bz, ax * by - ay * bx
    det = ax * ux + ay * uy + az * uz
    inverse = det / (det * det + 1e-30)
    return ux, uy, uz, vx, vy, vz, wx, wy, wz, inverse, tx, ty, tz


@triton.jit
def unproject(matrix, qx, qy, z, PERSPECTIVE: tl.constexpr):
    """The point of the world that the camera sees at (qx, qy) and depth z."""
    ux, uy, uz, vx, vy, vz, wx, wy, wz, inverse, tx, ty, tz = cofactors(matrix)
    if PERSPECTIVE:
        a, b = (qx * z - tx) * inverse, (qy * z - ty) * inverse
    else:
        a, b = (qx - tx) * inverse, (qy - ty) * inverse
    c = (z - tz) * inverse
    return ux * a + vx * b + wx * c, uy * a + vy * b + wy * c, uz * a + vz * b + wz * c


@triton.jit
def load_surface(
    own, matrix, row, column, spacing, margin, width, GREY: tl.constexpr, COLORED: tl.constexpr, SAMPLE: tl.constexpr,
    PERSPECTIVE: tl.constexpr,
):  # fmt: skip
    """What is seen at pixels: total, depth, position, albedo and mean normal."""
    total, z, a, b = load_samples(own, row, column, spacing, margin, width, TOTAL, SAMPLE, SAMPLE)
    c, d, e, f = load_samples(own, row, column, spacing, margin, width, MEANS + 2, SAMPLE, SAMPLE)
    x, y, w = unproject(matrix, column.to(z.dtype) + 0.5, row.to(z.dtype) + 0.5, z, PERSPECTIVE)
    if COLORED:
        red, green, blue, nx, ny, nz = a, b, c, d, e, f
    else:
        red, green, blue, nx, ny, nz = z * 0.0 + GREY, z * 0.0 + GREY, z * 0.0 + GREY, a, b, c
    return total, z, x, y, w, red, green, blue, nx, ny, nz


@triton.jit(do_not_specialize=SIZES, do_not_specialize_on_alignment=POINTERS)
def shade_kernel(
    samples, softness, background, matrix, eye, lights, image, silhouette, depth, extra,
    first, height, width, softness_stride, background_stride, matrix_stride, eye_stride, lights_stride, channels,
    SAMPLE: tl.constexpr, BOUNDED: tl.constexpr, POWER: tl.constexpr, SPACING: tl.constexpr, PERSPECTIVE: tl.constexpr,
    COLORED: tl.constexpr, GREY: tl.constexpr, LIGHTS: tl.constexpr, KINDS: tl.constexpr, TWO_SIDED: tl.constexpr,
    GLOSSY: tl.constexpr, SHININESS: tl.constexpr, STRENGTH: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Lit pixels over the background; `channels` further attributes over 0."""
    _slot, item, pixel, live, row, column, spacing, margin, own = pixel_block(
        softness, samples, first, height, width, softness_stride, SPACING, SAMPLE, BLOCK
    )
    total, z, x, y, w, red, green, blue, nx, ny, nz = load_surface(
        own, matrix + item * matrix_stride, row, column, spacing, margin, width, GREY, COLORED, SAMPLE, PERSPECTIVE
    )
    s = silhouette_of(total, BOUNDED, POWER)
    eye += item * eye_stride
    red, green, blue = lit(
        nx, ny, nz, x, y, w, tl.load(eye), tl.load(eye + 1), tl.load(eye + 2), red, green, blue,
        lights + item * lights_stride, SHININESS, STRENGTH, LIGHTS, KINDS, TWO_SIDED, GLOSSY,
    )  # fmt: skip
    pixel = pixel + item * height * width
    ground = background + item * background_stride
    rest = 1.0 - s
    tl.store(image + pixel * 3, s * red + rest * tl.load(ground), mask=live)
    tl.store(image + pixel * 3 + 1, s * green + rest * tl.load(ground + 1), mask=live)
    tl.store(image + pixel * 3 + 2, s * blue + rest * tl.load(ground + 2), mask=live)
    tl.store(silhouette + pixel, s, mask=live)
    tl.store(depth + pixel, s * z + rest * tl.load(ground + 3), mask=live)
    for c in range(0, channels, 4):
        mean0, mean1, mean2, mean3 = load_samples(
            own, row, column, spacing, margin, width, SAMPLE - channels + c, SAMPLE, SAMPLE
        )
        target = extra + pixel * channels + c
        tl.store(target, s * mean0, mask=live)
        tl.store(target + 1, s * mean1, mask=live & (c + 1 < channels))
        tl.store(target + 2, s * mean2, mask=live & (c + 2 < channels))
        tl.store(target + 3, s * mean3, mask=live & (c + 3 < channels))


@triton.jit(do_not_specialize=SIZES, do_not_specialize_on_alignment=POINTERS)
def shade_backward_kernel(
    samples, softness, background, matrix, eye, lights, grad_image, grad_silhouette, grad_depth, grad_extra, pixel_grads,
    partial, by_points, by_attributes, by_normals,
    first, height, width, softness_stride, background_stride, matrix_stride, eye_stride, lights_stride, channels,
    clear_points, clear_attributes, clear_normals,
    image_item, image_pixel, image_channel, silhouette_item, silhouette_pixel, depth_item, depth_pixel,
    extra_item, extra_pixel, extra_channel,
    SAMPLE: tl.constexpr, GRAD: tl.constexpr, BOUNDED: tl.constexpr, POWER: tl.constexpr, SPACING: tl.constexpr,
    PERSPECTIVE: tl.constexpr, COLORED: tl.constexpr, GREY: tl.constexpr, LIGHTS: tl.constexpr, KINDS: tl.constexpr,
    TWO_SIDED: tl.constexpr, GLOSSY: tl.constexpr, SHININESS: tl.constexpr, STRENGTH: tl.constexpr, NEEDED: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """Gradients by what is seen at the pixels; NEEDED: also sums of those by background, eye, matrix and lights.

    Clears the gradients that the next kernel adds to.
    """
    clear(by_points, clear_points, BLOCK)
    clear(by_attributes, clear_attributes, BLOCK)
    clear(by_normals, clear_normals, BLOCK)
    slot, item, pixel, live, row, column, spacing, margin, own = pixel_block(
        softness, samples, first, height, width, softness_stride, SPACING, SAMPLE, BLOCK
    )
    matrix += item * matrix_stride
    total, z, x, y, w, red, green, blue, nx, ny, nz = load_surface(
        own, matrix, row, column, spacing, margin, width, GREY, COLORED, SAMPLE, PERSPECTIVE
    )
    s = silhouette_of(total, BOUNDED, POWER)
    eye += item * eye_stride
    lights += item * lights_stride
    ex, ey, ez = tl.load(eye), tl.load(eye + 1), tl.load(eye + 2)
    lit_red, lit_green, lit_blue = lit(
        nx, ny, nz, x, y, w, ex, ey, ez, red, green, blue, lights, SHININESS, STRENGTH, LIGHTS, KINDS, TWO_SIDED, GLOSSY
    )
    grad = grad_image + item * image_item + pixel * image_pixel
    by_red = tl.load(grad, mask=live, other=0.0)
    by_green = tl.load(grad + image_channel, mask=live, other=0.0)
    by_blue = tl.load(grad + 2 * image_channel, mask=live, other=0.0)
    by_depth = tl.load(grad_depth + item * depth_item + pixel * depth_pixel, mask=live, other=0.0)
    by_s = tl.load(grad_silhouette + item * silhouette_item + pixel * silhouette_pixel, mask=live, other=0.0)
    ground = background + item * background_stride
    by_s += by_red * (lit_red - tl.load(ground)) + by_green * (lit_green - tl.load(ground + 1))
    by_s += by_blue * (lit_blue - tl.load(ground + 2)) + by_depth * (z - tl.load(ground + 3))
    partial += (slot * tl.num_programs(0) + tl.program_id(0)) * (SUMS + LIGHT * LIGHTS)
    if NEEDED:
        tl.store(partial, tl.sum((1.0 - s) * by_red))
        tl.store(partial + 1, tl.sum((1.0 - s) * by_green))
        tl.store(partial + 2, tl.sum((1.0 - s) * by_blue))
        tl.store(partial + 3, tl.sum((1.0 - s) * by_depth))
    bnx, bny, bnz, bx, by, bw, bex, bey, bez, ar, ag, ab = lit_back(
        nx, ny, nz, x, y, w, ex, ey, ez, red, green, blue, s * by_red, s * by_green, s * by_blue, lights,
        SHININESS, STRENGTH, partial + SUMS, LIGHTS, KINDS, TWO_SIDED, GLOSSY, NEEDED,
    )  # fmt: skip
    # The position is inverse(A) (v - t): by v it is g = inverse(A)^T b, by t it is -g, by A it is -g times the position
    ux, uy, uz, vx, vy, vz, wx, wy, wz, inverse, _tx, _ty, _tz = cofactors(matrix)
    g0 = (ux * bx + uy * by + uz * bw) * inverse
    g1 = (vx * bx + vy * by + vz * bw) * inverse
    g2 = (wx * bx + wy * by + wz * bw) * inverse
    by_z = s * by_depth + g2
    if PERSPECTIVE:
        by_z += g0 * (column.to(z.dtype) + 0.5) + g1 * (row.to(z.dtype) + 0.5)
    if NEEDED:
        tl.store(partial + 4, tl.sum(bex))
        tl.store(partial + 5, tl.sum(bey))
        tl.store(partial + 6, tl.sum(bez))
        store_matrix_row(partial + 7, g0, x, y, w)
        store_matrix_row(partial + 11, g1, x, y, w)
        store_matrix_row(partial + 15, g2, x, y, w)
    target = pixel_grads + (slot * height * width + pixel) * GRAD
    dot = by_z * z + bnx * nx + bny * ny + bnz * nz
    means = target + GRADS
    if COLORED:
        dot += ar * red + ag * green + ab * blue
        tl.store(means, ar, mask=live)
        tl.store(means + 1, ag, mask=live)
        tl.store(means + 2, ab, mask=live)
        means += 3
    tl.store(means, bnx, mask=live)
    tl.store(means + 1, bny, mask=live)
    tl.store(means + 2, bnz, mask=live)
    for c in range(0, channels, 4):
        mean0, mean1, mean2, mean3 = load_samples(
            own, row, column, spacing, margin, width, SAMPLE - channels + c, SAMPLE, SAMPLE
        )
        grad = grad_extra + item * extra_item + pixel * extra_pixel + c * extra_channel
        dot, by_s = extra_channel_back(grad, means + 3 + c, mean0, s, live, dot, by_s)
        dot, by_s = extra_channel_back(
            grad + extra_channel, means + 4 + c, mean1, s, live & (c + 1 < channels), dot, by_s
        )
        dot, by_s = extra_channel_back(
            grad + 2 * extra_channel, means + 5 + c, mean2, s, live & (c + 2 < channels), dot, by_s
        )
        dot, by_s = extra_channel_back(
            grad + 3 * extra_channel, means + 6 + c, mean3, s, live & (c + 3 < channels), dot, by_s
        )
    tl.store(target + LOG_NORM, tl.load(own + pixel * SAMPLE + LOG_NORM), mask=live)
    tl.store(target + GRAD_DOT, dot, mask=live)
    tl.store(target + GRAD_TOTAL, by_s * silhouette_slope(s, BOUNDED, POWER), mask=live)
    tl.store(target + GRAD_DEPTH, by_z, mask=live)


@triton.jit
def extra_channel_back(grad, target, mean, s, live, dot, by_s):
    """The part of an attribute that is not lit, over 0."""
    grad = tl.load(grad, mask=live, other=0.0)
    tl.store(target, s * grad, mask=live)
    return dot + s * grad * mean, by_s + grad * mean


@triton.jit
def store_matrix_row(target, g, x, y, z):
    tl.store(target, -tl.sum(g * x))
    tl.store(target + 1, -tl.sum(g * y))
    tl.store(target + 2, -tl.sum(g * z))
    tl.store(target + 3, -tl.sum(g))

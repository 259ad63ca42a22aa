"""Triton: from samples to pixels of any attributes, lit or not, and back.

`paint_kernel` makes pictures; it takes samples as they are where every pixel has its own, and interpolates them where the
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
from .sampling import load_samples, sample_grid
from .shared import (
    bounded,
    cofactors,
    dot,
    lit,
    lit_back,
    load_live,
    load_three,
    minus,
    placed,
    plus_times,
    store_sums,
    store_vector,
    times,
    unproject,
    unproject_back,
)


@triton.jit
def silhouette_of(front, back, POWER: tl.constexpr):
    """The bounded sum of both; maximum drops NaN, and the sum brings it back."""
    value, _by_front, _by_back, _hidden = bounded(front, back, POWER)
    return value + (front + back) * 0.0


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
    """The program's item, its pixels and which of them there are, where `load_samples` finds them, and the item's samples."""
    slot = tl.program_id(1).to(tl.int64)
    item = slot + first
    pixel = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    live = pixel < height * width
    pixel = tl.minimum(pixel, height * width - 1)
    row, column = pixel // width, pixel % width
    scale = tl.load(softness + item * softness_stride)
    spacing, margin, _rows, columns = sample_grid(scale, height, width, SPACING)
    return slot, item, pixel, live, (row, column, spacing, margin, columns), samples + item * height * width * SAMPLE


@triton.jit
def load_camera(matrix):
    """Of a camera's matrix: the inverse of its 3 x 3 part, and its last column."""
    inverse = cofactors(load_three(matrix), load_three(matrix + 4), load_three(matrix + 8))
    return inverse, (tl.load(matrix + 3), tl.load(matrix + 7), tl.load(matrix + 11))


@triton.jit
def load_surface(
    own, z, a, matrix, where, GREY: tl.constexpr, COLORED: tl.constexpr, SAMPLE: tl.constexpr, PERSPECTIVE: tl.constexpr,
):  # fmt: skip
    """What is seen at pixels of depth z and first mean a: position, albedo and mean normal."""
    b, c, d, e = load_samples(own, where, MEANS + 1, SAMPLE)
    f = a
    if COLORED:
        f, _a, _b, _c = load_samples(own, where, MEANS + 5, SAMPLE)
    inverse, shift = load_camera(matrix)
    place = unproject(inverse, shift, where[1].to(z.dtype) + 0.5, where[0].to(z.dtype) + 0.5, z, PERSPECTIVE)
    albedo, n = (a, b, c), (d, e, f)
    if not COLORED:
        albedo, n = (z * 0.0 + GREY, z * 0.0 + GREY, z * 0.0 + GREY), (a, b, c)
    return place, albedo, n


@kernel
def paint_kernel(
    samples, softness, background, matrix, eye, lights, image, silhouette, depth, extra,
    first, height, width, softness_stride, background_stride, matrix_stride, eye_stride, lights_stride, channels,
    SAMPLE: tl.constexpr, POWER: tl.constexpr, OVER: tl.constexpr, SPACING: tl.constexpr, LIT: tl.constexpr,
    PERSPECTIVE: tl.constexpr, COLORED: tl.constexpr, GREY: tl.constexpr, LIGHTS: tl.constexpr, KINDS: tl.constexpr,
    TWO_SIDED: tl.constexpr, GLOSSY: tl.constexpr, SHININESS: tl.constexpr, STRENGTH: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """`channels` means over the background; LIT: lit pixels over the background, and `channels` further attributes over 0."""
    _slot, item, pixel, live, where, own = pixel_block(
        softness, samples, first, height, width, softness_stride, SPACING, SAMPLE, BLOCK
    )
    front, back, z, mean = load_samples(own, where, FRONT, SAMPLE)
    s = silhouette_of(front, back, POWER)
    pixel = pixel + item * height * width
    ground = background + item * background_stride
    if LIT:
        place, albedo, n = load_surface(
            own, z, mean, matrix + item * matrix_stride, where, GREY, COLORED, SAMPLE, PERSPECTIVE
        )  # fmt: skip
        color = lit(
            n, place, load_three(eye + item * eye_stride), albedo, lights + item * lights_stride, SHININESS, STRENGTH,
            LIGHTS, KINDS, TWO_SIDED, GLOSSY,
        )  # fmt: skip
        store_vector(image, pixel, plus_times(times(color, s), load_three(ground), 1.0 - s), live)
        FIRST: tl.constexpr = MEANS + 3 + 3 * COLORED
        far, target = ground + 3, extra
    else:
        FIRST: tl.constexpr = MEANS
        far, target = ground + channels, image
    tl.store(silhouette + pixel, s, mask=live)
    seen_depth, _by_z, _by_s, _by_far = placed(z, s, tl.load(far), OVER)
    tl.store(depth + pixel, seen_depth, mask=live)
    for c in range(0, channels, 4):
        means = load_samples(own, where, FIRST + c, SAMPLE)
        for k in tl.static_range(4):
            if c + k < channels:
                shown = s * means[k]
                if not LIT:
                    shown += (1.0 - s) * tl.load(ground + c + k)
                tl.store(target + pixel * channels + c + k, shown, mask=live)


@kernel
def paint_backward_kernel(
    samples, softness, background, matrix, eye, lights, grad_image, grad_silhouette, grad_depth, grad_extra, pixel_grads,
    partial, grad_points, grad_attributes, grad_normals,
    first, height, width, softness_stride, background_stride, matrix_stride, eye_stride, lights_stride, channels, sums,
    clear_points, clear_attributes, clear_normals,
    image_item, image_pixel, image_channel, silhouette_item, silhouette_pixel, depth_item, depth_pixel,
    extra_item, extra_pixel, extra_channel,
    SAMPLE: tl.constexpr, GRAD: tl.constexpr, POWER: tl.constexpr, OVER: tl.constexpr, SPACING: tl.constexpr,
    LIT: tl.constexpr, PERSPECTIVE: tl.constexpr, COLORED: tl.constexpr, GREY: tl.constexpr, LIGHTS: tl.constexpr,
    KINDS: tl.constexpr, TWO_SIDED: tl.constexpr, GLOSSY: tl.constexpr, SHININESS: tl.constexpr, STRENGTH: tl.constexpr,
    NEEDED: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Gradients by coverages, mean depth and means at the pixels; NEEDED: also `sums` sums, of those by background and its
    depth, and if LIT by eye, matrix and lights.

    Clears the gradients that the next kernel adds to.
    """
    clear(grad_points, clear_points, BLOCK)
    clear(grad_attributes, clear_attributes, BLOCK)
    clear(grad_normals, clear_normals, BLOCK)
    slot, item, pixel, live, where, own = pixel_block(
        softness, samples, first, height, width, softness_stride, SPACING, SAMPLE, BLOCK
    )
    front, back, z, mean = load_samples(own, where, FRONT, SAMPLE)
    s = silhouette_of(front, back, POWER)
    ground = background + item * background_stride
    partial += (slot * tl.num_programs(0) + tl.program_id(0)) * sums
    target = pixel_grads + (slot * height * width + pixel) * GRAD
    means, more, step = target + GRADS, grad_image + item * image_item + pixel * image_pixel, image_channel
    by_depth = load_live(grad_depth + item * depth_item + pixel * depth_pixel, live)
    by_s = load_live(grad_silhouette + item * silhouette_item + pixel * silhouette_pixel, live)
    far = channels
    FIRST: tl.constexpr = MEANS + (3 + 3 * COLORED) * LIT
    if LIT:
        far = 3
    _depth, depth_z, depth_s, depth_far = placed(z, s, tl.load(ground + far), OVER)
    by_s += by_depth * depth_s
    by_z = depth_z * by_depth
    if NEEDED:
        tl.store(partial + far, tl.sum(depth_far * by_depth))
    if LIT:
        matrix += item * matrix_stride
        place, albedo, n = load_surface(own, z, mean, matrix, where, GREY, COLORED, SAMPLE, PERSPECTIVE)
        viewer, lights = load_three(eye + item * eye_stride), lights + item * lights_stride
        color = lit(n, place, viewer, albedo, lights, SHININESS, STRENGTH, LIGHTS, KINDS, TWO_SIDED, GLOSSY)
        by_color = (load_live(more, live), load_live(more + step, live), load_live(more + 2 * step, live))
        by_s += dot(by_color, minus(color, load_three(ground)))
        by_n, by_place, by_eye, by_albedo = lit_back(
            n, place, viewer, albedo, times(by_color, s), lights, SHININESS, STRENGTH, partial + 19, LIGHTS, KINDS,
            TWO_SIDED, GLOSSY, NEEDED,
        )  # fmt: skip
        inverse, _shift = load_camera(matrix)
        g, by_place_z = unproject_back(
            inverse, by_place, where[1].to(z.dtype) + 0.5, where[0].to(z.dtype) + 0.5, PERSPECTIVE
        )
        by_z += by_place_z
        if NEEDED:
            store_sums(partial, times(by_color, 1.0 - s))
            store_sums(partial + 4, by_eye)
            for k in tl.static_range(3):
                store_sums(partial + 7 + 4 * k, times(place, -g[k]))
                tl.store(partial + 10 + 4 * k, -tl.sum(g[k]))
        if COLORED:
            store_vector(means, 0, by_albedo, live)
            means += 3
        store_vector(means, 0, by_n, live)
        means, more, step = means + 3, grad_extra + item * extra_item + pixel * extra_pixel, extra_channel
    for c in range(0, channels, 4):
        seen = load_samples(own, where, FIRST + c, SAMPLE)
        for k in tl.static_range(4):
            if c + k < channels:
                grad = load_live(more + (c + k) * step, live)
                tl.store(means + c + k, s * grad, mask=live)
                if LIT:
                    by_s += grad * seen[k]
                else:
                    by_s += grad * (seen[k] - tl.load(ground + c + k))
                    if NEEDED:
                        tl.store(partial + c + k, tl.sum((1.0 - s) * grad))
    store_by_coverage(target, front, back, by_s, by_z, live, POWER)


@triton.jit
def store_by_coverage(target, front, back, by_s, by_z, live, POWER: tl.constexpr):
    """Gradients by coverage from the front and from the back, and by mean depth, of pixels."""
    _s, slope_front, slope_back, _hidden = bounded(front, back, POWER)
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
    front, back = load_live(own + FRONT, live), load_live(own + BEHIND, live)
    s = silhouette_of(front, back, POWER)
    by_weight = tl.where(s > 1e-30, 1.0 / tl.maximum(s, 1e-30), s * 0.0)
    base, by_end = s * 0.0, s * 0.0
    for c in range(CHANNELS + 1):
        grad = load_live(place + GRAD_DEPTH + c, live) * by_weight
        mean = load_live(own + MEAN_DEPTH + c, live)
        steep = load_live(own + (SAMPLE + MEAN_DEPTH) // 2 + c, live)
        tl.store(place + GRAD_DEPTH + c, grad, mask=live)
        base += grad * steep
        by_end += grad * (steep - mean)
    _s, slope_front, slope_back, _hidden = bounded(front, back, POWER)
    by_front = load_live(place + GRAD_FRONT, live) + by_end * slope_front
    by_back = load_live(place + GRAD_BEHIND, live) + by_end * slope_back
    tl.store(place + GRAD_FRONT, by_front, mask=live)
    tl.store(place + GRAD_BEHIND, by_back, mask=live)
    tl.store(place + END, load_live(own + END, live), mask=live)
    tl.store(place + GRAD_BASE, base, mask=live)

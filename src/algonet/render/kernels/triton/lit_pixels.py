"""Triton: from samples to lit pixels, and back: as `pixels.py`, with light at what is seen there."""

# pyright: reportAttributeAccessIssue=false
from __future__ import annotations

import triton
import triton.language as tl

from algonet.core.codegen.triton_math import kernel

from .formulas import FRONT, GRADS, MEANS
from .lighting import cofactors, dot, lit, lit_back, minus, placed, plus_times, times, unproject, unproject_back
from .pixels import clear, pixel_block, silhouette_of, store_by_coverage
from .sampling import load_samples
from .vectors import LIGHT, load_three, store_sums, store_vector

#: Sums over pixels that lit pictures give: by background and its depth, eye, and camera matrix, before those by the lights.
SUMS = tl.constexpr(4 + 3 + 12)


@triton.jit
def load_camera(matrix):
    """Of a camera's matrix: the inverse of its 3 x 3 part, and its last column."""
    inverse = cofactors(load_three(matrix), load_three(matrix + 4), load_three(matrix + 8))
    return inverse, (tl.load(matrix + 3), tl.load(matrix + 7), tl.load(matrix + 11))


@triton.jit
def load_surface(
    own, matrix, row, column, spacing, margin, columns, GREY: tl.constexpr, COLORED: tl.constexpr, SAMPLE: tl.constexpr,
    PERSPECTIVE: tl.constexpr,
):  # fmt: skip
    """What is seen at pixels: coverage from front and back, depth, position, albedo and mean normal."""
    front, back, z, a = load_samples(own, row, column, spacing, margin, columns, FRONT, SAMPLE, SAMPLE)
    b, c, d, e = load_samples(own, row, column, spacing, margin, columns, MEANS + 1, SAMPLE, SAMPLE)
    f = a
    if COLORED:
        f, _a, _b, _c = load_samples(own, row, column, spacing, margin, columns, MEANS + 5, SAMPLE, SAMPLE)
    inverse, shift = load_camera(matrix)
    place = unproject(inverse, shift, column.to(z.dtype) + 0.5, row.to(z.dtype) + 0.5, z, PERSPECTIVE)
    albedo, n = (a, b, c), (d, e, f)
    if not COLORED:
        albedo, n = (z * 0.0 + GREY, z * 0.0 + GREY, z * 0.0 + GREY), (a, b, c)
    return front, back, z, place, albedo, n


@kernel
def shade_kernel(
    samples, softness, background, matrix, eye, lights, image, silhouette, depth, extra,
    first, height, width, softness_stride, background_stride, matrix_stride, eye_stride, lights_stride, channels,
    SAMPLE: tl.constexpr, POWER: tl.constexpr, OVER: tl.constexpr, SPACING: tl.constexpr, PERSPECTIVE: tl.constexpr,
    COLORED: tl.constexpr, GREY: tl.constexpr, LIGHTS: tl.constexpr, KINDS: tl.constexpr, TWO_SIDED: tl.constexpr,
    GLOSSY: tl.constexpr, SHININESS: tl.constexpr, STRENGTH: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Lit pixels over the background; `channels` further attributes over 0."""
    _slot, item, pixel, live, row, column, spacing, margin, columns, own = pixel_block(
        softness, samples, first, height, width, softness_stride, SPACING, SAMPLE, BLOCK
    )
    front, back, z, place, albedo, n = load_surface(
        own, matrix + item * matrix_stride, row, column, spacing, margin, columns, GREY, COLORED, SAMPLE, PERSPECTIVE
    )
    s = silhouette_of(front, back, POWER)
    color = lit(
        n, place, load_three(eye + item * eye_stride), albedo, lights + item * lights_stride, SHININESS, STRENGTH,
        LIGHTS, KINDS, TWO_SIDED, GLOSSY,
    )  # fmt: skip
    pixel = pixel + item * height * width
    ground = background + item * background_stride
    store_vector(image, pixel, plus_times(times(color, s), load_three(ground), 1.0 - s), live)
    tl.store(silhouette + pixel, s, mask=live)
    seen_depth, _by_z, _by_s, _by_far = placed(z, s, tl.load(ground + 3), OVER)
    tl.store(depth + pixel, seen_depth, mask=live)
    FIRST_EXTRA: tl.constexpr = MEANS + 3 + 3 * COLORED
    for c in range(0, channels, 4):
        means = load_samples(own, row, column, spacing, margin, columns, FIRST_EXTRA + c, SAMPLE, SAMPLE)
        for k in tl.static_range(4):
            tl.store(extra + pixel * channels + c + k, s * means[k], mask=live & (c + k < channels))


@kernel
def shade_backward_kernel(
    samples, softness, background, matrix, eye, lights, grad_image, grad_silhouette, grad_depth, grad_extra, pixel_grads,
    partial, by_points, by_attributes, by_normals,
    first, height, width, softness_stride, background_stride, matrix_stride, eye_stride, lights_stride, channels,
    clear_points, clear_attributes, clear_normals,
    image_item, image_pixel, image_channel, silhouette_item, silhouette_pixel, depth_item, depth_pixel,
    extra_item, extra_pixel, extra_channel,
    SAMPLE: tl.constexpr, GRAD: tl.constexpr, POWER: tl.constexpr, OVER: tl.constexpr, SPACING: tl.constexpr,
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
    slot, item, pixel, live, row, column, spacing, margin, columns, own = pixel_block(
        softness, samples, first, height, width, softness_stride, SPACING, SAMPLE, BLOCK
    )
    matrix += item * matrix_stride
    front, back, z, place, albedo, n = load_surface(
        own, matrix, row, column, spacing, margin, columns, GREY, COLORED, SAMPLE, PERSPECTIVE
    )
    s = silhouette_of(front, back, POWER)
    viewer, lights = load_three(eye + item * eye_stride), lights + item * lights_stride
    color = lit(n, place, viewer, albedo, lights, SHININESS, STRENGTH, LIGHTS, KINDS, TWO_SIDED, GLOSSY)
    grad = grad_image + item * image_item + pixel * image_pixel
    by_color = (
        tl.load(grad, mask=live, other=0.0), tl.load(grad + image_channel, mask=live, other=0.0),
        tl.load(grad + 2 * image_channel, mask=live, other=0.0),
    )  # fmt: skip
    by_depth = tl.load(grad_depth + item * depth_item + pixel * depth_pixel, mask=live, other=0.0)
    by_s = tl.load(grad_silhouette + item * silhouette_item + pixel * silhouette_pixel, mask=live, other=0.0)
    ground = background + item * background_stride
    _depth, depth_z, depth_s, depth_far = placed(z, s, tl.load(ground + 3), OVER)
    by_s += dot(by_color, minus(color, load_three(ground))) + by_depth * depth_s
    partial += (slot * tl.num_programs(0) + tl.program_id(0)) * (SUMS + LIGHT * LIGHTS)
    by_n, by_place, by_eye, by_albedo = lit_back(
        n, place, viewer, albedo, times(by_color, s), lights, SHININESS, STRENGTH, partial + SUMS, LIGHTS, KINDS,
        TWO_SIDED, GLOSSY, NEEDED,
    )  # fmt: skip
    inverse, _shift = load_camera(matrix)
    g, by_place_z = unproject_back(inverse, by_place, column.to(z.dtype) + 0.5, row.to(z.dtype) + 0.5, PERSPECTIVE)
    by_z = depth_z * by_depth + by_place_z
    if NEEDED:
        store_sums(partial, times(by_color, 1.0 - s))
        tl.store(partial + 3, tl.sum(depth_far * by_depth))
        store_sums(partial + 4, by_eye)
        for k in tl.static_range(3):
            store_sums(partial + 7 + 4 * k, times(place, -g[k]))
            tl.store(partial + 10 + 4 * k, -tl.sum(g[k]))
    target = pixel_grads + (slot * height * width + pixel) * GRAD
    means = target + GRADS
    if COLORED:
        store_vector(means, 0, by_albedo, live)
        means += 3
    store_vector(means, 0, by_n, live)
    FIRST_EXTRA: tl.constexpr = MEANS + 3 + 3 * COLORED
    for c in range(0, channels, 4):
        seen = load_samples(own, row, column, spacing, margin, columns, FIRST_EXTRA + c, SAMPLE, SAMPLE)
        for k in tl.static_range(4):
            there = live & (c + k < channels)
            grad = grad_extra + item * extra_item + pixel * extra_pixel + (c + k) * extra_channel
            by_extra = tl.load(grad, mask=there, other=0.0)
            tl.store(means + 3 + c + k, s * by_extra, mask=there)
            by_s += by_extra * seen[k]
    store_by_coverage(target, front, back, by_s, by_z, live, POWER)

"""Triton: from samples to lit pixels, and back: as `pixels.py`, with light at what is seen there."""

# pyright: reportAttributeAccessIssue=false
from __future__ import annotations

import triton
import triton.language as tl

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
from .lighting import LIGHT, lit, lit_back
from .pixels import clear, pixel_block, silhouette_of, silhouette_slope
from .sampling import load_samples

#: Sums over pixels that lit pictures give: by background and its depth, eye, and camera matrix, before those by the lights.
SUMS = tl.constexpr(4 + 3 + 12)


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
    own, matrix, row, column, spacing, margin, columns, GREY: tl.constexpr, COLORED: tl.constexpr, SAMPLE: tl.constexpr,
    PERSPECTIVE: tl.constexpr,
):  # fmt: skip
    """What is seen at pixels: total, depth, position, albedo and mean normal."""
    total, z, a, b = load_samples(own, row, column, spacing, margin, columns, TOTAL, SAMPLE, SAMPLE)
    c, d, e, f = load_samples(own, row, column, spacing, margin, columns, MEANS + 2, SAMPLE, SAMPLE)
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
    _slot, item, pixel, live, row, column, spacing, margin, columns, own = pixel_block(
        softness, samples, first, height, width, softness_stride, SPACING, SAMPLE, BLOCK
    )
    total, z, x, y, w, red, green, blue, nx, ny, nz = load_surface(
        own, matrix + item * matrix_stride, row, column, spacing, margin, columns, GREY, COLORED, SAMPLE, PERSPECTIVE
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
            own, row, column, spacing, margin, columns, SAMPLE - channels + c, SAMPLE, SAMPLE
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
    slot, item, pixel, live, row, column, spacing, margin, columns, own = pixel_block(
        softness, samples, first, height, width, softness_stride, SPACING, SAMPLE, BLOCK
    )
    matrix += item * matrix_stride
    total, z, x, y, w, red, green, blue, nx, ny, nz = load_surface(
        own, matrix, row, column, spacing, margin, columns, GREY, COLORED, SAMPLE, PERSPECTIVE
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
            own, row, column, spacing, margin, columns, SAMPLE - channels + c, SAMPLE, SAMPLE
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
    store_two(target + LOG_NORM, tl.load(own + pixel * SAMPLE + LOG_NORM), dot, live)
    store_two(target + GRAD_TOTAL, by_s * silhouette_slope(s, BOUNDED, POWER), by_z, live)


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

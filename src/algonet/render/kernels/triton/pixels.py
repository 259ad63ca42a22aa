"""Triton: from samples to pixels of any attributes, lit or not, and back.

Where the noise is wide against a pixel, the picture is evaluated on a coarser grid: sample j is `spacing` (j - margin) pixels
from the first pixel's centre. Each item of a batch has its own grid, by its own scale, and nothing waits for the host:
grids are never larger than the picture, and an item's samples lie one after the other where its pixels would.

`paint_kernel` makes pictures; it takes samples as they are where every pixel has its own, and interpolates them where the
noise is wide. Its twin turns gradients by pictures into gradients by what was seen at the pixels.
"""

# pyright: reportAttributeAccessIssue=false
# ruff: noqa: RUF005 - Triton knows no starred tuples
from __future__ import annotations

import math

import triton
import triton.language as tl

from algonet.core.codegen.triton_math import kernel

from ... import vectors
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

TAPS = tl.constexpr(vectors.TAPS)
MARGIN = tl.constexpr(vectors.MARGIN)
LEAST_SPACING = tl.constexpr(vectors.LEAST_SPACING)
MOST_SAMPLES = tl.constexpr(vectors.MOST_SAMPLES)
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
    return (-1.0) ** (vectors.TAPS - 1 - tap) / (math.factorial(tap) * math.factorial(vectors.TAPS - 1 - tap))


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

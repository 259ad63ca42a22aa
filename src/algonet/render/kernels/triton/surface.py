"""Triton: normals of vertices, and light on points, forward and backward."""

# pyright: reportAttributeAccessIssue=false
from __future__ import annotations

import triton
import triton.language as tl

from ... import vectors
from .formulas import POINTERS, SIZES
from .lighting import LIGHT, lit, lit_back
from .pixels import clear

FLATNESS = tl.constexpr(vectors.FLATNESS)
LEAST_SQUARE = tl.constexpr(vectors.LEAST_SQUARE)
SMALL2 = tl.constexpr(vectors.SMALL**2)


@triton.jit
def load_edges(points, a, b, c, live):
    """Two edges of faces, from corner a to b and to c."""
    ax, ay = tl.load(points + a * 3, mask=live, other=0.0), tl.load(points + a * 3 + 1, mask=live, other=0.0)
    az = tl.load(points + a * 3 + 2, mask=live, other=0.0)
    ex, ey = tl.load(points + b * 3, mask=live, other=0.0) - ax, tl.load(points + b * 3 + 1, mask=live, other=0.0) - ay
    ez = tl.load(points + b * 3 + 2, mask=live, other=0.0) - az
    fx, fy = tl.load(points + c * 3, mask=live, other=0.0) - ax, tl.load(points + c * 3 + 1, mask=live, other=0.0) - ay
    fz = tl.load(points + c * 3 + 2, mask=live, other=0.0) - az
    return ex, ey, ez, fx, fy, fz


@triton.jit
def add_vector(target, vertex, x, y, z, live, WIDTH: tl.constexpr):
    tl.atomic_add(target + vertex * WIDTH, x, mask=live, sem="relaxed")
    tl.atomic_add(target + vertex * WIDTH + 1, y, mask=live, sem="relaxed")
    tl.atomic_add(target + vertex * WIDTH + 2, z, mask=live, sem="relaxed")


@triton.jit(do_not_specialize=SIZES, do_not_specialize_on_alignment=POINTERS)
def sum_areas_kernel(points, faces, sums, counters, count, rows, points_stride, clear_counters, BLOCK: tl.constexpr):
    """Add each face's area vector and the squares of two of its edges to its vertices: four numbers each.

    Clears the counters of the next kernel.
    """
    clear(counters, clear_counters, BLOCK)
    item = tl.program_id(1).to(tl.int64)
    f = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    live = f < count
    a = tl.load(faces + f * 3, mask=live, other=0).to(tl.int64)
    b = tl.load(faces + f * 3 + 1, mask=live, other=0).to(tl.int64)
    c = tl.load(faces + f * 3 + 2, mask=live, other=0).to(tl.int64)
    ex, ey, ez, fx, fy, fz = load_edges(points + item * points_stride, a, b, c, live)
    x, y, z = ey * fz - ez * fy, ez * fx - ex * fz, ex * fy - ey * fx
    square = ex * ex + ey * ey + ez * ez + fx * fx + fy * fy + fz * fz
    sums += item * rows * 4
    add_vector(sums, a, x, y, z, live, 4)
    add_vector(sums, b, x, y, z, live, 4)
    add_vector(sums, c, x, y, z, live, 4)
    tl.atomic_add(sums + a * 4 + 3, square, mask=live, sem="relaxed")
    tl.atomic_add(sums + b * 4 + 3, square, mask=live, sem="relaxed")
    tl.atomic_add(sums + c * 4 + 3, square, mask=live, sem="relaxed")


@triton.jit
def load_area(sums, v, live):
    """A vertex's area and square over their size, one over that size, and one over the area's guarded length."""
    x, y = tl.load(sums + v * 4, mask=live, other=0.0), tl.load(sums + v * 4 + 1, mask=live, other=0.0)
    z, square = tl.load(sums + v * 4 + 2, mask=live, other=0.0), tl.load(sums + v * 4 + 3, mask=live, other=0.0)
    size = tl.maximum(tl.maximum(tl.abs(x), tl.abs(y)), tl.maximum(tl.abs(z), square))
    by_size = 1.0 / tl.maximum(size, LEAST_SQUARE)
    x, y, z, square = x * by_size, y * by_size, z * by_size, square * by_size * FLATNESS
    scale = 1.0 / tl.sqrt(x * x + y * y + z * z + square * square + SMALL2)
    return x, y, z, square, by_size, scale


@triton.jit
def normal_at(normals, v, live, AREAS: tl.constexpr):
    """The normal of a vertex; AREAS: from the sums of its areas."""
    if AREAS:
        x, y, z, _square, _by_size, scale = load_area(normals, v, live)
        x, y, z = x * scale, y * scale, z * scale
    else:
        x, y, z = load_vector(normals, v, live)
    return x, y, z


@triton.jit(do_not_specialize=SIZES, do_not_specialize_on_alignment=POINTERS)
def normals_kernel(sums, normals, rows, BLOCK: tl.constexpr):
    """Areas as directions."""
    v = tl.program_id(1).to(tl.int64) * rows + tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    live = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK) < rows
    x, y, z = normal_at(sums, v, live, True)
    store_vector(normals, v, x, y, z, live)


@triton.jit
def area_back(sums, grad_normals, v, live):
    """From gradients by normals to gradients by the sums of a vertex's areas and squares."""
    x, y, z, square, by_size, scale = load_area(sums, v, live)
    gx, gy, gz = load_vector(grad_normals, v, live)
    along = (x * gx + y * gy + z * gz) * scale * scale
    factor = scale * by_size
    gx, gy, gz = (gx - x * along) * factor, (gy - y * along) * factor, (gz - z * along) * factor
    return gx, gy, gz, -square * FLATNESS * along * factor


@triton.jit(do_not_specialize=SIZES, do_not_specialize_on_alignment=POINTERS)
def spread_normals_kernel(
    points, faces, sums, grad_normals, by_points, count, rows, points_stride, BLOCK: tl.constexpr
):
    """From gradients by the vertices' normals to gradients by the points, which they are added to."""
    item = tl.program_id(1).to(tl.int64)
    f = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    live = f < count
    a = tl.load(faces + f * 3, mask=live, other=0).to(tl.int64)
    b = tl.load(faces + f * 3 + 1, mask=live, other=0).to(tl.int64)
    c = tl.load(faces + f * 3 + 2, mask=live, other=0).to(tl.int64)
    ex, ey, ez, fx, fy, fz = load_edges(points + item * points_stride, a, b, c, live)
    sums += item * rows * 4
    grad_normals += item * rows * 3
    gx, gy, gz, square = area_back(sums, grad_normals, a, live)
    gx1, gy1, gz1, square1 = area_back(sums, grad_normals, b, live)
    gx2, gy2, gz2, square2 = area_back(sums, grad_normals, c, live)
    gx, gy, gz, square = gx + gx1 + gx2, gy + gy1 + gy2, gz + gz1 + gz2, 2.0 * (square + square1 + square2)
    # Of the area e x f: by e it is f x g, by f it is g x e
    bx, by, bz = fy * gz - fz * gy + square * ex, fz * gx - fx * gz + square * ey, fx * gy - fy * gx + square * ez
    cx, cy, cz = gy * ez - gz * ey + square * fx, gz * ex - gx * ez + square * fy, gx * ey - gy * ex + square * fz
    by_points += item * rows * 3
    add_vector(by_points, b, bx, by, bz, live, 3)
    add_vector(by_points, c, cx, cy, cz, live, 3)
    add_vector(by_points, a, -bx - cx, -by - cy, -bz - cz, live, 3)


@triton.jit
def load_vector(place, i, live):
    x, y = tl.load(place + i * 3, mask=live, other=0.0), tl.load(place + i * 3 + 1, mask=live, other=0.0)
    return x, y, tl.load(place + i * 3 + 2, mask=live, other=0.0)


@triton.jit
def store_vector(place, i, x, y, z, live):
    tl.store(place + i * 3, x, mask=live)
    tl.store(place + i * 3 + 1, y, mask=live)
    tl.store(place + i * 3 + 2, z, mask=live)


@triton.jit(do_not_specialize=SIZES, do_not_specialize_on_alignment=POINTERS)
def illuminate_kernel(
    albedo, normals, positions, eye, lights, image,
    count, albedo_stride, normals_stride, positions_stride, eye_stride, lights_stride,
    LIGHTS: tl.constexpr, KINDS: tl.constexpr, TWO_SIDED: tl.constexpr, GLOSSY: tl.constexpr, SHININESS: tl.constexpr,
    STRENGTH: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    item = tl.program_id(1).to(tl.int64)
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    live = i < count
    r, g, b = load_vector(albedo + item * albedo_stride, i, live)
    nx, ny, nz = load_vector(normals + item * normals_stride, i, live)
    px, py, pz = load_vector(positions + item * positions_stride, i, live)
    eye += item * eye_stride
    r, g, b = lit(
        nx, ny, nz, px, py, pz, tl.load(eye), tl.load(eye + 1), tl.load(eye + 2), r, g, b, lights + item * lights_stride,
        SHININESS, STRENGTH, LIGHTS, KINDS, TWO_SIDED, GLOSSY,
    )  # fmt: skip
    store_vector(image + item * count * 3, i, r, g, b, live)


@triton.jit(do_not_specialize=SIZES, do_not_specialize_on_alignment=POINTERS)
def illuminate_backward_kernel(
    albedo, normals, positions, eye, lights, grad_color, by_albedo, by_normals, by_positions, partial,
    count, albedo_stride, normals_stride, positions_stride, eye_stride, lights_stride,
    LIGHTS: tl.constexpr, KINDS: tl.constexpr, TWO_SIDED: tl.constexpr, GLOSSY: tl.constexpr, SHININESS: tl.constexpr,
    STRENGTH: tl.constexpr, NEEDED: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Gradients by albedo, normals and positions; NEEDED: also sums of those by the eye and the lights."""
    item = tl.program_id(1).to(tl.int64)
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    live = i < count
    r, g, b = load_vector(albedo + item * albedo_stride, i, live)
    nx, ny, nz = load_vector(normals + item * normals_stride, i, live)
    px, py, pz = load_vector(positions + item * positions_stride, i, live)
    gr, gg, gb = load_vector(grad_color + item * count * 3, i, live)
    eye += item * eye_stride
    partial += (item * tl.num_programs(0) + tl.program_id(0)) * (3 + LIGHT * LIGHTS)
    bnx, bny, bnz, bpx, bpy, bpz, bex, bey, bez, ar, ag, ab = lit_back(
        nx, ny, nz, px, py, pz, tl.load(eye), tl.load(eye + 1), tl.load(eye + 2), r, g, b, gr, gg, gb,
        lights + item * lights_stride, SHININESS, STRENGTH, partial + 3, LIGHTS, KINDS, TWO_SIDED, GLOSSY, NEEDED,
    )  # fmt: skip
    store_vector(by_albedo + item * count * 3, i, ar, ag, ab, live)
    store_vector(by_normals + item * count * 3, i, bnx, bny, bnz, live)
    store_vector(by_positions + item * count * 3, i, bpx, bpy, bpz, live)
    if NEEDED:
        tl.store(partial, tl.sum(bex))
        tl.store(partial + 1, tl.sum(bey))
        tl.store(partial + 2, tl.sum(bez))

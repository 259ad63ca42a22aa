"""Triton: normals of vertices, forward and backward."""

# pyright: reportAttributeAccessIssue=false
from __future__ import annotations

import triton
import triton.language as tl

from algonet.core.codegen.triton_math import kernel

from .pixels import clear
from .shared import (
    add_vector,
    area_back,
    cross,
    dot,
    guarded_area,
    guarded_area_back,
    load_corners,
    load_live,
    load_vector,
    minus,
    plus,
    store_vector,
    times,
)


@triton.jit
def load_edges(points, a, b, c, live):
    """Two edges of faces, from corner a to b and to c."""
    start = load_vector(points, a, live)
    return minus(load_vector(points, b, live), start), minus(load_vector(points, c, live), start)


@kernel
def sum_areas_kernel(points, faces, sums, counters, count, rows, points_stride, clear_counters, BLOCK: tl.constexpr):
    """Add each face's area vector and the squares of two of its edges to its vertices: four numbers each.

    Clears the counters of the next kernel.
    """
    clear(counters, clear_counters, BLOCK)
    item = tl.program_id(1).to(tl.int64)
    f = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    live = f < count
    a, b, c = load_corners(faces, f, live)
    e, f = load_edges(points + item * points_stride, a, b, c, live)
    area, square = cross(e, f), dot(e, e) + dot(f, f)
    sums += item * rows * 4
    for vertex in tl.static_range(3):
        place = (a, b, c)[vertex]
        add_vector(sums, place, area, live, 4)
        tl.atomic_add(sums + place * 4 + 3, square, mask=live, sem="relaxed")


@triton.jit
def load_area(sums, v, live):
    """The sums of areas and of squares at a vertex."""
    x, y = load_live(sums + v * 4, live), load_live(sums + v * 4 + 1, live)
    z, square = load_live(sums + v * 4 + 2, live), load_live(sums + v * 4 + 3, live)
    return (x, y, z), square


@triton.jit
def normal_at(normals, v, live, AREAS: tl.constexpr):
    """The normal of a vertex; AREAS: from the sums of its areas."""
    if AREAS:
        area, square = load_area(normals, v, live)
        area, _square, _by_size, scale = guarded_area(area, square)
        normal = times(area, scale)
    else:
        normal = load_vector(normals, v, live)
    return normal


@kernel
def normals_kernel(sums, normals, rows, BLOCK: tl.constexpr):
    """Areas as directions."""
    v = tl.program_id(1).to(tl.int64) * rows + tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    live = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK) < rows
    store_vector(normals, v, normal_at(sums, v, live, True), live)


@triton.jit
def sums_back(sums, grad_normals, v, live):
    """From gradients by normals to gradients by the sums of a vertex's areas and squares."""
    area, square = load_area(sums, v, live)
    return guarded_area_back(area, square, load_vector(grad_normals, v, live))


@kernel
def spread_normals_kernel(
    points, faces, sums, grad_normals, grad_points, count, rows, points_stride, BLOCK: tl.constexpr
):
    """From gradients by the vertices' normals to gradients by the points, which they are added to."""
    item = tl.program_id(1).to(tl.int64)
    f = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    live = f < count
    a, b, c = load_corners(faces, f, live)
    e, f = load_edges(points + item * points_stride, a, b, c, live)
    sums += item * rows * 4
    grad_normals += item * rows * 3
    g, square = sums_back(sums, grad_normals, a, live)
    g1, square1 = sums_back(sums, grad_normals, b, live)
    g2, square2 = sums_back(sums, grad_normals, c, live)
    by_b, by_c = area_back(e, f, plus(plus(g, g1), g2), square + square1 + square2)
    grad_points += item * rows * 3
    add_vector(grad_points, b, by_b, live, 3)
    add_vector(grad_points, c, by_c, live, 3)
    add_vector(grad_points, a, times(plus(by_b, by_c), -1.0), live, 3)

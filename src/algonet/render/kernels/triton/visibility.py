"""Which face each pixel's centre sees, on CUDA devices: `render/visibility.py` with a program for each face.

A program walks its face's box in blocks and keeps the nearest of each pixel by an atomic minimum of 64 bits. Large faces are
cut into tiles, which a second launch draws. What follows the marker is the CPU's kernel's, too: `numba.tiles.translated`.
"""

# pyright: reportAttributeAccessIssue=false
from __future__ import annotations

import math
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from algonet.core.autograd import plan_from
from algonet.core.cache import cached
from algonet.core.codegen.triton_math import kernel
from algonet.core.launch import Launch

from ... import visibility
from ...visibility import NOTHING, VisibilitySettings, unpacked

UNITS, EXACT = tl.constexpr(visibility.UNITS), tl.constexpr(visibility.EXACT)
#: Faces of more than one tile of so many pixels a side are drawn tile by tile, as far as there are places for them.
TILE, PLACES = 64, 1 << 16
#: Sides of the blocks of pixels that small faces and tiles are drawn by, and warps; programs that draw tiles.
SMALL, LARGE, PROGRAMS = (8, 1), (16, 2), 2048


def rasterize_forward(tensors: list[Tensor], settings: VisibilitySettings) -> tuple[list[Tensor], list[Tensor]]:
    points, near, faces = (t.detach().contiguous() for t in tensors)
    batch, (vertices, count) = points.shape[:-2], (points.shape[-2], len(faces))
    nearest = torch.full((*batch, settings.height, settings.width), NOTHING, dtype=torch.int64, device=points.device)
    if nearest.numel() and count:
        # The number of tiles, then each one's item, face and place in it
        jobs = torch.empty(1 + 3 * PLACES, dtype=torch.int32, device=points.device)
        jobs[:1].zero_()
        for launch in _launches(math.prod(batch), vertices, count, settings):
            launch.start(points=points, near=near.double(), faces=faces, nearest=nearest, jobs=jobs)
    return [unpacked(nearest)], []


@cached
def _launches(items: int, vertices: int, count: int, settings: VisibilitySettings) -> tuple[Launch, Launch]:
    both: dict[str, Any] = {
        "count": count, "vertices": vertices, "height": settings.height, "width": settings.width, "places": PLACES,
        "PERSPECTIVE": settings.perspective, "TWO_SIDED": settings.two_sided, "TILE": TILE,
        "fused": False,
    }  # fmt: skip
    faces = Launch(draw_kernel, items * count, warps=SMALL[1], **both, TILES=False, BLOCK=SMALL[0])
    return faces, Launch(draw_kernel, PROGRAMS, warps=LARGE[1], **both, TILES=True, BLOCK=LARGE[0])


@triton.jit
def load_corner(points, vertex, PERSPECTIVE: tl.constexpr):
    place = points + vertex * 3
    x, y, z = tl.load(place).to(tl.float64), tl.load(place + 1).to(tl.float64), tl.load(place + 2).to(tl.float64)
    return snapped(x, y, z, PERSPECTIVE)


@triton.jit
def draw_face(
    points, near, faces, nearest, jobs, item, face, tile, count, vertices, height, width, places,
    PERSPECTIVE: tl.constexpr, TWO_SIDED: tl.constexpr, TILE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Draw a tile of a face, or with `tile` -1 all of it, unless it is large and there are places for its tiles."""
    points += item.to(tl.int64) * vertices * 3
    p = load_corner(points, tl.load(faces + face * 3).to(tl.int64), PERSPECTIVE)
    q = load_corner(points, tl.load(faces + face * 3 + 1).to(tl.int64), PERSPECTIVE)
    r = load_corner(points, tl.load(faces + face * 3 + 2).to(tl.int64), PERSPECTIVE)
    edges, depths, usable, ahead = face_edges(p, q, r, TWO_SIDED)
    left = first_pixel(p[4], q[4], r[4], ahead, width).to(tl.int32)
    top = first_pixel(p[5], q[5], r[5], ahead, height).to(tl.int32)
    right = last_pixel(p[4], q[4], r[4], ahead, width).to(tl.int32)
    bottom = last_pixel(p[5], q[5], r[5], ahead, height).to(tl.int32)
    across, down = tl.maximum(right - left + TILE, 0) // TILE, tl.maximum(bottom - top + TILE, 0) // TILE
    if usable:
        if tile >= 0:
            left, top = left + (tile % across) * TILE, top + (tile // across) * TILE
            right, bottom = tl.minimum(right, left + TILE - 1), tl.minimum(bottom, top + TILE - 1)
        elif across * down > 1:
            place = tl.atomic_add(jobs, across * down, sem="relaxed")
            fits = (place >= 0) & (place + across * down <= places)
            for i in range(tl.minimum(across * down, tl.where(place < 0, 0, tl.maximum(places - place, 0)))):
                job = jobs + 1 + (place + i) * 3
                tl.store(job, item)
                tl.store(job + 1, tl.where(fits, face, -1))
                tl.store(job + 2, i)
            bottom = tl.where(fits, -1, bottom)
        closest = tl.load(near + item)
        step = tl.arange(0, BLOCK)
        nearest += item.to(tl.int64) * height * width
        for first_row in range(top, bottom + 1, BLOCK):
            row = first_row + step[:, None]
            y = (row * UNITS + UNITS // 2).to(tl.float64)
            for first_column in range(left, right + 1, BLOCK):
                column = first_column + step[None, :]
                x = (column * UNITS + UNITS // 2).to(tl.float64)
                inside, total, depth = shares_at(edges, depths, x, y)
                inside &= (row <= bottom) & (column <= right)
                depth = within(depth / tl.where(inside, total, 1.0), depths)
                inside &= depth > closest
                bits = tl.where(inside, depth, 1.0).to(tl.float32).to(tl.int32, bitcast=True).to(tl.int64)
                key = (bits << 32) | face
                target = nearest + row * width + column
                inside &= key < tl.load(target, mask=inside, other=0)
                tl.atomic_min(target, key, mask=inside, sem="relaxed")


@kernel
def draw_kernel(
    points, near, faces, nearest, jobs, count, vertices, height, width, places,
    PERSPECTIVE: tl.constexpr, TWO_SIDED: tl.constexpr, TILE: tl.constexpr, TILES: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """A program for each face; TILES: programs that share the tiles."""
    if TILES:
        for i in range(tl.program_id(0), tl.minimum(tl.load(jobs), places), tl.num_programs(0)):
            job = jobs + 1 + i * 3
            face = tl.load(job + 1)
            if face >= 0:
                draw_face(
                    points, near, faces, nearest, jobs, tl.load(job), face, tl.load(job + 2), count, vertices, height, width,
                    places, PERSPECTIVE, TWO_SIDED, TILE, BLOCK,
                )  # fmt: skip
    else:
        program = tl.program_id(0)
        draw_face(
            points, near, faces, nearest, jobs, program // count, program % count, -1, count, vertices, height, width, places,
            PERSPECTIVE, TWO_SIDED, TILE, BLOCK,
        )  # fmt: skip


RasterizePlan = plan_from(rasterize_forward, None)


# --- template ---
@triton.jit
def snapped(x, y, z, PERSPECTIVE: tl.constexpr):
    """Of a corner: x w and y w in units, w and depth, snapped x and y, and whether its arithmetic is exact."""
    x, y, w = x * UNITS, y * UNITS, z
    if not PERSPECTIVE:
        w = z * 0.0 + 1.0
    ahead = w > 0
    sx = tl.floor(x / tl.where(ahead, w, 1.0) + 0.5)
    sy = tl.floor(y / tl.where(ahead, w, 1.0) + 0.5)
    exact = ahead & (tl.abs(sx) <= EXACT) & (tl.abs(sy) <= EXACT)
    return tl.where(exact, sx * w, x), tl.where(exact, sy * w, y), w, z, sx, sy, exact


@triton.jit
def edge(j, k):
    """a, b, c, x and y of the edge between two corners, and its weight: see `visibility.Edges`."""
    xj, yj, wj, _zj, sxj, syj, exactj = j
    xk, yk, wk, _zk, sxk, syk, exactk = k
    both = exactj & exactk
    weight = tl.where(both, wj * wk, 1.0)
    xj, yj, wj = tl.where(both, sxj, xj), tl.where(both, syj, yj), tl.where(both, 1.0, wj)
    xk, yk, wk = tl.where(both, sxk, xk), tl.where(both, syk, yk), tl.where(both, 1.0, wk)
    # An edge is 0 at its snapped corners, whatever rounding does to a and b
    c = tl.where(exactj | exactk, 0.0, yj * xk - xj * yk)
    x = tl.where(exactj, sxj, tl.where(exactk, sxk, 0.0))
    y = tl.where(exactj, syj, tl.where(exactk, syk, 0.0))
    return yk * wj - yj * wk, xj * wk - xk * wj, c, x, y, weight


@triton.jit
def turned(e, sign):
    """An edge that is positive inside, and its least value there: 0 if pixels on it belong to its face."""
    a, b = sign * e[0], sign * e[1]
    owned = tl.where(a == 0.0, b > 0.0, a > 0.0)
    return a, b, sign * e[2], e[3], e[4], e[5], tl.where(owned, a * 0.0, a * 0.0 + 1e-300)


@triton.jit
def face_edges(p, q, r, TWO_SIDED: tl.constexpr):
    """The edges of a face, its depths, whether it is seen at all, and whether all of it lies before the eye."""
    first = edge(q, r)
    size = tl.where(p[6], 1.0, p[2])
    area = first[0] * (tl.where(p[6], p[4], p[0]) - first[3] * size)
    area += first[1] * (tl.where(p[6], p[5], p[1]) - first[4] * size) + first[2] * size
    finite = (p[0] + p[1] + p[3] + q[0] + q[1] + q[3] + r[0] + r[1] + r[3]) * 0.0 == 0.0
    sign = tl.where(area < 0, -1.0, 1.0)
    edges = (turned(first, sign), turned(edge(r, p), sign), turned(edge(p, q), sign))
    usable = ((area > 0) | ((area < 0) & TWO_SIDED)) & finite
    return edges, (p[3], q[3], r[3]), usable, least(p[2], q[2], r[2]) > 0


@triton.jit
def least(a, b, c):
    return tl.minimum(tl.minimum(a, b), c)


@triton.jit
def first_pixel(a, b, c, ahead, size):
    """The first row or column whose centre does not lie before snapped corners, which may come out anywhere behind the eye."""
    place = tl.where(ahead, least(a, b, c) * (1.0 / UNITS) - 0.5, 0.0)
    return tl.ceil(tl.minimum(tl.maximum(place, 0.0), size))


@triton.jit
def last_pixel(a, b, c, ahead, size):
    """The last one that does not lie behind them."""
    place = tl.where(ahead, -least(-a, -b, -c) * (1.0 / UNITS) - 0.5, size - 1.0)
    return tl.floor(tl.minimum(tl.maximum(place, -1.0), size - 1.0))


@triton.jit
def shares_at(edges, depths, x, y):
    """Whether places lie in a face, the sum of the corners' shares, and that of these times depths."""
    inside = x + y == x + y
    total, depth = x * 0.0 + y * 0.0, x * 0.0 + y * 0.0
    for i in tl.static_range(3):
        a, b, c, px, py, weight, low = edges[i]
        value = a * (x - px) + b * (y - py) + c
        inside &= value >= low
        total += value * weight
        depth += value * weight * depths[i]
    return inside, total, depth


@triton.jit
def within(depth, depths):
    """Rounding, or a face seen from its edge, must not carry a depth out of the face."""
    depth = tl.maximum(depth, least(depths[0], depths[1], depths[2]))
    return tl.minimum(depth, -least(-depths[0], -depths[1], -depths[2]))

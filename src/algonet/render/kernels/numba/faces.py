"""The CPU rasteriser's faces: seen by the camera, prepared, and listed per tile of 16 x 16 pixels.

The first of four templates (then `forward`, `backward`, `pixels`) that `host` joins to one module for each precision and df.
What precedes the marker only tells readers and checkers where names come from; `edges.prelude` writes it anew.

Lengths are in samples (see `tiles.Grid`): pixels, unless the noise is wide.
"""

# pyright: reportOptionalCall=false, reportAttributeAccessIssue=false
from __future__ import annotations

import numpy as np
from numba import float32, int64

from algonet.core.codegen.jit import njit

OPTIONS = {"fastmath": {"contract"}, "error_model": "numpy", "nogil": True}
real = float32
EXACT, HIDDEN = 1e-5, 1e-9
exp = log = angle = edge = smooth_step = horizon = None
FLIP_AREA, FAR, FAINT2, FLAT, EDGE_GUARD, BACK, LIGHT = 1e-4, 1e7, 1e-10, 1e-10, 1e-12, 2.0, 8

# --- template ---
LANES = 16
TILE = LANES * LANES
#: Numbers kept per face by `prepare`: corners, edge directions, edge lengths, centroid, area terms, depths, weights.
X, U, LENGTH, CENTROID, INVERSE, FACTOR = 0, 6, 12, 15, 17, 18
DEPTH, WEIGHT, LEAST, AREA, TURN = 19, 22, 25, 26, 27
FACE = 28
#: One-sided faces that are turned away by more than this many scales of the noise add nothing, exp(-32).
AWAY = -16.0


@njit(**OPTIONS)
def project(points, near, perspective, spacing, margin, out):
    """(x w, y w, depth) to x, y in samples, depth, 1/w, presence and its slope, for the vertices of one item."""
    shift = real(margin + 0.5)
    by_spacing = real(1.0) / real(spacing)
    for v in range(points.shape[0]):
        depth = points[v, 2]
        w = max(depth, near / 2) if perspective else real(1.0)
        x = min(max(points[v, 0] / w, real(-FAR)), real(FAR))
        y = min(max(points[v, 1] / w, real(-FAR)), real(FAR))
        out[v, 0], out[v, 1] = (x - real(0.5)) * by_spacing + shift, (y - real(0.5)) * by_spacing + shift
        out[v, 2] = depth
        out[v, 3] = 1 / w
        out[v, 4], out[v, 5] = smooth_step(float(depth) / near - 1)
        # max and min drop a NaN; it must come out again
        if points[v, 0] != points[v, 0] or points[v, 1] != points[v, 1] or depth != depth:
            out[v, 0] = np.nan


@njit(forceinline=True, **OPTIONS)
def slope_of(o, perspective, spacing):
    """The inverse depths of a face's corners (without perspective: depths), and their `horizon`."""
    a, b, c = (o[WEIGHT], o[WEIGHT + 1], o[WEIGHT + 2]) if perspective else (o[DEPTH], o[DEPTH + 1], o[DEPTH + 2])
    level = float(a), float(b), float(c)
    return level, horizon(
        level[0], level[1], level[2], float(o[X]), float(o[X + 1]), float(o[X + 2]), float(o[X + 3]), float(o[X + 4]),
        float(o[X + 5]), EDGE_GUARD / (spacing * spacing),
    )  # fmt: skip


@njit(**OPTIONS)
def prepare(vertices, faces, scale, perspective, two_sided, guard, spacing, out):
    """All that samples need to know of each face, and whether a vertex is not a number. `scale` is in samples."""
    broken = False
    flip = FLIP_AREA / (spacing * spacing)
    for f in range(faces.shape[0]):
        o = out[f]
        presence = 1.0
        for i in range(3):
            v = faces[f, i]
            o[X + 2 * i], o[X + 2 * i + 1] = vertices[v, 0], vertices[v, 1]
            o[DEPTH + i], o[WEIGHT + i] = vertices[v, 2], vertices[v, 3]
            presence *= vertices[v, 4]
            broken = broken or vertices[v, 0] != vertices[v, 0]
        for i in range(3):
            j = (i + 1) % 3
            ex, ey = o[X + 2 * j] - o[X + 2 * i], o[X + 2 * j + 1] - o[X + 2 * i + 1]
            length = np.sqrt(ex * ex + ey * ey + guard)
            o[U + 2 * i], o[U + 2 * i + 1] = ex / length, ey / length
            o[LENGTH + i] = (ex * ex + ey * ey) / length
        ax, ay = o[X + 2] - o[X], o[X + 3] - o[X + 1]
        bx, by = o[X + 4] - o[X], o[X + 5] - o[X + 1]
        area = float(ay) * float(bx) - float(ax) * float(by)
        level, (_, _, _, _, square) = slope_of(o, perspective, spacing)
        turn = area / (float(scale) * np.sqrt(square)) if square > 0 else 0.0
        o[CENTROID] = (o[X] + o[X + 2] + o[X + 4]) / 3
        o[CENTROID + 1] = (o[X + 1] + o[X + 3] + o[X + 5]) / 3
        o[INVERSE] = area / (area * area + flip * flip)
        away = not two_sided and turn * min(min(level[0], level[1]), level[2]) < AWAY
        o[FACTOR] = 0.0 if away else presence
        o[LEAST] = min(min(o[WEIGHT], o[WEIGHT + 1]), o[WEIGHT + 2]) / 2
        o[AREA], o[TURN] = area, turn
    return broken


@njit(**OPTIONS)
def bound(o, reach, height, width, box):
    """The tiles (rows y0:y1, columns x0:x1 of the grid of tiles) that the face's reach touches; whether there are any."""
    low_x, high_x = min(min(o[X], o[X + 2]), o[X + 4]) - reach, max(max(o[X], o[X + 2]), o[X + 4]) + reach
    low_y, high_y = min(min(o[X + 1], o[X + 3]), o[X + 5]) - reach, max(max(o[X + 1], o[X + 3]), o[X + 5]) + reach
    if o[FACTOR] == 0 or not (high_x > 0 and high_y > 0 and low_x < width and low_y < height):
        return False
    box[0], box[1] = int64(max(low_y, real(0.0))), int64(min(high_y, real(height - 1)))
    box[2], box[3] = int64(max(low_x, real(0.0))), int64(min(high_x, real(width - 1)))
    return True


@njit(**OPTIONS)
def touches(o, reach, tile_y, tile_x):
    """Whether the tile comes within reach of the face; may say yes too often."""
    x, y = (tile_x + 0.5) * LANES, (tile_y + 0.5) * LANES
    # Half a tile's diagonal between pixel centres
    slack = reach + real(0.7072 * (LANES - 1))
    side = real(1.0) if o[AREA] > 0 else real(-1.0)
    for i in range(3):
        d = side * ((o[X + 2 * i + 1] - y) * o[U + 2 * i] - (o[X + 2 * i] - x) * o[U + 2 * i + 1])
        if d < -slack:
            return False
    return True


@njit(**OPTIONS)
def each_tile(prepared, reach, height, width, first_face, base, starts, tile_counts, faces_of, pairs_of, listing):
    """How many tiles each face touches, and how many faces each tile has.

    Or, `listing`, write each tile's faces, in order, with the number of the pair. Numbers run face by face; `starts` are their
    first ones then, and `tile_counts` the next places."""
    columns = (width + LANES - 1) // LANES
    box = np.empty(4, np.int64)
    for f in range(prepared.shape[0]):
        o, number = prepared[f], 0
        if bound(o, reach, height, width, box):
            for ty in range(box[0] // LANES, box[1] // LANES + 1):
                for tx in range(box[2] // LANES, box[3] // LANES + 1):
                    if touches(o, reach, ty, tx):
                        tile = base + ty * columns + tx
                        if listing:
                            faces_of[tile_counts[tile]], pairs_of[tile_counts[tile]] = (
                                first_face + f,
                                starts[f] + number,
                            )
                        tile_counts[tile] += 1
                        number += 1
        if not listing:
            starts[f] = number


@njit(**OPTIONS, cache=True)
def prepare_items(
    begin, stride, points, faces, softness, grid, spacings, reaches, perspective, two_sided, guard, vertices, prepared, starts,
    tile_counts, broken,
):  # fmt: skip
    """Every `stride`-th item from `begin` on: its faces as tiles need them, how many tiles each touches, and whether there is
    something that is not a number. `grid` has rows and columns of samples, and margins."""
    none = np.empty(0, np.int64)
    for item in range(begin, points.shape[0], stride):
        spacing, scale, own = spacings[item], softness[item, 0], softness[item]
        project(points[item], own[2], perspective, spacing, grid[item, 2], vertices[item])
        wrong = prepare(vertices[item], faces, scale / spacing, perspective, two_sided, guard, spacing, prepared[item])
        broken[item] = wrong or not np.isfinite(own[0] + own[1] + own[2])
        if not broken[item]:
            each_tile(prepared[item], reaches[item], grid[item, 0], grid[item, 1], 0, 0, starts[item], tile_counts[item], none,
                      none, False)  # fmt: skip


@njit(**OPTIONS, cache=True)
def list_items(begin, stride, prepared, grid, reaches, broken, starts, places, faces_of, pairs_of):
    """The faces of every tile of every `stride`-th item from `begin` on."""
    count, tiles = prepared.shape[1], (places.shape[0] - 1) // prepared.shape[0]
    for item in range(begin, prepared.shape[0], stride):
        if not broken[item]:
            each_tile(prepared[item], reaches[item], grid[item, 0], grid[item, 1], item * count, item * tiles,
                      starts[item * count : (item + 1) * count], places, faces_of, pairs_of, True)  # fmt: skip


@njit(**OPTIONS)
def row_ranges(entries, prepared, first_row, reach, rows):
    """The rows of the tile that each of its faces reaches."""
    for entry in range(entries.shape[0]):
        o = prepared[entries[entry]]
        low = min(min(o[X + 1], o[X + 3]), o[X + 5]) - reach - first_row
        high = max(max(o[X + 1], o[X + 3]), o[X + 5]) + reach - first_row
        rows[entry, 0] = int64(min(max(low, real(0.0)), real(LANES)))
        rows[entry, 1] = int64(min(max(high + real(1.0), real(0.0)), real(LANES)))

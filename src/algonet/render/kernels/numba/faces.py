"""The CPU rasteriser's faces: seen by the camera, prepared, and listed per tile of 16 x 16 pixels.

The first of four templates (then `forward`, `backward`, `pixels`) that `host` joins to one module for each precision and df.
What precedes the marker only tells readers and checkers where names come from; `tiles.prelude` writes it anew.

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
exp = log = angle = edge = smooth_step = horizon = corner_planes = plus = weighted = None
FLIP_AREA, FAR, FLAT, EDGE_GUARD, LIGHT, BACK = 1e-4, 1e7, 1e-10, 1e-12, 8, 2.0

# --- template ---
LANES = 16
TILE = LANES * LANES
#: Where a face's record has what: corners, directions and lengths of edges, the factor of its coverage, the planes of the
#: denominator and of depth, the least denominator, the turn, then three numbers for the plane of each channel.
CORNERS, DIRECTIONS, LENGTHS, FACTOR, DENOMINATOR, DEPTH, LEAST, TURN, PLANES = 0, 6, 12, 15, 16, 19, 22, 23, 24
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
def vector(row, first):
    return row[first], row[first + 1], row[first + 2]


@njit(forceinline=True, **OPTIONS)
def put(row, first, v):
    row[first], row[first + 1], row[first + 2] = v


@njit(forceinline=True, **OPTIONS)
def add(row, first, v):
    row[first] += v[0]
    row[first + 1] += v[1]
    row[first + 2] += v[2]


@njit(forceinline=True, **OPTIONS)
def shape_of(vertices, face, perspective, spacing):
    """Of a face: its corners' x and y one after the other, twice its area and what inverts that, and `horizon` of the levels
    (inverse depths; depths without perspective), which come last."""
    a, b, c = vertices[face[0]], vertices[face[1]], vertices[face[2]]
    corners = float(a[0]), float(a[1]), float(b[0]), float(b[1]), float(c[0]), float(c[1])
    ax, ay, bx, by, cx, cy = corners
    area, flip = (by - ay) * (cx - ax) - (bx - ax) * (cy - ay), FLIP_AREA / (spacing * spacing)
    level = 3 if perspective else 2
    levels = float(a[level]), float(b[level]), float(c[level])
    slope = horizon(levels[0], levels[1], levels[2], ax, ay, bx, by, cx, cy, EDGE_GUARD / (spacing * spacing))
    return corners, area, flip, slope, levels


@njit(forceinline=True, **OPTIONS)
def put_planes(o, first, a, b, c, table, rows):
    """The planes of a table's channels, from the corners' planes and their rows in it."""
    p, q, r = table[rows[0]], table[rows[1]], table[rows[2]]
    for k in range(table.shape[1]):
        put(o, first + 3 * k, weighted(a, b, c, p[k], q[k], r[k]))


@njit(**OPTIONS)
def prepare(vertices, faces, attributes, attribute_faces, normals, scale, perspective, two_sided, guard, spacing, out):
    """The record of each face, and whether a vertex is not a number. `scale` is in samples."""
    broken = False
    for f in range(faces.shape[0]):
        o, face = out[f], faces[f]
        presence = 1.0
        for i in range(3):
            own, other = vertices[face[i]], vertices[face[(i + 1) % 3]]
            o[CORNERS + 2 * i], o[CORNERS + 2 * i + 1] = own[0], own[1]
            presence *= own[4]
            broken = broken or own[0] != own[0]
            ex, ey = other[0] - own[0], other[1] - own[1]
            length = np.sqrt(ex * ex + ey * ey + guard)
            o[DIRECTIONS + 2 * i], o[DIRECTIONS + 2 * i + 1] = ex / length, ey / length
            o[LENGTHS + i] = (ex * ex + ey * ey) / length
        (ax, ay, bx, by, cx, cy), area, flip, slope, levels = shape_of(vertices, face, perspective, spacing)
        o[TURN] = area / (float(scale) * np.sqrt(slope[4])) if slope[4] > 0 else 0.0
        away = not two_sided and o[TURN] * min(min(levels[0], levels[1]), levels[2]) < AWAY
        o[FACTOR] = 0.0 if away else presence
        p, q, r = vertices[face[0]], vertices[face[1]], vertices[face[2]]
        o[LEAST] = min(min(p[3], q[3]), r[3]) / 2
        a, b, c = corner_planes(
            ax, ay, bx, by, cx, cy, float(p[3]), float(q[3]), float(r[3]), area / (area * area + flip * flip)
        )
        put(o, DENOMINATOR, plus(plus(a, b), c))
        put(o, DEPTH, weighted(a, b, c, p[2], q[2], r[2]))
        put_planes(o, PLANES, a, b, c, attributes, attribute_faces[f])
        put_planes(o, PLANES + 3 * attributes.shape[1], a, b, c, normals, face)
    return broken


@njit(forceinline=True, **OPTIONS)
def extent(o, axis, reach):
    """From where to where a face reaches along x (0) or y (1)."""
    a, b, c = o[axis], o[axis + 2], o[axis + 4]
    return min(min(a, b), c) - reach, max(max(a, b), c) + reach


@njit(**OPTIONS)
def bound(o, reach, height, width, box):
    """The tiles (rows y0:y1, columns x0:x1 of the grid of tiles) that the face's reach touches; whether there are any."""
    (low_x, high_x), (low_y, high_y) = extent(o, 0, reach), extent(o, 1, reach)
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
    side = real(1.0) if o[TURN] > 0 else real(-1.0)
    for i in range(3):
        away_x, away_y = o[CORNERS + 2 * i] - x, o[CORNERS + 2 * i + 1] - y
        d = side * (away_y * o[DIRECTIONS + 2 * i] - away_x * o[DIRECTIONS + 2 * i + 1])
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
    begin, stride, points, faces, attributes, attribute_faces, normals, softness, grid, spacings, reaches, perspective,
    two_sided, guard, vertices, prepared, starts, tile_counts, broken,
):  # fmt: skip
    """Every `stride`-th item from `begin` on: its faces as tiles need them, how many tiles each touches, and whether there is
    something that is not a number. `grid` has rows and columns of samples, and margins;
    `normals` no channels where nothing is lit."""
    none = np.empty(0, np.int64)
    for item in range(begin, points.shape[0], stride):
        spacing, scale, own = spacings[item], softness[item, 0], softness[item]
        project(points[item], own[2], perspective, spacing, grid[item, 2], vertices[item])
        wrong = prepare(
            vertices[item], faces, attributes[item], attribute_faces, normals[item], scale / spacing, perspective, two_sided,
            guard, spacing, prepared[item],
        )  # fmt: skip
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
        low, high = extent(prepared[entries[entry]], 1, reach)
        low, high = low - first_row, high - first_row
        rows[entry, 0] = int64(min(max(low, real(0.0)), real(LANES)))
        rows[entry, 1] = int64(min(max(high + real(1.0), real(0.0)), real(LANES)))

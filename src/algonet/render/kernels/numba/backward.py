"""The CPU rasteriser's backward pass: tiles recompute what they need, then gradients are summed face by face. A template, see
`faces`; the innermost loop is like that of `forward`.
"""

# pyright: reportOptionalCall=false, reportAttributeAccessIssue=false
from __future__ import annotations

import numpy as np

from algonet.core.codegen.jit import njit

from .faces import BACK, FLAT, LANES, OPTIONS, PLANES, TILE, TURN, add, real, row_ranges, shape_of, vector
from .forward import HALF, LEAST_SEEN, bounded, dot, face_numbers, plus_times, see, tile_at

corner_pull = edge_worth = kept = seen_at_back = None

# --- template ---

#: Sums per face and tile in the backward pass: what pulls on both ends of each edge, by the planes of the denominator and of
#: depth, by the centroid, then by the coverage's factor, the noise's scale, the steepness and the turn.
ENDS, BY_DENOMINATOR, BY_DEPTH, SHIFT, REST = 0, 6, 9, 12, 14
SUMS = 18
#: Rows of a sample's gradients before those by the channels: by depth, what counts as none, by the coverage from the front and
#: from the back, and the limit.
GRADS = 5
#: Rows of the buffer before the sums: gradients along the planes of all channels, `GRADS`, and what is shown by planes.
LOADED = GRADS + 6


@njit(forceinline=True, **OPTIONS)
def add_three(buffer, first, i, v):
    for k in range(3):
        buffer[(first + k) * LANES + i] += v[k]


@njit(forceinline=True, **OPTIONS)
def pull_edge(buffer, first, i, start, length, away, densities, ux, uy, gp, gmx, gmy, by_second):
    """Moving an edge outward adds the density along it, times its worth there: added to the rows of its two ends.
    Returns that times the distance."""
    flat, slope, curve = edge_worth(gp, gmx, gmy, by_second, away, ux, uy)
    whole = flat * densities[0] + slope * densities[1] + curve * densities[2]
    moment = flat * densities[1] + slope * densities[2] + curve * densities[3]
    buffer[first * LANES + i] += (start + length) * whole - moment
    buffer[(first + 1) * LANES + i] += moment - start * whole
    return away * whole


@njit(**OPTIONS)
def lanes_backward(o, x0, y, steepness, sigma2, perspective, two_sided, buffer):
    """The gradient of one face from the 16 pixels of one row: see `LOADED`; `SUMS` rows behind that are added to."""
    face = face_numbers(o, y)
    (_, _, ux, uy, lengths), _, d, depths, (least, turn, factor) = face
    one = real(1.0)
    for i in range(LANES):
        mean, centre, sides, (p, mx, my, second, gx, gy), (start, away, k0, k1, k2) = see(
            face, x0 + real(i), sigma2, steepness, perspective, two_sided
        )
        plane = buffer[i], buffer[LANES + i], buffer[2 * LANES + i]
        grads = buffer[4 * LANES + i], buffer[3 * LANES + i], buffer[5 * LANES + i], buffer[6 * LANES + i]
        share = kept(buffer[7 * LANES + i], sides[4])
        pull, nz, by_d, full, by_ox, by_oy, gp, gmx, gmy, by_second, by_turn, by_place, by_c, right, rest = seen_at_back(
            mean, centre, sides, p, mx, my, second, gx, gy, d, depths, least, turn, factor, steepness, share,
            share * sides[0], plane, grads, HALF, perspective, two_sided,
        )  # fmt: skip
        px, py, _, _, z, level = mean
        _, front, side, t, _, root = sides
        buffer[8 * LANES + i], buffer[9 * LANES + i], buffer[10 * LANES + i] = pull, pull * px, pull * py
        add_three(buffer, LOADED + BY_DENOMINATOR, i, by_d)
        add_three(buffer, LOADED + BY_DEPTH, i, (nz, nz * px, nz * py))
        buffer[(LOADED + SHIFT) * LANES + i] -= full * by_ox
        buffer[(LOADED + SHIFT + 1) * LANES + i] -= full * by_oy
        # Coverage does not change when everything is scaled, moments grow with it and its square: that gives the noise's scale
        grown = gmx * mx + gmy * my + real(2.0) * dot(by_second, second) - by_turn * t
        grown -= pull_edge(
            buffer, LOADED + ENDS, i, start[0], lengths[0], away[0], k0, ux[0], uy[0], gp, gmx, gmy, by_second
        )
        grown -= pull_edge(
            buffer, LOADED + ENDS + 2, i, start[1], lengths[1], away[1], k1, ux[1], uy[1], gp, gmx, gmy, by_second
        )
        grown -= pull_edge(
            buffer, LOADED + ENDS + 4, i, start[2], lengths[2], away[2], k2, ux[2], uy[2], gp, gmx, gmy, by_second
        )
        by_factor = by_c * p * side * (one if two_sided else front)
        buffer[(LOADED + REST) * LANES + i] += by_factor if right else real(0.0)
        buffer[(LOADED + REST + 1) * LANES + i] += grown
        buffer[(LOADED + REST + 2) * LANES + i] += by_place * z * (one + BACK * rest * root)
        buffer[(LOADED + REST + 3) * LANES + i] += by_turn * level


@njit(**OPTIONS, cache=True)
def backward_tiles(
    begin, stride, tile_starts, faces_of, pairs_of, prepared, softness, grid, settings, total, limit, mean, edge, grad_total,
    grad_mean, records,
):  # fmt: skip
    """Every `stride`-th tile from `begin` on: what each pair of face and tile adds to the face's gradient."""
    channels = mean.shape[3] - 1
    per_item = (tile_starts.shape[0] - 1) // grid.shape[0]
    perspective, two_sided = settings[3] > 0, settings[4] > 0
    buffer = np.empty((LOADED + SUMS) * LANES, prepared.dtype)
    pulls = np.empty(3 * channels * LANES, prepared.dtype)
    grads = np.empty((channels + GRADS) * TILE, prepared.dtype)
    for tile in range(begin, tile_starts.shape[0] - 1, stride):
        if tile_starts[tile] == tile_starts[tile + 1]:
            continue
        item, first_row, first_column, steepness, sigma2, reach = tile_at(tile, per_item, grid, softness, settings)
        height, width = grid[item, 0], grid[item, 1]
        entries = faces_of[tile_starts[tile] : tile_starts[tile + 1]]
        rows = np.empty((entries.shape[0], 2), np.int64)
        row_ranges(entries, prepared, real(first_row), reach, rows)
        load_sample_grads(
            item, first_row, first_column, height, width, real(settings[2]), total, limit, mean, edge, grad_total, grad_mean,
            grads,
        )  # fmt: skip
        x0 = real(first_column) + real(0.5)
        for entry in range(entries.shape[0]):
            o = prepared[entries[entry]]
            record = records[pairs_of[tile_starts[tile] + entry]]
            for i in range(LOADED * LANES, (LOADED + SUMS) * LANES):
                buffer[i] = 0
            for i in range(3 * channels * LANES):
                pulls[i] = 0
            for r in range(rows[entry, 0], min(rows[entry, 1], height - first_row)):
                at = r * LANES
                for j in range(3):
                    grad_along_planes(buffer, grads, at, j, o, channels)
                for k in range(GRADS):
                    for i in range(LANES):
                        buffer[(3 + k) * LANES + i] = grads[k * TILE + at + i]
                y = real(first_row + r) + real(0.5)
                lanes_backward(o, x0, y, steepness, sigma2, perspective, two_sided, buffer)
                for c in range(channels):
                    pull_attributes(buffer, grads, pulls, (GRADS + c) * TILE + at, 3 * c * LANES)
            for k in range(SUMS):
                record[k] = row_sum(buffer, (LOADED + k) * LANES)
            for k in range(3 * channels):
                record[SUMS + k] = row_sum(pulls, k * LANES)


@njit(forceinline=True, **OPTIONS)
def pull_attributes(buffer, grads, pulls, at, to):
    """What one channel's plane receives from the row, per lane."""
    for i in range(LANES):
        g = grads[at + i]
        pulls[to + i] += buffer[8 * LANES + i] * g
        pulls[to + LANES + i] += buffer[9 * LANES + i] * g
        pulls[to + 2 * LANES + i] += buffer[10 * LANES + i] * g


@njit(forceinline=True, **OPTIONS)
def row_sum(rows, at):
    # Four chains of additions at once: one alone would wait for itself sixteen times
    a, b, c, d = rows[at], rows[at + 1], rows[at + 2], rows[at + 3]
    for i in range(4, LANES, 4):
        a, b, c, d = a + rows[at + i], b + rows[at + i + 1], c + rows[at + i + 2], d + rows[at + i + 3]
    return (a + b) + (c + d)


@njit(**OPTIONS)
def load_sample_grads(
    item, first_row, first_column, height, width, power, total, limit, mean, edge, grad_total, grad_mean, grads
):
    """The `GRADS` rows of the tile's samples, then gradients by channels; over the silhouette, as what is shown is."""
    channels = mean.shape[3] - 1
    for i in range(grads.shape[0]):
        grads[i] = real(0.0)
    for r in range(min(LANES, height - first_row)):
        for i in range(min(LANES, width - first_column)):
            at, y, x = r * LANES + i, first_row + r, first_column + i
            opaque, by_front, by_back, _ = bounded(total[item, y, x, 0], total[item, y, x, 1], power)
            inverse = real(1.0) / opaque if opaque > real(LEAST_SEEN) else real(0.0)
            seen, turned = real(0.0), real(0.0)
            for c in range(channels + 1):
                g = grad_mean[item, y, x, c] * inverse
                seen += g * mean[item, y, x, c]
                turned += g * edge[item, y, x, c]
                grads[((GRADS + c) if c < channels else 0) * TILE + at] = g
            grads[TILE + at] = turned
            # Each unit of silhouette shows as much more of the pair at the limit, and each unit of coverage hides as much
            worth = turned - seen
            grads[2 * TILE + at] = grad_total[item, y, x, 0] + by_front * worth
            grads[3 * TILE + at] = grad_total[item, y, x, 1] + by_back * worth
            grads[4 * TILE + at] = limit[item, y, x]


@njit(forceinline=True, **OPTIONS)
def grad_along_planes(buffer, grads, at, j, o, channels):
    """The gradient along the `j`th number of all channels' planes, into that row of the buffer."""
    for i in range(LANES):
        buffer[j * LANES + i] = real(0.0)
    for c in range(channels):
        a, base = o[PLANES + 3 * c + j], (GRADS + c) * TILE + at
        for i in range(LANES):
            buffer[j * LANES + i] += grads[base + i] * a


@njit(forceinline=True, **OPTIONS)
def pull_row(sums, first, weight, n, to, row, grad):
    """Hand gradients by planes down to a corner's row of a table, and add to the gradient by the corner's own plane."""
    for c in range(row.shape[0]):
        by_plane = vector(sums, first + 3 * c)
        grad[c] += weight * dot(by_plane, n)
        to = plus_times(to, by_plane, float(row[c]))
    return to


@njit(**OPTIONS, cache=True)
def gather_items(
    begin, stride, starts, records, prepared, vertices, points, faces, attributes, attribute_faces, normals, softness,
    perspective, guard, spacings, grad_points, grad_attributes, grad_normals, grad_softness,
):  # fmt: skip
    """Sum each face's records, in order, and hand them down to points, attributes and softness of every `stride`-th item from
    `begin` on."""
    count, own_normals = faces.shape[0], SUMS + 3 * attributes.shape[2]
    sums = np.empty(records.shape[1])
    for item in range(begin, points.shape[0], stride):
        spacing, near, rows = spacings[item], float(softness[item, 2]), vertices[item]
        by_vertices = np.zeros((points.shape[1], 5))
        scale_slope, steepness_slope, near_slope = 0.0, 0.0, 0.0
        for f in range(count):
            first, last = starts[item * count + f], starts[item * count + f + 1]
            if first == last:
                continue
            o, face = prepared[item * count + f], faces[f]
            sums[:] = 0
            for pair in range(first, last):
                for k in range(sums.shape[0]):
                    sums[k] += records[pair, k]
            _, area, flip, (vx, vy, least, mean, steep), levels = shape_of(rows, face, perspective, spacing)
            square = area * area + flip * flip
            inverse, by_inverse, by_turn = area / square, 0.0, sums[REST + 3]
            half = -by_turn * float(o[TURN]) / steep if steep > 0 else 0.0
            for i in range(3):
                u, v, w = face[i], face[(i + 1) % 3], face[(i + 2) % 3]
                own, after, before = rows[u], rows[v], rows[w]
                # A corner's weight is its 1/w times 1/3 + n x; `to`: the gradient by these three
                ox, oy, depth, weight = before[0] - after[0], before[1] - after[1], float(own[2]), float(own[3])
                n, by_planes = (1.0 / 3.0, inverse * oy, -inverse * ox), vector(sums, BY_DEPTH)
                to, by_depth = plus_times(vector(sums, BY_DENOMINATOR), by_planes, depth), weight * dot(by_planes, n)
                a = attribute_faces[f, i]
                to = pull_row(sums, SUMS, weight, n, to, attributes[item, a], grad_attributes[item, a])
                to = pull_row(sums, own_normals, weight, n, to, normals[item, u], grad_normals[item, u])
                add(by_vertices[u], 2, (by_depth, dot(to, n), sums[REST] * float(after[4]) * float(before[4])))
                by_vertices[u, 3 if perspective else 2] += half * (vx * ox + vy * oy + least * levels[i] / 3)
                by_inverse += weight * (to[1] * oy - to[2] * ox)
                # The opposite edge goes from the next corner to the one before, this corner's own edge to the next
                by_ox = half * (vx * levels[i] + FLAT * mean * ox) - inverse * weight * to[2]
                by_oy = half * (vy * levels[i] + FLAT * mean * oy) + inverse * weight * to[1]
                ex, ey = after[0] - own[0], after[1] - own[1]
                by_start, by_end = sums[ENDS + 2 * i], sums[ENDS + 2 * i + 1]
                nx, ny = -ey / (ex * ex + ey * ey + guard), ex / (ex * ex + ey * ey + guard)
                by_vertices[u, 0], by_vertices[u, 1] = (
                    by_vertices[u, 0] + nx * by_start,
                    by_vertices[u, 1] + ny * by_start,
                )
                by_vertices[v, 0] += nx * by_end - by_ox
                by_vertices[v, 1] += ny * by_end - by_oy
                by_vertices[w, 0], by_vertices[w, 1] = by_vertices[w, 0] + by_ox, by_vertices[w, 1] + by_oy
            # The turn is area / (scale * sqrt(steep))
            by_area = by_inverse * (flip * flip - area * area) / (square * square)
            by_area += by_turn / (float(softness[item, 0]) / spacing * np.sqrt(steep)) if steep > 0 else 0.0
            for i in range(3):
                after, before = rows[face[(i + 1) % 3]], rows[face[(i + 2) % 3]]
                # Twice the area is a cross product of corners, with the sign of y pointing down
                by_vertices[face[i], 0] += by_area * (before[1] - after[1]) + sums[SHIFT] / 3
                by_vertices[face[i], 1] += by_area * (after[0] - before[0]) + sums[SHIFT + 1] / 3
            scale_slope += sums[REST + 1]
            steepness_slope += sums[REST + 2]
        for v in range(points.shape[1]):
            depth, by = float(points[item, v, 2]), by_vertices[v]
            w = max(depth, near / 2) if perspective else 1.0
            x, y = float(points[item, v, 0]) / w, float(points[item, v, 1]) / w
            grad_points[item, v, 0], grad_points[item, v, 1], grad_points[item, v, 2], more = corner_pull(
                by[0] / spacing, by[1] / spacing, by[2], by[3], by[4], x, y, depth, 1 / w, float(vertices[item, v, 5]), near,
                perspective,
            )  # fmt: skip
            near_slope += more
        grad_softness[item, 0] = scale_slope / float(softness[item, 0])
        grad_softness[item, 1] = 2.0 * steepness_slope
        grad_softness[item, 2] = near_slope

"""The CPU rasteriser's backward pass: tiles recompute what they need, then gradients are summed face by face. A template, see
`faces`; the innermost loop is like that of `forward`.
"""

# pyright: reportOptionalCall=false, reportAttributeAccessIssue=false
from __future__ import annotations

import numpy as np

from algonet.core.codegen.jit import njit

from .faces import (
    AREA,
    BACK,
    DEPTH,
    FLAT,
    FLIP_AREA,
    INVERSE,
    LANES,
    OPTIONS,
    TILE,
    TURN,
    U,
    X,
    exp,
    real,
    row_ranges,
    slope_of,
)
from .forward import LEAST_SEEN, bounded, face_numbers, see, side_of, tile_at

corner_pull = None

# --- template ---

#: Sums per face and tile in the backward pass: edge ends, barycentrics times position, weights, depths, centroid, rest.
ENDS, TURNS, WEIGHTS, DEPTHS, SHIFT, REST = 0, 6, 12, 15, 18, 20
SUMS = 24
#: Rows of a sample's gradients before those by the channels: by depth, times means, by the sums of front and back, what the
#: pair at the limit is worth, and the limit.
GRADS = 6
#: Rows of the buffer before the sums.
LOADED = 12


@njit(**OPTIONS)
def lanes_backward(o, x0, y, steepness, sigma2, perspective, both, buffer):
    """The gradient of one face from the 16 pixels of one row.

    Buffer rows 0 to 2 hold, per sample, the gradient along each corner's attributes, and 3 to 8 the `GRADS` rows. Rows 9 to 11
    receive what is shown times the corners' weights; `SUMS` rows from `LOADED` on are added to.
    """
    face, factor = face_numbers(o, y), o[18]
    ax, ay, bx, by, cx, cy = face[0]
    ux0, uy0, ux1, uy1, ux2, uy2 = face[1]
    l0, l1, l2 = face[2]
    gy, inverse, (za, zb, zc), (wa, wb, wc), least, turning = face[3][1], face[3][2], face[4], face[5], face[6], face[7]
    oax, oay, obx, oby, ocx, ocy = cx - bx, cy - by, ax - cx, ay - cy, bx - ax, by - ay
    one, zero, two = real(1.0), real(0.0), real(2.0)
    for i in range(LANES):
        (p, z, turn), (va, vb, vc), edges, middle, shares = see(face, x0 + real(i), sigma2, perspective)
        (t0, d0, (p00, p01, p02)), (t1, d1, (p10, p11, p12)), (t2, d2, (p20, p21, p22)) = edges
        mx, my, den, qx, inx, iny, fx, fy = middle
        ba, bb, bc, sum_v, scale, level = shares
        facing, front = side_of(turn)
        steep = one / np.sqrt(one + turn * turn)
        behind = one + real(BACK) * (one - front) * steep
        side = one - both * (one - front)
        sided = facing * (front + one - side)
        covered = p * sided * factor
        # Rounding alone makes it negative
        there = covered > zero
        # What is shown of it, and what that is worth
        ha, hb, hc, edge = buffer[i], buffer[LANES + i], buffer[2 * LANES + i], buffer[7 * LANES + i]
        away = one / (one + exp(min(max(buffer[8 * LANES + i] - steepness * z * behind, real(-80.0)), real(80.0))))
        shown = covered * (one - away) if there else zero
        gain = va * ha + vb * hb + vc * hc - buffer[4 * LANES + i]
        pull = -shown * away * (gain - edge)
        by_front, by_back = buffer[5 * LANES + i], buffer[6 * LANES + i]
        by_covered = (one - away) * (gain - edge) + side * by_front + (one - side) * by_back
        by_covered = by_covered if there else zero
        by_share = both * (covered * (by_front - by_back) if there else zero)
        buffer[9 * LANES + i], buffer[10 * LANES + i], buffer[11 * LANES + i] = shown * va, shown * vb, shown * vc
        # which side is seen
        bell = two * front * (one - front)
        rise = (one - facing * facing) * (front + one - side) + (one - both) * facing * bell
        tilt = -real(BACK) * steep * (bell + (one - front) * turn * steep * steep)
        by_turn = by_covered * p * factor * rise + by_share * bell + pull * steepness * z * tilt
        by_level = by_turn * turning
        by_place = pull * steepness * behind + (one - perspective) * by_level
        by_total = perspective * by_level
        by_depth = shown * buffer[3 * LANES + i] + by_place
        # corner weights to barycentrics
        wa_, wb_, wc_ = shown * ha + by_place * za, shown * hb + by_place * zb, shown * hc + by_place * zc
        mean = wa_ * va + wb_ * vb + wc_ * vc
        mean = mean if sum_v > least else zero
        ga, gb, gc = (wa_ - mean) * scale + by_total, (wb_ - mean) * scale + by_total, (wc_ - mean) * scale + by_total
        buffer[(LOADED + WEIGHTS) * LANES + i] += ga * ba
        buffer[(LOADED + 1 + WEIGHTS) * LANES + i] += gb * bb
        buffer[(LOADED + 2 + WEIGHTS) * LANES + i] += gc * bc
        buffer[(LOADED + DEPTHS) * LANES + i] += by_depth * va
        buffer[(LOADED + 1 + DEPTHS) * LANES + i] += by_depth * vb
        buffer[(LOADED + 2 + DEPTHS) * LANES + i] += by_depth * vc
        ga, gb, gc = ga * wa, gb * wb, gc * wc
        buffer[(LOADED + TURNS) * LANES + i] += ga * fx
        buffer[(LOADED + 1 + TURNS) * LANES + i] += ga * fy
        buffer[(LOADED + 2 + TURNS) * LANES + i] += gb * fx
        buffer[(LOADED + 3 + TURNS) * LANES + i] += gb * fy
        buffer[(LOADED + 4 + TURNS) * LANES + i] += gc * fx
        buffer[(LOADED + 5 + TURNS) * LANES + i] += gc * fy
        by_fx = (ga * oay + gb * oby + gc * ocy) * inverse
        by_fy = -(ga * oax + gb * obx + gc * ocx) * inverse
        # the mean position to coverage, moment and centroid
        by_inx, by_iny = p * den * by_fx, p * den * by_fy
        by_p = (inx * by_fx + iny * by_fy) * den + by_inx * qx + by_iny * gy - two * p * den * (fx * by_fx + fy * by_fy)
        by_p += by_covered * sided * factor
        by_mx, by_my = by_inx, by_iny
        buffer[(LOADED + SHIFT) * LANES + i] += p * by_inx
        buffer[(LOADED + 1 + SHIFT) * LANES + i] += p * by_iny
        # moving an edge outward adds the density along it, times its worth there: even + odd * t
        odd0, odd1, odd2 = by_mx * ux0 + by_my * uy0, by_mx * ux1 + by_my * uy1, by_mx * ux2 + by_my * uy2
        even0 = by_p + d0 * (by_my * ux0 - by_mx * uy0)
        even1 = by_p + d1 * (by_my * ux1 - by_mx * uy1)
        even2 = by_p + d2 * (by_my * ux2 - by_mx * uy2)
        first0, second0 = even0 * p00 + odd0 * p01, even0 * p01 + odd0 * p02
        first1, second1 = even1 * p10 + odd1 * p11, even1 * p11 + odd1 * p12
        first2, second2 = even2 * p20 + odd2 * p21, even2 * p21 + odd2 * p22
        buffer[(LOADED + ENDS) * LANES + i] += (t0 + l0) * first0 - second0
        buffer[(LOADED + 1 + ENDS) * LANES + i] += second0 - t0 * first0
        buffer[(LOADED + 2 + ENDS) * LANES + i] += (t1 + l1) * first1 - second1
        buffer[(LOADED + 3 + ENDS) * LANES + i] += second1 - t1 * first1
        buffer[(LOADED + 4 + ENDS) * LANES + i] += (t2 + l2) * first2 - second2
        buffer[(LOADED + 5 + ENDS) * LANES + i] += second2 - t2 * first2
        buffer[(LOADED + REST) * LANES + i] += by_covered * p * sided
        # coverage does not change when everything is scaled, the moment grows with it: that gives the noise's scale
        grown = by_mx * mx + by_my * my - d0 * first0 - d1 * first1 - d2 * first2
        buffer[(LOADED + 1 + REST) * LANES + i] += grown - by_turn * turn
        buffer[(LOADED + 2 + REST) * LANES + i] += pull * z * behind
        buffer[(LOADED + 3 + REST) * LANES + i] += by_turn * level


@njit(**OPTIONS, cache=True)
def backward_tiles(
    begin, stride, tile_starts, faces_of, pairs_of, prepared, faces, attribute_faces, attributes, softness, grid, settings,
    total, limit, mean, edge, grad_total, grad_mean, records,
):  # fmt: skip
    """Every `stride`-th tile from `begin` on: what each pair of face and tile adds to the face's gradient."""
    channels = mean.shape[3] - 1
    per_item = (tile_starts.shape[0] - 1) // grid.shape[0]
    count = faces.shape[0]
    perspective, both = real(settings[3]), real(settings[4])
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
        item_attributes = attributes[item]
        for entry in range(entries.shape[0]):
            o = prepared[entries[entry]]
            corners = attribute_faces[entries[entry] % count]
            record = records[pairs_of[tile_starts[tile] + entry]]
            for i in range(LOADED * LANES, (LOADED + SUMS) * LANES):
                buffer[i] = 0
            for i in range(3 * channels * LANES):
                pulls[i] = 0
            for r in range(rows[entry, 0], min(rows[entry, 1], height - first_row)):
                at = r * LANES
                for j in range(3):
                    grad_along_corner(buffer, grads, at, j, o[DEPTH + j], item_attributes, corners[j], channels)
                for k in range(GRADS):
                    for i in range(LANES):
                        buffer[(3 + k) * LANES + i] = grads[k * TILE + at + i]
                y = real(first_row + r) + real(0.5)
                lanes_backward(o, x0, y, steepness, sigma2, perspective, both, buffer)
                for c in range(channels):
                    pull_attributes(buffer, grads, pulls, (GRADS + c) * TILE + at, 3 * c * LANES)
            for k in range(SUMS):
                record[k] = row_sum(buffer, (LOADED + k) * LANES)
            for k in range(3 * channels):
                record[SUMS + k] = row_sum(pulls, k * LANES)


@njit(forceinline=True, **OPTIONS)
def pull_attributes(buffer, grads, pulls, at, to):
    """What one channel's three corners receive from the row, per lane."""
    for i in range(LANES):
        g = grads[at + i]
        pulls[to + i] += buffer[9 * LANES + i] * g
        pulls[to + LANES + i] += buffer[10 * LANES + i] * g
        pulls[to + 2 * LANES + i] += buffer[11 * LANES + i] * g


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
            dot, turned = real(0.0), real(0.0)
            for c in range(channels + 1):
                g = grad_mean[item, y, x, c] * inverse
                dot += g * mean[item, y, x, c]
                turned += g * edge[item, y, x, c]
                grads[((GRADS + c) if c < channels else 0) * TILE + at] = g
            grads[TILE + at] = dot
            # Each unit of silhouette shows as much more of the pair at the limit, and each unit of coverage hides as much
            worth = turned - dot
            grads[2 * TILE + at] = grad_total[item, y, x, 0] + by_front * worth
            grads[3 * TILE + at] = grad_total[item, y, x, 1] + by_back * worth
            grads[4 * TILE + at], grads[5 * TILE + at] = worth, limit[item, y, x]


@njit(forceinline=True, **OPTIONS)
def grad_along_corner(buffer, grads, at, j, z, attributes, row, channels):
    for i in range(LANES):
        buffer[j * LANES + i] = grads[at + i] * z
    for c in range(channels):
        a, base = attributes[row, c], (GRADS + c) * TILE + at
        for i in range(LANES):
            buffer[j * LANES + i] += grads[base + i] * a


@njit(**OPTIONS, cache=True)
def gather_items(
    begin, stride, starts, records, prepared, vertices, points, faces, attribute_faces, softness, perspective, guard, spacings,
    grad_points, grad_attributes, grad_softness,
):  # fmt: skip
    """Sum each face's records, in order, and hand them down to points, attributes and softness of every `stride`-th item from
    `begin` on."""
    count, channels = faces.shape[0], grad_attributes.shape[2]
    sums = np.empty(SUMS + 3 * channels)
    corner = np.empty((3, 2))
    for item in range(begin, points.shape[0], stride):
        spacing = spacings[item]
        by_vertices = np.zeros((points.shape[1], 5))
        near = float(softness[item, 2])
        flip = FLIP_AREA / (spacing * spacing)
        scale_slope, steepness_slope, near_slope = 0.0, 0.0, 0.0
        for f in range(count):
            first, last = starts[item * count + f], starts[item * count + f + 1]
            if first == last:
                continue
            o = prepared[item * count + f]
            for k in range(sums.shape[0]):
                sums[k] = 0
            for pair in range(first, last):
                for k in range(sums.shape[0]):
                    sums[k] += records[pair, k]
            for i in range(3):
                corner[i, 0], corner[i, 1] = 0.0, 0.0
            by_inverse = 0.0
            inverse, area = float(o[INVERSE]), float(o[AREA])
            for i in range(3):
                j, k = (i + 1) % 3, (i + 2) % 3
                ex, ey = float(o[X + 2 * j] - o[X + 2 * i]), float(o[X + 2 * j + 1] - o[X + 2 * i + 1])
                length = np.sqrt(ex * ex + ey * ey + guard)
                nx, ny = -float(o[U + 2 * i + 1]) / length, float(o[U + 2 * i]) / length
                corner[i, 0] += nx * sums[ENDS + 2 * i]
                corner[i, 1] += ny * sums[ENDS + 2 * i]
                corner[j, 0] += nx * sums[ENDS + 2 * i + 1]
                corner[j, 1] += ny * sums[ENDS + 2 * i + 1]
                # barycentric i turns with the opposite edge, from corner j to corner k
                bx, by = sums[TURNS + 2 * i], sums[TURNS + 2 * i + 1]
                ox, oy = float(o[X + 2 * k] - o[X + 2 * j]), float(o[X + 2 * k + 1] - o[X + 2 * j + 1])
                by_inverse += bx * oy - by * ox
                corner[k, 0] -= by * inverse
                corner[k, 1] += bx * inverse
                corner[j, 0] += by * inverse
                corner[j, 1] -= bx * inverse
            square = area * area + flip * flip
            by_area = by_inverse * (flip * flip - area * area) / (square * square)
            # the turn is area / (scale * sqrt(square of the slope))
            turn, by_turn = float(o[TURN]), sums[REST + 3]
            level, (slope_x, slope_y, least, mean, square) = slope_of(o, perspective, spacing)
            if square > 0:
                by_area += by_turn / (float(softness[item, 0]) / spacing * np.sqrt(square))
                by_square = -0.5 * by_turn * turn / square
                for i in range(3):
                    j, k = (i + 1) % 3, (i + 2) % 3
                    ox, oy = float(o[X + 2 * k] - o[X + 2 * j]), float(o[X + 2 * k + 1] - o[X + 2 * j + 1])
                    sums[(WEIGHTS if perspective else DEPTHS) + i] += (
                        2 * by_square * (slope_x * ox + slope_y * oy + least * level[i] / 3)
                    )
                    bx = 2 * by_square * (slope_x * level[i] + FLAT * mean * ox)
                    by = 2 * by_square * (slope_y * level[i] + FLAT * mean * oy)
                    corner[k, 0], corner[k, 1] = corner[k, 0] + bx, corner[k, 1] + by
                    corner[j, 0], corner[j, 1] = corner[j, 0] - bx, corner[j, 1] - by
            for i in range(3):
                j, k = (i + 1) % 3, (i + 2) % 3
                # twice the area is a cross product of corners, with the sign of y pointing down
                corner[i, 0] += by_area * float(o[X + 2 * k + 1] - o[X + 2 * j + 1])
                corner[i, 1] += by_area * float(o[X + 2 * j] - o[X + 2 * k])
                v = faces[f, i]
                others = float(vertices[item, faces[f, j], 4]) * float(vertices[item, faces[f, k], 4])
                by_vertices[v, 0] += corner[i, 0] - sums[SHIFT] / 3
                by_vertices[v, 1] += corner[i, 1] - sums[SHIFT + 1] / 3
                by_vertices[v, 2] += sums[DEPTHS + i]
                by_vertices[v, 3] += sums[WEIGHTS + i]
                by_vertices[v, 4] += sums[REST] * others
                a = attribute_faces[f, i]
                for c in range(channels):
                    grad_attributes[item, a, c] += sums[SUMS + 3 * c + i]
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
        grad_softness[item, 1] = steepness_slope
        grad_softness[item, 2] = near_slope

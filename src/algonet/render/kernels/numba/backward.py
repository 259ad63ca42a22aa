"""The CPU rasteriser's backward pass: tiles recompute what they need, then gradients are summed face by face. A template, see
`faces`; the innermost loop is like that of `forward`.
"""

# pyright: reportOptionalCall=false, reportAttributeAccessIssue=false
from __future__ import annotations

import numpy as np

from algonet.core.codegen.jit import njit

from .faces import (
    AREA,
    DEPTH,
    FACING,
    FAINT2,
    FAINTEST2,
    FAR_PIXELS,
    FLIP_AREA,
    INVERSE,
    LANES,
    LATERAL,
    OPTIONS,
    PRESENCE,
    SHORT,
    TILE,
    U,
    X,
    edge_backward,
    exp,
    real,
    row_ranges,
    step,
)

# --- template ---

#: Sums per face and tile in the backward pass: edge ends, barycentrics times position, weights, depths, centroid, rest.
ENDS, TURNS, WEIGHTS, DEPTHS, SHIFT, REST = 0, 6, 12, 15, 18, 20
SUMS = 23


@njit(**OPTIONS)
def lanes_backward(o, x0, y, steepness, sigma2, lateral, short, buffer):
    """The gradient of one face from the 16 pixels of one row.

    Buffer rows 0 to 6 hold, per sample: the gradient along each corner's attributes, gradients times means, the gradient by
    the total, the log normaliser, and the gradient by depth. Rows 7 to 9 receive share times corner weight; `SUMS` rows from
    10 on are added to.
    """
    ax, ay, bx, by, cx, cy = o[0], o[1] - y, o[2], o[3] - y, o[4], o[5] - y
    ux0, uy0, ux1, uy1, ux2, uy2 = o[6], o[7], o[8], o[9], o[10], o[11]
    l0, l1, l2 = o[12], o[13], o[14]
    gx, gy, inverse, factor = o[15], y - o[16], o[17], o[18]
    za, zb, zc, wa, wb, wc, least = o[19], o[20], o[21], o[22], o[23], o[24], o[25]
    oax, oay, obx, oby, ocx, ocy = cx - bx, cy - by, ax - cx, ay - cy, bx - ax, by - ay
    third, tau, least_tau = real(1.0 / 3.0), real(FAINT2), real(FAINTEST2)
    one, zero, two = real(1.0), real(0.0), real(2.0)
    for i in range(LANES):
        x = x0 + real(i)
        rax, rbx, rcx = ax - x, bx - x, cx - x
        t0 = rax * ux0 + ay * uy0
        d0 = ay * ux0 - rax * uy0
        c0, m0, p00, p01, p02 = edge_backward(t0, t0 + l0, d0, sigma2)
        t1 = rbx * ux1 + by * uy1
        d1 = by * ux1 - rbx * uy1
        c1, m1, p10, p11, p12 = edge_backward(t1, t1 + l1, d1, sigma2)
        t2 = rcx * ux2 + cy * uy2
        d2 = cy * ux2 - rcx * uy2
        c2, m2, p20, p21, p22 = edge_backward(t2, t2 + l2, d2, sigma2)
        p = c0 + c1 + c2
        mx = uy0 * m0 + uy1 * m1 + uy2 * m2
        my = -(ux0 * m0 + ux1 * m1 + ux2 * m2)
        den, rough = one / (p * p + tau), one / (p * p + least_tau)
        qx = x - gx
        inx, iny = p * qx + mx, p * gy + my
        fx, fy = p * inx * den, p * iny * den
        sx, sy = (p * mx - least_tau * qx) * rough, (p * my - least_tau * gy) * rough
        ba = third + (fx * oay - fy * oax) * inverse
        bb = third + (fx * oby - fy * obx) * inverse
        bc = third + (fx * ocy - fy * ocx) * inverse
        sum_v = ba * wa + bb * wb + bc * wc
        scale = one / max(sum_v, least)
        va, vb, vc = ba * wa * scale, bb * wb * scale, bc * wc * scale
        z = va * za + vb * zb + vc * zc
        raw = (sx * sx + sy * sy) * lateral
        away = min(raw, real(1e3))
        away2 = away * away
        covered = p * factor
        # shares, and what the exponent is worth
        ha, hb, hc = buffer[i], buffer[LANES + i], buffer[2 * LANES + i]
        rate = exp(min(-steepness * z - real(LATERAL) * away2 * away2 - buffer[5 * LANES + i], real(80.0)))
        # Shares too small to matter are made 0: numbers below the normal range are many times slower
        rate = min(rate if covered > zero and rate > real(1e-26) else zero, real(1e15))
        share = min(covered * rate, two)
        share = share if share > real(1e-24) else zero
        gain = va * ha + vb * hb + vc * hc - buffer[3 * LANES + i]
        pull = share * gain
        clipped = min(max(covered, zero), one)
        slope = buffer[4 * LANES + i] * (one / (one - clipped * short))
        slope = slope if short == zero or clipped == covered else zero
        by_covered = rate * gain + slope
        buffer[7 * LANES + i], buffer[8 * LANES + i], buffer[9 * LANES + i] = share * va, share * vb, share * vc
        by_depth = share * buffer[6 * LANES + i] - steepness * pull
        # corner weights to barycentrics
        wa_, wb_, wc_ = (
            share * ha - steepness * pull * za,
            share * hb - steepness * pull * zb,
            share * hc - steepness * pull * zc,
        )
        mean = wa_ * va + wb_ * vb + wc_ * vc
        mean = mean if sum_v > least else zero
        ga, gb, gc = (wa_ - mean) * scale, (wb_ - mean) * scale, (wc_ - mean) * scale
        buffer[(10 + WEIGHTS) * LANES + i] += ga * ba
        buffer[(11 + WEIGHTS) * LANES + i] += gb * bb
        buffer[(12 + WEIGHTS) * LANES + i] += gc * bc
        buffer[(10 + DEPTHS) * LANES + i] += by_depth * va
        buffer[(11 + DEPTHS) * LANES + i] += by_depth * vb
        buffer[(12 + DEPTHS) * LANES + i] += by_depth * vc
        ga, gb, gc = ga * wa, gb * wb, gc * wc
        buffer[(10 + TURNS) * LANES + i] += ga * fx
        buffer[(11 + TURNS) * LANES + i] += ga * fy
        buffer[(12 + TURNS) * LANES + i] += gb * fx
        buffer[(13 + TURNS) * LANES + i] += gb * fy
        buffer[(14 + TURNS) * LANES + i] += gc * fx
        buffer[(15 + TURNS) * LANES + i] += gc * fy
        by_fx = (ga * oay + gb * oby + gc * ocy) * inverse
        by_fy = -(ga * oax + gb * obx + gc * ocx) * inverse
        by_away = real(-4.0 * LATERAL) * pull * away2 * away
        by_away = by_away if raw < real(1e3) else zero
        by_sx, by_sy = two * sx * lateral * by_away, two * sy * lateral * by_away
        # the mean position to coverage, moment and centroid
        by_inx, by_iny = p * den * by_fx, p * den * by_fy
        by_p = (inx * by_fx + iny * by_fy) * den + by_inx * qx + by_iny * gy - two * p * den * (fx * by_fx + fy * by_fy)
        by_p += (mx * by_sx + my * by_sy) * rough - two * p * rough * (sx * by_sx + sy * by_sy) + by_covered * factor
        by_mx, by_my = by_inx + p * rough * by_sx, by_iny + p * rough * by_sy
        buffer[(10 + SHIFT) * LANES + i] += p * by_inx - least_tau * rough * by_sx
        buffer[(11 + SHIFT) * LANES + i] += p * by_iny - least_tau * rough * by_sy
        # moving an edge outward adds the density along it, times its worth there: even + odd * t
        odd0, odd1, odd2 = by_mx * ux0 + by_my * uy0, by_mx * ux1 + by_my * uy1, by_mx * ux2 + by_my * uy2
        even0 = by_p + d0 * (by_my * ux0 - by_mx * uy0)
        even1 = by_p + d1 * (by_my * ux1 - by_mx * uy1)
        even2 = by_p + d2 * (by_my * ux2 - by_mx * uy2)
        first0, second0 = even0 * p00 + odd0 * p01, even0 * p01 + odd0 * p02
        first1, second1 = even1 * p10 + odd1 * p11, even1 * p11 + odd1 * p12
        first2, second2 = even2 * p20 + odd2 * p21, even2 * p21 + odd2 * p22
        buffer[(10 + ENDS) * LANES + i] += (t0 + l0) * first0 - second0
        buffer[(11 + ENDS) * LANES + i] += second0 - t0 * first0
        buffer[(12 + ENDS) * LANES + i] += (t1 + l1) * first1 - second1
        buffer[(13 + ENDS) * LANES + i] += second1 - t1 * first1
        buffer[(14 + ENDS) * LANES + i] += (t2 + l2) * first2 - second2
        buffer[(15 + ENDS) * LANES + i] += second2 - t2 * first2
        buffer[(10 + REST) * LANES + i] += by_covered * p
        # coverage does not change when everything is scaled, the moment grows with it: that gives the noise's scale
        grown = by_mx * mx + by_my * my - d0 * first0 - d1 * first1 - d2 * first2
        buffer[(11 + REST) * LANES + i] += grown - two * away * by_away
        buffer[(12 + REST) * LANES + i] += -z * pull


@njit(**OPTIONS, cache=True)
def backward_tiles(
    begin, stride, tile_starts, faces_of, pairs_of, prepared, faces, attribute_faces, attributes, softness, grid, settings,
    norm, mean, grad_total, grad_mean, records,
):  # fmt: skip
    """Every `stride`-th tile from `begin` on: what each pair of face and tile adds to the face's gradient."""
    channels = mean.shape[3] - 1
    per_item = (tile_starts.shape[0] - 1) // grid.shape[0]
    count = faces.shape[0]
    buffer = np.empty((10 + SUMS) * LANES, prepared.dtype)
    pulls = np.empty(3 * channels * LANES, prepared.dtype)
    grads = np.empty((channels + 4) * TILE, prepared.dtype)
    short = real(SHORT) if settings[2] == 0 else real(0.0)
    # Without a power the total is a sum of log(1 - c), which falls with c
    sign = real(-1.0) if settings[2] == 0 else real(1.0)
    for tile in range(begin, tile_starts.shape[0] - 1, stride):
        if tile_starts[tile] == tile_starts[tile + 1]:
            continue
        item = tile // per_item
        height, width = grid[item, 0], grid[item, 1]
        columns = (width + LANES - 1) // LANES
        first_row, first_column = (tile % per_item) // columns * LANES, (tile % per_item) % columns * LANES
        scale, steepness = softness[item, 0], softness[item, 1]
        sigma2 = real(settings[0]) * scale * scale
        lateral = real(1.0) / (real(settings[1] * settings[1]) * sigma2)
        reach = real(settings[1]) * np.sqrt(sigma2)
        entries = faces_of[tile_starts[tile] : tile_starts[tile + 1]]
        rows = np.empty((entries.shape[0], 2), np.int64)
        row_ranges(entries, prepared, real(first_row), reach, rows)
        load_sample_grads(item, first_row, first_column, height, width, sign, norm, mean, grad_total, grad_mean, grads)
        x0 = real(first_column) + real(0.5)
        looks = attributes[item]
        for entry in range(entries.shape[0]):
            o = prepared[entries[entry]]
            corners = attribute_faces[entries[entry] % count]
            record = records[pairs_of[tile_starts[tile] + entry]]
            for i in range(10 * LANES, (10 + SUMS) * LANES):
                buffer[i] = 0
            for i in range(3 * channels * LANES):
                pulls[i] = 0
            for r in range(rows[entry, 0], min(rows[entry, 1], height - first_row)):
                at = r * LANES
                for j in range(3):
                    grad_along_corner(buffer, grads, at, j, o[DEPTH + j], looks, corners[j], channels)
                for i in range(LANES):
                    buffer[3 * LANES + i] = grads[TILE + at + i]
                    buffer[4 * LANES + i] = grads[2 * TILE + at + i]
                    buffer[5 * LANES + i] = grads[3 * TILE + at + i]
                    buffer[6 * LANES + i] = grads[at + i]
                y = real(first_row + r) + real(0.5)
                lanes_backward(o, x0, y, steepness, sigma2, lateral, short, buffer)
                for c in range(channels):
                    pull_attributes(buffer, grads, pulls, (4 + c) * TILE + at, 3 * c * LANES)
            for k in range(SUMS):
                record[k] = row_sum(buffer, (10 + k) * LANES)
            for k in range(3 * channels):
                record[SUMS + k] = row_sum(pulls, k * LANES)


@njit(forceinline=True, **OPTIONS)
def pull_attributes(buffer, grads, pulls, at, to):
    """What one channel's three corners receive from the row, per lane."""
    for i in range(LANES):
        g = grads[at + i]
        pulls[to + i] += buffer[7 * LANES + i] * g
        pulls[to + LANES + i] += buffer[8 * LANES + i] * g
        pulls[to + 2 * LANES + i] += buffer[9 * LANES + i] * g


@njit(forceinline=True, **OPTIONS)
def row_sum(rows, at):
    # Four chains of additions at once: one alone would wait for itself sixteen times
    a, b, c, d = rows[at], rows[at + 1], rows[at + 2], rows[at + 3]
    for i in range(4, LANES, 4):
        a, b, c, d = a + rows[at + i], b + rows[at + i + 1], c + rows[at + i + 2], d + rows[at + i + 3]
    return (a + b) + (c + d)


@njit(**OPTIONS)
def load_sample_grads(item, first_row, first_column, height, width, sign, norm, mean, grad_total, grad_mean, grads):
    """Per sample of the tile: gradients by depth, times means, by the total times `sign`, log normaliser, and by channels."""
    channels = mean.shape[3] - 1
    for i in range(grads.shape[0]):
        grads[i] = real(0.0)
    for i in range(3 * TILE, 4 * TILE):
        grads[i] = real(1e30)
    for r in range(min(LANES, height - first_row)):
        for i in range(min(LANES, width - first_column)):
            at, y, x = r * LANES + i, first_row + r, first_column + i
            grads[2 * TILE + at] = sign * grad_total[item, y, x]
            grads[3 * TILE + at] = norm[item, y, x]
            if norm[item, y, x] >= real(1e29):
                # No face has a share here: the means are constants
                continue
            dot = real(0.0)
            for c in range(channels + 1):
                g = grad_mean[item, y, x, c]
                dot += g * mean[item, y, x, c]
                if c < channels:
                    grads[(4 + c) * TILE + at] = g
                else:
                    grads[at] = g
            grads[TILE + at] = dot


@njit(forceinline=True, **OPTIONS)
def grad_along_corner(buffer, grads, at, j, z, looks, row, channels):
    for i in range(LANES):
        buffer[j * LANES + i] = grads[at + i] * z
    for c in range(channels):
        a, base = looks[row, c], (4 + c) * TILE + at
        for i in range(LANES):
            buffer[j * LANES + i] += grads[base + i] * a


@njit(**OPTIONS, cache=True)
def gather(
    item, starts, records, prepared, vertices, points, faces, attribute_faces, softness, perspective, two_sided, guard, spacing,
    by_points, by_attributes, by_softness,
):  # fmt: skip
    """Sum each face's records, in order, and hand them down to points, attributes and softness of one item."""
    count, channels = faces.shape[0], by_attributes.shape[2]
    by_vertices = np.zeros((points.shape[1], 5))
    sums = np.empty(SUMS + 3 * channels)
    corner = np.empty((3, 2))
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
        front_slope, back_slope = step(area / flip)[1], step(-area / flip)[1]
        facing_slope = (front_slope + back_slope if two_sided else front_slope) / flip
        by_area += sums[REST] * float(o[PRESENCE]) * facing_slope
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
            by_vertices[v, 4] += sums[REST] * float(o[FACING]) * others
            a = attribute_faces[f, i]
            for c in range(channels):
                by_attributes[item, a, c] += sums[SUMS + 3 * c + i]
        scale_slope += sums[REST + 1]
        steepness_slope += sums[REST + 2]
    for v in range(points.shape[1]):
        depth, slope = float(points[item, v, 2]), by_vertices[v, 4] * float(vertices[item, v, 5])
        by_depth = by_vertices[v, 2] + slope / near
        near_slope -= slope * depth / (near * near)
        w = max(depth, near / 2) if perspective else 1.0
        x, y = float(points[item, v, 0]) / w, float(points[item, v, 1]) / w
        by_x = by_vertices[v, 0] / spacing if abs(x) <= FAR_PIXELS else 0.0
        by_y = by_vertices[v, 1] / spacing if abs(y) <= FAR_PIXELS else 0.0
        by_points[item, v, 0], by_points[item, v, 1] = by_x / w, by_y / w
        by_w = -(by_x * x + by_y * y) / w - by_vertices[v, 3] / (w * w)
        if perspective and depth >= near / 2:
            by_depth += by_w
        elif perspective:
            near_slope += by_w / 2
        by_points[item, v, 2] = by_depth
    by_softness[item, 0] = scale_slope / float(softness[item, 0])
    by_softness[item, 1] = steepness_slope
    by_softness[item, 2] = near_slope

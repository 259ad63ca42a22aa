"""The rasteriser's loops for Numba. A template: the block between the markers is written anew for each precision and df.

Faces are prepared once (`prepare`), listed per tile of 16 x 16 pixels, and each tile streams over its list. The innermost
loop runs over the 16 pixels of a tile's row, has no branches and touches one flat buffer at constant offsets, so that
LLVM turns it into vector instructions. Pixels right of or below the image are computed and dropped.
"""

# pyright: reportOptionalCall=false
from __future__ import annotations

import numpy as np
from numba import float32, int64, njit

OPTIONS = {"fastmath": {"contract"}, "error_model": "numpy", "nogil": True, "cache": True}

# <instance>
real = float32
SHORT, FLOOR, TINY = 1 - 2.0**-23, -60.0, 1e-37
exp = log = angle = edge_forward = edge_backward = None
FLIP_AREA, FAR_PIXELS, LATERAL, FAINT2, FAINTEST2 = 1e-4, 1e7, 16.0, 1e-6, 1e-10
# </instance>

LANES = 16
TILE = LANES * LANES
#: Numbers kept per face by `prepare`: corners, edge directions, edge lengths, centroid, area terms, depths, weights.
X, U, LENGTH, CENTROID, INVERSE, FACTOR, DEPTH, WEIGHT, LEAST, AREA, FACING, PRESENCE = (
    0,
    6,
    12,
    15,
    17,
    18,
    19,
    22,
    25,
    26,
    27,
    28,
)
FACE = 29
#: Sums per face and tile in the backward pass: edge ends, barycentrics times position, weights, depths, centroid, rest.
ENDS, TURNS, WEIGHTS, DEPTHS, SHIFT, REST = 0, 6, 12, 15, 18, 20
SUMS = 23


@njit(**OPTIONS)
def step(x):
    """The C-infinity step and its slope."""
    if x <= 0:
        return 0.0, 0.0
    if x >= 1:
        return 1.0, 0.0
    inner = min(max(1 / (1 - x) - 1 / x, -80.0), 80.0)
    value = 1 / (1 + np.exp(-inner))
    bound = 0.0 if abs(inner) >= 80.0 else 1.0
    return value, value * (1 - value) * (1 / (1 - x) ** 2 + 1 / x**2) * bound


@njit(**OPTIONS)
def project(points, near, perspective, out):
    """(x w, y w, depth) to x, y, depth, 1/w, presence and its slope, for the vertices of one item."""
    for v in range(points.shape[0]):
        depth = points[v, 2]
        w = max(depth, near / 2) if perspective else real(1.0)
        out[v, 0] = min(max(points[v, 0] / w, -FAR_PIXELS), FAR_PIXELS)
        out[v, 1] = min(max(points[v, 1] / w, -FAR_PIXELS), FAR_PIXELS)
        out[v, 2] = depth
        out[v, 3] = 1 / w
        out[v, 4], out[v, 5] = step(float(depth) / near - 1)
        # max and min drop a NaN; it must come out again
        if points[v, 0] != points[v, 0] or points[v, 1] != points[v, 1] or depth != depth:
            out[v, 0] = np.nan


@njit(**OPTIONS)
def prepare(vertices, faces, two_sided, guard, out):
    """All that pixels need to know of each face, and whether a vertex is not a number."""
    broken = False
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
        front, _ = step(area / FLIP_AREA)
        back, _ = step(-area / FLIP_AREA)
        facing = front - back if two_sided else front
        o[CENTROID] = (o[X] + o[X + 2] + o[X + 4]) / 3
        o[CENTROID + 1] = (o[X + 1] + o[X + 3] + o[X + 5]) / 3
        o[INVERSE] = area / (area * area + FLIP_AREA * FLIP_AREA)
        o[FACTOR] = facing * presence
        o[LEAST] = min(o[WEIGHT], o[WEIGHT + 1], o[WEIGHT + 2]) / 2
        o[AREA], o[FACING], o[PRESENCE] = area, facing, presence
    return broken


@njit(**OPTIONS)
def bound(o, reach, height, width, box):
    """The tiles (rows y0:y1, columns x0:x1 of the grid of tiles) that the face's reach touches; whether there are any."""
    low_x, high_x = min(o[X], o[X + 2], o[X + 4]) - reach, max(o[X], o[X + 2], o[X + 4]) + reach
    low_y, high_y = min(o[X + 1], o[X + 3], o[X + 5]) - reach, max(o[X + 1], o[X + 3], o[X + 5]) + reach
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
def count_pairs(prepared, reach, height, width, starts, tile_counts, base):
    """How many tiles each face touches (into starts[f + 1]), and how many faces each tile has."""
    columns = (width + LANES - 1) // LANES
    box = np.empty(4, np.int64)
    for f in range(prepared.shape[0]):
        o = prepared[f]
        number = 0
        if bound(o, reach, height, width, box):
            for ty in range(box[0] // LANES, box[1] // LANES + 1):
                for tx in range(box[2] // LANES, box[3] // LANES + 1):
                    if touches(o, reach, ty, tx):
                        tile_counts[base + ty * columns + tx] += 1
                        number += 1
        starts[f] = number


@njit(**OPTIONS)
def list_pairs(prepared, reach, height, width, first_face, starts, cursor, base, faces_of, pairs_of):
    """Write each tile's faces, in order, with the number of the pair (numbers run face by face)."""
    columns = (width + LANES - 1) // LANES
    box = np.empty(4, np.int64)
    for f in range(prepared.shape[0]):
        o = prepared[f]
        pair = starts[f]
        if bound(o, reach, height, width, box):
            for ty in range(box[0] // LANES, box[1] // LANES + 1):
                for tx in range(box[2] // LANES, box[3] // LANES + 1):
                    if touches(o, reach, ty, tx):
                        tile = base + ty * columns + tx
                        faces_of[cursor[tile]] = first_face + f
                        pairs_of[cursor[tile]] = pair
                        cursor[tile] += 1
                        pair += 1


@njit(**OPTIONS)
def lanes_forward(o, x0, y, steepness, sigma2, lateral, buffer):
    """One face and the 16 pixels of one row: coverage, exponent, and corner weights, into rows 0 to 5 of the buffer."""
    ax, ay, bx, by, cx, cy = o[0], o[1] - y, o[2], o[3] - y, o[4], o[5] - y
    ux0, uy0, ux1, uy1, ux2, uy2 = o[6], o[7], o[8], o[9], o[10], o[11]
    l0, l1, l2 = o[12], o[13], o[14]
    gx, gy, inverse, factor = o[15], y - o[16], o[17], o[18]
    za, zb, zc, wa, wb, wc, least = o[19], o[20], o[21], o[22], o[23], o[24], o[25]
    oax, oay, obx, oby, ocx, ocy = cx - bx, cy - by, ax - cx, ay - cy, bx - ax, by - ay
    third, tau, least_tau = real(1.0 / 3.0), real(FAINT2), real(FAINTEST2)
    for i in range(LANES):
        x = x0 + real(i)
        rax, rbx, rcx = ax - x, bx - x, cx - x
        t0 = rax * ux0 + ay * uy0
        c0, m0 = edge_forward(t0, t0 + l0, ay * ux0 - rax * uy0, sigma2)
        t1 = rbx * ux1 + by * uy1
        c1, m1 = edge_forward(t1, t1 + l1, by * ux1 - rbx * uy1, sigma2)
        t2 = rcx * ux2 + cy * uy2
        c2, m2 = edge_forward(t2, t2 + l2, cy * ux2 - rcx * uy2, sigma2)
        p = c0 + c1 + c2
        mx = uy0 * m0 + uy1 * m1 + uy2 * m2
        my = -(ux0 * m0 + ux1 * m1 + ux2 * m2)
        den, rough = real(1.0) / (p * p + tau), real(1.0) / (p * p + least_tau)
        qx = x - gx
        fx, fy = p * (p * qx + mx) * den, p * (p * gy + my) * den
        sx, sy = (p * mx - least_tau * qx) * rough, (p * my - least_tau * gy) * rough
        va = (third + (fx * oay - fy * oax) * inverse) * wa
        vb = (third + (fx * oby - fy * obx) * inverse) * wb
        vc = (third + (fx * ocy - fy * ocx) * inverse) * wc
        scale = real(1.0) / max(va + vb + vc, least)
        va, vb, vc = va * scale, vb * scale, vc * scale
        away = min((sx * sx + sy * sy) * lateral, real(1e3))
        away = away * away
        covered = p * factor
        buffer[i] = covered
        buffer[LANES + i] = -steepness * (va * za + vb * zb + vc * zc) - real(LATERAL) * away * away
        buffer[2 * LANES + i] = va
        buffer[3 * LANES + i] = vb
        buffer[4 * LANES + i] = vc


@njit(**OPTIONS)
def peaks(entries, prepared, rows, first_row, x0, steepness, sigma2, lateral, buffer, peak):
    """The largest exponent, log coverage included, at each pixel: for tiles whose depths span too much for one bound."""
    for i in range(TILE):
        peak[i] = real(-1e30)
    for entry in range(entries.shape[0]):
        o = prepared[entries[entry]]
        for r in range(rows[entry, 0], rows[entry, 1]):
            lanes_forward(o, x0, real(first_row + r) + real(0.5), steepness, sigma2, lateral, buffer)
            for i in range(LANES):
                z = buffer[LANES + i] + log(max(buffer[i], real(1e-37)))
                z = z if buffer[i] > real(1e-37) else real(-1e30)
                peak[r * LANES + i] = max(peak[r * LANES + i], z)


@njit(**OPTIONS)
def row_ranges(entries, prepared, first_row, reach, rows):
    """The rows of the tile that each of its faces reaches."""
    for entry in range(entries.shape[0]):
        o = prepared[entries[entry]]
        low = min(o[X + 1], o[X + 3], o[X + 5]) - reach - first_row
        high = max(o[X + 1], o[X + 3], o[X + 5]) + reach - first_row
        rows[entry, 0] = int64(min(max(low, real(0.0)), real(LANES)))
        rows[entry, 1] = int64(min(max(high + real(1.0), real(0.0)), real(LANES)))


@njit(**OPTIONS)
def conorm(totals, power, values, slopes):
    """The silhouette from a tile's totals, and its slope: S / (1 + S^k)^(1/k), or 1 - exp(S) where the power is 0."""
    k = real(power)
    if power > 0:
        for i in range(TILE):
            # The k-th power of the smaller of S and 1/S cannot overflow
            size = abs(totals[i])
            small = min(size, real(1.0) / max(size, real(1e-30)))
            raised = exp(k * log(max(small, real(1e-30))))
            root = exp(-log(real(1.0) + raised) / k)
            value = size * root if size <= real(1.0) else root
            values[i] = value if totals[i] >= real(0.0) else -value
            slopes[i] = (root if size <= real(1.0) else raised * small * root) / (real(1.0) + raised)
    else:
        for i in range(TILE):
            complement = exp(totals[i])
            values[i] = real(1.0) - complement
            slopes[i] = complement * real(SHORT)


@njit(**OPTIONS)
def shift_of(entries, prepared, steepness, peak):
    """Fill `peak` with an upper bound of every exponent if depths are close enough for one; whether they are."""
    high, low = -1e30, 1e30
    for entry in range(entries.shape[0]):
        o = prepared[entries[entry]]
        for i in range(3):
            z = float(-steepness * o[DEPTH + i])
            high, low = max(high, z), min(low, z)
    for i in range(TILE):
        peak[i] = real(high)
    return high - low < 30


@njit(**OPTIONS)
def forward_tiles(
    begin, stride, tile_starts, faces_of, prepared, faces, attribute_faces, attributes, background, softness, settings,
    image, silhouette, depth, total_out, norm_out, mean_out,
):  # fmt: skip
    """Every `stride`-th tile from `begin` on. `settings`: df, reach in sigmas, bounded-sum power (0: probabilistic)."""
    height, width, channels = image.shape[1], image.shape[2], image.shape[3]
    columns = (width + LANES - 1) // LANES
    per_item = ((height + LANES - 1) // LANES) * columns
    count = faces.shape[0]
    buffer, peak = np.empty(8 * LANES, prepared.dtype), np.empty(TILE, prepared.dtype)
    sums = np.empty((channels + 3) * TILE, prepared.dtype)
    values, slopes, logs = (
        np.empty(TILE, prepared.dtype),
        np.empty(TILE, prepared.dtype),
        np.empty(TILE, prepared.dtype),
    )
    power = settings[2]
    for tile in range(begin, tile_starts.shape[0] - 1, stride):
        item = tile // per_item
        first_row, first_column = (tile % per_item) // columns * LANES, (tile % per_item) % columns * LANES
        scale, steepness = softness[item, 0], softness[item, 1]
        sigma2 = real(settings[0]) * scale * scale
        lateral = real(1.0) / (real(settings[1] * settings[1]) * sigma2)
        reach = real(settings[1]) * np.sqrt(sigma2)
        entries = faces_of[tile_starts[tile] : tile_starts[tile + 1]]
        rows = np.empty((entries.shape[0], 2), np.int64)
        row_ranges(entries, prepared, real(first_row), reach, rows)
        x0 = real(first_column) + real(0.5)
        if not shift_of(entries, prepared, steepness, peak):
            peaks(entries, prepared, rows, first_row, x0, steepness, sigma2, lateral, buffer, peak)
        sums[:] = 0
        for entry in range(entries.shape[0]):
            o = prepared[entries[entry]]
            corners = attribute_faces[entries[entry] % count]
            looks = attributes[item]
            for r in range(rows[entry, 0], rows[entry, 1]):
                lanes_forward(o, x0, real(first_row + r) + real(0.5), steepness, sigma2, lateral, buffer)
                accumulate(buffer, peak, sums, r * LANES, o[DEPTH], o[DEPTH + 1], o[DEPTH + 2], power)
                for c in range(channels):
                    mix(buffer, sums, (3 + c) * TILE + r * LANES,
                        looks[corners[0], c], looks[corners[1], c], looks[corners[2], c])  # fmt: skip
        conorm(sums, power, values, slopes)
        for i in range(TILE):
            norm = sums[TILE + i]
            seen = norm > real(TINY)
            logs[i] = peak[i] + log(max(norm, real(TINY))) if seen else real(1e30)
            sums[TILE + i] = real(1.0) / max(norm, real(TINY)) if seen else real(0.0)
        for r in range(min(LANES, height - first_row)):
            for i in range(min(LANES, width - first_column)):
                at = r * LANES + i
                y, x = first_row + r, first_column + i
                inverse, s = sums[TILE + at], values[at]
                total_out[item, y, x], norm_out[item, y, x], silhouette[item, y, x] = sums[at], logs[at], s
                mean = sums[2 * TILE + at] * inverse
                mean_out[item, y, x, channels] = mean
                depth[item, y, x] = s * mean + (1 - s) * background[item, channels]
                for c in range(channels):
                    mean = sums[(3 + c) * TILE + at] * inverse
                    mean_out[item, y, x, c] = mean
                    image[item, y, x, c] = s * mean + (1 - s) * background[item, c]


@njit(forceinline=True, **OPTIONS)
def accumulate(buffer, peak, sums, at, za, zb, zc, power):
    """Add one face's row to the tile's totals, and leave its corner weights times share in the buffer."""
    for i in range(LANES):
        covered = buffer[i]
        # At most 1, unless the exponents are so large that their rounding shows
        # The floor keeps a pixel that only faint faces reach from losing them all
        above = min(max(buffer[LANES + i] - peak[at + i], real(FLOOR)), real(80.0))
        share = min(max(covered, real(0.0)) * exp(above), real(2.0))
        va, vb, vc = buffer[2 * LANES + i] * share, buffer[3 * LANES + i] * share, buffer[4 * LANES + i] * share
        buffer[2 * LANES + i], buffer[3 * LANES + i], buffer[4 * LANES + i] = va, vb, vc
        buffer[5 * LANES + i] = share
        buffer[6 * LANES + i] = va * za + vb * zb + vc * zc
    if power > 0:
        for i in range(LANES):
            sums[at + i] += buffer[i]
    else:
        for i in range(LANES):
            sums[at + i] += log(real(1.0) - min(max(buffer[i], real(0.0)), real(1.0)) * real(SHORT))
    for i in range(LANES):
        sums[TILE + at + i] += buffer[5 * LANES + i]
    for i in range(LANES):
        sums[2 * TILE + at + i] += buffer[6 * LANES + i]


@njit(forceinline=True, **OPTIONS)
def mix(buffer, sums, at, a, b, c):
    for i in range(LANES):
        sums[at + i] += buffer[2 * LANES + i] * a + buffer[3 * LANES + i] * b + buffer[4 * LANES + i] * c


@njit(**OPTIONS)
def lanes_backward(o, x0, y, steepness, sigma2, lateral, short, buffer):
    """The gradient of one face from the 16 pixels of one row.

    Buffer rows 0 to 6 hold, per pixel: the worth of each corner, the mean worth, the slope by coverage, the log
    normaliser, and the worth of depth. Rows 7 to 9 receive share times corner weight; `SUMS` rows from 10 on are added to.
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


@njit(**OPTIONS)
def backward_tiles(
    begin, stride, tile_starts, faces_of, pairs_of, prepared, faces, attribute_faces, attributes, background, softness,
    settings, silhouette, total, norm, mean, grad_image, grad_silhouette, grad_depth, records,
):  # fmt: skip
    """Every `stride`-th tile from `begin` on: what each pair of face and tile adds to the face's gradient."""
    height, width, channels = grad_image.shape[1], grad_image.shape[2], grad_image.shape[3]
    columns = (width + LANES - 1) // LANES
    per_item = ((height + LANES - 1) // LANES) * columns
    count = faces.shape[0]
    buffer = np.empty((10 + SUMS) * LANES, prepared.dtype)
    pulls = np.empty(3 * channels * LANES, prepared.dtype)
    worths = np.empty((channels + 4) * TILE, prepared.dtype)
    slopes = np.empty(3 * TILE, prepared.dtype)
    power = settings[2]
    short = real(SHORT) if power == 0 else real(0.0)
    for tile in range(begin, tile_starts.shape[0] - 1, stride):
        if tile_starts[tile] == tile_starts[tile + 1]:
            continue
        item = tile // per_item
        first_row, first_column = (tile % per_item) // columns * LANES, (tile % per_item) % columns * LANES
        scale, steepness = softness[item, 0], softness[item, 1]
        sigma2 = real(settings[0]) * scale * scale
        lateral = real(1.0) / (real(settings[1] * settings[1]) * sigma2)
        reach = real(settings[1]) * np.sqrt(sigma2)
        entries = faces_of[tile_starts[tile] : tile_starts[tile + 1]]
        rows = np.empty((entries.shape[0], 2), np.int64)
        row_ranges(entries, prepared, real(first_row), reach, rows)
        pixel_worths(item, first_row, first_column, power, silhouette, total, norm, mean, background,
                     grad_image, grad_silhouette, grad_depth, worths, slopes)  # fmt: skip
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
                    worth_of_corner(buffer, worths, at, j, o[DEPTH + j], looks, corners[j], channels)
                for i in range(LANES):
                    buffer[3 * LANES + i] = worths[TILE + at + i]
                    buffer[4 * LANES + i] = worths[2 * TILE + at + i]
                    buffer[5 * LANES + i] = worths[3 * TILE + at + i]
                    buffer[6 * LANES + i] = worths[at + i]
                y = real(first_row + r) + real(0.5)
                lanes_backward(o, x0, y, steepness, sigma2, lateral, short, buffer)
                for c in range(channels):
                    pull_attributes(buffer, worths, pulls, (4 + c) * TILE + at, 3 * c * LANES)
            for k in range(SUMS):
                record[k] = row_sum(buffer, (10 + k) * LANES)
            for k in range(3 * channels):
                record[SUMS + k] = row_sum(pulls, k * LANES)


@njit(forceinline=True, **OPTIONS)
def pull_attributes(buffer, worths, pulls, at, to):
    """What one channel's three corners receive from the row, per lane."""
    for i in range(LANES):
        g = worths[at + i]
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
def pixel_worths(
    item, first_row, first_column, power, silhouette, total, norm, mean, background,
    grad_image, grad_silhouette, grad_depth, worths, slopes,
):  # fmt: skip
    """Per pixel of the tile: worth of depth, mean worth, slope by coverage, log normaliser, and worth of each channel."""
    height, width, channels = grad_image.shape[1], grad_image.shape[2], grad_image.shape[3]
    worths[:] = 0
    worths[3 * TILE : 4 * TILE] = real(1e30)
    slopes[:] = 0
    for r in range(min(LANES, height - first_row)):
        for i in range(min(LANES, width - first_column)):
            slopes[r * LANES + i] = total[item, first_row + r, first_column + i]
    conorm(slopes[:TILE], power, slopes[TILE : 2 * TILE], slopes[2 * TILE :])
    for r in range(min(LANES, height - first_row)):
        for i in range(min(LANES, width - first_column)):
            at, y, x = r * LANES + i, first_row + r, first_column + i
            s, gd = silhouette[item, y, x], grad_depth[item, y, x]
            if norm[item, y, x] >= real(1e29):
                # No face has a share here: the means are constants
                s = real(0.0)
            depth = mean[item, y, x, channels]
            value = gd * depth
            by_silhouette = grad_silhouette[item, y, x] + gd * (depth - background[item, channels])
            for c in range(channels):
                g, m = grad_image[item, y, x, c], mean[item, y, x, c]
                value += g * m
                by_silhouette += g * (m - background[item, c])
                worths[(4 + c) * TILE + at] = s * g
            by_silhouette *= slopes[2 * TILE + at]
            worths[at] = s * gd
            worths[TILE + at] = s * value
            worths[2 * TILE + at] = by_silhouette
            worths[3 * TILE + at] = norm[item, y, x]


@njit(forceinline=True, **OPTIONS)
def worth_of_corner(buffer, worths, at, j, z, looks, row, channels):
    for i in range(LANES):
        buffer[j * LANES + i] = worths[at + i] * z
    for c in range(channels):
        a, base = looks[row, c], (4 + c) * TILE + at
        for i in range(LANES):
            buffer[j * LANES + i] += worths[base + i] * a


@njit(**OPTIONS)
def gather(
    item, starts, records, prepared, vertices, points, faces, attribute_faces, softness, perspective, two_sided, guard,
    by_points, by_attributes, by_softness,
):  # fmt: skip
    """Sum each face's records, in order, and hand them down to points, attributes and softness of one item."""
    count, channels = faces.shape[0], by_attributes.shape[2]
    by_vertices = np.zeros((points.shape[1], 5))
    sums = np.empty(SUMS + 3 * channels)
    corner = np.empty((3, 2))
    near = float(softness[item, 2])
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
        corner[:] = 0
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
        square = area * area + FLIP_AREA * FLIP_AREA
        by_area = by_inverse * (FLIP_AREA * FLIP_AREA - area * area) / (square * square)
        front_slope, back_slope = step(area / FLIP_AREA)[1], step(-area / FLIP_AREA)[1]
        facing_slope = (front_slope + back_slope if two_sided else front_slope) / FLIP_AREA
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
        by_x = by_vertices[v, 0] if abs(x) <= FAR_PIXELS else 0.0
        by_y = by_vertices[v, 1] if abs(y) <= FAR_PIXELS else 0.0
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

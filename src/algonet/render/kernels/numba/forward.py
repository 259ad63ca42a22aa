"""The CPU rasteriser's forward pass: each tile of samples streams over its faces. A template, see `faces`.

The innermost loop runs over the 16 pixels of a tile's row, has no branches and touches one flat buffer at constant offsets,
so that LLVM turns it into vector instructions. Pixels right of or below the image are computed and dropped.
"""

# pyright: reportOptionalCall=false, reportAttributeAccessIssue=false
from __future__ import annotations

import numpy as np

from algonet.core.codegen.jit import njit

from .faces import (
    DEPTH,
    FAINT2,
    FAINTEST2,
    FLOOR,
    LANES,
    LATERAL,
    OPTIONS,
    SHORT,
    TILE,
    TINY,
    edge_forward,
    exp,
    log,
    real,
    row_ranges,
)

# --- template ---


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


@njit(**OPTIONS, cache=True)
def forward_tiles(
    begin, stride, tile_starts, faces_of, prepared, faces, attribute_faces, attributes, softness, grid, settings,
    total_out, norm_out, mean_out,
):  # fmt: skip
    """Every `stride`-th tile from `begin` on. `settings`: df, reach in sigmas, bounded-sum power (0: probabilistic).

    `softness` is scale and steepness, `grid` rows and columns of samples of each item; `mean_out` has depth as its last
    channel.
    """
    channels = mean_out.shape[3] - 1
    per_item = (tile_starts.shape[0] - 1) // grid.shape[0]
    count = faces.shape[0]
    buffer, peak = np.empty(8 * LANES, prepared.dtype), np.empty(TILE, prepared.dtype)
    sums = np.empty((channels + 3) * TILE, prepared.dtype)
    logs = np.empty(TILE, prepared.dtype)
    power = settings[2]
    for tile in range(begin, tile_starts.shape[0] - 1, stride):
        item = tile // per_item
        height, width = grid[item, 0], grid[item, 1]
        columns = (width + LANES - 1) // LANES
        first_row, first_column = (tile % per_item) // columns * LANES, (tile % per_item) % columns * LANES
        if first_row >= height:
            continue
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
        for i in range(sums.shape[0]):  # a slice would bring broadcasting and its error messages into the compilation
            sums[i] = real(0.0)
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
        for i in range(TILE):
            norm = sums[TILE + i]
            seen = norm > real(TINY)
            logs[i] = peak[i] + log(max(norm, real(TINY))) if seen else real(1e30)
            sums[TILE + i] = real(1.0) / max(norm, real(TINY)) if seen else real(0.0)
        for r in range(min(LANES, height - first_row)):
            for i in range(min(LANES, width - first_column)):
                at = r * LANES + i
                y, x = first_row + r, first_column + i
                inverse = sums[TILE + at]
                total_out[item, y, x], norm_out[item, y, x] = sums[at], logs[at]
                mean_out[item, y, x, channels] = sums[2 * TILE + at] * inverse
                for c in range(channels):
                    mean_out[item, y, x, c] = sums[(3 + c) * TILE + at] * inverse


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

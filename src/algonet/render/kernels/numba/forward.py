"""The CPU rasteriser's forward pass: each row of a tile of samples finds the nearest unit of its faces' coverage, and mixes
what it shows. A template, see `faces`.

The innermost loop runs over the 16 pixels of a tile's row, has no branches and touches one flat buffer at constant offsets,
so that LLVM turns it into vector instructions. Pixels right of or below the image are computed and dropped.
"""

# pyright: reportOptionalCall=false, reportAttributeAccessIssue=false
from __future__ import annotations

import numpy as np

from algonet.core.codegen.jit import njit

from .faces import BACK, DEPTH, EXACT, FAINT2, HIDDEN, LANES, OPTIONS, edge, exp, log, real, row_ranges

bounded = None

# --- template ---

#: Rows of 16 numbers kept per face: coverage, place (steepness times depth), corner weights, front share, exp(place).
PAIR = 7
#: The solver's range in steps of exp around a guess, and its most rounds.
SPAN, ROUNDS = 25.0, 30
#: A limit of the places where everything is shown, and the least coverage that is seen at all.
NOWHERE_FAR, LEAST_SEEN = 1e30, 1e-30


@njit(forceinline=True, **OPTIONS)
def side_of(turn):
    """tanh(turn), and the front's share logistic(2 turn)."""
    e = exp(real(-2.0) * abs(turn))
    part = real(1.0) / (real(1.0) + e)
    value = (real(1.0) - e) * part
    positive = turn >= real(0.0)
    return (value if positive else -value), part * (real(1.0) if positive else e)


@njit(forceinline=True, **OPTIONS)
def face_numbers(o, y):
    """What samples of one row need to know of a face: corners and edges, from that row, weights and depths, and the turn."""
    corners = o[0], o[1] - y, o[2], o[3] - y, o[4], o[5] - y
    directions = o[6], o[7], o[8], o[9], o[10], o[11]
    return corners, directions, (o[12], o[13], o[14]), (o[15], y - o[16], o[17]), (o[19], o[20], o[21]), (
        o[22], o[23], o[24]), o[25], o[27]  # fmt: skip


@njit(forceinline=True, **OPTIONS)
def see(face, x, sigma2, perspective):
    """What a sample sees of a face: signed coverage, depth and turn; the corners' weights; and what only gradients need.

    That is of each edge where it starts, its distance and the integrals of the density; moment and positions; barycentrics.
    """
    (
        (ax, ay, bx, by, cx, cy),
        (ux0, uy0, ux1, uy1, ux2, uy2),
        (l0, l1, l2),
        (gx, gy, inverse),
        depths,
        weights,
        least,
        turning,
    ) = face
    third, one = real(1.0 / 3.0), real(1.0)
    rax, rbx, rcx = ax - x, bx - x, cx - x
    t0, d0 = rax * ux0 + ay * uy0, ay * ux0 - rax * uy0
    t1, d1 = rbx * ux1 + by * uy1, by * ux1 - rbx * uy1
    t2, d2 = rcx * ux2 + cy * uy2, cy * ux2 - rcx * uy2
    c0, m0, k0 = edge(t0, t0 + l0, d0, sigma2)
    c1, m1, k1 = edge(t1, t1 + l1, d1, sigma2)
    c2, m2, k2 = edge(t2, t2 + l2, d2, sigma2)
    p = c0 + c1 + c2
    mx, my = uy0 * m0 + uy1 * m1 + uy2 * m2, -(ux0 * m0 + ux1 * m1 + ux2 * m2)
    den = one / (p * p + real(FAINT2))
    qx = x - gx
    inx, iny = p * qx + mx, p * gy + my
    fx, fy = p * inx * den, p * iny * den
    ba = third + (fx * (cy - by) - fy * (cx - bx)) * inverse
    bb = third + (fx * (ay - cy) - fy * (ax - cx)) * inverse
    bc = third + (fx * (by - ay) - fy * (bx - ax)) * inverse
    va, vb, vc = ba * weights[0], bb * weights[1], bc * weights[2]
    total = va + vb + vc
    scale = one / max(total, least)
    va, vb, vc = va * scale, vb * scale, vc * scale
    z = va * depths[0] + vb * depths[1] + vc * depths[2]
    level = z + perspective * (total - z)
    edges = (t0, d0, k0), (t1, d1, k1), (t2, d2, k2)
    return (
        (p, z, turning * level),
        (va, vb, vc),
        edges,
        (mx, my, den, qx, inx, iny, fx, fy),
        (ba, bb, bc, total, scale, level),
    )


@njit(**OPTIONS)
def lanes_forward(o, x0, y, steepness, sigma2, perspective, both, buffer):
    """One face and the 16 pixels of one row, into the rows of the buffer."""
    face, factor, one = face_numbers(o, y), o[18], real(1.0)
    for i in range(LANES):
        (p, z, turn), weights, _, _, _ = see(face, x0 + real(i), sigma2, perspective)
        facing, front = side_of(turn)
        covered = max(p * facing * factor, real(0.0))
        side = both * (one - front)
        buffer[i] = covered * (front + side)
        buffer[LANES + i] = steepness * z * (one + real(BACK) * (one - front) / np.sqrt(one + turn * turn))
        buffer[2 * LANES + i], buffer[3 * LANES + i], buffer[4 * LANES + i] = weights
        buffer[5 * LANES + i] = one - side


@njit(forceinline=True, **OPTIONS)
def widen_range(pair, work):
    for i in range(LANES):
        place, there = pair[LANES + i], pair[i] > real(0.0)
        low, high = work[i], work[LANES + i]
        work[i] = min(low, place if there else low)
        work[LANES + i] = max(high, place if there else high)


@njit(forceinline=True, **OPTIONS)
def add_nearer(pair, work):
    for i in range(LANES):
        work[3 * LANES + i] += pair[i] if pair[LANES + i] < work[2 * LANES + i] else real(0.0)


@njit(**OPTIONS)
def guess_limits(pairs, count, silhouettes, work):
    """Where the coverages, crisply ordered, add up to the silhouettes, into the third row of `work`: by halving between the
    nearest and the furthest place (the first two rows), to some steps of exp."""
    for i in range(LANES):
        work[i], work[LANES + i] = real(NOWHERE_FAR), real(-NOWHERE_FAR)
    for n in range(count):
        widen_range(pairs[n], work)
    widest = real(0.0)
    for i in range(LANES):
        widest = max(widest, work[LANES + i] - work[i])
        work[2 * LANES + i] = (work[i] + work[LANES + i]) * real(0.5)
    while widest > real(4.0):
        for i in range(LANES):
            work[3 * LANES + i] = real(0.0)
        for n in range(count):
            add_nearer(pairs[n], work)
        for i in range(LANES):
            middle, below = work[2 * LANES + i], work[3 * LANES + i] < silhouettes[i]
            work[i], work[LANES + i] = (middle if below else work[i]), (work[LANES + i] if below else middle)
            work[2 * LANES + i] = (work[i] + work[LANES + i]) * real(0.5)
        widest *= real(0.5)


@njit(forceinline=True, **OPTIONS)
def exponentials(pair, work):
    """exp(place - guess), within what the solver's range may meet."""
    for i in range(LANES):
        away = pair[LANES + i] - work[2 * LANES + i]
        pair[6 * LANES + i] = exp(min(max(away, real(-1.6 * SPAN)), real(1.6 * SPAN)))


@njit(forceinline=True, **OPTIONS)
def add_lost(pair, work):
    """With away = logistic(place - y), from exp(guess - y) in the first row: of fronts the coverage * away that is lost, of
    backs the coverage * (1 - away) that is kept, and the slopes of both."""
    one = real(1.0)
    for i in range(LANES):
        w = pair[6 * LANES + i] * work[i]
        kept = one / (one + w)
        away = w * kept
        front = pair[i] * pair[5 * LANES + i]
        back = (pair[i] - front) * kept
        front *= away
        work[3 * LANES + i] += front
        work[4 * LANES + i] += front * kept
        work[9 * LANES + i] += back
        work[10 * LANES + i] += back * away


@njit(**OPTIONS)
def newton_step(silhouettes, hidden, back, work, limit):
    """One step for lost fronts = kept backs + surplus, as logarithms: a straight line where one depth is seen, and where what
    is hidden is one side of a surface; halving where that is slow.

    Rows of `work` from 3 on: lost and its slope, the bracket, the last step, (9) kept and its slope. Returns how many are not
    solved."""
    unsolved, tiny, zero = real(0.0), real(LEAST_SEEN), real(0.0)
    for i in range(LANES):
        lost, kept, low, high = work[3 * LANES + i], work[9 * LANES + i], work[5 * LANES + i], work[6 * LANES + i]
        surplus = hidden[i] - back[i]
        off = lost - kept - surplus
        over = off > zero
        low, high = (limit[i] if over else low), (high if over else limit[i])
        left, right = max(lost - min(surplus, zero), tiny), max(kept + max(surplus, zero), tiny)
        slope = work[4 * LANES + i] / left + work[10 * LANES + i] / right
        step = (log(left) - log(right)) / max(slope, tiny)
        to, middle = limit[i] + step, (low + high) * real(0.5)
        fast = (abs(step) < real(0.5) * abs(work[7 * LANES + i])) & (to > low) & (to < high)
        near = (abs(off) <= real(EXACT) * max(silhouettes[i] + hidden[i], tiny)) | (high - low < real(EXACT))
        step = step if fast else middle - limit[i]
        work[5 * LANES + i], work[6 * LANES + i], work[7 * LANES + i] = low, high, step
        limit[i] += real(0.0) if near else step
        unsolved += real(0.0) if near else real(1.0)
    return unsolved


@njit(**OPTIONS)
def solve_limits(pairs, count, silhouettes, hidden, back, work, limit):
    """The y of each pixel with sum of coverage * logistic(place - y) = hidden; NOWHERE_FAR where all of a row is shown."""
    everything = True
    for i in range(LANES):
        limit[i] = real(NOWHERE_FAR)
        everything = everything and hidden[i] <= real(HIDDEN) * silhouettes[i]
    if everything:
        return
    guess_limits(pairs, count, silhouettes, work)
    for n in range(count):
        exponentials(pairs[n], work)
    for i in range(LANES):
        limit[i], work[5 * LANES + i], work[6 * LANES + i] = real(0.0), real(-SPAN), real(SPAN)
        work[7 * LANES + i] = real(2 * SPAN)
    for _ in range(ROUNDS):
        for i in range(LANES):
            work[i], work[3 * LANES + i], work[4 * LANES + i] = exp(-limit[i]), real(0.0), real(0.0)
            work[9 * LANES + i], work[10 * LANES + i] = real(0.0), real(0.0)
        for n in range(count):
            add_lost(pairs[n], work)
        if newton_step(silhouettes, hidden, back, work, limit) == real(0.0):
            break
    for i in range(LANES):
        limit[i] += work[2 * LANES + i]


@njit(**OPTIONS)
def mix_row(pairs, count, here, prepared, limit, attributes, corners_of, channels, sums):
    """Sums over a row's pairs of what is shown, v = coverage * logistic(limit - place), and of what is being hidden,
    v * logistic(place - limit): alone, then times channels and depth."""
    width = channels + 2
    for c in range(2 * width):
        row = sums[c]
        for i in range(LANES):
            row[i] = real(0.0)
    shown, turning = np.empty(LANES, pairs.dtype), np.empty(LANES, pairs.dtype)
    for n in range(count):
        pair, o, corners = pairs[n], prepared[here[n]], corners_of[here[n] % corners_of.shape[0]]
        for i in range(LANES):
            away = real(1.0) / (real(1.0) + exp(min(max(limit[i] - pair[LANES + i], real(-80.0)), real(80.0))))
            shown[i] = pair[i] * (real(1.0) - away)
            turning[i] = shown[i] * away
        add_row(shown, sums[0])
        add_row(turning, sums[width])
        mix(pair, shown, turning, o[DEPTH], o[DEPTH + 1], o[DEPTH + 2], sums[channels + 1], sums[width + channels + 1])
        for c in range(channels):
            x, y, z = attributes[corners[0], c], attributes[corners[1], c], attributes[corners[2], c]
            mix(pair, shown, turning, x, y, z, sums[1 + c], sums[width + 1 + c])


@njit(forceinline=True, **OPTIONS)
def add_row(row, total):
    for i in range(LANES):
        total[i] += row[i]


@njit(forceinline=True, **OPTIONS)
def mix(pair, shown, turning, x, y, z, total, turned):
    for i in range(LANES):
        value = pair[2 * LANES + i] * x + pair[3 * LANES + i] * y + pair[4 * LANES + i] * z
        total[i] += shown[i] * value
        turned[i] += turning[i] * value


@njit(forceinline=True, **OPTIONS)
def tile_at(tile, per_item, grid, softness, settings):
    """A tile's item, first row and column, the steepness, the square of the noise's sigma, and its reach."""
    item = tile // per_item
    columns = (grid[item, 1] + LANES - 1) // LANES
    sigma2 = real(settings[0]) * softness[item, 0] * softness[item, 0]
    first_row, first_column = (tile % per_item) // columns * LANES, (tile % per_item) % columns * LANES
    return item, first_row, first_column, softness[item, 1], sigma2, real(settings[1]) * np.sqrt(sigma2)


@njit(**OPTIONS, cache=True)
def forward_tiles(
    begin, stride, tile_starts, faces_of, prepared, faces, attribute_faces, attributes, softness, grid, settings,
    total_out, limit_out, mean_out, edge_out,
):  # fmt: skip
    """Every `stride`-th tile from `begin` on. `settings`: the `numbers` of the plan.

    `softness` is scale and steepness, `grid` rows and columns of samples of each item. `mean_out` has depth as its last
    channel; `edge_out` has the means over what is just being hidden.
    """
    channels = mean_out.shape[3] - 1
    per_item = (tile_starts.shape[0] - 1) // grid.shape[0]
    power, perspective, both = real(settings[2]), real(settings[3]), real(settings[4])
    sums = np.empty((2 * (channels + 2), LANES), prepared.dtype)
    front, back = np.empty(LANES, prepared.dtype), np.empty(LANES, prepared.dtype)
    silhouettes, hidden = np.empty(LANES, prepared.dtype), np.empty(LANES, prepared.dtype)
    limit, work = np.empty(LANES, prepared.dtype), np.empty(11 * LANES, prepared.dtype)
    for tile in range(begin, tile_starts.shape[0] - 1, stride):
        item, first_row, first_column, steepness, sigma2, reach = tile_at(tile, per_item, grid, softness, settings)
        height, width = grid[item, 0], grid[item, 1]
        if first_row >= height:
            continue
        entries = faces_of[tile_starts[tile] : tile_starts[tile + 1]]
        rows = np.empty((entries.shape[0], 2), np.int64)
        row_ranges(entries, prepared, real(first_row), reach, rows)
        pairs = np.empty((max(1, entries.shape[0]), PAIR * LANES), prepared.dtype)
        here = np.empty(entries.shape[0], np.int64)
        x0 = real(first_column) + real(0.5)
        for r in range(min(LANES, height - first_row)):
            count = 0
            for i in range(LANES):
                front[i], back[i] = real(0.0), real(0.0)
            for entry in range(entries.shape[0]):
                if r < rows[entry, 0] or r >= rows[entry, 1]:
                    continue
                here[count] = entries[entry]
                pair = pairs[count]
                lanes_forward(
                    prepared[entries[entry]],
                    x0,
                    real(first_row + r) + real(0.5),
                    steepness,
                    sigma2,
                    perspective,
                    both,
                    pair,
                )
                for i in range(LANES):
                    part = pair[i] * pair[5 * LANES + i]
                    front[i] += part
                    back[i] += pair[i] - part
                count += 1
            for i in range(LANES):
                silhouettes[i], _, _, hidden[i] = bounded(front[i], back[i], power)
            solve_limits(pairs, count, silhouettes, hidden, back, work, limit)
            mix_row(pairs, count, here, prepared, limit, attributes[item], attribute_faces, channels, sums)
            y = first_row + r
            for i in range(min(LANES, width - first_column)):
                x = first_column + i
                total_out[item, y, x, 0], total_out[item, y, x, 1], limit_out[item, y, x] = front[i], back[i], limit[i]
                shown, turning = sums[0, i], sums[channels + 2, i]
                inverse = real(1.0) / max(shown, real(LEAST_SEEN))
                edge = real(1.0) / max(turning, real(LEAST_SEEN))
                for c in range(channels + 1):
                    mean = sums[1 + c, i] * inverse
                    mean_out[item, y, x, c] = mean
                    # Where nothing is being hidden, what might be is the mean
                    turned = sums[channels + 3 + c, i] * edge
                    edge_out[item, y, x, c] = turned if turning > real(LEAST_SEEN) else mean

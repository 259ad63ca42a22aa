"""Template of the Triton kernels: `triton_gpu.py` puts the sigmoid's `gate` before it and loads both as one module.

A program holds R rows of T items in registers and takes them through the layers; the partner of an item comes by
`tl.gather`. With a payload, a "row" is one channel of a row: the items are recomputed for each, nothing is exchanged
between channels, and the gradients of the items are summed afterwards.
"""

import triton
import triton.language as tl

from algonet.triton_math import atan  # noqa: F401  (formulas may use it)


@triton.jit
def gate(z):
    """Replaced by the sigmoid's formula: (value, slope) at the scaled argument."""
    return z, z


# --- template ---
@triton.jit
def decide(a, b, active, steepness):
    """(alpha, slope, z slope, d, crisp) of the exchange of a and b: see `_decide` in reference.py, line by line."""
    d = b - a
    known = (a == a) & (b == b)
    crisp = (known & ((d - d) != 0)) | (active == 0)
    order = (b >= a) | (active == 0)
    d = tl.where(crisp, 0.0, d)
    z = steepness * d
    far = tl.abs(z) > 1e18
    z = tl.where(far, tl.where(z > 0, 1e18, -1e18).to(d.dtype), z)
    value, slope = gate(z)
    slope = tl.where(crisp | far, 0.0, slope).to(d.dtype)
    alpha = tl.where(crisp, tl.where(order, 1.0, 0.0), tl.where(z == z, value, z)).to(d.dtype)
    return alpha, slope, z * slope, d, crisp


@triton.jit
def mixed(own, other, alpha, crisp):
    """The item that stays in place with probability alpha."""
    return tl.where(crisp, tl.where(alpha == 1.0, own, other), alpha * own + (1.0 - alpha) * other)


@triton.jit
def partners(layer, t, base, m, total, table_ptr, depth, width, ODD_EVEN: tl.constexpr, FIXED: tl.constexpr):
    """(partner, is_first, active) of each place t in this layer. m: items of the row, as a column."""
    if ODD_EVEN:
        odd = layer & 1
        other = ((t + odd) ^ 1) - odd
        first = t < other
        last = tl.maximum(t, other)
        active = (other >= 0) & (last < m)
        if not FIXED:
            active = active & (layer < m)
        partner = tl.maximum(tl.minimum(other, width - 1), 0)
    else:
        mask = tl.load(table_ptr + layer)
        need = tl.load(table_ptr + depth + layer)
        partner = t ^ mask
        first = t < partner
        active = (base + tl.minimum(t, partner) >= total - m) & (m >= need)
    return partner, first, active


@triton.jit
def sort_forward_kernel(
    x_ptr, payload_ptr, values_ptr, sorted_ptr, length_ptr, steepness_ptr, table_ptr, depth,
    rows, n, channels, begin, end, total,
    ODD_EVEN: tl.constexpr, FIXED: tl.constexpr, MASKED: tl.constexpr, PAYLOAD: tl.constexpr,
    CHUNKS: tl.constexpr, R: tl.constexpr, T: tl.constexpr,
):  # fmt: skip
    """Layers begin..end on rows of n items. Bitonic: place = item + total - n, chunk by chunk of T places."""
    pid = tl.program_id(0)
    base = (pid % CHUNKS) * T
    line = (pid // CHUNKS) * R + tl.arange(0, R).to(tl.int64)[:, None]
    row = line // channels
    channel = line % channels
    t = tl.arange(0, T)[None, :]
    item = base + t - (0 if ODD_EVEN else total - n)
    inside = (line < rows) & (item >= 0) & (item < n)
    x = tl.load(x_ptr + row * n + item, mask=inside, other=0.0)
    if PAYLOAD:
        p = tl.load(payload_ptr + (row * n + item) * channels + channel, mask=inside, other=0.0)
    m = tl.load(length_ptr + row, mask=line < rows, other=0) if MASKED else n + tl.zeros([R, 1], tl.int32)
    steepness = tl.load(steepness_ptr)
    for layer in range(begin, end):
        partner, first, active = partners(layer, t, base, m, total, table_ptr, depth, T, ODD_EVEN, FIXED)
        where = tl.broadcast_to(partner, [R, T])
        y = tl.gather(x, where, 1)
        alpha, _, _, _, crisp = decide(tl.where(first, x, y), tl.where(first, y, x), active, steepness)
        x = mixed(x, y, alpha, crisp)
        if PAYLOAD:
            p = alpha * p + (1.0 - alpha) * tl.gather(p, where, 1)
    tl.store(values_ptr + row * n + item, x, mask=inside & (channel == 0))
    if PAYLOAD:
        tl.store(sorted_ptr + (row * n + item) * channels + channel, p, mask=inside)


@triton.jit
def sort_backward_kernel(
    x_ptr, payload_ptr, length_ptr, steepness_ptr, table_ptr, depth, grad_ptr, grad_sorted_ptr,
    grad_x_ptr, grad_payload_ptr, grad_steepness_ptr, scratch_ptr,
    rows, n, channels, begin, end, total, tiles, segment, segments, programs,
    ODD_EVEN: tl.constexpr, FIXED: tl.constexpr, MASKED: tl.constexpr, PAYLOAD: tl.constexpr,
    CHUNKS: tl.constexpr, R: tl.constexpr, T: tl.constexpr,
):  # fmt: skip
    """Gradients of layers begin..end: recompute a segment of layers into this program's scratch, then walk it back.

    The gradient of the items comes once per channel (line), to be summed; that of the values goes in at channel 0.
    """
    pid = tl.program_id(0)
    STATES: tl.constexpr = 2 if PAYLOAD else 1
    slot = tl.arange(0, R).to(tl.int64)[:, None] * T
    scratch_ptr += pid.to(tl.int64) * (segment + segments) * STATES * R * T
    kept_ptr = scratch_ptr + segment * STATES * R * T
    t = tl.arange(0, T)[None, :]
    steepness = tl.load(steepness_ptr)
    steep = tl.zeros([R, T], x_ptr.dtype.element_ty)
    for tile in range(pid, tiles, programs):
        base = (tile % CHUNKS) * T
        line = (tile // CHUNKS) * R + tl.arange(0, R).to(tl.int64)[:, None]
        row = line // channels
        channel = line % channels
        item = base + t - (0 if ODD_EVEN else total - n)
        inside = (line < rows) & (item >= 0) & (item < n)
        x = tl.load(x_ptr + row * n + item, mask=inside, other=0.0)
        if PAYLOAD:
            p = tl.load(payload_ptr + (row * n + item) * channels + channel, mask=inside, other=0.0)
        m = tl.load(length_ptr + row, mask=line < rows, other=0) if MASKED else n + tl.zeros([R, 1], tl.int32)
        # Checkpoints: the state before each segment but the first
        for index in range(0, segments - 1):
            for layer in range(begin + index * segment, begin + (index + 1) * segment):
                partner, first, active = partners(layer, t, base, m, total, table_ptr, depth, T, ODD_EVEN, FIXED)
                where = tl.broadcast_to(partner, [R, T])
                y = tl.gather(x, where, 1)
                alpha, _, _, _, crisp = decide(tl.where(first, x, y), tl.where(first, y, x), active, steepness)
                x = mixed(x, y, alpha, crisp)
                if PAYLOAD:
                    p = alpha * p + (1.0 - alpha) * tl.gather(p, where, 1)
            kept = kept_ptr + (index + 1) * STATES * R * T + slot + t
            tl.store(kept, x)
            if PAYLOAD:
                tl.store(kept + R * T, p)
        g = tl.load(grad_ptr + row * n + item, mask=inside & (channel == 0), other=0.0)
        if PAYLOAD:
            h = tl.load(grad_sorted_ptr + (row * n + item) * channels + channel, mask=inside, other=0.0)
        for back in range(0, segments):
            index = segments - 1 - back
            low = begin + index * segment
            high = tl.minimum(low + segment, end)
            if back > 0:
                if index > 0:
                    kept = kept_ptr + index * STATES * R * T + slot + t
                    x = tl.load(kept)
                    if PAYLOAD:
                        p = tl.load(kept + R * T)
                else:
                    x = tl.load(x_ptr + row * n + item, mask=inside, other=0.0)
                    if PAYLOAD:
                        p = tl.load(payload_ptr + (row * n + item) * channels + channel, mask=inside, other=0.0)
            tl.debug_barrier()
            for layer in range(low, high):
                state = scratch_ptr + (layer - low) * STATES * R * T + slot + t
                tl.store(state, x)
                if PAYLOAD:
                    tl.store(state + R * T, p)
                partner, first, active = partners(layer, t, base, m, total, table_ptr, depth, T, ODD_EVEN, FIXED)
                where = tl.broadcast_to(partner, [R, T])
                y = tl.gather(x, where, 1)
                alpha, _, _, _, crisp = decide(tl.where(first, x, y), tl.where(first, y, x), active, steepness)
                x = mixed(x, y, alpha, crisp)
                if PAYLOAD:
                    p = alpha * p + (1.0 - alpha) * tl.gather(p, where, 1)
            tl.debug_barrier()
            for step in range(0, high - low):
                layer = high - 1 - step
                partner, first, active = partners(layer, t, base, m, total, table_ptr, depth, T, ODD_EVEN, FIXED)
                where = tl.broadcast_to(partner, [R, T])
                state = scratch_ptr + (layer - low) * STATES * R * T + slot
                own = tl.load(state + t)
                other = tl.load(state + where)
                a = tl.where(first, own, other)
                b = tl.where(first, other, own)
                alpha, slope, z_slope, d, _ = decide(a, b, active, steepness)
                across = tl.gather(g, where, 1)
                turn = tl.where(first, 1.0, -1.0).to(g.dtype)
                # g by d is -(g_first - g_second) z' for the items, for the payload as its own difference says
                fall = turn * (across - g)
                by_d = fall * z_slope
                by_steepness = fall * (slope * d) * d
                g = alpha * g + (1.0 - alpha) * across
                if PAYLOAD:
                    drop = turn * (tl.load(state + R * T + t) - tl.load(state + R * T + where))
                    beyond = tl.gather(h, where, 1)
                    weight = turn * (h - beyond) * drop * slope
                    by_d += weight * steepness
                    by_steepness += weight * d
                    h = alpha * h + (1.0 - alpha) * beyond
                g -= turn * by_d
                steep += tl.where(first, by_steepness, 0.0)
        tl.store(grad_x_ptr + line * n + item, g, mask=inside)
        if PAYLOAD:
            tl.store(grad_payload_ptr + (row * n + item) * channels + channel, h, mask=inside)
    tl.store(grad_steepness_ptr + pid, tl.sum(tl.sum(steep, 1), 0))


@triton.jit
def far_pairs(m, n, bit, mask, need, total, BLOCK: tl.constexpr):
    """(low, high, has_low, has_high, active): items that meet in a layer whose partners are 2^bit places or more apart."""
    pair = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    place = ((pair >> bit) << (bit + 1)) | (pair & ((1 << bit) - 1))
    low = place - (total - n)
    high = (place ^ mask) - (total - n)
    live = pair < total // 2
    return low, high, live & (low >= 0), live & (high >= 0), (low >= n - m) & (m >= need)


@triton.jit
def far_forward_kernel(
    x_ptr, payload_ptr, values_ptr, sorted_ptr, length_ptr, steepness_ptr, n, bit, mask, need, total,
    MASKED: tl.constexpr, PAYLOAD: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """One bitonic layer whose partners are too far apart for one program: lines of n items, through memory."""
    line = tl.program_id(1).to(tl.int64)
    m = tl.load(length_ptr + line) if MASKED else n
    low, high, has_low, has_high, active = far_pairs(m, n, bit, mask, need, total, BLOCK)
    low += line * n
    high += line * n
    a = tl.load(x_ptr + low, mask=has_low, other=0.0)
    b = tl.load(x_ptr + high, mask=has_high, other=0.0)
    alpha, _, _, _, crisp = decide(a, b, active, tl.load(steepness_ptr))
    tl.store(values_ptr + low, mixed(a, b, alpha, crisp), mask=has_low)
    tl.store(values_ptr + high, mixed(b, a, alpha, crisp), mask=has_high)
    if PAYLOAD:
        p = tl.load(payload_ptr + low, mask=has_low, other=0.0)
        q = tl.load(payload_ptr + high, mask=has_high, other=0.0)
        tl.store(sorted_ptr + low, alpha * p + (1.0 - alpha) * q, mask=has_low)
        tl.store(sorted_ptr + high, alpha * q + (1.0 - alpha) * p, mask=has_high)


@triton.jit
def far_backward_kernel(
    x_ptr, payload_ptr, length_ptr, steepness_ptr, grad_ptr, grad_sorted_ptr,
    grad_x_ptr, grad_payload_ptr, grad_steepness_ptr, n, bit, mask, need, total,
    MASKED: tl.constexpr, PAYLOAD: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """The gradients of `far_forward_kernel`, from the items before its layer."""
    line = tl.program_id(1).to(tl.int64)
    m = tl.load(length_ptr + line) if MASKED else n
    low, high, has_low, has_high, active = far_pairs(m, n, bit, mask, need, total, BLOCK)
    low += line * n
    high += line * n
    a = tl.load(x_ptr + low, mask=has_low, other=0.0)
    b = tl.load(x_ptr + high, mask=has_high, other=0.0)
    steepness = tl.load(steepness_ptr)
    alpha, slope, z_slope, d, _ = decide(a, b, active, steepness)
    g = tl.load(grad_ptr + low, mask=has_low, other=0.0)
    h = tl.load(grad_ptr + high, mask=has_high, other=0.0)
    by_d = (h - g) * z_slope
    by_steepness = (h - g) * (slope * d) * d
    if PAYLOAD:
        p = tl.load(payload_ptr + low, mask=has_low, other=0.0)
        q = tl.load(payload_ptr + high, mask=has_high, other=0.0)
        u = tl.load(grad_sorted_ptr + low, mask=has_low, other=0.0)
        v = tl.load(grad_sorted_ptr + high, mask=has_high, other=0.0)
        weight = (u - v) * (p - q) * slope
        by_d += weight * steepness
        by_steepness += weight * d
        tl.store(grad_payload_ptr + low, alpha * u + (1.0 - alpha) * v, mask=has_low)
        tl.store(grad_payload_ptr + high, alpha * v + (1.0 - alpha) * u, mask=has_high)
    tl.store(grad_x_ptr + low, alpha * g + (1.0 - alpha) * h - by_d, mask=has_low)
    tl.store(grad_x_ptr + high, alpha * h + (1.0 - alpha) * g + by_d, mask=has_high)
    place = tl.program_id(1) * tl.num_programs(0) + tl.program_id(0)
    tl.store(grad_steepness_ptr + place, tl.sum(by_steepness, 0))

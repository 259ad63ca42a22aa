"""Template of the bitonic kernels; `exchange_device.py` comes before it, and `bitonic.py` launches it.

A line is a row of the user's, or one channel of it if there is a payload: the items are recomputed for each channel,
nothing is exchanged between channels, and the gradients of the items are summed afterwards.
"""

# pyright: reportAttributeAccessIssue=false, reportAssignmentType=false, reportOperatorIssue=false
import triton
import triton.language as tl

from algonet.core.codegen.triton_math import kernel

from .exchange_device import clamp_inf, decide, finite_only, infinities, mixed, restore_inf, share

# --- template ---


@triton.jit
def places(tile, u, local, lines, n, channels, total, CHUNKS: tl.constexpr, LINES: tl.constexpr, BLOCKS: tl.constexpr,
           E: tl.constexpr):  # fmt: skip
    """(first place, line, row, channel, item, whether there is such a line, and such an item) of a program's tile."""
    base = (tile % CHUNKS) * BLOCKS * E
    line = (tile // CHUNKS) * LINES + (u // BLOCKS).to(tl.int64)
    item = base + local - (total - n)
    live = line < lines
    return base, line, line // channels, line % channels, item, live, live & (item >= 0)


@triton.jit
def partners(a, b, buffer, t, local, mask, STORED: tl.constexpr, PAYLOAD: tl.constexpr, E: tl.constexpr,
             ROWS: tl.constexpr):  # fmt: skip
    """a and, with a payload, b at the places local ^ mask: by shuffles inside a row of E places, else through the buffer, where
    they may be stored already."""
    if mask < E:
        where = tl.broadcast_to(t ^ mask, [E, ROWS])
        y = tl.gather(a, where, 0)
        r = y
        if PAYLOAD:
            r = tl.gather(b, where, 0)
    else:
        tl.debug_barrier()
        if not STORED:
            tl.store(buffer + local, a)
            if PAYLOAD:
                tl.store(buffer + ROWS * E + local, b)
            tl.debug_barrier()
        y = tl.load(buffer + (local ^ mask))
        r = y
        if PAYLOAD:
            r = tl.load(buffer + ROWS * E + (local ^ mask))
    return y, r


@triton.jit
def meeting(table_ptr, depth, layer, base, local, total, m):
    """(mask, partner, which of both is first, whether they meet) of each place in a layer."""
    mask = tl.load(table_ptr + layer)
    need = tl.load(table_ptr + depth + layer)
    other = local ^ mask
    return mask, other, local < other, (base + tl.minimum(local, other) >= total - m) & (m >= need)


@triton.jit
def one_layer(
    x, p, buffer, table_ptr, depth, layer, base, t, local, total, m, steepness,
    STORED: tl.constexpr, LIGHT: tl.constexpr, PAYLOAD: tl.constexpr, E: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """Items and payload after a layer."""
    mask, _other, first, active = meeting(table_ptr, depth, layer, base, local, total, m)
    y, r = partners(x, p, buffer, t, local, mask, STORED, PAYLOAD, E, ROWS)
    alpha = share(tl.where(first, y - x, x - y), active, steepness, LIGHT)
    if PAYLOAD:
        p = mixed(p, r, alpha)
    return mixed(x, y, alpha), p


@triton.jit
def load_tile(
    x_ptr, payload_ptr, length_ptr, row, channel, item, live, inside, n, channels,
    MASKED: tl.constexpr, PAYLOAD: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """(items as given, clamp_inf, payload, length) of each line."""
    given = tl.load(x_ptr + row * n + item, mask=inside, other=0.0)
    x = clamp_inf(given)
    p = x
    if PAYLOAD:
        p = tl.load(payload_ptr + (row * n + item) * channels + channel, mask=inside, other=0.0)
    return given, x, p, tl.load(length_ptr + row, mask=live, other=0) if MASKED else n + tl.zeros([1, ROWS], tl.int32)


@kernel
def bitonic_forward_kernel(
    x_ptr, payload_ptr, values_ptr, sorted_ptr, length_ptr, steepness_ptr, table_ptr, scratch_ptr,
    lines, n, channels, begin, end, depth, total,
    LIGHT: tl.constexpr, MASKED: tl.constexpr, PAYLOAD: tl.constexpr,
    CHUNKS: tl.constexpr, LINES: tl.constexpr, BLOCKS: tl.constexpr, E: tl.constexpr,
):  # fmt: skip
    """Bitonic layers begin..end. Place = item + total - n; a line is CHUNKS programs of BLOCKS rows of E places."""
    pid = tl.program_id(0)
    ROWS: tl.constexpr = LINES * BLOCKS
    u = tl.arange(0, ROWS)[None, :]
    t = tl.arange(0, E)[:, None]
    local = (u % BLOCKS) * E + t
    base, _line, row, channel, item, live, inside = places(
        pid, u, local, lines, n, channels, total, CHUNKS, LINES, BLOCKS, E
    )
    given, x, p, m = load_tile(
        x_ptr, payload_ptr, length_ptr, row, channel, item, live, inside, n, channels, MASKED, PAYLOAD, ROWS
    )
    infinite = infinities(given)
    steepness = tl.load(steepness_ptr)
    buffer = scratch_ptr + pid.to(tl.int64) * 2 * ROWS * E + (u // BLOCKS) * BLOCKS * E
    for layer in range(begin, end):
        x, p = one_layer(
            x, p, buffer, table_ptr, depth, layer, base, t, local, total, m, steepness, False, LIGHT, PAYLOAD, E, ROWS
        )
    tl.store(values_ptr + row * n + item, restore_inf(x, infinite), mask=inside & (channel == 0))
    if PAYLOAD:
        tl.store(sorted_ptr + (row * n + item) * channels + channel, p, mask=inside)


@kernel
def bitonic_backward_kernel(
    x_ptr, payload_ptr, length_ptr, steepness_ptr, table_ptr, grad_ptr, grad_sorted_ptr,
    grad_x_ptr, grad_payload_ptr, grad_steepness_ptr, scratch_ptr,
    lines, n, channels, begin, end, depth, total, tiles, programs,
    LIGHT: tl.constexpr, MASKED: tl.constexpr, PAYLOAD: tl.constexpr, STEEP: tl.constexpr,
    CHUNKS: tl.constexpr, LINES: tl.constexpr, BLOCKS: tl.constexpr, E: tl.constexpr,
):  # fmt: skip
    """Gradients of `bitonic_forward_kernel`: recompute all layers into scratch, then walk back."""
    pid = tl.program_id(0)
    ROWS: tl.constexpr = LINES * BLOCKS
    STATES: tl.constexpr = 2 if PAYLOAD else 1
    u = tl.arange(0, ROWS)[None, :]
    t = tl.arange(0, E)[:, None]
    local = (u % BLOCKS) * E + t
    steepness = tl.load(steepness_ptr)
    steep = tl.zeros([E, ROWS], x_ptr.dtype.element_ty)
    # This program's scratch: the gradients that travel, then every layer
    buffer = scratch_ptr + pid.to(tl.int64) * (end - begin + 1) * STATES * ROWS * E + (u // BLOCKS) * BLOCKS * E
    for tile in range(pid, tiles, programs):
        base, line, row, channel, item, live, inside = places(
            tile, u, local, lines, n, channels, total, CHUNKS, LINES, BLOCKS, E
        )
        _given, x, p, m = load_tile(
            x_ptr, payload_ptr, length_ptr, row, channel, item, live, inside, n, channels, MASKED, PAYLOAD, ROWS
        )
        tl.debug_barrier()
        for layer in range(begin, end):
            state = buffer + (layer - begin + 1) * STATES * ROWS * E
            tl.store(state + local, x)
            if PAYLOAD:
                tl.store(state + ROWS * E + local, p)
            x, p = one_layer(
                x, p, state, table_ptr, depth, layer, base, t, local, total, m, steepness, True, LIGHT, PAYLOAD, E, ROWS
            )
        g = tl.load(grad_ptr + row * n + item, mask=inside & (channel == 0), other=0.0)
        h = g
        if PAYLOAD:
            h = tl.load(grad_sorted_ptr + (row * n + item) * channels + channel, mask=inside, other=0.0)
        tl.debug_barrier()
        for step in range(end - begin):
            layer = end - 1 - step
            state = buffer + (layer - begin + 1) * STATES * ROWS * E
            mask, other, first, active = meeting(table_ptr, depth, layer, base, local, total, m)
            x = tl.load(state + local)
            y = tl.load(state + other)
            across, beyond = partners(g, h, buffer, t, local, mask, False, PAYLOAD, E, ROWS)
            alpha, slope, d = decide(tl.where(first, y - x, x - y), active, steepness, LIGHT)
            turn = tl.where(first, 1.0, -1.0).to(g.dtype)
            # The items differ by -d, so the decision feels -(g_first - g_second) d
            weight = turn * (across - g) * d
            if PAYLOAD:
                drop = tl.load(state + ROWS * E + local) - tl.load(state + ROWS * E + other)
                weight += (h - beyond) * drop
                h = mixed(h, beyond, alpha)
            g = mixed(g, across, alpha) - turn * weight * (slope * steepness)
            if STEEP:
                steep += tl.where(first & live, weight * (slope * d), 0.0)
        if begin == 0:
            g = finite_only(g, tl.load(x_ptr + row * n + item, mask=inside, other=0.0))
        tl.store(grad_x_ptr + line * n + item, g, mask=inside)
        if PAYLOAD:
            tl.store(grad_payload_ptr + (row * n + item) * channels + channel, h, mask=inside)
        tl.debug_barrier()
    if STEEP:
        tl.store(grad_steepness_ptr + pid, tl.sum(tl.sum(steep, 1), 0))


@triton.jit
def far_pairs(x_ptr, length_ptr, n, bit, mask, need, total, MASKED: tl.constexpr, BLOCK: tl.constexpr):
    """((places of the items that meet in a layer whose partners are 2^bit places or more apart, whether there are such items),
    whether they meet, first, second)."""
    line = tl.program_id(1).to(tl.int64)
    m = tl.load(length_ptr + line) if MASKED else n
    pair = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    place = ((pair >> bit) << (bit + 1)) | (pair & ((1 << bit) - 1))
    low, high = place - (total - n), (place ^ mask) - (total - n)
    live = pair < total // 2
    both = low + line * n, high + line * n, live & (low >= 0), live & (high >= 0)
    a, b = load_both(x_ptr, both)
    return both, (low >= n - m) & (m >= need), a, b


@triton.jit
def load_both(base, both):
    return tl.load(base + both[0], mask=both[2], other=0.0), tl.load(base + both[1], mask=both[3], other=0.0)


@triton.jit
def store_both(base, both, first, second):
    tl.store(base + both[0], first, mask=both[2])
    tl.store(base + both[1], second, mask=both[3])


@kernel
def far_forward_kernel(
    x_ptr, payload_ptr, values_ptr, sorted_ptr, length_ptr, steepness_ptr, n, bit, mask, need, total,
    LIGHT: tl.constexpr, MASKED: tl.constexpr, PAYLOAD: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """One bitonic layer whose partners are too far apart for one program: lines of n items, through memory."""
    both, active, a, b = far_pairs(x_ptr, length_ptr, n, bit, mask, need, total, MASKED, BLOCK)
    infinite = infinities(a) + infinities(b)
    a, b = clamp_inf(a), clamp_inf(b)
    alpha = share(b - a, active, tl.load(steepness_ptr), LIGHT)
    store_both(values_ptr, both, restore_inf(mixed(a, b, alpha), infinite), restore_inf(mixed(b, a, alpha), infinite))
    if PAYLOAD:
        p, q = load_both(payload_ptr, both)
        store_both(sorted_ptr, both, mixed(p, q, alpha), mixed(q, p, alpha))


@kernel
def far_backward_kernel(
    x_ptr, payload_ptr, length_ptr, steepness_ptr, grad_ptr, grad_sorted_ptr,
    grad_x_ptr, grad_payload_ptr, grad_steepness_ptr, n, bit, mask, need, total,
    LIGHT: tl.constexpr, MASKED: tl.constexpr, PAYLOAD: tl.constexpr, STEEP: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """The gradients of `far_forward_kernel`, from the items before its layer."""
    both, active, a, b = far_pairs(x_ptr, length_ptr, n, bit, mask, need, total, MASKED, BLOCK)
    steepness = tl.load(steepness_ptr)
    alpha, slope, d = decide(clamp_inf(b) - clamp_inf(a), active, steepness, LIGHT)
    g, h = load_both(grad_ptr, both)
    weight = (h - g) * d
    if PAYLOAD:
        p, q = load_both(payload_ptr, both)
        u, v = load_both(grad_sorted_ptr, both)
        weight += (u - v) * (p - q)
        store_both(grad_payload_ptr, both, mixed(u, v, alpha), mixed(v, u, alpha))
    pull = weight * (slope * steepness)
    store_both(grad_x_ptr, both, mixed(g, h, alpha) - pull, mixed(h, g, alpha) + pull)
    if STEEP:
        place = tl.program_id(1) * tl.num_programs(0) + tl.program_id(0)
        tl.store(grad_steepness_ptr + place, tl.sum(weight * (slope * d), 0))

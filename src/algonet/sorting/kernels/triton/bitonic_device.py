"""Template of the bitonic kernels; `exchange_device.py` comes before it, and `bitonic.py` launches it.

A line is a row of the user's, or one channel of it if there is a payload: the items are recomputed for each channel,
nothing is exchanged between channels, and the gradients of the items are summed afterwards.
"""

# pyright: reportAttributeAccessIssue=false, reportAssignmentType=false, reportOperatorIssue=false
import triton
import triton.language as tl

from algonet.core.codegen.triton_math import kernel

from .exchange_device import decide, finite_only, freed, infinities, mixed, share, tamed

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
    x = tl.load(x_ptr + row * n + item, mask=inside, other=0.0)
    infinite = infinities(x)
    x = tamed(x)
    p = x
    if PAYLOAD:
        p = tl.load(payload_ptr + (row * n + item) * channels + channel, mask=inside, other=0.0)
    m = tl.load(length_ptr + row, mask=live, other=0) if MASKED else n + tl.zeros([1, ROWS], tl.int32)
    steepness = tl.load(steepness_ptr)
    buffer = scratch_ptr + pid.to(tl.int64) * 2 * ROWS * E + (u // BLOCKS) * BLOCKS * E
    for layer in range(begin, end):
        mask = tl.load(table_ptr + layer)
        need = tl.load(table_ptr + depth + layer)
        y, r = partners(x, p, buffer, t, local, mask, False, PAYLOAD, E, ROWS)
        other = local ^ mask
        first = local < other
        active = (base + tl.minimum(local, other) >= total - m) & (m >= need)
        alpha = share(tl.where(first, y - x, x - y), active, steepness, LIGHT)
        x = mixed(x, y, alpha)
        if PAYLOAD:
            p = alpha * p + (1.0 - alpha) * r
    tl.store(values_ptr + row * n + item, freed(x, infinite), mask=inside & (channel == 0))
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
        x = tamed(tl.load(x_ptr + row * n + item, mask=inside, other=0.0))
        p = x
        if PAYLOAD:
            p = tl.load(payload_ptr + (row * n + item) * channels + channel, mask=inside, other=0.0)
        m = tl.load(length_ptr + row, mask=live, other=0) if MASKED else n + tl.zeros([1, ROWS], tl.int32)
        tl.debug_barrier()
        for layer in range(begin, end):
            state = buffer + (layer - begin + 1) * STATES * ROWS * E
            tl.store(state + local, x)
            if PAYLOAD:
                tl.store(state + ROWS * E + local, p)
            mask = tl.load(table_ptr + layer)
            need = tl.load(table_ptr + depth + layer)
            y, r = partners(x, p, state, t, local, mask, True, PAYLOAD, E, ROWS)
            other = local ^ mask
            first = local < other
            active = (base + tl.minimum(local, other) >= total - m) & (m >= need)
            alpha = share(tl.where(first, y - x, x - y), active, steepness, LIGHT)
            x = mixed(x, y, alpha)
            if PAYLOAD:
                p = alpha * p + (1.0 - alpha) * r
        g = tl.load(grad_ptr + row * n + item, mask=inside & (channel == 0), other=0.0)
        h = g
        if PAYLOAD:
            h = tl.load(grad_sorted_ptr + (row * n + item) * channels + channel, mask=inside, other=0.0)
        tl.debug_barrier()
        for step in range(end - begin):
            layer = end - 1 - step
            state = buffer + (layer - begin + 1) * STATES * ROWS * E
            mask = tl.load(table_ptr + layer)
            need = tl.load(table_ptr + depth + layer)
            other = local ^ mask
            first = local < other
            active = (base + tl.minimum(local, other) >= total - m) & (m >= need)
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
def far_pairs(m, n, bit, mask, need, total, BLOCK: tl.constexpr):
    """(low, high, has_low, has_high, active): items that meet in a layer whose partners are 2^bit places or more apart."""
    pair = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    place = ((pair >> bit) << (bit + 1)) | (pair & ((1 << bit) - 1))
    low = place - (total - n)
    high = (place ^ mask) - (total - n)
    live = pair < total // 2
    return low, high, live & (low >= 0), live & (high >= 0), (low >= n - m) & (m >= need)


@kernel
def far_forward_kernel(
    x_ptr, payload_ptr, values_ptr, sorted_ptr, length_ptr, steepness_ptr, n, bit, mask, need, total,
    LIGHT: tl.constexpr, MASKED: tl.constexpr, PAYLOAD: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """One bitonic layer whose partners are too far apart for one program: lines of n items, through memory."""
    line = tl.program_id(1).to(tl.int64)
    m = tl.load(length_ptr + line) if MASKED else n
    low, high, has_low, has_high, active = far_pairs(m, n, bit, mask, need, total, BLOCK)
    low += line * n
    high += line * n
    a = tl.load(x_ptr + low, mask=has_low, other=0.0)
    b = tl.load(x_ptr + high, mask=has_high, other=0.0)
    infinite = infinities(a) + infinities(b)
    a, b = tamed(a), tamed(b)
    alpha = share(b - a, active, tl.load(steepness_ptr), LIGHT)
    tl.store(values_ptr + low, freed(mixed(a, b, alpha), infinite), mask=has_low)
    tl.store(values_ptr + high, freed(mixed(b, a, alpha), infinite), mask=has_high)
    if PAYLOAD:
        p = tl.load(payload_ptr + low, mask=has_low, other=0.0)
        q = tl.load(payload_ptr + high, mask=has_high, other=0.0)
        tl.store(sorted_ptr + low, alpha * p + (1.0 - alpha) * q, mask=has_low)
        tl.store(sorted_ptr + high, alpha * q + (1.0 - alpha) * p, mask=has_high)


@kernel
def far_backward_kernel(
    x_ptr, payload_ptr, length_ptr, steepness_ptr, grad_ptr, grad_sorted_ptr,
    grad_x_ptr, grad_payload_ptr, grad_steepness_ptr, n, bit, mask, need, total,
    LIGHT: tl.constexpr, MASKED: tl.constexpr, PAYLOAD: tl.constexpr, STEEP: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """The gradients of `far_forward_kernel`, from the items before its layer."""
    line = tl.program_id(1).to(tl.int64)
    m = tl.load(length_ptr + line) if MASKED else n
    low, high, has_low, has_high, active = far_pairs(m, n, bit, mask, need, total, BLOCK)
    low += line * n
    high += line * n
    a = tamed(tl.load(x_ptr + low, mask=has_low, other=0.0))
    b = tamed(tl.load(x_ptr + high, mask=has_high, other=0.0))
    steepness = tl.load(steepness_ptr)
    alpha, slope, d = decide(b - a, active, steepness, LIGHT)
    g = tl.load(grad_ptr + low, mask=has_low, other=0.0)
    h = tl.load(grad_ptr + high, mask=has_high, other=0.0)
    weight = (h - g) * d
    if PAYLOAD:
        p = tl.load(payload_ptr + low, mask=has_low, other=0.0)
        q = tl.load(payload_ptr + high, mask=has_high, other=0.0)
        u = tl.load(grad_sorted_ptr + low, mask=has_low, other=0.0)
        v = tl.load(grad_sorted_ptr + high, mask=has_high, other=0.0)
        weight += (u - v) * (p - q)
        tl.store(grad_payload_ptr + low, alpha * u + (1.0 - alpha) * v, mask=has_low)
        tl.store(grad_payload_ptr + high, alpha * v + (1.0 - alpha) * u, mask=has_high)
    pull = weight * (slope * steepness)
    tl.store(grad_x_ptr + low, mixed(g, h, alpha) - pull, mask=has_low)
    tl.store(grad_x_ptr + high, mixed(h, g, alpha) + pull, mask=has_high)
    if STEEP:
        place = tl.program_id(1) * tl.num_programs(0) + tl.program_id(0)
        tl.store(grad_steepness_ptr + place, tl.sum(weight * (slope * d), 0))

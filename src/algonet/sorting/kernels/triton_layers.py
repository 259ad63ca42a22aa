"""Template of the Triton kernels: `triton_gpu.py` puts the sigmoid's `gate` before it and loads both as one module.

A program holds a table of items in registers, each row of it inside one warp, where partners meet by shuffles
(`tl.gather`); what is farther away is exchanged through memory. A "line" is a row of the user's, or one channel of it
if there is a payload: the items are recomputed for each channel, nothing is exchanged between channels, and the
gradients of the items are summed afterwards.
"""

# pyright: reportAssignmentType=false, reportOperatorIssue=false
import triton
import triton.language as tl

from algonet.triton_math import atan  # noqa: F401  (formulas may use it)


@triton.jit
def gate(z):
    """Replaced by the sigmoid's formula: (value, slope) at the scaled argument."""
    return z, z


@triton.jit
def chance(z):
    """Replaced by the sigmoid's value alone, where that is cheaper than `gate`."""
    return z


# --- template ---
#: No kernel is specialised on its arguments' values or alignment: one compilation serves all, and launches are cheap.
PLAIN = [
    "x_ptr", "payload_ptr", "values_ptr", "sorted_ptr", "length_ptr", "steepness_ptr", "scratch_ptr", "table_ptr",
    "grad_ptr", "grad_sorted_ptr", "grad_x_ptr", "grad_payload_ptr", "grad_steepness_ptr", "kept_ptr",
    "lines", "n", "channels", "layers", "segment", "segments", "tiles", "programs", "begin", "end", "depth", "total",
    "bit", "mask", "need",
]  # fmt: skip


@triton.jit
def tamed(x):
    """x with the largest number for infinity: differences to it decide crisply, and 0 times it is 0."""
    if x.dtype == tl.float32:
        most = 3.4028234663852886e38
    else:
        most = 1.7976931348623157e308
    return tl.where(tl.abs(x) > most, tl.where(x > 0, most, -most).to(x.dtype), x)


@triton.jit
def freed(x, infinite):
    """`tamed` undone where there were infinite items."""
    if x.dtype == tl.float32:
        most = 3.4028234663852886e38
    else:
        most = 1.7976931348623157e308
    return tl.where((infinite > 0) & (tl.abs(x) >= most), x * 2.0, x)


@triton.jit
def infinities(x):
    """1 if an item is infinite, else 0."""
    return tl.max(((x - x != 0) & (x == x)).to(tl.int32))


@triton.jit
def share(a, b, active, steepness, LIGHT: tl.constexpr):
    """alpha: the probability that a, b are in order; 1 where they do not meet."""
    # Beyond 1e18 every sigmoid is flat; those with LIGHT tails come out as exactly 0 or 1 there by themselves
    z = tl.where(active, steepness * (b - a), 2e18).to(a.dtype)
    alpha = chance(z)
    if not LIGHT:
        alpha = tl.where(tl.abs(z) > 1e18, tl.where(z > 0, 1.0, 0.0), alpha)
    return alpha.to(a.dtype)


@triton.jit
def decide(a, b, active, steepness):
    """(alpha, slope, z slope, d) of the exchange of a and b, see `_decide` in reference.py."""
    d = b - a
    z = tl.where(active, steepness * d, 2e18).to(d.dtype)
    alpha, slope = gate(z)
    crisp = tl.abs(z) > 1e18
    alpha = tl.where(crisp, tl.where(z > 0, 1.0, 0.0), alpha).to(d.dtype)
    slope = tl.where(crisp, 0.0, slope).to(d.dtype)
    d = tl.where(crisp, 0.0, d).to(d.dtype)
    return alpha, slope, steepness * d * slope, d


@triton.jit
def mixed(own, other, alpha):
    """What stays in place with probability alpha."""
    return alpha * own + (1.0 - alpha) * other


@triton.jit
def pair(a, b, p, q, active, steepness, PAYLOAD: tl.constexpr, LIGHT: tl.constexpr):
    """Items a, b and their payload p, q after their exchange."""
    alpha = share(a, b, active, steepness, LIGHT)
    if PAYLOAD:
        p, q = mixed(p, q, alpha), mixed(q, p, alpha)
    return mixed(a, b, alpha), mixed(b, a, alpha), p, q


@triton.jit
def pair_back(a, b, p, q, ga, gb, gp, gq, active, steepness, PAYLOAD: tl.constexpr):
    """The gradients of a, b, p, q before their exchange from those after it, and its share in the steepness's."""
    alpha, slope, z_slope, d = decide(a, b, active, steepness)
    # The items differ by -d, so the decision feels -(ga - gb) d
    by_d = (gb - ga) * z_slope
    by_s = (gb - ga) * (slope * d) * d
    if PAYLOAD:
        weight = (gp - gq) * (p - q) * slope
        by_d += weight * steepness
        by_s += weight * d
        gp, gq = mixed(gp, gq, alpha), mixed(gq, gp, alpha)
    return mixed(ga, gb, alpha) - by_d, mixed(gb, ga, alpha) + by_d, gp, gq, by_s


@triton.jit
def load4(base, step, e, n, live):
    """Items e, e + 1, e + 2, e + 3 of a line of n, 0 outside."""
    inside = live & (e >= 0)
    a = tl.load(base + e * step, mask=inside & (e < n), other=0.0)
    b = tl.load(base + (e + 1) * step, mask=inside & (e + 1 < n), other=0.0)
    c = tl.load(base + (e + 2) * step, mask=inside & (e + 2 < n), other=0.0)
    d = tl.load(base + (e + 3) * step, mask=inside & (e + 3 < n), other=0.0)
    return a, b, c, d


@triton.jit
def store4(base, step, e, n, live, a, b, c, d):
    inside = live & (e >= 0)
    tl.store(base + e * step, a, mask=inside & (e < n))
    tl.store(base + (e + 1) * step, b, mask=inside & (e + 1 < n))
    tl.store(base + (e + 2) * step, c, mask=inside & (e + 2 < n))
    tl.store(base + (e + 3) * step, d, mask=inside & (e + 3 < n))


@triton.jit
def push4(state, SIZE: tl.constexpr, a, b, c, d):
    tl.store(state, a)
    tl.store(state + SIZE, b)
    tl.store(state + 2 * SIZE, c)
    tl.store(state + 3 * SIZE, d)


@triton.jit
def pop4(state, SIZE: tl.constexpr):
    return tl.load(state), tl.load(state + SIZE), tl.load(state + 2 * SIZE), tl.load(state + 3 * SIZE)


@triton.jit
def even_layer(a, b, c, d, p, q, r, s, e, m, runs, steepness, PAYLOAD: tl.constexpr, LIGHT: tl.constexpr):
    """Items (0, 1), (2, 3), ... meet."""
    inside = (e >= 0) & runs
    a, b, p, q = pair(a, b, p, q, inside & (e + 1 < m), steepness, PAYLOAD, LIGHT)
    c, d, r, s = pair(c, d, r, s, inside & (e + 3 < m), steepness, PAYLOAD, LIGHT)
    return a, b, c, d, p, q, r, s


@triton.jit
def odd_layer(
    a, b, c, d, p, q, r, s, e, m, runs, steepness, PAYLOAD: tl.constexpr, LIGHT: tl.constexpr, H: tl.constexpr
):
    """Items (1, 2), (3, 4), ... meet; d with the next a, which both sides compute so that no result travels."""
    i = tl.arange(0, H)[None, :]
    up = tl.broadcast_to(tl.minimum(i + 1, H - 1), a.shape)
    down = tl.broadcast_to(tl.maximum(i - 1, 0), a.shape)
    inside = (e >= 0) & runs
    a_next, d_last = tl.gather(a, up, 1), tl.gather(d, down, 1)
    p_next, s_last = a_next, d_last
    if PAYLOAD:
        p_next, s_last = tl.gather(p, up, 1), tl.gather(s, down, 1)
    b, c, q, r = pair(b, c, q, r, inside & (e + 2 < m), steepness, PAYLOAD, LIGHT)
    d, _, s, _ = pair(d, a_next, s, p_next, inside & (i < H - 1) & (e + 4 < m), steepness, PAYLOAD, LIGHT)
    _, a, _, p = pair(d_last, a, s_last, p, inside & (i > 0) & (e > 0) & (e < m), steepness, PAYLOAD, LIGHT)
    return a, b, c, d, p, q, r, s


@triton.jit(do_not_specialize=PLAIN)
def odd_even_forward_kernel(
    x_ptr, payload_ptr, values_ptr, sorted_ptr, length_ptr, steepness_ptr, scratch_ptr,
    lines, n, channels, layers, segment, segments,
    LIGHT: tl.constexpr, FIXED: tl.constexpr, MASKED: tl.constexpr, PAYLOAD: tl.constexpr, KEEP: tl.constexpr,
    LINES: tl.constexpr, GROUPS: tl.constexpr, H: tl.constexpr, CORE: tl.constexpr, HALO: tl.constexpr,
):  # fmt: skip
    """Odd-even transposition, four neighbours per thread. A line is GROUPS of CORE items with HALO more on either side.

    What happens at the rim of a group is wrong and creeps inwards by one item per layer; before it reaches the core,
    after `segment` <= HALO layers, the cores are exchanged through memory. With KEEP each of these states has its own
    place, (lines, segments - 1, 1 or 2, n), and is what backward starts from.
    """
    pid = tl.program_id(0)
    STATES: tl.constexpr = 2 if PAYLOAD else 1
    u = tl.arange(0, LINES * GROUPS)[:, None]
    i = tl.arange(0, H)[None, :]
    line = pid * LINES + (u // GROUPS).to(tl.int64)
    row = line // channels
    channel = line % channels
    e = (u % GROUPS) * CORE - HALO + 4 * i
    live = line < lines
    core = (4 * i >= HALO) & (4 * i < HALO + CORE)
    m = tl.load(length_ptr + row, mask=live, other=0) if MASKED else n + tl.zeros([LINES * GROUPS, 1], tl.int32)
    last = layers if FIXED else tl.minimum(m, layers)
    steepness = tl.load(steepness_ptr)
    a, b, c, d = load4(x_ptr + row * n, 1, e, n, live)
    infinite = infinities(a) + infinities(b) + infinities(c) + infinities(d)
    a, b, c, d = tamed(a), tamed(b), tamed(c), tamed(d)
    p, q, r, s = a, b, c, d
    if PAYLOAD:
        p, q, r, s = load4(payload_ptr + row * n * channels + channel, channels, e, n, live)
    for index in range(segments):
        for layer in range(index * segment, tl.minimum((index + 1) * segment, layers), 2):
            a, b, c, d, p, q, r, s = even_layer(a, b, c, d, p, q, r, s, e, m, layer < last, steepness, PAYLOAD, LIGHT)
            a, b, c, d, p, q, r, s = odd_layer(
                a, b, c, d, p, q, r, s, e, m, layer + 1 < last, steepness, PAYLOAD, LIGHT, H
            )
        if GROUPS > 1 or KEEP:  # noqa: SIM102 (constants, and a number of the program's)
            if index + 1 < segments:
                if KEEP:
                    buffer = scratch_ptr + (line * (segments - 1) + index) * STATES * n
                else:
                    # Two buffers in turn: one barrier keeps reading of this one and writing of the next apart
                    buffer = scratch_ptr + (line * 2 + index % 2) * STATES * n
                store4(buffer, 1, e, n, live & core, a, b, c, d)
                if PAYLOAD:
                    store4(buffer + n, 1, e, n, live & core, p, q, r, s)
                if GROUPS > 1:
                    tl.debug_barrier()
                    a, b, c, d = load4(buffer, 1, e, n, live)
                    if PAYLOAD:
                        p, q, r, s = load4(buffer + n, 1, e, n, live)
    a, b, c, d = freed(a, infinite), freed(b, infinite), freed(c, infinite), freed(d, infinite)
    store4(values_ptr + row * n, 1, e, n, live & core & (channel == 0), a, b, c, d)
    if PAYLOAD:
        store4(sorted_ptr + row * n * channels + channel, channels, e, n, live & core, p, q, r, s)


@triton.jit(do_not_specialize=PLAIN)
def odd_even_backward_kernel(
    x_ptr, payload_ptr, length_ptr, steepness_ptr, grad_ptr, grad_sorted_ptr,
    grad_x_ptr, grad_payload_ptr, grad_steepness_ptr, kept_ptr, scratch_ptr,
    lines, n, channels, layers, segment, segments, tiles, programs,
    LIGHT: tl.constexpr, FIXED: tl.constexpr, MASKED: tl.constexpr, PAYLOAD: tl.constexpr, STEEP: tl.constexpr,
    LINES: tl.constexpr, GROUPS: tl.constexpr, H: tl.constexpr, CORE: tl.constexpr, HALO: tl.constexpr,
):  # fmt: skip
    """Gradients: from the kept state before it, recompute each layer of a segment and walk back; the last one first.

    Here the rim creeps inwards twice, forth and back: `segment` <= HALO / 2. The gradient of the items comes once per
    line, to be summed over the channels; that of the values goes in at channel 0.
    """
    pid = tl.program_id(0)
    SIZE: tl.constexpr = LINES * GROUPS * H
    STATES: tl.constexpr = 2 if PAYLOAD else 1
    WIDTH: tl.constexpr = GROUPS * CORE
    LINE: tl.constexpr = LINES * WIDTH
    u = tl.arange(0, LINES * GROUPS)[:, None]
    i = tl.arange(0, H)[None, :]
    e = (u % GROUPS) * CORE - HALO + 4 * i
    core = (4 * i >= HALO) & (4 * i < HALO + CORE)
    up = tl.broadcast_to(tl.minimum(i + 1, H - 1), [LINES * GROUPS, H])
    down = tl.broadcast_to(tl.maximum(i - 1, 0), [LINES * GROUPS, H])
    steepness = tl.load(steepness_ptr)
    steep = tl.zeros([LINES * GROUPS, H], x_ptr.dtype.element_ty)
    # This program's scratch: two buffers of gradients, and every layer of one segment
    scratch_ptr += pid.to(tl.int64) * STATES * (2 * LINE + segment * 4 * SIZE)
    slope_ptr = scratch_ptr + (u // GROUPS) * WIDTH
    layer_ptr = scratch_ptr + 2 * STATES * LINE + u * H
    for tile in range(pid, tiles, programs):
        line = tile * LINES + (u // GROUPS).to(tl.int64)
        row = line // channels
        channel = line % channels
        live = line < lines
        m = tl.load(length_ptr + row, mask=live, other=0) if MASKED else n + tl.zeros([LINES * GROUPS, 1], tl.int32)
        last = layers if FIXED else tl.minimum(m, layers)
        ga, gb, gc, gd = load4(grad_ptr + row * n, 1, e, n, live & (channel == 0))
        gp, gq, gr, gs = ga, gb, gc, gd
        if PAYLOAD:
            gp, gq, gr, gs = load4(grad_sorted_ptr + row * n * channels + channel, channels, e, n, live)
        for back in range(segments):
            index = segments - 1 - back
            low = index * segment
            high = tl.minimum(low + segment, layers)
            if index > 0:
                kept = kept_ptr + (line * (segments - 1) + index - 1) * STATES * n
                a, b, c, d = load4(kept, 1, e, n, live)
                p, q, r, s = a, b, c, d
                if PAYLOAD:
                    p, q, r, s = load4(kept + n, 1, e, n, live)
            else:
                a, b, c, d = load4(x_ptr + row * n, 1, e, n, live)
                a, b, c, d = tamed(a), tamed(b), tamed(c), tamed(d)
                p, q, r, s = a, b, c, d
                if PAYLOAD:
                    p, q, r, s = load4(payload_ptr + row * n * channels + channel, channels, e, n, live)
            for layer in range(low, high, 2):
                state = layer_ptr + (layer - low) * STATES * 4 * SIZE + i
                push4(state, SIZE, a, b, c, d)
                if PAYLOAD:
                    push4(state + 4 * SIZE, SIZE, p, q, r, s)
                runs = layer < last
                a, b, c, d, p, q, r, s = even_layer(a, b, c, d, p, q, r, s, e, m, runs, steepness, PAYLOAD, LIGHT)
                if layer + 1 < high:
                    state += STATES * 4 * SIZE
                    push4(state, SIZE, a, b, c, d)
                    if PAYLOAD:
                        push4(state + 4 * SIZE, SIZE, p, q, r, s)
                    runs = layer + 1 < last
                    a, b, c, d, p, q, r, s = odd_layer(a, b, c, d, p, q, r, s, e, m, runs, steepness, PAYLOAD, LIGHT, H)
            tl.debug_barrier()
            state = layer_ptr + (high - 1 - low) * STATES * 4 * SIZE + i
            ahead_a, ahead_b, ahead_c, ahead_d = pop4(state, SIZE)
            ahead_p, ahead_q, ahead_r, ahead_s = ahead_a, ahead_b, ahead_c, ahead_d
            if PAYLOAD:
                ahead_p, ahead_q, ahead_r, ahead_s = pop4(state + 4 * SIZE, SIZE)
            for step in range(high - low):
                layer = high - 1 - step
                inside = (e >= 0) & (layer < last)
                a, b, c, d = ahead_a, ahead_b, ahead_c, ahead_d
                p, q, r, s = ahead_p, ahead_q, ahead_r, ahead_s
                # Fetch the layer before while this one is computed
                state = layer_ptr + tl.maximum(layer - 1 - low, 0) * STATES * 4 * SIZE + i
                ahead_a, ahead_b, ahead_c, ahead_d = pop4(state, SIZE)
                ahead_p, ahead_q, ahead_r, ahead_s = ahead_a, ahead_b, ahead_c, ahead_d
                if PAYLOAD:
                    ahead_p, ahead_q, ahead_r, ahead_s = pop4(state + 4 * SIZE, SIZE)
                if layer % 2 == 1:
                    a_next, d_last = tl.gather(a, up, 1), tl.gather(d, down, 1)
                    ga_next, gd_last = tl.gather(ga, up, 1), tl.gather(gd, down, 1)
                    p_next, s_last, gp_next, gs_last = a_next, d_last, ga_next, gd_last
                    if PAYLOAD:
                        p_next, s_last = tl.gather(p, up, 1), tl.gather(s, down, 1)
                        gp_next, gs_last = tl.gather(gp, up, 1), tl.gather(gs, down, 1)
                    holds = inside & (e + 2 < m)
                    gb, gc, gq, gr, by_s = pair_back(b, c, q, r, gb, gc, gq, gr, holds, steepness, PAYLOAD)
                    if STEEP:
                        steep += tl.where(core & live, by_s, 0.0)
                    holds = inside & (i < H - 1) & (e + 4 < m)
                    gd, _, gs, _, by_s = pair_back(
                        d, a_next, s, p_next, gd, ga_next, gs, gp_next, holds, steepness, PAYLOAD
                    )
                    if STEEP:
                        steep += tl.where(core & live, by_s, 0.0)
                    holds = inside & (i > 0) & (e > 0) & (e < m)
                    _, ga, _, gp, _ = pair_back(
                        d_last, a, s_last, p, gd_last, ga, gs_last, gp, holds, steepness, PAYLOAD
                    )
                else:
                    holds = inside & (e + 1 < m)
                    ga, gb, gp, gq, by_s = pair_back(a, b, p, q, ga, gb, gp, gq, holds, steepness, PAYLOAD)
                    if STEEP:
                        steep += tl.where(core & live, by_s, 0.0)
                    holds = inside & (e + 3 < m)
                    gc, gd, gr, gs, by_s = pair_back(c, d, r, s, gc, gd, gr, gs, holds, steepness, PAYLOAD)
                    if STEEP:
                        steep += tl.where(core & live, by_s, 0.0)
            if GROUPS > 1:  # noqa: SIM102
                if index > 0:
                    kept = slope_ptr + (index % 2) * STATES * LINE
                    store4(kept, 1, e, WIDTH, core, ga, gb, gc, gd)
                    if PAYLOAD:
                        store4(kept + LINE, 1, e, WIDTH, core, gp, gq, gr, gs)
                    tl.debug_barrier()
                    ga, gb, gc, gd = load4(kept, 1, e, n, live)
                    if PAYLOAD:
                        gp, gq, gr, gs = load4(kept + LINE, 1, e, n, live)
            tl.debug_barrier()
        store4(grad_x_ptr + line * n, 1, e, n, live & core, ga, gb, gc, gd)
        if PAYLOAD:
            store4(grad_payload_ptr + row * n * channels + channel, channels, e, n, live & core, gp, gq, gr, gs)
    if STEEP:
        tl.store(grad_steepness_ptr + pid, tl.sum(tl.sum(steep, 1), 0))


@triton.jit(do_not_specialize=PLAIN)
def bitonic_forward_kernel(
    x_ptr, payload_ptr, values_ptr, sorted_ptr, length_ptr, steepness_ptr, table_ptr, scratch_ptr,
    lines, n, channels, begin, end, depth, total,
    LIGHT: tl.constexpr, MASKED: tl.constexpr, PAYLOAD: tl.constexpr,
    CHUNKS: tl.constexpr, LINES: tl.constexpr, BLOCKS: tl.constexpr, E: tl.constexpr,
):  # fmt: skip
    """Bitonic layers begin..end. Place = item + total - n; a line is CHUNKS programs of BLOCKS rows of E places."""
    pid = tl.program_id(0)
    ROWS: tl.constexpr = LINES * BLOCKS
    u = tl.arange(0, ROWS)[:, None]
    t = tl.arange(0, E)[None, :]
    local = (u % BLOCKS) * E + t
    base = (pid % CHUNKS) * BLOCKS * E
    line = (pid // CHUNKS) * LINES + (u // BLOCKS).to(tl.int64)
    row = line // channels
    channel = line % channels
    item = base + local - (total - n)
    live = line < lines
    inside = live & (item >= 0)
    x = tl.load(x_ptr + row * n + item, mask=inside, other=0.0)
    infinite = infinities(x)
    x = tamed(x)
    p = x
    if PAYLOAD:
        p = tl.load(payload_ptr + (row * n + item) * channels + channel, mask=inside, other=0.0)
    m = tl.load(length_ptr + row, mask=live, other=0) if MASKED else n + tl.zeros([ROWS, 1], tl.int32)
    steepness = tl.load(steepness_ptr)
    buffer = scratch_ptr + pid.to(tl.int64) * 2 * ROWS * E + (u // BLOCKS) * BLOCKS * E
    for layer in range(begin, end):
        mask = tl.load(table_ptr + layer)
        need = tl.load(table_ptr + depth + layer)
        if mask < E:
            where = tl.broadcast_to(t ^ mask, [ROWS, E])
            y = tl.gather(x, where, 1)
            r = y
            if PAYLOAD:
                r = tl.gather(p, where, 1)
        else:
            tl.debug_barrier()
            tl.store(buffer + local, x)
            if PAYLOAD:
                tl.store(buffer + ROWS * E + local, p)
            tl.debug_barrier()
            y = tl.load(buffer + (local ^ mask))
            r = y
            if PAYLOAD:
                r = tl.load(buffer + ROWS * E + (local ^ mask))
        other = local ^ mask
        first = local < other
        active = (base + tl.minimum(local, other) >= total - m) & (m >= need)
        alpha = share(tl.where(first, x, y), tl.where(first, y, x), active, steepness, LIGHT)
        x = mixed(x, y, alpha)
        if PAYLOAD:
            p = alpha * p + (1.0 - alpha) * r
    tl.store(values_ptr + row * n + item, freed(x, infinite), mask=inside & (channel == 0))
    if PAYLOAD:
        tl.store(sorted_ptr + (row * n + item) * channels + channel, p, mask=inside)


@triton.jit(do_not_specialize=PLAIN)
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
    u = tl.arange(0, ROWS)[:, None]
    t = tl.arange(0, E)[None, :]
    local = (u % BLOCKS) * E + t
    steepness = tl.load(steepness_ptr)
    steep = tl.zeros([ROWS, E], x_ptr.dtype.element_ty)
    # This program's scratch: the gradients that travel, then every layer
    buffer = scratch_ptr + pid.to(tl.int64) * (end - begin + 1) * STATES * ROWS * E + (u // BLOCKS) * BLOCKS * E
    for tile in range(pid, tiles, programs):
        base = (tile % CHUNKS) * BLOCKS * E
        line = (tile // CHUNKS) * LINES + (u // BLOCKS).to(tl.int64)
        row = line // channels
        channel = line % channels
        item = base + local - (total - n)
        live = line < lines
        inside = live & (item >= 0)
        x = tamed(tl.load(x_ptr + row * n + item, mask=inside, other=0.0))
        p = x
        if PAYLOAD:
            p = tl.load(payload_ptr + (row * n + item) * channels + channel, mask=inside, other=0.0)
        m = tl.load(length_ptr + row, mask=live, other=0) if MASKED else n + tl.zeros([ROWS, 1], tl.int32)
        tl.debug_barrier()
        for layer in range(begin, end):
            state = buffer + (layer - begin + 1) * STATES * ROWS * E
            tl.store(state + local, x)
            if PAYLOAD:
                tl.store(state + ROWS * E + local, p)
            mask = tl.load(table_ptr + layer)
            need = tl.load(table_ptr + depth + layer)
            if mask < E:
                where = tl.broadcast_to(t ^ mask, [ROWS, E])
                y = tl.gather(x, where, 1)
                r = y
                if PAYLOAD:
                    r = tl.gather(p, where, 1)
            else:
                tl.debug_barrier()
                y = tl.load(state + (local ^ mask))
                r = y
                if PAYLOAD:
                    r = tl.load(state + ROWS * E + (local ^ mask))
            other = local ^ mask
            first = local < other
            active = (base + tl.minimum(local, other) >= total - m) & (m >= need)
            alpha = share(tl.where(first, x, y), tl.where(first, y, x), active, steepness, LIGHT)
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
            if mask < E:
                where = tl.broadcast_to(t ^ mask, [ROWS, E])
                across = tl.gather(g, where, 1)
                beyond = across
                if PAYLOAD:
                    beyond = tl.gather(h, where, 1)
            else:
                tl.debug_barrier()
                tl.store(buffer + local, g)
                if PAYLOAD:
                    tl.store(buffer + ROWS * E + local, h)
                tl.debug_barrier()
                across = tl.load(buffer + other)
                beyond = across
                if PAYLOAD:
                    beyond = tl.load(buffer + ROWS * E + other)
            alpha, slope, z_slope, d = decide(tl.where(first, x, y), tl.where(first, y, x), active, steepness)
            turn = tl.where(first, 1.0, -1.0).to(g.dtype)
            # The items differ by -d, so the decision feels -(g_first - g_second) d
            fall = turn * (across - g)
            by_d = fall * z_slope
            by_s = fall * (slope * d) * d
            g = alpha * g + (1.0 - alpha) * across
            if PAYLOAD:
                drop = turn * (tl.load(state + ROWS * E + local) - tl.load(state + ROWS * E + other))
                weight = turn * (h - beyond) * drop * slope
                by_d += weight * steepness
                by_s += weight * d
                h = alpha * h + (1.0 - alpha) * beyond
            g -= turn * by_d
            if STEEP:
                steep += tl.where(first & live, by_s, 0.0)
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


@triton.jit(do_not_specialize=PLAIN)
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
    alpha = share(a, b, active, tl.load(steepness_ptr), LIGHT)
    tl.store(values_ptr + low, freed(mixed(a, b, alpha), infinite), mask=has_low)
    tl.store(values_ptr + high, freed(mixed(b, a, alpha), infinite), mask=has_high)
    if PAYLOAD:
        p = tl.load(payload_ptr + low, mask=has_low, other=0.0)
        q = tl.load(payload_ptr + high, mask=has_high, other=0.0)
        tl.store(sorted_ptr + low, alpha * p + (1.0 - alpha) * q, mask=has_low)
        tl.store(sorted_ptr + high, alpha * q + (1.0 - alpha) * p, mask=has_high)


@triton.jit(do_not_specialize=PLAIN)
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
    alpha, slope, z_slope, d = decide(a, b, active, steepness)
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
    if STEEP:
        place = tl.program_id(1) * tl.num_programs(0) + tl.program_id(0)
        tl.store(grad_steepness_ptr + place, tl.sum(by_steepness, 0))

"""Template of the odd-even kernels; `exchange_device.py` comes before it, and `odd_even.py` launches them.

A line is a row of the user's with one block of the channels of its payload: S quads per thread. It is cut into

    chunks of STEP items, a program each, with REACH more on both sides, and these into
    GROUPS of CORE items, a warp each, with HALO more on both sides, where partners meet by shuffles (`tl.gather`).

What happens at a rim is wrong and creeps inwards by one item per layer. Before it reaches a core, the groups of a program
exchange their cores through memory, after so many segments of layers; before it reaches a chunk's own items, after REACH
layers, the launch ends and the next one starts from what all of them have saved. Walking back through a segment, the
rim creeps twice, with the items and with their gradients: a segment has at most HALO / 2 layers.

Every thread holds quads, four neighbouring numbers each: those of the items, and those of up to four channels of the
payload. A line is a tuple of S quads, the items first. In a layer of pairs (0, 1), (2, 3) of each quad, "even", nothing is
exchanged between threads; in one of pairs (1, 2) and 3 with the next quad's 0, "odd", each thread decides for both.
Backward needs of a layer only its gaps, the differences b - a of all pairs: two per quad and even layer, three per odd one.
"""

# pyright: reportAttributeAccessIssue=false, reportAssignmentType=false, reportOperatorIssue=false, reportGeneralTypeIssues=false
# ruff: noqa: RUF005 (Triton adds tuples, but does not unpack them)
import triton
import triton.language as tl

from algonet.core.codegen.triton_math import kernel

from .exchange_device import decide, finite_only, freed, infinities, mixed, share, tamed

# --- template ---


@triton.jit
def fix_layout(x):
    """x, by a shuffle that moves nothing: it decides where x lives. Else some releases of Triton keep what was loaded where
    the load put it, and carry it to where shuffles want it, through shared memory, in every layer."""
    i = tl.arange(0, x.shape[0])[:, None]
    return tl.gather(x, tl.broadcast_to(i, x.shape), 0)


@triton.jit
def load4(base, step, e, n, live):
    """Items e, e + 1, e + 2, e + 3 of a line of n, 0 outside."""
    inside = live & (e >= 0)
    a = tl.load(base + e * step, mask=inside & (e < n), other=0.0)
    b = tl.load(base + (e + 1) * step, mask=inside & (e + 1 < n), other=0.0)
    c = tl.load(base + (e + 2) * step, mask=inside & (e + 2 < n), other=0.0)
    d = tl.load(base + (e + 3) * step, mask=inside & (e + 3 < n), other=0.0)
    return fix_layout(a), fix_layout(b), fix_layout(c), fix_layout(d)


@triton.jit
def store4(base, step, e, n, live, x):
    inside = live & (e >= 0)
    tl.store(base + e * step, x[0], mask=inside & (e < n))
    tl.store(base + (e + 1) * step, x[1], mask=inside & (e + 1 < n))
    tl.store(base + (e + 2) * step, x[2], mask=inside & (e + 2 < n))
    tl.store(base + (e + 3) * step, x[3], mask=inside & (e + 3 < n))


@triton.jit
def load_payload(base, step, channels, room, e, n, live, S: tl.constexpr):
    """The quads of S - 1 channels of a payload (n, channels), 0 for those beyond `room`; step 0: one number for all."""
    p = ()
    for c in tl.static_range(S - 1):
        p = p + (load4(base + c * step, channels * step, e, n, live & (c < room)),)
    return p


@triton.jit
def store_payload(base, channels, room, e, n, live, x, S: tl.constexpr):
    for c in tl.static_range(S - 1):
        store4(base + c, channels, e, n, live & (c < room), x[c + 1])


@triton.jit
def load_line(base, size, e, n, live, S: tl.constexpr):
    """A line as it is saved between segments: S stretches of `size`."""
    x = ()
    for c in tl.static_range(S):
        x = x + (load4(base + c * size, 1, e, n, live),)
    return x


@triton.jit
def store_line(base, size, e, n, live, x, S: tl.constexpr):
    for c in tl.static_range(S):
        store4(base + c * size, 1, e, n, live, x[c])


@triton.jit
def tamed4(x):
    return tamed(x[0]), tamed(x[1]), tamed(x[2]), tamed(x[3])


@triton.jit
def next_first(x, H: tl.constexpr):
    """The first number of the quad to the right."""
    i = tl.arange(0, H)[:, None]
    return tl.gather(x[0], tl.broadcast_to(tl.minimum(i + 1, H - 1), x[0].shape), 0)


@triton.jit
def previous_last(x, H: tl.constexpr):
    """The last number of the quad to the left."""
    i = tl.arange(0, H)[:, None]
    return tl.gather(x[3], tl.broadcast_to(tl.maximum(i - 1, 0), x[3].shape), 0)


@triton.jit
def even_gaps(x):
    return x[1] - x[0], x[3] - x[2]


@triton.jit
def odd_gaps(x, H: tl.constexpr):
    return x[0] - previous_last(x, H), x[2] - x[1], next_first(x, H) - x[3]


@triton.jit
def even_active(e, m, runs):
    """Which pairs of an even layer exist in a row of m items."""
    inside = (e >= 0) & runs
    return inside & (e + 1 < m), inside & (e + 3 < m)


@triton.jit
def odd_active(e, m, runs, H: tl.constexpr):
    """The same for the three pairs of an odd layer."""
    i = tl.arange(0, H)[:, None]
    inside = (e >= 0) & runs
    return inside & (i > 0) & (e > 0) & (e < m), inside & (e + 2 < m), inside & (i < H - 1) & (e + 4 < m)


@triton.jit
def even_mix(x, left, right):
    """A quad whose numbers 0, 1 stay in place with probability `left`, 2, 3 with `right`."""
    return mixed(x[0], x[1], left), mixed(x[1], x[0], left), mixed(x[2], x[3], right), mixed(x[3], x[2], right)


@triton.jit
def odd_mix(x, before, inner, after, H: tl.constexpr):
    """A quad whose number 0 stays in place with probability `before`, 1 and 2 with `inner`, 3 with `after`."""
    first, last = mixed(x[0], previous_last(x, H), before), mixed(x[3], next_first(x, H), after)
    return first, mixed(x[1], x[2], inner), mixed(x[2], x[1], inner), last


@triton.jit
def even_layer(x, e, m, runs, steepness, LIGHT: tl.constexpr, S: tl.constexpr):
    on, gap = even_active(e, m, runs), even_gaps(x[0])
    left, right = share(gap[0], on[0], steepness, LIGHT), share(gap[1], on[1], steepness, LIGHT)
    y = ()
    for c in tl.static_range(S):
        y = y + (even_mix(x[c], left, right),)
    return y


@triton.jit
def odd_layer(x, e, m, runs, steepness, LIGHT: tl.constexpr, S: tl.constexpr, H: tl.constexpr):
    on, gap = odd_active(e, m, runs, H), odd_gaps(x[0], H)
    before, inner = share(gap[0], on[0], steepness, LIGHT), share(gap[1], on[1], steepness, LIGHT)
    after = share(gap[2], on[2], steepness, LIGHT)
    y = ()
    for c in tl.static_range(S):
        y = y + (odd_mix(x[c], before, inner, after, H),)
    return y


@triton.jit
def two_layers(x, e, m, layer, last, steepness, LIGHT: tl.constexpr, S: tl.constexpr, H: tl.constexpr):
    """An even layer and the odd one after it; those from `last` on do nothing."""
    x = even_layer(x, e, m, layer < last, steepness, LIGHT, S)
    return odd_layer(x, e, m, layer + 1 < last, steepness, LIGHT, S, H)


@triton.jit
def two_layers_saved(
    place, SIZE: tl.constexpr, x, e, m, layer, last, steepness, LIGHT: tl.constexpr, S: tl.constexpr, H: tl.constexpr
):
    """The same, saving the gaps of both for the way back; each thread reads back what it wrote."""
    for c in tl.static_range(S):
        gap = even_gaps(x[c])
        tl.store(place + 2 * c * SIZE, gap[0])
        tl.store(place + (2 * c + 1) * SIZE, gap[1])
    x = even_layer(x, e, m, layer < last, steepness, LIGHT, S)
    for c in tl.static_range(S):
        gap = odd_gaps(x[c], H)
        tl.store(place + (2 * S + 3 * c) * SIZE, gap[0])
        tl.store(place + (2 * S + 3 * c + 1) * SIZE, gap[1])
        tl.store(place + (2 * S + 3 * c + 2) * SIZE, gap[2])
    return odd_layer(x, e, m, layer + 1 < last, steepness, LIGHT, S, H)


@triton.jit
def load_even_gaps(place, SIZE: tl.constexpr, S: tl.constexpr):
    gaps = ()
    for c in tl.static_range(S):
        gaps = gaps + ((tl.load(place + 2 * c * SIZE), tl.load(place + (2 * c + 1) * SIZE)),)
    return gaps


@triton.jit
def load3(place, SIZE: tl.constexpr):
    return tl.load(place), tl.load(place + SIZE), tl.load(place + 2 * SIZE)


@triton.jit
def load_odd_gaps(place, SIZE: tl.constexpr, S: tl.constexpr):
    gaps = ()
    for c in tl.static_range(S):
        gaps = gaps + (load3(place + (2 * S + 3 * c) * SIZE, SIZE),)
    return gaps


@triton.jit
def exchange_back(gap, weight, fall, active, steepness, LIGHT: tl.constexpr):
    """(alpha, what a loses and b gains of gradient by the decision, what the steepness gets) of an exchange of a and b.

    `fall` is the gradient of b minus that of a; `weight` the sum over channels of the same of theirs times their gap.
    """
    alpha, slope, d = decide(gap, active, steepness, LIGHT)
    weight += fall * d
    return alpha, weight * (slope * steepness), weight * (slope * d)


@triton.jit
def even_back(gaps, g, e, m, runs, steepness, LIGHT: tl.constexpr, S: tl.constexpr):
    """Gradients of a line before an even layer from those after it, and what the steepness gets."""
    on = even_active(e, m, runs)
    at_left, at_right = tl.zeros_like(g[0][0]), tl.zeros_like(g[0][0])
    for c in tl.static_range(1, S):
        fall = even_gaps(g[c])
        at_left += fall[0] * gaps[c][0]
        at_right += fall[1] * gaps[c][1]
    fall = even_gaps(g[0])
    left, pull_left, steep_left = exchange_back(gaps[0][0], at_left, fall[0], on[0], steepness, LIGHT)
    right, pull_right, steep_right = exchange_back(gaps[0][1], at_right, fall[1], on[1], steepness, LIGHT)
    k = even_mix(g[0], left, right)
    h = ((k[0] - pull_left, k[1] + pull_left, k[2] - pull_right, k[3] + pull_right),)
    for c in tl.static_range(1, S):
        h = h + (even_mix(g[c], left, right),)
    return h, steep_left + steep_right


@triton.jit
def odd_back(gaps, g, e, m, runs, steepness, LIGHT: tl.constexpr, S: tl.constexpr, H: tl.constexpr):
    """The same for an odd layer; the steepness gets from each pair once, where its first item is."""
    on = odd_active(e, m, runs, H)
    at_before, at_inner, at_after = tl.zeros_like(g[0][0]), tl.zeros_like(g[0][0]), tl.zeros_like(g[0][0])
    for c in tl.static_range(1, S):
        fall = odd_gaps(g[c], H)
        at_before += fall[0] * gaps[c][0]
        at_inner += fall[1] * gaps[c][1]
        at_after += fall[2] * gaps[c][2]
    fall = odd_gaps(g[0], H)
    before, pull_before, _ = exchange_back(gaps[0][0], at_before, fall[0], on[0], steepness, LIGHT)
    inner, pull_inner, steep_inner = exchange_back(gaps[0][1], at_inner, fall[1], on[1], steepness, LIGHT)
    after, pull_after, steep_after = exchange_back(gaps[0][2], at_after, fall[2], on[2], steepness, LIGHT)
    k = odd_mix(g[0], before, inner, after, H)
    h = ((k[0] + pull_before, k[1] - pull_inner, k[2] + pull_inner, k[3] - pull_after),)
    for c in tl.static_range(1, S):
        h = h + (odd_mix(g[c], before, inner, after, H),)
    return h, steep_inner + steep_after


@triton.jit
def column_infinities(x):
    """1 for each column of the table with an infinite item, else 0."""
    return tl.max(((x - x != 0) & (x == x)).to(tl.int32), 0, keep_dims=True)


@triton.jit
def any_infinite(x_ptr, row, n, live, x, begin, GROUPS: tl.constexpr, H: tl.constexpr):
    """Whether the row of each line holds an infinite item: among x, the quads as given, or anywhere in a later launch."""
    found = (column_infinities(x[0]) | column_infinities(x[1])) | (column_infinities(x[2]) | column_infinities(x[3]))
    if GROUPS > 1:
        found = tl.max(found) + tl.zeros_like(found)
        if begin > 0:
            place = tl.arange(0, GROUPS)[None, :] * H + tl.arange(0, H)[:, None]
            for start in range(0, n, GROUPS * H):
                item = start + place
                found |= infinities(tl.load(x_ptr + row * n + item, mask=live & (item < n), other=0.0))
    return found


@triton.jit
def line_before(
    x_ptr, payload_ptr, saved_ptr, line, row, first, index, n, channels, segments, e, live, S: tl.constexpr
):
    """A line before a segment: as it came, or as forward has saved it."""
    if index > 0:
        x = load_line(saved_ptr + (line * (segments - 1) + index - 1) * S * n, n, e, n, live, S)
    else:
        place = payload_ptr + row * n * channels + first
        x = (tamed4(load4(x_ptr + row * n, 1, e, n, live)),)
        x = x + load_payload(place, 1, channels, channels - first, e, n, live, S)
    return x


@kernel
def odd_even_forward_kernel(
    x_ptr, payload_ptr, values_ptr, sorted_ptr, length_ptr, steepness_ptr, saved_ptr, scratch_ptr,
    lines, chunks, n, channels, blocks, layers, segment, segments, begin, end, every,
    LIGHT: tl.constexpr, FIXED: tl.constexpr, MASKED: tl.constexpr, SAVE: tl.constexpr, S: tl.constexpr,
    LINES: tl.constexpr, STEP: tl.constexpr, REACH: tl.constexpr,
    GROUPS: tl.constexpr, H: tl.constexpr, CORE: tl.constexpr, HALO: tl.constexpr,
):  # fmt: skip
    """Segments begin..end of an odd-even sort. With SAVE the state after each but the last is saved: (lines, segments - 1,
    S, n), which is what later launches and backward start from. Groups exchange their cores `every` so many."""
    pid = tl.program_id(0)
    WIDTH: tl.constexpr = GROUPS * CORE
    u = tl.arange(0, LINES * GROUPS)[None, :]
    i = tl.arange(0, H)[:, None]
    line = pid // chunks * LINES + (u // GROUPS).to(tl.int64)
    row, first = line // blocks, line % blocks * (S - 1)
    f = (u % GROUPS) * CORE - HALO + 4 * i
    e = pid % chunks * STEP - REACH + f
    live = line < lines
    core = live & (4 * i >= HALO) & (4 * i < HALO + CORE)
    own = core & (f >= REACH) & (f < REACH + STEP)
    m = tl.load(length_ptr + row, mask=live, other=0) if MASKED else n + tl.zeros([1, LINES * GROUPS], tl.int32)
    last = layers if FIXED else tl.minimum(m, layers)
    steepness = tl.load(steepness_ptr)
    infinite = any_infinite(x_ptr, row, n, live, load4(x_ptr + row * n, 1, e, n, live), begin, GROUPS, H)
    x = line_before(x_ptr, payload_ptr, saved_ptr, line, row, first, begin, n, channels, segments, e, live, S)
    saved_ptr += line * (segments - 1) * S * n
    # Two buffers in turn: one barrier keeps reading of this one and writing of the next apart
    scratch_ptr += (pid.to(tl.int64) * LINES + u // GROUPS) * 2 * S * WIDTH
    for index in range(begin, end):
        for layer in range(index * segment, tl.minimum((index + 1) * segment, layers), 2):
            x = two_layers(x, e, m, layer, last, steepness, LIGHT, S, H)
        if SAVE:  # noqa: SIM102 (a constant, and a number)
            if index + 1 < segments:
                store_line(saved_ptr + index * S * n, n, e, n, own, x, S)
        if GROUPS > 1:  # noqa: SIM102
            if (index + 1 < end) & ((index + 1) % every == 0):
                buffer = scratch_ptr + (index + 1) // every % 2 * S * WIDTH
                store_line(buffer, WIDTH, f, WIDTH, core, x, S)
                tl.debug_barrier()
                x = load_line(buffer, WIDTH, f, WIDTH, live, S)
    if end == segments:
        a, b, c, d = x[0]
        y = freed(a, infinite), freed(b, infinite), freed(c, infinite), freed(d, infinite)
        store4(values_ptr + row * n, 1, e, n, own & (first == 0), y)
        store_payload(sorted_ptr + row * n * channels + first, channels, channels - first, e, n, own, x, S)


@kernel
def odd_even_backward_kernel(
    x_ptr, payload_ptr, length_ptr, steepness_ptr, grad_ptr, grad_sorted_ptr,
    grad_x_ptr, grad_payload_ptr, grad_steepness_ptr, saved_ptr, slopes_ptr, scratch_ptr,
    lines, chunks, n, channels, blocks, layers, segment, segments, begin, end, turn, tiles, programs, grad_step, sorted_step,
    LIGHT: tl.constexpr, FIXED: tl.constexpr, MASKED: tl.constexpr, STEEP: tl.constexpr, AHEAD: tl.constexpr,
    S: tl.constexpr, LINES: tl.constexpr, STEP: tl.constexpr, REACH: tl.constexpr,
    GROUPS: tl.constexpr, H: tl.constexpr, CORE: tl.constexpr, HALO: tl.constexpr,
):  # fmt: skip
    """Gradients through segments end..begin: from the saved state before it, recompute each layer and walk back.

    A layer takes as long as its chain of operations, one after the other, so with AHEAD = 1 two chains run side by side:
    while a segment is walked back, the one before it is recomputed. (The last has none before it, and recomputes itself.)

    Between launches the gradients lie in `slopes`, (2, lines, S, n), which turn about. The gradient of the items comes
    once per line, to be summed over the blocks of channels; that of the values goes in at the first. The steps are 0 for
    gradients that are one number for all.
    """
    pid = tl.program_id(0)
    SIZE: tl.constexpr = LINES * GROUPS * H
    GAPS: tl.constexpr = 5 * S * SIZE  # of two layers
    WIDTH: tl.constexpr = GROUPS * CORE
    STATE: tl.constexpr = S * LINES * WIDTH
    u = tl.arange(0, LINES * GROUPS)[None, :]
    i = tl.arange(0, H)[:, None]
    f = (u % GROUPS) * CORE - HALO + 4 * i
    steepness = tl.load(steepness_ptr)
    steep = tl.zeros([H, LINES * GROUPS], x_ptr.dtype.element_ty)
    pairs = segment // 2
    # This program's scratch: two buffers of gradients, and the gaps of one segment, or of two
    scratch_ptr += pid.to(tl.int64) * (2 * STATE + (1 + AHEAD) * pairs * GAPS)
    slope_ptr = scratch_ptr + (u // GROUPS) * S * WIDTH
    gaps_ptr = scratch_ptr + 2 * STATE + u * H + i
    for tile in range(pid, tiles, programs):
        line = tile // chunks * LINES + (u // GROUPS).to(tl.int64)
        row, first = line // blocks, line % blocks * (S - 1)
        e = tile % chunks * STEP - REACH + f
        live = line < lines
        core = live & (4 * i >= HALO) & (4 * i < HALO + CORE)
        own = core & (f >= REACH) & (f < REACH + STEP)
        m = tl.load(length_ptr + row, mask=live, other=0) if MASKED else n + tl.zeros([1, LINES * GROUPS], tl.int32)
        last = layers if FIXED else tl.minimum(m, layers)
        if end == segments:
            place = grad_sorted_ptr + (row * n * channels + first) * sorted_step
            g = (load4(grad_ptr + row * n * grad_step, grad_step, e, n, live & (first == 0)),)
            g = g + load_payload(place, sorted_step, channels, channels - first, e, n, live, S)
        else:
            g = load_line(slopes_ptr + (turn % 2 * lines + line) * S * n, n, e, n, live, S)
        x = line_before(x_ptr, payload_ptr, saved_ptr, line, row, first, end - 1, n, channels, segments, e, live, S)
        for pair in range(pairs):
            place = gaps_ptr + ((end - 1) % 2 * pairs * AHEAD + pair) * GAPS
            layer = (end - 1) * segment + 2 * pair
            x = two_layers_saved(place, SIZE, x, e, m, layer, last, steepness, LIGHT, S, H)
        for back in range(end - begin):
            index = end - 1 - back
            previous = tl.maximum(index - 1, begin)
            here = gaps_ptr + index % 2 * pairs * AHEAD * GAPS
            ahead = gaps_ptr + (index + 1) % 2 * pairs * AHEAD * GAPS
            if AHEAD:
                x = line_before(
                    x_ptr, payload_ptr, saved_ptr, line, row, first, previous, n, channels, segments, e, live, S
                )
            tl.debug_barrier()
            even = load_even_gaps(here + (pairs - 1) * GAPS, SIZE, S)
            odd = load_odd_gaps(here + (pairs - 1) * GAPS, SIZE, S)
            for pair in range(pairs):
                layer = (index + 1) * segment - 2 * pair - 2
                # Fetch the two layers before while these are computed
                place = here + tl.maximum(pairs - 2 - pair, 0) * GAPS
                even_before, odd_before = load_even_gaps(place, SIZE, S), load_odd_gaps(place, SIZE, S)
                g, by_odd = odd_back(odd, g, e, m, layer + 1 < last, steepness, LIGHT, S, H)
                g, by_even = even_back(even, g, e, m, layer < last, steepness, LIGHT, S)
                if STEEP:
                    steep += tl.where(own, by_odd + by_even, 0.0)
                if AHEAD:
                    place, layer = ahead + pair * GAPS, previous * segment + 2 * pair
                    x = two_layers_saved(place, SIZE, x, e, m, layer, last, steepness, LIGHT, S, H)
                even, odd = even_before, odd_before
            if GROUPS > 1:  # noqa: SIM102
                if index > begin:
                    buffer = slope_ptr + index % 2 * STATE
                    store_line(buffer, WIDTH, f, WIDTH, core, g, S)
                    tl.debug_barrier()
                    g = load_line(buffer, WIDTH, f, WIDTH, live, S)
        if begin == 0:
            x0 = load4(x_ptr + row * n, 1, e, n, live)
            a, b = finite_only(g[0][0], x0[0]), finite_only(g[0][1], x0[1])
            c, d = finite_only(g[0][2], x0[2]), finite_only(g[0][3], x0[3])
            store4(grad_x_ptr + line * n, 1, e, n, own, (a, b, c, d))
            store_payload(grad_payload_ptr + row * n * channels + first, channels, channels - first, e, n, own, g, S)
        else:
            store_line(slopes_ptr + ((turn + 1) % 2 * lines + line) * S * n, n, e, n, own, g, S)
    if STEEP:
        tl.store(grad_steepness_ptr + turn * programs + pid, tl.sum(tl.sum(steep, 1), 0))

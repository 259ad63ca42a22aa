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

from .exchange_device import clamp_inf, decide, finite_only, infinities, mixed, restore_inf, share

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
    inside, x = live & (e >= 0), ()
    for j in tl.static_range(4):
        x = x + (tl.load(base + (e + j) * step, mask=inside & (e + j < n), other=0.0),)
    return fix_layout(x[0]), fix_layout(x[1]), fix_layout(x[2]), fix_layout(x[3])


@triton.jit
def store4(base, step, e, n, live, x):
    inside = live & (e >= 0)
    for j in tl.static_range(4):
        tl.store(base + (e + j) * step, x[j], mask=inside & (e + j < n))


@triton.jit
def load_quads(base, apart, step, room, e, n, live, COUNT: tl.constexpr):
    """COUNT quads that begin `apart` from each other, their items `step` apart; 0 for those beyond `room`."""
    x = ()
    for c in tl.static_range(COUNT):
        x = x + (load4(base + c * apart, step, e, n, live & (c < room)),)
    return x


@triton.jit
def store_quads(base, apart, step, room, e, n, live, x, BEGIN: tl.constexpr, S: tl.constexpr):
    """The way back for the quads of a line from BEGIN on."""
    for c in tl.static_range(S - BEGIN):
        store4(base + c * apart, step, e, n, live & (c < room), x[c + BEGIN])


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
def gaps_of(x, ODD: tl.constexpr, H: tl.constexpr):
    """The differences of the pairs of a layer that a quad has a part in."""
    if ODD:
        gap = x[0] - previous_last(x, H), x[2] - x[1], next_first(x, H) - x[3]
    else:
        gap = x[1] - x[0], x[3] - x[2]
    return gap


@triton.jit
def active(e, m, runs, ODD: tl.constexpr, H: tl.constexpr):
    """Which of these pairs exist in a row of m items."""
    inside = (e >= 0) & runs
    if ODD:
        i = tl.arange(0, H)[:, None]
        on = inside & (i > 0) & (e > 0) & (e < m), inside & (e + 2 < m), inside & (i < H - 1) & (e + 4 < m)
    else:
        on = inside & (e + 1 < m), inside & (e + 3 < m)
    return on


@triton.jit
def mix(x, alpha, ODD: tl.constexpr, H: tl.constexpr):
    """A quad whose numbers stay in place with the probabilities of these pairs."""
    if ODD:
        first, last = mixed(x[0], previous_last(x, H), alpha[0]), mixed(x[3], next_first(x, H), alpha[2])
        y = first, mixed(x[1], x[2], alpha[1]), mixed(x[2], x[1], alpha[1]), last
    else:
        left, right = alpha
        y = mixed(x[0], x[1], left), mixed(x[1], x[0], left), mixed(x[2], x[3], right), mixed(x[3], x[2], right)
    return y


@triton.jit
def layer_of(
    place, SIZE: tl.constexpr, x, e, m, runs, steepness,
    ODD: tl.constexpr, SAVED: tl.constexpr, LIGHT: tl.constexpr, S: tl.constexpr, H: tl.constexpr,
):  # fmt: skip
    """One layer; with SAVED its gaps go to `place` for the way back: each thread reads back what it wrote."""
    if SAVED:
        for c in tl.static_range(S):
            gap = gaps_of(x[c], ODD, H)
            for j in tl.static_range(2 + ODD):
                tl.store(place + (2 * S * ODD + (2 + ODD) * c + j) * SIZE, gap[j])
    on, gap, alpha, y = active(e, m, runs, ODD, H), gaps_of(x[0], ODD, H), (), ()
    for j in tl.static_range(2 + ODD):
        alpha = alpha + (share(gap[j], on[j], steepness, LIGHT),)
    for c in tl.static_range(S):
        y = y + (mix(x[c], alpha, ODD, H),)
    return y


@triton.jit
def two_layers(
    place, SIZE: tl.constexpr, x, e, m, layer, last, steepness,
    SAVED: tl.constexpr, LIGHT: tl.constexpr, S: tl.constexpr, H: tl.constexpr,
):  # fmt: skip
    """An even layer and the odd one after it; those from `last` on do nothing."""
    x = layer_of(place, SIZE, x, e, m, layer < last, steepness, 0, SAVED, LIGHT, S, H)
    return layer_of(place, SIZE, x, e, m, layer + 1 < last, steepness, 1, SAVED, LIGHT, S, H)


@triton.jit
def load_gaps(place, SIZE: tl.constexpr, ODD: tl.constexpr, S: tl.constexpr):
    gaps = ()
    for c in tl.static_range(S):
        gap = ()
        for j in tl.static_range(2 + ODD):
            gap = gap + (tl.load(place + (2 * S * ODD + (2 + ODD) * c + j) * SIZE),)
        gaps = gaps + (gap,)
    return gaps


@triton.jit
def layer_back(
    gaps, g, e, m, runs, steepness, ODD: tl.constexpr, LIGHT: tl.constexpr, S: tl.constexpr, H: tl.constexpr
):
    """Gradients of a line before a layer from those after it, and what the steepness gets: of an odd layer's pairs once,
    where their first item is.

    An exchange of a and b feels their gap times the fall of the gradient from a to b, and the same of each channel's.
    """
    on, weight = active(e, m, runs, ODD, H), ()
    for _ in tl.static_range(2 + ODD):
        weight = weight + (tl.zeros_like(g[0][0]),)
    for c in tl.static_range(1, S):
        fall, more = gaps_of(g[c], ODD, H), ()
        for j in tl.static_range(2 + ODD):
            more = more + (weight[j] + fall[j] * gaps[c][j],)
        weight = more
    fall, alphas, pull, steep = gaps_of(g[0], ODD, H), (), (), ()
    for j in tl.static_range(2 + ODD):
        alpha, slope, d = decide(gaps[0][j], on[j], steepness, LIGHT)
        felt = weight[j] + fall[j] * d
        # What a loses and b gains of gradient by the decision
        alphas, pull, steep = alphas + (alpha,), pull + (felt * (slope * steepness),), steep + (felt * (slope * d),)
    k = mix(g[0], alphas, ODD, H)
    if ODD:
        h = ((k[0] + pull[0], k[1] - pull[1], k[2] + pull[1], k[3] - pull[2]),)
    else:
        h = ((k[0] - pull[0], k[1] + pull[0], k[2] - pull[1], k[3] + pull[1]),)
    for c in tl.static_range(1, S):
        h = h + (mix(g[c], alphas, ODD, H),)
    return h, steep[ODD] + steep[ODD + 1]


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
        x = load_quads(saved_ptr + (line * (segments - 1) + index - 1) * S * n, n, 1, S, e, n, live, S)
    else:
        place, x = payload_ptr + row * n * channels + first, load4(x_ptr + row * n, 1, e, n, live)
        x = ((clamp_inf(x[0]), clamp_inf(x[1]), clamp_inf(x[2]), clamp_inf(x[3])),)
        x = x + load_quads(place, 1, channels, channels - first, e, n, live, S - 1)
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
            x = two_layers(scratch_ptr, 0, x, e, m, layer, last, steepness, False, LIGHT, S, H)
        if SAVE:  # noqa: SIM102 (a constant, and a number)
            if index + 1 < segments:
                store_quads(saved_ptr + index * S * n, n, 1, S, e, n, own, x, 0, S)
        if GROUPS > 1:  # noqa: SIM102
            if (index + 1 < end) & ((index + 1) % every == 0):
                buffer = scratch_ptr + (index + 1) // every % 2 * S * WIDTH
                store_quads(buffer, WIDTH, 1, S, f, WIDTH, core, x, 0, S)
                tl.debug_barrier()
                x = load_quads(buffer, WIDTH, 1, S, f, WIDTH, live, S)
    if end == segments:
        a, b, c, d = x[0]
        y = restore_inf(a, infinite), restore_inf(b, infinite), restore_inf(c, infinite), restore_inf(d, infinite)
        store4(values_ptr + row * n, 1, e, n, own & (first == 0), y)
        store_quads(sorted_ptr + row * n * channels + first, 1, channels, channels - first, e, n, own, x, 1, S)


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
            g = g + load_quads(place, sorted_step, channels * sorted_step, channels - first, e, n, live, S - 1)
        else:
            g = load_quads(slopes_ptr + (turn % 2 * lines + line) * S * n, n, 1, S, e, n, live, S)
        x = line_before(x_ptr, payload_ptr, saved_ptr, line, row, first, end - 1, n, channels, segments, e, live, S)
        for pair in range(pairs):
            place = gaps_ptr + ((end - 1) % 2 * pairs * AHEAD + pair) * GAPS
            layer = (end - 1) * segment + 2 * pair
            x = two_layers(place, SIZE, x, e, m, layer, last, steepness, True, LIGHT, S, H)
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
            even = load_gaps(here + (pairs - 1) * GAPS, SIZE, 0, S)
            odd = load_gaps(here + (pairs - 1) * GAPS, SIZE, 1, S)
            for pair in range(pairs):
                layer = (index + 1) * segment - 2 * pair - 2
                # Fetch the two layers before while these are computed
                place = here + tl.maximum(pairs - 2 - pair, 0) * GAPS
                even_before, odd_before = load_gaps(place, SIZE, 0, S), load_gaps(place, SIZE, 1, S)
                g, by_odd = layer_back(odd, g, e, m, layer + 1 < last, steepness, 1, LIGHT, S, H)
                g, by_even = layer_back(even, g, e, m, layer < last, steepness, 0, LIGHT, S, H)
                if STEEP:
                    steep += tl.where(own, by_odd + by_even, 0.0)
                if AHEAD:
                    place, layer = ahead + pair * GAPS, previous * segment + 2 * pair
                    x = two_layers(place, SIZE, x, e, m, layer, last, steepness, True, LIGHT, S, H)
                even, odd = even_before, odd_before
            if GROUPS > 1:  # noqa: SIM102
                if index > begin:
                    buffer = slope_ptr + index % 2 * STATE
                    store_quads(buffer, WIDTH, 1, S, f, WIDTH, core, g, 0, S)
                    tl.debug_barrier()
                    g = load_quads(buffer, WIDTH, 1, S, f, WIDTH, live, S)
        if begin == 0:
            x0 = load4(x_ptr + row * n, 1, e, n, live)
            a, b = finite_only(g[0][0], x0[0]), finite_only(g[0][1], x0[1])
            c, d = finite_only(g[0][2], x0[2]), finite_only(g[0][3], x0[3])
            store4(grad_x_ptr + line * n, 1, e, n, own, (a, b, c, d))
            place = grad_payload_ptr + row * n * channels + first
            store_quads(place, 1, channels, channels - first, e, n, own, g, 1, S)
        else:
            store_quads(slopes_ptr + ((turn + 1) % 2 * lines + line) * S * n, n, 1, S, e, n, own, g, 0, S)
    if STEEP:
        tl.store(grad_steepness_ptr + turn * programs + pid, tl.sum(tl.sum(steep, 1), 0))

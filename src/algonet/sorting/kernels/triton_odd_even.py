"""Template of the odd-even kernels; `triton_exchange.py` comes before it, and `odd_even_gpu.py` launches it.

Every thread holds a quad, four neighbouring items, and up to four channels of their payload, a tuple of C quads. A line
is a row of the user's with one block of its channels; it is cut into

    chunks of STEP items, a program each, with REACH more on both sides, and these into
    GROUPS of CORE items, a warp each, with HALO more on both sides, where partners meet by shuffles (`tl.gather`).

What happens at a rim is wrong and creeps inwards by one item per layer. Before it reaches a core, the groups of a program
exchange their cores through memory, after each segment of layers; before it reaches a chunk's own items, after REACH
layers, the launch ends and the next one starts from what all of them have kept. Walking back through a segment, the
rim creeps twice, with the items and with their gradients: a segment has at most HALO / 2 layers.
"""

# pyright: reportAssignmentType=false, reportOperatorIssue=false
# ruff: noqa: RUF005 (Triton adds tuples, but does not unpack them)
import triton
import triton.language as tl

from .triton_exchange import decide, freed, infinities, mixed, share, tamed

# --- template ---
#: No kernel is specialised on its arguments' values or alignment: one compilation serves all, and launches are cheap.
PLAIN = [
    "x_ptr", "payload_ptr", "values_ptr", "sorted_ptr", "length_ptr", "steepness_ptr", "kept_ptr", "slopes_ptr",
    "scratch_ptr", "grad_ptr", "grad_sorted_ptr", "grad_x_ptr", "grad_payload_ptr", "grad_steepness_ptr",
    "lines", "n", "channels", "blocks", "layers", "segment", "segments", "begin", "end", "turn", "tiles", "programs", "every",
    "grad_step", "sorted_step",
]  # fmt: skip


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
def store4(base, step, e, n, live, x):
    inside = live & (e >= 0)
    tl.store(base + e * step, x[0], mask=inside & (e < n))
    tl.store(base + (e + 1) * step, x[1], mask=inside & (e + 1 < n))
    tl.store(base + (e + 2) * step, x[2], mask=inside & (e + 2 < n))
    tl.store(base + (e + 3) * step, x[3], mask=inside & (e + 3 < n))


@triton.jit
def load_channels(base, apart, step, e, n, live, room, C: tl.constexpr):
    """The quads of C channels, `apart` from each other; 0 for those beyond `room`."""
    p = ()
    for c in tl.static_range(C):
        p = p + (load4(base + c * apart, step, e, n, live & (c < room)),)
    return p


@triton.jit
def store_channels(base, apart, step, e, n, live, room, p, C: tl.constexpr):
    for c in tl.static_range(C):
        store4(base + c * apart, step, e, n, live & (c < room), p[c])


@triton.jit
def load_state(base, size, e, n, live, C: tl.constexpr):
    """Items and payload of a line as kept between segments: C + 1 stretches of `size`."""
    return load4(base, 1, e, n, live), load_channels(base + size, size, 1, e, n, live, C, C)


@triton.jit
def store_state(base, size, e, n, live, x, p, C: tl.constexpr):
    store4(base, 1, e, n, live, x)
    store_channels(base + size, size, 1, e, n, live, C, p, C)


@triton.jit
def push(place, SIZE: tl.constexpr, x, p, C: tl.constexpr):
    """Put away the state before a layer; each thread reads back what it wrote."""
    for k in tl.static_range(4):
        tl.store(place + k * SIZE, x[k])
        for c in tl.static_range(C):
            tl.store(place + (4 * c + 4 + k) * SIZE, p[c][k])


@triton.jit
def pop4(place, SIZE: tl.constexpr):
    return tl.load(place), tl.load(place + SIZE), tl.load(place + 2 * SIZE), tl.load(place + 3 * SIZE)


@triton.jit
def pop(place, SIZE: tl.constexpr, C: tl.constexpr):
    p = ()
    for c in tl.static_range(C):
        p = p + (pop4(place + (4 * c + 4) * SIZE, SIZE),)
    return pop4(place, SIZE), p


@triton.jit
def next_first(x, H: tl.constexpr):
    """The first item of the quad to the right."""
    i = tl.arange(0, H)[:, None]
    return tl.gather(x[0], tl.broadcast_to(tl.minimum(i + 1, H - 1), x[0].shape), 0)


@triton.jit
def previous_last(x, H: tl.constexpr):
    """The last item of the quad to the left."""
    i = tl.arange(0, H)[:, None]
    return tl.gather(x[3], tl.broadcast_to(tl.maximum(i - 1, 0), x[3].shape), 0)


@triton.jit
def even_mix(x, left, right):
    """A quad whose items (0, 1) stay with probability `left`, (2, 3) with `right`."""
    return mixed(x[0], x[1], left), mixed(x[1], x[0], left), mixed(x[2], x[3], right), mixed(x[3], x[2], right)


@triton.jit
def odd_mix(x, before, inner, after, H: tl.constexpr):
    """A quad whose items stay with probability `before` (0 with the quad to the left), `inner` (1, 2), `after` (3)."""
    first, last = mixed(x[0], previous_last(x, H), before), mixed(x[3], next_first(x, H), after)
    return first, mixed(x[1], x[2], inner), mixed(x[2], x[1], inner), last


@triton.jit
def even_active(e, m, runs):
    """Whether the pairs of an even layer, (0, 1) and (2, 3) of a quad, exist in a row of m items."""
    inside = (e >= 0) & runs
    return inside & (e + 1 < m), inside & (e + 3 < m)


@triton.jit
def odd_active(e, m, runs, H: tl.constexpr):
    """The same in an odd layer: the last of the quad before with 0, (1, 2), 3 with the first of the next."""
    i = tl.arange(0, H)[:, None]
    inside = (e >= 0) & runs
    return inside & (i > 0) & (e > 0) & (e < m), inside & (e + 2 < m), inside & (i < H - 1) & (e + 4 < m)


@triton.jit
def even_layer(x, p, e, m, runs, steepness, LIGHT: tl.constexpr, C: tl.constexpr):
    """Items (0, 1), (2, 3), ... meet."""
    on_left, on_right = even_active(e, m, runs)
    left = share(x[0], x[1], on_left, steepness, LIGHT)
    right = share(x[2], x[3], on_right, steepness, LIGHT)
    q = ()
    for c in tl.static_range(C):
        q = q + (even_mix(p[c], left, right),)
    return even_mix(x, left, right), q


@triton.jit
def odd_layer(x, p, e, m, runs, steepness, LIGHT: tl.constexpr, C: tl.constexpr, H: tl.constexpr):
    """Items (1, 2), (3, 4), ... meet; those of different quads are decided by both, so that no result travels."""
    on_before, on_inner, on_after = odd_active(e, m, runs, H)
    before = share(previous_last(x, H), x[0], on_before, steepness, LIGHT)
    inner = share(x[1], x[2], on_inner, steepness, LIGHT)
    after = share(x[3], next_first(x, H), on_after, steepness, LIGHT)
    q = ()
    for c in tl.static_range(C):
        q = q + (odd_mix(p[c], before, inner, after, H),)
    return odd_mix(x, before, inner, after, H), q


@triton.jit
def felt(a, b, ga, gb, weight, active, steepness, LIGHT: tl.constexpr):
    """(alpha, what a loses and b gains of gradient by the decision, what the steepness gets) of the exchange of a, b.

    `weight` is the payload's share, the sum over channels of (gradient of p - gradient of q) (p - q). The items differ by
    -d, so theirs is -(ga - gb) d.
    """
    alpha, slope, d = decide(a, b, active, steepness, LIGHT)
    weight += (gb - ga) * d
    return alpha, weight * (slope * steepness), weight * (slope * d)


@triton.jit
def even_back(x, p, g, h, e, m, runs, steepness, LIGHT: tl.constexpr, C: tl.constexpr):
    """Gradients g of the items and h of the payload before an even layer from those after it, and the steepness's."""
    on_left, on_right = even_active(e, m, runs)
    at_left, at_right = tl.zeros_like(x[0]), tl.zeros_like(x[0])
    for c in tl.static_range(C):
        at_left += (h[c][0] - h[c][1]) * (p[c][0] - p[c][1])
        at_right += (h[c][2] - h[c][3]) * (p[c][2] - p[c][3])
    left, pull_left, steep_left = felt(x[0], x[1], g[0], g[1], at_left, on_left, steepness, LIGHT)
    right, pull_right, steep_right = felt(x[2], x[3], g[2], g[3], at_right, on_right, steepness, LIGHT)
    k = ()
    for c in tl.static_range(C):
        k = k + (even_mix(h[c], left, right),)
    g = even_mix(g, left, right)
    g = g[0] - pull_left, g[1] + pull_left, g[2] - pull_right, g[3] + pull_right
    return g, k, steep_left + steep_right


@triton.jit
def odd_back(x, p, g, h, e, m, runs, steepness, LIGHT: tl.constexpr, C: tl.constexpr, H: tl.constexpr):
    """The same for an odd layer."""
    on_before, on_inner, on_after = odd_active(e, m, runs, H)
    at_before, at_inner, at_after = tl.zeros_like(x[0]), tl.zeros_like(x[0]), tl.zeros_like(x[0])
    for c in tl.static_range(C):
        at_before += (previous_last(h[c], H) - h[c][0]) * (previous_last(p[c], H) - p[c][0])
        at_inner += (h[c][1] - h[c][2]) * (p[c][1] - p[c][2])
        at_after += (h[c][3] - next_first(h[c], H)) * (p[c][3] - next_first(p[c], H))
    x_last, g_last, x_next, g_next = previous_last(x, H), previous_last(g, H), next_first(x, H), next_first(g, H)
    before, pull_before, _ = felt(x_last, x[0], g_last, g[0], at_before, on_before, steepness, LIGHT)
    inner, pull_inner, steep_inner = felt(x[1], x[2], g[1], g[2], at_inner, on_inner, steepness, LIGHT)
    after, pull_after, steep_after = felt(x[3], x_next, g[3], g_next, at_after, on_after, steepness, LIGHT)
    k = ()
    for c in tl.static_range(C):
        k = k + (odd_mix(h[c], before, inner, after, H),)
    g = odd_mix(g, before, inner, after, H)
    g = g[0] + pull_before, g[1] - pull_inner, g[2] + pull_inner, g[3] - pull_after
    return g, k, steep_inner + steep_after


@triton.jit
def two_layers(x, p, e, m, layer, last, steepness, LIGHT: tl.constexpr, C: tl.constexpr, H: tl.constexpr):
    """An even layer and the odd one after it."""
    x, p = even_layer(x, p, e, m, layer < last, steepness, LIGHT, C)
    return odd_layer(x, p, e, m, layer + 1 < last, steepness, LIGHT, C, H)


@triton.jit
def two_layers_pushed(
    place, SIZE: tl.constexpr, x, p, e, m, layer, last, steepness, LIGHT: tl.constexpr, C: tl.constexpr, H: tl.constexpr
):
    """The same, putting away the states before each."""
    push(place, SIZE, x, p, C)
    x, p = even_layer(x, p, e, m, layer < last, steepness, LIGHT, C)
    push(place + (C + 1) * 4 * SIZE, SIZE, x, p, C)
    return odd_layer(x, p, e, m, layer + 1 < last, steepness, LIGHT, C, H)


@triton.jit
def state_before(
    x_ptr, payload_ptr, kept_ptr, line, row, first, index, n, channels, segments, e, live, C: tl.constexpr
):
    """Items and payload before a segment: as they came, or as forward has kept them."""
    if index > 0:
        x, p = load_state(kept_ptr + (line * (segments - 1) + index - 1) * (C + 1) * n, n, e, n, live, C)
    else:
        x = load4(x_ptr + row * n, 1, e, n, live)
        x = tamed(x[0]), tamed(x[1]), tamed(x[2]), tamed(x[3])
        p = load_channels(payload_ptr + row * n * channels + first, 1, channels, e, n, live, channels - first, C)
    return x, p


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


@triton.jit(do_not_specialize=PLAIN)
def odd_even_forward_kernel(
    x_ptr, payload_ptr, values_ptr, sorted_ptr, length_ptr, steepness_ptr, kept_ptr, scratch_ptr,
    lines, n, channels, blocks, layers, segment, segments, begin, end, every,
    LIGHT: tl.constexpr, FIXED: tl.constexpr, MASKED: tl.constexpr, KEEP: tl.constexpr, C: tl.constexpr,
    LINES: tl.constexpr, CHUNKS: tl.constexpr, STEP: tl.constexpr, REACH: tl.constexpr,
    GROUPS: tl.constexpr, H: tl.constexpr, CORE: tl.constexpr, HALO: tl.constexpr,
):  # fmt: skip
    """Segments begin..end of an odd-even sort. With KEEP the state after each but the last is kept: (lines, segments - 1,
    C + 1, n), which is what later launches and backward start from. Groups exchange their cores `every` so many."""
    pid = tl.program_id(0)
    WIDTH: tl.constexpr = GROUPS * CORE
    u = tl.arange(0, LINES * GROUPS)[None, :]
    i = tl.arange(0, H)[:, None]
    line = pid // CHUNKS * LINES + (u // GROUPS).to(tl.int64)
    row, first = line // blocks, line % blocks * C
    f = (u % GROUPS) * CORE - HALO + 4 * i
    e = pid % CHUNKS * STEP - REACH + f
    live = line < lines
    core = live & (4 * i >= HALO) & (4 * i < HALO + CORE)
    own = core & (f >= REACH) & (f < REACH + STEP)
    m = tl.load(length_ptr + row, mask=live, other=0) if MASKED else n + tl.zeros([1, LINES * GROUPS], tl.int32)
    last = layers if FIXED else tl.minimum(m, layers)
    steepness = tl.load(steepness_ptr)
    x = load4(x_ptr + row * n, 1, e, n, live)
    infinite = any_infinite(x_ptr, row, n, live, x, begin, GROUPS, H)
    x = tamed(x[0]), tamed(x[1]), tamed(x[2]), tamed(x[3])
    p = load_channels(payload_ptr + row * n * channels + first, 1, channels, e, n, live, channels - first, C)
    kept_ptr += line * (segments - 1) * (C + 1) * n
    # Two buffers in turn: one barrier keeps reading of this one and writing of the next apart
    scratch_ptr += (pid.to(tl.int64) * LINES + u // GROUPS) * 2 * (C + 1) * WIDTH
    if CHUNKS > 1:  # noqa: SIM102 (a constant, and a number)
        if begin > 0:
            x, p = load_state(kept_ptr + (begin - 1) * (C + 1) * n, n, e, n, live, C)
    for index in range(begin, end):
        for layer in range(index * segment, tl.minimum((index + 1) * segment, layers), 2):
            x, p = two_layers(x, p, e, m, layer, last, steepness, LIGHT, C, H)
        if KEEP:  # noqa: SIM102
            if index + 1 < segments:
                store_state(kept_ptr + index * (C + 1) * n, n, e, n, own, x, p, C)
        if GROUPS > 1:  # noqa: SIM102
            if (index + 1 < end) & ((index + 1) % every == 0):
                buffer = scratch_ptr + (index + 1) // every % 2 * (C + 1) * WIDTH
                store_state(buffer, WIDTH, f, WIDTH, core, x, p, C)
                tl.debug_barrier()
                x, p = load_state(buffer, WIDTH, f, WIDTH, live, C)
    if end == segments:
        x = freed(x[0], infinite), freed(x[1], infinite), freed(x[2], infinite), freed(x[3], infinite)
        store4(values_ptr + row * n, 1, e, n, own & (first == 0), x)
        store_channels(sorted_ptr + row * n * channels + first, 1, channels, e, n, own, channels - first, p, C)


@triton.jit(do_not_specialize=PLAIN)
def odd_even_backward_kernel(
    x_ptr, payload_ptr, length_ptr, steepness_ptr, grad_ptr, grad_sorted_ptr,
    grad_x_ptr, grad_payload_ptr, grad_steepness_ptr, kept_ptr, slopes_ptr, scratch_ptr,
    lines, n, channels, blocks, layers, segment, segments, begin, end, turn, tiles, programs,
    grad_step, sorted_step,
    LIGHT: tl.constexpr, FIXED: tl.constexpr, MASKED: tl.constexpr, STEEP: tl.constexpr, AHEAD: tl.constexpr,
    C: tl.constexpr,
    LINES: tl.constexpr, CHUNKS: tl.constexpr, STEP: tl.constexpr, REACH: tl.constexpr,
    GROUPS: tl.constexpr, H: tl.constexpr, CORE: tl.constexpr, HALO: tl.constexpr,
):  # fmt: skip
    """Gradients through segments end..begin: from the kept state before it, recompute each layer and walk back.

    A layer takes as long as its chain of operations, one after the other, so with AHEAD = 1 two chains run side by side:
    while a segment is walked back, the one before it is recomputed. (The last has none before it, and recomputes itself.)

    Between launches the gradients lie in `slopes`, (2, lines, C + 1, n), which turn about. The gradient of the items comes
    once per line, to be summed over the blocks of channels; that of the values goes in at the first. The steps are 0 for
    gradients that are one number for all.
    """
    pid = tl.program_id(0)
    SIZE: tl.constexpr = LINES * GROUPS * H
    WIDTH: tl.constexpr = GROUPS * CORE
    STATE: tl.constexpr = (C + 1) * LINES * WIDTH
    u = tl.arange(0, LINES * GROUPS)[None, :]
    i = tl.arange(0, H)[:, None]
    f = (u % GROUPS) * CORE - HALO + 4 * i
    steepness = tl.load(steepness_ptr)
    steep = tl.zeros([H, LINES * GROUPS], x_ptr.dtype.element_ty)
    # This program's scratch: two buffers of gradients, and every layer of one segment, or of two
    LAYER: tl.constexpr = (C + 1) * 4 * SIZE
    scratch_ptr += pid.to(tl.int64) * (2 * STATE + (1 + AHEAD) * segment * LAYER)
    slope_ptr = scratch_ptr + (u // GROUPS) * (C + 1) * WIDTH
    layer_ptr = scratch_ptr + 2 * STATE + u * H + i
    for tile in range(pid, tiles, programs):
        line = tile // CHUNKS * LINES + (u // GROUPS).to(tl.int64)
        row, first = line // blocks, line % blocks * C
        e = tile % CHUNKS * STEP - REACH + f
        live = line < lines
        core = live & (4 * i >= HALO) & (4 * i < HALO + CORE)
        own = core & (f >= REACH) & (f < REACH + STEP)
        m = tl.load(length_ptr + row, mask=live, other=0) if MASKED else n + tl.zeros([1, LINES * GROUPS], tl.int32)
        last = layers if FIXED else tl.minimum(m, layers)
        if end == segments:
            g = load4(grad_ptr + row * n * grad_step, grad_step, e, n, live & (first == 0))
            place = grad_sorted_ptr + (row * n * channels + first) * sorted_step
            h = load_channels(place, sorted_step, channels * sorted_step, e, n, live, channels - first, C)
        else:
            g, h = load_state(slopes_ptr + (turn % 2 * lines + line) * (C + 1) * n, n, e, n, live, C)
        z, w = state_before(x_ptr, payload_ptr, kept_ptr, line, row, first, end - 1, n, channels, segments, e, live, C)
        for step in range(0, segment, 2):
            layer = (end - 1) * segment + step
            place = layer_ptr + ((end - 1) % 2 * segment * AHEAD + step) * LAYER
            z, w = two_layers_pushed(place, SIZE, z, w, e, m, layer, last, steepness, LIGHT, C, H)
        for back in range(end - begin):
            index = end - 1 - back
            here = layer_ptr + index % 2 * segment * AHEAD * LAYER
            ahead = layer_ptr + (index + 1) % 2 * segment * AHEAD * LAYER
            if AHEAD:
                z, w = state_before(
                    x_ptr, payload_ptr, kept_ptr, line, row, first, tl.maximum(index - 1, begin),
                    n, channels, segments, e, live, C,
                )  # fmt: skip
            tl.debug_barrier()
            x, p = pop(here + (segment - 2) * LAYER, SIZE, C)
            y, q = pop(here + (segment - 1) * LAYER, SIZE, C)
            for step in range(0, segment, 2):
                layer = (index + 1) * segment - 2 - step
                # Fetch the two layers before while these are computed
                place = here + tl.maximum(segment - 4 - step, 0) * LAYER
                x_before, p_before = pop(place, SIZE, C)
                y_before, q_before = pop(place + LAYER, SIZE, C)
                g, h, by_odd = odd_back(y, q, g, h, e, m, layer + 1 < last, steepness, LIGHT, C, H)
                g, h, by_even = even_back(x, p, g, h, e, m, layer < last, steepness, LIGHT, C)
                if STEEP:
                    steep += tl.where(own, by_odd + by_even, 0.0)
                if AHEAD:
                    layer = tl.maximum(index - 1, begin) * segment + step
                    z, w = two_layers_pushed(
                        ahead + step * LAYER, SIZE, z, w, e, m, layer, last, steepness, LIGHT, C, H
                    )
                x, p, y, q = x_before, p_before, y_before, q_before
            if GROUPS > 1:  # noqa: SIM102
                if index > begin:
                    buffer = slope_ptr + index % 2 * STATE
                    store_state(buffer, WIDTH, f, WIDTH, core, g, h, C)
                    tl.debug_barrier()
                    g, h = load_state(buffer, WIDTH, f, WIDTH, live, C)
        if begin == 0:
            store4(grad_x_ptr + line * n, 1, e, n, own, g)
            store_channels(
                grad_payload_ptr + row * n * channels + first, 1, channels, e, n, own, channels - first, h, C
            )
        else:
            store_state(slopes_ptr + ((turn + 1) % 2 * lines + line) * (C + 1) * n, n, e, n, own, g, h, C)
    if STEEP:
        tl.store(grad_steepness_ptr + turn * programs + pid, tl.sum(tl.sum(steep, 1), 0))

"""Template of what threads do in an odd-even sort; `exchange_device.py` comes before it, `odd_even_device.py` after it.

Every thread holds quads, four neighbouring numbers each: those of the items, and those of up to four channels of the
payload. A line is a tuple of S quads, the items first. In a layer of pairs (0, 1), (2, 3) of each quad, "even", nothing is
exchanged between threads; in one of pairs (1, 2) and 3 with the next quad's 0, "odd", each thread decides for both.
Backward needs of a layer only its gaps, the differences b - a of all pairs: two per quad and even layer, three per odd one.
"""

# pyright: reportAttributeAccessIssue=false, reportAssignmentType=false, reportOperatorIssue=false
# ruff: noqa: RUF005 (Triton adds tuples, but does not unpack them)
import triton
import triton.language as tl

from .exchange_device import decide, mixed, share, tamed

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

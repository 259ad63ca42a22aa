"""Template of the odd-even kernels, after `quads_device.py`; `odd_even.py` launches them.

A line is a row of the user's with one block of the channels of its payload: S quads per thread. It is cut into

    chunks of STEP items, a program each, with REACH more on both sides, and these into
    GROUPS of CORE items, a warp each, with HALO more on both sides, where partners meet by shuffles (`tl.gather`).

What happens at a rim is wrong and creeps inwards by one item per layer. Before it reaches a core, the groups of a program
exchange their cores through memory, after so many segments of layers; before it reaches a chunk's own items, after REACH
layers, the launch ends and the next one starts from what all of them have saved. Walking back through a segment, the
rim creeps twice, with the items and with their gradients: a segment has at most HALO / 2 layers.
"""

# pyright: reportAttributeAccessIssue=false, reportAssignmentType=false, reportOperatorIssue=false, reportGeneralTypeIssues=false
import triton
import triton.language as tl

from algonet.core.codegen.triton_math import kernel

from .exchange_device import finite_only, freed, infinities
from .quads_device import (
    even_back,
    load4,
    load_even_gaps,
    load_line,
    load_odd_gaps,
    load_payload,
    odd_back,
    store4,
    store_line,
    store_payload,
    tamed4,
    two_layers,
    two_layers_saved,
)

# --- template ---


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

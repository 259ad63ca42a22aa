"""What the forward and the backward Triton kernels share: the coverage of one face at many pixels, and its pieces.

Names follow `render/README.md`. Everything is elementwise over pixels, with a face's numbers as scalars or vectors that
broadcast. What follows the marker, what a pixel sees of a face, is the CPU's kernel's, too: see `shared`.
"""

# pyright: reportAttributeAccessIssue=false
from __future__ import annotations

import math

import triton
import triton.language as tl

from algonet.core.codegen.triton_math import PTX, quick_exp2, reciprocal

from ... import vectors
from ...vectors import EDGE_GUARD, FAINT, FAR_PIXELS, FAR_POINTS, FLIP_AREA, THIN
from .shared import dot, plus, times

# Numbers that meet float64 tensors must be compile-time constants: run-time floats reach a kernel as float32
FLIP = tl.constexpr(FLIP_AREA)
# Kernels carry coverage and moment times 2 pi, which saves a dozen multiplications by 1 / 2 pi
FAINT2 = tl.constexpr((2 * math.pi * FAINT) ** 2)
THIN2 = tl.constexpr((2 * math.pi * THIN) ** 2)
BACK, FLAT = tl.constexpr(vectors.BACK), tl.constexpr(vectors.FLAT)
FAR = tl.constexpr(FAR_PIXELS)
LIMIT = tl.constexpr(FAR_POINTS)
GUARD = tl.constexpr(EDGE_GUARD)
LOG2E = tl.constexpr(1.4426950408889634)
#: Powers of 2 beyond this are taken to be it.
FARTHEST = tl.constexpr(126.0)
PI = tl.constexpr(3.141592653589793)
#: Where a face's record has what: corners (x, y of each), directions and lengths of its edges, the factor of its coverage, the
#: planes of the common denominator and of depth, the least denominator, how far from its horizon it lies where its level is 1
#: (see `reference.facing`), then three numbers for the plane of each channel.
CORNERS, DIRECTIONS, LENGTHS, FACTOR = tl.constexpr(0), tl.constexpr(6), tl.constexpr(12), tl.constexpr(15)
DENOMINATOR, DEPTH, LEAST, TURN, PLANES = (tl.constexpr(n) for n in (16, 19, 22, 23, 24))
#: Rows of a box: left, top, right, bottom, and depths between which all places of the face lie.
BOX = tl.constexpr(6)
#: A sample is where its nearest unit of coverage ends, its coverage from the front and from the back, its mean depth and mean
#: of each channel, then the same means by how much each face's weight changes with that end.
END, FRONT, BEHIND, MEAN_DEPTH, MEANS = (tl.constexpr(n) for n in range(5))
#: The gradient by a sample: where its unit ends again, what counts as no gradient, then its gradients by coverage from the
#: front and from the back, by depth, and by each channel.
GRAD_BASE, GRAD_FRONT, GRAD_BEHIND, GRAD_DEPTH, GRADS = (tl.constexpr(n) for n in range(1, 6))
#: Numbers per item that count what faces take, before its jobs.
COUNTERS = tl.constexpr(8)
#: A box that nothing touches has this as its lower and minus this as its upper bound.
NOWHERE = tl.constexpr(1e15)


@triton.jit
def load_four(place):
    """Four numbers in a row, in float32 by one instruction: `place` must be a multiple of 16 bytes."""
    if place.dtype.element_ty == tl.float64 or not PTX:
        a, b, c, d = tl.load(place), tl.load(place + 1), tl.load(place + 2), tl.load(place + 3)
    else:
        a, b, c, d = tl.inline_asm_elementwise(
            "ld.global.v4.f32 {$0, $1, $2, $3}, [$4];", "=f,=f,=f,=f,l", [place.to(tl.int64)],
            dtype=(tl.float32, tl.float32, tl.float32, tl.float32), is_pure=True, pack=1,
        )  # fmt: skip
    return a, b, c, d


@triton.jit
def store_four(place, a, b, c, d, live):
    """Store four numbers in a row where `live`, in float32 by one instruction: `place` must be a multiple of 16 bytes."""
    if place.dtype.element_ty == tl.float64 or not PTX:
        tl.store(place, a, mask=live)
        tl.store(place + 1, b, mask=live)
        tl.store(place + 2, c, mask=live)
        tl.store(place + 3, d, mask=live)
    else:
        tl.inline_asm_elementwise(
            "{ .reg .pred p; setp.ne.b32 p, $6, 0; @p st.global.v4.f32 [$1], {$2, $3, $4, $5}; mov.b32 $0, 0; }",
            "=r,l,f,f,f,f,r", [place.to(tl.int64), a, b, c, d, live.to(tl.int32)],
            dtype=tl.int32, is_pure=False, pack=1,
        )  # fmt: skip


@triton.jit
def twice_atan_unit(w):
    """2 atan on [0, 1]: relative error 8e-8 in float32; in float64 a rational function after one reduction."""
    if w.dtype == tl.float64:
        shift = w > 0.66
        x = tl.where(shift, (w - 1.0) / (w + 1.0), w)
        z = x * x
        p = -8.750608600031904122785e-1 * z - 1.615753718733365076637e1
        p = p * z - 7.500855792314704667340e1
        p = p * z - 1.228866684490136173410e2
        p = p * z - 6.485021904942025371773e1
        q = z + 2.485846490142306297962e1
        q = q * z + 1.650270098316988542046e2
        q = q * z + 4.328810604912902668951e2
        q = q * z + 4.853903996359136964868e2
        q = q * z + 1.945506571482613964425e2
        found = x + x * (z * p / q)
        found = 2.0 * tl.where(shift, found + 0.25 * PI, found)
    else:
        z = w * w
        p = 0.00580614138 * z - 0.0325612008
        p = p * z + 0.0860691336
        p = p * z - 0.1506636236
        p = p * z + 0.213087878
        p = p * z - 0.284140878
        p = p * z + 0.39986079
        p = p * z - 0.666661858
        p = p * z + 1.999999972
        found = p * w
    return found


@triton.jit
def corner(x, y, sigma2):
    """Of a corner relative to the pixel: sqrt(z) and sigma^2/z, with z = x^2 + y^2 + sigma^2."""
    # In this order it is two instructions
    z = x * x + (y * y + sigma2)
    r = tl.rsqrt(z)
    return z * r, sigma2 * (r * r)


@triton.jit
def edge_start(x, y, ux, uy, length, root0, root1, sigma2):
    """Of an edge that starts at (x, y) from the pixel: t0, d, 1/rho^2 and H_1 = rho^2 J_1."""
    t0 = x * ux + y * uy
    d = y * ux - x * uy
    rho2 = d * d + sigma2
    r = tl.rsqrt(rho2)
    rho = rho2 * r
    along = rho2 + t0 * (t0 + length)
    # atan2 by the half angle: hypot(rho length, along) is sqrt(z0 z1)
    angle = twice_atan_unit(rho * length * reciprocal(root0 * root1 + tl.abs(along)))
    angle = tl.where(along < 0, PI - angle, angle)
    return t0, d, r * r, angle * rho


@triton.constexpr_function
def falling(k):
    """The product of (2j - 1)/(2j) for j < k."""
    return math.comb(2 * k - 2, k - 1) / 4.0 ** (k - 1)


@triton.jit
def coverage(ax, ay, bx, by, cx, cy, ux0, uy0, ux1, uy1, ux2, uy2, l0, l1, l2, sigma2, HALF: tl.constexpr):
    """2 pi times the signed coverage p, moment M and second moment S (xx, xy, yy; 0 for df = 2) of a face, and what derivatives
    reuse; corners relative to the pixel.

    Works on G_k = rho^2 J_k / falling(k), for which G_{k+1} = D_k / (2k falling(k+1)) + sigma^2/rho^2 G_k with
    D_k = t1 (sigma^2/z1)^k - t0 (sigma^2/z0)^k: one multiplication less per edge than the recursion of J_k.
    """
    root_a, va = corner(ax, ay, sigma2)
    root_b, vb = corner(bx, by, sigma2)
    root_c, vc = corner(cx, cy, sigma2)
    t0, d0, r0, h0 = edge_start(ax, ay, ux0, uy0, l0, root_a, root_b, sigma2)
    t1, d1, r1, h1 = edge_start(bx, by, ux1, uy1, l1, root_b, root_c, sigma2)
    t2, d2, r2, h2 = edge_start(cx, cy, ux2, uy2, l2, root_c, root_a, sigma2)
    q0, q1, q2 = sigma2 * r0, sigma2 * r1, sigma2 * r2
    total0, total1, total2 = h0, h1, h2
    pa, pb, pc = va, vb, vc
    qa, qb, qc = va, vb, vc
    for k in tl.static_range(1, HALF):
        wa, wb, wc = pa * (0.5 / k / falling(k + 1)), pb * (0.5 / k / falling(k + 1)), pc * (0.5 / k / falling(k + 1))
        h0 = ((t0 + l0) * wb - t0 * wa) + q0 * h0
        h1 = ((t1 + l1) * wc - t1 * wb) + q1 * h1
        h2 = ((t2 + l2) * wa - t2 * wc) + q2 * h2
        total0, total1, total2 = (
            total0 + falling(k + 1) * h0,
            total1 + falling(k + 1) * h1,
            total2 + falling(k + 1) * h2,
        )
        qa, qb, qc = pa, pb, pc
        pa, pb, pc = pa * va, pb * vb, pc * vc
    p = d0 * r0 * total0 + d1 * r1 * total1 + d2 * r2 * total2
    # sigma^2 J_m, but for the constant falling(m)
    e0, e1, e2 = q0 * h0, q1 * h1, q2 * h2
    mx = (uy0 * e0 + uy1 * e1 + uy2 * e2) * falling(HALF)
    my = (ux0 * e0 + ux1 * e1 + ux2 * e2) * -falling(HALF)
    second, odd0, odd1, odd2 = (mx * 0.0, mx * 0.0, mx * 0.0), mx * 0.0, mx * 0.0, mx * 0.0
    if HALF > 1:
        part = sigma2 * (0.5 / (HALF - 1))
        odd0, odd1, odd2 = part * (qa - qb), part * (qb - qc), part * (qc - qa)
        # The coverage of noise with two degrees of freedom fewer has the sums without their last terms
        inner = d0 * r0 * (total0 - falling(HALF) * h0) + d1 * r1 * (total1 - falling(HALF) * h1)
        inner = part * (inner + d2 * r2 * (total2 - falling(HALF) * h2))
        second = plus(
            edge_moment(d0 * e0 * falling(HALF), odd0, ux0, uy0),
            plus(
                edge_moment(d1 * e1 * falling(HALF), odd1, ux1, uy1),
                edge_moment(d2 * e2 * falling(HALF), odd2, ux2, uy2),
            ),
        )
        second = second[0] + inner, second[1], second[2] + inner
    return p, mx, my, second, t0, t1, t2, d0, d1, d2, r0, r1, r2, e0, e1, e2, pa, pb, pc, odd0, odd1, odd2


#: A rule of degree 4 on a triangle: two triples of points, on the ways from the centroid to the corners (as shares of them),
#: and what each of their points counts.
INNER, INNER_WEIGHT = tl.constexpr(-0.3378454727471475), tl.constexpr(0.223381589678011)
OUTER, OUTER_WEIGHT = tl.constexpr(0.7252713594706885), tl.constexpr(0.109951743655322)


@triton.jit
def density_at(base, d0, d1, d2, n0, n1, n2, share, POWER: tl.constexpr):
    """1 / t^POWER at three points, t = base + share d + share^2 n."""
    t0 = base + share * (d0 + share * n0)
    t1 = base + share * (d1 + share * n1)
    t2 = base + share * (d2 + share * n2)
    # Two reciprocals for three
    both = reciprocal(t0 * t1)
    r0, r1, r2 = both * t1, both * t0, reciprocal(t2)
    f0, f1, f2 = r0, r1, r2
    for _ in tl.static_range(1, POWER):
        f0, f1, f2 = f0 * r0, f1 * r1, f2 * r2
    return f0, f1, f2


@triton.jit
def small_coverage(x, y, ax, ay, bx, by, gx, gy, sigma2, HALF: tl.constexpr):
    """`coverage` of a face that is small against the noise or its distance, by a rule of six points: p and M. (x, y) is the way
    from the pixel to the centroid (gx, gy); the third corner follows from the others."""
    ax, ay, bx, by = ax - gx, ay - gy, bx - gx, by - gy
    cx, cy = -ax - bx, -ay - by
    k = 1.0 / sigma2
    base = (x * x + y * y) * k + 1.0
    kx, ky = x * (k + k), y * (k + k)
    d0, d1 = kx * ax + ky * ay, kx * bx + ky * by
    d2 = -d0 - d1
    n0, n1, n2 = (ax * ax + ay * ay) * k, (bx * bx + by * by) * k, (cx * cx + cy * cy) * k
    f0, f1, f2 = density_at(base, d0, d1, d2, n0, n1, n2, INNER, HALF + 1)
    g0, g1, g2 = density_at(base, d0, d1, d2, n0, n1, n2, OUTER, HALF + 1)
    # 2 pi times the density's factor HALF / (pi sigma^2), times the area
    whole = (3.0 * HALF) * (bx * ay - ax * by) * k
    p = whole * (INNER_WEIGHT * (f0 + f1 + f2) + OUTER_WEIGHT * (g0 + g1 + g2))
    h0 = (INNER * INNER_WEIGHT) * (f0 - f2) + (OUTER * OUTER_WEIGHT) * (g0 - g2)
    h1 = (INNER * INNER_WEIGHT) * (f1 - f2) + (OUTER * OUTER_WEIGHT) * (g1 - g2)
    return p, p * x + whole * (ax * h0 + bx * h1), p * y + whole * (ay * h0 + by * h1)


@triton.jit
def distance2(lx, ly, hx, hy, x0, y0, x1, y1):
    """The square of how far boxes (lx..hx, ly..hy) and (x0..x1, y0..y1) are apart."""
    dx = tl.maximum(tl.maximum(lx - x1, x0 - hx), 0.0)
    dy = tl.maximum(tl.maximum(ly - y1, y0 - hy), 0.0)
    return dx * dx + dy * dy


@triton.jit
def bits_of(hit, lane):
    """32 flags as one number."""
    return tl.sum(tl.where(hit, 1, 0).to(tl.uint32) << lane.to(tl.uint32), axis=0)


@triton.jit
def lowest_bit(bits):
    """The index of the lowest set bit: the exponent of that bit as a float."""
    low = (bits ^ (bits & (bits - 1))).to(tl.float32)
    return (low.to(tl.int32, bitcast=True) >> 23) - 127


# --- template ---
@triton.jit
def edge_moment(even, odd, ux, uy):
    """What an edge adds to the second moment (xx, xy, yy): minus x n, x = even n + odd u. Sums over a face are symmetric."""
    x, y = ux * odd - uy * even, uy * odd + ux * even
    return uy * x, 0.5 * (uy * y - ux * x), -ux * y


@triton.jit
def spread_of(p, mx, my, second, HALF: tl.constexpr):
    """p^2 times the covariance of positions inside a face, from its coverage and moments; taken as 0 for df = 2."""
    spread = (p * second[0] - mx * mx, p * second[1] - mx * my, p * second[2] - my * my)
    if HALF == 1:
        spread = times(spread, 0.0)
    return spread


@triton.jit
def edge_worth(gp, gmx, gmy, by_second, d, ux, uy):
    """What density at t on an edge is worth, flat + slope t + curve t^2, x = d n + t u: gp + gm x + x by_second x."""
    along_x = 2.0 * by_second[0] * ux + by_second[1] * uy
    along_y = by_second[1] * ux + 2.0 * by_second[2] * uy
    curve = 0.5 * (ux * along_x + uy * along_y)
    flat = gp + d * (gmy * ux - gmx * uy + d * (by_second[0] + by_second[2] - curve))
    return flat, gmx * ux + gmy * uy + d * (ux * along_y - uy * along_x), curve


@triton.jit
def seen_at(
    p, mx, my, spread, gx, gy, d, depths, least, turn, factor, steepness, PERSPECTIVE: tl.constexpr,
    TWO_SIDED: tl.constexpr,
):  # fmt: skip
    """What a pixel, (gx, gy) from a face's centroid, sees of it with signed coverage p, moment (mx, my) and `spread_of` them.

    First where it is seen, x - g, with the common denominator there and its inverse, depth and level. Then the mean position
    in the picture, the reciprocal it takes, and what x lies nearer to the eye by: see `reference.nearness_shift`. Last what is
    covered, how much of that from the front, tanh(t) and t, the distance from the face's horizon; the place, which is steepness
    times depth, with what a face seen from the back lies further; and one over the root that falls with t.
    """
    inverse = reciprocal(p * p + FAINT2)
    share, full = p * inverse, p * p * inverse
    ox, oy = full * gx + share * mx, full * gy + share * my
    level = d[0] + ox * d[1] + oy * d[2]
    k = p * reciprocal(p * p + THIN2)
    sx, sy = k * k * (spread[0] * d[1] + spread[1] * d[2]), k * k * (spread[1] * d[1] + spread[2] * d[2])
    safe = tl.maximum(level, least)
    ease = safe * reciprocal(safe * safe + tl.maximum(sx * d[1] + sy * d[2], 0.0))
    px, py = ox - ease * sx, oy - ease * sy
    denominator = d[0] + px * d[1] + py * d[2]
    weight = reciprocal(tl.maximum(denominator, least))
    z = (depths[0] + px * depths[1] + py * depths[2]) * weight
    if not PERSPECTIVE:
        level = z
    t = level * turn
    front = 1.0 / (1.0 + quick_exp2(tl.minimum(t * (-2.0 * LOG2E), FARTHEST)))
    side = front + front - 1.0
    c = tl.maximum(p * side, 0.0) * factor
    if not TWO_SIDED:
        c = c * front
    root = tl.rsqrt(1.0 + t * t)
    place = steepness * z * (1.0 + BACK * (1.0 - front) * root)
    return (
        (px, py, denominator, weight, z, level),
        (ox, oy, inverse, k, sx, sy, safe, ease),
        (c, front, side, t, place, root),
    )


@triton.jit
def kept(end, place):
    """The logistic of how far before the end a place lies, in units of log 2."""
    return reciprocal(1.0 + quick_exp2(tl.minimum(place - end, FARTHEST)))


@triton.jit
def seen_at_back(
    mean, centre, sides, p, mx, my, second, gx, gy, d, depths, least, turn, factor, steepness, share, shown, plane,
    grads, HALF: tl.constexpr, PERSPECTIVE: tl.constexpr, TWO_SIDED: tl.constexpr,
):  # fmt: skip
    """From a sample's gradients to those by what it sees of a face, of which `share` is `shown`.

    `plane`: the gradient by the means, along the planes of all channels together; `grads`: what counts as no gradient, then
    those by depth and by coverage from the front and from the back. The results are factors of the gradients by the planes of
    attributes and of depth, and the gradient by that of the denominator; the slope by the centroid's distance, and the gradient
    by the mean position; those by coverage, moment and second moment; by the turn and the place; by what is covered, whether
    rounding alone makes that negative, and what is seen from the back.
    """
    px, py, denominator, weight, z, _level = mean
    ox, oy, inverse, k, sx, sy, safe, ease = centre
    c, front, side, t, _place, root = sides
    base, by_depth, by_front, by_back = grads
    by_means = (plane[0] + px * plane[1] + py * plane[2]) * weight
    excess = by_means + by_depth * z - base
    by_c = share * excess
    by_place = -shown * (1.0 - share) * excess
    rest, bend = 1.0 - front, front * (1.0 - front)
    if TWO_SIDED:
        by_c += by_front * front + by_back * rest
        by_side = c * (by_front - by_back)
        covering = by_c * factor
    else:
        by_c += by_front
        covering = by_c * factor * front
        by_side = by_c * tl.maximum(p * side, 0.0) * factor
    further = steepness * z * BACK * root
    by_side -= by_place * further
    # tanh(t) = 2 front - 1; the slope of front is 2 front (1 - front)
    right = p * side > 0.0
    by_turn = 2.0 * bend * by_side - by_place * further * rest * t * root * root
    by_turn += tl.where(right, 4.0 * bend * covering * p, 0.0)
    by_p = tl.where(right, covering * side, 0.0)
    by_z = shown * by_depth + by_place * steepness * (1.0 + BACK * rest * root)
    by_level = by_turn * turn
    if not PERSPECTIVE:
        by_z += by_level
        by_level = by_level * 0.0
    nz = by_z * weight
    nd = tl.where(denominator > least, -(shown * by_means + by_z * z) * weight, 0.0)
    pull = shown * weight
    hx = pull * plane[1] + nz * depths[1] + nd * d[1]
    hy = pull * plane[2] + nz * depths[2] + nd * d[2]
    # x - g lies by ease * s nearer, s = C d, C = k^2 spread; ease = D / (D^2 + d s)
    by_ease = -(hx * sx + hy * sy)
    by_level += by_ease * (ease * reciprocal(safe) - 2.0 * ease * ease)
    by_variance = -by_ease * ease * ease * reciprocal(safe)
    ex, ey = by_variance * d[1] - ease * hx, by_variance * d[2] - ease * hy
    spread = spread_of(p, mx, my, second, HALF)
    by_spread = (k * k * ex * d[1], k * k * (ex * d[2] + ey * d[1]), k * k * ey * d[2])
    if HALF == 1:
        by_spread = times(by_spread, 0.0)
    d1 = nd * px + by_level * ox + by_variance * sx + k * k * (spread[0] * ex + spread[1] * ey)
    d2 = nd * py + by_level * oy + by_variance * sy + k * k * (spread[1] * ex + spread[2] * ey)
    by_ox, by_oy = hx + by_level * d[1], hy + by_level * d[2]
    # With h = p^2 + FAINT^2, the mean position is (p^2 (q - g) + p M) / h, so its slope by p is (M + 2 p (q - x)) / h
    twice, share_m = p + p, p * inverse
    full = p * share_m
    gmx = share_m * by_ox - 2.0 * by_spread[0] * mx - by_spread[1] * my
    gmy = share_m * by_oy - 2.0 * by_spread[2] * my - by_spread[1] * mx
    gp = inverse * (by_ox * (mx + twice * (gx - ox)) + by_oy * (my + twice * (gy - oy))) + by_p + dot(by_spread, second)
    by_k = (spread[0] * d[1] + spread[1] * d[2]) * ex + (spread[1] * d[1] + spread[2] * d[2]) * ey
    # k = p / (p^2 + THIN^2), whose slope is k / p - 2 k^2
    gp += 2.0 * k * (reciprocal(p * p + THIN2) - 2.0 * k * k) * by_k
    return (
        pull, nz, (nd + by_level, d1, d2), full, by_ox, by_oy, gp, gmx, gmy, times(by_spread, p), by_turn, by_place, by_c,
        right, rest,
    )  # fmt: skip


@triton.jit
def corner_planes(ax, ay, bx, by, cx, cy, aw, bw, cw, inverse):
    """The corners' weights w' (1/3 + cross(x - g, opposite edge) inverse), which are linear in x - g."""
    a = (aw / 3, aw * inverse * (cy - by), -aw * inverse * (cx - bx))
    b = (bw / 3, bw * inverse * (ay - cy), -bw * inverse * (ax - cx))
    c = (cw / 3, cw * inverse * (by - ay), -cw * inverse * (bx - ax))
    return a, b, c

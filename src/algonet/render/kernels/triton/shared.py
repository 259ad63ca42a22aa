"""Formulas of both compilers: vectors as tuples of three numbers (or blocks of them), normals, light, and a face's corners.

`render/README.md` has the formulas, `lights.py` and `vectors.py` the reference. Both compilers take what follows the marker:
Triton imports it, and `numba.tiles` translates its text, in which `tl.` and `constexpr` then mean nothing. What lies in memory
is read by functions of each compiler's own: those before the marker here, in `pixels.py` there.

A light is eight numbers: the way it shines (directional) or its place (point), its colour, and one over the square of the
radius at which it has fallen to half. What kind each is, is known when the kernel is compiled: a digit of KINDS to base 4.
"""

# pyright: reportAttributeAccessIssue=false, reportOperatorIssue=false
from __future__ import annotations

import triton
import triton.language as tl

from ... import lights, vectors

AMBIENT, DIRECTIONAL, HEADLIGHT = (tl.constexpr(n) for n in (lights.AMBIENT, lights.DIRECTIONAL, lights.HEADLIGHT))
GUARD2, ROUNDING2 = tl.constexpr(vectors.GUARD**2), tl.constexpr(lights.ROUNDING**2)
INVERSE_TOP, FADE2 = tl.constexpr(1 / lights.TOP), tl.constexpr(vectors.FADE**2)
TURN2, NOWHERE2 = tl.constexpr(lights.TURN**2), tl.constexpr(lights.NOWHERE**2)
FLATNESS, LEAST_SQUARE = tl.constexpr(vectors.FLATNESS), tl.constexpr(vectors.LEAST_SQUARE)
SMALL2 = tl.constexpr(vectors.SMALL**2)
LIGHT, FLAT = tl.constexpr(lights.LIGHT), tl.constexpr(vectors.FLAT)
FAR = tl.constexpr(vectors.FAR_PIXELS)


@triton.constexpr_function
def kind_of(kinds, i):
    return kinds // 4**i % 4


@triton.jit
def light_vector(lights, i):
    return load_three(lights + i * LIGHT)


@triton.jit
def light_color(lights, i):
    return load_three(lights + i * LIGHT + 3)


@triton.jit
def light_falloff(lights, i):
    return tl.load(lights + i * LIGHT + 6)


@triton.jit
def store_light(by_lights, i, by_vector, by_color):
    store_sums(by_lights + i * LIGHT, by_vector)
    store_sums(by_lights + i * LIGHT + 3, by_color)
    tl.store(by_lights + i * LIGHT + 6, 0.0)
    tl.store(by_lights + i * LIGHT + 7, 0.0)


@triton.jit
def load_three(place):
    return tl.load(place), tl.load(place + 1), tl.load(place + 2)


@triton.jit
def load_live(place, live):
    """0 elsewhere."""
    return tl.load(place, mask=live, other=0)


@triton.jit
def load_corners(faces, f, live):
    """The rows of a table that faces have at their corners."""
    a, b, c = load_vector(faces, f, live)
    return a.to(tl.int64), b.to(tl.int64), c.to(tl.int64)


@triton.jit
def load_vector(place, i, live):
    return load_live(place + i * 3, live), load_live(place + i * 3 + 1, live), load_live(place + i * 3 + 2, live)


@triton.jit
def store_vector(place, i, v, live):
    for k in tl.static_range(3):
        tl.store(place + i * 3 + k, v[k], mask=live)


@triton.jit
def store_sums(place, v):
    """The sums of a vector's blocks."""
    for k in tl.static_range(3):
        tl.store(place + k, tl.sum(v[k]))


@triton.jit
def add_vector(target, vertex, v, live, WIDTH: tl.constexpr):
    for k in tl.static_range(3):
        tl.atomic_add(target + vertex * WIDTH + k, v[k], mask=live, sem="relaxed")


# --- template ---
@triton.jit
def dot(a, b):
    return a[0] * b[0] + a[1] * b[1] + a[2] * b[2]


@triton.jit
def plus(a, b):
    return a[0] + b[0], a[1] + b[1], a[2] + b[2]


@triton.jit
def minus(a, b):
    return a[0] - b[0], a[1] - b[1], a[2] - b[2]


@triton.jit
def times(a, s):
    return a[0] * s, a[1] * s, a[2] * s


@triton.jit
def each_times(a, b):
    return a[0] * b[0], a[1] * b[1], a[2] * b[2]


@triton.jit
def plus_times(a, b, s):
    return a[0] + b[0] * s, a[1] + b[1] * s, a[2] + b[2] * s


@triton.jit
def cross(a, b):
    return a[1] * b[2] - a[2] * b[1], a[2] * b[0] - a[0] * b[2], a[0] * b[1] - a[1] * b[0]


@triton.jit
def normalised(v):
    """v / sqrt(|v|^2 + GUARD^2), and what v was multiplied by."""
    scale = 1.0 / tl.sqrt(dot(v, v) + GUARD2)
    return times(v, scale), scale


@triton.jit
def normalised_back(direction, scale, grad):
    """The gradient by v from the one by its direction."""
    return times(plus_times(grad, direction, -dot(direction, grad)), scale)


@triton.jit
def guarded_area(area, square):
    """A vertex's area and square over their size, one over that size, and one over the area's guarded length."""
    size = tl.maximum(tl.maximum(tl.abs(area[0]), tl.abs(area[1])), tl.maximum(tl.abs(area[2]), square))
    by_size = 1.0 / tl.maximum(size, LEAST_SQUARE)
    area, square = times(area, by_size), square * by_size * FLATNESS
    return area, square, by_size, 1.0 / tl.sqrt(dot(area, area) + square * square + SMALL2)


@triton.jit
def guarded_area_back(area, square, grad):
    """From the gradient by a vertex's normal to those by its area and square."""
    area, square, by_size, scale = guarded_area(area, square)
    along, factor = dot(area, grad) * scale * scale, scale * by_size
    return times(plus_times(grad, area, -along), factor), -square * FLATNESS * along * factor


@triton.jit
def area_back(e, f, by_area, by_square):
    """From gradients by the area e x f and the square of edges to those by the edges: f x g and g x e."""
    by_square += by_square
    return plus_times(cross(f, by_area), e, by_square), plus_times(cross(by_area, e), f, by_square)


@triton.jit
def placed(z, s, far, OVER: tl.constexpr):
    """The depth in the picture, and its slopes by mean depth, silhouette and the background's depth."""
    if OVER:
        seen, by_z, by_s, by_far = s * z + (1.0 - s) * far, s, z - far, 1.0 - s
    else:
        root = tl.rsqrt(s * s + FADE2)
        seen, by_z, by_s, by_far = z * s * root, s * root, z * FADE2 * root * root * root, s * 0.0
    return seen, by_z, by_s, by_far


@triton.jit
def cofactors(a, b, c):
    """The rows of the camera's matrix crossed with each other, times one over its determinant; finite where there is none."""
    u = cross(b, c)
    det = dot(a, u)
    inverse = det / (det * det + 1e-30)
    return times(u, inverse), times(cross(c, a), inverse), times(cross(a, b), inverse)


@triton.jit
def unproject(inverse, shift, qx, qy, z, PERSPECTIVE: tl.constexpr):
    """The point of the world that the camera sees at (qx, qy) and depth z: inverse(A) (v - t)."""
    w = z
    if not PERSPECTIVE:
        w = z * 0.0 + 1.0
    place = plus_times(times(inverse[0], qx * w - shift[0]), inverse[1], qy * w - shift[1])
    return plus_times(place, inverse[2], z - shift[2])


@triton.jit
def unproject_back(inverse, grad, qx, qy, PERSPECTIVE: tl.constexpr):
    """From the gradient by that point to g = inverse(A)^T grad and the one by z. By t it is -g, by A -g times the point."""
    g = (dot(inverse[0], grad), dot(inverse[1], grad), dot(inverse[2], grad))
    by_z = g[2]
    if PERSPECTIVE:
        by_z += g[0] * qx + g[1] * qy
    return g, by_z


@triton.jit
def positive(x):
    """max(0, x) with a rounded corner, and its slope."""
    root = tl.sqrt(x * x + ROUNDING2)
    # For x < 0 the sum would cancel
    value = tl.where(x > 0, 0.5 * (x + root), 0.5 * ROUNDING2 / (root - tl.minimum(x, 0.0)))
    return value, value / root


@triton.jit
def arriving(lights, i, p, eye, KIND: tl.constexpr):
    """The direction to a light, what its vector was divided by, that vector, and how much of it arrives."""
    own, share = light_vector(lights, i), p[0] * 0.0 + 1.0
    if KIND == DIRECTIONAL:
        way = minus(times(p, 0.0), own)
    else:
        if KIND == HEADLIGHT:
            way = minus(eye, p)
        else:
            way = minus(own, p)
        share = 1.0 / (1.0 + dot(way, way) * light_falloff(lights, i))
    direction, scale = normalised(way)
    return direction, scale, way, share


@triton.jit
def turned(n, way):
    """cosine / sqrt(cosine^2 + TURN^2) of a normal and the way to the eye: the factor that turns it there; and its parts."""
    side = dot(n, way)
    scale = 1.0 / tl.sqrt(side * side + TURN2 * dot(way, way) + NOWHERE2)
    return side * scale, side, scale


@triton.jit
def gloss_of(cosine, shininess, strength):
    return strength * tl.exp(shininess * tl.log(tl.minimum(cosine * INVERSE_TOP, 1.0)))


@triton.jit
def lit(
    n, p, eye, albedo, lights, shininess, strength,
    LIGHTS: tl.constexpr, KINDS: tl.constexpr, TWO_SIDED: tl.constexpr, GLOSSY: tl.constexpr,
):  # fmt: skip
    """The colour of surface points with mean normals n at p, seen from the eye, of some albedo."""
    n, _scale = normalised(n)
    way = minus(eye, p)
    if TWO_SIDED:
        turn, _side, _by = turned(n, way)
        n = times(n, turn)
    view, _scale = normalised(way)
    matt, shine = times(p, 0.0), times(p, 0.0)
    for i in tl.static_range(LIGHTS):
        color = light_color(lights, i)
        if kind_of(KINDS, i) == AMBIENT:
            matt = plus(matt, color)
        else:
            direction, _s, _way, share = arriving(lights, i, p, eye, kind_of(KINDS, i))
            steep, _slope = positive(dot(n, direction))
            matt = plus_times(matt, color, steep * share)
            if GLOSSY:
                half, _s = normalised(plus(direction, view))
                cosine, _slope = positive(dot(n, half))
                shine = plus_times(shine, color, share * gloss_of(cosine, shininess, strength))
    return plus(each_times(albedo, matt), shine)


@triton.jit
def lit_back(
    n, p, eye, albedo, grad, lights, shininess, strength, by_lights,
    LIGHTS: tl.constexpr, KINDS: tl.constexpr, TWO_SIDED: tl.constexpr, GLOSSY: tl.constexpr, SUMS: tl.constexpr,
):  # fmt: skip
    """Gradients by normal, position, eye and albedo, from the gradient by the colour.

    SUMS: those by the lights are summed over the points, in `by_lights`.
    """
    given, n_scale = normalised(n)
    n, way = given, minus(eye, p)
    turn, side, turn_scale = turned(given, way)
    if TWO_SIDED:
        n = times(n, turn)
    view, view_scale = normalised(way)
    none = times(p, 0.0)
    matt, by_n, by_p, by_view, by_eye = none, none, none, none, none
    by_matt = each_times(grad, albedo)
    for i in tl.static_range(LIGHTS):
        color = light_color(lights, i)
        by_way, by_color = none, by_matt
        if kind_of(KINDS, i) == AMBIENT:
            matt = plus(matt, color)
        else:
            direction, scale, to_light, share = arriving(lights, i, p, eye, kind_of(KINDS, i))
            steep, slope = positive(dot(n, direction))
            matt = plus_times(matt, color, steep * share)
            # What the light's diffuse and glossy parts are worth to the colour
            worth = dot(by_matt, color)
            by_share, by_cosine = worth * steep, worth * share * slope
            by_n, by_direction = plus_times(by_n, direction, by_cosine), times(n, by_cosine)
            by_color = times(by_matt, share * steep)
            if GLOSSY:
                half, half_scale = normalised(plus(direction, view))
                cosine, slope = positive(dot(n, half))
                gloss, worth = gloss_of(cosine, shininess, strength), dot(grad, color)
                by_share += worth * gloss
                by_cosine = worth * share * shininess * gloss / cosine * slope
                by_n = plus_times(by_n, half, by_cosine)
                by_half = normalised_back(half, half_scale, times(n, by_cosine))
                by_direction, by_view = plus(by_direction, by_half), plus(by_view, by_half)
                by_color = plus_times(by_color, grad, share * gloss)
            by_way = normalised_back(direction, scale, by_direction)
            if kind_of(KINDS, i) == DIRECTIONAL:
                by_way = times(by_way, -1.0)
            else:
                by_way = plus_times(by_way, to_light, -2.0 * share * share * light_falloff(lights, i) * by_share)
                by_p = minus(by_p, by_way)
            if kind_of(KINDS, i) == HEADLIGHT:
                by_eye, by_way = plus(by_eye, by_way), none
        if SUMS:
            store_light(by_lights, i, by_way, by_color)
    by_view = normalised_back(view, view_scale, by_view)
    if TWO_SIDED:
        by_turn = dot(by_n, given)
        by_side = by_turn * turn_scale * (1.0 - turn * turn)
        by_square = -by_turn * side * turn_scale * turn_scale * turn_scale * TURN2
        by_n = plus_times(times(by_n, turn), way, by_side)
        by_view = plus_times(plus_times(by_view, given, by_side), way, by_square)
    by_n, by_p = normalised_back(given, n_scale, by_n), minus(by_p, by_view)
    return by_n, by_p, plus(by_eye, by_view), each_times(grad, matt)


@triton.jit
def smooth_step(x):
    """The C-infinity step from 0 to 1 over [0, 1], and its slope."""
    inside = (x > 0) & (x < 1)
    safe = tl.where(inside, x, 0.5)
    low, high = 1.0 / safe, 1.0 / (1.0 - safe)
    steep = tl.minimum(tl.maximum(high - low, -80.0), 80.0)
    value = 1.0 / (1.0 + tl.exp(-steep))
    slope = value * (1.0 - value) * (low * low + high * high)
    bent = inside & (tl.abs(steep) < 80.0)
    return tl.where(inside, value, tl.where(x >= 1, 1.0, 0.0)), tl.where(bent, slope, 0.0)


@triton.jit
def horizon(la, lb, lc, ax, ay, bx, by, cx, cy, guard):
    """Of levels at the corners: their slope times twice the face's area, as a vector, and the guarded square of its length."""
    vx, vy = la * (cx - bx) + lb * (ax - cx) + lc * (bx - ax), la * (cy - by) + lb * (ay - cy) + lc * (by - ay)
    size = (cx - bx) * (cx - bx) + (cy - by) * (cy - by) + (ax - cx) * (ax - cx) + (ay - cy) * (ay - cy)
    size += (bx - ax) * (bx - ax) + (by - ay) * (by - ay)
    least, mean = guard + FLAT * size, (la * la + lb * lb + lc * lc) * (1.0 / 3.0)
    return vx, vy, least, mean, vx * vx + vy * vy + least * mean


@triton.jit
def weighted(a, b, c, x, y, z):
    """a x + b y + c z: with planes of corners' weights a, b and c, the plane of a value that is x, y and z there."""
    return plus_times(plus_times(times(a, x), b, y), c, z)


@triton.jit
def corner_pull(gx, gy, gz, gw, gp, x, y, z, inverse, slope, near, PERSPECTIVE: tl.constexpr):
    """From gradients by screen position, depth, 1/w and presence to those by the point and the near distance."""
    by_step = gp * slope / near
    by_near = -by_step * z / near
    by_z = gz + by_step
    px = tl.where(tl.abs(x) < FAR, gx * inverse, 0.0)
    py = tl.where(tl.abs(y) < FAR, gy * inverse, 0.0)
    if PERSPECTIVE:
        by_w = -(px * x + py * y) - gw * inverse * inverse
        in_front = z > 0.5 * near
        by_z += tl.where(in_front, by_w, 0.0)
        by_near += tl.where(in_front, 0.0, 0.5 * by_w)
    return px, py, by_z, by_near


@triton.jit
def log_one_plus(x):
    return tl.where(x < 1e-3, x * (1.0 - x * (0.5 - x * (1.0 / 3.0))), tl.log(1.0 + x))


@triton.jit
def bounded(a, b, k):
    """T = N / (1 + N^k)^(1/k), N = (a^k + b^k)^(1/k) (see `reference.opaque`), its slopes by a and b, and a + b - T."""
    large, small = tl.maximum(tl.maximum(a, b), 1e-30), tl.maximum(tl.minimum(a, b), 1e-30)
    ratio = tl.exp(tl.maximum(k * (tl.log(small) - tl.log(large)), -80.0))
    ratio = tl.where(small > 1e-30, ratio, 0.0)
    joined = log_one_plus(ratio)
    power = k * tl.log(large) + joined
    below = tl.where(tl.abs(power) < 80.0, tl.exp(-tl.minimum(tl.abs(power), 80.0)), 0.0)
    d = (joined - tl.maximum(power, 0.0) - log_one_plus(below)) / k
    grown = tl.exp(d)
    missing = tl.where(tl.abs(d) < 1e-2, -d * (1.0 + 0.5 * d * (1.0 + d * (1.0 / 3.0))), 1.0 - grown)
    # Times 1 / (1 + X), X = N^k
    slope = grown * tl.where(power < 0.0, 1.0, below) / (1.0 + below) / (1.0 + ratio)
    other = slope * ratio * large / small
    hidden = tl.maximum(tl.maximum(tl.minimum(a, b), 0.0) + large * missing, 0.0)
    first = a >= b
    return (
        tl.minimum(grown * tl.maximum(tl.maximum(a, b), 0.0), 1.0),
        tl.where(first, slope, other),
        tl.where(first, other, slope),
        hidden,
    )

"""The CPU renderer's pixels: from what is seen to pictures, lit or not, and back. A template, see `faces`; light and vectors
are those of `kernels/triton/shared.py`, translated.

`total` (H, W, 2) holds the coverage of front and back, `mean` (H, W, C + 1) the mean of each channel and of depth.
"""

# pyright: reportOptionalCall=false, reportAttributeAccessIssue=false
from __future__ import annotations

import numpy as np

from algonet.core.codegen.jit import njit

from .faces import LIGHT, OPTIONS, add, put, real, vector
from .forward import bounded

area_back = cofactors = cross = dot = guarded_area = guarded_area_back = lit = lit_back = minus = placed = plus = None
times = unproject = unproject_back = None
GREY = 0.8

# --- template ---

#: Sums over pixels that pictures give: by eye and camera matrix, and by background and its depth, before those by the lights.
CAMERA_SUMS = 3 + 12


@njit(forceinline=True, **OPTIONS)
def kind_of(kinds, i):
    return kinds[i]


@njit(forceinline=True, **OPTIONS)
def light_vector(lights, i):
    return vector(lights[i], 0)


@njit(forceinline=True, **OPTIONS)
def light_color(lights, i):
    return vector(lights[i], 3)


@njit(forceinline=True, **OPTIONS)
def light_falloff(lights, i):
    return lights[i, 6]


@njit(forceinline=True, **OPTIONS)
def store_light(by_lights, i, by_vector, by_color):
    add(by_lights, i * LIGHT, by_vector)
    add(by_lights, i * LIGHT + 3, by_color)


@njit(**OPTIONS)
def silhouettes_of(totals, power, values, by_front, by_back):
    """The silhouettes of a row, and their slopes. By itself this loop is vectorised; its functions cost more than all else."""
    k = real(power)
    for x in range(totals.shape[0]):
        values[x], by_front[x], by_back[x], _ = bounded(totals[x, 0], totals[x, 1], k)


@njit(forceinline=True, **OPTIONS)
def surface_at(seen, inverse, shift, x, y, colored, perspective):
    """Where a pixel sees the surface, its mean normal, which comes before depth, and its albedo."""
    place = unproject(inverse, shift, real(x) + real(0.5), real(y) + real(0.5), seen[seen.shape[0] - 1], perspective)
    grey = real(GREY)
    return place, vector(seen, seen.shape[0] - 4), vector(seen, 0) if colored else (grey, grey, grey)


@njit(**OPTIONS, cache=True)
def paint(
    first, last, total, mean, background, matrix, eye, lights, kinds, power, over, perspective, shaded, colored, two_sided,
    shininess, strength, image, silhouette, depth, extra,
):  # fmt: skip
    """Rows `first` to `last` of one picture: means over the background. `shaded`: channels are colour, if `colored`, `extra`
    ones, and the normal, and the picture shows the colours lit."""
    shown, more = image.shape[2], 3 if colored else 0
    slopes, color = np.empty((2, image.shape[1]), mean.dtype), np.zeros(shown, mean.dtype)
    viewer, shift = vector(eye, 0), (matrix[0, 3], matrix[1, 3], matrix[2, 3])
    inverse = cofactors(vector(matrix[0], 0), vector(matrix[1], 0), vector(matrix[2], 0))
    for y in range(first, last):
        silhouettes_of(total[y], power, silhouette[y], slopes[0], slopes[1])
        for x in range(image.shape[1]):
            seen, s = mean[y, x], silhouette[y, x]
            depth[y, x], _, _, _ = placed(seen[seen.shape[0] - 1], s, background[shown], over)
            if not shaded:
                color = seen
            elif s > real(0.0):
                place, normal, albedo = surface_at(seen, inverse, shift, x, y, colored, perspective)
                put(color, 0, lit(normal, place, viewer, albedo, lights, shininess, strength, kinds.shape[0], kinds, two_sided,
                                  strength > 0))  # fmt: skip
            for c in range(shown):
                # Where nothing is there is nothing to be lit
                here = s * color[c] if s > real(0.0) else real(0.0)
                image[y, x, c] = here + (real(1.0) - s) * background[c]
            for c in range(extra.shape[2]):
                extra[y, x, c] = s * seen[more + c]


@njit(**OPTIONS, cache=True)
def paint_back(
    first, last, total, mean, background, matrix, eye, lights, kinds, power, over, perspective, shaded, colored, two_sided,
    shininess, strength, grad_image, grad_silhouette, grad_depth, grad_extra, grad_total, grad_mean, sums,
):  # fmt: skip
    """Gradients by total and means of these rows; added to `sums`: by eye, matrix, background and its depth, and lights."""
    shown, channels, more = grad_image.shape[2], mean.shape[2] - 1, 3 if colored else 0
    slopes, color = np.empty((3, grad_image.shape[1]), mean.dtype), np.zeros(shown, mean.dtype)
    ground, by_lights = sums[CAMERA_SUMS:], sums[CAMERA_SUMS + shown + 1 :]
    viewer, shift = vector(eye, 0), (matrix[0, 3], matrix[1, 3], matrix[2, 3])
    inverse = cofactors(vector(matrix[0], 0), vector(matrix[1], 0), vector(matrix[2], 0))
    for y in range(first, last):
        silhouettes_of(total[y], power, slopes[2], slopes[0], slopes[1])
        for x in range(grad_image.shape[1]):
            seen, g, target, s = mean[y, x], grad_image[y, x], grad_mean[y, x], slopes[2, x]
            _, by_z, by_s, by_far = placed(seen[channels], s, background[shown], over)
            by_s = grad_silhouette[y, x] + grad_depth[y, x] * by_s
            by_z *= grad_depth[y, x]
            ground[shown] += by_far * grad_depth[y, x]
            for c in range(shown):
                ground[c] += (real(1.0) - s) * g[c]
            if shaded and s == real(0.0):
                # Nothing is there to be lit, and no face that would take a gradient
                grad_total[y, x, 0], grad_total[y, x, 1] = real(0.0), real(0.0)
                for c in range(channels + 1):
                    target[c] = real(0.0)
                continue
            if shaded:
                place, normal, albedo = surface_at(seen, inverse, shift, x, y, colored, perspective)
                put(color, 0, lit(normal, place, viewer, albedo, lights, shininess, strength, kinds.shape[0], kinds, two_sided,
                                  strength > 0))  # fmt: skip
                by_normal, by_place, by_eye, by_albedo = lit_back(
                    normal, place, viewer, albedo, times(vector(g, 0), s), lights, shininess, strength, by_lights,
                    kinds.shape[0], kinds, two_sided, strength > 0, True,
                )  # fmt: skip
                pull, by_depth = unproject_back(
                    inverse, by_place, real(x) + real(0.5), real(y) + real(0.5), perspective
                )
                by_z += by_depth
                add(sums, 0, by_eye)
                for k in range(3):
                    add(sums, 3 + 4 * k, times(place, -pull[k]))
                    sums[6 + 4 * k] -= pull[k]
                if colored:
                    put(target, 0, by_albedo)
                put(target, channels - 3, by_normal)
                for c in range(grad_extra.shape[2]):
                    by_s += grad_extra[y, x, c] * seen[more + c]
                    target[more + c] = s * grad_extra[y, x, c]
            else:
                color = seen
                for c in range(shown):
                    target[c] = s * g[c]
            for c in range(shown):
                by_s += g[c] * (color[c] - background[c])
            grad_total[y, x, 0], grad_total[y, x, 1] = by_s * slopes[0, x], by_s * slopes[1, x]
            target[channels] = by_z


@njit(**OPTIONS, cache=True)
def vertex_normals(points, faces, sums, normals):
    """Sum each face's area vector and the squares of two of its edges at its vertices, and take the directions."""
    for f in range(faces.shape[0]):
        a = vector(points[faces[f, 0]], 0)
        e, g = minus(vector(points[faces[f, 1]], 0), a), minus(vector(points[faces[f, 2]], 0), a)
        area, square = cross(e, g), dot(e, e) + dot(g, g)
        for i in range(3):
            add(sums[faces[f, i]], 0, area)
            sums[faces[f, i], 3] += square
    for v in range(points.shape[0]):
        area, _, _, scale = guarded_area(vector(sums[v], 0), sums[v, 3])
        put(normals[v], 0, times(area, scale))


@njit(**OPTIONS, cache=True)
def vertex_normals_back(points, faces, sums, grad, grad_points):
    by_sums = np.empty_like(sums)
    for v in range(points.shape[0]):
        by_area, by_sums[v, 3] = guarded_area_back(vector(sums[v], 0), sums[v, 3], vector(grad[v], 0))
        put(by_sums[v], 0, by_area)
    for f in range(faces.shape[0]):
        i, j, k = faces[f, 0], faces[f, 1], faces[f, 2]
        a = vector(points[i], 0)
        e, g = minus(vector(points[j], 0), a), minus(vector(points[k], 0), a)
        by_area = plus(plus(vector(by_sums[i], 0), vector(by_sums[j], 0)), vector(by_sums[k], 0))
        by_b, by_c = area_back(e, g, by_area, by_sums[i, 3] + by_sums[j, 3] + by_sums[k, 3])
        add(grad_points[j], 0, by_b)
        add(grad_points[k], 0, by_c)
        add(grad_points[i], 0, times(plus(by_b, by_c), real(-1.0)))

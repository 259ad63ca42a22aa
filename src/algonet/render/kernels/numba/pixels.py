"""The CPU renderer's pixels: from what is seen to pictures, lit or not, and back. A template, see `faces`.

`total` (H, W, 2) holds the coverage of front and back, `mean` (H, W, C + 1) the mean of each channel and of depth.
"""

# pyright: reportOptionalCall=false, reportAttributeAccessIssue=false
from __future__ import annotations

import numpy as np

from algonet.core.codegen.jit import njit

from .faces import FADE2, OPTIONS, exp, log, real
from .forward import bounded

GREY, AMBIENT, DIRECTIONAL, LIGHT, GUARD2, NOWHERE2, ROUNDING2, TURN2 = 0.8, 0, 1, 8, 1e-8, 1e-12, 4e-4, 1e-4
INVERSE_TOP = 0.9999

# --- template ---

#: Sums over pixels that lit pictures give: by background and its depth, eye, and camera matrix, before those by the lights.
PIXEL_SUMS = 4 + 3 + 12


@njit(**OPTIONS)
def silhouettes_of(totals, power, values, by_front, by_back):
    """The silhouettes of a row, and their slopes. By itself this loop is vectorised; its functions cost more than all else."""
    k = real(power)
    for x in range(totals.shape[0]):
        values[x], by_front[x], by_back[x], _ = bounded(totals[x, 0], totals[x, 1], k)


@njit(forceinline=True, **OPTIONS)
def placed(s, z, far, over):
    """The depth of a picture, and its slopes by the silhouette and by the mean depth."""
    if over:
        return s * z + (real(1.0) - s) * far, z - far, s
    scale = real(1.0) / np.sqrt(s * s + real(FADE2))
    return z * s * scale, z * real(FADE2) * scale * scale * scale, s * scale


@njit(**OPTIONS, cache=True)
def composite(first, last, total, mean, background, power, over, image, silhouette, depth):
    """Rows `first` to `last` of one picture of any attributes."""
    channels = image.shape[2]
    slopes = np.empty((2, image.shape[1]), mean.dtype)
    for y in range(first, last):
        silhouettes_of(total[y], power, silhouette[y], slopes[0], slopes[1])
        for x in range(image.shape[1]):
            s = silhouette[y, x]
            rest = real(1.0) - s
            depth[y, x], _, _ = placed(s, mean[y, x, channels], background[channels], over)
            for c in range(channels):
                image[y, x, c] = s * mean[y, x, c] + rest * background[c]


@njit(**OPTIONS, cache=True)
def composite_back(
    first,
    last,
    total,
    mean,
    background,
    power,
    over,
    grad_image,
    grad_silhouette,
    grad_depth,
    grad_total,
    grad_mean,
    sums,
):
    """Gradients by total and means of these rows; and, added to `sums`, by the background."""
    channels = grad_image.shape[2]
    values, slopes = np.empty(grad_image.shape[1], mean.dtype), np.empty((2, grad_image.shape[1]), mean.dtype)
    for y in range(first, last):
        silhouettes_of(total[y], power, values, slopes[0], slopes[1])
        for x in range(grad_image.shape[1]):
            s, g = values[x], grad_depth[y, x]
            _, by_opaque, by_z = placed(s, mean[y, x, channels], background[channels], over)
            by_s = grad_silhouette[y, x] + g * by_opaque
            grad_mean[y, x, channels] = by_z * g
            sums[channels] += (real(1.0) - s) * g if over else real(0.0)
            for c in range(channels):
                g = grad_image[y, x, c]
                by_s += g * (mean[y, x, c] - background[c])
                grad_mean[y, x, c] = s * g
                sums[c] += (real(1.0) - s) * g
            grad_total[y, x, 0], grad_total[y, x, 1] = by_s * slopes[0, x], by_s * slopes[1, x]


@njit(forceinline=True, **OPTIONS)
def positive(x):
    """max(0, x) with a rounded corner, and its slope."""
    root = np.sqrt(x * x + real(ROUNDING2))
    value = real(0.5) * (x + root) if x > real(0.0) else real(0.5 * ROUNDING2) / (root - x)
    return value, value / root


@njit(forceinline=True, **OPTIONS)
def normalised(x, y, z):
    """v / sqrt(|v|^2 + GUARD^2), and what v was multiplied by."""
    scale = real(1.0) / np.sqrt(x * x + y * y + z * z + real(GUARD2))
    return x * scale, y * scale, z * scale, scale


@njit(forceinline=True, **OPTIONS)
def normalised_back(x, y, z, scale, gx, gy, gz):
    """The gradient by v from the one by its direction (x, y, z)."""
    along = x * gx + y * gy + z * gz
    return scale * (gx - x * along), scale * (gy - y * along), scale * (gz - z * along)


@njit(forceinline=True, **OPTIONS)
def arriving(light, kind, px, py, pz):
    """The direction to a light, what its vector was divided by, that vector, and how much of it arrives."""
    if kind == DIRECTIONAL:
        wx, wy, wz, share = -light[0], -light[1], -light[2], real(1.0)
    else:
        wx, wy, wz = light[0] - px, light[1] - py, light[2] - pz
        share = real(1.0) / (real(1.0) + (wx * wx + wy * wy + wz * wz) * light[6])
    lx, ly, lz, scale = normalised(wx, wy, wz)
    return lx, ly, lz, scale, wx, wy, wz, share


@njit(**OPTIONS)
def lit(normal, place, eye, albedo, lights, kinds, two_sided, shininess, strength, color):
    """The colour of a surface point."""
    nx, ny, nz, _ = normalised(normal[0], normal[1], normal[2])
    wx, wy, wz = eye[0] - place[0], eye[1] - place[1], eye[2] - place[2]
    if two_sided:
        side = nx * wx + ny * wy + nz * wz
        turn = side / np.sqrt(side * side + real(TURN2) * (wx * wx + wy * wy + wz * wz) + real(NOWHERE2))
        nx, ny, nz = nx * turn, ny * turn, nz * turn
    vx, vy, vz, _ = normalised(wx, wy, wz)
    dr, dg, db, sr, sg, sb = real(0.0), real(0.0), real(0.0), real(0.0), real(0.0), real(0.0)
    for i in range(kinds.shape[0]):
        light = lights[i]
        if kinds[i] == AMBIENT:
            dr, dg, db = dr + light[3], dg + light[4], db + light[5]
            continue
        lx, ly, lz, _s, _x, _y, _z, share = arriving(light, kinds[i], place[0], place[1], place[2])
        steep, _ = positive(nx * lx + ny * ly + nz * lz)
        steep *= share
        dr, dg, db = dr + light[3] * steep, dg + light[4] * steep, db + light[5] * steep
        if strength > 0:
            hx, hy, hz, _ = normalised(lx + vx, ly + vy, lz + vz)
            gloss, _ = positive(nx * hx + ny * hy + nz * hz)
            gloss = share * strength * exp(shininess * log(min(gloss * real(INVERSE_TOP), real(1.0))))
            sr, sg, sb = sr + light[3] * gloss, sg + light[4] * gloss, sb + light[5] * gloss
    color[0], color[1], color[2] = albedo[0] * dr + sr, albedo[1] * dg + sg, albedo[2] * db + sb


@njit(**OPTIONS)
def lit_back(
    normal, place, eye, albedo, lights, kinds, two_sided, shininess, strength, grad, by_normal, by_place, by_eye, by_albedo,
    by_lights,
):  # fmt: skip
    """Gradients by normal, position and albedo, from the gradient by the colour; those by eye and lights are added."""
    zero = real(0.0)
    n0x, n0y, n0z, n_scale = normalised(normal[0], normal[1], normal[2])
    nx, ny, nz = n0x, n0y, n0z
    wx, wy, wz = eye[0] - place[0], eye[1] - place[1], eye[2] - place[2]
    turn, side, turn_scale = real(1.0), zero, zero
    if two_sided:
        side = nx * wx + ny * wy + nz * wz
        turn_scale = real(1.0) / np.sqrt(side * side + real(TURN2) * (wx * wx + wy * wy + wz * wz) + real(NOWHERE2))
        turn = side * turn_scale
        nx, ny, nz = nx * turn, ny * turn, nz * turn
    vx, vy, vz, v_scale = normalised(wx, wy, wz)
    ar, ag, ab = zero, zero, zero
    bnx, bny, bnz, bpx, bpy, bpz, bvx, bvy, bvz = zero, zero, zero, zero, zero, zero, zero, zero, zero
    for i in range(kinds.shape[0]):
        light, by_light = lights[i], by_lights[i]
        if kinds[i] == AMBIENT:
            ar, ag, ab = ar + light[3], ag + light[4], ab + light[5]
            for c in range(3):
                by_light[3 + c] += grad[c] * albedo[c]
            continue
        lx, ly, lz, l_scale, qx, qy, qz, share = arriving(light, kinds[i], place[0], place[1], place[2])
        steep, slope = positive(nx * lx + ny * ly + nz * lz)
        ar, ag, ab = ar + light[3] * steep * share, ag + light[4] * steep * share, ab + light[5] * steep * share
        matt = grad[0] * albedo[0] * light[3] + grad[1] * albedo[1] * light[4] + grad[2] * albedo[2] * light[5]
        by_share, by_cosine, gloss = matt * steep, matt * share * slope, zero
        bnx, bny, bnz = bnx + by_cosine * lx, bny + by_cosine * ly, bnz + by_cosine * lz
        blx, bly, blz = by_cosine * nx, by_cosine * ny, by_cosine * nz
        if strength > 0:
            hx, hy, hz, h_scale = normalised(lx + vx, ly + vy, lz + vz)
            base, slope = positive(nx * hx + ny * hy + nz * hz)
            gloss = strength * exp(shininess * log(min(base * real(INVERSE_TOP), real(1.0))))
            shine = grad[0] * light[3] + grad[1] * light[4] + grad[2] * light[5]
            by_share += shine * gloss
            by_cosine = shine * share * shininess * gloss / base * slope
            bnx, bny, bnz = bnx + by_cosine * hx, bny + by_cosine * hy, bnz + by_cosine * hz
            bhx, bhy, bhz = normalised_back(hx, hy, hz, h_scale, by_cosine * nx, by_cosine * ny, by_cosine * nz)
            blx, bly, blz = blx + bhx, bly + bhy, blz + bhz
            bvx, bvy, bvz = bvx + bhx, bvy + bhy, bvz + bhz
        bqx, bqy, bqz = normalised_back(lx, ly, lz, l_scale, blx, bly, blz)
        for c in range(3):
            by_light[3 + c] += grad[c] * share * (albedo[c] * steep + gloss)
        if kinds[i] == DIRECTIONAL:
            by_light[0] -= bqx
            by_light[1] -= bqy
            by_light[2] -= bqz
        else:
            fall = real(-2.0) * share * share * light[6] * by_share
            bqx, bqy, bqz = bqx + fall * qx, bqy + fall * qy, bqz + fall * qz
            bpx, bpy, bpz = bpx - bqx, bpy - bqy, bpz - bqz
            by_light[0] += bqx
            by_light[1] += bqy
            by_light[2] += bqz
    bwx, bwy, bwz = normalised_back(vx, vy, vz, v_scale, bvx, bvy, bvz)
    if two_sided:
        by_turn = bnx * n0x + bny * n0y + bnz * n0z
        by_side = by_turn * turn_scale * (real(1.0) - turn * turn)
        by_square = -by_turn * side * turn_scale * turn_scale * turn_scale * real(TURN2)
        bnx, bny, bnz = bnx * turn + by_side * wx, bny * turn + by_side * wy, bnz * turn + by_side * wz
        bwx += by_side * n0x + by_square * wx
        bwy += by_side * n0y + by_square * wy
        bwz += by_side * n0z + by_square * wz
    by_normal[0], by_normal[1], by_normal[2] = normalised_back(n0x, n0y, n0z, n_scale, bnx, bny, bnz)
    by_place[0], by_place[1], by_place[2] = bpx - bwx, bpy - bwy, bpz - bwz
    by_eye[0] += bwx
    by_eye[1] += bwy
    by_eye[2] += bwz
    by_albedo[0], by_albedo[1], by_albedo[2] = grad[0] * ar, grad[1] * ag, grad[2] * ab


@njit(**OPTIONS)
def inverse_of(matrix, out):
    """The inverse of the camera's 3 x 3 part, by cofactors; finite where there is none."""
    for i in range(3):
        a, b = matrix[(i + 1) % 3], matrix[(i + 2) % 3]
        out[0, i], out[1, i], out[2, i] = (
            a[1] * b[2] - a[2] * b[1],
            a[2] * b[0] - a[0] * b[2],
            a[0] * b[1] - a[1] * b[0],
        )
    det = matrix[0, 0] * out[0, 0] + matrix[0, 1] * out[1, 0] + matrix[0, 2] * out[2, 0]
    scale = det / (det * det + real(1e-30))
    for i in range(3):
        for j in range(3):
            out[i, j] *= scale


@njit(forceinline=True, **OPTIONS)
def unproject(inverse, matrix, x, y, z, perspective, place):
    """The point of the world that the camera sees at (x, y) and depth z."""
    w = z if perspective else real(1.0)
    a, b, c = x * w - matrix[0, 3], y * w - matrix[1, 3], z - matrix[2, 3]
    for k in range(3):
        place[k] = inverse[k, 0] * a + inverse[k, 1] * b + inverse[k, 2] * c


@njit(**OPTIONS, cache=True)
def shade(
    first, last, total, mean, background, matrix, eye, lights, kinds, power, over, perspective, colored, two_sided, shininess,
    strength, image, silhouette, depth, extra,
):  # fmt: skip
    """Rows `first` to `last` of one lit picture. Channels are colour, if there is any, normal, and further ones."""
    channels = mean.shape[2] - 1
    normals = 3 if colored else 0
    inverse, place, color = np.empty((3, 3), mean.dtype), np.empty(3, mean.dtype), np.empty(3, mean.dtype)
    albedo = np.empty(3, mean.dtype)
    for axis in range(3):
        albedo[axis] = real(GREY)
    slopes = np.empty((2, image.shape[1]), mean.dtype)
    inverse_of(matrix, inverse)
    for y in range(first, last):
        silhouettes_of(total[y], power, silhouette[y], slopes[0], slopes[1])
        for x in range(image.shape[1]):
            seen, s = mean[y, x], silhouette[y, x]
            rest, z = real(1.0) - s, seen[channels]
            depth[y, x], _, _ = placed(s, z, background[3], over)
            if s == real(0.0):
                # Nothing is there to be lit
                for c in range(3):
                    image[y, x, c] = background[c]
                for c in range(extra.shape[2]):
                    extra[y, x, c] = real(0.0)
                continue
            unproject(inverse, matrix, real(x) + real(0.5), real(y) + real(0.5), z, perspective, place)
            if colored:
                for axis in range(3):  # a slice would bring broadcasting and its error messages into the compilation
                    albedo[axis] = seen[axis]
            lit(seen[normals : normals + 3], place, eye, albedo, lights, kinds, two_sided, shininess, strength, color)
            for c in range(3):
                image[y, x, c] = s * color[c] + rest * background[c]
            for c in range(extra.shape[2]):
                extra[y, x, c] = s * seen[normals + 3 + c]


@njit(**OPTIONS, cache=True)
def shade_back(
    first, last, total, mean, background, matrix, eye, lights, kinds, power, over, perspective, colored, two_sided, shininess,
    strength, grad_image, grad_silhouette, grad_depth, grad_extra, grad_total, grad_mean, sums,
):  # fmt: skip
    """Gradients by what is seen in these rows; added to `sums`: by background, eye, matrix and lights."""
    channels = mean.shape[2] - 1
    normals = 3 if colored else 0
    inverse, place, color = np.empty((3, 3), mean.dtype), np.empty(3, mean.dtype), np.empty(3, mean.dtype)
    albedo = np.empty(3, mean.dtype)
    for axis in range(3):
        albedo[axis] = real(GREY)
    by_color, by_normal, by_place = np.empty(3, mean.dtype), np.empty(3, mean.dtype), np.empty(3, mean.dtype)
    by_albedo, by_eye = np.empty(3, mean.dtype), np.zeros(3, mean.dtype)
    by_lights = np.zeros((kinds.shape[0], LIGHT), mean.dtype)
    values, slopes = np.empty(grad_image.shape[1], mean.dtype), np.empty((2, grad_image.shape[1]), mean.dtype)
    inverse_of(matrix, inverse)
    for y in range(first, last):
        silhouettes_of(total[y], power, values, slopes[0], slopes[1])
        for x in range(grad_image.shape[1]):
            seen, g, target, s = mean[y, x], grad_image[y, x], grad_mean[y, x], values[x]
            rest, z = real(1.0) - s, seen[channels]
            for c in range(3):
                sums[c] += rest * g[c]
            sums[3] += rest * grad_depth[y, x] if over else real(0.0)
            if s == real(0.0):
                # Nothing is there to be lit, and no face that would take a gradient
                grad_total[y, x, 0], grad_total[y, x, 1] = real(0.0), real(0.0)
                for c in range(channels + 1):
                    target[c] = real(0.0)
                continue
            unproject(inverse, matrix, real(x) + real(0.5), real(y) + real(0.5), z, perspective, place)
            if colored:
                for axis in range(3):  # a slice would bring broadcasting and its error messages into the compilation
                    albedo[axis] = seen[axis]
            normal = seen[normals : normals + 3]
            lit(normal, place, eye, albedo, lights, kinds, two_sided, shininess, strength, color)
            _, by_opaque, by_far = placed(s, z, background[3], over)
            by_s = grad_silhouette[y, x] + grad_depth[y, x] * by_opaque
            for c in range(3):
                by_s += g[c] * (color[c] - background[c])
                by_color[c] = s * g[c]
            for c in range(grad_extra.shape[2]):
                by_s += grad_extra[y, x, c] * seen[normals + 3 + c]
                target[normals + 3 + c] = s * grad_extra[y, x, c]
            grad_total[y, x, 0], grad_total[y, x, 1] = by_s * slopes[0, x], by_s * slopes[1, x]
            lit_back(normal, place, eye, albedo, lights, kinds, two_sided, shininess, strength, by_color,
                     by_normal, by_place, by_eye, by_albedo, by_lights)  # fmt: skip
            # The position is inverse(A) (v - t): by v it is g = inverse(A)^T b, by t it is -g, by A it is -g times the position
            by_z = by_far * grad_depth[y, x]
            for k in range(3):
                pull = inverse[0, k] * by_place[0] + inverse[1, k] * by_place[1] + inverse[2, k] * by_place[2]
                for j in range(3):
                    sums[7 + 4 * k + j] -= pull * place[j]
                sums[7 + 4 * k + 3] -= pull
                if k == 2:
                    by_z += pull
                elif perspective:
                    by_z += pull * (real(x if k == 0 else y) + real(0.5))
            for c in range(3):
                if colored:
                    target[c] = by_albedo[c]
                target[normals + c] = by_normal[c]
            target[channels] = by_z
    for k in range(3):
        sums[4 + k] += by_eye[k]
    for i in range(kinds.shape[0]):
        for k in range(LIGHT):
            sums[PIXEL_SUMS + i * LIGHT + k] += by_lights[i, k]


@njit(**OPTIONS, cache=True)
def illuminate(first, last, albedo, normals, positions, eye, lights, kinds, two_sided, shininess, strength, image):
    """Points `first` to `last` lit."""
    for i in range(first, last):
        lit(normals[i], positions[i], eye, albedo[i], lights, kinds, two_sided, shininess, strength, image[i])


@njit(**OPTIONS, cache=True)
def illuminate_back(
    first, last, albedo, normals, positions, eye, lights, kinds, two_sided, shininess, strength, grad, by_albedo, by_normals,
    by_positions, by_eye, by_lights,
):  # fmt: skip
    for i in range(first, last):
        lit_back(normals[i], positions[i], eye, albedo[i], lights, kinds, two_sided, shininess, strength, grad[i],
                 by_normals[i], by_positions[i], by_eye, by_albedo[i], by_lights)  # fmt: skip


@njit(**OPTIONS, cache=True)
def sum_areas(points, faces, sums):
    """Add each face's area vector and the squares of two of its edges to its vertices: four numbers each."""
    for f in range(faces.shape[0]):
        a, b, c = points[faces[f, 0]], points[faces[f, 1]], points[faces[f, 2]]
        ex, ey, ez = b[0] - a[0], b[1] - a[1], b[2] - a[2]
        fx, fy, fz = c[0] - a[0], c[1] - a[1], c[2] - a[2]
        x, y, z = ey * fz - ez * fy, ez * fx - ex * fz, ex * fy - ey * fx
        square = ex * ex + ey * ey + ez * ez + fx * fx + fy * fy + fz * fz
        for i in range(3):
            target = sums[faces[f, i]]
            target[0] += x
            target[1] += y
            target[2] += z
            target[3] += square


@njit(**OPTIONS, cache=True)
def spread_areas(points, faces, by_sums, by_points):
    """From gradients by the vertices' areas and squares to gradients by the points."""
    for f in range(faces.shape[0]):
        i, j, k = faces[f, 0], faces[f, 1], faces[f, 2]
        a, b, c = points[i], points[j], points[k]
        ex, ey, ez = b[0] - a[0], b[1] - a[1], b[2] - a[2]
        fx, fy, fz = c[0] - a[0], c[1] - a[1], c[2] - a[2]
        gx, gy = by_sums[i, 0] + by_sums[j, 0] + by_sums[k, 0], by_sums[i, 1] + by_sums[j, 1] + by_sums[k, 1]
        gz = by_sums[i, 2] + by_sums[j, 2] + by_sums[k, 2]
        square = real(2.0) * (by_sums[i, 3] + by_sums[j, 3] + by_sums[k, 3])
        bx, by, bz = fy * gz - fz * gy + square * ex, fz * gx - fx * gz + square * ey, fx * gy - fy * gx + square * ez
        cx, cy, cz = gy * ez - gz * ey + square * fx, gz * ex - gx * ez + square * fy, gx * ey - gy * ex + square * fz
        by_points[i, 0] -= bx + cx
        by_points[i, 1] -= by + cy
        by_points[i, 2] -= bz + cz
        by_points[j, 0] += bx
        by_points[j, 1] += by
        by_points[j, 2] += bz
        by_points[k, 0] += cx
        by_points[k, 1] += cy
        by_points[k, 2] += cz

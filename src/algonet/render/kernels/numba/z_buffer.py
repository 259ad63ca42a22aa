"""The hard z-buffer: which face each pixel's centre sees, and where in it."""

# pyright: reportAttributeAccessIssue=false
from __future__ import annotations

import numpy as np

from algonet.core.codegen.jit import njit


@njit(nogil=True, cache=True, error_model="numpy")
def z_buffer(points, faces, near, perspective, two_sided, depth, index, weights):
    """Fill `depth` (H, W, infinity where nothing is), `index` (H, W, -1 there) and corner `weights` (H, W, 3)."""
    height, width = depth.shape
    depth[:] = np.inf
    index[:] = -1
    weights[:] = 0
    x, y, z, w = np.empty(3), np.empty(3), np.empty(3), np.empty(3)
    share = np.empty(3)
    for f in range(faces.shape[0]):
        hidden = False
        for i in range(3):
            v = faces[f, i]
            z[i] = points[v, 2]
            # Where the smooth renderer's face has faded by half
            hidden = hidden or not z[i] > 1.5 * near
            w[i] = 1 / z[i] if perspective else 1.0
            x[i], y[i] = points[v, 0] * w[i], points[v, 1] * w[i]
        area = (y[1] - y[0]) * (x[2] - x[0]) - (x[1] - x[0]) * (y[2] - y[0])
        if hidden or area == 0 or (area < 0 and not two_sided):
            continue
        first_row, last_row = max(0.0, np.ceil(y.min() - 0.5)), min(height - 1.0, np.floor(y.max() - 0.5))
        first_column, last_column = max(0.0, np.ceil(x.min() - 0.5)), min(width - 1.0, np.floor(x.max() - 0.5))
        for row in range(int(first_row), int(last_row) + 1):
            for column in range(int(first_column), int(last_column) + 1):
                px, py = column + 0.5, row + 0.5
                inside, total, at = True, 0.0, 0.0
                for i in range(3):
                    j, k = (i + 1) % 3, (i + 2) % 3
                    part = ((y[j] - py) * (x[k] - px) - (x[j] - px) * (y[k] - py)) / area
                    inside = inside and part >= 0
                    share[i] = part * w[i]
                    total += share[i]
                if not inside:
                    continue
                for i in range(3):
                    share[i] /= total
                    at += share[i] * z[i]
                if at < depth[row, column]:
                    depth[row, column] = at
                    index[row, column] = f
                    weights[row, column, 0], weights[row, column, 1], weights[row, column, 2] = share

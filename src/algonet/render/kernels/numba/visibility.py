"""Which face each pixel's centre sees, on the CPU: `render/visibility.py` face by face, band by band."""

# pyright: reportAttributeAccessIssue=false
from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from algonet.core.autograd import plan_from
from algonet.core.codegen.jit import njit
from algonet.core.threads import spread, workers

from ...visibility import EXACT, UNITS, VisibilitySettings


def rasterize_forward(tensors: list[Tensor], settings: VisibilitySettings) -> tuple[list[Tensor], list[Tensor]]:
    points, near, faces = (t.detach().contiguous() for t in tensors)
    batch = points.shape[:-2]
    seen = torch.empty(*batch, settings.height, settings.width, dtype=torch.int64)
    places, own = points.reshape(-1, *points.shape[-2:]).numpy(), faces.long().numpy()
    nears, targets = near.double().reshape(-1).numpy(), seen.reshape(-1, settings.height, settings.width).numpy()
    bands = min(settings.height, max(1, workers() // max(1, len(places))))
    edges = [settings.height * i // bands for i in range(bands + 1)]
    spread(
        lambda item, i: see_faces(
            places[item],
            own,
            nears[item],
            settings.perspective,
            settings.two_sided,
            edges[i],
            edges[i + 1],
            targets[item],
        ),
        [(item, i) for item in range(len(places)) for i in range(bands)],
    )
    return [seen], []


@njit(nogil=True, cache=True, error_model="numpy")
def set_up(corners, perspective, two_sided, edges, weight, owned, box):
    """Fill a face's edges (a, b, c, x, y of each), weights, which are its own, and its box in units; False if it is not seen.

    `corners` (3, 3): x w and y w in units, and depth.
    """
    w, snapped = np.ones(3), np.zeros((3, 2))
    exact = np.empty(3, np.bool_)
    box[0] = box[1] = np.inf
    box[2] = box[3] = -np.inf
    for i in range(3):
        if perspective:
            w[i] = corners[i, 2]
        for d in range(3):
            if not math.isfinite(corners[i, d]):
                return False
        exact[i] = w[i] > 0
        for d in range(2):
            if w[i] > 0:
                place = math.floor(corners[i, d] / w[i] + 0.5)
                box[d], box[2 + d] = min(box[d], place), max(box[2 + d], place)
                snapped[i, d] = place
                exact[i] = exact[i] and abs(place) <= EXACT
            else:
                # Behind the eye: it may come out anywhere
                box[d], box[2 + d] = -np.inf, np.inf
    ends = np.empty((2, 3))
    for i in range(3):
        j, k = (i + 1) % 3, (i + 2) % 3
        both = exact[j] and exact[k]
        weight[i] = w[j] * w[k] if both else 1.0
        edges[i, 2:] = 0.0
        for n in range(2):
            corner = k if n else j
            if exact[corner]:
                scale = 1.0 if both else w[corner]
                ends[n, 0], ends[n, 1], ends[n, 2] = snapped[corner, 0] * scale, snapped[corner, 1] * scale, scale
            else:
                ends[n, 0], ends[n, 1], ends[n, 2] = corners[corner, 0], corners[corner, 1], w[corner]
        edges[i, 0] = ends[1, 1] * ends[0, 2] - ends[0, 1] * ends[1, 2]
        edges[i, 1] = ends[0, 0] * ends[1, 2] - ends[1, 0] * ends[0, 2]
        # An edge is 0 at its snapped corners, whatever rounding does to a and b
        if exact[j] or exact[k]:
            edges[i, 3], edges[i, 4] = snapped[j if exact[j] else k]
        else:
            edges[i, 2] = ends[0, 1] * ends[1, 0] - ends[0, 0] * ends[1, 1]
    x, y, size = (snapped[0, 0], snapped[0, 1], 1.0) if exact[0] else (corners[0, 0], corners[0, 1], w[0])
    a, b, c, left, top = edges[0]
    area = a * (x - left * size) + b * (y - top * size) + c * size
    if area == 0 or (area < 0 and not two_sided):
        return False
    for i in range(3):
        if area < 0:
            for d in range(3):
                edges[i, d] = -edges[i, d]
        owned[i] = edges[i, 0] > 0 or (edges[i, 0] == 0 and edges[i, 1] > 0)
    return True


@njit(nogil=True, cache=True, error_model="numpy")
def see_faces(points, faces, near, perspective, two_sided, first, last, seen):
    """Fill rows `first` to `last` of `seen` (H, W): the nearest face, of equally near ones the first, -1 for none."""
    width = seen.shape[1]
    nearest = np.full((last - first, width), np.inf, np.float32)
    seen[first:last] = -1
    corners, edges, box = np.empty((3, 3)), np.empty((3, 5)), np.empty(4)
    weight, owned = np.empty(3), np.empty(3, np.bool_)
    for f in range(faces.shape[0]):
        for i in range(3):
            corners[i, 0] = np.float64(points[faces[f, i], 0]) * UNITS
            corners[i, 1] = np.float64(points[faces[f, i], 1]) * UNITS
            corners[i, 2] = points[faces[f, i], 2]
        if not set_up(corners, perspective, two_sided, edges, weight, owned, box):
            continue
        least, most = min(corners[0, 2], corners[1, 2], corners[2, 2]), max(corners[0, 2], corners[1, 2], corners[2, 2])
        left = int(max(0.0, np.ceil(box[0] / UNITS - 0.5)))
        right = int(min(width - 1.0, np.floor(box[2] / UNITS - 0.5)))
        top = int(max(float(first), np.ceil(box[1] / UNITS - 0.5)))
        bottom = int(min(last - 1.0, np.floor(box[3] / UNITS - 0.5)))
        for row in range(top, bottom + 1):
            y = row * UNITS + UNITS // 2
            for column in range(left, right + 1):
                x = column * UNITS + UNITS // 2
                e0 = edges[0, 0] * (x - edges[0, 3]) + edges[0, 1] * (y - edges[0, 4]) + edges[0, 2]
                e1 = edges[1, 0] * (x - edges[1, 3]) + edges[1, 1] * (y - edges[1, 4]) + edges[1, 2]
                e2 = edges[2, 0] * (x - edges[2, 3]) + edges[2, 1] * (y - edges[2, 4]) + edges[2, 2]
                if e0 < 0 or e1 < 0 or e2 < 0:
                    continue
                if (e0 == 0 and not owned[0]) or (e1 == 0 and not owned[1]) or (e2 == 0 and not owned[2]):
                    continue
                e0, e1, e2 = e0 * weight[0], e1 * weight[1], e2 * weight[2]
                depth = (e0 * corners[0, 2] + e1 * corners[1, 2] + e2 * corners[2, 2]) / (e0 + e1 + e2)
                depth = min(max(depth, least), most)
                if depth > near and np.float32(depth) < nearest[row - first, column]:
                    nearest[row - first, column] = depth
                    seen[row, column] = f


RasterizePlan = plan_from(rasterize_forward, None)

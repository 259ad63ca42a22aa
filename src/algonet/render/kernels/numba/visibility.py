"""Which face each pixel's centre sees, on the CPU: `render/visibility.py` face by face, band by band.

What follows the marker is a template; what happens at a corner, an edge and a pixel is in `kernels/triton/visibility.py`.
"""

# pyright: reportAttributeAccessIssue=false, reportOptionalCall=false
from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from algonet.core.autograd import plan_from
from algonet.core.cache import cached
from algonet.core.codegen import generate as codegen
from algonet.core.codegen.jit import njit
from algonet.core.threads import spread, workers

from ...visibility import EXACT, UNITS, VisibilitySettings
from .tiles import translated

PRELUDE = f"""import numpy as np
from numba import float64

from algonet.core.codegen.jit import njit
from algonet.core.codegen.numba_math import maximum, minimum, where

OPTIONS = {{"error_model": "numpy", "nogil": True}}
real, ceil, floor = float64, np.ceil, np.floor
UNITS, EXACT = {UNITS}, {EXACT}
"""
OPTIONS = {"error_model": "numpy", "nogil": True}
snapped = face_edges = first_pixel = last_pixel = shares_at = within = None


@cached
def kernels():
    shared = translated(Path(__file__).parents[1] / "triton" / "visibility.py")
    return codegen.load_template("visibility", f"{PRELUDE}\n\n{shared}", Path(__file__))


def rasterize_forward(tensors: list[Tensor], settings: VisibilitySettings) -> tuple[list[Tensor], list[Tensor]]:
    points, near, faces = (t.detach().contiguous() for t in tensors)
    seen = torch.empty(*points.shape[:-2], settings.height, settings.width, dtype=torch.int64)
    places, own = points.reshape(-1, *points.shape[-2:]).numpy(), faces.long().numpy()
    nears, targets = near.double().reshape(-1).numpy(), seen.reshape(-1, settings.height, settings.width).numpy()
    bands = min(settings.height, max(1, workers() // max(1, len(places))))
    rows = [settings.height * i // bands for i in range(bands + 1)]
    see_faces, options = kernels().see_faces, (settings.perspective, settings.two_sided)
    spread(
        see_faces,
        [
            (places[item], own, nears[item], *options, rows[i], rows[i + 1], targets[item])
            for item in range(len(places))
            for i in range(bands)
        ],
    )
    return [seen], []


RasterizePlan = plan_from(rasterize_forward, None)


# --- template ---
@njit(forceinline=True, **OPTIONS)
def corner(points, vertex, perspective):
    return snapped(
        np.float64(points[vertex, 0]), np.float64(points[vertex, 1]), np.float64(points[vertex, 2]), perspective
    )


@njit(**OPTIONS, cache=True)
def see_faces(points, faces, near, perspective, two_sided, first, last, seen):
    """Fill rows `first` to `last` of `seen` (H, W): the nearest face, of equally near ones the first, -1 for none."""
    height, width = seen.shape
    nearest = np.full((last - first, width), np.inf, np.float32)
    seen[first:last] = -1
    for f in range(faces.shape[0]):
        p, q, r = (
            corner(points, faces[f, 0], perspective),
            corner(points, faces[f, 1], perspective),
            corner(points, faces[f, 2], perspective),
        )
        edges, depths, usable, ahead = face_edges(p, q, r, two_sided)
        if not usable:
            continue
        left, right = first_pixel(p[4], q[4], r[4], ahead, width), last_pixel(p[4], q[4], r[4], ahead, width)
        top, bottom = first_pixel(p[5], q[5], r[5], ahead, height), last_pixel(p[5], q[5], r[5], ahead, height)
        rows, columns = range(max(first, int(top)), min(last - 1, int(bottom)) + 1), range(int(left), int(right) + 1)
        for row in rows:
            for column in columns:
                x, y = float(column * UNITS + UNITS // 2), float(row * UNITS + UNITS // 2)
                inside, total, depth = shares_at(edges, depths, x, y)
                if inside:
                    depth = within(depth / total, depths)
                    if depth > near and np.float32(depth) < nearest[row - first, column]:
                        nearest[row - first, column] = depth
                        seen[row, column] = f

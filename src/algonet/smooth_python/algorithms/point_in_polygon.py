"""Is a point inside a polygon? By counting the edges that a ray crosses."""

from __future__ import annotations

from ..decorator import smooth


@smooth
def point_in_polygon(x, y, corners):
    """1.0 if the point (x, y) lies inside the polygon, else 0.0; in a smooth run the probability.

    `corners` is a list of (x, y). A ray to the right is inside after an odd number of crossings.

    >>> point_in_polygon.crisp(0.5, 0.5, [(0.0, 0.0), (1.0, 0.0), (1.0, 1.0), (0.0, 1.0)])
    1.0
    """
    inside = 0.0
    for k in range(len(corners)):
        x0, y0 = corners[k - 1]
        x1, y1 = corners[k]
        upward = y0 <= y < y1
        downward = y1 <= y < y0
        # On which side of the edge the point lies: the cross product needs no division
        side = (x1 - x0) * (y - y0) - (x - x0) * (y1 - y0)
        if (upward and side > 0) or (downward and side < 0):
            inside = 1.0 - inside
    return inside

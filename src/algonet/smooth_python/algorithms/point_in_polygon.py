"""Is a point inside a polygon? By how often the polygon winds around it."""

from __future__ import annotations

from ..decorator import smooth


@smooth
def point_in_polygon(x, y, corners):
    """1.0 if the point (x, y) lies inside the polygon, else 0.0; in a smooth run the probability.

    `corners` is a list of (x, y). Edges that cross the ray to the right count up or down by their direction: two that meet
    at the height of the point share one crossing, so the sum is smooth there, too.

    >>> point_in_polygon.crisp(0.5, 0.5, [(0.0, 0.0), (1.0, 0.0), (1.0, 1.0), (0.0, 1.0)])
    1.0
    """
    winding = 0.0
    for k in range(len(corners)):
        x0, y0 = corners[k - 1]
        x1, y1 = corners[k]
        # On which side of the edge the point lies: the cross product needs no division
        side = (x1 - x0) * (y - y0) - (x - x0) * (y1 - y0)
        if y0 <= y < y1 and side > 0:
            winding += 1.0
        if y1 <= y < y0 and side < 0:
            winding -= 1.0
    return 1.0 if winding != 0 else 0.0

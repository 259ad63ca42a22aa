"""A ball that bounces along a floor of tiles, each with a restitution of its own."""

from __future__ import annotations

from algonet import smooth

STEPS, DT, GRAVITY = 100, 0.02, 9.81


@smooth(steepness=200.0)
def bouncing_ball(height, floor):
    """Heights over time of a ball that is dropped and rolls on: which restitution has the floor, tile by tile?

    `height` is where it starts; `floor` lists the restitutions of the tiles, which it crosses in equal times.

    >>> [round(h, 2) for h in bouncing_ball.crisp(1.0, [0.8])[20:26]]
    [0.09, 0.01, 0.08, 0.15, 0.22, 0.28]
    """
    v, heights = 0.0, []
    for k in range(STEPS):
        v = v - GRAVITY * DT
        height = height + v * DT
        if height < 0.0 and v < 0.0:
            height = -height
            v = -floor[k * len(floor) // STEPS] * v
        heights.append(height)
    return heights

"""Flood fill: which cells of a grid can be reached from a corner."""

from __future__ import annotations

from ..decorator import smooth


@smooth
def flood_fill(height, level):
    """For every cell 1.0 if water at `level` poured in at the upper left corner reaches it over cells below the level.

    In a smooth run: the probability that it does. Sweeps to and fro let the water run around corners.

    >>> flood_fill.crisp([[0.0, 5.0, 0.0], [0.0, 5.0, 0.0], [0.0, 0.0, 0.0]], 1.0)
    [[1.0, 0.0, 1.0], [1.0, 0.0, 1.0], [1.0, 1.0, 1.0]]
    """
    rows, columns = len(height), len(height[0])
    wet = [[0.0 for _ in range(columns)] for _ in range(rows)]
    for sweep in range(rows):
        for i in range(rows):
            for j in range(columns) if sweep % 2 == 0 else range(columns - 1, -1, -1):
                inside = 1.0 if i == 0 and j == 0 else 0.0
                for down, right in ((1, 0), (-1, 0), (0, 1), (0, -1)):
                    if 0 <= i + down < rows and 0 <= j + right < columns:
                        inside = max(inside, wet[i + down][j + right])
                if height[i][j] < level:
                    wet[i][j] = inside
    return wet

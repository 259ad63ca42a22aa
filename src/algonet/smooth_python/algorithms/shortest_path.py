"""Shortest path through a grid of costs, by Bellman and Ford."""

from __future__ import annotations

from ..decorator import smooth


@smooth
def shortest_path(cost):
    """The cost of the cheapest way from the upper left to the lower right cell of a grid, moving to the four neighbours.

    Distances are relaxed, sweep by sweep, until nothing can change any more: rows + columns sweeps do for ways without
    long detours back. Costs include both ends.

    >>> shortest_path.crisp([[1.0, 9.0, 1.0], [1.0, 9.0, 1.0], [1.0, 1.0, 1.0]])
    5.0
    """
    rows, columns = len(cost), len(cost[0])
    far = 0.0
    for line in cost:
        for c in line:
            far = far + abs(c)
    distance = [[far for _ in range(columns)] for _ in range(rows)]
    distance[0][0] = cost[0][0]
    for _ in range(rows + columns):
        for i in range(rows):
            for j in range(columns):
                if i > 0:
                    distance[i][j] = min(distance[i][j], distance[i - 1][j] + cost[i][j])
                if j > 0:
                    distance[i][j] = min(distance[i][j], distance[i][j - 1] + cost[i][j])
                if i < rows - 1:
                    distance[i][j] = min(distance[i][j], distance[i + 1][j] + cost[i][j])
                if j < columns - 1:
                    distance[i][j] = min(distance[i][j], distance[i][j + 1] + cost[i][j])
    return distance[rows - 1][columns - 1]

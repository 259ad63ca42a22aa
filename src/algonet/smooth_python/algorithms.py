"""Classic algorithms in plain Python, smooth: each is also an example of what `@smooth` takes."""

from __future__ import annotations

from .trainable import smooth


@smooth
def bubble_sort(a):
    """The sorted list, and the number of swaps: a smooth measure of disorder.

    >>> bubble_sort.crisp([3, 1, 2])
    ([1, 2, 3], 2.0)
    """
    swaps = 0.0
    for i in range(len(a)):
        for j in range(len(a) - 1 - i):
            if a[j] > a[j + 1]:
                a[j], a[j + 1] = a[j + 1], a[j]
                swaps += 1.0
    return a, swaps


@smooth
def binary_search(a, value):
    """How many items of the sorted list `a` are smaller than `value`: where it belongs.

    In a smooth run the position is a real number, and `a[position]` reads between the items.

    >>> binary_search.crisp([10, 20, 30, 40, 50], 35)
    3
    """
    step = 1
    while 2 * step <= len(a):
        step *= 2
    position = 0
    if a[step - 1] < value:
        # Steps of 1, 2, 4, ... from here end exactly at the last item
        position = len(a) - step + 1
    while step > 1:
        step //= 2
        if a[position + step - 1] < value:
            position += step
    return position


@smooth
def levenshtein(s, t):
    """The fewest insertions, deletions and replacements that turn `s` into `t`.

    Letters are numbers; two are equal to the extent that the exit says so, exactly on integers.

    >>> levenshtein.crisp("kitten", "sitting")
    3.0
    """
    row = [float(j) for j in range(len(t) + 1)]
    for i in range(len(s)):
        diagonal = row[0]
        row[0] = float(i + 1)
        for j in range(len(t)):
            replaced = diagonal if s[i] == t[j] else diagonal + 1.0
            diagonal = row[j + 1]
            row[j + 1] = min(replaced, row[j] + 1.0, row[j + 1] + 1.0)
    return row[len(t)]


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
                for down, right in ((-1, 0), (0, -1), (1, 0), (0, 1)):
                    if 0 <= i + down < rows and 0 <= j + right < columns:
                        distance[i][j] = min(distance[i][j], distance[i + down][j + right] + cost[i][j])
    return distance[rows - 1][columns - 1]


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


@smooth
def bank_queue(arrivals, services, tellers):
    """How long customers wait on average, served in order of arrival by whichever teller is free first.

    `arrivals` are times between arrivals, `services` how long each customer takes, `tellers` an integer: what would
    another teller, or a faster one, change?

    >>> bank_queue.crisp([0.0, 1.0, 1.0], [5.0, 2.0, 2.0], 2)
    0.3333333333333333
    """
    now, waited = 0.0, 0.0
    # When each teller will be free, the earliest first
    free = [0.0 for _ in range(tellers)]
    for k in range(len(arrivals)):
        now = now + arrivals[k]
        start = max(now, free[0])
        waited += start - now
        free[0] = start + services[k]
        for t in range(tellers - 1):
            if free[t] > free[t + 1]:
                free[t], free[t + 1] = free[t + 1], free[t]
    return waited / len(arrivals)


#: Every algorithm by name, for tests, the gallery and the documentation.
ALGORITHMS = {
    "bubble_sort": bubble_sort,
    "binary_search": binary_search,
    "levenshtein": levenshtein,
    "shortest_path": shortest_path,
    "flood_fill": flood_fill,
    "point_in_polygon": point_in_polygon,
    "bank_queue": bank_queue,
}

__all__ = [
    "ALGORITHMS",
    "bank_queue",
    "binary_search",
    "bubble_sort",
    "flood_fill",
    "levenshtein",
    "point_in_polygon",
    "shortest_path",
]

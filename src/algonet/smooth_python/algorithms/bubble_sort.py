"""Bubble sort, and how much it had to do."""

from __future__ import annotations

from ..decorator import smooth


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

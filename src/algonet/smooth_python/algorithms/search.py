"""Binary search for a value in a sorted list."""

from __future__ import annotations

from ..decorator import smooth


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

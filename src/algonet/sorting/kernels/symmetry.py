"""Which sigmoids are symmetric: kernels then evaluate one side, or the side that has more digits."""

from __future__ import annotations

from algonet.relax import SIGMOIDS, GumbelMax, GumbelMin, Sigmoid

_SYMMETRIC = frozenset(SIGMOIDS) - {GumbelMax, GumbelMin}


def is_symmetric(sigmoid: Sigmoid) -> bool:
    """Whether r(-z) = 1 - r(z); of a user's own sigmoid nothing is known."""
    return type(sigmoid) in _SYMMETRIC

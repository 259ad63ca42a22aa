"""The forward AlgoNet: ways to insert an algorithm into a network, and small algorithmic layers."""

from .functional import finite_differences
from .insertion import Insert, Residual, Shortcut
from .modules import FiniteDifferences, WeightedSoftmax, WeightedSoftmin

__all__ = [
    "FiniteDifferences",
    "Insert",
    "Residual",
    "Shortcut",
    "WeightedSoftmax",
    "WeightedSoftmin",
    "finite_differences",
]

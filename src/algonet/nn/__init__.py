"""The forward AlgoNet: ways to insert an algorithm into a network, and small algorithmic layers."""

from .functional import finite_differences
from .insertion import Insert, Residual, Shortcut
from .modules import FiniteDifferences, WeightedSoftmax, WeightedSoftmin
from .refining import refine
from .steps import Trainable
from .topology import Connection, Graph, SmoothDepth, SmoothGraph

__all__ = [
    "Connection",
    "FiniteDifferences",
    "Graph",
    "Insert",
    "Residual",
    "Shortcut",
    "SmoothDepth",
    "SmoothGraph",
    "Trainable",
    "WeightedSoftmax",
    "WeightedSoftmin",
    "finite_differences",
    "refine",
]

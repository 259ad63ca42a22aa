"""How much a trained network uses an algorithmic layer: sensitivity, activation, and gradual replacement."""

from .relevance import Activation, Sensitivity, activation, sensitivity
from .replacement import Replacement, replace_gradually

__all__ = ["Activation", "Replacement", "Sensitivity", "activation", "replace_gradually", "sensitivity"]

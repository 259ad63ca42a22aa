"""@smooth: write the algorithm in plain Python, get it smooth. if, while, for, comparisons and subscripts have gradients."""

from .decorator import SmoothFunction, smooth
from .language.refuse import NotSmoothError
from .paths import Enumerate, Merge, Particles, Paths, Perturb
from .report import Report
from .softness import Settings, softness

__all__ = [
    "Enumerate",
    "Merge",
    "NotSmoothError",
    "Particles",
    "Paths",
    "Perturb",
    "Report",
    "Settings",
    "SmoothFunction",
    "smooth",
    "softness",
]

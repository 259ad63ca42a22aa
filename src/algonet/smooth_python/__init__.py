"""@smooth: write the algorithm in plain Python, get it smooth. if, while, for, comparisons and subscripts have gradients."""

from .explaining import MergedStatesWarning, PathsReport, ProgramReport, paths_report
from .function import SmoothFunction
from .liveness import NotSmoothError
from .softness import Enumerate, Merge, Particles, Paths, Perturb, Report, Settings, softness
from .trainable import SmoothProgram, smooth

__all__ = [
    "Enumerate",
    "Merge",
    "MergedStatesWarning",
    "NotSmoothError",
    "Particles",
    "Paths",
    "PathsReport",
    "Perturb",
    "ProgramReport",
    "Report",
    "Settings",
    "SmoothFunction",
    "SmoothProgram",
    "paths_report",
    "smooth",
    "softness",
]

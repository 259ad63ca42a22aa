"""@smooth: write the algorithm in plain Python, get it smooth. if, while, for, comparisons and subscripts have gradients."""

from .checking import MergedStatesWarning
from .decorator import smooth
from .explaining import PathsReport, ProgramReport, paths_report
from .function import SmoothFunction
from .language.refuse import NotSmoothError
from .paths import Enumerate, Merge, Particles, Paths, Perturb
from .report import Report
from .softness import Settings, softness
from .trainable import SmoothProgram

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

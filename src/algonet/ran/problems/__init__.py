"""The inverse problems that ship, by the `kind` of a configuration: each a class, loaded when first asked for."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from .base import Parts, Problem

if TYPE_CHECKING:
    from algonet.ran.config import RunConfig

#: Kind -> module of this package and class.
PROBLEMS = {
    "mesh": ("mesh", "MeshProblem"),
    "ifs": ("fractal", "FractalProblem"),
    "speech": ("speech", "SpeechProblem"),
}


def problem_of(config: RunConfig) -> Problem:
    """The problem that a configuration describes."""
    module, name = PROBLEMS[config.kind]
    return getattr(importlib.import_module(f"{__name__}.{module}"), name)(config)


__all__ = ["PROBLEMS", "Parts", "Problem", "problem_of"]

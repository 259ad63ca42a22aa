"""The inverse problems that ship, by the `kind` of a configuration: each a class, loaded when first asked for."""

from __future__ import annotations

import importlib

from algonet.ran.config import PROBLEMS, RunConfig

from .base import Parts, Problem


def problem_of(config: RunConfig) -> Problem:
    """The problem that a configuration describes."""
    module, name = PROBLEMS[config.kind]
    return getattr(importlib.import_module(f"{__name__}.{module}"), name)(config)


__all__ = ["PROBLEMS", "Parts", "Problem", "problem_of"]

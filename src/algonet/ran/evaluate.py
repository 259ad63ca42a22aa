"""How good a trained model is, in the lines that the command prints."""

from __future__ import annotations

from .build import build_data
from .config import RunConfig
from .model import Trainable
from .problems import problem_of


def report(model: Trainable, config: RunConfig) -> list[str]:
    """One line each for where the model began and where it is, on the configuration's held-out items."""
    problem, data = problem_of(config), build_data(config, "test")
    rows = {"template": problem.evaluate(None, data), config.method: problem.evaluate(model, data)}
    shown = [(name, "  ".join(f"{key} {value:.3f}" for key, value in row.items())) for name, row in rows.items()]
    return [f"{name:>12}: {text}  ({len(data)} held-out items)" for name, text in shown]

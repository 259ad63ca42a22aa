"""Annealing: from soft, where gradients reach far, to hard, where the result is exact."""

from __future__ import annotations

import math
from collections.abc import Callable

from torch import nn

from algonet.core.checks import check_integer, check_module

from .modules import Softness, softnesses

#: How far along (0 to 1) the softness is, for a share t of the steps; geometric ones move in the logarithm.
_CURVES: dict[str, Callable[[float, float, float], float]] = {
    "linear": lambda a, b, t: a + (b - a) * t,
    "geometric": lambda a, b, t: a * (b / a) ** t,
    "cosine": lambda a, b, t: b + (a - b) * (1 + math.cos(math.pi * t)) / 2,
}


class Anneal:
    """Moves the softness of every algonet module inside a model from `start` to `end` over `steps` calls of `step()`.

    Curves: "geometric" (default: equal factors), "linear", "cosine". `field` is the softness to set, as the modules'
    `state_dict` names it: "steepness" of decisions, "scale" of noise, or one of its own such as the renderer's
    "depth_steepness". The value lives in the modules' own state; the schedule's position in `state_dict()`.

    >>> from algonet.nn import WeightedSoftmax
    >>> layer = WeightedSoftmax(steepness=1.0)
    >>> anneal = Anneal(1.0, 100.0, steps=2).attach(layer)
    >>> for _ in range(2):
    ...     anneal.step()
    ...     print(round(float(layer.steepness), 4))
    10.0
    100.0
    """

    def __init__(self, start: float, end: float, steps: int, curve: str = "geometric", *, field: str = "steepness"):
        if curve not in _CURVES:
            raise ValueError(f"Anneal: unknown curve {curve!r}; choose one of {', '.join(_CURVES)}.")
        if not (start > 0 and end > 0):
            raise ValueError(f"Anneal: `start` and `end` must be positive, got {start!r} and {end!r}.")
        steps = check_integer("Anneal", "steps", steps, 1)
        if not isinstance(field, str) or not field.endswith(("steepness", "scale")):
            raise ValueError(f"Anneal: `field` must be a softness such as 'steepness' or 'scale', got {field!r}.")
        self.start, self.end, self.steps, self.curve, self.field = start, end, steps, curve, field
        self.position = 0
        self._targets: list[Softness] = []

    def value(self, step: int) -> float:
        """The softness after `step` steps: a pure function, constant after the last."""
        return _CURVES[self.curve](self.start, self.end, min(max(step, 0), self.steps) / self.steps)

    def attach(self, module: nn.Module) -> Anneal:
        """Take charge of every `field` inside `module`, and set it to the present value."""
        check_module("Anneal", module)
        held = softnesses(module)
        found = [softness for softness in held if softness.attribute == self.field]
        if not found:
            listed = f"; it has: {', '.join(softness.path for softness in held)}" if held else ""
            raise ValueError(f"Anneal: {type(module).__name__} holds no algonet module with a `{self.field}`{listed}.")
        learned = [softness for softness in found if isinstance(softness.value, nn.Parameter)]
        if learned:
            raise ValueError(f"Anneal: {learned[0].path} is a learnable parameter; learn it or anneal it.")
        self._targets += found
        self._apply()
        return self

    def __repr__(self) -> str:
        return f"Anneal({self.field} from {self.start:g} to {self.end:g}, {self.curve}, step {self.position} of {self.steps})"

    def step(self) -> None:
        """Advance by one and set the softness of the attached modules."""
        if not self._targets:
            raise RuntimeError("Anneal: step() before attach() would change nothing; call anneal.attach(model) first.")
        self.position += 1
        self._apply()

    def state_dict(self) -> dict[str, int]:
        return {"position": self.position}

    def load_state_dict(self, state: dict[str, int]) -> None:
        if "position" not in state:
            raise ValueError(f"Anneal: `state` must have a 'position', as state_dict() gives it; got {list(state)}.")
        self.position = int(state["position"])
        self._apply()

    def _apply(self) -> None:
        for softness in self._targets:
            softness.module.set_softness(softness.attribute, self.value(self.position))

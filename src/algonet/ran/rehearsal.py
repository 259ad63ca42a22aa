"""A RAN that also practises on pictures of its own making."""

from __future__ import annotations

from typing import Any, Protocol

import torch
from torch import Tensor

from .losses import LOSSES, Paths, distance
from .model import RAN, TOGETHER, Batch


class Drawing(Protocol):
    """A reconstructor that knows what it begins with and what it could answer."""

    start: Tensor

    def draw(self, count: int) -> Tensor: ...


class RehearsingRAN(RAN):
    """A RAN whose reconstructor also rehearses: theta is drawn, b = Inv(theta) and b2a(b) are pictures with a known answer,

        L_rehearsal = E_theta [ |theta' - theta| + ||Inv(theta') - b||_1 ],     theta' = R(b2a(b)).

    Not in the paper, but made of its parts only: the inverse, the translator, and what the reconstructor says it could
    answer (its `draw(count)`), without a look at the data. Gradients reach R alone. For the first `wait` steps R answers
    its `start` to the five losses and rehearses in private: translators learn to know each other meanwhile, and what the
    five losses then meet is a reconstructor that reads its own pictures already.
    """

    reconstructor: Drawing
    waits = False

    def __init__(self, *parts: Any, weight: float = 50.0, wait: int = 0, **options: Any):
        super().__init__(*parts, **options)
        self.weight, self.wait = weight, wait
        self.private = False

    def at_step(self, step: int) -> None:
        self.private = step < self.wait

    def reconstruct(self, a: Tensor) -> Any:
        if self.private:
            start = self.reconstructor.start
            return start.expand(len(a), *start.shape)
        return super().reconstruct(a)

    def forward(
        self, batch: Batch | Tensor, section: str | None = None, index: int = 0, known: Paths | None = None
    ) -> Any:
        value = super().forward(batch, section, index, known)
        if section != "a2b" or index == 0:
            return value
        seeing = [i for i in self.weights.active if LOSSES[i].needs & {"b2", "a2"}]
        share = 1.0 if index == TOGETHER else (index in seeing) / len(seeing)
        return value + self.weight * share * self.rehearse(batch["a"]) if share else value  # pyright: ignore[reportArgumentType]

    def rehearse(self, like: Tensor) -> Tensor:
        """L_rehearsal over as many drawn reconstructions as `like` has pictures."""
        with torch.no_grad():
            theta = self.reconstructor.draw(len(like))
            b = self.invert(theta, like)
            a = self.b2a(b)
        found = super().reconstruct(a)
        return (found - theta).abs().mean() + distance(self.invert(found, like), b, 1.0)

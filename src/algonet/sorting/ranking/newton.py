"""Newton losses: any loss, stepped through by its curvature before the gradient reaches the network (Petersen et al., 2024)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn


class NewtonLoss(nn.Module):
    """The value of `loss(scores, *targets)`, and at the scores (H + tikhonov I)^-1 g in the place of its gradient g.

    Losses of order have slopes that vanish here and explode there; a network is better told where Newton's method would move
    its outputs (Petersen et al., "Newton Losses", NeurIPS 2024). `scores` are (batch, n), each row one sample. g is the
    gradient of a row's own loss and H

    - with `fisher=False` the Hessian of that row's loss, exact because second derivatives are; n further passes;
    - with `fisher=True` the mean of g g^T over the batch: one matrix, one solve, no second derivative.

    `loss` returns one number for each row, or their mean. `tikhonov` is in units of the curvature: large ones leave the
    gradient's direction (the limit is g / tikhonov), small ones trust H, which for losses that are not convex may be
    indefinite, so that 0.1 to 10 are usual. Gradients by anything but the scores, such as a learned steepness, are the plain
    ones. Not twice differentiable.

    >>> loss = NewtonLoss(lambda x, y: (2 * (x - y) ** 2).sum(-1), tikhonov=0.0)
    >>> x = torch.tensor([[1.0, 5.0]], requires_grad=True)
    >>> loss(x, torch.zeros(1, 2)).backward()
    >>> x.grad  # a step of 1 against it reaches the minimum
    tensor([[1., 5.]])
    """

    def __init__(self, loss: Callable[..., Tensor], *, fisher: bool = False, tikhonov: float = 1.0):
        super().__init__()
        if tikhonov < 0:
            raise ValueError(f"NewtonLoss: `tikhonov` must not be negative, got {tikhonov}.")
        self.loss, self.fisher, self.tikhonov = loss, fisher, float(tikhonov)

    def forward(self, scores: Tensor, *targets: Any, **options: Any) -> Tensor:
        if scores.dim() != 2:
            raise ValueError(f"NewtonLoss: `scores` must be (batch, n), got shape {tuple(scores.shape)}.")
        rows = max(scores.shape[0], 1)
        with torch.enable_grad():
            leaf = scores.detach().requires_grad_()
            value = self.loss(leaf, *targets, **options)
        if value.shape not in (torch.Size(), scores.shape[:1]):
            raise ValueError(
                f"NewtonLoss: `loss` must return their mean or one number for each of {rows} rows, "
                f"got shape {tuple(value.shape)}."
            )
        mean = value if value.dim() == 0 else value.mean()
        if not scores.requires_grad:
            return mean
        total = mean * rows
        gradient = torch.autograd.grad(total, leaf, retain_graph=True, create_graph=not self.fisher)[0]
        curvature = self._fisher(gradient) if self.fisher else self._hessian(gradient, leaf)
        eye = torch.eye(scores.shape[1], dtype=scores.dtype, device=scores.device)
        step = torch.linalg.solve(curvature + self.tikhonov * eye, gradient.detach().unsqueeze(-1)).squeeze(-1)
        return mean + (step * (scores - leaf.detach())).sum() / rows

    @staticmethod
    def _fisher(gradient: Tensor) -> Tensor:
        return gradient.T @ gradient / max(len(gradient), 1)

    @staticmethod
    def _hessian(gradient: Tensor, leaf: Tensor) -> Tensor:
        """(batch, n, n): rows of the batch do not meet, so one pass gives a row of every Hessian."""
        found = [torch.autograd.grad(g.sum(), leaf, retain_graph=True)[0] for g in gradient.unbind(-1)]
        return torch.stack(found, -2)

    def extra_repr(self) -> str:
        return f"fisher={self.fisher}, tikhonov={self.tikhonov:g}"

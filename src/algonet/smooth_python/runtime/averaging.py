"""The mean over particles, with the gradient of the mean over what they drew."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from algonet.core import tracing


def particle_mean(f: Tensor, score: Tensor) -> Tensor:
    """The mean of f (items, particles, ...) over particles, whose logarithms of probabilities are `score` (broadcast to f).

    Value and all derivatives are those of the mean of (f - b) exp(score - detached score) + b, b the mean f of the *other*
    particles: it knows nothing of this one's draws, so it moves no expectation.
    """
    if not tracing.transforming() and not tracing.differentiating((score,)):
        return f.mean(1)
    if tracing.transforming() or tracing.compiling() or tracing.pushing():
        return _weighted_mean(f, score)
    return _ParticleMean.apply(f, score)  # pyright: ignore[reportReturnType]


def _weighted_mean(f: Tensor, score: Tensor) -> Tensor:
    others = ((f.sum(1, keepdim=True) - f) / (f.shape[1] - 1)).detach()
    return ((f - others) * torch.exp(score - score.detach()) + others).mean(1)


class _ParticleMean(torch.autograd.Function):
    """`_weighted_mean` with its first derivative in closed form: df + (f - b) dscore, without tables in between."""

    @staticmethod
    def forward(ctx: Any, f: Tensor, score: Tensor) -> Tensor:
        ctx.save_for_backward(f, score)
        return f.mean(1)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor]:  # pyright: ignore[reportIncompatibleMethodOverride]
        f, score = ctx.saved_tensors
        if torch.is_grad_enabled():
            # Somebody wants a second derivative
            with torch.enable_grad():
                return torch.autograd.grad(_weighted_mean(f, score), (f, score), grad, create_graph=True)
        count = f.shape[1]
        grad = grad.unsqueeze(1)
        # f - b is count / (count - 1) of f - mean
        of_score = (f - f.mean(1, keepdim=True)).mul_(grad / (count - 1))
        return (grad / count).expand_as(f), of_score.sum_to_size(score.shape)

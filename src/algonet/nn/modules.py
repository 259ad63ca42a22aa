"""Thin modules over functions that need no domain of their own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from torch import Tensor, nn

from algonet.relax import Choice, SoftModule, weighted_softmax, weighted_softmin

from .functional import finite_differences, gated_differences


class FiniteDifferences(nn.Module):
    """The discrete derivative along `dims`; see `finite_differences`.

    >>> import torch
    >>> FiniteDifferences(dims=-1, pad="zero")(torch.tensor([0.0, 1.0, 3.0]))
    tensor([1., 2., 0.])
    """

    def __init__(
        self, dims: int | Sequence[int] = -1, center: bool = False, pad: str | None = None, stack: int | None = None
    ):
        super().__init__()
        self.dims = tuple(dims) if isinstance(dims, Sequence) else dims
        self.center = center
        self.pad, self.stack = pad, stack

    def forward(self, x: Tensor) -> Tensor:
        return finite_differences(x, self.dims, center=self.center, pad=self.pad, stack=self.stack)

    def run_gated(self, make_gates: Callable[[tuple[int, ...], list[str], Tensor], Tensor], x: Tensor) -> Tensor:
        """Each difference times its gate; the gates are `make_gates(batch, labels, like)`, (*batch, stencils)."""
        return gated_differences(x, self.dims, self.center, self.pad, self.stack, make_gates)

    if TYPE_CHECKING:
        __call__ = forward

    def extra_repr(self) -> str:
        stacked = "" if self.stack is None else f", stack={self.stack}"
        return f"dims={self.dims}, center={self.center}, pad={self.pad!r}{stacked}"


class WeightedSoftmax(SoftModule):
    """softmax(steepness x + log w) along `dim`; see `weighted_softmax`. The steepness is saved, annealed or learned."""

    _shares = staticmethod(weighted_softmax)

    def __init__(self, steepness: float | Tensor = 1.0, *, dim: int = -1):
        super().__init__(Choice(steepness))
        self.dim = dim

    def forward(self, x: Tensor, weights: Tensor | None = None) -> Tensor:
        return self._shares(x, weights, dim=self.dim, steepness=self.relax.steepness)  # pyright: ignore[reportAttributeAccessIssue]

    if TYPE_CHECKING:
        __call__ = forward


class WeightedSoftmin(WeightedSoftmax):
    """softmax(-steepness x + log w) along `dim`; see `weighted_softmin`."""

    _shares = staticmethod(weighted_softmin)

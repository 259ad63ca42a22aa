"""How the shares that many points have in one pixel become that pixel's value: functions of one sum per pixel."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from algonet.relax import Probabilistic, Relaxation


@dataclass(frozen=True, eq=False)
class Poisson(Relaxation):
    """1 - exp(-sum p): the chance of at least one event when they come as a Poisson process of that total rate.

    It depends on the sum of the shares alone, so shares may exceed 1 (weights are exposures), splitting a point in two
    of half the weight changes nothing, and the sum over points is a matrix product. Not a t-conorm: 1 does not absorb.
    For many small shares it equals `Probabilistic`, from which it differs by sum p^2/2 in the exponent. C-infinity.

    >>> Poisson().reduce(torch.tensor([0.5, 0.5]))
    tensor(0.6321)
    """

    def reduce(self, p: Tensor, dim: int = -1) -> Tensor:
        """1 - exp(-sum) of `p` along `dim`."""
        return -torch.expm1(-p.sum(dim))


Aggregate = Probabilistic | Poisson


def check_aggregate(where: str, aggregate: object) -> bool:
    """Whether `aggregate` sums logarithms (`Probabilistic`) rather than the shares (`Poisson`); an error for others."""
    if isinstance(aggregate, Probabilistic):
        return True
    if isinstance(aggregate, Poisson):
        return False
    raise TypeError(f"{where}: `aggregate` must be Probabilistic() or Poisson(), got {aggregate!r}.")

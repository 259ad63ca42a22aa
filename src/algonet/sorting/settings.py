"""What the backends of this domain agree on besides tensors: one settings class for each kind of operation."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from algonet.core import tracing
from algonet.core.identity import PLANS, canonical, identity, interned
from algonet.relax import SIGMOIDS, GumbelMax, GumbelMin, Sigmoid

from .networks import Comparators, Network


@dataclass(frozen=True, eq=False)
class SortSettings:
    """Network, sigmoid (interned), number of layers, wanted positions; `masked` says that rows have their own lengths.

    `sort_settings` gives one object for all that are alike, so caches may go by it.
    """

    network: Network
    sigmoid: Sigmoid
    steps: int | None = None
    keep: tuple[int, ...] | None = None
    masked: bool = False

    def table(self, n: int, device: torch.device | str = "cpu") -> Comparators:
        return self.network.table(n, self.steps, self.keep, device)


def sort_settings(
    network: Network,
    relax: Sigmoid,
    steps: int | None = None,
    keep: tuple[int, ...] | None = None,
    masked: bool = False,
) -> SortSettings:
    """The settings of a call: the same object for every call that is like it."""
    if tracing.compiling():
        return SortSettings(network, interned(relax), steps, keep, masked)
    key = (SortSettings, identity(network), identity(relax), steps, keep, masked)
    found = PLANS.find(key)
    if found is None:
        made = canonical(SortSettings(interned(network), interned(relax), steps, keep, masked))
        found = PLANS.put(key, made)
    return found


@dataclass(frozen=True)
class ThresholdSettings:
    """The sigmoid (interned), and whether there is a mask."""

    sigmoid: Sigmoid
    masked: bool


@dataclass(frozen=True)
class CountSettings:
    """The sigmoid (interned), and whether results are wanted to 1e-11 instead of 1e-7."""

    sigmoid: Sigmoid
    precise: bool


@dataclass(frozen=True)
class LaplaceSettings:
    """There is nothing to choose."""


def is_symmetric(sigmoid: Sigmoid) -> bool:
    """Whether r(-z) = 1 - r(z): kernels then evaluate one side, or that with more digits. Of a user's own nothing is known."""
    return type(sigmoid) in SIGMOIDS and not isinstance(sigmoid, GumbelMax | GumbelMin)

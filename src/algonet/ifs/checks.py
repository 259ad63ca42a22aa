"""What the functions of this domain accept, and what they say otherwise."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from algonet.relax import GaussianNoise, Probabilistic, Relaxation
from algonet.relax.noise import Noise

#: (x0, x1, y0, y1): the part of the plane that a picture shows, y up.
Extent = tuple[float, float, float, float]


def check_extent(where: str, extent: Any) -> Extent:
    numbers = isinstance(extent, (tuple, list)) and len(extent) == 4 and set(map(type, extent)) <= {int, float}
    x0, x1, y0, y1 = map(float, extent) if numbers else (math.nan,) * 4
    most = math.hypot(x0, x1, y0, y1)  # infinite or NaN if one of them is
    if not most < math.inf:
        raise ValueError(f"{where}: `extent` must be four finite numbers (x0, x1, y0, y1), got {extent!r}.")
    if not (x0 < x1 and y0 < y1):
        raise ValueError(f"{where}: `extent` must have x0 < x1 and y0 < y1 (y points up), got {extent!r}.")
    if most > 1e30:
        raise ValueError(
            f"{where}: `extent` must stay within 1e30, which is what float32 can square twice, got {extent!r}."
        )
    return x0, x1, y0, y1


def check_noise(where: str, noise: Any) -> None:
    if not isinstance(noise, GaussianNoise):
        kind = "; the share of a pixel has a closed form for normal noise alone" if isinstance(noise, Noise) else ""
        raise TypeError(f"{where}: `noise` must be GaussianNoise(scale), in pixels, got {noise!r}{kind}.")


def check_sigma(where: str, sigma: Any, like: Tensor) -> Tensor:
    """`sigma` as a tensor like `like`. The values of a tensor are not read (no synchronisation): below 1e-6 counts as 1e-6."""
    if isinstance(sigma, Tensor):
        if not sigma.is_floating_point():
            raise TypeError(f"{where}: `sigma` must be a number or a floating tensor, got a tensor of {sigma.dtype}.")
        return sigma.to(like)
    if isinstance(sigma, bool) or not isinstance(sigma, (int, float)):
        raise TypeError(f"{where}: `sigma` must be a positive number of pixels or a floating tensor, got {sigma!r}.")
    if not 0 < sigma < math.inf:
        raise ValueError(
            f"{where}: `sigma` must be positive and finite (pixels), got {sigma!r}; for crisp pictures use IFS.crisp()."
        )
    return torch.full((), min(float(sigma), 1e30), dtype=like.dtype, device=like.device)


def parameters_of(where: str, ifs: Any) -> Tensor:
    parameters: Any = ifs if isinstance(ifs, Tensor) else getattr(ifs, "maps", None)
    if not isinstance(parameters, Tensor) or not parameters.is_floating_point():
        kind = parameters.dtype if isinstance(parameters, Tensor) else type(ifs).__name__
        instead = ""
        if isinstance(ifs, int):
            instead = f'; a picture\'s size comes with the call, as in IFS.preset("fern")({ifs})'
        elif isinstance(ifs, str):
            instead = f"; write IFS.preset({ifs!r}) or IFS.load({ifs!r})"
        raise TypeError(f"{where}: expected an IFS or a floating tensor of parameters, got {kind}{instead}.")
    if parameters.ndim < 2 or parameters.shape[-1] != 6 or parameters.shape[-2] < 1:
        raise ValueError(f"{where}: parameters must be (*batch, n, 6) with n from 1 on, got {tuple(parameters.shape)}.")
    return parameters


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

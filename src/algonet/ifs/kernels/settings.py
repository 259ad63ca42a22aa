"""What the kernels are told beside their tensors, as strings that torch operators can carry; and shared plumbing."""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class SplatSettings:
    """Size of the picture, whether intensities are -log(1 - share), the cut, and whether sums must be reproducible."""

    height: int
    width: int
    logs: bool
    epsilon: float
    deterministic: bool = False

    def encode(self) -> str:
        return f"{self.height},{self.width},{int(self.logs)},{self.epsilon!r},{int(self.deterministic)}"

    @staticmethod
    @functools.lru_cache(maxsize=256)
    def decode(text: str) -> SplatSettings:
        height, width, logs, epsilon, deterministic = text.split(",")
        return SplatSettings(int(height), int(width), logs == "1", float(epsilon), deterministic == "1")

    @property
    def reach(self) -> float:
        """Half the side, in sigmas, of the square outside of which a Gaussian has the mass epsilon."""
        return square_reach(self.epsilon)


@dataclass(frozen=True)
class ChaosSettings:
    """Steps that are not drawn, and after how many the gradient is cut (0: never)."""

    burn_in: int
    horizon: int

    def encode(self) -> str:
        return f"{self.burn_in},{self.horizon}"

    @staticmethod
    @functools.lru_cache(maxsize=256)
    def decode(text: str) -> ChaosSettings:
        burn_in, horizon = text.split(",")
        return ChaosSettings(int(burn_in), int(horizon))


@functools.lru_cache(maxsize=256)
def square_reach(epsilon: float) -> float:
    """r with P(|x| > r or |y| > r) = epsilon for a standard normal pair, by bisection."""
    low, high = 0.0, 40.0
    for _ in range(80):
        middle = (low + high) / 2
        tail = math.erfc(middle / math.sqrt(2))
        low, high = (middle, high) if tail * (2 - tail) > epsilon else (low, middle)
    return high


def flat(tensor: Tensor, trailing: int) -> Tensor:
    """Leading dimensions as one, contiguous and detached."""
    detached = tensor.detach()
    shape = detached.shape[detached.ndim - trailing :]
    return detached.reshape(math.prod(detached.shape[: detached.ndim - trailing]), *shape).contiguous()


def blocks(items: int, length: int, shortest: int, most: int) -> list[tuple[int, int, int, int]]:
    """(item, block, first, last) of a cut of each item's `length` into equal blocks; it depends on the sizes alone."""
    count = max(1, min(most, length // shortest))
    bounds = [length * k // count for k in range(count + 1)]
    return [(i, k, bounds[k], bounds[k + 1]) for i in range(items) for k in range(count)]

"""Sorting networks: which pairs of items meet, in which order. Frozen options that produce tables for any n."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from algonet.core.cache import TENSORS
from algonet.core.identity import identity
from algonet.core.memory import check_memory
from algonet.relax import Sigmoid

from .methods import KNOWN, Method


@dataclass(frozen=True, eq=False)
class Comparators:
    """The comparators of a network for n items, as tensors that move with `.to()`.

    Comparator j lets items `first[j]` < `second[j]` meet; layer l holds comparators `start[l]` to `stop[l]`, whose pairs
    are disjoint (equal layers share their entries). In a row with only m of the n items a comparator exists where
    m >= `need[j]` and m >= `layer_need[l]`: what then remains is exactly the network for m items.
    """

    n: int
    first: Tensor
    second: Tensor
    need: Tensor
    start: Tensor
    stop: Tensor
    layer_need: Tensor

    @property
    def depth(self) -> int:
        """The number of layers."""
        return len(self.start)

    @property
    def count(self) -> int:
        """The number of exchanges that a row of n items goes through."""
        return int((self.stop - self.start).sum())

    def layer(self, index: int) -> tuple[Tensor, Tensor]:
        """The pairs (first, second) of one layer."""
        span = self.spans[index]
        return self.first[span], self.second[span]

    def tensors(self) -> tuple[Tensor, ...]:
        return self.first, self.second, self.need, self.start, self.stop, self.layer_need

    def to(self, device: torch.device | str) -> Comparators:
        moved = Comparators(self.n, *(t.to(device) for t in self.tensors()))
        # Python's numbers, which no device is to be asked for, layer by layer
        moved.__dict__["spans"] = self.spans
        return moved

    @functools.cached_property
    def addresses(self) -> tuple[np.ndarray, int]:
        """Where the tensors are, and the depth, and where that stands: what kernels on the CPU read."""
        found = np.array([*(t.data_ptr() for t in self.tensors()), self.depth], np.intp)
        return found, found.ctypes.data

    @functools.cached_property
    def spans(self) -> list[slice]:
        """The comparators of each layer."""
        return [slice(*ends) for ends in zip(self.start.tolist(), self.stop.tolist(), strict=True)]


@dataclass(frozen=True)
class Network(Method):
    """A sorting network for any number of items. Subclasses say which pairs meet in each layer.

    With `right_aligned` a row of m < n items occupies the last m places, else the first m.
    """

    right_aligned: ClassVar[bool] = False
    kernels: ClassVar[bool] = True

    def work(self, n: int, relax: Sigmoid) -> float:
        return self.depth(n) * n / 2

    def depth(self, n: int) -> int:
        """How many layers sort n items."""
        raise NotImplementedError

    def pairs(self, n: int, layer: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """(first, second, need) of one layer; see `Comparators`."""
        raise NotImplementedError

    def layer_need(self, layer: int) -> int:
        """The number of items from which on the complete network has this layer."""
        raise NotImplementedError

    def period(self) -> int | None:
        """After how many layers the pairs repeat, `None` where they do not."""
        return None

    def layers(self, n: int, steps: int | None) -> int:
        """How many layers run when `steps` are asked for; `None` asks for all."""
        return self.depth(n) if steps is None else steps

    def table(
        self,
        n: int,
        steps: int | None = None,
        keep: tuple[int, ...] | None = None,
        device: torch.device | str = "cpu",
    ) -> Comparators:
        """The comparators for n items, on `device`; with `keep`, only those that can reach one of these output positions.

        >>> OddEven().table(8).count, OddEven().table(8, keep=(3, 4)).count
        (28, 24)
        """
        place = torch.device(device)
        key = (identity(self), n, steps, keep, place)
        cpu = place.type == "cpu"
        return TENSORS.get(
            ("comparators", *key), lambda: _table(self, n, steps, keep) if cpu else self.table(n, steps, keep).to(place)
        )


#: OddEven() says what to use instead beyond so many items: Bitonic() is sharper from some 32 on, and there 20 times faster.
MANY = 1024


@dataclass(frozen=True)
class OddEven(Network):
    """Odd-even transposition, the paper's SoftSort: n layers of neighbours, n (n - 1) / 2 exchanges.

    Layer 0 compares items (0, 1), (2, 3), ..., layer 1 items (1, 2), (3, 4), ..., and so on alternately. Beyond 1,024 items
    it warns (`SoftnessWarning`): `Bitonic` is then faster and far sharper.
    """

    def depth(self, n: int) -> int:
        return n if n > 1 else 0

    def pairs(self, n: int, layer: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        first = np.arange(layer % 2, n - 1, 2)
        return first, first + 1, first + 2

    def layer_need(self, layer: int) -> int:
        return layer + 1

    def period(self) -> int | None:
        return 2


@dataclass(frozen=True)
class Bitonic(Network):
    """Batcher's bitonic sorter with all comparators pointing one way: about log2(n)^2 / 2 layers.

    For n that is not a power of two the items are the last n of the next power; a comparator with a missing item is
    left out, so nothing leaks in. Items far apart meet early: it blurs far less than `OddEven` at large n.
    """

    right_aligned: ClassVar[bool] = True

    def depth(self, n: int) -> int:
        stages = max(n - 1, 0).bit_length()
        return stages * (stages + 1) // 2

    def layers(self, n: int, steps: int | None) -> int:
        return self.depth(n) if steps is None else min(steps, self.depth(n))

    def pairs(self, n: int, layer: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        mask = self.stage_and_mask(layer)[1]
        low = np.arange(1 << max(n - 1, 0).bit_length())
        low = low[(low & (1 << (mask.bit_length() - 1))) == 0]
        high = low ^ mask
        inside = high < n
        # Counted from the last item, so that a missing item is always beyond the end
        return n - 1 - high[inside], n - 1 - low[inside], high[inside] + 1

    def layer_need(self, layer: int) -> int:
        return (1 << self.stage_and_mask(layer)[0]) + 1

    @staticmethod
    def stage_and_mask(layer: int) -> tuple[int, int]:
        """(stage, mask) of a layer: item i, counted from the end, meets i ^ mask; a stage merges blocks of 2^stage."""
        stage = 0
        while layer > stage:
            layer -= stage + 1
            stage += 1
        return stage, (2 << stage) - 1 if layer == 0 else 1 << (stage - layer)


def _table(network: Network, n: int, steps: int | None, keep: tuple[int, ...] | None) -> Comparators:
    layers = network.layers(n, steps)
    period = network.period() or max(layers, 1)
    # Three 64-bit numbers per comparator, of which a layer has half of n, and per layer
    needed = 24 * (min(layers, period) * n // 2 + layers)
    check_memory(type(network).__name__, f"a network of {layers} layers for {n} items", needed)
    whole = [network.pairs(n, layer) for layer in range(min(period, layers))]
    ends = np.cumsum([0, *(len(first) for first, _, _ in whole)])
    parts, spans, size = (
        [*whole],
        [(int(ends[i % period]), int(ends[i % period + 1])) for i in range(layers)],
        int(ends[-1]),
    )
    if keep is not None:
        reached = np.zeros(n, dtype=bool)
        reached[list(keep)] = True
        for layer in reversed(range(layers)):
            columns, start = whole[layer % period], spans[layer][0]
            useful = np.flatnonzero(reached[columns[0]] | reached[columns[1]])
            for ends in columns[:2]:
                reached[ends[useful]] = True
            low, high = (int(useful[0]), int(useful[-1]) + 1) if len(useful) else (0, 0)
            spans[layer] = start + low, start + high
            # Pairs that lie side by side are a span of the whole layer; others are copied
            if high - low != len(useful):
                parts.append((columns[0][useful], columns[1][useful], columns[2][useful]))
                spans[layer] = size, size + len(useful)
                size += len(useful)
    columns = [np.concatenate([p[i] for p in parts]) if parts else np.zeros(0) for i in range(3)]
    # With `steps` given, every row runs that many layers, however few its items
    needs = [network.layer_need(layer) if steps is None or network.right_aligned else 0 for layer in range(layers)]
    first, second, need, start, stop, layer_need = (
        torch.from_numpy(np.asarray(column, dtype=np.int32).reshape(-1))
        for column in (*columns, [s for s, _ in spans], [s for _, s in spans], needs)
    )
    return Comparators(n, first, second, need, start, stop, layer_need)


# They answer every question: errors and `which_method` name them before those that answer some
KNOWN[1:1] = [Bitonic(), OddEven()]

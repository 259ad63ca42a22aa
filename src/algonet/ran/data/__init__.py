"""Data sets: seeded items made when asked for, and a user's own folders.

Item i of a procedural data set is a pure function of (seed, i): the same on every machine, in every order, in every
process."""

from __future__ import annotations

import torch
from torch import Generator as Random
from torch import Tensor
from torch.utils.data import Dataset

Item = dict[str, Tensor]
#: Seeds of the splits: settings are chosen on "validation", results are reported on "test".
SPLITS = {"train": 0, "test": 1, "validation": 2}


def split_seed(seed: int, split: str) -> int:
    """The seed of one split, different for each pair."""
    if split not in SPLITS:
        raise ValueError(f"data: unknown split {split!r}; choose from {', '.join(SPLITS)}.")
    return len(SPLITS) * seed + SPLITS[split]


def generator_of(seed: int, index: int) -> Random:
    """Randomness of its own for item `index`."""
    # An odd multiplier spreads consecutive indices over the generator's seeds
    return Random().manual_seed((seed * 0x9E3779B1 + index * 0x85EBCA6B + 0x2545F491) % 2**63)


def uniform(random: Random, low: float, high: float, *shape: int) -> Tensor:
    return low + (high - low) * torch.rand(shape, generator=random)


def number(random: Random, low: float, high: float) -> float:
    return float(uniform(random, low, high))


class CachedItems(Dataset):
    """Items (dictionaries of tensors) made when first asked for, on the device chosen by `to`, and cached there.

    Subclasses say in `make` how the items of some indices are made. `batch` gives several at once, stacked.
    """

    def __init__(self, count: int):
        self.count, self.labels = count, 0
        self.device = torch.device("cpu")
        self._cache: dict[int, Item] = {}

    def make(self, indices: list[int]) -> list[Item]:
        raise NotImplementedError

    def __len__(self) -> int:
        return self.count

    def to(self, device: torch.device | str) -> CachedItems:
        """Make and cache items on `device` from now on."""
        self.device = torch.device(device)
        self._cache = {i: {name: t.to(device) for name, t in item.items()} for i, item in self._cache.items()}
        return self

    def label(self, share: float) -> CachedItems:
        """Let batches carry labelled items beside the others: the first `share` of the items is labelled, at least one."""
        if not 0 < share <= 1:
            raise ValueError(f"data: the share of labelled items must be in (0, 1], got {share!r}.")
        self.labels = max(1, round(share * self.count))
        return self

    def __getitem__(self, index: int) -> Item:
        if not 0 <= index < self.count:
            raise IndexError(f"{type(self).__name__}: item {index} of {self.count}.")
        self._fill([index])
        return self._cache[index]

    def batch(self, indices: list[int], names: tuple[str, ...]) -> Item:
        """The items `indices` stacked, `names` of them only, on the data set's device. "labelled.NAME" is of labelled items,
        for index i of item i modulo their number, so that few labels are seen as often as many."""
        found = {}
        for name in names:
            plain = name.removeprefix("labelled.")
            chosen = indices if plain == name else [index % self.labels for index in indices]
            self._fill(chosen)
            found[name] = torch.stack([self._cache[index][plain] for index in chosen])
        return found

    def _fill(self, indices: list[int]) -> None:
        missing = [index for index in dict.fromkeys(indices) if index not in self._cache]
        if missing:
            self._cache.update(zip(missing, self.make(missing), strict=True))

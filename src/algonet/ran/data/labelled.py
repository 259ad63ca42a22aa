"""A data set of which a few items come with their truth."""

from __future__ import annotations

import torch
from torch.utils.data import Dataset

from . import CachedItems, Item


class Labelled(Dataset):
    """`data` whose batches carry as many labelled items beside the unlabelled: "labelled.a", "labelled.NAME".

    The first `share` of the items is labelled (at least one). Item i is accompanied by the labelled item i modulo their
    number, so that few labels are seen as often as many.
    """

    def __init__(self, data: CachedItems, share: float):
        if not 0 < share <= 1:
            raise ValueError(f"Labelled: `share` must be in (0, 1], got {share!r}.")
        self.data = data
        self.labels = max(1, round(share * len(data)))

    def __len__(self) -> int:
        return len(self.data)

    def to(self, device: torch.device | str) -> Labelled:
        self.data.to(device)
        return self

    def batch(self, indices: list[int], names: tuple[str, ...]) -> Item:
        prefix = "labelled."
        unlabelled_names = tuple(name for name in names if not name.startswith(prefix))
        labelled_names = tuple(name.removeprefix(prefix) for name in names if name.startswith(prefix))
        unlabelled = self.data.batch(indices, unlabelled_names)
        labelled = self.data.batch([index % self.labels for index in indices], labelled_names)
        return {**unlabelled, **{f"{prefix}{name}": tensor for name, tensor in labelled.items()}}

"""Data sets: seeded items made when asked for, and a user's own folders.

Item i of a procedural data set is a pure function of (seed, i): the same on every machine, in every order, in every
process."""

from __future__ import annotations

import warnings
import zlib
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Generator as Random
from torch import Tensor
from torch.utils.data import Dataset

Item = dict[str, Tensor]
#: Seeds of the splits: settings are chosen on "validation", results are reported on "test".
SPLITS = {"train": 0, "test": 1, "validation": 2}
#: Percent of the files that belong to each split, by their names.
SHARES = {"train": range(80), "validation": range(80, 90), "test": range(90, 100)}
#: Files that are looked at; others (notes, hidden files) are passed over.
ENDINGS = (".png", ".jpg", ".jpeg", ".webp", ".bmp", ".tif", ".tiff", ".gif", ".wav")


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

    Subclasses say in `make_one`, or for several at once in `make`, how the items of some indices are made; or hand them over
    instead of their number. `batch` gives several at once, stacked.
    """

    def __init__(self, items: int | list[Item]):
        self._cache: dict[int, Item] = {} if isinstance(items, int) else dict(enumerate(items))
        self.count, self.labels = items if isinstance(items, int) else len(items), 0
        self.device = torch.device("cpu")

    def make(self, indices: list[int]) -> list[Item]:
        return [self.make_one(index) for index in indices]

    def make_one(self, index: int) -> Item:
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


def split_of(name: str) -> str:
    """The split of a file: a function of its name alone, so that files that come later move no other one.

    >>> split_of("mug.png"), split_of("mug.png") == split_of("mug.jpg")
    ('train', True)
    """
    place = zlib.crc32(Path(name).stem.encode()) % 100
    return next(split for split, share in SHARES.items() if place in share)


class Folder(CachedItems):
    """The inputs `a` in a folder: pictures, or sounds for speech; nothing else is known of them.

    Folders "train", "validation" and "test" inside say which file is which; without them the name decides, see
    `split_of`: about 80, 10 and 10 of 100. All files are read at once. One that cannot be is named, and passed over
    (`bad_files` "skip") or refused."""

    def __init__(
        self, folder: str | Path, read: Callable[[Path], Tensor], *, split: str = "train", bad_files: str = "skip"
    ):
        split_seed(0, split)  # refuses what is none
        root = Path(folder)
        if not root.is_dir():
            raise ValueError(f"data.folder: {root} is not a folder.")
        self.files: list[Path] = []
        items: list[Item] = []
        bad: list[str] = []
        for path in _files(root, split):
            try:
                items.append({"a": read(path)})
                self.files.append(path)
            except (ValueError, OSError) as error:
                bad.append(" ".join(str(error).split()))
        if bad:
            more = f" (and {len(bad) - 1} more)" if len(bad) > 1 else ""
            if bad_files == "refuse":
                raise ValueError(f'data.folder: {bad[0]}{more}; remove it, or set data.bad_files = "skip".')
            warnings.warn(f"data.folder: passed over: {'; '.join(bad)}", RuntimeWarning, stacklevel=2)
        if not items:
            raise ValueError(
                f"data.folder: {root} holds no {split} files that can be used; wanted names that end in {', '.join(ENDINGS)}, "
                f"in {root / split} or shared out by name."
            )
        super().__init__(items)


def _files(root: Path, split: str) -> list[Path]:
    """The files of a split, in the order of their names."""
    apart = any((root / name).is_dir() for name in SPLITS)
    inside = root / split if apart else root
    if not inside.is_dir():
        return []
    found = [p for p in inside.iterdir() if p.suffix.lower() in ENDINGS and not p.name.startswith(".") and p.is_file()]
    return sorted(p for p in found if apart or split_of(p.name) == split)

"""A user's own inputs: the files of a folder, split by their names."""

from __future__ import annotations

import warnings
import zlib
from collections.abc import Callable
from pathlib import Path

from torch import Tensor

from . import SPLITS, CachedItems, Item

#: Percent of the files that belong to each split, by their names.
SHARES = {"train": range(80), "validation": range(80, 90), "test": range(90, 100)}
#: Files that are looked at; others (notes, hidden files) are passed over.
ENDINGS = (".png", ".jpg", ".jpeg", ".webp", ".bmp", ".tif", ".tiff", ".gif", ".wav")


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
        if split not in SPLITS:
            raise ValueError(f"data: unknown split {split!r}; choose from {', '.join(SPLITS)}.")
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
        super().__init__(len(items))
        self._cache = dict(enumerate(items))

    def make(self, indices: list[int]) -> list[Item]:
        raise AssertionError("Folder: all items are read at the beginning")


def _files(root: Path, split: str) -> list[Path]:
    """The files of a split, in the order of their names."""
    apart = any((root / name).is_dir() for name in SPLITS)
    inside = root / split if apart else root
    if not inside.is_dir():
        return []
    found = [p for p in inside.iterdir() if p.suffix.lower() in ENDINGS and not p.name.startswith(".") and p.is_file()]
    return sorted(p for p in found if apart or split_of(p.name) == split)

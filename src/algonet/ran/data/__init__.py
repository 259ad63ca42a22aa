"""Data sets: seeded items made when asked for, painted in a style, and a user's own folders.

Item i of a procedural data set is a pure function of (seed, i): the same on every machine, in every order, in every
process."""

from __future__ import annotations

import warnings
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np
import torch
from torch import Generator as Random
from torch import Tensor
from torch.nn.functional import pad
from torch.utils.data import Dataset

from algonet.core.pictures import open_picture

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


def read_views(path: Path, size: int, views: int) -> Tensor:
    """A picture file as (3, size, views * size) in [0, 1], resized; its square views stand side by side."""
    image = open_picture(path).convert("RGB")
    if abs(image.width / image.height - views) > 0.05 * views:
        raise ValueError(
            f"{path}: this model looks at {views} square view(s) side by side; the picture is "
            f"{image.width} x {image.height}."
        )
    array = np.asarray(image.resize((size * views, size)), dtype=np.float32) / 255
    return torch.from_numpy(array).permute(2, 0, 1)


@dataclass(frozen=True)
class Style:
    """`palettes`: warm objects before a cool backdrop, about equally bright. The first lesson: the hue of a pixel alone says
    what it shows."""

    #: What tells object from backdrop pixel by pixel; "" if nothing does
    cue: ClassVar[str] = "hue"

    def colours(self, random: Random, count: int) -> Tensor:
        """Colours (count + 2, 3): `count` of the object, then two of the backdrop."""
        spans = ((0.65, 1.0), (0.2, 0.6), (0.0, 0.35)), ((0.0, 0.4), (0.2, 0.7), (0.45, 1.0))
        warm, cool = (
            torch.stack([uniform(random, *span, n) for span in rgb], -1)
            for rgb, n in zip(spans, (count, 2), strict=True)
        )
        return torch.cat([warm, cool])

    def backdrop(self, random: Random, colours: Tensor, inside: Tensor) -> Tensor:
        """What is behind the object, (..., H, W, 3): a ramp between two `colours`."""
        ramp = _ramp(random, inside)
        return colours[0] * ramp + colours[1] * (1 - ramp)

    def light(self, random: Random, inside: Tensor) -> Tensor | float:
        """The light on what has no light of its own."""
        return 1.0

    def sound(self, spectrogram: Tensor, random: Random) -> Tensor:
        """A spectrogram (H, W) as a picture (C, H, W): itself, where what is loud is bright as in domain B."""
        return spectrogram[None]

    def paint(self, inside: Tensor, blend: Tensor, random: Random, noise: float, light: Tensor | None = None) -> Tensor:
        """A picture (3, ..., H, W) of an object that covers `inside` (..., H, W) and mixes its colours by `blend` (..., H, W,
        n); `light` (..., H, W, 1) falls on the object, that of the room on the backdrop and on objects without."""
        # Drawn on the CPU, so that an item looks alike on every device
        colours = self.colours(random, blend.shape[-1]).to(blend)
        room = self.light(random, inside)
        covered = inside[..., None]
        painted = (blend @ colours[:-2]) * (room if light is None else light)
        behind = self.backdrop(random, colours[-2:], inside) * room
        grain = noise * torch.randn((*inside.shape, 3), generator=random)
        return (behind + covered * (painted - behind) + grain.to(inside)).clamp(0, 1).movedim(-1, 0)


@dataclass(frozen=True)
class Painted(Style):
    """`painted`: object and backdrop take their colours from one distribution, far apart within a picture. No colour means
    object: what tells it apart is that it is one body in the middle."""

    cue: ClassVar[str] = ""
    #: How far colours of one thing lie from its own mean, and how far apart the means of the two are at least
    spread: float = 0.1
    contrast: float = 0.5

    def colours(self, random: Random, count: int) -> Tensor:
        means = uniform(random, 0.1, 0.9, 64, 2, 3)
        far = (means[:, 0] - means[:, 1]).norm(dim=-1) > self.contrast
        own, other = means[int(far.int().argmax())]
        return torch.cat([own.expand(count, 3), other.expand(2, 3)]) + uniform(
            random, -self.spread, self.spread, count + 2, 3
        )

    def sound(self, spectrogram: Tensor, random: Random) -> Tensor:
        """From one random colour where it is silent to another where it is loud: either may be the brighter."""
        return self.paint(spectrogram.clamp(0, 1), torch.ones_like(spectrogram)[..., None], random, 0.0)

    def light(self, random: Random, inside: Tensor) -> Tensor:
        return 0.5 + 0.5 * _ramp(random, inside)


@dataclass(frozen=True)
class Textured(Painted):
    """`textured`: as `painted`, with waves of the object's own family on the backdrop, colours of one thing that differ more,
    and a cast shadow."""

    spread: float = 0.25

    def backdrop(self, random: Random, colours: Tensor, inside: Tensor) -> Tensor:
        height, width = inside.shape[-2:]
        line = torch.stack(
            torch.meshgrid(torch.linspace(1, -1, height), torch.linspace(-1, 1, width), indexing="ij"), -1
        )
        blend = waves(random, torch.cat([line, torch.zeros(height, width, 1)], -1)).to(inside)
        moved = [round(number(random, -0.2, 0.2) * width), round(number(random, 0.05, 0.2) * height)]
        shadow = pad(inside, (moved[0], -moved[0], moved[1], -moved[1]))[..., None]
        return (blend @ colours) * (1 - 0.5 * shadow)


#: The `style` of a configuration.
STYLES: dict[str, Style] = {"palettes": Style(), "painted": Painted(), "textured": Textured()}


class Procedural(CachedItems):
    """Made items of one look. `split`: "train", "validation" or "test" have different seeds; `style`: see `STYLES`."""

    def __init__(self, count: int, size: int, seed: int, *, split: str = "train", noise: float = 0.03,
                 style: str = "palettes"):  # fmt: skip
        super().__init__(count)
        self.size, self.noise, self.style = size, noise, STYLES[style]
        self.seed = split_seed(seed, split)


def waves(random: Random, place: Tensor) -> Tensor:
    """A solid texture: how much of two colours (..., 2) there is at `place` (..., 3), in waves of a random direction."""
    direction, phase = uniform(random, -1, 1, 3) * number(random, 4, 14), number(random, 0, 6)
    blend = torch.sigmoid(number(random, 2, 8) * torch.sin(place @ direction.to(place) + phase))
    return torch.stack([blend, 1 - blend], -1)


def _ramp(random: Random, like: Tensor) -> Tensor:
    """A ramp (H, W, 1) in [0, 1] across a picture, steeper or less."""
    slopes = uniform(random, -2, 2, 2)
    down, across = (torch.linspace(-1, 1, n) for n in like.shape[-2:])
    return torch.sigmoid(across * slopes[0] + down[:, None] * slopes[1])[..., None].to(like)

"""The phonemes: what the vocal tract does for each, as numbers with gradients.

Vowels have the mean formants of the men of Peterson & Barney (1952); consonants, bandwidths, and /e/ and /o/, which they
do not list, follow Klatt (1980), rounded. Gains are chosen so that phonemes are about as loud beside each other as in
speech."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor


@dataclass(frozen=True)
class Phoneme:
    """How one phoneme sounds: four formants and bandwidths in Hz; how much of the glottal source passes (`voice`), how
    much noise through the formants (`breath`), how much made at a narrow place (`friction`, around `centre` Hz, `width`
    wide) and how much of it in a short burst at the end (`burst`); its usual duration in `seconds`."""

    name: str
    formants: tuple[float, float, float, float]
    bandwidths: tuple[float, float, float, float] = (60.0, 90.0, 150.0, 250.0)
    voice: float = 1.0
    breath: float = 0.0
    friction: float = 0.0
    burst: float = 0.0
    centre: float = 4000.0
    width: float = 2000.0
    seconds: float = 0.2
    vowel: bool = False


#: Name, first three formants (the fourth is 3500 Hz), and what differs from `_VOWEL` and `_CONSONANT`. Names as in X-SAMPA;
#: `_` is silence.
_VOWELS = """
a 730 1090 2440
e 430 2000 2600
i 270 2290 3010
o 450 900 2300
u 300 870 2240
E 530 1840 2480
@ 490 1350 1690
"""
_CONSONANTS = """
m 250 1270 2130 voice=0.5 bandwidths=80,200,200,300
n 250 1740 2470 voice=0.5 bandwidths=80,300,300,300
l 310 1050 2880 voice=0.6
r 310 1060 1380 voice=0.6
w 290 610 2150 voice=0.6
j 260 2070 3020 voice=0.6
h 500 1500 2500 breath=0.25 bandwidths=300,160,250,300
f 340 1100 2080 friction=0.03 centre=5000 width=6000 seconds=0.12
v 220 1100 2080 voice=0.3 friction=0.02 centre=5000 width=6000
s 320 1390 2530 friction=0.12 centre=5800 width=1800 seconds=0.14
z 240 1390 2530 voice=0.3 friction=0.08 centre=5800 width=1800
S 300 1840 2750 friction=0.14 centre=3000 width=1500 seconds=0.14
p 400 1100 2150 burst=0.15 centre=900 width=1500
t 400 1600 2600 burst=0.3 centre=4500 width=2500
k 300 1990 2850 burst=0.3 centre=2000 width=900
b 200 1100 2150 voice=0.12 burst=0.1 centre=900 width=1500
d 200 1600 2600 voice=0.12 burst=0.15 centre=4500 width=2500
g 200 1990 2850 voice=0.12 burst=0.15 centre=2000 width=900
_ 490 1350 1690 seconds=0.15
"""
_VOWEL: dict[str, Any] = {"seconds": 0.25, "vowel": True}
_CONSONANT: dict[str, Any] = {"bandwidths": (80.0, 120.0, 200.0, 300.0), "voice": 0.0, "seconds": 0.1}


def _read(line: str, usual: dict[str, Any]) -> Phoneme:
    name, *words = line.split()
    formants: Any = (*map(float, words[:3]), 3500.0)
    pairs = (word.split("=") for word in words[3:])
    own = {k: tuple(map(float, v.split(","))) if "," in v else float(v) for k, v in pairs}
    return Phoneme(name, formants, **{**usual, **own})


_TABLES = (_VOWELS, _VOWEL), (_CONSONANTS, _CONSONANT)
PHONEMES: tuple[Phoneme, ...] = tuple(
    _read(line, usual) for table, usual in _TABLES for line in table.split("\n") if line
)
BY_NAME = {phoneme.name: phoneme for phoneme in PHONEMES}


@dataclass(frozen=True, eq=False)
class Inventory:
    """The phonemes to choose from as tensors, one row each: formants (..., K, 4) and bandwidths (..., K, 4) in Hz, for
    all utterances or one table for each; gains (K, 4): voice, breath, friction, burst; noise (K, 2): centre and width of
    the friction in Hz."""

    names: tuple[str, ...]
    formants: Tensor
    bandwidths: Tensor
    gains: Tensor
    noise: Tensor

    @classmethod
    def of(cls, names: str | tuple[str, ...] | list[str] | None = None) -> Inventory:
        """The phonemes of these names (all, by default).

        >>> Inventory.of("a i u").formants[:, 0]
        tensor([730., 270., 300.])
        """
        wanted = tuple(BY_NAME) if names is None else tuple(names.split() if isinstance(names, str) else names)
        unknown = [name for name in wanted if name not in BY_NAME]
        if unknown or not wanted:
            got = repr(unknown[0]) if unknown else "none"
            raise ValueError(f"Inventory: wanted phonemes among {' '.join(BY_NAME)}, got {got}.")
        rows = [BY_NAME[name] for name in wanted]
        return cls(
            wanted,
            torch.tensor([p.formants for p in rows]),
            torch.tensor([p.bandwidths for p in rows]),
            torch.tensor([(p.voice, p.breath, p.friction, p.burst) for p in rows]),
            torch.tensor([(p.centre, p.width) for p in rows]),
        )

    def __len__(self) -> int:
        return len(self.names)

    def replace(self, **changes: Tensor) -> Inventory:
        return dataclasses.replace(self, **changes)

    def parse(self, text: str) -> list[int]:
        """The places of the phonemes in `text`: names, with or without spaces between them; the longest name wins.

        >>> Inventory.of("a i m _").parse("mam i")
        [2, 0, 2, 1]
        """
        if not isinstance(text, str):
            raise TypeError(f"speech: wanted phonemes as one string such as 'a i u', got {text!r}.")
        found: list[int] = []
        for word in text.split():
            place = 0
            while place < len(word):
                fitting = [name for name in self.names if word.startswith(name, place)]
                if not fitting:
                    raise ValueError(
                        f"speech: no phoneme begins with {word[place]!r} in {word!r}; there are {' '.join(self.names)}."
                    )
                name = max(fitting, key=len)
                found.append(self.names.index(name))
                place += len(name)
        if not found:
            raise ValueError("speech: nothing to say; give phonemes such as 'a i u'.")
        return found

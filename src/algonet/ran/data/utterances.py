"""Utterances of other voices: what is said is drawn from a task, how it sounds from a family of speakers, noises and
rooms."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Generator as Random
from torch import Tensor

from algonet.speech import Inventory, SmoothSynthesizer, Voice, mel_spectrogram, synthesize

from . import Item, Procedural, generator_of, number, uniform

SAMPLE_RATE = 16_000
#: Samples between two columns of a picture: 10 ms.
HOP = 160
#: How many nats below the energy of a mean frame a picture still shows.
RANGE = 6.0
#: What is this many nats above that is white.
WHITE = 8.5

VOWELS = "a e i o u"
_LEXICON = (
    "a i no so mu " "ama ima uso ano iso " "mama mano sima suno lami "
    "samo salu somi limo nusa " "simon malin salom namus lumin"
)  # fmt: skip


@dataclass(frozen=True)
class Task:
    """What is said: phonemes to choose from, the utterances they make, the most phonemes in one, and columns of a
    picture."""

    phonemes: str
    utterances: tuple[str, ...]
    frames: int

    @property
    def places(self) -> int:
        inventory = Inventory.of(self.phonemes)
        return max(len(inventory.parse(text)) for text in self.utterances)

    def parse(self, inventory: Inventory, text: str) -> tuple[list[int], int]:
        """The phonemes of an utterance as indices, silence at the end up to `places`, and how many are said."""
        said = inventory.parse(text)
        silent = self.places - len(said)
        return said + [inventory.names.index("_")] * silent if silent else said, len(said)


TASKS = {
    "vowels": Task(VOWELS, tuple(VOWELS.split()), 32),
    "syllables": Task(f"{VOWELS} m n l s S f", tuple(c + v for c in "mnlsSf" for v in "aeiou"), 40),
    "words": Task(f"{VOWELS} m n l s _", tuple(_LEXICON.split()), 64),
}


def speech_picture(mel: Tensor) -> Tensor:
    """Log-mel spectrograms (..., bands, frames) as pictures around [0, 1], whatever their loudness: smooth in them.

    softplus(m - level) / WHITE, where m is the spectrogram with high frequencies raised by 6 dB per octave, as
    recognisers do, and level lies RANGE nats below the energy of a mean frame."""
    bands, frames = mel.shape[-2:]
    top = 2595 * math.log10(1 + SAMPLE_RATE / 2 / 700)
    centres = torch.linspace(0, top, bands + 2, device=mel.device, dtype=mel.dtype)[1:-1]
    raised = mel + 2 * torch.log(0.7 * torch.expm1(centres * (math.log(10) / 2595)) + 0.1)[:, None]
    level = raised.flatten(-2).logsumexp(-1)[..., None, None] - math.log(frames) - RANGE
    return torch.nn.functional.softplus(raised - level) / WHITE


def heard_picture(sound: Tensor, rate: int, bands: int, frames: int) -> Tensor:
    """A sound (N,) at any rate as the picture (bands, frames) that begins 30 ms before it becomes audible."""
    if rate != SAMPLE_RATE:
        length = max(1, round(len(sound) * SAMPLE_RATE / rate))
        # Resampled in the spectrum: exact below both Nyquist frequencies
        spectrum = torch.fft.rfft(sound)[: length // 2 + 1]
        sound = torch.fft.irfft(spectrum, length) * (length / len(sound))
    loud = sound.abs() > 0.05 * sound.abs().max()
    first = int(loud.float().argmax()) - 480
    length = frames * HOP
    sound = torch.nn.functional.pad(sound, (max(0, -first), length))[max(0, first) :][:length]
    return speech_picture(mel_spectrogram(sound, hop=HOP, bands=bands)[..., :frames])


class Utterances(Procedural):
    """Pictures `a` (C, bands, frames) of spoken sounds, and for those who may see them the true `phonemes` (P,), as
    places in the task's inventory, and `durations` (P,); utterances shorter than P end in silence `_`.

    Speakers differ from the synthesizer of the inverse: vocal tracts are shorter by 5 to 25 %, pitch is higher and
    glides, formants miss their targets, there is breath, noise, and a room."""

    def __init__(self, count: int, task: str, bands: int, seed: int, *, noise: float = 0.1, **look: Any):
        super().__init__(count, bands, seed, noise=noise, **look)
        self.task = TASKS[task]
        self.inventory = Inventory.of(self.task.phonemes)
        self.white = SmoothSynthesizer(SAMPLE_RATE, tuple(self.task.phonemes.split()), seed=1).white

    def make(self, indices: list[int]) -> list[Item]:
        items = []
        # In parts: the waves of many utterances at once would not fit into memory
        for first in range(0, len(indices), 16):
            items += self._make(indices[first : first + 16])
        return items

    @torch.no_grad()
    def _make(self, indices: list[int]) -> list[Item]:
        """Everything random is drawn on the CPU, item by item; the sounds are then made together."""
        random = [generator_of(self.seed, index) for index in indices]
        drawn = [self._draw(r) for r in random]
        parts = [torch.stack(part).to(self.device) for part in zip(*drawn, strict=True)]
        places, durations, pitch, jitter, voice, grain, room = parts
        one_hot = torch.nn.functional.one_hot(places, len(self.inventory)).to(durations)
        length = self.task.frames * HOP
        rows = {
            name: getattr(self.inventory, name).to(self.device) for name in ("formants", "bandwidths", "gains", "noise")
        }
        rows["formants"], rows["bandwidths"] = rows["formants"] * jitter, rows["bandwidths"].expand_as(jitter)
        speaking = self.inventory.replace(**rows)
        sound = synthesize(
            one_hot, durations, pitch, torch.ones_like(durations), inventory=speaking, white=self.white.to(self.device),
            length=length, harmonics=48, voice=Voice(*voice.unbind(-1)),
        )  # fmt: skip
        heard = torch.fft.irfft(torch.fft.rfft(sound, 2 * length) * torch.fft.rfft(room, 2 * length), 2 * length)
        heard = heard[:, :length]
        level = heard.square().mean(-1, keepdim=True).sqrt()
        mel = mel_spectrogram(heard + self.noise * level * grain, hop=HOP, bands=self.size)[..., : self.task.frames]
        pictures = [self.style.sound(picture, r) for picture, r in zip(speech_picture(mel), random, strict=True)]
        return [
            {"a": a, "phonemes": p, "durations": d}
            for a, p, d in zip(pictures, places, durations, strict=True)
        ]  # fmt: skip

    def _draw(self, random: Random) -> tuple[Tensor, ...]:
        text = self.task.utterances[int(torch.randint(len(self.task.utterances), (), generator=random))]
        places, said = self.task.parse(self.inventory, text)
        seconds = self.task.frames * HOP / SAMPLE_RATE - 0.05
        durations = uniform(random, 0.7, 1.3, said)
        durations = durations / durations.sum() * seconds * (said / len(places)) * number(random, 0.8, 1.0)
        durations = torch.cat([durations, torch.full((len(places) - said,), 0.05)])
        pitch = number(random, 160, 270) * torch.exp(uniform(random, -0.12, 0.12, len(places)))
        jitter = torch.exp(0.04 * torch.randn(len(self.inventory), 4, generator=random))
        voice = torch.stack([
            uniform(random, 1.05, 1.25), uniform(random, 0.8, 1.8), uniform(random, 0.1, 0.6), uniform(random, -0.3, 0.5)
        ])  # fmt: skip
        length = self.task.frames * HOP
        time = torch.arange(length) / SAMPLE_RATE
        echo = torch.randn(length, generator=random) * torch.exp(-time / number(random, 0.01, 0.04))
        echo = echo * number(random, 0.05, 0.3) / echo.norm()
        echo[0] = 1.0
        # Noise that falls by 6 dB per octave above 500 Hz, like that of most rooms
        grain = torch.fft.rfft(torch.randn(length, generator=random))
        fall = torch.linspace(0, SAMPLE_RATE / 2, len(grain)) / 500
        grain = torch.fft.irfft(grain / torch.sqrt(1 + fall.square()), length)
        return torch.tensor(places), durations, pitch, jitter, voice, grain / grain.std(), echo

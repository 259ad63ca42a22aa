"""The synthesizer as a module: it holds the inventory, the noise and the steepness of its transitions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from algonet.core.checks import check_integer, check_softness, check_spec
from algonet.relax import Logistic, Sigmoid, SoftModule

from .functional import Voice, frame_step, mel_envelope, mel_spectrogram, synthesize
from .inventory import BY_NAME, Inventory
from .reading import read_text

#: Of an inventory, in order.
_TABLES = ("formants", "bandwidths", "gains", "noise")


class Score(NamedTuple):
    """What to say: phonemes (..., P, K), one-hot or probabilities; durations in seconds, pitch in Hz and loudness (...,
    P)."""

    phonemes: Tensor
    durations: Tensor
    pitch: Tensor
    loudness: Tensor


class Speech(NamedTuple):
    """What is heard: the waveform (..., length) and its log-mel spectrogram (..., bands, frames); both differentiable."""

    waveform: Tensor
    mel: Tensor


class SmoothSynthesizer(SoftModule):
    """Phonemes with durations, pitch and loudness to a waveform and its log-mel spectrogram, smooth in all of them.

    A glottal source, as a sum of harmonics, and noise pass through formant resonators; formants glide and loudness fades
    over about 4 / steepness seconds at the borders. A choice of phonemes is soft: probabilities over the inventory mix
    the sounds, and the hard limit, one-hot, is the one phoneme. C-infinity in formants, bandwidths, pitch, durations,
    loudness and probabilities (with a C-infinity `relax`); `formants`, `bandwidths`, `gains` and `noise` are buffers, or
    parameters after `learnable()`.

    `phonemes` names the inventory (all 26, by default). Nothing is recursive over time. The paper's third inverse problem.

    >>> synthesizer = SmoothSynthesizer()
    >>> speech = synthesizer(*synthesizer.score("a i u"))
    >>> speech.waveform.shape, speech.mel.shape
    (torch.Size([14400]), torch.Size([40, 91]))
    """

    formants: Tensor
    bandwidths: Tensor
    gains: Tensor
    noise: Tensor
    white: Tensor

    def __init__(
        self,
        sample_rate: int = 16_000,
        phonemes: str | tuple[str, ...] | None = None,
        *,
        relax: Sigmoid = Logistic(150.0),
        harmonics: int = 80,
        bands: int = 40,
        seed: int = 0,
    ):
        super().__init__(relax)
        sample_rate = check_integer("SmoothSynthesizer", "sample_rate", sample_rate, 1000, 192_000)
        if harmonics < 1 or bands < 1:
            raise ValueError(
                f"SmoothSynthesizer: `harmonics` and `bands` must be at least 1, got {harmonics!r} and {bands!r}."
            )
        self.sample_rate, self.harmonics, self.bands = sample_rate, harmonics, bands
        found = Inventory.of(phonemes)
        self.names = found.names
        for name in _TABLES:
            self.register_buffer(name, getattr(found, name))
        bins = 2 * frame_step(sample_rate) + 1
        # 256 frames are 1.3 seconds: the noise of longer utterances repeats, inaudibly
        white = torch.randn(256, bins, 2, generator=torch.Generator().manual_seed(seed)) * 0.5**0.5
        self.register_buffer("white", white, persistent=False)

    @property
    def inventory(self) -> Inventory:
        return Inventory(self.names, *(getattr(self, name) for name in _TABLES))

    def learnable(self) -> SmoothSynthesizer:
        """Make formants, bandwidths, gains and noise parameters."""
        for name in _TABLES:
            value = getattr(self, name)
            delattr(self, name)
            self.register_parameter(name, torch.nn.Parameter(value.detach().clone()))
        return self

    def score(self, text: str, *, pitch: float = 120.0, rate: float = 1.0) -> Score:
        """The phonemes of `text` (names, see `Inventory.parse`) with their usual durations divided by `rate`; one pitch."""
        places = self.inventory.parse(text)
        check_softness(self, "pitch", pitch)
        check_softness(self, "rate", rate)
        like = self.formants
        one_hot = torch.nn.functional.one_hot(torch.tensor(places, device=like.device), len(self.names)).to(like)
        seconds = torch.tensor([BY_NAME[self.names[i]].seconds / rate for i in places]).to(like)
        return Score(one_hot, seconds, torch.full_like(seconds, pitch), torch.ones_like(seconds))

    def read(self, text: str, *, pitch: float = 120.0, rate: float = 1.0) -> Score:
        """The phonemes of English text (see `read_text`); those between slashes are taken as they are."""
        return self.score(" ".join(word.phonemes for word in read_text(text)), pitch=pitch, rate=rate)

    def forward(
        self,
        phonemes: Tensor,
        durations: Tensor,
        pitch: Tensor,
        loudness: Tensor,
        *,
        length: int | None = None,
        voice: Voice = Voice(),
    ) -> Speech:
        """Waveform and spectrogram. `length` in samples; by default that of the longest utterance, rounded up to tenths
        of a second (which reads the durations: on a GPU, give it)."""
        self._check(phonemes, durations, pitch, loudness, voice)
        length = self.length(durations) if length is None else length
        length = check_integer("SmoothSynthesizer", "length", length, 0)
        waveform = synthesize(
            phonemes, durations, pitch, loudness, **self._speaker(voice),
            white=self.white.to(phonemes), length=length, harmonics=self.harmonics,
        )  # fmt: skip
        return Speech(waveform, self.spectrogram(waveform))

    if TYPE_CHECKING:
        __call__ = forward

    def spectrogram(self, waveform: Tensor) -> Tensor:
        """The log-mel spectrogram of any waveform at this sample rate, in steps of 10 ms."""
        return mel_spectrogram(waveform, sample_rate=self.sample_rate, hop=self.sample_rate // 100, bands=self.bands)

    def envelope(
        self,
        phonemes: Tensor,
        durations: Tensor,
        pitch: Tensor,
        loudness: Tensor,
        *,
        frames: int,
        voice: Voice = Voice(),
    ) -> Tensor:
        """The expected log-mel spectrogram, without the harmonics' fine structure and without making the sound: see
        `mel_envelope`."""
        self._check(phonemes, durations, pitch, loudness, voice)
        frames = check_integer("SmoothSynthesizer", "frames", frames, 0)
        return mel_envelope(
            phonemes, durations, pitch, loudness, **self._speaker(voice),
            frames=frames, hop=self.sample_rate // 100, bands=self.bands,
        )  # fmt: skip

    def _speaker(self, voice: Voice) -> dict[str, Any]:
        return {"inventory": self.inventory, "sample_rate": self.sample_rate, "relax": self.relax, "voice": voice}

    def length(self, durations: Tensor) -> int:
        """Samples for the longest of the utterances, in whole tenths of a second."""
        longest = float(durations.detach().sum(-1).max()) if durations.numel() else 0.0
        if not 0 <= longest < 3600:
            raise ValueError(f"SmoothSynthesizer: an utterance of {longest} seconds; give `length`, in samples.")
        return int((longest + 0.1) * 10 + 1) * self.sample_rate // 10

    def _check(self, phonemes: Tensor, durations: Tensor, pitch: Tensor, loudness: Tensor, voice: Voice) -> None:
        if not isinstance(voice, Voice):
            raise TypeError(f"SmoothSynthesizer: `voice` must be a Voice such as Voice(breath=0.3), got {voice!r}.")
        where, count = "SmoothSynthesizer", len(self.names)
        hint = f"; one column for each of the {count} phonemes, as `score(text)` makes them"
        check_spec(where, "phonemes", phonemes, f"*batch P {count}", hint=hint)
        shape, hint = phonemes.shape[:-1], "; one number per phoneme"
        for name, value in (("durations", durations), ("pitch", pitch), ("loudness", loudness)):
            check_spec(where, name, value, " ".join(map(str, shape)), "", hint)

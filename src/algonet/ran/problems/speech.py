"""Speech recognition as the inverse of speech synthesis: R answers with phonemes and durations, the synthesizer says
them."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, nn

from algonet.ran.data import CachedItems
from algonet.ran.data.utterances import (
    HOP,
    SAMPLE_RATE,
    TASKS,
    Task,
    Utterances,
    heard_picture,
    speech_picture,
)
from algonet.ran.model import Batch, Trainable
from algonet.ran.networks import Encoder, head, near_zero
from algonet.relax import GaussianNoise, SoftModule
from algonet.speech import SmoothSynthesizer, Voice, read_wav

from . import Parts, Problem, Scores, answers


class Transcript(NamedTuple):
    """What was said and how: probabilities of the phonemes (B, P, K), their durations in seconds (B, P), and the length
    of the speaker's vocal tract as a factor on the formants (B,)."""

    phonemes: Tensor
    durations: Tensor
    formant_scale: Tensor


class SpeechProblem(Problem):
    """A `Transcript` of a sound; pictures are spectrograms (B, C, bands, frames)."""

    truth = ("phonemes", "durations")
    inputs = "sounds"

    @property
    def a_channels(self) -> int:
        return 1 if self.style.cue else 3

    @property
    def task(self) -> Task:
        return TASKS[self.config.data.task]

    def parts(self) -> Parts:
        config, task = self.config, self.task
        inverse = SpeechInverse(task, config.data.size, config.train.softness[0])
        seconds = task.frames * HOP / SAMPLE_RATE
        reconstructor = SpeechReconstructor(
            self.encoder(task.frames), task.places, len(inverse.names), seconds, config.model.width
        )
        return reconstructor, inverse, TranscriptRegulariser(config.loss.undecided, config.loss.unbalanced)

    def procedural(self, split: str) -> CachedItems:
        return Utterances(task=self.config.data.task, bands=self.config.data.size, **self.look(split))

    def truth_loss(self, reconstruction: Transcript, batch: Batch, inverse: nn.Module) -> Tensor:
        """Cross-entropy of the phonemes, and the durations' mean absolute difference in tenths of a second."""
        chosen = reconstruction.phonemes.gather(-1, batch["phonemes"][..., None])[..., 0]
        late = (reconstruction.durations - batch["durations"]).abs()
        return -(chosen + 1e-6).log().mean(-1) + 10 * late.mean(-1)

    @torch.no_grad()
    def evaluate(self, model: Trainable | None, data: Any) -> Scores:
        """Phonemes right in their place, utterances without an error, and 1 - edits / phonemes, silence aside. The
        template answers every sound with the most frequent phoneme of each place, which is more than it knows."""
        right = data.batch(list(range(len(data))), ("phonemes",))["phonemes"].cpu()
        templates = [right.mode(0).values.expand_as(right)]
        heard = torch.cat([f.phonemes.argmax(-1).cpu() for _, f in answers(model, data)] if model else templates)
        same = heard == right
        spoken, said = (
            [[p for p in row if data.inventory.names[p] != "_"] for row in rows.tolist()] for rows in (right, heard)
        )
        edits = sum(map(edit_distance, spoken, said))
        return {
            "phonemes": float(same.float().mean()),
            "utterances": float(same.all(-1).float().mean()),
            "edits": 1 - edits / sum(map(len, spoken)),
        }

    def read(self, path: Path) -> Tensor:
        """The beginning of a WAV file, from where it becomes audible, as a spectrogram (C, bands, frames)."""
        sound, rate = read_wav(path)
        heard = heard_picture(sound, rate, self.config.data.size, self.task.frames)
        return self.style.sound(heard, torch.Generator().manual_seed(0))

    def encoded(self, found: Transcript) -> tuple[str, bytes]:
        names = self.task.phonemes.split()
        rows = [
            {"phoneme": names[int(p.argmax())], "probability": round(float(p.max()), 4), "seconds": round(float(d), 4)}
            for p, d in zip(found.phonemes, found.durations, strict=True)
        ]
        return ".json", json.dumps(rows, indent=1).encode()


class SpeechReconstructor(nn.Module):
    """Spectrograms (B, 1, bands, frames) to transcripts: a softmax over the inventory for each place, durations that
    begin equal and stay within a factor of 1.6, a tract length within 25 %."""

    def __init__(self, encoder: Encoder, places: int, phonemes: int, seconds: float, width: int = 256):
        super().__init__()
        self.encoder = encoder
        self.places, self.phonemes, self.seconds = places, phonemes, 0.85 * seconds
        self.choose = head(width, places * phonemes)
        self.last = near_zero(nn.Linear(width, places + 1))

    def forward(self, pictures: Tensor) -> Transcript:
        code = self.encoder(pictures)
        logits = self.choose(code).float().unflatten(-1, (self.places, -1))
        return self._transcript(logits.softmax(-1), torch.tanh(self.last(code).float()))

    def _transcript(self, phonemes: Tensor, last: Tensor) -> Transcript:
        durations = self.seconds / self.places * torch.exp(0.5 * last[..., :-1])
        return Transcript(phonemes, durations, torch.exp(0.22 * last[..., -1]))

    def draw(self, count: int) -> Transcript:
        """Random reconstructions: any phoneme in each place, any duration and tract within reach."""
        device = self.last.weight.device
        chosen = torch.randint(self.phonemes, (count, self.places), device=device)
        last = 2 * torch.rand(count, self.places + 1, device=device) - 1
        return self._transcript(nn.functional.one_hot(chosen, self.phonemes).float(), last)


class SpeechInverse(SoftModule):
    """Transcripts to spectrogram pictures (B, 1, bands, frames): the expected log-mel spectrogram of the
    `SmoothSynthesizer`.

    The softness is the `scale` of Gaussian noise on the picture's frequencies, in bands: formants that are wide reach far.
    """

    def __init__(self, task: Task, bands: int, scale: float = 1.0, pitch: float = 130.0):
        super().__init__(GaussianNoise(scale))
        self.frames, self.bands, self.pitch = task.frames, bands, pitch
        self.synthesizer = SmoothSynthesizer(SAMPLE_RATE, tuple(task.phonemes.split()), bands=bands)
        self.names = self.synthesizer.names

    def forward(self, transcript: Transcript) -> Tensor:
        durations = transcript.durations
        mel = self.synthesizer.envelope(
            transcript.phonemes, durations, torch.full_like(durations, self.pitch), torch.ones_like(durations),
            frames=self.frames, voice=Voice(formant_scale=transcript.formant_scale),
        )  # fmt: skip
        return (self._blur(mel) @ speech_picture(mel))[:, None]

    def _blur(self, like: Tensor) -> Tensor:
        """Rows of Gaussian weights (bands, bands) around each band."""
        place = torch.arange(self.bands, device=like.device, dtype=like.dtype)
        scale = cast(GaussianNoise, self.relax).scale
        return torch.softmax(-0.5 * ((place - place[:, None]) / scale).square(), -1)


class TranscriptRegulariser(nn.Module):
    """What is known of transcripts before any is heard: a weight each for being decided and for using the whole inventory.

        undecided * mean over places of H(q) + unbalanced * (log K - H(mean of q over places and batch))
            + mean of log^2(formant scale)

    Without the first, sounds are explained by chords of phonemes; without the second, by one phoneme for several vowels,
    from where no gradient leads back."""

    def __init__(self, undecided: float = 0.1, unbalanced: float = 0.0):
        super().__init__()
        self.undecided, self.unbalanced = undecided, unbalanced

    def forward(self, transcript: Transcript) -> Tensor:
        q = transcript.phonemes
        mean = q.flatten(0, -2).mean(0)
        balance = math.log(q.shape[-1]) - _entropy(mean)
        scale = transcript.formant_scale.log().square().mean()
        return self.undecided * _entropy(q).mean() + self.unbalanced * balance + scale


def _entropy(q: Tensor) -> Tensor:
    return -(q * (q + 1e-9).log()).sum(-1)


def edit_distance(a: list[int], b: list[int]) -> int:
    """The fewest insertions, deletions and replacements that turn one sequence into the other (Levenshtein).

    >>> edit_distance([1, 2, 3], [2, 3, 4])
    2
    """
    row = list(range(len(b) + 1))
    for i, x in enumerate(a, 1):
        last, row[0] = row[0], i
        for j, y in enumerate(b, 1):
            last, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, last + (x != y))
    return row[-1]

"""Gallery: the smooth synthesizer, to look at and to listen to."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from algonet.apps.drawing import RED, open_frame, png, spectrogram_png
from algonet.apps.gallery import Figure
from algonet.speech import SmoothSynthesizer, Speech, wav_bytes

TITLE = "Speech"
INTRO = (
    "A source of harmonics and noise, filtered by the formants of the vocal tract: text-to-speech as a smooth algorithm. Which "
    "phoneme, how long, how high, and the formants themselves have gradients, so that its inverse, recognition, can be learned "
    "from sounds alone."
)


def figures(quick: bool) -> Iterator[Figure]:
    with torch.no_grad():
        synthesizer = SmoothSynthesizer(harmonics=66)
        yield _said(synthesizer, "aiueo", _VOWELS_CAPTION, "vowels")
        yield _said(synthesizer, "halo_mamasita", _WORDS_CAPTION, "words")
        yield _morph(synthesizer)
    yield _found(30 if quick else 60)


def _said(synthesizer: SmoothSynthesizer, text: str, caption: str, name: str) -> Figure:
    score = synthesizer.score(text)
    # A voice that falls a little, as at the end of a sentence
    fall = torch.linspace(1.1, 0.9, len(score.pitch))
    speech = synthesizer(score.phonemes, score.durations, score.pitch * fall, score.loudness)
    names = [synthesizer.names[int(row.argmax())] for row in score.phonemes]
    image = spectrogram_png(speech, names, score.durations)
    return Figure(name, image, caption, sound=wav_bytes(speech.waveform, synthesizer.sample_rate))


def _morph(synthesizer: SmoothSynthesizer) -> Figure:
    """One long sound whose choice of phoneme moves from /a/ to /i/ in eight steps."""
    a, i = (synthesizer.names.index(name) for name in "ai")
    steps = 8
    share = torch.linspace(0, 1, steps)
    phonemes = torch.zeros(steps, len(synthesizer.names))
    phonemes[:, a], phonemes[:, i] = 1 - share, share
    seconds = torch.full((steps,), 0.15)
    speech = synthesizer(phonemes, seconds, torch.full_like(seconds, 120.0), torch.ones_like(seconds))
    labels = [f"{100 * float(s):.0f} %" for s in share]
    image = spectrogram_png(Speech(*speech), labels, seconds)
    return Figure("choice", image, _CHOICE_CAPTION, sound=wav_bytes(speech.waveform, synthesizer.sample_rate))


def _found(steps: int) -> Figure:
    """Gradient descent through the synthesizer: formants of a vowel that is only heard."""
    import matplotlib.pyplot as plt

    target = SmoothSynthesizer(phonemes="@")
    target.formants.copy_(torch.tensor([[680.0, 1720.0, 2410.0, 3500.0]]))
    learner = SmoothSynthesizer(phonemes="@").learnable()
    score = learner.score("@")
    with torch.no_grad():
        wanted = target.envelope(*score, frames=24)
    optimizer = torch.optim.Adam([learner.formants], lr=900.0 / steps)
    path = []
    for _ in range(steps):
        path.append(learner.formants.detach()[0, :3].clone())
        loss = (learner.envelope(*score, frames=24) - wanted).abs().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    figure, (left, right) = plt.subplots(1, 2, figsize=(9.4, 3.2))
    for row, colour in zip(range(3), (RED, "#2e6f95", "#edae49"), strict=True):
        left.plot([float(p[row]) for p in path], color=colour, label=f"F{row + 1}")
        left.axhline(float(target.formants[0, row]), color=colour, ls=":", lw=1)
    left.set_xlabel("step")
    left.set_ylabel("Hz")
    left.legend(frameon=False, ncols=3)
    with torch.no_grad():
        for sound, label, style in ((wanted, "heard", "k"), (learner.envelope(*score, frames=24), "found", "C3--")):
            right.plot(sound[:, 12], style, label=label)
    right.set_xlabel("mel band")
    right.set_ylabel("log power")
    right.legend(frameon=False)
    open_frame(left, right)
    figure.tight_layout()
    return Figure("formants", png(figure), _FOUND_CAPTION)


_VOWELS_CAPTION = "Five vowels; the second formant glides from one to the next. Dark is silent, bright is loud."
_WORDS_CAPTION = "Breath, closures, a hiss and a burst: consonants are voice, noise and movement of the formants."
_CHOICE_CAPTION = (
    "A soft choice: probabilities move from /a/ to /i/. Both sounds are heard on the way, as peaks of their own; a mean of the "
    "formants would have been a third vowel."
)
_FOUND_CAPTION = (
    "Gradients through the synthesizer: from a neutral vowel, the formants (left) move to those of a vowel that is only heard "
    "(dotted), until the spectra (right) agree."
)

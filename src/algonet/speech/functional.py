"""Phonemes to sound: a source-filter synthesizer without recursion, a smooth function of everything it is given."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from algonet.core.cache import TENSORS
from algonet.core.checks import check_softness, widened
from algonet.core.memory import check_memory
from algonet.core.tracing import outside_autocast
from algonet.relax import Logistic, Sigmoid

from .inventory import Inventory

#: Seconds of silence before the first phoneme.
LEAD = 0.03
#: Seconds: where in front of a stop's end its burst lies, and the burst's standard deviation.
BURST_PLACE, BURST_WIDTH = 0.012, 0.006
#: A phoneme less probable than this does not pull formants towards its neighbours'.
_FLOOR = 1e-4
#: Bring a vowel of loudness 1 to a root mean square of about 0.1, and noise to where it is beside it in speech.
_VOICE_LEVEL, _NOISE_LEVEL = 0.02, 0.25
#: Narrowest bandwidth, in kHz: keeps resonances finite.
_NARROWEST = 0.01


@dataclass(frozen=True, eq=False)
class Voice:
    """Who speaks: factors on all formants and bandwidths, noise through the formants beside the voice (`breath`, as a
    share of it), and how much steeper than usual the source falls (`tilt`, in powers of frequency; below -1 it rises, up
    to 20 times its level at frequency 0). Numbers, or tensors with one per batch item."""

    formant_scale: float | Tensor = 1.0
    bandwidth_scale: float | Tensor = 1.0
    breath: float | Tensor = 0.0
    tilt: float | Tensor = 0.0

    def __post_init__(self) -> None:
        for name in ("formant_scale", "bandwidth_scale"):
            check_softness(self, name, getattr(self, name))
        if not isinstance(self.breath, Tensor) and not 0 <= self.breath < math.inf:
            raise ValueError(f"Voice: `breath` must be 0 or more, got {self.breath!r}.")
        if not isinstance(self.tilt, Tensor) and not math.isfinite(self.tilt):
            raise ValueError(f"Voice: `tilt` must be finite, got {self.tilt!r}.")


class Controls(NamedTuple):
    """What the vocal tract does in each frame. Formants and bandwidths (..., T, K, 4) in kHz are those with which phoneme
    k would sound there; voice and friction (..., T, K) say how loud; breath (..., T, K) likewise; pitch (..., T) in Hz.
    All differentiable."""

    formants: Tensor
    bandwidths: Tensor
    voice: Tensor
    breath: Tensor
    friction: Tensor
    pitch: Tensor


def vocal_controls(
    phonemes: Tensor,
    durations: Tensor,
    pitch: Tensor,
    loudness: Tensor,
    times: Tensor,
    *,
    inventory: Inventory,
    relax: Sigmoid = Logistic(150.0),
    voice: Voice = Voice(),
    highest: float = 4000.0,
) -> Controls:
    """The movements of the vocal tract at `times` (T,), in seconds.

    Phoneme p of P fills the time from e_{p-1} to e_p, e_p = LEAD + d_1 + ... + d_p, with weight w_p(t) = r(t - e_{p-1}) -
    r(t - e_p): the weights and the silence around them sum to 1. Loudness fades in and out with w; formants belong to the
    first and last phoneme until the very ends. Let q_pk be the probability that p is phoneme k. In the middle of p,
    phoneme k sounds with its own formants, whatever else is probable there, and the magnitudes are mixed; towards a
    neighbour its formants glide to the neighbour's mean. Hard limit: of a one-hot choice, the formants glide from phoneme
    to phoneme.

    phonemes (..., P, K), durations, pitch, loudness (..., P), all real; C-infinity with a C-infinity `relax`. Pitch is
    bounded by `highest` (tanh), loudness by 100. Cost O(T K P)."""
    order, amount = _weights(durations, times, relax)
    chosen = torch.einsum("...tp,...pk->...tk", order, phonemes + _FLOOR)
    rows = torch.cat([inventory.formants, inventory.bandwidths], -1).to(phonemes) / 1000
    mean = phonemes @ rows
    heard = torch.einsum("...tp,...pk,...pf->...tkf", order, phonemes + _FLOOR, mean)
    own = (rows[..., None, :, :] * chosen[..., None] - heard) * (chosen / (chosen.square() + (0.01 * _FLOOR) ** 2))[
        ..., None
    ]
    formants, bandwidths = ((order @ mean)[..., None, :] + own).split(4, -1)
    loud = _bounded(loudness, 100.0)[..., None, :]
    ends = LEAD + durations.cumsum(-1)
    away = (times[:, None] - (ends - BURST_PLACE)[..., None, :]) / BURST_WIDTH
    sounding, bursting = (amount * loud) @ phonemes, (torch.exp(-0.5 * away.square()) * loud) @ phonemes
    gains = inventory.gains.to(phonemes)
    voiced = sounding * gains[:, 0]
    hiss = _of(voice.breath, 2, phonemes)
    return Controls(
        _bounded(formants * _of(voice.formant_scale, 3, phonemes), 64.0),
        _bounded(bandwidths * _of(voice.bandwidth_scale, 3, phonemes), 64.0),
        voiced,
        sounding * gains[:, 1] + _bounded(0.1 * hiss * voiced, 100.0),
        sounding * gains[:, 2] + bursting * gains[:, 3],
        (order * _bounded(pitch, highest)[..., None, :]).sum(-1),
    )


def _weights(durations: Tensor, times: Tensor, relax: Sigmoid) -> tuple[Tensor, Tensor]:
    """Of each phoneme at each time (..., T, P): which one shapes the tract (sums to 1), and how far it is sounding."""
    starts = torch.cat([torch.zeros_like(durations[..., :1]), durations.cumsum(-1)], -1) + LEAD
    begun = relax(times[:, None] - starts[..., None, :])
    amount = begun[..., :-1] - begun[..., 1:]
    one, zero = torch.ones_like(begun[..., :1]), torch.zeros_like(begun[..., :1])
    inner = torch.cat([one, begun[..., 1:-1], zero], -1)
    return inner[..., :-1] - inner[..., 1:], amount


def resonance(frequency: Tensor, formants: Tensor, bandwidths: Tensor) -> Tensor:
    """Magnitude of the cascade of resonators (..., F) at `frequency` (..., F), formants and bandwidths (..., 4), all in
    kHz.

    Of one formant with centre c and half bandwidth b: (c^2 + b^2) / sqrt((c^2 + b^2 - f^2)^2 + 4 b^2 f^2), 1 at f = 0.
    """
    half = (bandwidths.square() / 4 + (_NARROWEST / 2) ** 2)[..., None]
    power = formants.square()[..., None] + half
    squared = frequency.square()[..., None, :]
    # The product over formants as a sum of logarithms: a few large operations in place of many small ones
    below = torch.log((power - squared).square() + 4 * half * squared + 1e-12)
    return torch.exp((torch.log(power) - 0.5 * below).sum(-2))


def band_noise(frequency: Tensor, noise: Tensor) -> Tensor:
    """Magnitude (K, F) of friction at `frequency` (F,) in kHz: one resonance each, 1 at its centre; noise (K, 2) in Hz."""
    centre, half = _bounded(noise[:, :1] / 1000, 64.0), _bounded(noise[:, 1:] / 2000, 64.0)
    half = half.square() + (_NARROWEST / 2) ** 2
    squared = frequency.square()
    band = 4 * half * squared
    return (band * (1 / ((centre.square() - squared).square() + band + 1e-12)) + 1e-12).sqrt()


def source(frequency: Tensor, tilt: float | Tensor, nyquist: float) -> Tensor:
    """Magnitude of the glottal source with the lips' radiation at `frequency` in kHz: level, then falling like 1/f, and
    fading smoothly to nothing towards the Nyquist frequency."""
    squared = frequency.square()
    slope = -(0.5 + 0.5 * tilt) * torch.log1p(squared / 0.16)
    # min(slope, 3), smoothly: a source that rises ends at exp(3); one that falls is changed by less than 2e-6
    falling = torch.exp(3 - torch.nn.functional.softplus(3 - slope, beta=4.0))
    fade = torch.sigmoid(40 * (0.93 - squared / nyquist**2))
    return falling * fade


@outside_autocast
def synthesize(
    phonemes: Tensor,
    durations: Tensor,
    pitch: Tensor,
    loudness: Tensor,
    *,
    inventory: Inventory,
    white: Tensor,
    length: int,
    sample_rate: int = 16_000,
    harmonics: int = 80,
    relax: Sigmoid = Logistic(150.0),
    voice: Voice = Voice(),
) -> Tensor:
    """The waveform (..., length) of phonemes (..., P, K) with durations, pitch and loudness (..., P).

        x(t) = sum_n A_n(t) sin(2 pi n phi(t)) + noise,   phi = integral of the pitch f0,
        A_n(t) = sum_k voice_k(t) |H_k(n f0)| source(n f0)

    There is no recursion over samples: the filter's magnitude is evaluated at each harmonic in frames of 5 ms and
    interpolated, and noise is shaped in overlapping spectra of 20 ms whose random part, `white` (frames, bins, 2), is
    given and reused from its beginning. Differentiable as often as `relax` by all floating inputs and the inventory; cost
    O(length * harmonics + frames * K * harmonics)."""
    given, white = phonemes.dtype, widened(white)
    phonemes, *_ = score = [widened(t) for t in (phonemes, durations, pitch, loudness)]
    hop = frame_step(sample_rate)
    frames = -(-length // hop) + 1
    # Two waves per harmonic and sample, and the resonances of every phoneme in every frame
    needed = math.prod(phonemes.shape[:-2]) * harmonics * (2 * length + frames * phonemes.shape[-1])
    what = f"{length} samples with {harmonics} harmonics"
    check_memory("synthesize", what, needed * phonemes.element_size(), phonemes.device)
    controls = _in_frames(score, frames, hop, sample_rate, inventory=inventory, relax=relax, voice=voice)
    nyquist, tilt = sample_rate / 2000, _of(voice.tilt, 2, phonemes)
    voiced = _voiced(controls, hop, harmonics, sample_rate, tilt, nyquist)
    noise = _noise(controls, inventory, white, hop, nyquist)
    return (_VOICE_LEVEL * voiced + _NOISE_LEVEL * noise)[..., :length].to(given)


def _in_frames(score: list[Tensor], frames: int, hop: int, sample_rate: int, **options: Any) -> Controls:
    """What the vocal tract does every `hop` samples."""
    like = score[0]
    times = _constant(("times", frames, hop, sample_rate), like, lambda: torch.arange(frames) * (hop / sample_rate))
    return vocal_controls(*score, times=times, highest=sample_rate / 4, **options)


def _voiced(
    controls: Controls, hop: int, harmonics: int, sample_rate: int, tilt: float | Tensor, nyquist: float
) -> Tensor:
    number = _constant(("numbers", harmonics), controls.pitch, lambda: torch.arange(1, harmonics + 1))
    frequency = controls.pitch[..., None] * number / 1000
    shaped = resonance(frequency[..., None, :], controls.formants, controls.bandwidths)
    level = (controls.voice[..., None] * shaped).sum(-2) * source(frequency, tilt, nyquist)
    rise = _constant(("rise", hop), level, lambda: torch.arange(hop) / hop)
    speed = controls.pitch[..., :-1, None] * (1 - rise) + controls.pitch[..., 1:, None] * rise
    # In cycles and double precision: multiples of a long phase would lose their fraction in single precision
    exact = torch.float64 if speed.device.type != "mps" else torch.float32
    cycles = (speed / sample_rate).flatten(-2).to(exact).cumsum(-1)
    cycles = (cycles - cycles.detach().floor()).to(level.dtype).unflatten(-1, speed.shape[-2:])
    waves = torch.sin(2 * math.pi * cycles[..., None] * number)
    before, after = ((waves @ a[..., None])[..., 0] for a in (level[..., :-1, :], level[..., 1:, :]))
    return (before * (1 - rise) + after * rise).flatten(-2)


def _noise(controls: Controls, inventory: Inventory, white: Tensor, hop: int, nyquist: float) -> Tensor:
    window = 4 * hop
    count, bins = controls.pitch.shape[-1], window // 2 + 1
    frequency = _constant(("bins", bins, nyquist), white, lambda: torch.linspace(0, nyquist, bins))
    friction = controls.friction @ band_noise(frequency, inventory.noise.to(white))
    # Breath passes through the mean tract: what is made at the glottis has no phoneme of its own
    weight = controls.voice.square() + controls.breath.square() + 1e-8
    weight = (weight / weight.sum(-1, keepdim=True))[..., None]
    tract = resonance(frequency, (controls.formants * weight).sum(-2), (controls.bandwidths * weight).sum(-2))
    level = friction + controls.breath.sum(-1, keepdim=True) * tract * (1 / (1 + frequency))
    rounds = -(-count // white.shape[0])
    random = white.repeat(rounds, 1, 1)[:count]
    shape = _constant(("hann", window), white, lambda: torch.hann_window(window, dtype=torch.float64))
    if level.numel():
        waves = torch.fft.irfft(torch.complex(level * random[..., 0], level * random[..., 1]), n=window) * shape
    else:  # MKL refuses to transform nothing
        waves = level[..., :1] * shape
    # Frame j lies around sample j * hop: it reaches two steps back and two ahead
    quarters = waves.unflatten(-1, (4, hop)).movedim(-2, -3)
    # Quarter i of frame j belongs to step i + j: rows of count + 4 steps, read as rows of count + 3, are shifted by i
    rows = torch.nn.functional.pad(quarters, (0, 0, 0, 4)).flatten(-3, -2)[..., :-4, :]
    total = rows.unflatten(-2, (4, count + 3)).sum(-3)
    return total[..., 2 : count + 1, :].flatten(-2) * math.sqrt(window / 1.5)


@outside_autocast
def mel_envelope(
    phonemes: Tensor,
    durations: Tensor,
    pitch: Tensor,
    loudness: Tensor,
    *,
    inventory: Inventory,
    frames: int,
    hop: int = 160,
    bands: int = 40,
    sample_rate: int = 16_000,
    relax: Sigmoid = Logistic(150.0),
    voice: Voice = Voice(),
    floor: float = 1e-5,
) -> Tensor:
    """The expected log-mel spectrogram (..., bands, frames) of an utterance, without making its sound: log(floor + power).

    The power is that of the source and the filters, averaged over the position of the harmonics: smooth in frequency,
    where the spectrogram of a waveform shows each harmonic. The same levels as `mel_spectrogram(synthesize(...))`. Cost
    O(frames * K * bands)."""
    given = phonemes.dtype
    phonemes, *_ = score = [widened(t) for t in (phonemes, durations, pitch, loudness)]
    needed = math.prod(phonemes.shape[:-2]) * frames * phonemes.shape[-1] * bands * phonemes.element_size()
    check_memory("mel_envelope", f"{frames} frames of {bands} bands", needed, phonemes.device)
    controls = _in_frames(score, frames, hop, sample_rate, inventory=inventory, relax=relax, voice=voice)
    nyquist, key = sample_rate / 2000, (bands, sample_rate)
    frequency = _constant(("mel frequencies", *key), phonemes, lambda: _mel_frequencies(*key) / 1000)
    table = _constant(("mel samples", *key), phonemes, lambda: mel_table(*key, _mel_frequencies(*key)))
    shaped = resonance(frequency, controls.formants, controls.bandwidths)
    voiced = (controls.voice[..., None] * shaped).sum(-2) * source(frequency, _of(voice.tilt, 2, phonemes), nyquist)
    friction = controls.friction @ band_noise(frequency, inventory.noise.to(phonemes))
    hiss = (controls.breath[..., None] * shaped).sum(-2) * (1 / (1 + frequency))
    spacing = (controls.pitch.square() + 400.0).sqrt()[..., None]
    # Harmonics of amplitude A every f0 have the density A^2 rate / (4 f0), where white noise of variance 1 has 1
    voice_power = (_VOICE_LEVEL * voiced).square() * (sample_rate / (4 * spacing))
    power = voice_power + _NOISE_LEVEL**2 * (friction.square() + hiss.square())
    # The energy of the spectrograms' window
    return torch.log(floor + 0.375 * _FFT * power @ table.T).mT.to(given)


#: Of the spectrograms: samples per window.
_FFT = 512


@outside_autocast
def mel_spectrogram(
    waveform: Tensor, *, sample_rate: int = 16_000, hop: int = 160, bands: int = 40, floor: float = 1e-5
) -> Tensor:
    """The log-mel spectrogram (..., bands, 1 + length // hop) of waveforms (..., length): log(floor + mel @ |STFT|^2).

    The short-time Fourier transform has a Hann window of 512 samples, centred on multiples of `hop`; triangular bands
    evenly spaced in mel, each of area 1.

    >>> mel_spectrogram(torch.zeros(16000)).shape
    torch.Size([40, 101])
    """
    given, waveform = waveform.dtype, widened(waveform)
    window = _constant(("hann", _FFT), waveform, lambda: torch.hann_window(_FFT, dtype=torch.float64))
    cut = _frames(torch.nn.functional.pad(waveform, (_FFT // 2, _FFT // 2)), hop) * window
    if cut.numel():
        spectrum = torch.fft.rfft(cut)
        power = spectrum.real.square() + spectrum.imag.square()
    else:  # MKL refuses to transform nothing
        power = cut[..., : _FFT // 2 + 1]
    bins = torch.linspace(0, sample_rate / 2, _FFT // 2 + 1)
    table = _constant(("mel", bands, sample_rate), waveform, lambda: mel_table(bands, sample_rate, bins))
    return torch.log(floor + power @ table.T).mT.to(given)


def _frames(padded: Tensor, hop: int) -> Tensor:
    """Windows (..., T, _FFT) every `hop` samples, as torch.stft cuts them (a test compares the two). vmap has no batching
    rules for stft and for the gradient of unfold: frames are put together from blocks that hop and window share."""
    block = math.gcd(hop, _FFT)
    pieces, stride = _FFT // block, hop // block
    count = 1 + (padded.shape[-1] - _FFT) // hop
    if pieces > 64:
        return padded.unfold(-1, _FFT, hop)
    short = -padded.shape[-1] % block
    blocks = torch.nn.functional.pad(padded, (0, short)).unflatten(-1, (-1, block))
    first, inner = (torch.arange(n, device=padded.device) for n in (count, pieces))
    return (
        blocks.index_select(-2, (stride * first[:, None] + inner).flatten()).unflatten(-2, (count, pieces)).flatten(-2)
    )


def mel_table(bands: int, sample_rate: int, frequency: Tensor) -> Tensor:
    """Weights (bands, F) of triangular bands, evenly spaced in mel = 2595 log10(1 + f / 700), over `frequency` (F,) in
    Hz; rows sum to 1."""
    edges = _evenly_in_mel(bands + 2, sample_rate)
    low, middle, high = edges[:-2, None], edges[1:-1, None], edges[2:, None]
    rising, falling = (frequency - low) / (middle - low), (high - frequency) / (high - middle)
    rows = torch.minimum(rising, falling).clamp_min(0)
    # A band narrower than the spectrum's step may hold no bin at all: its nearest one then
    nearest = torch.nn.functional.one_hot((frequency - middle).abs().argmin(-1), len(frequency)).to(rows)
    rows = torch.where(rows.sum(-1, keepdim=True) > 0, rows, nearest)
    return rows / rows.sum(-1, keepdim=True)


def _mel_frequencies(bands: int, sample_rate: int) -> Tensor:
    """Three frequencies per band, in Hz."""
    return _evenly_in_mel(3 * bands + 2, sample_rate)[1:-1]


def _evenly_in_mel(count: int, sample_rate: int) -> Tensor:
    top = 2595 * math.log10(1 + sample_rate / 2 / 700)
    return 700 * (10 ** (torch.linspace(0, top, count, dtype=torch.float64) / 2595) - 1)


def _constant(key: tuple, like: Tensor, make: Callable[[], Tensor]) -> Tensor:
    """A table that calls repeat, in the precision and on the device of `like`."""
    return TENSORS.get(
        ("speech", *key, like.dtype, like.device), lambda: make().to(device=like.device, dtype=like.dtype)
    )


def frame_step(sample_rate: int) -> int:
    """Samples between two frames of the synthesizer: 5 ms."""
    return max(2, sample_rate // 200)


def _bounded(x: Tensor, most: float) -> Tensor:
    """Nearly x while |x| is well below `most`, and never beyond it: no input, however large, overflows."""
    return most * torch.tanh(x / most)


def _of(value: float | Tensor, dims: int, like: Tensor) -> float | Tensor:
    """One number per batch item, with `dims` dimensions of size 1 behind; a number as it is."""
    if isinstance(value, (int, float)):
        return value
    return value.to(like).reshape(*value.shape, *(1,) * dims) if value.dim() else value.to(like)

"""WAV files, by Python's own `wave`: 16-bit PCM is written, PCM of 8 to 32 bits is read; errors name the file."""

from __future__ import annotations

import io
import wave
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from algonet.core.files import read_file, write_bytes

#: No file longer than this is read: half an hour at 48 kHz.
MOST_SAMPLES = 48_000 * 1800
#: In 32 bits.
MOST_BYTES = 4 * MOST_SAMPLES + 2**16


def wav_bytes(waveform: Tensor, sample_rate: int) -> bytes:
    """The content of a WAV file (mono, 16 bits) with the waveform (N,), 1 the loudest; louder ones are scaled down to
    fit."""
    if not isinstance(waveform, Tensor):
        raise TypeError(
            f"wav_bytes: the waveform must be a tensor (N,), got {waveform!r}; write_wav(path, waveform, rate)."
        )
    if waveform.dim() != 1:
        raise ValueError(f"wav_bytes: one waveform (N,) at a time, got {tuple(waveform.shape)}.")
    sound = waveform.detach().cpu().double()
    if not bool(sound.isfinite().all()):
        raise ValueError("wav_bytes: the waveform holds NaN or infinity; look at the step that made it.")
    sound = sound / max(1.0, float(sound.abs().max()) if sound.numel() else 1.0)
    buffer = io.BytesIO()
    with wave.open(buffer, "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(sample_rate)
        file.writeframes((sound * 32767).round().to(torch.int16).numpy().astype("<i2").tobytes())
    return buffer.getvalue()


def write_wav(path: str | Path, waveform: Tensor, sample_rate: int) -> Path:
    """Write a waveform as a WAV file, whole or not at all."""
    return write_bytes(path, wav_bytes(waveform, sample_rate))


def read_wav(path: str | Path) -> tuple[Tensor, int]:
    """The waveform (N,) in [-1, 1] of a PCM WAV file, channels averaged, and its sample rate."""
    content = read_file(path, MOST_BYTES)
    try:
        with wave.open(io.BytesIO(content), "rb") as file:
            channels, width, rate, count = file.getparams()[:4]
            if not 0 < count * channels <= MOST_SAMPLES or not 0 < rate <= 1_000_000:
                raise ValueError(f"{count} samples at {rate} Hz; between 1 and {MOST_SAMPLES} can be read")
            data = file.readframes(count)
    except (wave.Error, EOFError, ValueError, OSError, RuntimeError) as error:
        reason = " ".join(str(error).split()) or "it ends too early"
        raise ValueError(f"{path}: not readable as a PCM WAV file: {reason}.") from None
    data = data[: len(data) // (width * channels) * width * channels]
    if not data:
        raise ValueError(f"{path}: not readable as a PCM WAV file: it holds no sound.")
    return torch.from_numpy(_samples(data, width)).reshape(-1, channels).mean(1), rate


def _samples(data: bytes, width: int) -> np.ndarray:
    if width == 1:  # the only unsigned one
        return (np.frombuffer(data, np.uint8).astype(np.float32) - 128) / 128
    raw = np.frombuffer(data, np.uint8).reshape(-1, width)
    # Into the upper bytes of 32-bit integers, whatever the width
    padded = np.zeros((len(raw), 4), np.uint8)
    padded[:, 4 - width :] = raw
    return padded.reshape(-1).view("<i4").astype(np.float32) / np.float32(2**31)

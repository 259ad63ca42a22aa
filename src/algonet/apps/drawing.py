"""What the playground and commands draw with: figures and arrays as pictures, and SVG."""

from __future__ import annotations

import base64
import io
from typing import Any

import numpy as np
from torch import Tensor

#: Seconds before the first phoneme of a sound.
SILENCE = 0.03


def png(figure: Any) -> bytes:
    """A matplotlib figure as PNG bytes; the figure is closed."""
    import matplotlib.pyplot as plt

    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=110, bbox_inches="tight", facecolor="white")
    plt.close(figure)
    return buffer.getvalue()


def to_bytes(pixels: Tensor) -> np.ndarray:
    """Values in [0, 1] as bytes."""
    return (pixels.detach().clamp(0, 1) * 255).round().byte().cpu().numpy()


def picture(pixels: np.ndarray) -> str:
    """Bytes (H, W, 3) as a data URL, encoded for speed."""
    from PIL import Image

    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "WEBP", quality=88, method=0)
    return "data:image/webp;base64," + base64.b64encode(buffer.getvalue()).decode()


def coloured(values: Tensor, name: str = "viridis", low: float | None = None, high: float | None = None) -> np.ndarray:
    """Values (...) through a colour map, as bytes (..., 3); what is not finite is black."""
    from matplotlib import colormaps
    from matplotlib.colors import Normalize

    data = np.ma.masked_invalid(values.detach().cpu().double().numpy())
    return colormaps[name](Normalize(low, high, clip=True)(data), bytes=True)[..., :3]


def shade(value: float, name: str = "viridis") -> str:
    """The colour of a value in [0, 1], for SVG."""
    from matplotlib import colormaps

    red, green, blue, _ = colormaps[name](float(np.clip(value, 0, 1)), bytes=True)
    return f"#{red:02x}{green:02x}{blue:02x}"


def curve(points: list[tuple[float, float]], colour: str, width: float = 2.5, dash: str = "") -> str:
    """A line through points, in SVG."""
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    style = f' stroke-dasharray="{dash}"' if dash else ""
    return f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="{width}" stroke-linejoin="round"{style}/>'


def label(
    x: float, y: float, text: str, *, size: int = 13, anchor: str = "middle", colour: str = "currentColor"
) -> str:
    from html import escape

    return (
        f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size}" text-anchor="{anchor}" fill="{colour}">{escape(text)}</text>'
    )


#: What the axis of a spectrogram names.
HERTZ = (250, 500, 1000, 2000, 4000, 7000)


def spectrogram_png(speech: Any, names: list[str], durations: Any) -> bytes:
    """The waveform above its log-mel spectrogram, with the phonemes where they are said."""
    import matplotlib.pyplot as plt

    frames = speech.mel.shape[-1]
    figure, (top, below) = plt.subplots(2, 1, figsize=(9, 4.6), height_ratios=[1, 3], sharex=True)
    seconds = (frames - 1) / 100
    wave, mel = (t.detach().cpu().numpy() for t in (speech.waveform, speech.mel))
    top.plot([i * seconds / len(wave) for i in range(len(wave))], wave, lw=0.5)
    top.set_yticks([])
    below.imshow(mel, origin="lower", aspect="auto", extent=(0, seconds, 0, len(mel)), vmin=-11.5, vmax=4, cmap="magma")
    below.set_xlabel("seconds")
    # Bands are evenly spaced in mel; the middle of the first lies a band's width above 0
    middles = np.log1p(np.array([*HERTZ, len(wave) / seconds / 2]) / 700)
    below.set_yticks((len(mel) + 1) * middles[:-1] / middles[-1] - 0.5, [f"{hertz / 1000:g}" for hertz in HERTZ])
    below.set_ylabel("kHz")
    begins = SILENCE
    for name, duration in zip(names, durations.tolist(), strict=True):
        top.text(begins + duration / 2, top.get_ylim()[1] * 1.05, name, ha="center", fontsize=12)
        below.axvline(begins, color="white", lw=0.6, alpha=0.6)
        begins += duration
    figure.tight_layout()
    return png(figure)

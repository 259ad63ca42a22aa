"""Arrays and numbers as what a browser shows: pictures in data URLs, and SVG."""

from __future__ import annotations

import base64
import io

import numpy as np
from torch import Tensor

from algonet.core.cache import cached


def picture(pixels: np.ndarray) -> str:
    """Bytes (H, W, 3) as a data URL, encoded for speed."""
    from PIL import Image

    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "WEBP", quality=88, method=0)
    return "data:image/webp;base64," + base64.b64encode(buffer.getvalue()).decode()


@cached(most=8)
def _table(name: str) -> np.ndarray:
    from matplotlib import colormaps

    return (colormaps[name](np.linspace(0, 1, 256))[:, :3] * 255).round().astype(np.uint8)


def coloured(values: Tensor, name: str = "viridis", low: float | None = None, high: float | None = None) -> np.ndarray:
    """Values (...) through a colour map, as bytes (..., 3); what is not finite is black."""
    data = values.detach().cpu().double().numpy()
    finite = np.isfinite(data)
    low = float(data[finite].min()) if low is None and finite.any() else (low or 0.0)
    high = float(data[finite].max()) if high is None and finite.any() else (high or 1.0)
    span = max(high - low, 1e-12)
    levels = np.clip((np.where(finite, data, low) - low) / span * 255, 0, 255).astype(np.uint8)
    return np.where(finite[..., None], _table(name)[levels], 0).astype(np.uint8)


def shade(value: float, name: str = "viridis") -> str:
    """The colour of a value in [0, 1], for SVG."""
    red, green, blue = _table(name)[int(np.clip(value, 0, 1) * 255)]
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

"""From pictures in files to reconstructions in files."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from algonet.core.files import write_bytes
from algonet.core.pictures import open_picture

from .build import load_model, template
from .config import RunConfig
from .fractal_model import save_system
from .model import Trainable


def load_picture(path: Path, config: RunConfig) -> Tensor:
    """An image file as (3, H, views * W) in [0, 1], resized; its views stand side by side."""
    views = config.data.views if config.kind == "mesh" else 1
    image = open_picture(path).convert("RGB")
    if abs(image.width / image.height - views) > 0.05 * views:
        raise ValueError(
            f"{path}: this model looks at {views} square view(s) side by side; the picture is "
            f"{image.width} x {image.height}."
        )
    array = np.asarray(image.resize((config.data.size * views, config.data.size)), dtype=np.float32) / 255
    return torch.from_numpy(array).permute(2, 0, 1)


@torch.no_grad()
def reconstruct_files(checkpoint: Path, pictures: list[Path], out: Path) -> list[Path]:
    """Reconstruct each picture: a mesh (.obj) or a function system (.json), and a picture of both beside each other (.png)."""
    model, config = load_model(checkpoint)
    written = []
    for path in pictures:
        a = load_picture(path, config)[None]
        found = model.reconstruct(a)
        written.append(_save(found[0], config, out / path.stem))
        write_bytes(out / f"{path.stem}.png", _beside(model, a, found))
    return written


def _save(found: Tensor, config: RunConfig, stem: Path) -> Path:
    if config.kind == "mesh":
        path = stem.with_name(f"{stem.name}.obj")
        path.parent.mkdir(parents=True, exist_ok=True)
        template(config).replace(vertices=found).save(path)
        return path
    return save_system(found, stem.with_name(f"{stem.name}.json"))


def _beside(model: Trainable, a: Tensor, found: Tensor) -> bytes:
    from PIL import Image

    seen = model.invert(found, a).expand(-1, 3, -1, -1)
    both = torch.cat([a, seen], -2 if a.shape[-1] > a.shape[-2] else -1)[0]
    pixels = (both.clamp(0, 1).permute(1, 2, 0).numpy() * 255).astype(np.uint8)
    scale = max(1, 256 // a.shape[-2])
    image = Image.fromarray(pixels)
    image = image.resize((image.width * scale, image.height * scale), Image.Resampling.NEAREST)
    buffer = io.BytesIO()
    image.save(buffer, format="PNG")
    return buffer.getvalue()

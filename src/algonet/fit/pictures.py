"""Targets from a folder of pictures, with the cameras that a file beside them says."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from algonet.core.extras import require
from algonet.core.pictures import open_picture
from algonet.render import Camera
from algonet.render.cameras import read_cameras

PICTURES = (".png", ".jpg", ".jpeg", ".webp", ".bmp")
#: Names under which a folder's cameras are looked for.
CAMERA_FILES = ("cameras.json", "transforms.json")


def pictures_with_cameras(folder: Path, cameras: Path | None, size: int) -> tuple[Tensor, Camera] | None:
    """RGBA pictures (N, H, W, 4) of a camera file, and the cameras; None if none is given and none is in the folder."""
    found = cameras or next((folder / name for name in CAMERA_FILES if (folder / name).is_file()), None)
    if found is None:
        return None
    names, _ = read_cameras(found, (size, size))
    pictures = cut_out([_frame_file(name, found, folder) for name in names], size)
    return pictures, read_cameras(found, (int(pictures.shape[1]), int(pictures.shape[2])))[1]


def picture_files(folder: Path) -> list[Path]:
    """All pictures of a folder, in order of their names; numbers in names count as numbers: view 2 comes before view 10."""
    paths = [p for p in folder.iterdir() if p.suffix.lower() in PICTURES]
    if not paths:
        raise ValueError(f"{folder}: holds no pictures (.png, .jpg, .webp, .bmp).")
    return sorted(paths, key=lambda p: [int(s) if s.isdecimal() else s for s in re.split(r"(\d+)", p.name)])


def cut_out(paths: list[Path], size: int) -> Tensor:
    """Pictures as `read_pictures` gives them; in those without alpha, what is white is transparent."""
    pictures = read_pictures(paths, size)
    for path, pixels in zip(paths, pictures, strict=True):
        if bool((pixels[..., 3] > 0.99).all()):
            pixels[..., 3] = (pixels[..., :3].amin(-1) < 0.95).float()
            _check_background(path, pixels[..., 3])
    return pictures


def read_pictures(paths: list[Path], size: int) -> Tensor:
    """Pictures as RGBA (N, H, W, 4) with the longer side `size` pixels."""
    require("PIL")
    from PIL import Image

    pictures, shapes = [], {}
    for path in paths:
        whole = open_picture(path).convert("RGBA")
        share = size / max(whole.size)
        width, height = (max(1, round(n * share)) for n in whole.size)
        pixels = np.asarray(whole.resize((width, height), Image.Resampling.BOX)).astype(np.float32) / 255
        shapes.setdefault((width, height), path)
        pictures.append(torch.from_numpy(pixels))
    if len(shapes) > 1:
        listed = ", ".join(f"{path.name} {w} x {h}" for (w, h), path in list(shapes.items())[:3])
        raise ValueError(f"{paths[0].parent}: all pictures must have the same proportions; at this size, {listed}.")
    return torch.stack(pictures)


def _check_background(path: Path, covered: Tensor) -> None:
    """Raise where most of the border of a picture without alpha is not white: nothing says what the object is."""
    border = [*covered[0].tolist(), *covered[-1].tolist(), *covered[:, 0].tolist(), *covered[:, -1].tolist()]
    if sum(border) > len(border) / 2:
        raise ValueError(
            f"{path}: no background is known: the picture has no alpha, and most of its border is not white; "
            "cut the object out, with alpha or on white."
        )


def _frame_file(name: str, cameras: Path, folder: Path) -> Path:
    """The picture that a camera file names: beside it or in the folder, with or without its ending."""
    places = cameras.parent.resolve(), folder.resolve()
    for base in (cameras.parent / name, folder / name, folder / Path(name).name):
        for path in (base, *(base.with_name(base.name + ending) for ending in PICTURES)):
            # A camera file from elsewhere does not choose what is read elsewhere
            if path.is_file() and any(path.resolve().is_relative_to(place) for place in places):
                return path
    raise ValueError(f"{cameras}: names the picture {name}, which is neither beside it nor in {folder}.")

"""Cameras in files: a `transforms.json`, as NeRF data sets have it."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from algonet.core.files import read_json

#: In a camera file, in pixels: a longer lens sees nothing, and float32 could not place its pixels.
MOST_LENGTH = 1e6
#: Where a camera may stand.
MOST_PLACE = 1e9


class Frames(NamedTuple):
    """Names of pictures, and OpenCV's lens (N, 3, 3), rotation and translation of each, for pictures of `size`."""

    names: list[str]
    lenses: Tensor
    rotation: Tensor
    translation: Tensor
    size: tuple[int, int]


def read_frames(path: Path, size: tuple[int, int] | None = None) -> Frames:
    """Pictures and where they were taken from a `transforms.json`, as NeRF data sets have it; pictures are of `size`, or
    of the file's `h` and `w`.

    `frames` with `file_path` and `transform_matrix` (camera to world, the camera looking along its -z, y up); the angle of
    view by `camera_angle_x`, or `fl_x`, `fl_y`, `cx`, `cy` with `w` and `h`, for all frames or in each.
    """
    try:
        content = read_json(path)
        frames = content["frames"] if isinstance(content, dict) else None
        if not (isinstance(frames, list) and frames and all(isinstance(frame, dict) for frame in frames)):
            raise ValueError("wanted {'frames': [...]}, at least one")
        names = [str(frame["file_path"]) for frame in frames]
        poses = torch.tensor([frame["transform_matrix"] for frame in frames], dtype=torch.float32)
        if size is None:
            size = int(_length(content, "h")), int(_length(content, "w"))
        lenses = torch.stack([_lens({**content, **frame}, size) for frame in frames])
    except (ValueError, KeyError, TypeError, RuntimeError) as error:
        reason = f"no {error}" if isinstance(error, KeyError) else " ".join(str(error).split())[:200]
        raise ValueError(f"{path}: not readable as a camera file (transforms.json): {reason}") from error
    if poses.shape[1:] != (4, 4):
        raise ValueError(f"{path}: each `transform_matrix` must be 4 x 4, got {tuple(poses.shape[1:])}.")
    if not (poses.abs() < MOST_PLACE).all():
        raise ValueError(f"{path}: each number in `transform_matrix` must be below {MOST_PLACE:g}.")
    flip = torch.diag(torch.tensor([1.0, -1.0, -1.0]))
    rotation = flip @ poses[:, :3, :3].mT
    translation = -(rotation @ poses[:, :3, 3:])[..., 0]
    return Frames(names, lenses, rotation, translation, size)


def _lens(frame: dict[str, Any], size: tuple[int, int]) -> Tensor:
    """OpenCV's matrix (3, 3) for pictures of `size`."""
    height, width = size
    if "fl_x" in frame:
        w, h = _length(frame, "w", width), _length(frame, "h", height)
        fx = _length(frame, "fl_x")
        fy = _length(frame, "fl_y", fx)
        cx, cy = _length(frame, "cx", w / 2, -MOST_LENGTH), _length(frame, "cy", h / 2, -MOST_LENGTH)
        fx, cx, fy, cy = fx * width / w, cx * width / w, fy * height / h, cy * height / h
    else:
        angle = float(frame["camera_angle_x"])
        if not 0 < angle < math.pi:
            raise ValueError(f"`camera_angle_x` is in radians, between 0 and {math.pi:.2f}, got {angle:g}")
        fx = fy = width / (2 * math.tan(angle / 2))
        cx, cy = width / 2, height / 2
    # OpenCV counts pixels from their centres
    return torch.tensor([[fx, 0.0, cx - 0.5], [0.0, fy, cy - 0.5], [0.0, 0.0, 1.0]])


def _length(frame: dict[str, Any], key: str, otherwise: float | None = None, above: float = 0.0) -> float:
    """A number of pixels."""
    found = frame[key] if otherwise is None else frame.get(key, otherwise)
    if not above < found <= MOST_LENGTH:
        raise ValueError(f"`{key}` is in pixels, above {above:g} and at most {MOST_LENGTH:g}, got {str(found)[:20]}")
    return float(found)


def camera_file(camera: Any, names: list[str], size: tuple[int, int]) -> str:
    """Cameras as the text of a `transforms.json`, of pictures of `size` (H, W) with these names."""
    axes, frames = camera.axes.cpu(), []
    for i, name in enumerate(names):
        pose = torch.eye(4)
        pose[:3, :3], pose[:3, 3] = axes[i].T, camera.position[i].cpu()
        focal = float(camera.matrix[i, 1, :3].norm())
        angle = 2 * math.atan(size[1] / size[0] / focal)
        frames.append({"file_path": name, "camera_angle_x": angle, "transform_matrix": pose.tolist()})
    return json.dumps({"w": size[1], "h": size[0], "frames": frames}, indent=1) + "\n"

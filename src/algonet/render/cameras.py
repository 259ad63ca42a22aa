"""Cameras: where a point of the world appears on the screen.

Conventions: right-handed world; the camera looks along its own -z, x to the right, y up. The image has row 0 on top, and
the centre of pixel [row, col] is at (x, y) = (col + 0.5, row + 0.5) from the top left corner. Normalised device
coordinates (NDC) span [-1, 1] over the image's *height*, y up; pixels are square. Depth is the distance along the viewing
direction, not along the ray.
"""

from __future__ import annotations

import json
import math
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from algonet.core import tracing
from algonet.core.cache import constant
from algonet.core.checks import check_size, check_spec
from algonet.core.files import read_json

#: The full vertical angle of view, in degrees, of a camera, or of a picture, of which nothing else is said.
DEFAULT_FOV = 60.0
#: Products of a rotation's rows may be this far from 0 and 1: files are rounded, poses come from estimates.
ROTATION_ERROR = 1e-2
#: In a camera file, in pixels: a longer lens sees nothing, and float32 could not place its pixels.
MOST_LENGTH = 1e6
#: Where a camera may stand.
MOST_PLACE = 1e9


@dataclass(frozen=True, eq=False)
class Camera:
    """A perspective or orthographic camera, or a batch of them.

    `matrix` (*B, 4, 4) maps homogeneous world points to (x w, y w, depth, 1) with x, y in NDC and w the depth (perspective)
    or 1 (orthographic). A face fades from depth 2 x `near` and is gone at `near`. `position` (*B, 3)
    is the camera's place in the world (for orthographic cameras: of its origin). Build one with `look_at`,
    `orthographic` or `from_opencv`; all of them are differentiable in their tensors.
    """

    matrix: Tensor = field(repr=False)
    position: Tensor
    perspective: bool = True
    near: float | Tensor = 0.1

    def __post_init__(self):
        if self.matrix.shape[-2:] != (4, 4):
            raise ValueError(f"Camera: `matrix` must be (*batch, 4, 4), got {tuple(self.matrix.shape)}.")
        if not isinstance(self.near, Tensor) and not 0 < self.near < math.inf:
            raise ValueError(f"Camera: `near` must be positive and finite, got {self.near!r}.")

    @property
    def batch_shape(self) -> torch.Size:
        return self.matrix.shape[:-2]

    @staticmethod
    @tracing.outside_autocast
    def look_at(
        eye: Tensor | tuple[float, float, float],
        target: Tensor | tuple[float, float, float] = (0.0, 0.0, 0.0),
        up: Tensor | tuple[float, float, float] = (0.0, 1.0, 0.0),
        *,
        fov: float | Tensor = DEFAULT_FOV,
        near: float | Tensor = 0.1,
    ) -> Camera:
        """A perspective camera at `eye` that looks at `target`; `fov` is the full vertical angle in degrees.

        `eye`, `target` and `up` are (3,) or (B, 3) and broadcast.

        >>> camera = Camera.look_at((0.0, 0.0, 3.0), fov=60.0)
        >>> camera.project(torch.zeros(1, 3), size=(100, 200))[0]  # x, y in pixels, and depth
        tensor([100.,  50.,   3.])
        """
        position, rotation = _view("Camera.look_at", eye, target, up)
        check_fov("Camera.look_at: `fov`", fov)
        focal = 1 / torch.tan(torch.as_tensor(fov, dtype=position.dtype, device=position.device) * (math.pi / 360))
        return Camera(_matrix(rotation, position, focal[..., None]), position, True, near)

    @staticmethod
    @tracing.outside_autocast
    def orthographic(
        eye: Tensor | tuple[float, float, float],
        target: Tensor | tuple[float, float, float] = (0.0, 0.0, 0.0),
        up: Tensor | tuple[float, float, float] = (0.0, 1.0, 0.0),
        *,
        height: float | Tensor = 2.0,
        near: float | Tensor = 0.1,
    ) -> Camera:
        """A camera at `eye` looking at `target` without perspective; the image spans `height` units of the world.

        >>> Camera.orthographic((0.0, 0.0, 3.0)).project(torch.tensor([[1.0, 0.0, 0.0]]), size=(100, 100))[0]
        tensor([100.,  50.,   3.])
        """
        position, rotation = _view("Camera.orthographic", eye, target, up)
        if not isinstance(height, Tensor) and not 0 < height < math.inf:
            raise ValueError(f"Camera.orthographic: `height` must be positive, got {height!r}.")
        focal = 2 / torch.as_tensor(height, dtype=position.dtype, device=position.device)
        return Camera(_matrix(rotation, position, focal[..., None]), position, False, near)

    @staticmethod
    @tracing.outside_autocast
    def from_opencv(
        intrinsics: Tensor, rotation: Tensor, translation: Tensor, *, size: tuple[int, int], near: float | Tensor = 0.1
    ) -> Camera:
        """A camera from OpenCV's K (*B, 3, 3), R (*B, 3, 3) and t (*B, 3): x_camera = R x_world + t, y down, z forward.

        K is in pixels of an image of `size` (H, W) with OpenCV's pixel centres at whole numbers, which are half a pixel
        off the ones here; the camera then renders at any size of the same proportions. Skew is not supported.
        """
        where = "Camera.from_opencv"
        check_spec(where, "intrinsics", intrinsics, "*batch 3 3")
        check_spec(where, "rotation", rotation, "*batch 3 3")
        check_spec(where, "translation", translation, "*batch 3")
        _check_opencv(where, intrinsics, rotation)
        height, width = check_size(where, size)
        flip = rotation.new_tensor([1.0, -1.0, -1.0])
        own = flip[:, None] * rotation
        eye = -(rotation.mT @ translation[..., None])[..., 0]
        focal = torch.stack([intrinsics[..., 0, 0], intrinsics[..., 1, 1]], -1) * (2 / height)
        middle = intrinsics.new_tensor([width / 2 - 0.5, height / 2 - 0.5])
        centre = (intrinsics[..., :2, 2] - middle) * flip[:2] * (2 / height)
        return Camera(_matrix(own, eye, focal, centre), eye, True, near)

    @tracing.outside_autocast
    def pixel_matrix(self, size: tuple[int, int]) -> Tensor:
        """(*B, 3, 4): homogeneous world points to (x w, y w, depth), x and y in pixels of an image of `size` (H, W)."""
        return viewport(size, self.perspective, self.matrix) @ self.matrix

    @tracing.outside_autocast
    def project(self, points: Tensor, size: tuple[int, int]) -> Tensor:
        """World points (*B, V, 3) to (*B, V, 3): x, y in pixels and depth. Points behind the camera come out mirrored."""
        matrix = self.pixel_matrix(size).to(points.dtype)
        clip = points @ matrix[..., :3].mT + matrix[..., None, :, 3]
        if not self.perspective:
            return clip
        return torch.cat([clip[..., :2] / clip[..., 2:], clip[..., 2:]], -1)

    @property
    def axes(self) -> Tensor:
        """(*B, 3, 3): the world directions of the camera's right, up and backward, as rows."""
        backward = -torch.nn.functional.normalize(self.matrix[..., 2, :3], dim=-1)
        up = self.matrix[..., 1, :3]
        up = torch.nn.functional.normalize(up - (up * backward).sum(-1, keepdim=True) * backward, dim=-1)
        return torch.stack([torch.linalg.cross(up, backward), up, backward], -2)

    @staticmethod
    def load(path: str | os.PathLike[str], size: tuple[int, int] | None = None) -> Camera:
        """The cameras (N,) of a `transforms.json`, as NeRF data sets and `algonet fit-camera` write it.

        `size` (H, W) is that of the pictures, where the file does not say it by `h` and `w`.
        """
        return read_cameras(Path(path), size)[1]

    def to(self, *args, **kwargs) -> Camera:
        """The camera with its tensors moved or cast, as by `Tensor.to`."""
        near: Any = self.near
        near = near.to(*args, **kwargs) if isinstance(near, Tensor) else near
        return Camera(self.matrix.to(*args, **kwargs), self.position.to(*args, **kwargs), self.perspective, near)

    def __getitem__(self, index) -> Camera:
        """One camera, or some, out of a batch."""
        if not self.batch_shape:
            raise IndexError("Camera: this is a single camera; only a batch can be indexed.")
        near: Any = self.near
        near = near[index] if isinstance(near, Tensor) and near.dim() else near
        return Camera(self.matrix[index], self.position[index], self.perspective, near)


def check_fov(what: str, fov: float | Tensor) -> None:
    """Raise unless `fov` is an angle in degrees. Below pi it is refused: it would be one in radians, or a telescope's."""
    given: Any = fov
    if isinstance(given, Tensor):
        if not tracing.readable(given):
            return
        fov = float(given.amin()) if bool((given < 180).all()) else math.inf
    if not math.pi <= fov < 180:
        instead = f"; {fov:g} radians are {math.degrees(fov):.4g} degrees" if 0 < fov < math.pi else ""
        raise ValueError(f"{what} is the full vertical angle in degrees, from 3.15 to 180, got {fov:g}{instead}.")


def _view(where: str, eye, target, up) -> tuple[Tensor, Tensor]:
    like = next((t for t in (eye, target, up) if isinstance(t, Tensor) and t.is_floating_point()), torch.zeros(()))
    try:
        eye, target, up = (torch.as_tensor(t, dtype=like.dtype, device=like.device) for t in (eye, target, up))
    except (TypeError, ValueError) as error:
        given = f"eye {eye!r}, target {target!r}, up {up!r}"
        raise TypeError(f"{where}: places are three numbers or tensors (*batch, 3), got {given}.") from error
    for name, t in (("eye", eye), ("target", target), ("up", up)):
        if t.shape[-1:] != (3,):
            raise ValueError(f"{where}: `{name}` must be (3,) or (*batch, 3), got {tuple(t.shape)}.")
    eye, target, up = torch.broadcast_tensors(eye, target, up)
    backward, sideways = eye - target, torch.linalg.cross(up, eye - target)
    if tracing.readable(sideways):
        length = sideways.detach().norm(dim=-1)
        scale = up.detach().norm(dim=-1) * backward.detach().norm(dim=-1)
        if bool((length <= 1e-6 * scale).any()):
            raise ValueError(f"{where}: singular: eye and target coincide or `up` is parallel to the view; change one.")
    z = torch.nn.functional.normalize(backward, dim=-1, eps=1e-20)
    x = torch.nn.functional.normalize(sideways, dim=-1, eps=1e-20)
    return eye, torch.stack([x, torch.linalg.cross(z, x), z], -2)


def _check_opencv(where: str, intrinsics: Tensor, rotation: Tensor) -> None:
    if not tracing.readable(intrinsics, rotation):
        return
    k = intrinsics.detach()
    if bool((k[..., 0, 0] == 0).any() or (k[..., 1, 1] == 0).any()):
        raise ValueError(f"{where}: singular: a focal length in `intrinsics` is 0.")
    turn = rotation.detach().double()
    x, y, z = turn.unbind(-2)
    off = float((turn @ turn.mT - torch.eye(3).to(turn)).abs().max()) if turn.numel() else 0.0
    volume = (torch.linalg.cross(x, y) * z).sum(-1)
    if not off < ROTATION_ERROR or bool((volume < 0).any()):
        raise ValueError(
            f"{where}: `rotation` must be a rotation matrix: rows of length 1 at right angles, determinant 1; got lengths "
            f"{turn.norm(dim=-1).min():.3g} to {turn.norm(dim=-1).max():.3g}, determinant {volume.min():.3g}."
        )


def _matrix(rotation: Tensor, eye: Tensor, focal: Tensor, centre: Tensor | None = None) -> Tensor:
    """(*B, 4, 4) from the world-to-camera rotation, the eye, focal lengths (*B, 1 or 2) and the principal point in NDC."""
    view = torch.cat([rotation, -(rotation @ eye[..., None])], -1)
    plane, depth = focal[..., None] * view[..., :2, :], -view[..., 2:, :]
    if centre is not None:
        plane = plane + centre[..., None] * depth
    depth = depth.expand(*plane.shape[:-2], 1, 4)
    last = constant((0.0, 0.0, 0.0, 1.0), depth.dtype, depth.device)
    return torch.cat([plane, depth, last.expand_as(depth)], -2)


def viewport(size: tuple[int, int], perspective: bool, like: Tensor) -> Tensor:
    """(3, 4): NDC to pixels, before the division by w."""
    h, w = size[0] / 2, size[1] / 2
    shift = (2, 3) if perspective else (3, 2)
    rows = [[h, 0.0, 0.0, 0.0], [0.0, -h, 0.0, 0.0], [0.0, 0.0, 1.0, 0.0]]
    rows[0][shift[0]], rows[1][shift[0]] = w, h
    return constant(rows, like.dtype, like.device)


def read_cameras(path: Path, size: tuple[int, int] | None = None) -> tuple[list[str], Camera]:
    """Names of the pictures in a `transforms.json`, as NeRF data sets have it, and their cameras (N,); pictures are of `size`
    (H, W), or of the file's `h` and `w`.

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
    return names, Camera.from_opencv(lenses, rotation, translation, size=size)


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

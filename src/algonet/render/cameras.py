"""Cameras: where a point of the world appears on the screen.

Conventions: right-handed world; the camera looks along its own -z, x to the right, y up. The image has row 0 on top, and
the centre of pixel [row, col] is at (x, y) = (col + 0.5, row + 0.5) from the top left corner. Normalised device
coordinates (NDC) span [-1, 1] over the image's *height*, y up; pixels are square. Depth is the distance along the viewing
direction, not along the ray.
"""

from __future__ import annotations

import math
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from algonet.core import tracing
from algonet.core.cache import constant
from algonet.core.checks import check_size

from .camera_files import read_frames
from .softness import keepable

#: The full vertical angle of view, in degrees, of a camera, or of a picture, of which nothing else is said.
DEFAULT_FOV = 60.0
#: Products of a rotation's rows may be this far from 0 and 1: files are rounded, poses come from estimates.
ROTATION_ERROR = 1e-2


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
    _pixel_matrices: dict[Any, Tensor] = field(default_factory=dict, init=False, repr=False)
    _ready: dict[Any, tuple[Tensor, Tensor]] = field(default_factory=dict, init=False, repr=False)

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
        return Camera(_matrix(rotation, position, focal), position, True, near)

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
        return Camera(_matrix(rotation, position, focal), position, False, near)

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
        for name, tensor, shape in (("intrinsics", intrinsics, (3, 3)), ("rotation", rotation, (3, 3))):
            if tensor.shape[-2:] != shape:
                raise ValueError(f"{where}: `{name}` must be (*batch, 3, 3), got {tuple(tensor.shape)}.")
        if translation.shape[-1] != 3:
            raise ValueError(f"{where}: `translation` must be (*batch, 3), got {tuple(translation.shape)}.")
        _check_opencv(where, intrinsics, rotation)
        height, width = check_size(where, size)
        flip = rotation.new_tensor([1.0, -1.0, -1.0])
        own = flip[:, None] * rotation
        eye = -(rotation.mT @ translation[..., None])[..., 0]
        focal = torch.stack([intrinsics[..., 0, 0], intrinsics[..., 1, 1]], -1) * (2 / height)
        centre = torch.stack(
            [
                (intrinsics[..., 0, 2] + 0.5 - width / 2) * (2 / height),
                -(intrinsics[..., 1, 2] + 0.5 - height / 2) * (2 / height),
            ],
            -1,
        )
        return Camera(_matrix(own, eye, focal, centre), eye, True, near)

    def pixel_matrix(self, size: tuple[int, int]) -> Tensor:
        """(*B, 3, 4): homogeneous world points to (x w, y w, depth), x and y in pixels of an image of `size` (H, W)."""
        matrix = self.matrix
        if not keepable(matrix):
            return _viewport(size, self.perspective, matrix.dtype, matrix.device) @ matrix
        # A camera that stays is asked at every step of a training loop
        key = (size, matrix._version)
        found = self._pixel_matrices.get(key)
        if found is None:
            self._pixel_matrices.clear()
            with tracing.outside_modes():
                found = _viewport(size, self.perspective, matrix.dtype, matrix.device) @ matrix
            self._pixel_matrices[key] = found
        return found

    def _ready_for(self, size: tuple[int, int], like: Tensor, batch: torch.Size) -> tuple[Tensor, Tensor]:
        """`pixel_matrix` (*batch, 3, 4) and `position` (*batch, 3), moved, cast and expanded as renderers want them."""
        matrix, position = self.matrix, self.position
        if not keepable(matrix, position):
            return self._prepared(size, like, batch)
        key = (size, matrix._version, position._version, like.dtype, like.device, batch)
        found = self._ready.get(key)
        if found is None:
            self._ready.clear()
            with tracing.outside_modes():
                found = self._ready[key] = self._prepared(size, like, batch)
        return found

    def _prepared(self, size: tuple[int, int], like: Tensor, batch: torch.Size) -> tuple[Tensor, Tensor]:
        if torch.is_autocast_enabled(like.device.type):
            with torch.autocast(like.device.type, enabled=False):
                return self._prepared(size, like, batch)
        return self.pixel_matrix(size).to(like).expand(*batch, 3, 4), self.position.to(like).expand(*batch, 3)

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
        if given.is_cuda or tracing.compiling() or tracing.wrapped(given):
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
    if not eye.is_cuda and not tracing.compiling() and not tracing.wrapped(sideways):
        length = sideways.detach().norm(dim=-1)
        scale = up.detach().norm(dim=-1) * backward.detach().norm(dim=-1)
        if bool((length <= 1e-6 * scale).any()):
            raise ValueError(f"{where}: singular: eye and target coincide or `up` is parallel to the view; change one.")
    z = torch.nn.functional.normalize(backward, dim=-1, eps=1e-20)
    x = torch.nn.functional.normalize(sideways, dim=-1, eps=1e-20)
    return eye, torch.stack([x, torch.linalg.cross(z, x), z], -2)


def _check_opencv(where: str, intrinsics: Tensor, rotation: Tensor) -> None:
    if intrinsics.is_cuda or tracing.compiling() or tracing.wrapped(intrinsics) or tracing.wrapped(rotation):
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
    """(*B, 4, 4) from the world-to-camera rotation, the eye, focal lengths and the principal point in NDC."""
    view = torch.cat([rotation, -(rotation @ eye[..., None])], -1)
    if focal.dim() and focal.shape[-1:] == (2,) and centre is not None:
        x, y = focal[..., 0:1] * view[..., 0, :], focal[..., 1:2] * view[..., 1, :]
        x, y = x - centre[..., 0:1] * view[..., 2, :], y - centre[..., 1:2] * view[..., 2, :]
    else:
        x, y = focal[..., None] * view[..., 0, :], focal[..., None] * view[..., 1, :]
    last = torch.zeros_like(view[..., 2, :])
    last = torch.cat([last[..., :3], torch.ones_like(last[..., 3:])], -1)
    return torch.stack(torch.broadcast_tensors(x, y, -view[..., 2, :], last), -2)


def _viewport(size: tuple[int, int], perspective: bool, dtype: torch.dtype, device: torch.device) -> Tensor:
    """(3, 4): NDC to pixels, before the division by w."""
    h, w = size[0] / 2, size[1] / 2
    shift = (2, 3) if perspective else (3, 2)
    rows = [[h, 0.0, 0.0, 0.0], [0.0, -h, 0.0, 0.0], [0.0, 0.0, 1.0, 0.0]]
    rows[0][shift[0]], rows[1][shift[0]] = w, h
    return constant(rows, dtype, device)


def read_cameras(path: Path, size: tuple[int, int] | None = None) -> tuple[list[str], Camera]:
    """Names of the pictures in a `transforms.json`, and their cameras (N,); `size` (H, W) is the pictures', if not there."""
    frames = read_frames(path, size)
    return frames.names, Camera.from_opencv(frames.lenses, frames.rotation, frames.translation, size=frames.size)

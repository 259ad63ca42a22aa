"""What a fit should look like: pictures of any kind, with the cameras that took them; from tensors, or a folder of files."""

from __future__ import annotations

import dataclasses
import math
import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import avg_pool2d, grid_sample, interpolate, max_pool2d, pad

from algonet.core.checks import check_spec
from algonet.core.extras import require
from algonet.core.pictures import open_picture
from algonet.core.tracing import outside_autocast
from algonet.relax import Noise
from algonet.render import Camera, Coverage
from algonet.render.cameras import read_cameras
from algonet.render.coverage import DEFAULT_COVERAGE

ENDINGS = (".png", ".jpg", ".jpeg", ".webp", ".bmp")
#: Names under which a folder's cameras are looked for.
CAMERA_FILES = ("cameras.json", "transforms.json")
#: Fields that hold pictures, and their shapes; `rgb` has three channels or four.
PICTURES = {"silhouettes": "N H W", "rgb": "N H W C", "normals": "N H W 3", "depth": "N H W", "masks": "N H W"}


@dataclass(frozen=True, eq=False)
class Targets:
    """Pictures of an object from known cameras: silhouettes, colours, normals, depths, or any subset.

    `cameras` is a batch of N. `silhouettes` (N, H, W) in [0, 1]; `rgb` (N, H, W, 3), or (N, H, W, 4) with alpha (not
    multiplied in), which then is the silhouette; `normals` (N, H, W, 3), of unit length in world coordinates and 0 where
    there is nothing; `depth` (N, H, W) along the viewing direction, 0 where there is nothing. `masks` (N, H, W) are 1 (or
    True) where the pictures count and 0 where they are unknown. Colours without any silhouette are compared over `background`.

    >>> cameras = Camera.look_at(torch.tensor([[0.0, 0.0, 3.0], [3.0, 0.0, 0.0]]))
    >>> Targets(cameras, silhouettes=torch.zeros(2, 16, 24)).size
    (16, 24)
    """

    cameras: Camera
    silhouettes: Tensor | None = None
    rgb: Tensor | None = None
    normals: Tensor | None = None
    depth: Tensor | None = None
    masks: Tensor | None = None
    background: tuple[float, float, float] = (0.0, 0.0, 0.0)

    def __post_init__(self):
        masks = self.masks
        if masks is not None and getattr(masks, "dtype", None) == torch.bool:
            object.__setattr__(self, "masks", masks.to(torch.get_default_dtype()))
        given = self.given
        if not set(given) - {"masks"}:
            raise ValueError("Targets: give at least one of `silhouettes`, `rgb`, `normals`, `depth`.")
        for name, pictures in given.items():
            _check_pictures(name, pictures)
        shapes = {name: tuple(pictures.shape[:3]) for name, pictures in given.items()}
        if len(set(shapes.values())) > 1:
            listed = ", ".join(f"{name} {shape}" for name, shape in shapes.items())
            raise ValueError(f"Targets: all pictures must share (N, H, W), got {listed}.")
        count = next(iter(shapes.values()))[0]
        if tuple(self.cameras.batch_shape) != (count,):
            raise ValueError(
                f"Targets: one camera per picture: {count} pictures, cameras of batch shape {tuple(self.cameras.batch_shape)}."
            )
        if self.rgb is not None and self.rgb.shape[-1] == 4 and self.silhouettes is not None:
            raise ValueError(
                "Targets: `rgb` with alpha holds the silhouettes already; give (N, H, W, 3) or leave them out."
            )

    @staticmethod
    def of(pictures: Tensor, cameras: Camera) -> Targets:
        """Silhouettes (N, H, W) or RGBA (N, H, W, 4), as one tensor."""
        if pictures.dim() == 3:
            return Targets(cameras, silhouettes=pictures)
        if pictures.dim() == 4 and pictures.shape[-1] == 4:
            return Targets(cameras, rgb=pictures)
        raise ValueError(
            f"Targets: a tensor must hold silhouettes (N, H, W) or RGBA (N, H, W, 4), got {tuple(pictures.shape)}; "
            "name other kinds: Targets(cameras, rgb=..., normals=...)."
        )

    @staticmethod
    def load(
        folder: str | os.PathLike[str], cameras: Camera | str | os.PathLike[str] | None = None, *, size: int = 128
    ) -> Targets:
        """The pictures of a folder (PNG, JPEG, WebP, BMP), scaled so that the longer side has `size` pixels.

        `cameras` are those of the pictures in order of their names and the numbers in them, or a file that says which picture
        was taken from where (`Camera.load`): unless given, cameras.json or transforms.json in the folder. What is transparent,
        or white where there is no alpha, is background.
        """
        folder = Path(folder)
        if isinstance(cameras, Camera):
            return Targets(cameras, rgb=cut_out(picture_files(folder), size))
        file = camera_file_in(folder) if cameras is None else Path(cameras)
        if file is None:
            raise ValueError(
                f"Targets.load: {folder} holds no {' or '.join(CAMERA_FILES)}; give `cameras`, one per picture, such as "
                "Camera.look_at(eyes, fov=40.0)."
            )
        names, _ = read_cameras(file, (size, size))
        pictures = cut_out([_frame_file(name, file, folder) for name in names], size)
        return Targets(read_cameras(file, (int(pictures.shape[1]), int(pictures.shape[2])))[1], rgb=pictures)

    @property
    def given(self) -> dict[str, Tensor]:
        """The pictures that there are, by kind."""
        return {name: getattr(self, name) for name in PICTURES if getattr(self, name) is not None}

    @property
    def size(self) -> tuple[int, int]:
        """(height, width) of the pictures."""
        first = next(iter(self.given.values()))
        return int(first.shape[1]), int(first.shape[2])

    @property
    def alpha(self) -> Tensor | None:
        """The silhouettes (N, H, W): as given, or the alpha of `rgb`, or where normals or depths are not 0."""
        if self.silhouettes is not None:
            return self.silhouettes
        if self.rgb is not None and self.rgb.shape[-1] == 4:
            return self.rgb[..., 3]
        if self.normals is not None:
            return (self.normals.square().sum(-1) > 0.25).to(self.normals.dtype)
        if self.depth is not None:
            return (self.depth > 0).to(self.depth.dtype)
        return None

    def __repr__(self) -> str:
        return f"Targets({len(self)} views of {self.size[0]} x {self.size[1]} pixels: {', '.join(self.given)})"

    def __len__(self) -> int:
        return int(self.cameras.batch_shape[0])

    def to(self, *args, **kwargs) -> Targets:
        """With all tensors moved or cast, as by `Tensor.to`."""
        return self._each(lambda part: part.to(*args, **kwargs))

    def __getitem__(self, index) -> Targets:
        """Some of the views, by a slice or a tensor of numbers."""
        index = slice(index, index + 1 or None) if isinstance(index, int) else index
        return self._each(lambda part: part[index])

    def _each(self, change: Callable[[Any], Any]) -> Targets:
        """With the cameras and all pictures changed."""
        changed = {name: change(pictures) for name, pictures in self.given.items()}
        return dataclasses.replace(self, cameras=change(self.cameras), **changed)

    def layers(self) -> dict[str, Tensor]:
        """What a rendering over the background shows, by kind, each (N, H, W, C), all multiplied by the silhouette."""
        views = {"rgb": lambda p: p[..., :3], "normals": lambda p: p, "depth": lambda p: p[..., None]}
        found = {name: view(self.given[name]) for name, view in views.items() if name in self.given}
        if self.alpha is None:
            return found
        alpha = self.alpha[..., None]
        return {"silhouettes": alpha, **{name: layer * alpha for name, layer in found.items()}}


class Level:
    """The targets as the renderer at one scale shows them: blurred by its noise, and smaller where the noise is wide."""

    def __init__(self, targets: Targets, scale: float, coverage: Coverage = DEFAULT_COVERAGE):
        self.layers: dict[str, Tensor] = {}
        noise = coverage.blur(scale)
        height, width = targets.size
        factor = shrinking(scale, targets.size, 16)
        self.factor, self.scale = factor, scale / factor
        self.size = (height // factor, width // factor)
        behind = torch.tensor(targets.background) if targets.alpha is None else torch.zeros(3)
        there = torch.zeros(len(targets), 1, height, width).to(next(iter(targets.layers().values())))
        for name, layer in targets.layers().items():
            empty = behind.to(layer) if name == "rgb" else torch.zeros(layer.shape[-1]).to(layer)
            shown = (layer - empty).movedim(-1, 1)
            there = torch.maximum(there, shown.abs().amax(1, keepdim=True))
            self.layers[name] = self._shrunk(blur(shown, noise)).movedim(1, -1) + empty
        # Where the noise reaches what is unknown, the blurred picture is unknown too
        masked = None if targets.masks is None else 1 - targets.masks[:, None]
        unknown = _unknown(masked, there > 0.02, noise)
        #: 1 where the pictures count (N, H, W, 1), or None if they do everywhere
        self.mask = None if unknown is None else (self._shrunk(unknown) < 0.02).to(unknown.dtype).movedim(1, -1)

    @property
    def known(self) -> float:
        """The share of pixels that count."""
        return 1.0 if self.mask is None else float(self.mask.mean())

    def _shrunk(self, pictures: Tensor) -> Tensor:
        return pictures if self.factor == 1 else avg_pool2d(pictures, self.factor)


def shrinking(scale: float, size: tuple[int, int], least: int) -> int:
    """By what power of two pictures of this size may be shrunken, to no side below `least`, that show noise of this scale."""
    factor = 1
    while factor * 2 <= scale and all(n % (factor * 2) == 0 and n // (factor * 2) >= least for n in size):
        factor *= 2
    return factor


def shrunk(pictures: Tensor, size: int) -> Tensor:
    """Pictures (N, H, W, C) averaged down until the longer side is about `size` and even, never enlarged."""
    height, width = pictures.shape[1:3]
    share = min(1.0, size / max(height, width))
    if share == 1.0:
        return pictures
    rows, columns = (max(2, 2 * round(n * share / 2)) for n in (height, width))
    return interpolate(pictures.movedim(-1, 1), (rows, columns), mode="area").movedim(1, -1)


def _unknown(masked: Tensor | None, there: Tensor, noise: Noise) -> Tensor | None:
    """How much of what the noise brings to each pixel (N, 1, H, W) is unknown; None if nothing is.

    Unknown is what is `masked`, and what lies beyond the frame near where something is `there` at its border: the object goes
    on, nobody knows how. Where nothing is at the border, nothing is beyond it.
    """
    margin = math.ceil(float(noise.reach(0.02)))
    wide = pad(there.float(), (margin,) * 4, mode="replicate")
    inner = torch.zeros_like(wide)
    inner[..., margin:-margin, margin:-margin] = 1
    if masked is None and not bool((wide * (1 - inner)).any()):
        return None
    around = 2 * margin + 1
    wide = max_pool2d(wide, (around, 1), 1, (margin, 0))
    wide = max_pool2d(wide, (1, around), 1, (0, margin)) * (1 - inner)
    if masked is not None:
        wide = wide + pad(masked, (margin,) * 4)
    return blur(wide, noise)[..., margin:-margin, margin:-margin]


def blur(image: Tensor, noise: Noise) -> Tensor:
    """An image (*B, H, W), 0 outside, filtered by noise whose scale is in pixels: what the smooth renderer tends to show."""
    height, width = image.shape[-2:]
    reach = math.ceil(float(noise.reach(1e-4)))
    rows, columns = height + reach, width + reach
    y = torch.fft.fftfreq(rows, 1 / rows, device=image.device).to(image.dtype)
    x = torch.fft.fftfreq(columns, 1 / columns, device=image.device).to(image.dtype)
    # A pixel's share is the density over its area: a grid of points in it, or small scales would be lost
    offsets = (torch.arange(5, device=image.device).to(image.dtype) - 2) / 5
    y, x = (y[:, None] + offsets).reshape(-1), (x[:, None] + offsets).reshape(-1)
    kernel = noise.density((y[:, None].square() + x.square()).sqrt())
    kernel = kernel.reshape(rows, 5, columns, 5).sum((1, 3))
    kernel = torch.fft.rfft2(kernel / kernel.sum())
    padded = pad(image, (0, reach, 0, reach))
    return torch.fft.irfft2(torch.fft.rfft2(padded) * kernel, s=(rows, columns))[..., :height, :width]


def looked_up(pictures: Tensor, places: Tensor, mode: str = "bilinear") -> Tensor:
    """Pictures (C, H, W) at places (T, 2) in pixels, x first: (C, T)."""
    height, width = pictures.shape[1:]
    grid = 2 * places / places.new_tensor([width, height]) - 1
    return grid_sample(pictures[None], grid[None, None], mode, padding_mode="border", align_corners=False)[0, :, 0]


@outside_autocast
def camera_to_world(normals: Tensor, cameras: Camera) -> Tensor:
    """Normals (N, H, W, 3) given in each camera's own axes (x right, y up, z to the viewer), turned into the world's."""
    check_spec("camera_to_world", "normals", normals, "N H W 3")
    return torch.einsum("nhwi,nij->nhwj", normals, cameras.axes.to(normals))


def _check_pictures(name: str, pictures: Tensor) -> None:
    of_bytes = isinstance(pictures, Tensor) and pictures.dtype == torch.uint8
    hint = "; divide bytes by 255" if of_bytes else "; RGBA pictures go into `rgb`" if name == "silhouettes" else ""
    check_spec("Targets", name, pictures, PICTURES[name], hint=hint)
    if 0 in pictures.shape or (name == "rgb" and pictures.shape[-1] not in (3, 4)):
        raise ValueError(
            f"Targets: `{name}` must hold pictures, of 3 or 4 colours if any, got {tuple(pictures.shape)}."
        )
    if pictures.device.type != "cpu":
        return
    if not bool(torch.isfinite(pictures).all()):
        raise ValueError(f"Targets: `{name}` holds values that are not finite; put 0 there, and 0 into `masks`.")
    low, high = float(pictures.min()), float(pictures.max())
    least, most = {"normals": (-1.01, 1.01), "depth": (0.0, math.inf)}.get(name, (-0.01, 1.01))
    if low < least or high > most:
        hint = " Divide bytes by 255." if high > 1.5 and most < 2 else ""
        if name == "depth":
            hint = " A soft rendering's is the surface's without `background_depth`: leave that out."
        raise ValueError(
            f"Targets: `{name}` must lie in [{round(least)}, {most:.0f}], got values from {low:.3g} to {high:.3g}.{hint}"
        )


def camera_file_in(folder: Path) -> Path | None:
    """The file in a folder that says where its pictures were taken from."""
    return next((folder / name for name in CAMERA_FILES if (folder / name).is_file()), None)


def picture_files(folder: Path) -> list[Path]:
    """All pictures of a folder, in order of their names; numbers in names count as numbers: view 2 comes before view 10."""
    paths = [p for p in folder.iterdir() if p.suffix.lower() in ENDINGS]
    if not paths:
        raise ValueError(f"{folder}: holds no pictures (.png, .jpg, .webp, .bmp).")
    return sorted(paths, key=lambda p: [int(s) if s.isdecimal() else s for s in re.split(r"(\d+)", p.name)])


def cut_out(paths: list[Path], size: int) -> Tensor:
    """Pictures as `read_pictures` gives them; in those without alpha, what is white is transparent."""
    pictures = read_pictures(paths, size)
    for path, pixels in zip(paths, pictures, strict=True):
        if bool((pixels[..., 3] > 0.99).all()):
            pixels[..., 3] = covered = (pixels[..., :3].amin(-1) < 0.95).float()
            # Where most of the border is not white, nothing says what the object is
            if float(border(covered).mean()) > 0.5:
                raise ValueError(
                    f"{path}: no background is known: the picture has no alpha, and most of its border is not white; "
                    "cut the object out, with alpha or on white."
                )
    return pictures


def border(pictures: Tensor) -> Tensor:
    """The pixels along the border of pictures (*B, H, W): (*B, 2 W + 2 H)."""
    return torch.cat([pictures[..., 0, :], pictures[..., -1, :], pictures[..., 0], pictures[..., -1]], -1)


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


def _frame_file(name: str, cameras: Path, folder: Path) -> Path:
    """The picture that a camera file names: beside it or in the folder, with or without its ending."""
    places = cameras.parent.resolve(), folder.resolve()
    for base in (cameras.parent / name, folder / name, folder / Path(name).name):
        for path in (base, *(base.with_name(base.name + ending) for ending in ENDINGS)):
            # A camera file from elsewhere does not choose what is read elsewhere
            if path.is_file() and any(path.resolve().is_relative_to(place) for place in places):
                return path
    raise ValueError(f"{cameras}: names the picture {name}, which is neither beside it nor in {folder}.")

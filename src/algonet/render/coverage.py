"""How much of a pixel a face covers: the options of the renderer."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from algonet.relax import Logistic, Sigmoid, StudentT

from .reference import Filtered, twice_area

UNITS = ("pixels", "ndc")


@dataclass(frozen=True, eq=False)
class FilteredCoverage:
    """The probability of landing inside the face when the pixel's position is perturbed by Student-t noise of even df.

    C-infinity, positive, exactly additive (the picture does not depend on the tessellation), and computed by all
    kernels. The noise's `scale` is in pixels, or with `units="ndc"` in halves of the image's height; it may be a tensor
    and has a gradient. `scale -> 0` gives the hard rasteriser. df = 2 reaches far, large df is nearly Gaussian.

    >>> FilteredCoverage(StudentT(df=8, scale=2.0)).df
    8
    """

    noise: StudentT = field(default_factory=StudentT)
    units: str = "pixels"

    def __post_init__(self):
        if not isinstance(self.noise, StudentT) or self.noise.df % 2 != 0:
            raise ValueError(
                f"FilteredCoverage: `noise` must be StudentT with an even df (the closed form needs it), got {self.noise!r}."
            )
        if self.noise.df > 64:
            raise ValueError(f"FilteredCoverage: df up to 64 (by then it is Gaussian to 3 %), got {self.noise.df!r}.")
        if self.units not in UNITS:
            raise ValueError(f"FilteredCoverage: `units` must be one of {', '.join(UNITS)}, got {self.units!r}.")

    @property
    def df(self) -> int:
        return int(self.noise.df)

    def seen(self, corners: Tensor, pixels: Tensor, scale: Tensor, df: int) -> tuple[Tensor, Tensor, Tensor]:
        return Filtered().seen(corners, pixels, scale, df)


@dataclass(frozen=True, eq=False)
class EdgeProduct:
    """The product of three sigmoids of the signed distances (in pixels) to the lines through the face's edges.

    C-infinity where the sigmoid is, but acute corners leak in long rays, and a finer mesh grows fatter. For comparison;
    in the reference only.
    """

    sigmoid: Sigmoid = field(default_factory=Logistic)

    def seen(self, corners: Tensor, pixels: Tensor, scale: Tensor, df: int) -> tuple[Tensor, Tensor, Tensor]:
        sign = twice_area(corners).sign()[:, None]
        coverage = sign
        for i in range(3):
            coverage = coverage * self.sigmoid(sign * _line_distance(corners, i, pixels))
        return _with_clamped_position(coverage, corners, pixels)


@dataclass(frozen=True, eq=False)
class EuclideanCoverage:
    """A sigmoid of the signed distance to the face's outline, or of its signed square: as SoftRas and GenDR have it.

    It has kinks where the nearest point of the outline changes, and a finer mesh grows fatter. For comparison; in the
    reference only.
    """

    sigmoid: Sigmoid = field(default_factory=Logistic)
    squared: bool = False

    def seen(self, corners: Tensor, pixels: Tensor, scale: Tensor, df: int) -> tuple[Tensor, Tensor, Tensor]:
        sign = twice_area(corners).sign()[:, None]
        inside = torch.stack([sign * _line_distance(corners, i, pixels) for i in range(3)]).amin(0) > 0
        squares = torch.stack([_segment_distance_squared(corners, i, pixels) for i in range(3)]).amin(0)
        distance = squares if self.squared else (squares + torch.finfo(squares.dtype).tiny).sqrt()
        coverage = sign * self.sigmoid(torch.where(inside, distance, -distance))
        return _with_clamped_position(coverage, corners, pixels)


def _line_distance(corners: Tensor, i: int, pixels: Tensor) -> Tensor:
    """Signed distance (F, P) of pixels to the line of edge i, positive inside a counter-clockwise face."""
    a, b = corners[:, None, i], corners[:, None, (i + 1) % 3]
    edge = b - a
    length = (edge.square().sum(-1) + torch.finfo(edge.dtype).tiny).sqrt()
    away = a - pixels
    return (away[..., 1] * edge[..., 0] - away[..., 0] * edge[..., 1]) / length


def _segment_distance_squared(corners: Tensor, i: int, pixels: Tensor) -> Tensor:
    a, b = corners[:, None, i], corners[:, None, (i + 1) % 3]
    edge, away = b - a, pixels - a
    along = (away * edge).sum(-1) / edge.square().sum(-1).clamp_min(torch.finfo(edge.dtype).tiny)
    return (away - along.clamp(0, 1)[..., None] * edge).square().sum(-1)


def _with_clamped_position(coverage: Tensor, corners: Tensor, pixels: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The pixel moved into the face by clamping its barycentrics: what these coverages do for want of a mean position."""
    area = twice_area(corners)[:, None]
    safe = torch.where(area.abs() > torch.finfo(area.dtype).tiny, area, 1.0)
    parts = []
    for i in range(3):
        b, c = corners[:, None, (i + 1) % 3] - pixels, corners[:, None, (i + 2) % 3] - pixels
        parts.append(((b[..., 1] * c[..., 0] - b[..., 0] * c[..., 1]) / safe).clamp(0, 1))
    clamped = torch.stack(parts, -1)
    clamped = clamped / clamped.sum(-1, keepdim=True).clamp_min(1e-6)
    position = torch.einsum("fpi,fix->fpx", clamped, corners)
    return coverage, position - corners.mean(1, keepdim=True), torch.zeros_like(position)

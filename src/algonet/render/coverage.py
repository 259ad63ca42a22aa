"""How much of a pixel a face covers: the options of the renderer.

A coverage owns its relaxation and says all that the rasteriser asks: how much is covered and where, how far it reaches, and
why kernels cannot take it. A class of your own with `relaxation` and `seen` runs in the reference on every device.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, ClassVar, TypeVar

import numpy as np
import torch
from torch import Tensor

from algonet.core import tracing
from algonet.core.cache import cached
from algonet.core.identity import interned, unit
from algonet.relax import GaussianNoise, Logistic, Sigmoid, StudentT
from algonet.relax.base import Relaxation
from algonet.relax.noise import Noise

from .vectors import EDGE_GUARD, FAINT, FLIP_AREA, THIN

UNITS = ("pixels", "ndc")
#: Degrees of freedom that kernels have the closed form for; by then the noise is Gaussian to 3 %.
MOST_DF = 64
#: Nodes of the edge integrals of noise without a closed form: to 1e-9 of the coverage for edges of up to 1e4 scales.
NODES = 64
#: Barycentrics of `EdgeProduct` are made positive with a corner rounded by this.
ROUND = 0.05

C = TypeVar("C", bound="Coverage")
#: Coverage (F, P), signed by orientation; mean position inside the face relative to its centroid (F, P, 2); and, where it is
#: known, the covariance of positions inside the face (F, P, 2, 2).
Seen = tuple[Tensor, Tensor] | tuple[Tensor, Tensor, Tensor]


@dataclass(frozen=True, eq=False)
class Coverage:
    """Base of the coverages. Subclasses name the field that holds their relaxation, and define `seen`."""

    #: The field with the relaxation whose softness is the picture's, and the kind of relaxation that belongs there.
    relaxation: ClassVar[str]
    takes: ClassVar[type[Relaxation]] = Relaxation
    #: Roughly how many numbers per face and pixel the reference holds at once: it works in chunks that fit its budget.
    alive: ClassVar[int] = 60

    def __post_init__(self):
        if not isinstance(self.relax, self.takes):
            kind = self.takes.__name__.lower()
            raise TypeError(f"{type(self).__name__}: `{self.relaxation}` must be a {kind}, got {self.relax!r}.")

    @property
    def relax(self) -> Relaxation:
        return getattr(self, self.relaxation)

    def with_relax(self: C, relax: Relaxation) -> C:
        """The same coverage with another relaxation (of another softness, as a rule)."""
        return dataclasses.replace(self, **{self.relaxation: relax})

    def softness(self, height: int) -> float | Tensor:
        """The relaxation's softness, lengths in pixels of a picture of this height; 1 if it has none."""
        name = self.relax.softness_field
        return 1.0 if name is None else getattr(self.relax, name)

    def softness_for(self, pixels: float, height: int) -> float:
        """The softness of the relaxation that makes it about `pixels` soft, in a picture of this `height`."""
        return pixels if self.relax.softness_field == "scale" else 1 / pixels

    def spread(self, height: int) -> float | Tensor:
        """The standard deviation of its blur at its present softness, in pixels of a picture of this `height`."""
        softness = self.softness(height)
        width = softness if self.relax.softness_field == "scale" else 1 / softness
        # At that distance, in units of its deviation, the tail of normal noise is exp(-1/2)
        return width * float(self.blur(1.0).reach(0.6065))

    def blur(self, pixels: float) -> Noise:
        """The noise that blurs a crisp picture about as this coverage does, `pixels` soft: fits compare with such pictures."""
        return StudentT(scale=pixels)

    def form(self: C) -> C:
        """The coverage without its softness: what settings hold."""
        return interned(self.with_relax(unit(self.relax)))

    def with_softness(self, softness: Tensor) -> Any:
        """The relaxation with this softness."""
        name = self.relax.softness_field
        return self.relax if name is None else dataclasses.replace(self.relax, **{name: softness})

    def seen(self, corners: Tensor, pixels: Tensor, softness: Tensor) -> Seen:
        """What pixels (P, 2) see of faces with corners (F, 3, 2), y pointing down."""
        raise NotImplementedError

    def width(self, softness: Tensor) -> Tensor:
        """About how many pixels wide the blur is at this softness."""
        return softness if self.relax.softness_field in (None, "scale") else 1 / softness

    @property
    def df(self) -> int | None:
        """Even degrees of freedom of Student-t noise, if that is what it filters with."""
        return None

    def why_no_kernel(self) -> str | None:
        """`None`, or why kernels cannot take it."""
        return f"{type(self).__name__} runs in the reference only"


@dataclass(frozen=True, eq=False)
class FilteredCoverage(Coverage):
    """The probability of landing inside the face when the pixel's position is perturbed by noise.

    C-infinity and exactly additive: cutting a face changes nothing until it is seen edge-on. The noise's `scale` is in pixels,
    or with `units="ndc"` in halves of the image's height; it may be a tensor and has a gradient. `scale -> 0` gives the hard
    rasteriser. Student-t noise of even df has a closed form, which all kernels compute: df = 2 reaches far, large df is nearly
    Gaussian. Any other noise (`GaussianNoise`, your own) is integrated along the edges, in the reference.

    >>> FilteredCoverage(StudentT(df=8, scale=2.0)).df
    8
    """

    noise: Noise = field(default_factory=StudentT)
    units: str = "pixels"
    relaxation: ClassVar[str] = "noise"
    takes: ClassVar[type[Relaxation]] = Noise

    def __post_init__(self):
        super().__post_init__()
        if type(self.noise) is StudentT and (self.noise.df % 2 != 0 or self.noise.df > MOST_DF):
            raise ValueError(
                f"FilteredCoverage: StudentT must have an even df up to {MOST_DF} (the closed form needs it; by then it is "
                f"Gaussian to 3 %), got {self.noise!r}; or take GaussianNoise."
            )
        if self.units not in UNITS:
            raise ValueError(f"FilteredCoverage: `units` must be one of {', '.join(UNITS)}, got {self.units!r}.")

    @property
    def df(self) -> int | None:
        return int(self.noise.df) if type(self.noise) is StudentT else None

    @property
    def alive(self) -> int:  # pyright: ignore[reportIncompatibleVariableOverride]
        return 60 if self.df else 20 * NODES

    def softness(self, height: int) -> float | Tensor:
        return self.noise.scale * (height / 2) if self.units == "ndc" else self.noise.scale

    def softness_for(self, pixels: float, height: int) -> float:
        return 2 * pixels / height if self.units == "ndc" else pixels

    def blur(self, pixels: float) -> Noise:
        return dataclasses.replace(self.noise, scale=pixels)

    def form(self) -> FilteredCoverage:
        if self.df is not None and type(self) is FilteredCoverage and not tracing.compiling():
            return _student_form(self.df)
        return interned(dataclasses.replace(self, noise=unit(self.noise), units="pixels"))

    def seen(self, corners: Tensor, pixels: Tensor, softness: Tensor) -> Seen:
        if self.df is None:
            p, moment = integrated_coverage(corners, pixels, self.with_softness(softness))
            second = None
        else:
            p, moment, second = filtered_moments(corners, pixels, softness, self.df)
        position = p[..., None] * (pixels - corners.mean(1, keepdim=True)) + moment
        position = (p / (p * p + FAINT * FAINT))[..., None] * position
        if second is None:
            return p, position
        spread = p[..., None, None] * second - moment[..., None] * moment[..., None, :]
        return p, position, (p / (p * p + THIN * THIN)).square()[..., None, None] * spread

    def why_no_kernel(self) -> str | None:
        if self.df is not None and type(self) is FilteredCoverage:
            return None
        return f"kernels have the closed form of StudentT noise of even df, not of {type(self.noise).__name__}"


@cached
def _student_form(df: int) -> FilteredCoverage:
    """Every call asks for one of these."""
    return interned(FilteredCoverage(StudentT(df)))


@dataclass(frozen=True, eq=False)
class EdgeProduct(Coverage):
    """The product of three sigmoids of the signed distances (in pixels) to the lines through the face's edges.

    C-infinity where the sigmoid is, but acute corners leak in long rays, and a finer mesh grows fatter. For comparison;
    in the reference only.
    """

    sigmoid: Sigmoid = field(default_factory=Logistic)
    relaxation: ClassVar[str] = "sigmoid"
    takes: ClassVar[type[Relaxation]] = Sigmoid

    def blur(self, pixels: float) -> Noise:
        return GaussianNoise(pixels * _deviation(self.sigmoid))

    def seen(self, corners: Tensor, pixels: Tensor, softness: Tensor) -> Seen:
        sigmoid = self.with_softness(softness)
        sign = twice_area(corners).sign()[:, None]
        coverage = sign
        for i in range(3):
            coverage = coverage * sigmoid(sign * _line_distance(corners, i, pixels))
        parts = barycentrics(corners, twice_area(corners), pixels - corners.mean(1, keepdim=True))
        # Positive with a rounded corner, not clamped: depth and colour have no kinks then
        positive = (parts + (parts * parts + ROUND * ROUND).sqrt()) / 2
        return coverage, _inside(positive, corners)


@dataclass(frozen=True, eq=False)
class EuclideanCoverage(Coverage):
    """A sigmoid of the signed distance to the face's outline, or of its signed square: as SoftRas and GenDR have it.

    It has kinks where the nearest point of the outline changes, and a finer mesh grows fatter. For comparison; in the
    reference only.
    """

    sigmoid: Sigmoid = field(default_factory=Logistic)
    squared: bool = False
    relaxation: ClassVar[str] = "sigmoid"
    takes: ClassVar[type[Relaxation]] = Sigmoid

    def softness_for(self, pixels: float, height: int) -> float:
        return pixels**-2 if self.squared else 1 / pixels

    def spread(self, height: int) -> float | Tensor:
        return super().spread(height) ** (0.5 if self.squared else 1.0)

    def width(self, softness: Tensor) -> Tensor:
        return super().width(softness) ** (0.5 if self.squared else 1.0)

    def blur(self, pixels: float) -> Noise:
        return GaussianNoise(pixels * _deviation(self.sigmoid) ** (0.5 if self.squared else 1.0))

    def seen(self, corners: Tensor, pixels: Tensor, softness: Tensor) -> Seen:
        sign = twice_area(corners).sign()[:, None]
        inside = torch.stack([sign * _line_distance(corners, i, pixels) for i in range(3)]).amin(0) > 0
        squares = torch.stack([_segment_distance_squared(corners, i, pixels) for i in range(3)]).amin(0)
        distance = squares if self.squared else (squares + torch.finfo(squares.dtype).tiny).sqrt()
        coverage = sign * self.with_softness(softness)(torch.where(inside, distance, -distance))
        clamped = barycentrics(corners, twice_area(corners), pixels - corners.mean(1, keepdim=True)).clamp(0, 1)
        return coverage, _inside(clamped, corners)


def _deviation(sigmoid: Sigmoid) -> float:
    """Where a sigmoid of steepness 1 is as near to 1 as the normal distribution is at one standard deviation; a step is as
    good as crisp."""
    return max(0.05, float(unit(sigmoid).reach(0.1587)))


#: Every coverage, for tests, configurations and the command line.
COVERAGES: tuple[type[Coverage], ...] = (FilteredCoverage, EdgeProduct, EuclideanCoverage)
#: What every renderer and fit takes unless told otherwise.
DEFAULT_COVERAGE = FilteredCoverage()


def check_coverage(where: str, coverage: Any) -> None:
    """Raise unless it is a coverage; a bare relaxation is answered by the coverage that takes it."""
    if isinstance(coverage, Coverage):
        return
    taker = next((f"; write {c.__name__}({coverage!r})" for c in COVERAGES if isinstance(coverage, c.takes)), "")
    instead = "; a size is one argument, (height, width)" if isinstance(coverage, int) else taker
    names = ", ".join(c.__name__ for c in COVERAGES)
    raise TypeError(f"{where}: `coverage` must be a coverage such as {names}, got {coverage!r}{instead}.")


def coverage_named(name: str, scale: float = 1.0) -> Coverage:
    """A coverage by the name that configurations and the command line use, about `scale` pixels soft.

    >>> coverage_named("euclidean", 2.0).sigmoid.steepness
    0.5
    """
    if name not in NAMED:
        raise ValueError(f"coverage: unknown name {name!r}; there are {', '.join(NAMED)}.")
    return NAMED[name](scale)


#: Names of coverages, and how each is made from a width in pixels.
NAMED: dict[str, Callable[[float], Coverage]] = {
    "filtered": lambda scale: FilteredCoverage(StudentT(scale=scale)),
    "gaussian": lambda scale: FilteredCoverage(GaussianNoise(scale)),
    "edges": lambda scale: EdgeProduct(Logistic(1 / scale)),
    "euclidean": lambda scale: EuclideanCoverage(Logistic(1 / scale)),
}


def filtered_coverage(corners: Tensor, pixels: Tensor, scale: Tensor, df: int) -> tuple[Tensor, Tensor]:
    """The probability of landing in a triangle when a pixel's position is perturbed by Student-t noise, and its moment.

    Corners (F, 3, 2) and pixels (P, 2) have y pointing down; triangles that are counter-clockwise *as seen* count
    positive, others negative. Returns the coverage (F, P) and the noise's first moment inside the triangle (F, P, 2).
    Exactly additive: the parts of a triangle sum to it. `scale -> 0` gives inside or outside. C-infinity.

    >>> corner = torch.tensor([[[0.0, 0.0], [0.0, 9.0], [9.0, 0.0]]])
    >>> coverage, _ = filtered_coverage(corner, torch.tensor([[2.0, 2.0], [9.0, 9.0]]), torch.tensor(0.1), 8)
    >>> coverage.abs().round(decimals=3)
    tensor([[1., 0.]])
    """
    coverage, moment, _ = filtered_moments(corners, pixels, scale, df)
    return coverage, moment


def filtered_moments(corners: Tensor, pixels: Tensor, scale: Tensor, df: int) -> tuple[Tensor, Tensor, Tensor | None]:
    """Coverage and moment as `filtered_coverage` has them, and the second moment of the noise inside the triangle
    (F, P, 2, 2); `None` for df = 2, where it has no closed form.

    >>> corner = torch.tensor([[[-1e4, -1e4], [-1e4, 3e4], [3e4, -1e4]]], dtype=torch.float64)
    >>> second = filtered_moments(corner, torch.zeros(1, 2).double(), torch.tensor(1.0), 8)[2]
    >>> second.diagonal(dim1=-2, dim2=-1).round(decimals=4)
    tensor([[[1.3333, 1.3333]]], dtype=torch.float64)
    """
    half, sigma2 = df // 2, df * scale * scale
    return _sum_over_edges(corners, pixels, lambda t0, t1, d: _student_edge(t0, t1, d * d + sigma2, sigma2, half))


def integrated_coverage(corners: Tensor, pixels: Tensor, noise: Noise) -> tuple[Tensor, Tensor]:
    """The same for any isotropic noise, by its `tail`: see the README for why that is all one needs.

    On an edge at distance d the coverage is the integral of d/(2 pi) (1 - tail(r)) / r^2, and the moment that of
    tail(r) / (2 pi), with r^2 = t^2 + d^2. The nodes are Gauss's in v, t = sqrt(d^2 + scale^2) sinh(v): close together where
    the integrand changes, and reaching far in few.
    """
    nodes, weights = _gauss(NODES)

    def edge(t0: Tensor, t1: Tensor, d: Tensor) -> tuple[Tensor, Tensor]:
        width = (d * d + noise.scale * noise.scale).sqrt()
        v0, v1 = torch.asinh(t0 / width), torch.asinh(t1 / width)
        total, last = torch.zeros_like(d), torch.zeros_like(d)
        for node, weight in zip(nodes, weights, strict=True):
            v = v0 + (v1 - v0) * node
            t = width * torch.sinh(v)
            # Where pixel and edge meet, (1 - tail) / r^2 is its limit there; a guard far below the scale finds it
            square = t * t + d * d + 1e-6 * noise.scale * noise.scale
            tail = noise.tail(square.sqrt())
            step = weight * (v1 - v0) * width * torch.cosh(v)
            total, last = total + step * (1 - tail) / square, last + step * tail
        return total / (2 * math.pi), last / (2 * math.pi)

    return _sum_over_edges(corners, pixels, edge)[:2]


def _sum_over_edges(corners: Tensor, pixels: Tensor, integrate: Any) -> tuple[Tensor, Tensor, Tensor | None]:
    """Coverage, moment and second moment from each edge's integrals, given its ends along it and its distance."""
    relative = corners[:, :, None, :] - pixels
    coverage = moment_x = moment_y = xx = xy = yy = relative.new_zeros(())
    within = None
    for i in range(3):
        a, b = relative[:, i], relative[:, (i + 1) % 3]
        edge = corners[:, (i + 1) % 3] - corners[:, i]
        direction = edge / (edge.square().sum(-1, keepdim=True) + _guard(edge)).sqrt()
        ux, uy = direction[:, None, 0], direction[:, None, 1]
        nx, ny = -uy, ux
        t0, t1 = a[..., 0] * ux + a[..., 1] * uy, b[..., 0] * ux + b[..., 1] * uy
        d = a[..., 0] * nx + a[..., 1] * ny
        total, last, *more = integrate(t0, t1, d)
        coverage = coverage + d * total
        moment_x, moment_y = moment_x - nx * last, moment_y - ny * last
        if more:
            inner, odd = more
            # Along the edge x = n d + u t; the sum over edges is symmetric
            x, y = nx * d * last + ux * odd, ny * d * last + uy * odd
            xx, xy, yy = xx + d * inner - nx * x, xy - (nx * y + ny * x) / 2, yy + d * inner - ny * y
            within = torch.stack([xx, xy, xy, yy], -1).unflatten(-1, (2, 2))
    return coverage, torch.stack([moment_x, moment_y], -1), within


def _student_edge(t0: Tensor, t1: Tensor, rho2: Tensor, sigma2: Tensor, half: int) -> tuple[Tensor, ...]:
    """sum_{k<half} sigma^2k I_{k+1} / 2 pi and sigma^2half I_half / 2 pi between t0 and t1; for the second moment, the first
    without its last term, times sigma^2 / (2 half - 2), and the second's integrand times t, integrated.

    I_k is the integral of dt / (t^2 + rho^2)^k; everything is scaled by sigma^2 so that no power leaves float32.
    """
    rho = rho2.sqrt()
    # The two arc tangents of an edge are one
    integral = torch.atan2(rho * (t1 - t0), rho2 + t0 * t1) / rho
    ratio, inverse0, inverse1 = sigma2 / rho2, sigma2 / (t0 * t0 + rho2), sigma2 / (t1 * t1 + rho2)
    term0, term1, total, before = t0 / rho2, t1 / rho2, integral, integral
    for k in range(1, half):
        term0, term1, before = term0 * inverse0, term1 * inverse1, total
        integral = (term1 - term0) / (2 * k) + (2 * k - 1) / (2 * k) * ratio * integral
        total = total + integral
    first = total / (2 * math.pi), integral * sigma2 / (2 * math.pi)
    if half == 1:
        return first
    share = sigma2 / ((2 * half - 2) * 2 * math.pi)
    return *first, share * before, share * (inverse0 ** (half - 1) - inverse1 ** (half - 1))


@cached
def _gauss(count: int) -> tuple[list[float], list[float]]:
    """Gauss-Legendre nodes and weights on [0, 1]."""
    nodes, weights = np.polynomial.legendre.leggauss(count)
    return ((nodes + 1) / 2).tolist(), (weights / 2).tolist()


def twice_area(screen: Tensor) -> Tensor:
    """Twice the screen area of triangles (..., 3, 2) with y down; positive when counter-clockwise as seen."""
    first, second = screen[..., 1, :] - screen[..., 0, :], screen[..., 2, :] - screen[..., 0, :]
    return first[..., 1] * second[..., 0] - first[..., 0] * second[..., 1]


def _guard(edge: Tensor) -> float:
    return EDGE_GUARD if edge.dtype == torch.float32 else EDGE_GUARD**2


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


def barycentrics(screen: Tensor, area: Tensor, from_centroid: Tensor) -> Tensor:
    """Of a position inside a face (F, P, 3); 1/3 each where it has no area."""
    inverse = (area / (area * area + FLIP_AREA * FLIP_AREA))[:, None]
    x, y = from_centroid[..., 0], from_centroid[..., 1]
    parts = []
    for i in range(3):
        opposite = screen[:, (i + 2) % 3] - screen[:, (i + 1) % 3]
        parts.append(1 / 3 + (x * opposite[:, None, 1] - y * opposite[:, None, 0]) * inverse)
    return torch.stack(parts, -1)


def _inside(weights: Tensor, corners: Tensor) -> Tensor:
    """The mean of the corners by these weights, from the centroid: what coverages do for want of a mean position."""
    share = weights / weights.sum(-1, keepdim=True).clamp_min(1e-6)
    return torch.einsum("fpi,fix->fpx", share, corners - corners.mean(1, keepdim=True))

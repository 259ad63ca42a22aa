"""Light and how surfaces answer it, smooth in everything.

Lambert: albedo * sum over lights of color * positive(n . l). Blinn-Phong adds strength * sum of color *
(positive(n . h) / positive(1))^shininess, h halfway between the light and the eye. `positive` is max(0, x) with its corner
rounded, a little above 1 at 1.

`light_table` makes numbers of lights; `illuminate` and the kernels compute with those.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, cast

import torch
from torch import Tensor

from algonet.core.cache import constant
from algonet.core.checks import broadcast_shapes, check_softness

from .vectors import normalise, tensor_like

#: How far max(0, x) is rounded: at 0 it is half of this.
ROUNDING = 0.02
#: max(0, 1) with that corner, by which a highlight is divided: what is above 1 is nothing to be raised to a power.
TOP = (1 + (1 + ROUNDING**2) ** 0.5) / 2
#: Normals turn to the eye's side within this cosine; and ways to the eye shorter than this have no side.
TURN, NOWHERE = 1e-2, 1e-6
#: Kinds of light (a headlight is a point light at the eye), and numbers per light: a vector, a colour, 1 / radius^2, and one
#: that is not used.
AMBIENT, DIRECTIONAL, POINT, HEADLIGHT = 0, 1, 2, 3
LIGHT = 8

Triple = Tensor | tuple[float, float, float]


def _color(owner: object, color: Any) -> Triple:
    """A colour; one number is a grey."""
    if isinstance(color, Tensor) and color.dim() == 0:
        return color.expand(3)
    return _triple(owner, "color", (color,) * 3 if isinstance(color, (int, float)) else color, ", or one number")


def _triple(owner: object, name: str, value: Any, also: str = "") -> Triple:
    """`value` as three numbers, or as the tensor (*B, 3) that it is."""
    if isinstance(value, Tensor):
        if value.shape[-1:] == (3,) and value.is_floating_point():
            return value
        got = f"{value.dtype} {tuple(value.shape)}"
    else:
        try:
            numbers = tuple(map(float, value))
        except (TypeError, ValueError):
            numbers = ()
        if len(numbers) == 3 and all(map(math.isfinite, numbers)):
            return numbers
        got = repr(value)
    where = type(owner).__name__
    raise ValueError(f"{where}: `{name}` must be three finite numbers or a floating tensor (*B, 3){also}, got {got}.")


class Light:
    """Base of the lights: a colour, and what else kernels are told of them."""

    kind: ClassVar[int]
    color: Any

    def __post_init__(self):
        object.__setattr__(self, "color", _color(self, self.color))

    def parts(self) -> tuple[Triple, Triple, float]:
        """A vector, the colour, and 1 / radius^2."""
        return (0.0, 0.0, 0.0), self.color, 0.0


@dataclass(frozen=True, eq=False)
class AmbientLight(Light):
    """Light from everywhere: adds `color`, (3,), (*B, 3) or one number for a grey, to every surface."""

    color: Triple | float = (0.3, 0.3, 0.3)
    kind: ClassVar[int] = AMBIENT


@dataclass(frozen=True, eq=False)
class DirectionalLight(Light):
    """Light from very far away, shining along `direction` (3,) or (*B, 3)."""

    direction: Triple = (0.0, -1.0, -1.0)
    color: Triple | float = (0.7, 0.7, 0.7)
    kind: ClassVar[int] = DIRECTIONAL

    def __post_init__(self):
        object.__setattr__(self, "direction", _triple(self, "direction", self.direction))
        super().__post_init__()
        if not isinstance(self.direction, Tensor) and not any(self.direction):
            raise ValueError(f"DirectionalLight: `direction` must not be zero, got {self.direction!r}.")

    def parts(self) -> tuple[Triple, Triple, float]:
        return self.direction, cast(Triple, self.color), 0.0


@dataclass(frozen=True, eq=False)
class PointLight(Light):
    """Light from `position` (3,) or (*B, 3); with a `radius`, it falls off as 1 / (1 + distance^2 / radius^2)."""

    position: Triple = (0.0, 2.0, 2.0)
    color: Triple | float = (0.7, 0.7, 0.7)
    radius: float | None = None
    kind: ClassVar[int] = POINT

    def __post_init__(self):
        object.__setattr__(self, "position", _triple(self, "position", self.position))
        super().__post_init__()
        if isinstance(self.radius, Tensor):
            raise TypeError(
                f"PointLight: `radius` is a number and has no gradient, got {self.radius!r}; use float(...)."
            )
        if self.radius is not None:
            check_softness(self, "radius", self.radius)

    def parts(self) -> tuple[Triple, Triple, float]:
        return self.position, cast(Triple, self.color), 0.0 if self.radius is None else 1 / self.radius**2


@dataclass(frozen=True, eq=False)
class Headlight(Light):
    """Light from the viewer: what is seen is lit. A `PointLight` at the camera's place."""

    color: Triple | float = (0.7, 0.7, 0.7)
    kind: ClassVar[int] = HEADLIGHT


@dataclass(frozen=True, eq=False)
class Lambert:
    """Matt surfaces: brightness is the cosine between the normal and the light."""

    shininess: ClassVar[float] = 1.0
    strength: ClassVar[float] = 0.0


@dataclass(frozen=True, eq=False)
class BlinnPhong:
    """Glossy surfaces: Lambert plus a highlight of strength `strength`, tighter the larger `shininess`."""

    shininess: float = 32.0
    strength: float = 0.4

    def __post_init__(self):
        # A cosine of single precision is off by up to 1e-7
        if not 0 < self.shininess <= 1e7 or not 0 <= self.strength < math.inf:
            raise ValueError(
                f"BlinnPhong: `shininess` must be positive, 1e7 at most, `strength` finite and not negative, got {self!r}."
            )


Surface = Lambert | BlinnPhong


def light_table(lights: Sequence[Any], like: Tensor) -> Tensor:
    """The lights as numbers, (L, 8) or (*B, L, 8): a vector, a colour, 1 / radius^2, and one that is not used.

    >>> light_table([AmbientLight((1.0, 1.0, 1.0))], torch.zeros(()))
    tensor([[0., 0., 0., 1., 1., 1., 0., 0.]])
    """
    if not lights:
        return like.new_zeros(0, 8)
    rows = []
    for vector, color, falloff in [light.parts() for light in lights]:
        if isinstance(vector, Tensor) or isinstance(color, Tensor):
            parts = [tensor_like(part, like) for part in (vector, color, (falloff, 0.0))]
            batch = broadcast_shapes(*[t.shape[:-1] for t in parts])
            rows.append(torch.cat([t.expand(*batch, -1) for t in parts], -1))
        else:
            rows.append((*vector, *color, falloff, 0.0))
    if not any(isinstance(row, Tensor) for row in rows):
        return constant(tuple(rows), like.dtype, like.device)
    rows = [tensor_like(row, like) for row in rows]
    batch = broadcast_shapes(*[row.shape[:-1] for row in rows])
    return torch.stack([row.expand(*batch, -1) for row in rows], -2)


def shading_of(lights: Sequence[Any], surface: Surface, two_sided: bool) -> Shading:
    """What kernels are made for: the lights' kinds, the gloss, and on which side surfaces are lit."""
    kinds = tuple([light.kind for light in lights])
    return Shading(kinds, float(surface.shininess), float(surface.strength), two_sided)


@dataclass(frozen=True)
class Shading:
    """What a lit surface needs beyond tensors: the kind of each light, the gloss (strength 0: none), and whether surfaces
    are lit on the side that is seen."""

    kinds: tuple[int, ...]
    shininess: float = 1.0
    strength: float = 0.0
    two_sided: bool = True

    @property
    def code(self) -> int:
        """The kinds as one number to base 4."""
        return sum(kind * 4**i for i, kind in enumerate(self.kinds))


def positive(x: Tensor) -> Tensor:
    """max(0, x) with a rounded corner, C-infinity: (x + sqrt(x^2 + r^2)) / 2."""
    root = (x * x + ROUNDING * ROUNDING).sqrt()
    # For x < 0 the sum would cancel
    return torch.where(x > 0, (x + root) / 2, 0.5 * ROUNDING * ROUNDING / (root - x.clamp_max(0)))


def towards(normals: Tensor, way: Tensor) -> Tensor:
    """Normals turned to the side that the way to the eye is on, smoothly: times cosine / sqrt(cosine^2 + TURN^2)."""
    side, square = (normals * way).sum(-1, keepdim=True), (way * way).sum(-1, keepdim=True)
    return normals * (side * torch.rsqrt(side * side + TURN * TURN * square + NOWHERE * NOWHERE))


def illuminate(
    albedo: Tensor, normals: Tensor, positions: Tensor, eye: Tensor, lights: Tensor, shading: Shading
) -> Tensor:
    """The colour (*B, N, 3) of surface points: albedo * diffuse + specular light.

    `normals` (*B, N, 3) of any length, `positions` (*B, N, 3), `eye` (*B, 3), `lights` (*B, L, 8) as `light_table` makes
    them.
    """
    if set(shading.kinds) <= {AMBIENT}:
        # Whatever the surface faces
        return albedo * lights[..., 3:6].sum(-2, keepdim=True)
    normals = normalise(normals)
    way = eye[..., None, :] - positions
    if shading.two_sided:
        normals = towards(normals, way)
    view = normalise(way)
    diffuse = specular = torch.zeros_like(positions)
    for i, kind in enumerate(shading.kinds):
        vector, color, falloff = lights[..., i : i + 1, :3], lights[..., i : i + 1, 3:6], lights[..., i : i + 1, 6:7]
        if kind == AMBIENT:
            diffuse = diffuse + color
            continue
        if kind == DIRECTIONAL:
            way = -vector
        else:
            way = (vector if kind == POINT else eye[..., None, :]) - positions
            color = color / (1 + (way * way).sum(-1, keepdim=True) * falloff)
        direction = normalise(way)
        diffuse = diffuse + color * positive((normals * direction).sum(-1, keepdim=True))
        if shading.strength:
            half = normalise(direction + view)
            base = positive((normals * half).sum(-1, keepdim=True)) / TOP
            # Rounding alone brings it above 1
            shine = base.clamp_max(1.0) ** shading.shininess
            specular = specular + color * (shading.strength * shine)
    return albedo * diffuse + specular

"""Light and how surfaces answer it, smooth in everything.

Lambert: albedo * sum over lights of color * positive(n . l). Blinn-Phong adds strength * sum of color *
positive(n . h)^shininess, h halfway between the light and the eye.

`positive` is max(0, x) with its corner rounded: (x + sqrt(x^2 + r^2)) / 2.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from .constants import tensor_like
from .vectors import normalise

#: How far max(0, x) is rounded: at 0 it is half of this.
ROUNDING = 0.02

Triple = Tensor | tuple[float, float, float]


@dataclass(frozen=True, eq=False)
class AmbientLight:
    """Light from everywhere: adds `color` to every surface."""

    color: Triple = (0.3, 0.3, 0.3)

    def arriving(self, positions: Tensor) -> tuple[Tensor | None, Tensor]:
        """The unit direction to the light at `positions` (None: from everywhere), and its color there."""
        return None, tensor_like(self.color, positions)


@dataclass(frozen=True, eq=False)
class DirectionalLight:
    """Light from very far away, shining along `direction` (3,) or (*B, 3)."""

    direction: Triple = (0.0, -1.0, -1.0)
    color: Triple = (0.7, 0.7, 0.7)

    def __post_init__(self):
        _check_direction("DirectionalLight", self.direction)

    def arriving(self, positions: Tensor) -> tuple[Tensor | None, Tensor]:
        direction = self.direction
        if isinstance(direction, Tensor):
            towards = -normalise(_spread(tensor_like(direction, positions), positions))
        else:
            length = math.hypot(*direction)
            towards = tensor_like([-x / length for x in direction], positions)
        return towards, tensor_like(self.color, positions)


@dataclass(frozen=True, eq=False)
class PointLight:
    """Light from `position` (3,) or (*B, 3); with a `radius`, it falls off as 1 / (1 + distance^2 / radius^2)."""

    position: Triple = (0.0, 2.0, 2.0)
    color: Triple = (0.7, 0.7, 0.7)
    radius: float | None = None

    def arriving(self, positions: Tensor) -> tuple[Tensor | None, Tensor]:
        way = _spread(tensor_like(self.position, positions), positions) - positions
        color = tensor_like(self.color, positions)
        if self.radius is not None:
            color = color / (1 + way.square().sum(-1, keepdim=True) / self.radius**2)
        return normalise(way), color


Light = AmbientLight | DirectionalLight | PointLight


@dataclass(frozen=True, eq=False)
class Lambert:
    """Matt surfaces: as bright as the light is steep."""


@dataclass(frozen=True, eq=False)
class BlinnPhong:
    """Glossy surfaces: Lambert plus a highlight of strength `strength`, tighter the larger `shininess`."""

    shininess: float = 32.0
    strength: float = 0.4

    def __post_init__(self):
        if not self.shininess > 0 or not self.strength >= 0:
            raise ValueError(f"BlinnPhong: `shininess` must be positive and `strength` not negative, got {self!r}.")

    def specular(self, normals: Tensor, direction: Tensor, to_eye: Tensor) -> Tensor:
        """The highlight's strength, with unit vectors to the light and to the eye."""
        half = normalise(direction + to_eye)
        return self.strength * positive((normals * half).sum(-1, keepdim=True)) ** self.shininess


Surface = Lambert | BlinnPhong


def positive(x: Tensor) -> Tensor:
    """max(0, x) with a rounded corner, C-infinity: (x + sqrt(x^2 + r^2)) / 2."""
    return (x + (x * x + ROUNDING * ROUNDING).sqrt()) / 2


def illuminate(
    normals: Tensor, positions: Tensor, eye: Tensor, lights: Sequence[Light], surface: Surface
) -> tuple[Tensor, Tensor | None]:
    """Diffuse and specular light at surface points (*B, N, 3) with unit normals; color = albedo * diffuse + specular.

    Both broadcast against the points: light from everywhere alone is (3,), and matt surfaces have no specular light (None).

    >>> up = torch.tensor([[0.0, 0.0, 1.0]])
    >>> light = DirectionalLight(direction=(0.0, 0.0, -1.0), color=(1.0, 1.0, 1.0))
    >>> illuminate(up, torch.zeros(1, 3), torch.tensor([0.0, 0.0, 5.0]), [light], Lambert())[0]
    tensor([[1.0001, 1.0001, 1.0001]])
    """
    diffuse, specular = tensor_like((0.0, 0.0, 0.0), positions), None
    to_eye = normalise(_spread(eye, positions) - positions) if isinstance(surface, BlinnPhong) else None
    for light in lights:
        direction, color = light.arriving(positions)
        color = _spread(color, positions) if color.dim() < positions.dim() else color
        if direction is None:
            diffuse = diffuse + color
            continue
        diffuse = torch.addcmul(diffuse, color, positive((normals * direction).sum(-1, keepdim=True)))
        if isinstance(surface, BlinnPhong) and to_eye is not None:
            shine = color * surface.specular(normals, direction, to_eye)
            specular = shine if specular is None else specular + shine
    return diffuse, specular


def _spread(v: Tensor, positions: Tensor) -> Tensor:
    """(3,) or (*B, 3) against positions (*B, ..., 3)."""
    if v.dim() == 1:
        return v
    return v.reshape(*v.shape[:-1], *[1] * (positions.dim() - v.dim()), 3)


def _check_direction(where: str, direction: Triple) -> None:
    if not isinstance(direction, Tensor) and not any(direction):
        raise ValueError(f"{where}: `direction` must not be zero, got {direction!r}.")

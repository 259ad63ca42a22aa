"""Light on surface points: the reference of what the kernels do, and how lights become numbers.

Everything is smooth: directions are v / sqrt(|v|^2 + GUARD^2), and max(0, x) has a rounded corner.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from .vectors import GUARD, normalise

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

__all__ = [
    "AMBIENT",
    "DIRECTIONAL",
    "GUARD",
    "HEADLIGHT",
    "LIGHT",
    "NOWHERE",
    "POINT",
    "ROUNDING",
    "TOP",
    "TURN",
    "Shading",
    "illuminate",
]


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

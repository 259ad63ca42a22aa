"""Random scenes for the rasteriser's tests."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from algonet.core.identity import interned
from algonet.relax import StudentT
from algonet.render import FilteredCoverage
from algonet.render.operation import RASTER
from algonet.render.settings import Raster, RasterSettings


@dataclass(frozen=True, eq=False)
class RasterCall:
    """One call of the rasteriser: see `operation.RASTER`."""

    points: Tensor
    attributes: Tensor
    background: Tensor
    softness: Tensor
    faces: Tensor
    attribute_faces: Tensor
    settings: RasterSettings
    matrix: Tensor | None = None

    @property
    def tensors(self) -> list[Tensor]:
        tensors = [self.points, self.attributes, self.background, self.softness, self.faces, self.attribute_faces]
        return tensors if self.matrix is None else [*tensors, self.matrix]


def rasterise(call: RasterCall, backend: str = "auto") -> Raster:
    """Run the call on the backend that `backend` names, or on the fastest that takes it."""
    return Raster(*RASTER(call.tensors, call.settings, backend))


def random_call(
    seed: int,
    *,
    dtype: torch.dtype = torch.float64,
    faces: int = 40,
    steepness: float = 5.0,
    scale: float = 1.0,
    **settings,
) -> RasterCall:
    """Small, large, thin, overlapping and off-screen faces with depths from 1 to about 3.4, and random attributes."""
    generator = torch.Generator().manual_seed(seed)

    def uniform(*shape: int) -> torch.Tensor:
        return torch.rand(*shape, generator=generator, dtype=torch.float64)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    if "df" in settings:
        settings["coverage"] = FilteredCoverage(StudentT(settings.pop("df"))).form()
    if "conorm" in settings:
        settings["conorm"] = interned(settings["conorm"])
    chosen = RasterSettings(**{"height": 27, "width": 37, **settings})
    size = torch.tensor([chosen.width, chosen.height], dtype=torch.float64)
    centre = (uniform(faces, 1, 2) * 1.6 - 0.3) * size
    corners = normal(faces, 3, 2) * torch.where(uniform(faces, 1, 1) < 0.3, 0.02, 1.0) ** torch.tensor([0.0, 1.0])
    screen = centre + corners * torch.exp(normal(faces, 1, 1) * 1.2) * 3
    depth = 1 + 2 * uniform(faces, 1, 1) + 0.2 * normal(faces, 3, 1).abs()
    points = torch.cat([screen * depth if chosen.perspective else screen, depth], -1).reshape(1, 3 * faces, 3)
    tensors = (points, uniform(1, 3 * faces, 3), uniform(1, 4), torch.tensor([[scale, steepness, 0.3]]))
    index = torch.arange(3 * faces).reshape(faces, 3)
    points, attributes, background, softness = (t.to(dtype) for t in tensors)
    return RasterCall(points, attributes, background, softness, index, index, chosen)

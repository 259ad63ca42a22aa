"""The operations of this domain: pictures of attributes, lit pictures, visible faces, normals of vertices."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from algonet.core.operation import KernelModule, Operation

from .lights import Shading
from .reference import rasterise as rasterise_reference
from .reference import rasterise_lit
from .settings import NormalSettings, RasterSettings, empty_pictures
from .vectors import area_sums, normalise_area
from .visibility import VisibilitySettings, visible_faces

NUMBA, TRITON = ".kernels.numba.host", ".kernels.triton.host"
CALL = ("points", "attributes", "background", "softness", "faces", "attribute_faces", "matrix")


def _refuse(tensors: Sequence[Tensor], settings: RasterSettings) -> str | None:
    """What no kernel takes: other coverages, and conorms that do not bound the sum."""
    if not settings.power:
        return f"kernels take BoundedSum silhouettes, not {type(settings.conorm).__name__}"
    return settings.coverage.why_no_kernel() or settings.conorm.why_no_kernel()


def _example(device: str) -> tuple[list[Tensor], RasterSettings]:
    points = torch.tensor([[1.0, 1.0, 1.0], [1.0, 7.0, 1.0], [7.0, 1.0, 1.0]], device=device)
    faces = torch.tensor([[0, 1, 2]], device=device)
    softness = torch.tensor([1.0, 1.0, 0.1], device=device)
    return [points, torch.ones_like(points), torch.zeros(4, device=device), softness, faces, faces], RasterSettings(
        8, 8
    )


def _lit_example(device: str) -> tuple[list[Tensor], RasterSettings]:
    tensors, _ = _example(device)
    matrix = torch.eye(4, device=device)[:3]
    more = [matrix, torch.zeros(3, device=device), torch.ones(1, 8, device=device), torch.ones(3, 3, device=device)]
    return [*tensors, *more], RasterSettings(8, 8, shading=Shading((0,)))


#: Tensors that give image, silhouette and depth; leading batch dimensions `*B` are the same in all floating ones.
#:
#: - `points` (*B, V, 3): x w, y w and depth, with x and y in pixels (x to the right, y *down*, the centre of pixel
#:   [row, col] at (col + 0.5, row + 0.5)), depth growing away from the camera, and w the depth, or 1 without perspective.
#:   With a `matrix` they are points of the world, and matrix @ (point, 1) is the above.
#: - `attributes` (*B, N, C), looked up by `attribute_faces` (F, 3): vertex attributes share `faces`, face attributes
#:   repeat the face's own index.
#: - `background` (*B, C + 1): attributes and, last, depth where nothing is.
#: - `softness` (*B, 3): that of the coverage (for noise, its scale in pixels), the depth steepness, and the near distance:
#:   faces fade out between twice that depth and it.
#: - `faces` (F, 3) and `attribute_faces` (F, 3): int32 or int64, shared by the batch.
#: - `matrix` (*B, 3, 4) or none: the camera's, which CUDA kernels apply themselves.
RASTER = Operation(
    "render_attributes",
    settings=RasterSettings,
    inputs=CALL,
    reference=rasterise_reference,
    kernels={"numba": NUMBA, "triton": TRITON},
    outputs=3,
    shared={"faces", "attribute_faces"},
    fake=empty_pictures,
    refuse=_refuse,
    example=_example,
)


#: The same with eye, lights and vertex normals (left out, which the CPU's kernels do not take, they are those of the faces):
#: lit image, silhouette, depth, and further attributes.
LIT = Operation(
    "render_lit",
    settings=RasterSettings,
    inputs=(*CALL, "eye", "lights", "normals"),
    reference=rasterise_lit,
    kernels={"numba": NUMBA, "triton": TRITON},
    outputs=4,
    shared={"faces", "attribute_faces"},
    fake=empty_pictures,
    refuse=_refuse,
    example=_lit_example,
)


def _vertex_normals(tensors: Sequence[Tensor], settings: NormalSettings) -> list[Tensor]:
    return [normalise_area(*area_sums(*tensors))]


def _any_order(tensors: Sequence[Tensor], settings: NormalSettings) -> str | None:
    return (
        "faces add to their vertices in any order there, and deterministic=True wants one"
        if settings.deterministic
        else None
    )


def _normals_example(device: str) -> tuple[list[Tensor], NormalSettings]:
    return [torch.rand(4, 3, device=device), torch.tensor([[0, 1, 2]], device=device)], NormalSettings()


#: vertices (*B, V, 3) and faces (F, 3) give unit normals (*B, V, 3), weighted by area.
NORMALS = Operation(
    "vertex_normals",
    settings=NormalSettings,
    inputs=("points", "faces"),
    reference=_vertex_normals,
    kernels={"numba": NUMBA, "triton": KernelModule(TRITON, refuse=_any_order)},
    shared={"faces"},
    fake=lambda tensors, settings: [torch.empty_like(tensors[0])],
    example=_normals_example,
)


def _visible_example(device: str) -> tuple[list[Tensor], VisibilitySettings]:
    tensors, _ = _example(device)
    return [tensors[0], torch.tensor(0.1, device=device), tensors[4]], VisibilitySettings(8, 8)


#: points (*B, V, 3) as in `RASTER` without a matrix, near (*B,) and faces (F, 3) give the face (*B, H, W) at each pixel.
VISIBLE = Operation(
    "rasterize",
    settings=VisibilitySettings,
    inputs=("points", "near", "faces"),
    reference=visible_faces,
    kernels={"numba": ".kernels.numba.visibility", "triton": ".kernels.triton.visibility"},
    shared={"faces"},
    fake=lambda tensors, settings: [
        tensors[2].new_empty((*tensors[0].shape[:-2], settings.height, settings.width), dtype=torch.int64)
    ],
    example=_visible_example,
)

"""Whether vertices and faces make a mesh."""

from __future__ import annotations

import torch
from torch import Tensor

from algonet.core.tracing import compiling


def check_mesh(where: str, vertices: Tensor, faces: Tensor) -> None:
    """Raise unless these are floating vertices (*B, V, 3), finite where that can be seen for free, and faces in range."""
    if not isinstance(vertices, Tensor) or not vertices.is_floating_point():
        got = vertices.dtype if isinstance(vertices, Tensor) else type(vertices).__name__
        raise TypeError(f"{where}: `vertices` must be a floating tensor (*batch, V, 3), got {got}.")
    if vertices.dim() < 2 or vertices.shape[-1] != 3:
        raise ValueError(f"{where}: `vertices` must be (*batch, V, 3), got {tuple(vertices.shape)}.")
    if vertices.shape[-2] == 0:
        raise ValueError(f"{where}: the mesh is empty: `vertices` has shape {tuple(vertices.shape)}.")
    check_faces(f"{where}: `faces`", faces, vertices.shape[-2])
    if len(faces) == 0:
        raise ValueError(f"{where}: the mesh is empty: `faces` has shape {tuple(faces.shape)}.")


def check_faces(where: str, faces: Tensor, count: int) -> None:
    """Raise unless `faces` are (F, 3) integers below `count`; values are looked at on the CPU only."""
    if not isinstance(faces, Tensor) or faces.dtype not in (torch.int32, torch.int64):
        got = faces.dtype if isinstance(faces, Tensor) else type(faces).__name__
        raise TypeError(f"{where} must be an int32 or int64 tensor (F, 3), got {got}.")
    if faces.dim() != 2 or faces.shape[-1] != 3:
        raise ValueError(f"{where} must be (F, 3), got {tuple(faces.shape)}.")
    if faces.device.type == "cpu" and not compiling() and faces.numel():
        low, high = int(faces.min()), int(faces.max())
        if low < 0 or high >= count:
            raise ValueError(
                f"{where} must index {count} vertices (0 to {count - 1}), got values from {low} to {high}."
            )

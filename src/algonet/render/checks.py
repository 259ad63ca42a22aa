"""Whether vertices, faces and colours make a mesh, and whether there is room for a picture."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from algonet.core.checks import check_spec
from algonet.core.memory import check_memory
from algonet.core.tracing import compiling, readable

#: Colours lie in [0, 1]. What is far brighter than any light makes it was meant to be 0 to 255.
TOO_BRIGHT = 16.0
#: So many numbers of a texture are looked at.
LOOKS = 4096


def check_mesh(where: str, vertices: Tensor, faces: Tensor) -> None:
    """Raise unless these are floating vertices (*B, V, 3), finite where that can be seen for free, and faces in range."""
    check_spec(where, "vertices", vertices, "*batch V 3")
    if vertices.shape[-2] == 0:
        raise ValueError(f"{where}: the mesh is empty: `vertices` has shape {tuple(vertices.shape)}.")
    check_faces(f"{where}: `faces`", faces, vertices.shape[-2])
    if len(faces) == 0:
        raise ValueError(f"{where}: the mesh is empty: `faces` has shape {tuple(faces.shape)}.")


def check_faces(where: str, faces: Tensor, count: int) -> None:
    """Raise unless `faces` are (F, 3) integers below `count`; values are looked at on the CPU only."""
    integer = isinstance(faces, Tensor) and faces.dtype in (torch.int32, torch.int64)
    if not integer or faces.shape[1:] != (3,):
        got = f"{faces.dtype} {tuple(faces.shape)}" if isinstance(faces, Tensor) else type(faces).__name__
        raise (ValueError if integer else TypeError)(f"{where} must be an int32 or int64 tensor (F, 3), got {got}.")
    if faces.device.type == "cpu" and not compiling() and faces.numel():
        low, high = int(faces.min()), int(faces.max())
        if low < 0 or high >= count:
            raise ValueError(
                f"{where} must index {count} vertices (0 to {count - 1}), got values from {low} to {high}."
            )


def check_colors(where: str, colors: Tensor) -> None:
    """Raise where colours are bytes, or numbers up to 255; values are checked where that is free and they are not learned."""
    if not isinstance(colors, Tensor) or not colors.is_floating_point():
        got = colors.dtype if isinstance(colors, Tensor) else type(colors).__name__
        raise TypeError(f"{where} must be a floating tensor with values in [0, 1], got {got}; divide bytes by 255.")
    if colors.requires_grad or not colors.numel() or not readable(colors):
        return
    some = colors.reshape(-1)[:: max(1, colors.numel() // LOOKS)]
    if float(some.max()) > TOO_BRIGHT:
        raise ValueError(f"{where} must lie in [0, 1], got values up to {float(some.max()):g}; divide by 255.")


def check_picture(where: str, batch: tuple[int, ...], size: tuple[int, int], numbers: int, like: Tensor) -> None:
    """Raise if pictures with so many numbers a pixel do not fit into memory."""
    count = math.prod(batch)
    what = f"{f'{count} pictures' if count > 1 else 'a picture'} of {size[0]} x {size[1]}"
    check_memory(where, what, count * size[0] * size[1] * numbers * like.element_size(), like.device)

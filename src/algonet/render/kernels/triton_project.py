"""The camera's matrix product on CUDA devices: one launch each way.

Vertices (V, 3) or (B, V, 3) times a matrix (3, 4) or (B, 3, 4) is nothing to a GPU, but as clamp, product and their
derivatives it is a dozen launches, which take longer than rendering a small mesh.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from .triton_launch import launch
from .triton_math import SIZES

#: Coordinates beyond this are taken to lie there, so that products of finite numbers stay finite.
LIMIT = tl.constexpr(1e15)
_BLOCK = 128


@triton.jit
def _row(matrix, i, x, y, z):
    near = tl.load(matrix + 4 * i) * x + tl.load(matrix + 4 * i + 1) * y
    return near + tl.load(matrix + 4 * i + 2) * z + tl.load(matrix + 4 * i + 3)


@triton.jit
def _column(matrix, i, x, y, z):
    return tl.load(matrix + i) * x + tl.load(matrix + 4 + i) * y + tl.load(matrix + 8 + i) * z


@triton.jit(do_not_specialize=SIZES)
def project_kernel(vertices, matrix, grads, result, count, matrix_stride, BACKWARD: tl.constexpr, BLOCK: tl.constexpr):
    item = tl.program_id(1).to(tl.int64)
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    live = i < count
    at = (item * count + i) * 3
    matrix += item * matrix_stride
    x = tl.load(vertices + at, mask=live, other=0.0)
    y = tl.load(vertices + at + 1, mask=live, other=0.0)
    z = tl.load(vertices + at + 2, mask=live, other=0.0)
    if BACKWARD:
        gx = tl.load(grads + at, mask=live, other=0.0)
        gy = tl.load(grads + at + 1, mask=live, other=0.0)
        gz = tl.load(grads + at + 2, mask=live, other=0.0)
        tl.store(result + at, tl.where(tl.abs(x) <= LIMIT, _column(matrix, 0, gx, gy, gz), 0.0), mask=live)
        tl.store(result + at + 1, tl.where(tl.abs(y) <= LIMIT, _column(matrix, 1, gx, gy, gz), 0.0), mask=live)
        tl.store(result + at + 2, tl.where(tl.abs(z) <= LIMIT, _column(matrix, 2, gx, gy, gz), 0.0), mask=live)
    else:
        # Minimum and maximum drop NaN; the sum brings it back
        x = tl.minimum(tl.maximum(x, -LIMIT), LIMIT) + tl.where(x == x, 0.0, x)
        y = tl.minimum(tl.maximum(y, -LIMIT), LIMIT) + tl.where(y == y, 0.0, y)
        z = tl.minimum(tl.maximum(z, -LIMIT), LIMIT) + tl.where(z == z, 0.0, z)
        tl.store(result + at, _row(matrix, 0, x, y, z), mask=live)
        tl.store(result + at + 1, _row(matrix, 1, x, y, z), mask=live)
        tl.store(result + at + 2, _row(matrix, 2, x, y, z), mask=live)


def _run(vertices: Tensor, matrix: Tensor, grads: Tensor, backward: bool) -> Tensor:
    result = torch.empty_like(vertices)
    count = vertices.shape[-2]
    items = vertices.shape[0] if vertices.dim() == 3 else 1
    stride = matrix.stride(0) if matrix.dim() == 3 else 0
    grid = (-(-count // _BLOCK), items)
    launch(project_kernel, grid, [vertices, matrix, grads, result], [count, stride], (backward, _BLOCK), 4)
    return result


class _Projection(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, vertices: Tensor, matrix: Tensor) -> Tensor:
        vertices, matrix = vertices.contiguous(), matrix.contiguous()
        ctx.save_for_backward(vertices, matrix)
        ctx.save_for_forward(vertices, matrix)
        return _run(vertices, matrix, vertices, False)

    @staticmethod
    def backward(ctx: Any, grad: Tensor):
        vertices, matrix = ctx.saved_tensors
        if torch.is_grad_enabled():
            return torch.where(vertices.abs() <= LIMIT.value, grad @ matrix[..., :3], 0.0), None
        return _run(vertices, matrix, grad.contiguous(), True), None

    @staticmethod
    def jvp(ctx: Any, tangent: Tensor, _matrix: Any) -> Tensor:
        vertices, matrix = ctx.saved_tensors
        return torch.where(vertices.abs() <= LIMIT.value, tangent, 0.0) @ matrix[..., :3].mT


def project(vertices: Tensor, matrix: Tensor) -> Tensor:
    """clamp(vertices) @ matrix[..., :3].mT + matrix[..., 3], differentiable in the vertices to any order."""
    return _Projection.apply(vertices, matrix)


def takes(vertices: Tensor, matrix: Tensor) -> bool:
    """Whether `project` is right for these: on CUDA, no gradient to the camera, and no batch that broadcasts."""
    same = vertices.shape[:-2] == matrix.shape[:-2] or (matrix.dim() == 2 and vertices.dim() == 3)
    return (
        same and vertices.dim() <= 3 and not matrix.requires_grad and vertices.dtype in (torch.float32, torch.float64)
    )

"""The renderer's operations on the CPU: prepare faces, list them per tile, stream each tile, and back.

Threads take every n-th tile; what each pair of face and tile adds to a gradient is written to a place of its own and summed
face by face in order, so results are the same bits for any number of threads.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from algonet.core.autograd import Plan
from algonet.core.identity import Signature
from algonet.core.threads import spread

from ...lights import LIGHT, Shading
from ...reference import to_world
from ...settings import empty_pictures
from ...vectors import EDGE_GUARD, FAR_POINTS
from .tiles import Grid, Samples, Scene, kernels_for

Outputs = tuple[list[Tensor], list[Tensor]]
#: The limit beyond an item's samples, where there are fewer than pixels.
SAMPLED = -2e30


class ArraysPlan(Plan):
    """A plan whose tensors are arrays with one batch dimension; positions in `indices` hold indices without any."""

    def __init__(self, signature: Signature):
        super().__init__(signature)
        self.lead = len(signature.tensors[0].shape) - 2
        self.batch = signature.tensors[0].shape[: self.lead]
        self.items, dtype = math.prod(self.batch), signature.tensors[0].dtype
        self.real = np.float64 if dtype == torch.float64 else np.float32
        self.module = kernels_for(dtype, getattr(self.settings, "half_df", 4))

    def arrays(self, tensors: Sequence[Tensor], indices: Sequence[int] = ()) -> list[np.ndarray]:
        arrays = []
        for i, t in enumerate(tensors):
            t = t.detach()
            t = t.to(torch.int64) if i in indices else t.reshape(self.items, *t.shape[self.lead :])
            arrays.append(t.contiguous().numpy())
        return arrays

    def tensors(self, arrays: Sequence[np.ndarray]) -> list[Tensor]:
        found = []
        for array in arrays:
            found.append(torch.from_numpy(array).reshape(*self.batch, *array.shape[1:]))
        return found


class RenderAttributesPlan(ArraysPlan):
    """Faces to samples, samples to pictures, lit if the settings have a shading; and back."""

    def __init__(self, signature: Signature):
        super().__init__(signature)
        settings, real = self.settings, self.real
        self.size, self.spacing = (settings.height, settings.width), settings.spacing
        self.whole = Grid(1.0, 0, *self.size)
        lanes = self.module.LANES
        self.tiles = -(-settings.height // lanes) * -(-settings.width // lanes)
        self.blocks = blocks(settings.height)
        #: The noise's df and reach in sigmas, the power of the bounded sum, whether there is perspective, both sides are seen.
        self.numbers = np.array(
            [settings.df, settings.reach, settings.power, settings.perspective, settings.two_sided], np.float64
        )
        self.guard = real(EDGE_GUARD**2 if real == np.float64 else EDGE_GUARD)
        light = settings.shading or Shading(())
        self.unlit = None if settings.shading else [np.zeros(n, real) for n in ((3, 4), 3, (0, 8))]
        self.paint = (
            np.array(light.kinds, np.int64), settings.power, settings.over_depth, settings.perspective,
            settings.shading is not None, settings.colored, light.two_sided, real(light.shininess), real(light.strength),
        )  # fmt: skip
        like = [torch.empty(spec.shape, device="meta") for spec in signature.tensors[:2]]
        self.shapes = [(self.items, *p.shape[self.lead :]) for p in empty_pictures(like, settings)]
        self.outputs = len(self.shapes)
        if settings.shading is None:
            self.shapes.append((self.items, *self.size, 0))

    @classmethod
    def saves(cls, signature: Signature) -> Sequence[tuple[Sequence[int], torch.dtype]]:
        settings, (points, attributes) = signature.settings, signature.tensors[:2]
        plane = (*points.shape[:-2], settings.height, settings.width)
        means = (*plane, attributes.shape[-1] + (4 if settings.shading else 1))
        return [(shape, points.dtype) for shape in ((*plane, 2), plane, means, means)]

    def grids(self, scales: np.ndarray) -> list[Grid]:
        found = [self.whole] * self.items
        if self.spacing:
            for item, scale in enumerate(scales.tolist()):
                found[item] = Grid.of(scale * self.spacing, *self.size)
        return found

    def scene(self, arrays: list[np.ndarray], grids: list[Grid]) -> Scene:
        """The rasteriser's part of a call."""
        points, attributes, _, softness, faces, attribute_faces = arrays[:6]
        if len(arrays) > 6:
            matrix = arrays[6]
            # A finite but absurd coordinate must not overflow in the product
            points = (
                np.clip(points, -FAR_POINTS, FAR_POINTS) @ matrix[..., :3].transpose(0, 2, 1) + matrix[:, None, :, 3]
            )
        normals = arrays[9] if self.settings.shading else points[..., :0]
        return Scene(self, (points, attributes, softness, faces, attribute_faces, normals), grids)

    def forward(self, tensors: Sequence[Tensor]) -> Outputs:
        """The pictures, and the `Samples`."""
        arrays = self.arrays(tensors, (4, 5))
        grids = self.grids(arrays[3][:, 0])
        scene = self.scene(arrays, grids)
        plane, means, new = (self.items, *self.size), scene.channels + 1, np.empty
        dtype = scene.points.dtype
        total, limit = new((*plane, 2), dtype), new(plane, dtype)
        samples = Samples(total, limit, new((*plane, means), dtype), new((*plane, means), dtype))
        for item, grid in enumerate(grids):
            if grid.margin:
                # What lies beyond the samples is never read, but must not look like NaN to those who save it
                for array in samples:
                    array[item] = 0
                samples.limit[item] = SAMPLED
        scene.sample(samples)
        for item, grid in enumerate(grids):
            if grid.margin and not scene.broken[item]:
                both = np.concatenate([samples.total[item], samples.mean[item]], -1)
                if not grid.tells(both, self.size, self.settings.epsilon / 4):
                    grids[item] = self.whole
                    only = (
                        [a[item : item + 1] for a in arrays[:4]]
                        + arrays[4:6]
                        + [a[item : item + 1] for a in arrays[6:]]
                    )
                    self.scene(only, [self.whole]).sample(Samples(*[a[item : item + 1] for a in samples]))
        pictures = [np.empty(shape, dtype) for shape in self.shapes]
        for item, grid in enumerate(grids):
            own = [a[item] for a in pictures]
            if scene.broken[item]:
                for array in own:
                    array[...] = np.nan
                continue
            arguments = (*self._arguments(item, grid, samples, arrays), *own)
            spread(self.module.paint, [(*rows, *arguments) for rows in self.blocks])
        return self.tensors(pictures[: self.outputs]), self.tensors(samples)

    def _arguments(self, item: int, grid: Grid, samples: Samples, arrays: list[np.ndarray]) -> tuple:
        """Totals (H, W, 2) and means (H, W, C + 1) at an item's pixels, and what kernels that make pictures take beside."""
        total, mean = samples.total[item], samples.mean[item]
        if grid.margin:
            pixels = grid.to_pixels(np.concatenate([total, mean], -1), self.size)
            total, mean = np.ascontiguousarray(pixels[..., :2]), np.ascontiguousarray(pixels[..., 2:])
        return total, mean, arrays[2][item], *(self.unlit or [a[item] for a in arrays[6:9]]), *self.paint

    def backward(
        self, grads: Sequence[Tensor], tensors: Sequence[Tensor], saved: Sequence[Tensor], needs: Sequence[bool]
    ) -> list[Tensor | None]:
        settings, arrays = self.settings, self.arrays(tensors, (4, 5))
        samples, pictures = Samples(*self.arrays(saved)), self.arrays(grads)
        if len(pictures) == 3:
            pictures.append(pictures[0][..., :0])
        grids = self.grids(arrays[3][:, 0])
        for item, grid in enumerate(grids):
            if grid.margin and samples.limit[item, -1, -1] > SAMPLED / 2:
                grids[item] = self.whole
        first, lights = self.module.CAMERA_SUMS, self.module.CAMERA_SUMS + arrays[2].shape[-1]
        count = lights + (LIGHT * arrays[8].shape[-2] if settings.shading else 0)
        sums = np.zeros((self.items, count))
        by_seen = [np.empty_like(samples.total), np.empty_like(samples.mean)]
        for item, grid in enumerate(grids):
            partial = np.zeros((len(self.blocks), count))
            own = [a[item] for a in (*pictures, *by_seen)]
            arguments = (*self._arguments(item, grid, samples, arrays), *own)
            calls = [(*rows, *arguments, row) for rows, row in zip(self.blocks, partial, strict=True)]
            spread(self.module.paint_back, calls)
            # In order: the same bits for any number of threads
            sums[item] = partial.sum(0)
            if grid.margin:
                at_samples = grid.to_samples(np.concatenate([a[item] for a in by_seen], -1))
                by_seen[0][item], by_seen[1][item] = at_samples[..., :2], at_samples[..., 2:]
        grad_points, grad_attributes, grad_normals, grad_softness = self.scene(arrays, grids).pull(samples, by_seen)
        found = [grad_points, grad_attributes, sums[:, first:lights], grad_softness, None, None]
        if len(tensors) > 6:
            found[0], grad_matrix = to_world(self.tensors([grad_points])[0], tensors[0].detach(), tensors[6].detach())
            found.append(grad_matrix.reshape(-1, 3, 4) + torch.from_numpy(sums[:, 3:15]).reshape(-1, 3, 4))
        if settings.shading:
            found += [sums[:, :3], sums[:, lights:], grad_normals]
        return [None if a is None else _like(a, t) for a, t in zip(found, tensors, strict=True)]


RenderLitPlan = RenderAttributesPlan


def blocks(count: int) -> list[tuple[int, int]]:
    """Rows by eight blocks, whatever the number of threads."""
    step = max(1, -(-count // 8))
    return [(first, min(first + step, count)) for first in range(0, count, step)]


class VertexNormalsPlan(ArraysPlan):
    @classmethod
    def saves(cls, signature: Signature) -> Sequence[tuple[Sequence[int], torch.dtype]]:
        points = signature.tensors[0]
        return [((*points.shape[:-1], 4), points.dtype)]

    def forward(self, tensors: Sequence[Tensor]) -> Outputs:
        points, faces = self.arrays(tensors, (1,))
        sums, normals = np.zeros((*points.shape[:2], 4), points.dtype), np.empty_like(points)
        for item in range(self.items):
            self.module.vertex_normals(points[item], faces, sums[item], normals[item])
        return self.tensors([normals]), self.tensors([sums])

    def backward(
        self, grads: Sequence[Tensor], tensors: Sequence[Tensor], saved: Sequence[Tensor], needs: Sequence[bool]
    ) -> list[Tensor | None]:
        (points, faces), (grad, sums) = self.arrays(tensors, (1,)), self.arrays((grads[0], saved[0]))
        grad_points = np.zeros_like(points)
        for item in range(self.items):
            self.module.vertex_normals_back(points[item], faces, sums[item], grad[item], grad_points[item])
        return [*self.tensors([grad_points]), None]


def _like(array: np.ndarray | Tensor, t: Tensor) -> Tensor:
    return torch.as_tensor(array).to(t.dtype).reshape(t.shape)

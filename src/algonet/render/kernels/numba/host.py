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

from algonet.core.autograd import Plan, plan_from
from algonet.core.identity import Signature
from algonet.core.threads import spread

from ...constants import FAR_POINTS
from ...settings import NormalSettings, RasterSettings, empty_pictures
from ...shading import LIGHT, Shading
from ...vectors import FLATNESS, LEAST_SQUARE, SMALL
from .grid import Grid
from .tiles import Inputs, Run, Samples, kernels_for, pull, sample

Outputs = tuple[list[Tensor], list[Tensor]]
#: The limit beyond an item's samples, where there are fewer than pixels.
SAMPLED = -2e30


def _inputs(arrays: list[np.ndarray], settings: RasterSettings) -> Inputs:
    """The rasteriser's part of a call; the attributes of lit pictures are colour, normal, and what is left."""
    points, attributes, _, softness, faces, attribute_faces = arrays[:6]
    if len(arrays) > 6:
        matrix = arrays[6]
        # A finite but absurd coordinate must not overflow in the product
        points = np.clip(points, -FAR_POINTS, FAR_POINTS) @ matrix[..., :3].transpose(0, 2, 1) + matrix[:, None, :, 3]
    if settings.shading is not None:
        normals = arrays[9]
        if attributes.shape[-1] == 0:
            attributes, attribute_faces = normals, faces
        else:
            colors = 3 * settings.colored
            corners = attributes[:, attribute_faces.reshape(-1)]
            parts = (corners[..., :colors], normals[:, faces.reshape(-1)], corners[..., colors:])
            attributes = np.concatenate(parts, -1)
            attribute_faces = np.arange(faces.size).reshape(faces.shape)
    grids = [Grid.of(float(s), settings) for s in softness[:, 0]]
    return Inputs(points, attributes, softness, faces, attribute_faces, grids)


def _samples(inputs: Inputs, settings: RasterSettings) -> Samples:
    plane = (len(inputs.points), settings.height, settings.width)
    new, channels = np.empty, inputs.attributes.shape[-1]
    dtype = inputs.points.dtype
    means = (new((*plane, channels + 1), dtype) for _ in range(2))
    samples = Samples(new((*plane, 2), dtype), new(plane, dtype), *means)
    for item, grid in enumerate(inputs.grids):
        if grid.wide:
            # What lies beyond the samples is never read, but must not look like NaN to those who save it
            for array in samples:
                array[item] = 0
            samples.limit[item] = SAMPLED
    return samples


def _seen(item: int, grid: Grid, samples: Samples, settings: RasterSettings) -> tuple[np.ndarray, np.ndarray]:
    """Totals (H, W, 2) and means (H, W, C + 1) at an item's pixels."""
    total, mean = samples.total[item], samples.mean[item]
    if not grid.wide:
        return total, mean
    pixels = grid.to_pixels(np.concatenate([total, mean], -1), (settings.height, settings.width))
    return np.ascontiguousarray(pixels[..., :2]), np.ascontiguousarray(pixels[..., 2:])


class RenderAttributesPlan(Plan):
    """Faces to samples, samples to pictures, lit if the settings have a shading; and back."""

    def __init__(self, signature: Signature):
        super().__init__(signature)
        self.run = Run.of(self.settings, signature.tensors[0])

    @classmethod
    def saves(cls, signature: Signature) -> Sequence[tuple[Sequence[int], torch.dtype]]:
        settings, (points, attributes) = signature.settings, signature.tensors[:2]
        plane = (*points.shape[:-2], settings.height, settings.width)
        means = (*plane, attributes.shape[-1] + (4 if settings.shading else 1))
        return [(shape, points.dtype) for shape in ((*plane, 2), plane, means, means)]

    def forward(self, tensors: Sequence[Tensor]) -> Outputs:
        """The pictures, and the `Samples`."""
        settings, module, arrays = self.settings, self.run.module, _arrays(tensors)
        inputs = _inputs(arrays, settings)
        samples = _samples(inputs, settings)
        broken = sample(inputs, self.run, samples)
        size = settings.height, settings.width
        for item, grid in enumerate(inputs.grids):
            both = np.concatenate([samples.total[item], samples.mean[item]], -1)
            if grid.wide and item not in broken and not grid.tells(both, size, settings.epsilon / 4):
                inputs.grids[item] = Grid(1.0, 0, *size)
                sample(inputs.items(item, item + 1), self.run, Samples(*(a[item : item + 1] for a in samples)))
        pictures = empty_pictures(list(tensors), settings)
        flat = [_flat(p, tensors[0].dim() - 2) for p in pictures]
        paint = module.shade if settings.shading else module.composite
        for item, grid in enumerate(inputs.grids):
            if item in broken:
                for array in flat:
                    array[item] = np.nan
                continue
            seen = _seen(item, grid, samples, settings)
            arguments = (*seen, *_arguments(item, arrays, settings), *[a[item] for a in flat])
            spread(paint, [(*rows, *arguments) for rows in _row_blocks(settings.height)])
        batch = tensors[0].shape[:-2]
        return pictures, [torch.from_numpy(a).reshape(*batch, *a.shape[1:]) for a in samples]

    def backward(
        self, grads: Sequence[Tensor], tensors: Sequence[Tensor], saved: Sequence[Tensor], needs: Sequence[bool]
    ) -> list[Tensor | None]:
        settings, module, arrays = self.settings, self.run.module, _arrays(tensors)
        lead, inputs = tensors[0].dim() - 2, _inputs(arrays, settings)
        samples, pictures = Samples(*(_flat(t, lead) for t in saved)), [_flat(g, lead) for g in grads]
        for item, limit in enumerate(samples.limit):
            if inputs.grids[item].wide and limit[-1, -1] > SAMPLED / 2:
                inputs.grids[item] = Grid(1.0, 0, *limit.shape)
        paint_back, count = module.composite_back, arrays[2].shape[-1]
        if settings.shading:
            paint_back, count = module.shade_back, module.PIXEL_SUMS + LIGHT * arrays[8].shape[-2]
        sums = np.zeros((len(inputs.points), count))
        by_seen = [np.empty_like(samples.total), np.empty_like(samples.mean)]
        blocks = _row_blocks(settings.height)
        for item, grid in enumerate(inputs.grids):
            seen, partial = _seen(item, grid, samples, settings), np.zeros((len(blocks), count))
            own = [a[item] for a in (*pictures, *by_seen)]
            arguments = (*seen, *_arguments(item, arrays, settings), *own)
            spread(paint_back, [(*rows, *arguments, row) for rows, row in zip(blocks, partial, strict=True)])
            # In order: the same bits for any number of threads
            sums[item] = partial.sum(0)
            if grid.wide:
                found = grid.to_samples(np.concatenate([a[item] for a in by_seen], -1))
                by_seen[0][item], by_seen[1][item] = found[..., :2], found[..., 2:]
        by_points, by_attributes, by_softness = pull(inputs, self.run, samples, by_seen)
        found = [by_points, by_attributes, sums, by_softness, None, None]
        if len(tensors) > 6:
            found[0], by_matrix = _to_the_world(by_points, arrays[0], arrays[6])
            found.append(by_matrix)
        if settings.shading:
            found[1], by_normals = _untangled(by_attributes, arrays, settings)
            found[2], found[6] = sums[:, :4], found[6] + sums[:, 7:19].reshape(-1, 3, 4)
            found += [sums[:, 4:7], sums[:, 19:], by_normals]
        return [None if a is None else _like(a, t) for a, t in zip(found, tensors, strict=True)]


RenderLitPlan = RenderAttributesPlan


def _arguments(item: int, arrays: list[np.ndarray], settings: RasterSettings) -> tuple:
    """What kernels that make pictures of what is seen of an item take beside it."""
    background, shading = arrays[2][item], settings.shading
    if shading is None:
        return background, settings.power, settings.over_depth
    matrix, eye, lights = (a[item] for a in arrays[6:9])
    return (
        background, matrix, eye, lights, np.array(shading.kinds, np.int64), settings.power, settings.over_depth,
        settings.perspective, settings.colored, shading.two_sided, *_gloss(shading, background),
    )  # fmt: skip


def _row_blocks(height: int) -> list[tuple[int, int]]:
    """Rows by eight blocks, whatever the number of threads."""
    step = max(1, -(-height // 8))
    return [(first, min(first + step, height)) for first in range(0, height, step)]


def _to_the_world(by_seen: np.ndarray, points: np.ndarray, matrix: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Gradients by points of the world and by the camera's matrix, from the gradient by what the matrix sees of them."""
    by_points = np.where(np.abs(points) <= FAR_POINTS, by_seen @ matrix[..., :3], 0)
    limited = np.clip(points, -FAR_POINTS, FAR_POINTS)
    return by_points, np.concatenate([by_seen.transpose(0, 2, 1) @ limited, by_seen.sum(1)[..., None]], -1)


def _gloss(shading: Shading, like: np.ndarray) -> tuple:
    return like.dtype.type(shading.shininess), like.dtype.type(shading.strength)


def _untangled(
    by_table: np.ndarray, arrays: list[np.ndarray], settings: RasterSettings
) -> tuple[np.ndarray, np.ndarray]:
    """Gradients by attributes and by normals, from those by the table that `_inputs` made of them."""
    attributes, faces, attribute_faces, normals = (arrays[i] for i in (1, 4, 5, 9))
    if attributes.shape[-1] == 0:
        return np.zeros(attributes.shape, by_table.dtype), by_table
    by_attributes, by_normals = np.zeros(attributes.shape, by_table.dtype), np.zeros(normals.shape, by_table.dtype)
    colors = 3 * settings.colored
    corners = np.concatenate([by_table[..., :colors], by_table[..., colors + 3 :]], -1)
    for item in range(len(by_table)):
        np.add.at(by_attributes[item], attribute_faces.reshape(-1), corners[item])
        np.add.at(by_normals[item], faces.reshape(-1), by_table[item, :, colors : colors + 3])
    return by_attributes, by_normals


# -- normals and light on points


def vertex_normals_forward(tensors: list[Tensor], settings: NormalSettings) -> Outputs:
    points, faces = _flat(tensors[0], tensors[0].dim() - 2), tensors[1].to(torch.int64).contiguous().numpy()
    module = kernels_for(tensors[0])
    sums = np.zeros((*points.shape[:2], 4), points.dtype)
    for item in range(len(points)):
        module.sum_areas(points[item], faces, sums[item])
    area, _, _, scale = _area(sums)
    shape = tensors[0].shape
    return [torch.from_numpy(area * scale).reshape(shape)], [torch.from_numpy(sums).reshape(*shape[:-1], 4)]


def _area(sums: np.ndarray) -> tuple[np.ndarray, ...]:
    """Area and square over their size, that size, and one over the area's guarded length."""
    size = np.maximum(np.maximum(np.abs(sums[..., :3]).max(-1), sums[..., 3]), sums.dtype.type(LEAST_SQUARE))[..., None]
    area, square = sums[..., :3] / size, sums.dtype.type(FLATNESS) * (sums[..., 3:] / size)
    scale = 1 / np.sqrt((area * area).sum(-1, keepdims=True) + square * square + sums.dtype.type(SMALL**2))
    return area, square, size, scale


def vertex_normals_saved(tensors: list[Tensor], settings: NormalSettings) -> list[Tensor]:
    return [tensors[0].new_empty((*tensors[0].shape[:-1], 4))]


def vertex_normals_backward(
    grads: list[Tensor], tensors: list[Tensor], saved: list[Tensor], settings: NormalSettings, needs: list[bool]
) -> list[Tensor | None]:
    lead = tensors[0].dim() - 2
    points, faces = _flat(tensors[0], lead), tensors[1].to(torch.int64).contiguous().numpy()
    grad = _flat(grads[0], lead)
    area, square, size, scale = _area(_flat(saved[0], lead))
    along = (area * grad).sum(-1, keepdims=True) * scale * scale
    factor = scale / size
    by_square = -square * area.dtype.type(FLATNESS) * along * factor
    by_sums = np.concatenate([(grad - area * along) * factor, by_square], -1)
    by_points, module = np.zeros_like(points), kernels_for(tensors[0])
    for item in range(len(points)):
        module.spread_areas(points[item], faces, by_sums[item], by_points[item])
    return [torch.from_numpy(by_points).reshape(tensors[0].shape), None]


def _points_of(tensors: list[Tensor]) -> list[np.ndarray]:
    lead = tensors[2].dim() - 2
    return [_flat(t, lead) for t in tensors]


def illuminate_forward(tensors: list[Tensor], settings: Shading) -> Outputs:
    albedo, normals, positions, eye, lights = _points_of(tensors)
    image, module, kinds = np.empty_like(positions), kernels_for(tensors[2]), np.array(settings.kinds, np.int64)
    gloss = _gloss(settings, positions)
    for i in range(len(positions)):
        own = (albedo[i], normals[i], positions[i], eye[i], lights[i], kinds, settings.two_sided, *gloss, image[i])
        spread(module.illuminate, [(*rows, *own) for rows in _row_blocks(positions.shape[1])])
    return [torch.from_numpy(image).reshape(tensors[2].shape)], []


def illuminate_backward(
    grads: list[Tensor], tensors: list[Tensor], saved: list[Tensor], settings: Shading, needs: list[bool]
) -> list[Tensor | None]:
    albedo, normals, positions, eye, lights = _points_of(tensors)
    grad, module = _flat(grads[0], tensors[2].dim() - 2), kernels_for(tensors[2])
    kinds, gloss = np.array(settings.kinds, np.int64), _gloss(settings, positions)
    results = [np.zeros_like(a) for a in (albedo, normals, positions, eye, lights)]
    blocks = _row_blocks(positions.shape[1])
    for i in range(len(positions)):
        by_eye, by_lights = (np.zeros((len(blocks), *a.shape[1:]), a.dtype) for a in (eye, lights))
        own = (albedo[i], normals[i], positions[i], eye[i], lights[i], kinds, settings.two_sided, *gloss, grad[i])

        def work(block: int, own=own, i=i, by_eye=by_eye, by_lights=by_lights) -> None:
            to = (results[0][i], results[1][i], results[2][i], by_eye[block], by_lights[block])
            module.illuminate_back(*blocks[block], *own, *to)

        spread(work, [(block,) for block in range(len(blocks))])
        results[3][i], results[4][i] = by_eye.sum(0), by_lights.sum(0)
    return [_like(a, t) for a, t in zip(results, tensors, strict=True)]


def _flat(t: Tensor, lead: int) -> np.ndarray:
    """A contiguous array with one batch dimension."""
    shape = t.shape[lead:]
    return t.detach().reshape(math.prod(t.shape[:lead]), *shape).contiguous().numpy()


def _arrays(tensors: Sequence[Tensor]) -> list[np.ndarray]:
    """Arrays of a `RasterCall`'s tensors and what lit pictures add."""
    lead = tensors[0].dim() - 2
    return [t.to(torch.int64).contiguous().numpy() if i in (4, 5) else _flat(t, lead) for i, t in enumerate(tensors)]


def _like(array: np.ndarray, t: Tensor) -> Tensor:
    return torch.from_numpy(np.ascontiguousarray(array)).to(t.dtype).reshape(t.shape)


VertexNormalsPlan = plan_from(vertex_normals_forward, vertex_normals_backward, vertex_normals_saved)


IlluminatePlan = plan_from(illuminate_forward, illuminate_backward)

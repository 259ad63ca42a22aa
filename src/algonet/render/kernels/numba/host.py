"""The renderer's operations on the CPU: prepare faces, list them per tile, stream each tile, and back.

Threads take every n-th tile; what each pair of face and tile adds to a gradient is written to a place of its own and summed
face by face in order, so results are the same bits for any number of threads.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from types import ModuleType

import numpy as np
import torch
from torch import Tensor

from algonet.core.autograd import plan_from
from algonet.core.threads import spread

from ...constants import FAR_POINTS
from ...settings import NormalSettings, RasterSettings, empty_pictures
from ...shading import LIGHT, Shading
from ...vectors import FLATNESS, LEAST_SQUARE, SMALL
from .grid import Grid
from .tiles import Inputs, Samples, kernels_for, pull, sample

Outputs = tuple[list[Tensor], list[Tensor]]
#: The limit beyond an item's samples, where there are fewer than pixels.
SAMPLED = -2e30


def render_attributes_saved(tensors: list[Tensor], settings: RasterSettings) -> list[Tensor]:
    points, attributes = tensors[:2]
    plane = (*points.shape[:-2], settings.height, settings.width)
    channels = attributes.shape[-1] + (3 if settings.shading else 0)
    means = [points.new_empty(*plane, channels + 1) for _ in range(2)]
    return [points.new_empty(*plane, 2), points.new_empty(plane), *means]


render_lit_saved = render_attributes_saved


def _inputs(tensors: list[Tensor], settings: RasterSettings) -> tuple[Inputs, ModuleType]:
    """Arrays of a call; the attributes of lit pictures are colour, normal, and what is left."""
    lead = tensors[0].dim() - 2
    points, attributes, _, softness = (_flat(t, lead) for t in tensors[:4])
    if len(tensors) > 6:
        matrix = _flat(tensors[6], lead)
        # A finite but absurd coordinate must not overflow in the product
        points = np.clip(points, -FAR_POINTS, FAR_POINTS) @ matrix[..., :3].transpose(0, 2, 1) + matrix[:, None, :, 3]
    faces, attribute_faces = (t.detach().to(torch.int64).contiguous().numpy() for t in tensors[4:6])
    if settings.shading is not None:
        normals = _flat(tensors[9], lead)
        if attributes.shape[-1] == 0:
            attributes, attribute_faces = normals, faces
        else:
            colors = 3 * settings.colored
            corners = attributes[:, attribute_faces.reshape(-1)]
            parts = (corners[..., :colors], normals[:, faces.reshape(-1)], corners[..., colors:])
            attributes = np.concatenate(parts, -1)
            attribute_faces = np.arange(faces.size).reshape(faces.shape)
    grids = [Grid.of(float(s), settings) for s in softness[:, 0]]
    inputs = Inputs(points, attributes, softness, faces, attribute_faces, grids)
    return inputs, kernels_for(tensors[0], settings.half_df)


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


def _forward(tensors: list[Tensor], settings: RasterSettings, paint: Callable[..., None]) -> Outputs:
    """Samples, then `paint(module, item, first, last, total, mean, pictures)` of each item by rows."""
    inputs, module = _inputs(tensors, settings)
    samples = _samples(inputs, settings)
    broken = sample(inputs, settings, module, samples)
    size = settings.height, settings.width
    for item, grid in enumerate(inputs.grids):
        both = np.concatenate([samples.total[item], samples.mean[item]], -1)
        if grid.wide and item not in broken and not grid.tells(both, size, settings.epsilon / 4):
            inputs.grids[item] = Grid(1.0, 0, *size)
            sample(inputs.items(item, item + 1), settings, module, Samples(*(a[item : item + 1] for a in samples)))
    pictures = empty_pictures(tensors, settings)
    lead = tensors[0].dim() - 2
    arrays = [_flat(p, lead) for p in pictures]
    for item, grid in enumerate(inputs.grids):
        if item in broken:
            for array in arrays:
                array[item] = np.nan
            continue
        total, mean = _seen(item, grid, samples, settings)
        own = [a[item] for a in arrays]
        _by_rows(settings.height, lambda first, last: paint(module, item, first, last, total, mean, own))  # noqa: B023
    batch = tensors[0].shape[:-2]
    return pictures, [torch.from_numpy(a).reshape(*batch, *a.shape[1:]) for a in samples]


def _backward(
    tensors: list[Tensor], saved: list[Tensor], settings: RasterSettings, count: int, paint_back: Callable[..., None]
) -> tuple[list[np.ndarray], np.ndarray, Inputs]:
    """Gradients by points, attributes and softness, and `count` sums per item, from `paint_back(module, item, first, last,
    total, mean, by_total, by_mean, sums)`."""
    inputs, module = _inputs(tensors, settings)
    lead = tensors[0].dim() - 2
    samples = Samples(*(_flat(t, lead) for t in saved))
    for item, limit in enumerate(samples.limit):
        if inputs.grids[item].wide and limit[-1, -1] > SAMPLED / 2:
            inputs.grids[item] = Grid(1.0, 0, *limit.shape)
    sums = np.zeros((len(inputs.points), count))
    grads = [np.empty_like(samples.total), np.empty_like(samples.mean)]
    for item, grid in enumerate(inputs.grids):
        total, mean = _seen(item, grid, samples, settings)
        by_total, by_mean = grads[0][item], grads[1][item]
        blocks = _row_blocks(settings.height)
        partial = np.zeros((len(blocks), count))

        def work(i: int, item=item, total=total, mean=mean, to=(by_total, by_mean), blocks=blocks, sums=partial):
            paint_back(module, item, *blocks[i], total, mean, *to, sums[i])

        spread(work, [(i,) for i in range(len(blocks))])
        # In order: the same bits for any number of threads
        sums[item] = partial.sum(0)
        if grid.wide:
            found = grid.to_samples(np.concatenate([by_total, by_mean], -1))
            grads[0][item], grads[1][item] = found[..., :2], found[..., 2:]
    return pull(inputs, settings, module, samples, grads), sums, inputs


def _row_blocks(height: int) -> list[tuple[int, int]]:
    """Rows by eight blocks, whatever the number of threads."""
    step = max(1, -(-height // 8))
    return [(first, min(first + step, height)) for first in range(0, height, step)]


def _by_rows(height: int, work: Callable[[int, int], None]) -> None:
    spread(work, _row_blocks(height))


def render_attributes_forward(tensors: list[Tensor], settings: RasterSettings) -> Outputs:
    """Outputs, and the `Samples`."""
    background = _flat(tensors[2], tensors[0].dim() - 2)

    def paint(module, item, first, last, total, mean, pictures):
        module.composite(first, last, total, mean, background[item], settings.power, settings.over_depth, *pictures)

    return _forward(tensors, settings, paint)


def render_attributes_backward(
    grads: list[Tensor], tensors: list[Tensor], saved: list[Tensor], settings: RasterSettings, needs: list[bool]
) -> list[Tensor | None]:
    lead = tensors[0].dim() - 2
    background = _flat(tensors[2], lead)
    pictures = [_flat(g, lead) for g in grads]

    def paint_back(module, item, first, last, total, mean, by_total, by_mean, sums):
        own = [p[item] for p in pictures]
        how = settings.power, settings.over_depth
        module.composite_back(first, last, total, mean, background[item], *how, *own, by_total, by_mean, sums)

    (by_points, by_attributes, by_softness), sums, _ = _backward(
        tensors, saved, settings, background.shape[-1], paint_back
    )
    found = [by_points, by_attributes, sums, by_softness, None, None]
    if len(tensors) > 6:
        found[0], by_matrix = _to_the_world(by_points, tensors)
        found.append(by_matrix)
    return [None if a is None else _like(a, t) for a, t in zip(found, tensors, strict=True)]


def _to_the_world(by_seen: np.ndarray, tensors: list[Tensor]) -> tuple[np.ndarray, np.ndarray]:
    """Gradients by points of the world and by the camera's matrix, from the gradient by what the matrix sees of them."""
    lead = tensors[0].dim() - 2
    points, matrix = _flat(tensors[0], lead), _flat(tensors[6], lead)
    by_points = np.where(np.abs(points) <= FAR_POINTS, by_seen @ matrix[..., :3], 0)
    limited = np.clip(points, -FAR_POINTS, FAR_POINTS)
    return by_points, np.concatenate([by_seen.transpose(0, 2, 1) @ limited, by_seen.sum(1)[..., None]], -1)


def _lit_arguments(tensors: list[Tensor], settings: RasterSettings) -> Callable[[int], tuple]:
    """What lighting takes of an item, beyond what is seen."""
    lead = tensors[0].dim() - 2
    background, matrix, eye, lights = (_flat(tensors[i], lead) for i in (2, 6, 7, 8))
    shading = settings.shading
    assert shading is not None

    def of(item: int) -> tuple:
        return (
            background[item], matrix[item], eye[item], lights[item], np.array(shading.kinds, np.int64), settings.power,
            settings.over_depth, settings.perspective, settings.colored, shading.two_sided, *_gloss(shading, background),
        )  # fmt: skip

    return of


def _gloss(shading: Shading, like: np.ndarray) -> tuple:
    return like.dtype.type(shading.shininess), like.dtype.type(shading.strength)


def render_lit_forward(tensors: list[Tensor], settings: RasterSettings) -> Outputs:
    arguments = _lit_arguments(tensors, settings)

    def paint(module, item, first, last, total, mean, pictures):
        module.shade(first, last, total, mean, *arguments(item), *pictures)

    return _forward(tensors, settings, paint)


def render_lit_backward(
    grads: list[Tensor], tensors: list[Tensor], saved: list[Tensor], settings: RasterSettings, needs: list[bool]
) -> list[Tensor | None]:
    lead = tensors[0].dim() - 2
    arguments, pictures = _lit_arguments(tensors, settings), [_flat(g, lead) for g in grads]
    lights = tensors[8].shape[-2]

    def paint_back(module, item, first, last, total, mean, by_total, by_mean, sums):
        own = [p[item] for p in pictures]
        module.shade_back(first, last, total, mean, *arguments(item), *own, by_total, by_mean, sums)

    count = kernels_for(tensors[0], settings.half_df).PIXEL_SUMS + LIGHT * lights
    (by_points, by_table, by_softness), sums, inputs = _backward(tensors, saved, settings, count, paint_back)
    by_attributes, by_normals = _untangled(by_table, tensors, settings, inputs)
    by_points, by_matrix = _to_the_world(by_points, tensors)
    by_matrix = by_matrix + sums[:, 7:19].reshape(-1, 3, 4)
    found = [
        by_points, by_attributes, sums[:, :4], by_softness, None, None, by_matrix, sums[:, 4:7], sums[:, 19:], by_normals
    ]  # fmt: skip
    return [None if a is None else _like(a, t) for a, t in zip(found, tensors, strict=True)]


def _untangled(
    by_table: np.ndarray, tensors: list[Tensor], settings: RasterSettings, inputs: Inputs
) -> tuple[np.ndarray, np.ndarray]:
    """Gradients by attributes and by normals, from those by the table that `_inputs` made of them."""
    attributes, normals = tensors[1], tensors[9]
    items, colors = len(by_table), 3 * settings.colored
    if attributes.shape[-1] == 0:
        return np.zeros((items, attributes.shape[-2], 0), by_table.dtype), by_table
    by_attributes = np.zeros((items, attributes.shape[-2], attributes.shape[-1]), by_table.dtype)
    by_normals = np.zeros((items, normals.shape[-2], 3), by_table.dtype)
    rows = tensors[5].to(torch.int64).reshape(-1).numpy()
    corners = np.concatenate([by_table[..., :colors], by_table[..., colors + 3 :]], -1)
    for item in range(items):
        np.add.at(by_attributes[item], rows, corners[item])
        np.add.at(by_normals[item], inputs.faces.reshape(-1), by_table[item, :, colors : colors + 3])
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
        _by_rows(positions.shape[1], lambda first, last: module.illuminate(first, last, *own))  # noqa: B023
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


def _like(array: np.ndarray, t: Tensor) -> Tensor:
    return torch.from_numpy(np.ascontiguousarray(array)).to(t.dtype).reshape(t.shape)


RenderAttributesPlan = plan_from(render_attributes_forward, render_attributes_backward, render_attributes_saved)


RenderLitPlan = plan_from(render_lit_forward, render_lit_backward, render_lit_saved)


VertexNormalsPlan = plan_from(vertex_normals_forward, vertex_normals_backward, vertex_normals_saved)


IlluminatePlan = plan_from(illuminate_forward, illuminate_backward)

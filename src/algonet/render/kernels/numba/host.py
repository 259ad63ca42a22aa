"""The renderer's operations on the CPU: prepare faces, list them per tile, stream each tile, and back.

Threads take every n-th tile; what each pair of face and tile adds to a gradient is written to a place of its own and summed
face by face in order, so results are the same bits for any number of threads.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from algonet.core.cache import cached
from algonet.core.codegen import generate as codegen
from algonet.core.threads import spread, workers
from algonet.relax import BoundedSum

from ...constants import EDGE_GUARD, FAR_POINTS, FLIP_AREA, LEAST_SPACING, MARGIN, MOST_SAMPLES, TAPS
from ...settings import NormalSettings, RasterSettings, empty_pictures
from ...shading import LIGHT, Shading
from ...vectors import FLATNESS, LEAST_SQUARE, SMALL
from .edges import prelude

#: Pairs of face and tile whose gradients are kept at once; more are done in several rounds of items.
_ROUND = 1 << 20
TEMPLATES = ("faces", "forward", "backward", "pixels")
Outputs = tuple[list[Tensor], list[Tensor]]


@cached(most=128)
def kernels(precision: str, half: int) -> ModuleType:
    """The templates' functions for one precision and df / 2."""
    paths = [Path(__file__).with_name(f"{name}.py") for name in TEMPLATES]
    return codegen.load_template(f"render_{precision}_{half}", prelude(precision, half), *paths)


def kernels_for(like: Tensor, half: int = 4) -> ModuleType:
    return kernels("float64" if like.dtype == torch.float64 else "float32", half)


class Grid(NamedTuple):
    """Where an item's samples lie: `spacing` pixels apart, the first `margin` of them before the first pixel's centre.

    Where the noise is sharp they are the pixels. Where it is wide there are fewer, pixels are interpolated from them, and they
    are kept in the upper left corner of arrays of the picture's size.
    """

    spacing: float
    margin: int
    rows: int
    columns: int

    @staticmethod
    def of(scale: float, settings: RasterSettings) -> Grid:
        height, width = settings.height, settings.width
        spacing = scale * settings.spacing
        if LEAST_SPACING <= spacing < math.inf:
            spacing = min(spacing, 1e6)
            rows, columns = (math.ceil((n - 1) / spacing) + 1 + 2 * MARGIN for n in (height, width))
            if rows <= height and columns <= width and rows * columns <= MOST_SAMPLES * height * width:
                return Grid(spacing, MARGIN, rows, columns)
        return Grid(1.0, 0, height, width)

    @property
    def wide(self) -> bool:
        return self.margin > 0

    def to_pixels(self, samples: np.ndarray, size: tuple[int, int]) -> np.ndarray:
        """Samples (H, W, C), of which the upper left corner counts, as pixels (H, W, C)."""
        down, across = self._matrices(size, samples.dtype)
        rows = np.tensordot(down, samples[: self.rows, : self.columns], 1)
        return np.einsum("xc,ycn->yxn", across, rows, optimize=True)

    def to_samples(self, pixels: np.ndarray) -> np.ndarray:
        """The transpose: gradients at pixels (H, W, C) to those at samples, in the upper left corner of as large an array."""
        down, across = self._matrices(pixels.shape[:2], pixels.dtype)
        out = np.zeros_like(pixels)
        rows = np.tensordot(down.T, pixels, 1)
        out[: self.rows, : self.columns] = np.einsum("xc,yxn->ycn", across, rows, optimize=True)
        return out

    def _matrices(self, size: Sequence[int], dtype: Any) -> tuple[np.ndarray, np.ndarray]:
        return (
            lagrange_matrix(size[0], self.rows, self.spacing, self.margin).astype(dtype),
            lagrange_matrix(size[1], self.columns, self.spacing, self.margin).astype(dtype),
        )


@cached(most=32)
def lagrange_matrix(pixels: int, samples: int, spacing: float, margin: int) -> np.ndarray:
    """(pixels, samples): what each sample counts in each pixel, by Lagrange's polynomial through TAPS of them."""
    at = np.arange(pixels) / spacing + margin
    first = np.floor(at) - (TAPS // 2 - 1)
    u = (at - first)[:, None]
    taps = np.arange(TAPS)
    matrix = np.zeros((pixels, samples))
    for tap in taps:
        others = taps[taps != tap]
        weight = np.prod((u - others) / (tap - others), axis=1)
        # A pixel right on a sample has no use for the tap beyond the last one
        column = np.minimum(first.astype(np.int64) + tap, samples - 1)
        np.add.at(matrix, (np.arange(pixels), column), weight)
    return matrix


class Plan(NamedTuple):
    """Prepared faces of some items, and which faces each tile has."""

    vertices: np.ndarray
    prepared: np.ndarray
    starts: np.ndarray
    tile_starts: np.ndarray
    faces_of: np.ndarray
    pairs_of: np.ndarray
    broken: list[int]


class Inputs(NamedTuple):
    """A call's arrays with one batch dimension, and each item's grid."""

    points: np.ndarray
    attributes: np.ndarray
    softness: np.ndarray
    faces: np.ndarray
    attribute_faces: np.ndarray
    grids: list[Grid]

    def items(self, first: int, last: int) -> Inputs:
        points, attributes, softness = (a[first:last] for a in self[:3])
        return Inputs(points, attributes, softness, self.faces, self.attribute_faces, self.grids[first:last])

    @property
    def sizes(self) -> np.ndarray:
        return np.array([(g.rows, g.columns) for g in self.grids], np.int64).reshape(-1, 2)

    @property
    def sample_softness(self) -> np.ndarray:
        """Scale in samples, and steepness."""
        spacing = np.array([g.spacing for g in self.grids], self.softness.dtype)
        return np.stack([self.softness[:, 0] / spacing, self.softness[:, 1]], 1)


class Samples(NamedTuple):
    """Per sample: the total of the conorm, the log normaliser, and means of the channels and, last, of depth."""

    total: np.ndarray
    norm: np.ndarray
    mean: np.ndarray


# -- faces to samples, and back


def render_attributes_saved(tensors: list[Tensor], settings: RasterSettings) -> list[Tensor]:
    points, attributes = tensors[:2]
    plane = (*points.shape[:-2], settings.height, settings.width)
    channels = attributes.shape[-1] + (3 if settings.shading else 0)
    return [points.new_empty(plane), points.new_empty(plane), points.new_empty(*plane, channels + 1)]


render_lit_saved = render_attributes_saved


def sample(inputs: Inputs, settings: RasterSettings, module: ModuleType, samples: Samples) -> list[int]:
    """Fill the samples; returns the items that hold something that is not a number."""
    broken = []
    for first, last, plan in _rounds(inputs, settings, module):
        part = inputs.items(first, last)
        parts = [a[first:last] for a in samples]
        lists = (plan.tile_starts, plan.faces_of, plan.prepared, part.faces, part.attribute_faces)
        arguments = (*lists, part.attributes, part.sample_softness, part.sizes, _numbers(settings), *parts)

        def work(begin: int, stride: int, arguments=arguments) -> None:
            module.forward_tiles(begin, stride, *arguments)

        _in_threads(work)
        broken += [first + item for item in plan.broken]
    return broken


def pull(
    inputs: Inputs, settings: RasterSettings, module: ModuleType, samples: Samples, grads: list[np.ndarray]
) -> list[np.ndarray]:
    """Gradients by points, attributes and softness, from those by the samples' totals and means."""
    results = [np.zeros_like(a) for a in inputs[:3]]
    for first, last, plan in _rounds(inputs, settings, module):
        part = inputs.items(first, last)
        seen = [a[first:last] for a in (samples.norm, samples.mean, *grads)]
        _pull_round(part, plan, settings, module, seen, [a[first:last] for a in results])
    return results


def _pull_round(
    inputs: Inputs, plan: Plan, settings: RasterSettings, module: ModuleType, seen: list, results: list
) -> None:
    records = np.empty((max(1, plan.starts[-1]), module.SUMS + 3 * inputs.attributes.shape[-1]), plan.prepared.dtype)
    lists = (plan.tile_starts, plan.faces_of, plan.pairs_of, plan.prepared, inputs.faces, inputs.attribute_faces)
    arguments = (*lists, inputs.attributes, inputs.sample_softness, inputs.sizes, _numbers(settings), *seen, records)

    def work(begin: int, stride: int) -> None:
        module.backward_tiles(begin, stride, *arguments)

    _in_threads(work)
    by_points, by_attributes, by_softness = results

    def hand_down(begin: int, stride: int) -> None:
        for item in range(begin, len(inputs.points), stride):
            module.gather(
                item, plan.starts, records, plan.prepared, plan.vertices, inputs.points, inputs.faces,
                inputs.attribute_faces, inputs.softness, settings.perspective, settings.two_sided, _guard(plan.prepared),
                inputs.grids[item].spacing, by_points, by_attributes, by_softness,
            )  # fmt: skip

    _in_threads(hand_down)


def _rounds(inputs: Inputs, settings: RasterSettings, module: ModuleType) -> Iterator[tuple[int, int, Plan]]:
    """Plans for as many items at a time as keep the number of pairs bounded; yields (first, last, plan)."""
    items, count = len(inputs.points), len(inputs.faces)
    if items == 0:
        return
    dtype = inputs.points.dtype
    vertices = np.empty((items, inputs.points.shape[1], 6), dtype)
    prepared = np.empty((items, count, module.FACE), dtype)
    starts = np.zeros((items, count), np.int64)
    tile_counts = np.zeros((items, _tiles(settings, module)), np.int64)
    broken = np.zeros(items, np.bool_)
    reaches = [_reach(inputs, item, settings) for item in range(items)]

    def prepare(begin: int, stride: int) -> None:
        for item in range(begin, items, stride):
            grid, near = inputs.grids[item], inputs.softness[item, 2]
            module.project(inputs.points[item], near, settings.perspective, grid.spacing, grid.margin, vertices[item])
            flip = FLIP_AREA / grid.spacing**2
            broken[item] = module.prepare(
                vertices[item], inputs.faces, settings.two_sided, _guard(prepared), flip, prepared[item]
            ) or not np.isfinite(inputs.softness[item]).all()  # fmt: skip
            if not broken[item]:
                size = grid.rows, grid.columns
                module.count_pairs(prepared[item], reaches[item], *size, starts[item], tile_counts[item], 0)

    _in_threads(prepare)
    pairs = starts.sum(1)
    first = 0
    while first < items:
        last = first + 1
        while last < items and pairs[first : last + 1].sum() <= _ROUND:
            last += 1
        yield first, last, _plan(first, last, inputs, module, vertices, prepared, starts, tile_counts, broken, reaches)
        first = last


def _plan(
    first: int, last: int, inputs: Inputs, module: ModuleType, vertices: np.ndarray, prepared: np.ndarray,
    counts: np.ndarray, tile_counts: np.ndarray, broken: np.ndarray, reaches: list,
) -> Plan:  # fmt: skip
    count, tiles = len(inputs.faces), tile_counts.shape[1]
    starts, tile_starts = _offsets(counts[first:last]), _offsets(tile_counts[first:last])
    faces_of, pairs_of = np.empty(starts[-1], np.int64), np.empty(starts[-1], np.int64)
    cursor = tile_starts[:-1].copy()

    def fill(begin: int, stride: int) -> None:
        for item in range(begin, last - first, stride):
            if not broken[first + item]:
                grid = inputs.grids[first + item]
                own = starts[item * count : (item + 1) * count]
                module.list_pairs(
                    prepared[first + item], reaches[first + item], grid.rows, grid.columns, item * count, own, cursor,
                    item * tiles, faces_of, pairs_of,
                )  # fmt: skip

    _in_threads(fill)
    flat = prepared[first:last].reshape(-1, prepared.shape[-1])
    wrong = [int(i) for i in np.flatnonzero(broken[first:last])]
    return Plan(vertices[first:last], flat, starts, tile_starts, faces_of, pairs_of, wrong)


def _reach(inputs: Inputs, item: int, settings: RasterSettings) -> Any:
    scale = inputs.softness[item, 0] / inputs.grids[item].spacing
    return inputs.points.dtype.type(settings.reach * np.sqrt(settings.df) * scale)


def _offsets(counts: np.ndarray) -> np.ndarray:
    """Where each one's entries begin, and where the last ends."""
    return np.concatenate([np.zeros(1, np.int64), np.cumsum(counts.reshape(-1))])


def _tiles(settings: RasterSettings, module: ModuleType) -> int:
    return -(-settings.height // module.LANES) * -(-settings.width // module.LANES)


def _numbers(settings: RasterSettings) -> np.ndarray:
    """df, the reach in sigmas, and the power of the bounded sum or 0 for the probabilistic one."""
    return np.array([settings.df, settings.reach, _power(settings)], np.float64)


def _power(settings: RasterSettings) -> float:
    return float(settings.conorm.k) if isinstance(settings.conorm, BoundedSum) else 0.0


# -- samples to pictures, and back


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
        normals = _flat(tensors[7], lead)
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
    samples = Samples(new(plane, dtype), new(plane, dtype), new((*plane, channels + 1), dtype))
    for item, grid in enumerate(inputs.grids):
        if grid.wide:
            # What lies beyond the samples is never read, but must not look like NaN to those who save it
            for array in samples:
                array[item] = 0
    return samples


def _seen(item: int, grid: Grid, samples: Samples, settings: RasterSettings) -> tuple[np.ndarray, np.ndarray]:
    """Totals (H, W) and means (H, W, C + 1) at an item's pixels."""
    total, mean = samples.total[item], samples.mean[item]
    if not grid.wide:
        return total, mean
    both = np.concatenate([total[..., None], mean], -1)
    pixels = grid.to_pixels(both, (settings.height, settings.width))
    return np.ascontiguousarray(pixels[..., 0]), np.ascontiguousarray(pixels[..., 1:])


def _forward(tensors: list[Tensor], settings: RasterSettings, paint: Callable[..., None]) -> Outputs:
    """Samples, then `paint(module, item, first, last, total, mean, pictures)` of each item by rows."""
    inputs, module = _inputs(tensors, settings)
    samples = _samples(inputs, settings)
    broken = sample(inputs, settings, module, samples)
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
    sums = np.zeros((len(inputs.points), count))
    grads = [np.empty_like(samples.total), np.empty_like(samples.mean)]
    for item, grid in enumerate(inputs.grids):
        total, mean = _seen(item, grid, samples, settings)
        by_total, by_mean = grads[0][item], grads[1][item]
        blocks = _row_blocks(settings.height)
        partial = np.zeros((len(blocks), count))

        def work(
            i: int, _n: int, item=item, total=total, mean=mean, to=(by_total, by_mean), blocks=blocks, sums=partial
        ):
            paint_back(module, item, *blocks[i], total, mean, *to, sums[i])

        spread(work, [(i, len(blocks)) for i in range(len(blocks))])
        # In order: the same bits for any number of threads
        sums[item] = partial.sum(0)
        if grid.wide:
            found = grid.to_samples(np.concatenate([by_total[..., None], by_mean], -1))
            grads[0][item], grads[1][item] = found[..., 0], found[..., 1:]
    return pull(inputs, settings, module, samples, grads), sums, inputs


def _row_blocks(height: int) -> list[tuple[int, int]]:
    """Rows by eight blocks, whatever the number of threads."""
    step = max(1, -(-height // 8))
    return [(first, min(first + step, height)) for first in range(0, height, step)]


def _by_rows(height: int, work: Callable[[int, int], None]) -> None:
    spread(work, _row_blocks(height))


def render_attributes_forward(tensors: list[Tensor], settings: RasterSettings) -> Outputs:
    """Outputs, and per sample: total of the conorm, log normaliser, means of attributes and depth."""
    background = _flat(tensors[2], tensors[0].dim() - 2)

    def paint(module, item, first, last, total, mean, pictures):
        module.composite(first, last, total, mean, background[item], _power(settings), *pictures)

    return _forward(tensors, settings, paint)


def render_attributes_backward(
    grads: list[Tensor], tensors: list[Tensor], saved: list[Tensor], settings: RasterSettings, needs: list[bool]
) -> list[Tensor | None]:
    lead = tensors[0].dim() - 2
    background = _flat(tensors[2], lead)
    pictures = [_flat(g, lead) for g in grads]

    def paint_back(module, item, first, last, total, mean, by_total, by_mean, sums):
        own = [p[item] for p in pictures]
        module.composite_back(
            first, last, total, mean, background[item], _power(settings), *own, by_total, by_mean, sums
        )

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
    background, matrix, eye, lights = (_flat(tensors[i], lead) for i in (2, 6, 8, 9))
    shading = settings.shading
    assert shading is not None

    def of(item: int) -> tuple:
        return (
            background[item], matrix[item], eye[item], lights[item], np.array(shading.kinds, np.int64), _power(settings),
            settings.perspective, settings.colored, shading.two_sided, *_gloss(shading, background),
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
    lights = tensors[9].shape[-2]

    def paint_back(module, item, first, last, total, mean, by_total, by_mean, sums):
        own = [p[item] for p in pictures]
        module.shade_back(first, last, total, mean, *arguments(item), *own, by_total, by_mean, sums)

    count = kernels_for(tensors[0], settings.half_df).PIXEL_SUMS + LIGHT * lights
    (by_points, by_table, by_softness), sums, inputs = _backward(tensors, saved, settings, count, paint_back)
    by_attributes, by_normals = _untangled(by_table, tensors, settings, inputs)
    by_points, by_matrix = _to_the_world(by_points, tensors)
    by_matrix = by_matrix + sums[:, 7:19].reshape(-1, 3, 4)
    found = [
        by_points, by_attributes, sums[:, :4], by_softness, None, None, by_matrix, by_normals, sums[:, 4:7], sums[:, 19:]
    ]  # fmt: skip
    return [None if a is None else _like(a, t) for a, t in zip(found, tensors, strict=True)]


def _untangled(
    by_table: np.ndarray, tensors: list[Tensor], settings: RasterSettings, inputs: Inputs
) -> tuple[np.ndarray, np.ndarray]:
    """Gradients by attributes and by normals, from those by the table that `_inputs` made of them."""
    attributes, normals = tensors[1], tensors[7]
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

        def work(block: int, _n: int, own=own, i=i, by_eye=by_eye, by_lights=by_lights) -> None:
            to = (results[0][i], results[1][i], results[2][i], by_eye[block], by_lights[block])
            module.illuminate_back(*blocks[block], *own, *to)

        spread(work, [(block, len(blocks)) for block in range(len(blocks))])
        results[3][i], results[4][i] = by_eye.sum(0), by_lights.sum(0)
    return [_like(a, t) for a, t in zip(results, tensors, strict=True)]


def _flat(t: Tensor, lead: int) -> np.ndarray:
    """A contiguous array with one batch dimension."""
    shape = t.shape[lead:]
    return t.detach().reshape(int(np.prod(t.shape[:lead], dtype=np.int64)), *shape).contiguous().numpy()


def _like(array: np.ndarray, t: Tensor) -> Tensor:
    return torch.from_numpy(np.ascontiguousarray(array)).to(t.dtype).reshape(t.shape)


def _guard(array: np.ndarray) -> Any:
    return array.dtype.type(EDGE_GUARD if array.dtype == np.float32 else EDGE_GUARD**2)


def _in_threads(work: Callable[[int, int], None]) -> None:
    """work(i, n) for i below n, at once."""
    spread(work, [(i, workers()) for i in range(workers())])

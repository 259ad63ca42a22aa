"""The rasteriser on the CPU: prepare faces, list them per tile, stream each tile, and back.

Threads take every n-th tile; what each pair of face and tile adds to a gradient is written to a place of its own and summed
face by face in order, so results are the same bits for any number of threads.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from algonet.core.codegen import generate as codegen
from algonet.core.threads import spread, workers
from algonet.relax import BoundedSum

from ..settings import EDGE_GUARD, RasterSettings, decode, result_shapes
from .numba_edges import instance

#: Pairs of face and tile whose gradients are kept at once; more are done in several rounds of items.
_ROUND = 1 << 20


@functools.cache
def kernels(precision: str, half: int) -> ModuleType:
    """The templates' functions for one precision and df / 2."""
    texts = [
        Path(__file__).with_name(f"numba_{name}.py").read_text("utf-8") for name in ("faces", "forward", "backward")
    ]
    before = texts[0].split("# <instance>\n")[0]
    after = "".join(text.split("# </instance>\n")[1] for text in texts)
    return codegen.load(f"render_{precision}_{half}", f"{before}{instance(precision, half)}{after}")


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
    points: np.ndarray
    attributes: np.ndarray
    background: np.ndarray
    softness: np.ndarray
    faces: np.ndarray
    attribute_faces: np.ndarray

    def items(self, first: int, last: int) -> Inputs:
        points, attributes, background, softness = (a[first:last] for a in self[:4])
        return Inputs(points, attributes, background, softness, self.faces, self.attribute_faces)


def fake(tensors: list[Tensor], settings: str) -> tuple[list[Tensor], list[Tensor]]:
    points, attributes = tensors[:2]
    shape = decode(settings)
    pixels = (*points.shape[:-2], shape.height, shape.width)
    saved = [points.new_empty(pixels), points.new_empty(pixels), points.new_empty(*pixels, attributes.shape[-1] + 1)]
    return result_shapes(tensors, shape), [*saved, points.new_empty(pixels)]


def forward(tensors: list[Tensor], settings: str) -> tuple[list[Tensor], list[Tensor]]:
    """Outputs, and per pixel: total of the conorm, log normaliser, means of attributes and depth, silhouette."""
    chosen = decode(settings)
    inputs, module = _inputs(tensors, chosen)
    items, channels = len(inputs.points), inputs.attributes.shape[-1]
    pixels = (items, chosen.height, chosen.width)
    like = tensors[0]
    image, mean = like.new_empty(*pixels, channels), like.new_empty(*pixels, channels + 1)
    silhouette, depth, total, norm = (like.new_empty(pixels) for _ in range(4))
    outputs = [t.numpy() for t in (image, silhouette, depth, total, norm, mean)]
    for first, last, plan in _rounds(inputs, chosen, module):
        part = inputs.items(first, last)
        parts = [a[first:last] for a in outputs]
        arguments = (plan.tile_starts, plan.faces_of, plan.prepared, part.faces, part.attribute_faces, *part[1:4])

        def work(begin: int, stride: int, arguments=arguments, parts=parts) -> None:
            module.forward_tiles(begin, stride, *arguments, _numbers(chosen), *parts)

        _in_threads(work)
        for item in plan.broken:
            for array in outputs[:3]:
                array[first + item] = np.nan
    batch = like.shape[:-2]
    results = [t.reshape(*batch, *t.shape[1:]) for t in (image, silhouette, depth)]
    # The silhouette is kept apart: an output may be changed in place by its user
    return results, [t.reshape(*batch, *t.shape[1:]) for t in (total, norm, mean, silhouette.clone())]


def backward(
    grads: list[Tensor], tensors: list[Tensor], saved: list[Tensor], settings: str, needs: list[bool]
) -> list[Tensor]:
    chosen = decode(settings)
    inputs, module = _inputs(tensors, chosen)
    shared = [tensors[4].new_empty(0), tensors[5].new_empty(0)]
    total, norm, mean, silhouette = (_flat(t, tensors[0].dim() - 2) for t in saved)
    grad_image, grad_silhouette, grad_depth = (_flat(g, tensors[0].dim() - 2) for g in grads)
    results = [np.zeros_like(a) for a in inputs[:4]]
    by_background = results[2]
    if needs[2]:
        open_ = 1 - silhouette
        by_background[:, :-1] = (open_[..., None] * grad_image).sum((1, 2))
        by_background[:, -1] = (open_ * grad_depth).sum((1, 2))
    if needs[0] or needs[1] or needs[3]:
        per_pixel = (silhouette, total, norm, mean, grad_image, grad_silhouette, grad_depth)
        for first, last, plan in _rounds(inputs, chosen, module):
            part = inputs.items(first, last)
            views = [a[first:last] for a in results]
            _backward_round(part, plan, chosen, module, [a[first:last] for a in per_pixel], views)
    found = [torch.from_numpy(a).reshape(t.shape) for a, t in zip(results, tensors[:4], strict=True)]
    return [*found, *shared]


def _backward_round(
    inputs: Inputs, plan: Plan, chosen: RasterSettings, module: ModuleType, per_pixel: list, results: list
) -> None:
    records = np.empty((max(1, plan.starts[-1]), module.SUMS + 3 * inputs.attributes.shape[-1]), plan.prepared.dtype)
    lists = (plan.tile_starts, plan.faces_of, plan.pairs_of, plan.prepared)

    def work(begin: int, stride: int) -> None:
        module.backward_tiles(
            begin,
            stride,
            *lists,
            inputs.faces,
            inputs.attribute_faces,
            *inputs[1:4],
            _numbers(chosen),
            *per_pixel,
            records,
        )

    _in_threads(work)
    by_points, by_attributes, _, by_softness = results

    def hand_down(begin: int, stride: int) -> None:
        for item in range(begin, len(inputs.points), stride):
            module.gather(
                item, plan.starts, records, plan.prepared, plan.vertices, inputs.points, inputs.faces,
                inputs.attribute_faces, inputs.softness, chosen.perspective, chosen.two_sided, _guard(plan.prepared),
                by_points, by_attributes, by_softness,
            )  # fmt: skip

    _in_threads(hand_down)


def _rounds(inputs: Inputs, chosen: RasterSettings, module: ModuleType):
    """Plans for as many items at a time as keep the number of pairs bounded; yields (first, last, plan)."""
    items, count = len(inputs.points), len(inputs.faces)
    if items == 0:
        return
    dtype = inputs.points.dtype
    vertices = np.empty((items, inputs.points.shape[1], 6), dtype)
    prepared = np.empty((items, count, module.FACE), dtype)
    starts = np.zeros((items, count), np.int64)
    tiles = _tiles(chosen, module)
    tile_counts = np.zeros((items, tiles), np.int64)
    broken = np.zeros(items, np.bool_)

    def prepare(begin: int, stride: int) -> None:
        for item in range(begin, items, stride):
            near, scale = inputs.softness[item, 2], inputs.softness[item, 0]
            module.project(inputs.points[item], near, chosen.perspective, vertices[item])
            broken[item] = module.prepare(
                vertices[item], inputs.faces, chosen.two_sided, _guard(prepared), prepared[item]
            ) or not np.isfinite(inputs.softness[item]).all()  # fmt: skip
            if not broken[item]:
                reach = dtype.type(chosen.reach * np.sqrt(chosen.df) * scale)
                size = chosen.height, chosen.width
                module.count_pairs(prepared[item], reach, *size, starts[item], tile_counts[item], 0)

    _in_threads(prepare)
    pairs = starts.sum(1)
    first = 0
    while first < items:
        last = first + 1
        while last < items and pairs[first : last + 1].sum() <= _ROUND:
            last += 1
        yield first, last, _plan(first, last, inputs, chosen, module, vertices, prepared, starts, tile_counts, broken)
        first = last


def _plan(
    first: int, last: int, inputs: Inputs, chosen: RasterSettings, module: ModuleType,
    vertices: np.ndarray, prepared: np.ndarray, counts: np.ndarray, tile_counts: np.ndarray, broken: np.ndarray,
) -> Plan:  # fmt: skip
    count, tiles = len(inputs.faces), tile_counts.shape[1]
    starts, tile_starts = _offsets(counts[first:last]), _offsets(tile_counts[first:last])
    faces_of, pairs_of = np.empty(starts[-1], np.int64), np.empty(starts[-1], np.int64)
    cursor = tile_starts[:-1].copy()

    def fill(begin: int, stride: int) -> None:
        for item in range(begin, last - first, stride):
            if not broken[first + item]:
                own = starts[item * count : (item + 1) * count]
                reach = prepared.dtype.type(chosen.reach * np.sqrt(chosen.df) * inputs.softness[first + item, 0])
                module.list_pairs(
                    prepared[first + item], reach, chosen.height, chosen.width, item * count, own, cursor, item * tiles,
                    faces_of, pairs_of,
                )  # fmt: skip

    _in_threads(fill)
    flat = prepared[first:last].reshape(-1, prepared.shape[-1])
    wrong = [int(i) for i in np.flatnonzero(broken[first:last])]
    return Plan(vertices[first:last], flat, starts, tile_starts, faces_of, pairs_of, wrong)


def _offsets(counts: np.ndarray) -> np.ndarray:
    """Where each one's entries begin, and where the last ends."""
    return np.concatenate([np.zeros(1, np.int64), np.cumsum(counts.reshape(-1))])


def _tiles(chosen: RasterSettings, module: ModuleType) -> int:
    return -(-chosen.height // module.LANES) * -(-chosen.width // module.LANES)


def _numbers(chosen: RasterSettings) -> np.ndarray:
    """df, the reach in sigmas, and the power of the bounded sum or 0 for the probabilistic one."""
    power = float(chosen.conorm.k) if isinstance(chosen.conorm, BoundedSum) else 0.0
    return np.array([chosen.df, chosen.reach, power], np.float64)


def _inputs(tensors: list[Tensor], chosen: RasterSettings) -> tuple[Inputs, ModuleType]:
    lead = tensors[0].dim() - 2
    points, attributes, background, softness = (_flat(t, lead) for t in tensors[:4])
    faces, attribute_faces = (t.detach().to(torch.int64).contiguous().numpy() for t in tensors[4:])
    precision = "float64" if tensors[0].dtype == torch.float64 else "float32"
    inputs = Inputs(points, attributes, background, softness, faces, attribute_faces)
    return inputs, kernels(precision, chosen.half_df)


def _flat(t: Tensor, lead: int) -> np.ndarray:
    """A contiguous array with one batch dimension."""
    shape = t.shape[lead:]
    return t.detach().reshape(int(np.prod(t.shape[:lead], dtype=np.int64)), *shape).contiguous().numpy()


def _guard(array: np.ndarray) -> Any:
    return array.dtype.type(EDGE_GUARD if array.dtype == np.float32 else EDGE_GUARD**2)


def _in_threads(work: Callable[[int, int], None]) -> None:
    """work(i, n) for i below n, at once."""
    spread(work, [(i, workers()) for i in range(workers())])

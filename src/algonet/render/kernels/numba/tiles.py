"""Faces to samples and back: prepare faces, list them per tile, stream each tile."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np
import torch

from algonet.core.cache import cached
from algonet.core.codegen import generate as codegen
from algonet.core.threads import spread, workers

from ...constants import EDGE_GUARD
from ...settings import RasterSettings
from .edges import prelude
from .grid import Grid

#: Pairs of face and tile whose gradients are kept at once; more are done in several rounds of items.
_ROUND = 1 << 20
TEMPLATES = ("faces", "forward", "backward", "pixels")


@cached
def kernels(precision: str, half: int) -> ModuleType:
    """The templates' functions for one precision and df / 2."""
    paths = [Path(__file__).with_name(f"{name}.py") for name in TEMPLATES]
    return codegen.load_template(f"render_{precision}_{half}", prelude(precision, half), *paths)


def kernels_for(like: Any, half: int = 4) -> ModuleType:
    return kernels("float64" if like.dtype == torch.float64 else "float32", half)


class Run(NamedTuple):
    """What the passes of all calls of one signature share: `numbers` are the noise's df, its reach in sigmas, the power of the
    bounded sum, and whether there is perspective and both sides are seen; `guard` that of edges without length."""

    settings: RasterSettings
    module: ModuleType
    numbers: np.ndarray
    guard: Any

    @staticmethod
    def of(settings: RasterSettings, like: Any) -> Run:
        """For tensors of the precision of `like`."""
        module = kernels_for(like, settings.half_df)
        numbers = [settings.df, settings.reach, settings.power, settings.perspective, settings.two_sided]
        guard = np.float64(EDGE_GUARD**2) if like.dtype == torch.float64 else np.float32(EDGE_GUARD)
        return Run(settings, module, np.array(numbers, np.float64), guard)


class BinnedFaces(NamedTuple):
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
    """Per sample: the coverage of front and back, the limit of what is shown, and means of the channels and, last, of depth: of
    all that is shown, and of what is just being hidden."""

    total: np.ndarray
    limit: np.ndarray
    mean: np.ndarray
    edge: np.ndarray


def sample(inputs: Inputs, run: Run, samples: Samples) -> list[int]:
    """Fill the samples; returns the items that hold something that is not a number."""
    broken = []
    for first, last, binned in rounds(inputs, run):
        part = inputs.items(first, last)
        parts = [a[first:last] for a in samples]
        lists = (binned.tile_starts, binned.faces_of, binned.prepared, part.faces, part.attribute_faces)
        arguments = (*lists, part.attributes, part.sample_softness, part.sizes, run.numbers, *parts)
        _in_threads(run.module.forward_tiles, *arguments)
        broken += [first + item for item in binned.broken]
    return broken


def pull(inputs: Inputs, run: Run, samples: Samples, grads: list[np.ndarray]) -> list[np.ndarray]:
    """Gradients by points, attributes and softness, from those by the samples' totals and means."""
    results = [np.zeros_like(a) for a in inputs[:3]]
    for first, last, binned in rounds(inputs, run):
        seen = [a[first:last] for a in (*samples, *grads)]
        _pull_round(inputs.items(first, last), binned, run, seen, [a[first:last] for a in results])
    return results


def _pull_round(inputs: Inputs, binned: BinnedFaces, run: Run, seen: list, results: list) -> None:
    width = run.module.SUMS + 3 * inputs.attributes.shape[-1]
    records = np.empty((max(1, binned.starts[-1]), width), binned.prepared.dtype)
    lists = (
        binned.tile_starts,
        binned.faces_of,
        binned.pairs_of,
        binned.prepared,
        inputs.faces,
        inputs.attribute_faces,
    )
    arguments = (*lists, inputs.attributes, inputs.sample_softness, inputs.sizes, run.numbers, *seen, records)
    _in_threads(run.module.backward_tiles, *arguments)
    by_points, by_attributes, by_softness = results

    def hand_down(begin: int, stride: int) -> None:
        for item in range(begin, len(inputs.points), stride):
            run.module.gather(
                item, binned.starts, records, binned.prepared, binned.vertices, inputs.points, inputs.faces,
                inputs.attribute_faces, inputs.softness, run.settings.perspective, run.guard,
                inputs.grids[item].spacing, by_points, by_attributes, by_softness,
            )  # fmt: skip

    _in_threads(hand_down)


def rounds(inputs: Inputs, run: Run) -> Iterator[tuple[int, int, BinnedFaces]]:
    """Binned faces of as many items at a time as keep the number of pairs bounded; yields (first, last, binned)."""
    items, count, settings, module = len(inputs.points), len(inputs.faces), run.settings, run.module
    if items == 0:
        return
    dtype = inputs.points.dtype
    vertices = np.empty((items, inputs.points.shape[1], 6), dtype)
    prepared = np.empty((items, count, module.FACE), dtype)
    starts = np.zeros((items, count), np.int64)
    tile_counts = np.zeros((items, _tiles(settings, module)), np.int64)
    broken = np.zeros(items, np.bool_)
    spacings = np.array([grid.spacing for grid in inputs.grids], dtype)
    reaches = (run.numbers[1] * np.sqrt(run.numbers[0]) * (inputs.softness[:, 0] / spacings)).astype(dtype)

    def prepare(begin: int, stride: int) -> None:
        for item in range(begin, items, stride):
            grid, near = inputs.grids[item], inputs.softness[item, 2]
            module.project(inputs.points[item], near, settings.perspective, grid.spacing, grid.margin, vertices[item])
            broken[item] = module.prepare(
                vertices[item], inputs.faces, inputs.softness[item, 0] / grid.spacing, settings.perspective, settings.two_sided,
                run.guard, grid.spacing, prepared[item],
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
        yield (
            first,
            last,
            _bin_faces(first, last, inputs, module, vertices, prepared, starts, tile_counts, broken, reaches),
        )
        first = last


def _bin_faces(
    first: int, last: int, inputs: Inputs, module: ModuleType, vertices: np.ndarray, prepared: np.ndarray,
    counts: np.ndarray, tile_counts: np.ndarray, broken: np.ndarray, reaches: np.ndarray,
) -> BinnedFaces:  # fmt: skip
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
    return BinnedFaces(vertices[first:last], flat, starts, tile_starts, faces_of, pairs_of, wrong)


def _offsets(counts: np.ndarray) -> np.ndarray:
    """Where each one's entries begin, and where the last ends."""
    return np.concatenate([np.zeros(1, np.int64), np.cumsum(counts.reshape(-1))])


def _tiles(settings: RasterSettings, module: ModuleType) -> int:
    return -(-settings.height // module.LANES) * -(-settings.width // module.LANES)


def _in_threads(work: Callable[..., None], *arguments: Any) -> None:
    """work(i, n, *arguments) for i below n, at once."""
    count = workers()
    spread(work, [(i, count, *arguments) for i in range(count)])

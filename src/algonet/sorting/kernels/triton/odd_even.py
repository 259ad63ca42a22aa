"""Odd-even transposition on the GPU: how rows map to programs, what is saved for backward, and the launches."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from algonet.core.cache import cached
from algonet.core.launch import Launch

from ...reference import SortSettings
from .source import SCRATCH, has_light_tails, kernels, laid_out, processors

#: Lines up to this long are one row of a program's table, one warp; longer ones are cut into groups of CORE.
WHOLE, CORE = 128, 64
#: Layers that backward goes back at a time; the halo of a group, CORE / 2, is twice as wide: see the kernels.
SEGMENT = 16
#: Longer lines are cut into chunks of so many items, with so many more on both sides, where there are processors for all of
#: them. Each launch then runs as many layers as there are items more.
CHUNKS = ((128, 192), (256, 128))
#: Channels of the payload that go through the exchanges together.
CHANNELS = 4
#: What forward saves for backward, in bytes; backward goes through the rows in parts where it would be more.
SAVED = 32 * 2**20
#: All layers of a sort go into scratch, and nothing is saved, where they take no more than this: half a second-level cache.
CACHED = 24 * 2**20


class Shape(NamedTuple):
    """How lines map to programs, see the kernels; `threads` hold a group with its halo."""

    lines: int
    chunks: int
    step: int
    reach: int
    groups: int
    threads: int
    core: int
    halo: int
    warps: int


def shape_of(n: int, lines: int, workers: int) -> Shape:
    places = max(4, 1 << max(n - 1, 0).bit_length())
    if places <= WHOLE:
        threads = places // 4
        count = max(1, 32 // threads)
        while count * 2 * threads <= 128 and lines > 4000 * count:
            count *= 2
        return Shape(count, 1, places, 0, 1, threads, places, 0, 1)
    for step, reach in CHUNKS:
        chunks, groups = -(-n // step), (step + 2 * reach) // CORE
        if places > groups * CORE and lines * chunks <= workers:
            return Shape(1, chunks, step, reach, groups, CORE // 2, CORE, CORE // 2, min(16, groups))
    groups = max(2, places // CORE)
    return Shape(1, 1, groups * CORE, 0, groups, CORE // 2, CORE, CORE // 2, min(16, groups))


class OddEvenSort:
    """Everything about a call that does not depend on its numbers, computed once.

    A line is a row with a block of up to CHANNELS channels of its payload; `states` counts its items and channels.
    """

    def __init__(
        self, settings: SortSettings, shape: torch.Size, channels: int, dtype: torch.dtype, device: torch.device
    ):
        self.settings = settings
        self.device, self.dtype = device, dtype
        self.n = n = shape[-1]
        self.rows = shape.numel() // n
        self.channels = channels
        self.blocks = max(1, -(-channels // CHANNELS))
        self.states = 1 + -(-channels // self.blocks)
        self.lines = self.rows * self.blocks
        self.depth = self.settings.table(n).depth
        self.shape = shape_of(n, self.lines, processors(device))
        self.tiles = -(-self.lines // self.shape.lines) * self.shape.chunks
        self._choose_segments(shape)
        # Items of scratch that a program of backward takes; as many programs as there is work for, the device can hold and
        # SCRATCH can feed
        count, _, _, _, groups, threads, core, _, _ = self.shape
        self.ahead = int(self.segments > 1)
        self.scratch = self.states * count * groups * (2 * core + (1 + self.ahead) * self.segment * 5 * threads // 2)
        most = max(1, min(16 * processors(device), SCRATCH // (self.scratch * dtype.itemsize)))
        self.programs = self.tiles if self.shape.chunks > 1 else min(self.tiles, most)
        self._common = {
            "lines": self.lines, "chunks": self.shape.chunks, "n": n, "channels": channels, "blocks": self.blocks,
            "layers": self.depth, "LIGHT": has_light_tails(settings.sigmoid), "FIXED": settings.steps is not None,
            "MASKED": settings.masked,
            "S": self.states, "LINES": count, "STEP": self.shape.step, "REACH": self.shape.reach, "GROUPS": groups,
            "H": threads, "CORE": core, "HALO": self.shape.halo, "warps": self.shape.warps,
        }  # fmt: skip
        self._forward: dict[bool, list[Launch]] = {}
        self._backward: dict[tuple, list[Launch]] = {}

    def _choose_segments(self, shape: torch.Size) -> None:
        """How many layers backward goes back at a time, and what forward saves for that."""
        _, chunks, _, _, groups, threads, core, _, _ = self.shape
        size = self.dtype.itemsize
        everything = self.lines * self.states * (2 * core + self.depth * 5 * threads // 2) * size
        whole = groups == 1 and everything <= CACHED
        self.segment = self.depth + self.depth % 2 if whole else SEGMENT
        self.segments = -(-self.depth // self.segment)
        self.row_items = self.blocks * (self.segments - 1) * self.states * self.n
        self.saved_shape: tuple[int, ...] | None = None
        if 0 < self.rows * self.row_items * size <= SAVED:
            self.saved_shape = (*shape[:-1], self.row_items)
        elif chunks > 1 and self.segments > 1:
            # Launches that follow each other start from what was saved
            self.shape = shape_of(self.n, self.lines, 0)
            self.tiles = -(-self.lines // self.shape.lines)

    def forward(self, tensors: Sequence[Tensor]) -> tuple[list[Tensor], list[Tensor]]:
        """(values, payload), and what backward wants saved."""
        saved = None if self.saved_shape is None else tensors[0].new_empty(self.saved_shape)
        return self._sort(tensors, saved), [] if saved is None else [saved]

    def _sort(self, tensors: Sequence[Tensor], saved: Tensor | None) -> list[Tensor]:
        x, lengths, steepness = tensors[0].contiguous(), tensors[1], tensors[2]
        values = torch.empty_like(x)
        payload, moved, scratch = x, x, x
        if self.channels:
            payload = tensors[3].contiguous()
            moved = torch.empty_like(payload)
        if self.shape.groups > 1:
            scratch = x.new_empty(self.tiles * 2 * self.states * self.shape.groups * self.shape.core)
        launches = self._forward.get(saved is not None) or self._forward_launches(saved is not None)
        for launch in launches:
            launch.start(
                x_ptr=x, payload_ptr=payload, values_ptr=values, sorted_ptr=moved, length_ptr=lengths,
                steepness_ptr=steepness, saved_ptr=x if saved is None else saved, scratch_ptr=scratch,
            )  # fmt: skip
        return [values, moved] if self.channels else [values]

    def backward(
        self, grads: Sequence[Tensor | None], tensors: Sequence[Tensor], saved: Sequence[Tensor], needs: Sequence[bool]
    ) -> list[Tensor | None]:
        """The gradients by items, (lengths,) steepness and payload."""
        if self.segments > 1 and not saved:
            return self._in_parts(grads, tensors, needs)
        x, lengths, steepness, steep = tensors[0].contiguous(), tensors[1], tensors[2], needs[2]
        grad, grad_step = laid_out(grads[0], x)
        payload, grad_sorted, sorted_step = x, x, 0
        grad_x = torch.empty_like(x) if self.blocks == 1 else x.new_empty(*x.shape[:-1], self.blocks, self.n)
        grad_payload = grad_x
        if self.channels:
            payload = tensors[3].contiguous()
            grad_sorted, sorted_step = laid_out(grads[1], x)
            grad_payload = torch.empty_like(payload)
        launches = self._backward.get((steep, grad_step, sorted_step))
        if launches is None:
            launches = self._backward_launches(steep, grad_step, sorted_step)
        part = x.new_empty(len(launches) * self.programs) if steep else x
        scratch = x.new_empty(self.programs * self.scratch)
        slopes = x.new_empty(2 * self.lines * self.states * self.n) if len(launches) > 1 else x
        for launch in launches:
            launch.start(
                x_ptr=x, payload_ptr=payload, length_ptr=lengths, steepness_ptr=steepness, grad_ptr=grad,
                grad_sorted_ptr=grad_sorted, grad_x_ptr=grad_x, grad_payload_ptr=grad_payload, grad_steepness_ptr=part,
                saved_ptr=saved[0] if saved else x, slopes_ptr=slopes, scratch_ptr=scratch,
            )  # fmt: skip
        found: list[Any] = [grad_x if self.blocks == 1 else grad_x.sum(-2), None, part.sum() if steep else None]
        return [*found, grad_payload] if self.channels else found

    def _in_parts(self, grads: Sequence[Tensor | None], tensors: Sequence[Tensor], needs: Sequence[bool]) -> list[Any]:
        """Backward without saved states: sort again, so many rows at a time that their states fit."""
        x, lengths, steepness = tensors[:3]
        flat = [t.reshape(self.rows, *t.shape[x.dim() - 1 :]) for t in (x, *tensors[3:])]
        slopes: list[Any] = [None if g is None else g.reshape(f.shape) for g, f in zip(grads, flat, strict=True)]
        lengths = lengths.reshape(-1)
        most = max(1, SAVED // (self.row_items * self.dtype.itemsize))
        found: list[list[Any]] = []
        for begin in range(0, self.rows, most):
            rows = slice(begin, begin + most)
            part = [
                flat[0][rows],
                lengths[rows] if self.settings.masked else lengths,
                steepness,
                *(f[rows] for f in flat[1:]),
            ]
            sort = odd_even_sort(self.settings, part[0].shape, self.channels, self.dtype, self.device)
            states = x.new_empty(sort.rows, sort.row_items)
            sort._sort(part, states)
            found.append(sort.backward([None if g is None else g[rows] for g in slopes], part, [states], needs))
        columns = list(zip(*found, strict=True))
        joined = [torch.cat(columns[0]).view(x.shape), *(torch.cat(columns[3]).view(t.shape) for t in tensors[3:])]
        return [joined[0], None, torch.stack(columns[2]).sum() if needs[2] else None, *joined[1:]]

    def _forward_launches(self, save: bool) -> list[Launch]:
        segment, segments = self.segment, self.segments
        if not save:
            # Nothing starts from between the segments, so each may be as long as the halo allows
            segment = self.shape.halo if self.shape.groups > 1 else self.depth + self.depth % 2
            segments = -(-self.depth // segment)
        together = self.shape.reach // segment if self.shape.chunks > 1 else segments
        kernel = kernels("odd_even", self.settings.sigmoid).odd_even_forward_kernel
        self._forward[save] = [
            Launch(
                kernel, self.tiles, **self._common, SAVE=save, segment=segment, segments=segments, begin=begin,
                end=min(begin + together, segments), every=max(1, self.shape.halo // segment),
            )
            for begin in range(0, segments, together)
        ]  # fmt: skip
        return self._forward[save]

    def _backward_launches(self, steep: bool, grad_step: int, sorted_step: int) -> list[Launch]:
        together = self.shape.reach // self.segment if self.shape.chunks > 1 else self.segments
        ends = range(self.segments, 0, -together)
        kernel = kernels("odd_even", self.settings.sigmoid).odd_even_backward_kernel
        launches = [
            Launch(
                kernel, self.programs, **self._common, STEEP=steep, AHEAD=self.ahead, segment=self.segment,
                segments=self.segments, begin=max(end - together, 0), end=end, turn=turn, tiles=self.tiles,
                programs=self.programs, grad_step=grad_step, sorted_step=sorted_step,
            )
            for turn, end in enumerate(ends)
        ]  # fmt: skip
        self._backward[steep, grad_step, sorted_step] = launches
        return launches


#: Of some of the rows there are two sizes: that of the last part, and that of all others.
odd_even_sort = cached(OddEvenSort)

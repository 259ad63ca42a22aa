"""What a call of the CUDA rasteriser comes to: sizes, memory layouts and launches, made once for calls of one form.

Small scenes take the device less time than the host takes to ask for them, so all that tensors' shapes, strides and types
decide is decided once and kept.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence

import torch
from torch import Tensor

from algonet.core.launch import Launch
from algonet.relax import BoundedSum

from ..settings import RasterSettings, decode
from .triton_backward import backward_kernel
from .triton_forward import forward_kernel
from .triton_math import COUNTERS, RECORD
from .triton_setup import bin_kernel, setup_kernel

#: Faces that a setup program takes, and their records and boxes are padded to.
BLOCK = 64
#: Least side of a bin in pixels, a multiple of the forward tile's; faces that a bin program takes at a time, and its warps.
BIN, BIN_STEP, BIN_WARPS = 32, 4096, 8
#: Places in an item's lists, per face and per bin. A bin that finds none left has its tiles look through all faces.
PLACES = (6, 64)
#: Up to so many faces a tile looks through all of them; binning would cost more.
UNBINNED = 2048
#: Width and height of a forward tile in pixels, its warps, and the registers that a thread may take in float32.
TILE: tuple[int, int, int, int | None] = (4, 8, 1, 72)
#: Pixels that a backward program takes at a time, its warps, and the registers that a thread may take in float32.
BACKWARD: tuple[int, int, int | None] = (32, 1, 96)
#: Faces with more pixels than this are cut into bands for the backward pass, as far as an item has this many places.
LARGE, JOBS = 4096, 512
#: From so many pixels on, rounding may send a pixel of a window to the line beside its own, and kernels look after that.
HUGE = 1 << 21
#: Attribute channels that one pass takes.
GROUP = 4
#: Bytes that records and lists of faces may take at a time; larger batches go in parts. Where there is but one part, its
#: records are kept for the backward pass; others are made again.
WORKSPACE = 14 << 20

Shape = tuple[int, ...]


class Plan:
    """A form of call: `passes` over channels and items, and how its tensors lie in memory."""

    def __init__(self, settings: str, shapes: Sequence[Shape], strides: Sequence[Shape], dtype: torch.dtype):
        self.settings = chosen = decode(settings)
        points, attributes, _, _, faces, *matrix = (shapes[i] for i in (0, 1, 2, 3, 4, *range(6, len(shapes))))
        self.world = bool(matrix)
        self.batch, self.items, self.vertices = points[:-2], math.prod(points[:-2]), points[-2]
        self.rows, self.channels, self.count = attributes[-2], attributes[-1], faces[0]
        self.height, self.width = chosen.height, chosen.width
        # float64 takes two registers for a number
        self.single = dtype == torch.float32
        self.blocks = -(-self.count // BLOCK)
        self.padded = self.blocks * BLOCK
        self.limit, self.jobs = bands(chosen)
        self.bin = bin_side(max(self.height, self.width)) if self.count > UNBINNED else 0
        self.bins_x = -(-self.width // self.bin) if self.bin else 0
        self.bins = self.bins_x * -(-self.height // self.bin) if self.bin else 0
        self.capacity = PLACES[0] * self.count + PLACES[1] * self.bins if self.bin else 0
        self.scratch = -(-(self.padded + self.capacity + 3 * self.bins) // 16) * 16 if self.bin else 0
        floats = [0, 1, 2, 3, *([6] if matrix else [])]
        steps = [item_stride(shapes[i], strides[i], 1 if i in (2, 3) else 2) for i in floats]
        #: Positions of tensors that must be copied to lie as kernels want them.
        self.copied = [i for i, step in zip(floats, steps, strict=True) if step is None]
        self.copied += [i for i in (4, 5) if strides[i] != (3, 1)]
        whole = [math.prod(shapes[i][-(1 if i in (2, 3) else 2) :]) for i in floats]
        self.steps = [w if s is None else s for s, w in zip(steps, whole, strict=True)]
        #: Numbers kept per pixel, of which two are loaded at once.
        self.notes = -(-(3 + self.channels) // 2) * 2
        self.size = 4 if self.single else 8
        self.passes = list(self._passes())
        #: Of the largest pass, its items and an item's numbers for records and boxes.
        self.most, self.work = max(p.items for p in self.passes), max(p.work for p in self.passes)
        #: Whether what is made of the faces is kept for the backward pass.
        self.keeps = len(self.passes) == 1
        self.shapes = ((*self.batch, self.height, self.width, self.channels), (*self.batch, self.height, self.width))
        self.kept = (*self.batch, self.height, self.width, self.notes)
        self.counters = COUNTERS.value + 2 * self.jobs if self.jobs or self.bin else 0

    def _passes(self):
        """Channels by groups, items as the workspace allows."""
        for first_channel in range(0, self.channels, GROUP):
            channels = min(GROUP, self.channels - first_channel)
            each = self.padded * (record_width(channels) + 4) * self.size + 4 * self.scratch
            most = min(max(1, WORKSPACE // max(1, each)), 65535)
            for first in range(0, max(self.items, 1), most):
                yield Pass(self, first_channel, channels, first, min(most, self.items - first))


class Pass:
    """Some channels of some items, and the launches that they take."""

    def __init__(self, plan: Plan, first_channel: int, channels: int, first: int, items: int):
        self.plan, self.first_channel, self.channels = plan, first_channel, channels
        self.first, self.items = first, items
        self.record = record_width(channels)
        #: Numbers per item for the records and boxes of its faces.
        self.work = plan.padded * (self.record + 4)
        self.setup = self._setup(plan.bin)
        self.setup_again = self._setup(0)
        self.list_bins = Launch(
            bin_kernel, (plan.bins, items), (plan.blocks, plan.bins_x, plan.bins, plan.capacity, plan.scratch),
            (plan.jobs, BLOCK, BIN_STEP), BIN_WARPS,
        )  # fmt: skip
        self.forward = self._forward()
        self._backward: dict[tuple, Launch] = {}

    def _setup(self, side: int) -> Launch:
        plan, settings = self.plan, self.plan.settings
        points, attributes, _, softness, *matrix = plan.steps
        return Launch(
            setup_kernel, (plan.blocks, self.items),
            (self.first, plan.count, plan.blocks, points, *(matrix or [0]), attributes, softness, self.work, plan.scratch,
             plan.channels, self.first_channel, plan.height, plan.width, plan.limit),
            (self.record, self.channels, plan.world, settings.perspective, settings.two_sided, BLOCK, settings.half_df,
             settings.reach, side, plan.jobs),
            2,
        )  # fmt: skip

    def _forward(self) -> Launch:
        plan = self.plan
        tx, ty, warps, registers = TILE
        across = -(-plan.width // tx)
        tiles = plan.bins * (plan.bin // tx) * (plan.bin // ty) if plan.bin else across * -(-plan.height // ty)
        return Launch(
            forward_kernel, (tiles, self.items),
            (self.first, plan.padded, plan.bins_x, plan.bins, plan.capacity, plan.height, plan.width, across, plan.steps[3],
             plan.steps[2], self.work, plan.scratch, plan.channels, self.first_channel),
            (self.record, self.channels, *constants(plan.settings), self.first_channel == 0, plan.notes, plan.bin, tx, ty),
            warps,
            registers if plan.single else None,
        )  # fmt: skip

    def backward(self, pictures: tuple[int, ...], softness: bool, pull: bool) -> Launch:
        """The backward kernel for gradients of pictures with these strides, with or without softness; `pull` brings the
        gradient by what the camera sees back to the world."""
        key = (pictures, softness, pull)
        found = self._backward.get(key)
        if found is None:
            found = self._backward[key] = self._make_backward(pictures, softness, pull)
        return found

    def _make_backward(self, pictures: tuple[int, ...], softness: bool, pull: bool) -> Launch:
        plan, settings = self.plan, self.plan.settings
        points, attributes, background, soft, *matrix = plan.steps
        into = (9 * plan.count, 3 * self.channels * plan.count)
        if not settings.deterministic:
            into = (3 * plan.vertices, plan.rows * plan.channels)
        return Launch(
            backward_kernel, ((plan.jobs + plan.count) * self.items, 1),
            (self.first, self.items, plan.count, plan.padded, plan.height, plan.width, soft, background, points,
             *(matrix or [0]), attributes, *into, self.work, plan.channels, self.first_channel, plan.limit, *pictures),
            (self.record, self.channels, *constants(settings), self.first_channel == 0, plan.notes, pictures[2] == 1,
             plan.height * plan.width > HUGE, plan.world, pull and plan.world, settings.perspective, settings.two_sided,
             softness, settings.deterministic, plan.jobs, BACKWARD[0]),
            BACKWARD[1],
            BACKWARD[2] if plan.single else None,
        )  # fmt: skip


_PLANS: dict[tuple, Plan] = {}


def plan_of(tensors: Sequence[Tensor], settings: str) -> Plan:
    """The plan for calls like this one."""
    key = (settings, tensors[0].device, *[(t.shape, t.stride(), t.dtype) for t in tensors])
    plan = _PLANS.get(key)
    if plan is None:
        if len(_PLANS) >= 1024:
            _PLANS.clear()
        shapes, strides = [tuple(t.shape) for t in tensors], [t.stride() for t in tensors]
        plan = _PLANS[key] = Plan(settings, shapes, strides, tensors[0].dtype)
    return plan


def item_stride(shape: Shape, strides: Shape, own: int) -> int | None:
    """The stride of a tensor's items, whose last `own` dimensions are contiguous; `None` if it has no such stride."""
    expected, batch = 1, len(shape) - own
    for i in range(len(shape) - 1, batch - 1, -1):
        if shape[i] != 1 and strides[i] != expected:
            return None
        expected *= shape[i]
    moving = [(n, s) for n, s in zip(shape[:batch], strides[:batch], strict=True) if n != 1]
    step = moving[-1][1] if moving else expected
    for (n, s), (_, outer) in zip(moving[:0:-1], moving[-2::-1], strict=True):
        if outer != n * s:
            return None
    return step


def record_width(channels: int) -> int:
    """Numbers per record: a multiple of four, which are loaded at once."""
    return -(-(RECORD + 3 * channels) // 4) * 4


def bin_side(size: int) -> int:
    """A face knows its bins as bytes, so there may be no more than 256 along a side of the image."""
    side = BIN
    while 256 * side < size:
        side *= 2
    return side


@functools.lru_cache(maxsize=64)
def constants(settings: RasterSettings) -> tuple[int, bool, float, float]:
    """What pixel kernels are compiled for: HALF, BOUNDED, REACH, POWER."""
    conorm = settings.conorm
    bounded = isinstance(conorm, BoundedSum)
    return settings.half_df, bounded, settings.reach, float(conorm.k) if bounded else 1.0


def bands(settings: RasterSettings) -> tuple[int, int]:
    """From how many pixels on a face is cut into bands, and how many places an item has for them.

    Bands of a face end up in any order, so deterministic gradients do without.
    """
    pixels = settings.height * settings.width
    limit = max(LARGE, pixels // 64)
    return limit, JOBS if pixels > limit and not settings.deterministic else 0

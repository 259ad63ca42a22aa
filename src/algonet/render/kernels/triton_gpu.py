"""The smooth rasteriser on CUDA devices: launches of the Triton kernels (see `triton_forward`, `triton_backward`)."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence

import torch
from torch import Tensor

from algonet.relax import BoundedSum

from ..settings import RasterSettings, decode
from .triton_backward import backward_kernel, gather_kernel
from .triton_forward import bin_kernel, forward_kernel, setup_kernel
from .triton_launch import launch
from .triton_math import RECORD

#: Faces that a setup program takes, and their boxes are padded to.
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
#: Attribute channels that one pass takes.
GROUP = 4
#: Bytes that records and lists of faces may take at a time; larger batches go in parts. Where there is but one part, its
#: records are kept for the backward pass; others are made again.
WORKSPACE = 14 << 20


class Scene:
    """A call's tensors with one batch dimension, and the sizes that kernels want."""

    def __init__(self, tensors: list[Tensor], settings: RasterSettings):
        points, attributes, background, softness, faces, attribute_faces = tensors
        self.points, self.attributes = flat(points, 2), flat(attributes, 2)
        self.background, self.softness = flat(background, 1), flat(softness, 1)
        self.faces = faces if faces.is_contiguous() else faces.contiguous()
        same = attribute_faces is faces
        self.attribute_faces = self.faces if same else attribute_faces.contiguous()
        self.settings = settings
        self.height, self.width = settings.height, settings.width
        self.items, self.vertices = self.points.shape[:2]
        self.channels, self.count = self.attributes.shape[2], faces.shape[0]
        self.blocks = -(-self.count // BLOCK)
        self.padded = self.blocks * BLOCK
        self.bin = bin_side(max(self.height, self.width)) if self.count > UNBINNED else 0
        self.planes = 3 + self.channels
        # float64 takes two registers for a number
        self.single = points.dtype == torch.float32
        self.constants = constants(settings)

    def passes(self):
        """(first channel, channels, first item, items) of each pass: channels by groups, items as the workspace allows."""
        for first_channel in range(0, self.channels, GROUP):
            channels = min(GROUP, self.channels - first_channel)
            most = items_at_a_time(self.points, self.count, channels)
            for first in range(0, self.items, most):
                yield first_channel, channels, first, min(most, self.items - first)


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


class Setup:
    """Records and boxes of the faces of some items: with bins for the forward pass, with jobs for the backward pass."""

    def __init__(
        self,
        scene: Scene,
        passed: tuple[int, int, int, int],
        *,
        bins: bool = False,
        jobs: bool = False,
        kept: Sequence[Tensor] = (),
    ):
        first_channel, self.channels, first, items = passed
        self.scene, self.first, self.items, self.first_channel = scene, first, items, first_channel
        settings, new = scene.settings, scene.points.new_empty
        self.softness, self.background = since(scene.softness, first), since(scene.background, first)
        self.points, self.attributes = since(scene.points, first), since(scene.attributes, first)
        self.bin = scene.bin if bins else 0
        self.limit, self.slots = bands(settings) if jobs else (0, 0)
        # Of each item: places taken in its lists, bins with many and with few faces, faces' bins in all
        self.filled = scene.points.new_zeros(items, 4, dtype=torch.int32) if self.bin else scene.faces
        if kept:
            self.records, self.boxes, self.jobs = kept
            return
        self.records, self.boxes, self.jobs = outlines(scene.points, (items,), scene.count, self.channels, self.slots)
        self.spans = new(items, scene.padded, dtype=torch.int32) if self.bin else self.filled
        launch(
            setup_kernel, (scene.blocks, items),
            [self.points, self.attributes, self.softness, scene.faces, scene.attribute_faces, self.records, self.boxes,
             self.spans, self.filled, self.jobs],
            [scene.count, scene.blocks, self.points.stride(0), self.attributes.stride(0), self.softness.stride(0),
             scene.channels, first_channel, scene.height, scene.width, self.limit],
            (RECORD + 3 * self.channels, self.channels, settings.perspective, settings.two_sided, BLOCK, settings.half_df,
             settings.reach, self.bin, self.slots),
            2,
        )  # fmt: skip

    def bins(self) -> tuple[list[Tensor], list[int]]:
        """Lists, heads and order; faces padded, bins across, bins, capacity of the lists. Nothing for few faces."""
        scene, side = self.scene, self.bin
        if not side:
            return [self.filled] * 3, [scene.padded, 0, 0, 0]
        across = -(-scene.width // side)
        bins = across * -(-scene.height // side)
        capacity = PLACES[0] * scene.count + PLACES[1] * bins
        lists, heads, order = (self.filled.new_empty(self.items, n) for n in (capacity, 2 * bins, bins))
        launch(
            bin_kernel, (bins, self.items), [self.spans, lists, heads, order, self.filled],
            [scene.blocks, across, bins, capacity], (BLOCK, BIN_STEP), BIN_WARPS,
        )  # fmt: skip
        return [lists, heads, order], [scene.padded, across, bins, capacity]


def bands(settings: RasterSettings) -> tuple[int, int]:
    """From how many pixels on a face is cut into bands, and how many places an item has for them.

    Bands of a face end up in any order, so deterministic gradients do without.
    """
    pixels = settings.height * settings.width
    limit = max(LARGE, pixels // 64)
    return limit, JOBS if pixels > limit and not settings.deterministic else 0


def outlines(like: Tensor, batch: Sequence[int], count: int, channels: int, slots: int) -> list[Tensor]:
    """Records, boxes and jobs; of the jobs, their number comes first."""
    make = like.new_zeros if slots else like.new_empty
    jobs = make((*batch, slots + 1 if slots else 0, 2), dtype=torch.int32)
    width = RECORD + 3 * channels
    return [like.new_empty((*batch, count, width)), like.new_empty((*batch, 4, -(-count // BLOCK) * BLOCK)), jobs]


def items_at_a_time(points: Tensor, count: int, channels: int) -> int:
    """How many items the workspace holds."""
    size = count * ((RECORD + 3 * channels + 4) * points.element_size() + 4 * PLACES[0] + 4)
    return min(max(1, WORKSPACE // max(1, size)), 65535)


def kept(points: Tensor, count: int, channels: int) -> bool:
    """Whether the forward pass keeps what it made of the faces: if it goes in one pass."""
    items = math.prod(points.shape[:-2])
    return channels <= GROUP and items <= items_at_a_time(points, count, channels)


def forward(tensors: list[Tensor], settings: str) -> tuple[list[Tensor], list[Tensor]]:
    """Image, silhouette and depth; saved are, per pixel, the shares' normaliser, the silhouette and the means."""
    if tensors[1].shape[-1] == 0:
        (image, *rest), saved = forward(with_channel(tensors), settings)
        return [image[..., :0], *rest], saved
    scene = Scene(tensors, decode(settings))
    outputs, saved = results(tensors, scene.settings)
    keep = kept(tensors[0], scene.count, scene.channels)
    pictures = [*outputs, *saved]
    tx, ty, warps, registers = TILE
    tiles_x = -(-scene.width // tx)
    for passed in scene.passes():
        setup = Setup(scene, passed, bins=True, jobs=keep)
        tables, sizes = setup.bins()
        tiles = sizes[2] * (scene.bin // tx) * (scene.bin // ty) if scene.bin else tiles_x * -(-scene.height // ty)
        launch(
            forward_kernel, (tiles, setup.items),
            [setup.records, setup.boxes, *tables, setup.softness, setup.background,
             *(part(t, scene.items, setup.first) for t in pictures)],
            [scene.count, *sizes, scene.height, scene.width, tiles_x, setup.softness.stride(0), setup.background.stride(0),
             scene.channels, setup.first_channel, scene.planes],
            (RECORD + 3 * setup.channels, setup.channels, *scene.constants, setup.first_channel == 0, scene.bin, tx, ty),
            warps,
            registers if scene.single else None,
        )  # fmt: skip
        if keep:
            batch = tensors[0].shape[:-2]
            saved += [t.view(*batch, *t.shape[1:]) for t in (setup.records, setup.boxes, setup.jobs)]
        del setup, tables
    if keep and len(saved) == 1:
        saved += outlines(tensors[0], tensors[0].shape[:-2], scene.count, scene.channels, bands(scene.settings)[1])
    return outputs, saved


def results(tensors: list[Tensor], settings: RasterSettings) -> tuple[list[Tensor], list[Tensor]]:
    """Empty pictures, and per pixel what the backward pass needs."""
    points, attributes = tensors[:2]
    batch, channels = points.shape[:-2], attributes.shape[-1]
    shape = (*batch, settings.height, settings.width)
    outputs = [points.new_empty((*shape, channels)), points.new_empty(shape), points.new_empty(shape)]
    return outputs, [points.new_empty((*batch, 3 + channels, settings.height, settings.width))]


def fake(tensors: list[Tensor], settings: str) -> tuple[list[Tensor], list[Tensor]]:
    """Empty tensors like those of `forward`."""
    chosen, count = decode(settings), tensors[4].shape[0]
    if tensors[1].shape[-1] == 0:
        (image, *rest), saved = fake(with_channel(tensors), settings)
        return [image.new_empty((*image.shape[:-1], 0)), *rest], saved
    outputs, saved = results(tensors, chosen)
    if kept(tensors[0], count, tensors[1].shape[-1]):
        saved += outlines(tensors[0], tensors[0].shape[:-2], count, tensors[1].shape[-1], bands(chosen)[1])
    return outputs, saved


def backward(
    grads: list[Tensor], tensors: list[Tensor], saved: list[Tensor], settings: str, needs: list[bool]
) -> list[Tensor | None]:
    """Gradients by points, attributes, background and softness."""
    if tensors[1].shape[-1] == 0:
        nothing = grads[0].new_zeros((*grads[0].shape[:-1], 1))
        found = backward([nothing, *grads[1:]], with_channel(tensors), saved, settings, needs)
        by_background = None if found[2] is None else found[2][..., 1:]
        return [found[0], torch.zeros_like(tensors[1]) if needs[1] else None, by_background, *found[3:]]
    scene = Scene(tensors, decode(settings))
    keep = scene.settings.deterministic
    pictures = [t if t.is_contiguous() else t.contiguous() for t in (*grads, saved[0])]
    # Apart from each other: torch operators must not return tensors that share memory
    by_points = scene.points.new_zeros(scene.items, scene.vertices, 3)
    by_attributes = scene.points.new_zeros(scene.attributes.shape)
    by_softness = scene.points.new_zeros(scene.items, 3) if needs[3] else None
    for passed in scene.passes() if scene.count else ():
        setup = Setup(scene, passed, jobs=True, kept=[t.contiguous() for t in saved[1:]])
        first, items, channels = setup.first, setup.items, setup.channels
        targets = [since(by_points, first), since(by_attributes, first)]
        if keep:
            zeros = scene.points.new_zeros
            targets = [zeros(items, scene.count * 3, 3), zeros(items, scene.count * 3, channels)]
        soft = scene.points.new_zeros(items, scene.count, 3) if needs[3] else scene.softness
        _launch_backward(setup, pictures, targets, soft, needs[3])
        if keep:
            _gather(targets[0], scene.faces, by_points[first : first + items])
            _gather(targets[1], scene.attribute_faces, by_attributes[first : first + items, :, setup.first_channel :])
        if by_softness is not None:
            by_softness[first : first + items] += soft.sum(1)
        del setup, targets, soft
    by_background = _by_background(scene, pictures) if needs[2] else None
    found = [by_points, by_attributes, by_background, by_softness]
    shaped = [g if g is None else g.view(t.shape) for g, t in zip(found, tensors[:4], strict=True)]
    return [g if need else None for g, need in zip([*shaped, None, None], needs, strict=True)]


def _launch_backward(setup: Setup, pictures: list[Tensor], targets: list[Tensor], soft: Tensor, softness: bool) -> None:
    scene, settings = setup.scene, setup.scene.settings
    launch(
        backward_kernel, ((setup.slots + scene.count) * setup.items, 1),
        [setup.records, setup.boxes, setup.jobs, setup.softness, setup.background,
         *(part(t, scene.items, setup.first) for t in pictures),
         setup.points, setup.attributes, scene.faces, scene.attribute_faces, *targets, soft],
        [setup.items, scene.count, scene.padded, scene.height, scene.width, setup.softness.stride(0),
         setup.background.stride(0), setup.points.stride(0), setup.attributes.stride(0), targets[0].stride(0),
         targets[1].stride(0), scene.channels, setup.first_channel, scene.planes, setup.limit],
        (RECORD + 3 * setup.channels, setup.channels, *scene.constants, setup.first_channel == 0, settings.perspective,
         settings.two_sided, softness, settings.deterministic, setup.slots, BACKWARD[0]),
        BACKWARD[1],
        BACKWARD[2] if scene.single else None,
    )  # fmt: skip


def _by_background(scene: Scene, pictures: list[Tensor]) -> Tensor:
    image, _, depth, kept = pictures
    pixels = scene.height * scene.width
    rest = 1 - kept.view(scene.items, scene.planes, pixels)[:, 1]
    colour = torch.bmm(rest[:, None], image.view(scene.items, pixels, scene.channels))[:, 0]
    return torch.cat([colour, (rest * depth.view(scene.items, pixels)).sum(1, keepdim=True)], 1)


def _gather(pulls: Tensor, faces: Tensor, target: Tensor) -> None:
    """Add the corners' pulls (items, 3 F, n) to their vertices, in the same order on every run."""
    order = torch.argsort(faces.reshape(-1), stable=True)
    ends = torch.arange(target.shape[1] + 1, device=faces.device, dtype=faces.dtype)
    bounds = torch.searchsorted(faces.reshape(-1)[order], ends)
    launch(
        gather_kernel, (-(-target.shape[1] // 32), pulls.shape[0]),
        [pulls, order, bounds, target],
        [pulls.shape[1], target.shape[1], target.stride(0), target.stride(1)],
        (32, pulls.shape[2]),
        1,
    )  # fmt: skip


def with_channel(tensors: list[Tensor]) -> list[Tensor]:
    """Tensors without attributes, given one that is 0 everywhere."""
    points, attributes, background, *rest = tensors
    attributes = attributes.new_zeros((*attributes.shape[:-1], 1))
    return [points, attributes, torch.cat([torch.zeros_like(background), background], -1), *rest]


def flat(t: Tensor, own: int) -> Tensor:
    """One batch dimension of any stride before `own` contiguous ones."""
    if t.is_contiguous():
        return t if t.dim() == own + 1 else t.view(math.prod(t.shape[: t.dim() - own]), *t.shape[t.dim() - own :])
    if t.dim() != own + 1:
        t = t.reshape(math.prod(t.shape[: t.dim() - own]), *t.shape[t.dim() - own :])
    expected = 1
    for i in range(t.dim() - 1, 0, -1):
        if t.shape[i] > 1 and t.stride(i) != expected:
            return t.contiguous()
        expected *= t.shape[i]
    return t


def since(t: Tensor, first: int) -> Tensor:
    return t[first:] if first else t


def part(t: Tensor, items: int, first: int) -> Tensor:
    """A contiguous picture from item `first` on."""
    return t.view(items, -1)[first:] if first else t

"""The smooth rasteriser on CUDA devices: launches of the Triton kernels (see `triton_forward`, `triton_backward`)."""

from __future__ import annotations

import math

import torch
import triton
from torch import Tensor

from algonet.relax import BoundedSum

from ..settings import RasterSettings, decode
from .triton_backward import backward_kernel
from .triton_forward import bin_kernel, forward_kernel, setup_kernel
from .triton_math import RECORD

#: Faces that a setup program takes, and their boxes are padded to.
BLOCK = 64
#: Side of a bin in pixels, a multiple of the forward tile's; faces that a bin program takes at a time, and its warps.
BIN, BIN_BLOCK, BIN_WARPS = 32, 1024, 4
#: Up to so many faces a tile looks through all of them; binning would cost more.
UNBINNED = 2048
#: Width and height of a forward tile in pixels, and its warps.
TILE = (8, 4, 1)
#: Pixels that a backward program takes at a time, and its warps.
BACKWARD = (32, 1)
#: Attribute channels that one pass takes.
GROUP = 4
#: Bytes that the records of faces may take at a time; larger batches go in parts.
WORKSPACE = 12 << 20


class Scene:
    """A call's tensors with one batch dimension, and the sizes that kernels want."""

    def __init__(self, tensors: list[Tensor], settings: RasterSettings):
        points, attributes, background, softness, faces, attribute_faces = tensors
        self.batch = points.shape[:-2]
        self.points, self.attributes = _flat(points, 2), _flat(attributes, 2)
        self.background, self.softness = _flat(background, 1), _flat(softness, 1)
        self.faces, self.attribute_faces = faces.contiguous(), attribute_faces.contiguous()
        self.settings = settings
        self.items, self.vertices = self.points.shape[:2]
        self.channels, self.count = self.attributes.shape[2], faces.shape[0]
        self.padded = triton.cdiv(self.count, BLOCK) * BLOCK
        self.planes = 3 + self.channels

    def groups(self):
        """(first channel, how many) of each pass over the attributes; one even without attributes."""
        for first in range(0, max(self.channels, 1), GROUP):
            yield first, min(GROUP, self.channels - first)

    def parts(self, channels: int):
        """(first item, how many) such that the records fit the workspace."""
        size = max(1, WORKSPACE // max(1, self.count * (RECORD + 3 * channels + 4) * self.points.element_size()))
        for first in range(0, self.items, size):
            yield first, min(size, self.items - first)

    def bounded(self) -> tuple[bool, float]:
        conorm = self.settings.conorm
        return (True, float(conorm.k)) if isinstance(conorm, BoundedSum) else (False, 1.0)


class Setup:
    """Records and boxes of the faces of some items, and the lists of their bins."""

    def __init__(self, scene: Scene, first: int, items: int, first_channel: int, channels: int):
        new = scene.points.new_empty
        self.scene, self.first, self.items = scene, first, items
        self.width = RECORD + 3 * channels
        self.records = new(items, scene.count, self.width)
        self.boxes = new(items, 4, scene.padded)
        self.filled = new(items, dtype=torch.int32)
        if scene.count:
            setup_kernel[(scene.padded // BLOCK, items)](
                scene.points[first:], scene.attributes[first:], scene.softness[first:], scene.faces, scene.attribute_faces,
                self.records, self.boxes, self.filled,
                scene.count, scene.padded, scene.points.stride(0), scene.attributes.stride(0), scene.softness.stride(0),
                scene.channels, first_channel,
                WIDTH=self.width, CHANNELS=channels, PERSPECTIVE=scene.settings.perspective,
                TWO_SIDED=scene.settings.two_sided, BLOCK=BLOCK, num_warps=2,
            )  # fmt: skip

    def bins(self) -> tuple[Tensor, Tensor, tuple[int, int, int, int]]:
        """Lists, heads, and (faces padded, bins across, bins, capacity of the lists); nothing for few faces."""
        scene, settings = self.scene, self.scene.settings
        across = triton.cdiv(settings.width, BIN)
        bins = across * triton.cdiv(settings.height, BIN)
        if scene.count <= UNBINNED:
            return self.filled, self.filled, (scene.padded, across, bins, 0)
        capacity = 8 * scene.count + 64 * bins
        lists = self.filled.new_empty(self.items, capacity)
        heads = self.filled.new_empty(self.items, bins, 2)
        bin_kernel[(bins, self.items)](
            self.boxes, scene.softness[self.first :], lists, heads, self.filled,
            scene.padded, across, bins, capacity, scene.softness.stride(0),
            HALF=settings.half_df, REACH=settings.reach, BIN=BIN, BLOCK=BIN_BLOCK, num_warps=BIN_WARPS,
        )  # fmt: skip
        return lists, heads, (scene.padded, across, bins, capacity)


def forward(tensors: list[Tensor], settings: str) -> tuple[list[Tensor], list[Tensor]]:
    """Image, silhouette and depth; saved are, per pixel, the shares' normaliser, the silhouette and the means."""
    scene = Scene(tensors, decode(settings))
    height, width = scene.settings.height, scene.settings.width
    outputs, saved = fake(tensors, settings)
    image, silhouette, depth = outputs
    bounded, power = scene.bounded()
    tx, ty, warps = TILE
    tiles_x = triton.cdiv(width, tx)
    tiles = tiles_x * triton.cdiv(height, ty)
    for first_channel, channels in scene.groups():
        for first, items in scene.parts(channels):
            setup = Setup(scene, first, items, first_channel, channels)
            offset = first * height * width
            lists, heads, sizes = setup.bins()
            forward_kernel[(tiles, items)](
                setup.records, setup.boxes, lists, heads, scene.softness[first:], scene.background[first:],
                image.view(-1)[offset * scene.channels :], silhouette.view(-1)[offset:], depth.view(-1)[offset:],
                saved[0].view(-1)[offset * scene.planes :],
                scene.count, *sizes, height, width, tiles_x, scene.softness.stride(0), scene.background.stride(0),
                scene.channels, first_channel, scene.planes,
                WIDTH=setup.width, CHANNELS=channels, HALF=scene.settings.half_df, BOUNDED=bounded,
                REACH=scene.settings.reach, POWER=power, FIRST=first_channel == 0,
                LISTED=scene.count > UNBINNED, BIN=BIN, TX=tx, TY=ty, num_warps=warps,
            )  # fmt: skip
    return outputs, saved


def fake(tensors: list[Tensor], settings: str) -> tuple[list[Tensor], list[Tensor]]:
    """Empty tensors like those of `forward`."""
    chosen = decode(settings)
    points, attributes = tensors[:2]
    batch, channels = points.shape[:-2], attributes.shape[-1]
    shape = (*batch, chosen.height, chosen.width)
    outputs = [points.new_empty(*shape, channels), points.new_empty(shape), points.new_empty(shape)]
    return outputs, [points.new_empty(*batch, 3 + channels, chosen.height, chosen.width)]


def _flat(t: Tensor, own: int) -> Tensor:
    """One batch dimension of any stride before `own` contiguous ones."""
    t = t.reshape(math.prod(t.shape[: t.dim() - own]), *t.shape[t.dim() - own :])
    expected = 1
    for size, stride in zip(reversed(t.shape[1:]), reversed(t.stride()[1:]), strict=True):
        if size > 1 and stride != expected:
            return t.contiguous()
        expected *= size
    return t


def backward(
    grads: list[Tensor], tensors: list[Tensor], saved: list[Tensor], settings: str, needs: list[bool]
) -> list[Tensor | None]:
    """Gradients by points, attributes, background and softness."""
    scene = Scene(tensors, decode(settings))
    chosen = scene.settings
    height, width = chosen.height, chosen.width
    image, silhouette, depth = (g.contiguous() for g in grads)
    kept = saved[0].contiguous()
    keep = chosen.deterministic
    by_points = scene.points.new_zeros(scene.items, scene.vertices, 3)
    by_attributes = scene.points.new_zeros(scene.items, *scene.attributes.shape[1:])
    by_softness = scene.points.new_zeros(scene.items, 3)
    bounded, power = scene.bounded()
    for first_channel, channels in scene.groups():
        for first, items in scene.parts(channels):
            if not scene.count:
                continue
            setup = Setup(scene, first, items, first_channel, channels)
            offset = first * height * width
            targets = [by_points[first:], by_attributes[first:]]
            if keep:
                zeros = scene.points.new_zeros
                targets = [zeros(items, scene.count, 3, 3), zeros(items, scene.count, 3, channels)]
            soft = scene.points.new_zeros(items, scene.count, 3) if needs[3] else scene.softness
            backward_kernel[(scene.count, items)](
                setup.records, setup.boxes, scene.softness[first:], scene.background[first:],
                image.view(-1)[offset * scene.channels :], silhouette.view(-1)[offset:], depth.view(-1)[offset:],
                kept.view(-1)[offset * scene.planes :],
                scene.points[first:], scene.attributes[first:], scene.faces, scene.attribute_faces, *targets, soft,
                scene.count, scene.padded, height, width, scene.softness.stride(0), scene.background.stride(0),
                scene.points.stride(0), scene.attributes.stride(0), by_points.stride(0), by_attributes.stride(0),
                scene.channels, first_channel, scene.planes,
                WIDTH=setup.width, CHANNELS=channels, HALF=chosen.half_df, BOUNDED=bounded, REACH=chosen.reach,
                POWER=power, FIRST=first_channel == 0, PERSPECTIVE=chosen.perspective, TWO_SIDED=chosen.two_sided,
                SOFTNESS=needs[3], KEEP=keep, P=BACKWARD[0], num_warps=BACKWARD[1],
            )  # fmt: skip
            if keep:
                _gather(targets[0], scene.faces, by_points[first : first + items])
                part = by_attributes[first : first + items, :, first_channel : first_channel + channels]
                _gather(targets[1], scene.attribute_faces, part)
            if needs[3]:
                by_softness[first : first + items] += soft.sum(1)
    by_background = None
    if needs[2]:
        rest = 1 - kept.view(scene.items, scene.planes, -1)[:, 1]
        colour = torch.einsum("ip,ipc->ic", rest, image.view(scene.items, height * width, scene.channels))
        by_background = torch.cat([colour, (rest * depth.view(scene.items, -1)).sum(1, keepdim=True)], 1)
    found = [by_points, by_attributes, by_background, by_softness]
    return [g if g is None else g.reshape(t.shape) for g, t in zip(found, tensors[:4], strict=True)] + [None, None]


def _gather(pulls: Tensor, faces: Tensor, target: Tensor) -> None:
    """Add the corners' pulls (items, F, 3, n) to their vertices, in the same order on every run."""
    order = torch.argsort(faces.reshape(-1), stable=True)
    corners = pulls.reshape(pulls.shape[0], -1, pulls.shape[-1])[:, order]
    sums = torch.nn.functional.pad(corners.double().cumsum(1), (0, 0, 1, 0))
    sorted_index = faces.reshape(-1)[order]
    bounds = torch.searchsorted(sorted_index, torch.arange(target.shape[1] + 1, device=faces.device, dtype=faces.dtype))
    ends = sums[:, bounds]
    target += (ends[:, 1:] - ends[:, :-1]).to(target.dtype)

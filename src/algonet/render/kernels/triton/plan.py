"""What a call of the CUDA rasteriser comes to: sizes, memory layouts and launches, made once for calls of one form.

Small scenes take the device less time than the host takes to ask for them, so all that tensors' shapes, strides and types
decide is decided once and kept.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from algonet.core.autograd import Plan
from algonet.core.identity import PLANS, Signature
from algonet.core.launch import Launch

from ...lights import LIGHT, Shading
from ...settings import RasterSettings
from ...vectors import GREY
from . import pixels
from .backward import backward_kernel
from .formulas import BOX, COUNTERS, GRADS, MEAN_DEPTH, PLANES
from .forward import forward_kernel
from .setup import bin_kernel, normals_kernel, setup_kernel, spread_normals_kernel, sum_areas_kernel

#: Faces that a setup program takes, and their records and boxes are padded to.
BLOCK = 64
#: Least side of a bin in pixels, a multiple of the forward tile's; faces that a bin program takes at a time, and its warps.
BIN, BIN_STEP, BIN_WARPS = 32, 4096, 8
#: Places in an item's lists, per face and per bin. A bin that finds none left has its tiles look through all faces.
PLACES = (6, 64)
#: Up to so many faces a tile looks through all of them; binning would cost more.
UNBINNED = 2048
#: Width and height of a forward tile in pixels, its warps, and the registers that a thread may take in float32.
TILE: tuple[int, int, int, int | None] = (4, 8, 1, 128)
#: Samples that a backward program takes at a time, its warps, and the registers that a thread may take in float32 with up to
#: four channels, and with more.
BACKWARD: tuple[int, int, int | None, int | None] = (32, 1, 128, 128)
#: Pixels that a program of `pixels` takes, and its warps; and programs per item that share the samples of wide ones.
PIXELS, GATHERS = (128, 4), 2048
#: Faces with more pixels than this are cut into bands for the backward pass, as far as an item has this many places.
LARGE, JOBS = 4096, 512
#: Faces, vertices or points that a program for normals takes, and its warps.
SURFACE = (128, 4)
#: From so many pixels on, rounding may send a pixel of a window to the line beside its own, and kernels look after that.
HUGE = 1 << 21
#: Units of log 2 within which a forward program finds where the nearest unit of coverage ends, before it interpolates.
PRECISE = 0.3, 1e-5
#: A face's diagonal, in units of sigma, up to which a rule of points covers it at epsilon = 1e-4, and at most.
SMALL = (0.5, 0.8)
#: Channels that one pass takes, and items: a grid's second side.
GROUP, MOST_ITEMS = 6, 65535
#: Bytes that a call may take beyond inputs and outputs, as far as one item allows: samples, records of faces, and in the
#: backward pass gradients by pixels and samples, for which there is at least the second number.
MEMORY, GRADS_MEMORY = 124 << 20, 20 << 20
#: Bytes that the records of all faces may take to be kept for the backward pass; otherwise they are made again there, and
#: batches go in parts whose records and lists take this much at a time.
RECORDS, WORKSPACE = 64 << 20, 16 << 20
#: Positions of a call's tensors: those of `operation.RASTER`, then those of lit pictures.
POINTS, ATTRIBUTES, BACKGROUND, SOFTNESS, FACES, ATTRIBUTE_FACES, MATRIX, EYE, LIGHTS, NORMALS = range(10)
#: Those that faces have gradients by.
MOVING = (POINTS, ATTRIBUTES, SOFTNESS, MATRIX, NORMALS)
#: Dimensions of one item.
OWN = {POINTS: 2, ATTRIBUTES: 2, BACKGROUND: 1, SOFTNESS: 1, MATRIX: 2, NORMALS: 2, EYE: 1, LIGHTS: 2}
#: Names of the strides of gradients of image, silhouette, depth and further attributes, as kernels have them.
PICTURE_STRIDES = (
    "image_item", "image_pixel", "image_channel", "silhouette_item", "silhouette_pixel", "depth_item", "depth_pixel",
    "extra_item", "extra_pixel", "extra_channel",
)  # fmt: skip

Shape = tuple[int, ...]


class LaunchPlan(Plan):
    """A form of call: `passes` over channels and items, and how its tensors lie in memory."""

    def __init__(self, signature: Signature):
        super().__init__(signature)
        settings, dtype = self.settings, signature.tensors[0].dtype
        like = [torch.empty_strided(t.shape, t.strides, device="meta") for t in signature.tensors]
        #: Whether there are no attributes: kernels get one that is 0 everywhere.
        self.bare = settings.shading is None and like[ATTRIBUTES].shape[-1] == 0
        if self.bare:
            like = with_channel(like)
        shapes, strides = [tuple(t.shape) for t in like], [t.stride() for t in like]
        points, attributes, faces = shapes[POINTS], shapes[ATTRIBUTES], shapes[FACES]
        self.world, self.lit = len(shapes) > MATRIX, settings.shading is not None
        self.batch, self.items, self.vertices = points[:-2], math.prod(points[:-2]), points[-2]
        self.rows, self.attributes, self.count = attributes[-2], attributes[-1], faces[0]
        self.height, self.width = settings.height, settings.width
        self.pixels = self.height * self.width
        # float64 takes two registers for a number
        self.single = dtype == torch.float32
        self.size = 4 if self.single else 8
        #: All channels, normals among them, and those that are neither colour nor normal.
        self.channels = self.attributes + 3 * self.lit
        self.extra = self.attributes - 3 * settings.colored if self.lit else 0
        self.shown = 3 if self.lit else self.channels
        self.sample = MEAN_DEPTH.value + 2 * (self.channels + 1)
        # Even, so that records are aligned
        self.grad = -(-(GRADS.value + self.channels) // 2) * 2
        self.blocks = -(-self.count // BLOCK)
        self.padded = self.blocks * BLOCK
        self.limit, self.jobs = bands(settings)
        self.bin = bin_side(max(self.height, self.width)) if self.count > UNBINNED else 0
        self.bins_x = -(-self.width // self.bin) if self.bin else 0
        self.bins = self.bins_x * -(-self.height // self.bin) if self.bin else 0
        self.capacity = PLACES[0] * self.count + PLACES[1] * self.bins if self.bin else 0
        self.scratch = -(-(self.padded + self.capacity + 3 * self.bins) // 16) * 16 if self.bin else 0
        self.areas = self.lit and len(shapes) <= NORMALS
        floats = [i for i in OWN if i < len(shapes)]
        steps = {i: item_stride(shapes[i], strides[i], OWN[i]) for i in floats}
        #: Positions of tensors that must be copied to lie as kernels want them.
        self.copied = [i for i, step in steps.items() if step is None]
        self.copied += [i for i in (FACES, ATTRIBUTE_FACES) if strides[i] != (3, 1)]
        self.steps = {i: math.prod(shapes[i][-OWN[i] :]) if step is None else step for i, step in steps.items()}
        #: Numbers and constants by the names that kernels have for them.
        self.values: dict[str, Any] = {
            "height": self.height, "width": self.width, "count": self.count, "blocks": self.blocks, "padded": self.padded,
            "bins_x": self.bins_x, "bins": self.bins, "capacity": self.capacity, "limit": self.limit, "JOBS": self.jobs,
            "softness_stride": self.steps[SOFTNESS], "background_stride": self.steps[BACKGROUND],
            "points_stride": self.steps[POINTS], "attributes_stride": self.steps[ATTRIBUTES],
            "matrix_stride": self.steps.get(MATRIX, 0), "eye_stride": self.steps.get(EYE, 0),
            "lights_stride": self.steps.get(LIGHTS, 0), "normals_stride": self.steps.get(NORMALS, 4 * self.vertices),
            "grad_points_stride": 3 * self.vertices, "grad_normals_stride": 3 * self.vertices,
            "grad_attributes_stride": self.rows * self.attributes, "scratch_stride": self.scratch, "SAMPLE": self.sample,
            "GRAD": self.grad, "SPACING": settings.spacing, "POWER": settings.power, "OVER": settings.over_depth,
            "PERSPECTIVE": settings.perspective, "TWO_SIDED": settings.two_sided, "HALF": settings.half_df,
            "REACH": settings.reach, "KEEP": settings.deterministic, "LIT": self.lit, "COLORED": settings.colored,
            "AREAS": self.areas, "WORLD": self.world, "HUGE": self.pixels > HUGE, "GREY": GREY,
        }  # fmt: skip
        records = self.padded * (record_width(min(GROUP, self.channels)) + BOX.value) * self.size
        #: Whether what is made of the faces is kept for the backward pass.
        self.keeps = self.channels <= GROUP and self.items * records <= RECORDS and self.items <= MOST_ITEMS
        forth = self.items if self.keeps else min(WORKSPACE // max(1, records + 4 * self.scratch), MOST_ITEMS)
        grads = self.pixels * self.grad * self.size * (2 if settings.spacing else 1)
        rest = MEMORY - self.items * self.pixels * self.sample * self.size - forth * records
        back = min(max(rest, GRADS_MEMORY) // max(1, grads), forth)
        #: Parts of the batch, each with its passes over the channels; those of the backward pass, and items of the largest.
        self.back_parts = self._parts(back)
        self.parts = self._parts(forth) if self.keeps else self.back_parts
        self.most, self.most_back = (max(part[0].items for part in parts) for parts in (self.parts, self.back_parts))
        #: An item's numbers for records and boxes.
        self.work = max(passed.work for part in self.parts for passed in part)
        self.plane = (*self.batch, self.height, self.width)
        #: Strides of items, pixels and channels of pictures that lie one after the other.
        self.picture_strides = tuple(
            (self.pixels * c, c, 1)[:own] for c, own in ((self.shown, 3), (1, 2), (1, 2), (self.extra, 3))
        )
        self.counters = COUNTERS.value + 2 * self.jobs if self.jobs or self.bin else 0
        self.pixel_blocks = -(-self.pixels // PIXELS[0])
        #: Numbers per block of pixels that are summed over them: gradients by what all pixels of an item share.
        self.sums = self.shown + 1 + (3 + 12 + LIGHT * len(settings.shading.kinds) if settings.shading else 0)
        self.to_pixels = self._painting(pixels.paint_kernel, self.items, first=0)
        #: Where lit pictures come without normals, those of the faces are made: as sums of areas, four numbers a vertex.
        self.normals = None
        if self.areas:
            cleared = self.items * self.counters if self.keeps else 0
            own = Signature(settings, (signature.tensors[POINTS], signature.tensors[FACES]), ())
            self.normals = VertexNormalsPlan(own, cleared)

    def _parts(self, most: int) -> list[list[Pass]]:
        """The batch in as few parts of like size as have at most so many items."""
        items = max(self.items, 1)
        each = -(-items // -(-items // max(most, 1)))
        return [list(self._passes(first, min(each, self.items - first))) for first in range(0, items, each)]

    def _passes(self, first: int, items: int) -> Iterator[Pass]:
        """Channels by groups: colours and normals, which are lit, come first and together."""
        normals = 3 if self.lit else 0
        first_attribute = first_mean = 0
        while first_mean < self.channels:
            taken = min(GROUP, self.attributes - first_attribute)
            if normals:
                taken = 3 if self.settings.colored else 0
            yield Pass(self, first_attribute, first_mean, taken + normals, normals, first, items)
            first_attribute, first_mean, normals = first_attribute + taken, first_mean + taken + normals, 0

    def launch(self, kernel: Any, grid: Shape, warps: int, registers: int | None = None, **more: Any) -> Launch:
        """A launch with what the kernel takes of `values`, and more."""
        values = self.values | more
        own = {name: values[name] for name in kernel.arg_names if name in values}
        return Launch(kernel, grid, warps=warps, registers=registers if self.single else None, **own)

    def _painting(self, kernel: Any, items: int, **more: Any) -> Launch:
        """A launch of a kernel between samples and pictures."""
        own = self.settings.shading or Shading(())
        light: dict[str, Any] = {
            "LIGHTS": len(own.kinds), "KINDS": own.code, "TWO_SIDED": own.two_sided, "GLOSSY": own.strength > 0,
            "SHININESS": own.shininess, "STRENGTH": own.strength,
        }  # fmt: skip
        channels = self.extra if self.lit else self.channels
        grid = self.pixel_blocks, items
        return self.launch(kernel, grid, PIXELS[1], channels=channels, BLOCK=PIXELS[0], **light, **more)

    def wanted(self, needs: list[bool]) -> GradRequest:
        """What a backward pass with these needs makes."""
        grad_matrix = self.world and needs[MATRIX]
        shapes = {POINTS: (self.vertices, 3), ATTRIBUTES: (self.rows, self.attributes)}
        shapes |= {NORMALS: (self.vertices, 3)} if self.lit else {}
        summed = dict(enumerate(needs))
        summed[POINTS] = needs[POINTS] or grad_matrix
        if self.normals is not None:
            summed[NORMALS] = needs[POINTS]
        clears = {i: self.items * math.prod(shape) if summed[i] else 0 for i, shape in shapes.items()}
        return GradRequest(
            shapes=tuple((i, (*self.batch, *shape)) for i, shape in shapes.items()),
            clears=tuple(clears.get(i, 0) for i in (POINTS, ATTRIBUTES, NORMALS)),
            softness=needs[SOFTNESS],
            shared=needs[BACKGROUND] or (self.lit and (needs[MATRIX] or needs[EYE] or needs[LIGHTS])),
            moving=self.count > 0 and any(needs[i] for i in MOVING if i < len(needs)),
            to_world=not grad_matrix,
        )

    def pixels_back(self, strides: Shape, first: int, items: int, needed: bool, clears: Shape) -> Launch:
        """From gradients by pictures with these strides to gradients by what is seen at the pixels of some items; `needed`:
        also those by what all pixels of an item share; `clears`: how many numbers for points, attributes and normals."""

        def make() -> Launch:
            more: dict[str, Any] = dict(zip(PICTURE_STRIDES, strides, strict=True))
            more |= dict(zip(("clear_points", "clear_attributes", "clear_normals"), clears, strict=True))
            kernel = pixels.paint_backward_kernel
            return self._painting(kernel, items, first=first, sums=self.sums, NEEDED=needed, **more)

        return PLANS.get(("pixels back", self, strides, first, items, needed, clears), make)

    def samples_back(self, first: int, items: int) -> tuple[Launch, Launch, Launch]:
        """From gradients at pixels to gradients at the samples that they were interpolated from, along rows and along columns;
        and from gradients by means at the samples to what their faces take."""

        def make() -> tuple[Launch, ...]:
            grid = (min(GATHERS, self.pixels), items)
            own: dict[str, Any] = {"first": first, "CHANNELS": self.channels, "P": 32}
            gathers = (self.launch(pixels.gather_kernel, grid, 1, ROWS=rows, **own) for rows in (True, False))
            return (*gathers, self._painting(pixels.unit_backward_kernel, items, first=first, CHANNELS=self.channels))

        return PLANS.get(("samples back", self, first, items), make)


class GradRequest(NamedTuple):
    """What a backward pass makes: places for gradients by points, attributes and normals with their `shapes`, how many numbers
    of each are to be cleared (none where nobody needs them), and whether gradients by softness, by what all pixels share, and
    by anything of the faces are wanted; `to_world`: by points of the world at once."""

    shapes: tuple[tuple[int, Shape], ...]
    clears: Shape
    softness: bool
    shared: bool
    moving: bool
    to_world: bool


class VertexNormalsPlan(Plan):
    """The normals of vertices, and the way back to points; a scene's plan takes the sums of areas and clears `counters`."""

    def __init__(self, signature: Signature, counters: int = 0):
        super().__init__(signature)
        points, faces = signature.tensors
        items, rows, count = math.prod(points.shape[:-2]), points.shape[-2], faces.shape[0]
        stride, (block, warps) = item_stride(tuple(points.shape), points.strides, 2), SURFACE
        self.copied = stride is None
        by_face: dict[str, Any] = {
            "count": count,
            "rows": rows,
            "points_stride": 3 * rows if stride is None else stride,
        }
        faces_grid, rows_grid = (-(-count // block), items), (-(-rows // block), items)
        self.add = Launch(sum_areas_kernel, faces_grid, warps=warps, BLOCK=block, clear_counters=counters, **by_face)
        self.normalise = Launch(normals_kernel, rows_grid, warps=warps, rows=rows, BLOCK=block)
        self.spread = Launch(spread_normals_kernel, faces_grid, warps=warps, BLOCK=block, **by_face)

    @classmethod
    def saves(cls, signature: Signature) -> Sequence[tuple[Sequence[int], torch.dtype]]:
        points = signature.tensors[0]
        return [((*points.shape[:-1], 4), points.dtype)]

    def sums(self, points: Tensor, faces: Tensor, counters: Tensor | None = None) -> Tensor:
        """The sums of areas that normals come from, (*B, V, 4); clears the counters of a plan on the way."""
        sums = points.new_zeros((*points.shape[:-1], 4))
        self.add.start(points=points, faces=faces, sums=sums, counters=sums if counters is None else counters)
        return sums

    def arranged(self, tensors: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
        return tensors[0].contiguous() if self.copied else tensors[0], tensors[1].contiguous()

    def forward(self, tensors: Sequence[Tensor]) -> tuple[list[Tensor], list[Tensor]]:
        points, faces = self.arranged(tensors)
        sums, normals = self.sums(points, faces), points.new_empty(points.shape)
        self.normalise.start(sums=sums, normals=normals)
        return [normals], [sums]

    def backward(
        self, grads: Sequence[Tensor], tensors: Sequence[Tensor], saved: Sequence[Tensor], needs: Sequence[bool]
    ) -> list[Tensor | None]:
        (points, faces), grad, sums = self.arranged(tensors), grads[0].contiguous(), saved[0].contiguous()
        grad_points = points.new_zeros(points.shape)
        self.spread.start(points=points, faces=faces, sums=sums, grad_normals=grad, grad_points=grad_points)
        return [grad_points, None]


class Pass:
    """Some channels of some items, and the launches that they take."""

    def __init__(
        self, plan: LaunchPlan, first_channel: int, first_mean: int, channels: int, normals: int, first: int, items: int
    ):
        self.plan, self.first_channel, self.first_mean = plan, first_channel, first_mean
        self.channels, self.normals = channels, normals
        self.first, self.items = first, items
        self.record = record_width(channels)
        #: Numbers per item for the records and boxes of its faces.
        self.work = plan.padded * (self.record + BOX.value)
        self.own: dict[str, Any] = {
            "first": first, "items": items, "first_channel": first_channel, "first_mean": first_mean, "NORMALS": normals,
            "work_stride": self.work, "channels": plan.attributes, "WIDTH": self.record, "CHANNELS": channels,
            "FIRST": first_mean == 0, "BLOCK": BLOCK,
        }  # fmt: skip
        self.setup, self.setup_again = (
            plan.launch(setup_kernel, (plan.blocks, items), 2, BIN=side, **self.own) for side in (plan.bin, 0)
        )
        self.list_bins = plan.launch(bin_kernel, (plan.bins, items), BIN_WARPS, STEP=BIN_STEP, **self.own)
        tx, ty, warps, registers = TILE
        across = -(-plan.width // tx)
        tiles = plan.bins * (plan.bin // tx) * (plan.bin // ty) if plan.bin else across * -(-plan.height // ty)
        self.forward = plan.launch(
            forward_kernel, (tiles, items), warps, registers, tiles_x=across, SMALL=small_faces(plan.settings),
            PRECISE=PRECISE[0 if plan.single else 1], BIN=plan.bin, TX=tx, TY=ty, **self.own,
        )  # fmt: skip
        self._backward: dict[tuple, Launch] = {}

    def backward(self, softness: bool, pull: bool) -> Launch:
        """The backward kernel, with or without softness; `pull` brings the gradient by what the camera sees to the world."""
        found = self._backward.get((softness, pull))
        if found is None:
            plan, settings = self.plan, self.plan.settings
            registers = BACKWARD[2] if self.channels <= 4 else BACKWARD[3]
            found = self._backward[softness, pull] = plan.launch(
                backward_kernel, ((plan.jobs + plan.count) * self.items, 1), BACKWARD[1], registers,
                NEAR_REACH=settings.reach if softness else settings.near_reach, PULL=pull and plan.world,
                SOFTNESS=softness, P=BACKWARD[0], **self.own,
            )  # fmt: skip
        return found


def with_channel(tensors: list[Tensor]) -> list[Tensor]:
    """Tensors without attributes, given one that is 0 everywhere."""
    points, attributes, background, *rest = tensors
    attributes = attributes.new_zeros((*attributes.shape[:-1], 1))
    return [points, attributes, torch.cat([torch.zeros_like(background), background], -1), *rest]


def item_stride(shape: Shape, strides: Shape, own: int) -> int | None:
    """The stride of a tensor's items, whose last `own` dimensions are contiguous; `None` if it has no such stride."""
    expected, batch = 1, len(shape) - own
    for i in range(len(shape) - 1, batch - 1, -1):
        if shape[i] != 1 and strides[i] != expected:
            return None
        expected *= shape[i]
    return batch_stride(shape[:batch], strides[:batch], expected)


def batch_stride(shape: Shape, strides: Shape, single: int) -> int | None:
    """The stride of items whose batch dimensions follow each other, `single` if there is one item; `None` if they do not."""
    moving = [(n, s) for n, s in zip(shape, strides, strict=True) if n != 1]
    if any(outer != n * s for (n, s), (_, outer) in zip(moving[1:], moving, strict=False)):
        return None
    return moving[-1][1] if moving else single


def record_width(channels: int) -> int:
    """Numbers per record: a multiple of four, which are loaded at once."""
    return -(-(PLANES.value + 3 * channels) // 4) * 4


def bin_side(size: int) -> int:
    """A face knows its bins as bytes, so there may be no more than 256 along a side of the image."""
    side = BIN
    while 256 * side < size:
        side *= 2
    return side


def small_faces(settings: RasterSettings) -> float:
    """How large a face may be to be covered by a rule of points: its box's diagonal squared, in units of sigma^2; 0: none.

    The rule is of degree 4, so that its error falls like the sixth power of the face's size: the size follows epsilon.
    Measured on spheres with faces of 0.3 to 2.5 sigma, df = 8, epsilon = 1e-4: totals are off by 2e-5 at most. With more
    degrees of freedom noise is narrower against sigma.
    """
    if settings.half_df > 4:
        return 0.0
    return min(SMALL[1], SMALL[0] * (settings.epsilon / 1e-4) ** (1 / 6)) ** 2


def bands(settings: RasterSettings) -> tuple[int, int]:
    """From how many pixels on a face is cut into bands, and how many places an item has for them.

    Bands of a face end up in any order, so deterministic gradients do without.
    """
    pixels = settings.height * settings.width
    limit = max(LARGE, pixels // 64)
    return limit, JOBS if pixels > limit and not settings.deterministic else 0

"""Bitonic networks on the GPU: rows in registers, all layers in one launch; layers of far partners through memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from algonet.core.cache import constant
from algonet.core.launch import Launch

from ...networks import Bitonic
from ...reference import SortSettings
from .source import SCRATCH, has_light_tails, kernels, processors

#: The most items of a row that one program holds.
WIDEST = 4096
#: Partners up to this far apart meet inside a warp.
NEAR = 32
#: Layers of one launch for rows beyond WIDEST: with more, scratch would let few programs run at once.
DEEPEST = 26
_FAR_BLOCK = 1024

State = tuple[Tensor, Tensor]


class _Group(NamedTuple):
    """Layers that run in one launch: `begin` to `end` inside chunks of the row, or one `far` layer through memory."""

    begin: int
    end: int
    far: bool


class Shape(NamedTuple):
    """How lines map to programs: `chunks` programs per line, `lines` per program, each of `blocks` rows of `E` places."""

    chunks: int
    lines: int
    blocks: int
    E: int
    warps: int

    @property
    def held(self) -> int:
        """Places of one program."""
        return self.lines * self.blocks * self.E


def shape_of(places: int) -> Shape:
    held = min(max(places, 2), WIDEST)
    E = min(held, NEAR)
    blocks = held // E
    return Shape(max(places, 2) // held, max(1, 32 // E), blocks, E, max(1, min(16, blocks * E // 128)))


class BitonicSort:
    """Everything about a call that does not depend on its numbers, computed once.

    A line is a row, or one channel of a row that has a payload. `split` lines have their own copy of the items and a
    channel-major payload, as the layers through memory need.
    """

    #: Nothing is saved for backward.
    saved_shape = None

    def __init__(
        self, settings: SortSettings, shape: torch.Size, channels: int, dtype: torch.dtype, device: torch.device
    ):
        self.settings = settings
        self.n = n = shape[-1]
        self.rows = rows = shape.numel() // n
        self.channels = channels
        self.count = rows * max(channels, 1)
        self.places = 1 << (n - 1).bit_length()
        self.split = self.places > WIDEST and channels > 0
        self.stride = 1 if self.split else max(channels, 1)
        self.depth = self.settings.table(n).depth
        self.groups = self._groups()
        self._options = {
            "LIGHT": has_light_tails(settings.sigmoid),
            "MASKED": self.settings.masked,
            "PAYLOAD": channels > 0,
        }
        self.device, self.dtype = device, dtype
        self.shape = shape_of(self.places)
        self.tiles = -(-self.count // self.shape.lines) * self.shape.chunks
        self.masks = _masks(self.depth, device)
        self.states = 2 if channels else 1
        self.launches: dict[tuple, Launch] = {}

    def _groups(self) -> tuple[_Group, ...]:
        if self.places <= WIDEST:
            return (_Group(0, self.depth, False),)
        groups: list[_Group] = []
        for layer in range(self.depth):
            far = Bitonic.stage_and_mask(layer)[1] >= WIDEST
            if far or not groups or groups[-1].far or layer - groups[-1].begin == DEEPEST:
                groups.append(_Group(layer, layer + 1, far))
            else:
                groups[-1] = _Group(groups[-1].begin, layer + 1, False)
        return tuple(groups)

    def forward(self, tensors: Sequence[Tensor]) -> tuple[list[Tensor], list[Tensor]]:
        """(values, payload); nothing is kept for backward."""
        state, lengths = self._forth(tensors)
        for group in self.groups:
            state = self._layers(group, state, lengths, tensors[2])
        if not self.channels:
            return [state[0]], []
        if not self.split:
            return list(state), []
        values, moved = (t.view(self.rows, self.channels, self.n) for t in state)
        return [values[:, 0].reshape(tensors[0].shape), moved.transpose(1, 2).reshape(tensors[3].shape)], []

    def backward(
        self, grads: Sequence[Tensor | None], tensors: Sequence[Tensor], saved: Sequence[Tensor], needs: Sequence[bool]
    ) -> list[Tensor | None]:
        """The gradients by items, (lengths,) steepness and payload."""
        steepness, steep = tensors[2], needs[2]
        state, lengths = self._forth(tensors)
        states = [state]
        for group in self.groups[:-1]:
            states.append(self._layers(group, states[-1], lengths, steepness))
        like = (tensors[0], *tensors[3:])
        slopes = self._forth_grads([torch.zeros_like(t) if g is None else g for g, t in zip(grads, like, strict=True)])
        parts: list[Tensor] = []
        for group in reversed(self.groups):
            slopes, part = self._layers_back(group, states.pop(), slopes, lengths, steepness, steep)
            parts += [part.sum()] if steep else []
        by_steepness = torch.stack(parts).sum() if steep else None
        grad_x, grad_payload = slopes
        if not self.channels:
            return [grad_x, None, by_steepness]
        if self.channels > 1:
            grad_x = grad_x.sum(-2) if needs[0] else None
        if self.split:
            grad_x = None if grad_x is None else grad_x.reshape(tensors[0].shape)
            grad_payload = grad_payload.view(self.rows, -1, self.n).transpose(1, 2).reshape(tensors[3].shape)
        return [grad_x, None, by_steepness, grad_payload]

    def _forth(self, tensors: Sequence[Tensor]) -> tuple[State, Tensor]:
        """(items and payload, lengths) of the lines; where there is no payload x stands in, never read as one."""
        x, lengths = tensors[0].contiguous(), tensors[1]
        payload = tensors[3].contiguous() if self.channels else x
        if not self.split:
            return (x, payload), lengths
        x = x.view(self.rows, 1, self.n).expand(self.rows, self.channels, self.n).contiguous()
        payload = payload.view(self.rows, self.n, self.channels).transpose(1, 2).contiguous()
        return (x, payload), lengths.reshape(-1).repeat_interleave(self.channels)

    def _forth_grads(self, grads: list[Tensor]) -> State:
        """Gradients of rows to those of lines: that of the items enters at the first channel."""
        grads = [g.contiguous() for g in grads]
        if not self.split:
            return grads[0], grads[-1]
        first = torch.zeros(self.rows, self.channels, self.n, dtype=self.dtype, device=self.device)
        first[:, 0] = grads[0].view(self.rows, self.n)
        return first, grads[1].view(self.rows, self.n, self.channels).transpose(1, 2).contiguous()

    def _layers(self, group: _Group, state: State, lengths: Tensor, steepness: Tensor) -> State:
        x, payload = state
        values = torch.empty_like(x)
        moved = torch.empty_like(payload) if self.channels else values
        given = {
            "x_ptr": x, "payload_ptr": payload, "values_ptr": values, "sorted_ptr": moved, "length_ptr": lengths,
            "steepness_ptr": steepness,
        }  # fmt: skip
        if not group.far:
            given["table_ptr"] = self.masks
            given["scratch_ptr"] = x.new_empty(self.tiles * 2 * self.shape.held) if self.shape.blocks > 1 else x
        self._launch(group, "forward").start(**given)
        return values, moved

    def _layers_back(
        self, group: _Group, state: State, slopes: State, lengths: Tensor, steepness: Tensor, steep: bool
    ) -> tuple[State, Tensor]:
        x, payload = state
        grad_x = torch.empty_like(x) if self.stride == 1 else x.new_empty(*x.shape[:-1], self.stride, self.n)
        grad_payload = torch.empty_like(payload) if self.channels else grad_x
        launch = self._launch(group, "backward", STEEP=steep)
        part = x.new_empty(launch.grid[0] * launch.grid[1]) if steep else x
        given = {
            "x_ptr": x, "payload_ptr": payload, "length_ptr": lengths, "steepness_ptr": steepness, "grad_ptr": slopes[0],
            "grad_sorted_ptr": slopes[1], "grad_x_ptr": grad_x, "grad_payload_ptr": grad_payload,
            "grad_steepness_ptr": part,
        }  # fmt: skip
        if not group.far:
            given |= {"table_ptr": self.masks, "scratch_ptr": x.new_empty(launch.grid[0] * self._held(group))}
        launch.start(**given)
        return (grad_x, grad_payload), part

    def _launch(self, group: _Group, way: str, **more: Any) -> Launch:
        key = group, way, *more.values()
        if key not in self.launches:
            # As many programs of backward as there is work for, the device can hold and SCRATCH can feed
            most = SCRATCH // (self._held(group) * self.dtype.itemsize)
            programs = max(1, min(self.tiles, 16 * processors(self.device), most))
            if group.far:
                more |= self._far(group)
            elif way == "backward":
                more |= {"grid": programs, "tiles": self.tiles, "programs": programs, **self._span(group)}
            else:
                more |= {"grid": self.tiles, **self._span(group)}
            kernel = f"{'far' if group.far else 'bitonic'}_{way}_kernel"
            self.launches[key] = Launch(getattr(kernels("bitonic", self.settings.sigmoid), kernel), **more)
        return self.launches[key]

    def _held(self, group: _Group) -> int:
        """Items of scratch that a program of backward takes."""
        return (group.end - group.begin + 1) * self.states * self.shape.held

    def _span(self, group: _Group) -> dict[str, Any]:
        chunks, lines, blocks, E, warps = self.shape
        return {
            "lines": self.count, "n": self.n, "channels": self.stride, "begin": group.begin, "end": group.end,
            "depth": self.depth, "total": self.places, "CHUNKS": chunks, "LINES": lines, "BLOCKS": blocks, "E": E,
            "warps": warps, **self._options,
        }  # fmt: skip

    def _far(self, group: _Group) -> dict[str, Any]:
        mask, grid = Bitonic.stage_and_mask(group.begin)[1], (-(-self.places // 2 // _FAR_BLOCK), self.count)
        return {
            "grid": grid, "n": self.n, "bit": mask.bit_length() - 1, "mask": mask,
            "need": Bitonic().layer_need(group.begin), "total": self.places, "BLOCK": _FAR_BLOCK, **self._options,
        }  # fmt: skip


def _masks(depth: int, device: torch.device) -> Tensor:
    """Masks of the bitonic layers, then the numbers of items they need: a few hundred numbers."""
    masks = [Bitonic.stage_and_mask(layer)[1] for layer in range(depth)]
    needs = [Bitonic().layer_need(layer) for layer in range(depth)]
    return constant((*masks, *needs), torch.int32, device)

"""Bitonic networks on the GPU: rows in registers, all layers in one launch; layers of far partners through memory."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from algonet.core.cache import TensorCache
from algonet.core.launch import Launch

from ...networks import Bitonic
from ...settings import SortSettings
from .source import kernels, processors

#: The most items of a row that one program holds.
WIDEST = 4096
#: Scratch of backward over all programs, in bytes: fewer programs run at once where each needs more.
SCRATCH = 64 * 2**20
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


def shape_of(places: int) -> tuple[int, int, int, int, int]:
    """(programs per line, lines per program, rows of E places per line, E, warps)."""
    held = min(max(places, 2), WIDEST)
    E = min(held, NEAR)
    blocks = held // E
    return max(places, 2) // held, max(1, 32 // E), blocks, E, max(1, min(16, blocks * E // 128))


class BitonicSort:
    """Everything about a call that does not depend on its numbers, computed once.

    A line is a row, or one channel of a row that has a payload. `split` lines have their own copy of the items and a
    channel-major payload, as the layers through memory need.
    """

    kept = None

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
        # Whether 2e18 times the steepness gives exactly 0 or 1 without further ado
        light = float(self.settings.sigmoid.reach(1e-30)) < 1e3
        self.options = (light, self.settings.masked, channels > 0)
        self.device, self.dtype = device, dtype
        self.shape = shape_of(self.places)
        self.tiles = -(-self.count // self.shape[1]) * self.shape[0]
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

    def forward(self, tensors: list[Tensor]) -> tuple[list[Tensor], list[Tensor]]:
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
        self, grads: list[Tensor | None], tensors: list[Tensor], saved: list[Tensor], needs: list[bool]
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

    def _forth(self, tensors: list[Tensor]) -> tuple[State, Tensor]:
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
        tensors = (x, payload, values, moved, lengths, steepness)
        launch = self.launches.get((group, False)) or self._forward_launch(group)
        if group.far:
            launch(*tensors)
        else:
            held = self.tiles * 2 * self.shape[1] * self.shape[2] * self.shape[3]
            launch(*tensors, self.masks, x.new_empty(held) if self.shape[2] > 1 else x)
        return values, moved

    def _layers_back(
        self, group: _Group, state: State, slopes: State, lengths: Tensor, steepness: Tensor, steep: bool
    ) -> tuple[State, Tensor]:
        x, payload = state
        grad_x = torch.empty_like(x) if self.stride == 1 else x.new_empty(*x.shape[:-1], self.stride, self.n)
        grad_payload = torch.empty_like(payload) if self.channels else grad_x
        before, after = (x, payload, lengths, steepness), (*slopes, grad_x, grad_payload)
        launch = self.launches.get((group, True, steep)) or self._backward_launch(group, steep)
        part = x.new_empty(launch.grid[0] * launch.grid[1]) if steep else x
        if group.far:
            launch(*before, *after, part)
        else:
            launch(*before, self.masks, *after, part, x.new_empty(launch.grid[0] * self._held(group)))
        return (grad_x, grad_payload), part

    def _forward_launch(self, group: _Group) -> Launch:
        if group.far:
            launch = self._launch(
                "far_forward_kernel", self._far_grid, self._far(group), (*self.options, _FAR_BLOCK), 4
            )
        else:
            constants = (*self.options, *self.shape[:4])
            launch = self._launch("bitonic_forward_kernel", self.tiles, self._span(group), constants, self.shape[4])
        self.launches[group, False] = launch
        return launch

    def _backward_launch(self, group: _Group, steep: bool) -> Launch:
        options = (*self.options, steep)
        if group.far:
            launch = self._launch("far_backward_kernel", self._far_grid, self._far(group), (*options, _FAR_BLOCK), 4)
        else:
            # As many programs as there is work for, the device can hold and SCRATCH can feed
            most = SCRATCH // (self._held(group) * self.dtype.itemsize)
            programs = max(1, min(self.tiles, 16 * processors(self.device), most))
            numbers = (*self._span(group), self.tiles, programs)
            constants = (*options, *self.shape[:4])
            launch = self._launch("bitonic_backward_kernel", programs, numbers, constants, self.shape[4])
        self.launches[group, True, steep] = launch
        return launch

    def _launch(
        self, kernel: str, grid: int | tuple[int, int], numbers: tuple[int, ...], constants: tuple, warps: int
    ) -> Launch:
        return Launch(getattr(kernels(self.settings.sigmoid, "bitonic"), kernel), grid, numbers, constants, warps)

    def _held(self, group: _Group) -> int:
        """Items of scratch that a program of backward takes."""
        return (group.end - group.begin + 1) * self.states * self.shape[1] * self.shape[2] * self.shape[3]

    def _span(self, group: _Group) -> tuple[int, ...]:
        return self.count, self.n, self.stride, group.begin, group.end, self.depth, self.places

    @property
    def _far_grid(self) -> tuple[int, int]:
        return -(-self.places // 2 // _FAR_BLOCK), self.count

    def _far(self, group: _Group) -> tuple[int, ...]:
        mask = Bitonic.stage_and_mask(group.begin)[1]
        return self.n, mask.bit_length() - 1, mask, Bitonic().layer_need(group.begin), self.places


def _masks(depth: int, device: torch.device) -> Tensor:
    """Masks of the bitonic layers, then the numbers of items they need."""

    def make() -> Tensor:
        masks = [Bitonic.stage_and_mask(layer)[1] for layer in range(depth)]
        needs = [Bitonic().layer_need(layer) for layer in range(depth)]
        return torch.tensor(masks + needs, dtype=torch.int32, device="cpu").to(device)

    return _MASKS.get((depth, device), make)


#: A few hundred numbers for each size.
_MASKS: TensorCache[Tensor] = TensorCache("masks of bitonic layers", most=256, budget=2**20)

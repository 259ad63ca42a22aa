"""Soft sorting on the GPU: rows in registers, all layers in one launch; layers of far partners through memory."""

from __future__ import annotations

import functools
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import torch
from torch import Tensor

from algonet import codegen

from ..networks import Bitonic
from ..plan import Plan, decode

#: The most items of a row that one program holds.
WIDEST = 4096
#: Scratch of backward over all programs, in bytes: fewer programs run at once where each needs more.
SCRATCH = 64 * 2**20
#: Odd-even lines up to this long are one row of the table; longer ones are cut into groups of CORE.
WHOLE, CORE = 128, 64
#: Odd-even forward keeps every so many layers for backward, unless that takes more than KEPT bytes for all rows:
#: then backward goes through the rows in parts. (The halo, CORE / 2, is twice as wide: see the kernels.)
SEGMENT, KEPT = 16, 32 * 2**20
#: Bitonic partners up to this far apart meet inside a warp.
NEAR = 32
#: Layers of one launch for bitonic rows beyond WIDEST: with more, scratch would let few programs run at once.
DEEPEST = 26
_FAR_BLOCK = 1024

State = tuple[Tensor, Tensor]


def sort_forward(tensors: list[Tensor], settings: str) -> tuple[list[Tensor], list[Tensor]]:
    """The kernel of `sort_reference`; saves states of an odd-even sort where they are few."""
    if len(tensors) > 3 and tensors[3].shape[-1] == 0:
        found, saved = sort_forward(tensors[:3], settings)
        return [*found, tensors[3].clone()], saved
    x, lengths, steepness, payload = _ready(tensors)
    lines = _lines_of(settings, tensors)
    if lines is None:
        return [t.clone() for t in (x, payload)[: len(tensors) - 2]], []
    kept = x.new_empty(lines.kept) if lines.kept else None
    state, lengths = lines.forth(x, payload, lengths)
    for group in lines.groups:
        state = lines.forward(group, state, lengths, steepness, kept)
    values, moved = lines.back(state)
    saved = [] if kept is None else [kept]
    if len(tensors) == 3:
        return [values], saved
    if not lines.split:
        return [values, moved], saved
    return [values.reshape(x.shape), moved.reshape(payload.shape)], saved


def kept_shape(tensors: list[Tensor], settings: str) -> tuple[int, ...] | None:
    """The shape of what `sort_forward` saves, `None` if nothing."""
    lines = _lines_of(settings, tensors)
    return None if lines is None else lines.kept


def sort_backward(
    grads: list[Tensor], tensors: list[Tensor], saved: list[Tensor], settings: str, needs: list[bool]
) -> list[Any]:
    """The gradients of `sort_forward` by items, steepness and payload."""
    if len(tensors) > 3 and tensors[3].shape[-1] == 0:
        return [*sort_backward(grads[:1], tensors[:3], saved, settings, needs), grads[1].clone()]
    x, lengths, steepness, payload = _ready(tensors)
    grads = [g.contiguous() for g in grads]
    lines = _lines_of(settings, tensors)
    if lines is None:
        return [grads[0].clone(), None, torch.zeros_like(steepness), *(g.clone() for g in grads[1:])]
    if lines.segments > 1 and not saved:
        return _in_parts(grads, [x, lengths, steepness, *tensors[3:]], lines, settings, needs)
    state, lengths = lines.forth(x, payload, lengths)
    states = [state]
    for group in lines.groups[:-1]:
        states.append(lines.forward(group, states[-1], lengths, steepness, None))
    slopes = lines.forth_grads(grads)
    by_steepness = None
    for group in reversed(lines.groups):
        kept = saved[0] if saved else None
        slopes, part = lines.backward(group, states.pop(), slopes, lengths, steepness, needs[2], kept)
        if part is not None:
            by_steepness = part.sum() if by_steepness is None else by_steepness + part.sum()
    grad_x, grad_payload = slopes
    if len(tensors) == 3:
        return [grad_x, None, by_steepness]
    if lines.channels > 1:
        grad_x = grad_x.sum(-2) if needs[0] else None
    if lines.split:
        grad_x = None if grad_x is None else grad_x.reshape(x.shape)
        grad_payload = grad_payload.reshape(lines.rows, -1, lines.n).transpose(1, 2).reshape(payload.shape)
    return [grad_x, None, by_steepness, grad_payload]


def _in_parts(grads: list[Tensor], tensors: list[Tensor], lines: _Lines, settings: str, needs: list[bool]) -> list[Any]:
    """Backward without saved states: sort again, so many rows at a time that their states fit."""
    flat = [t.reshape(lines.rows, *t.shape[tensors[0].dim() - 1 :]) for t in (tensors[0], *tensors[3:])]
    slopes = [g.reshape(f.shape) for g, f in zip(grads, flat, strict=True)]
    lengths = tensors[1].reshape(-1)
    most = max(1, KEPT // max(lines.row_bytes, 1))
    found: list[list[Any]] = []
    for begin in range(0, lines.rows, most):
        rows = slice(begin, begin + most)
        part = [
            flat[0][rows],
            lengths[rows] if lines.plan.masked else lengths,
            tensors[2],
            *(f[rows] for f in flat[1:]),
        ]
        lines_of_part = _lines_of(settings, part)
        assert lines_of_part is not None
        kept = lines_of_part.new_kept(part[0])
        lines_of_part.forward(lines.groups[0], (part[0], part[-1]), part[1], tensors[2], kept)
        found.append(sort_backward([g[rows] for g in slopes], part, [kept], settings, needs))
    columns: list[Any] = [None if column[0] is None else column for column in zip(*found, strict=True)]
    wanted = ((0, tensors[0]), *((3, t) for t in tensors[3:]))
    joined = [None if columns[i] is None else torch.cat(columns[i]).view(t.shape) for i, t in wanted]
    by_steepness = None if columns[2] is None else torch.stack(columns[2]).sum()
    return [joined[0], None, by_steepness, *joined[1:]]


def _lines_of(settings: str, tensors: list[Tensor]) -> _Lines | None:
    """The plan of the launches; `None` where there is nothing to sort."""
    x = tensors[0]
    return _lines(settings, x.shape, tensors[3].shape[-1] if len(tensors) > 3 else 0, x.dtype, x.device)


def _ready(tensors: list[Tensor]) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """(x, lengths, steepness, payload), contiguous; where there is no payload x stands in, never read as one."""
    x = tensors[0].contiguous()
    return x, tensors[1], tensors[2], tensors[3].contiguous() if len(tensors) > 3 else x


class _Group(NamedTuple):
    """Layers that run in one launch: `begin` to `end` inside chunks of the row, or one `far` layer through memory."""

    begin: int
    end: int
    far: bool


class OddEvenShape(NamedTuple):
    """How lines map to programs: `lines` per program, each of `groups` of `core` items with `halo` more on both sides."""

    lines: int
    groups: int
    threads: int
    core: int
    halo: int
    warps: int


def odd_even_shape(n: int, lines: int) -> OddEvenShape:
    places = max(4, 1 << max(n - 1, 0).bit_length())
    if places <= WHOLE:
        threads = places // 4
        count = max(1, 32 // threads)
        while count * 2 * threads <= 128 and lines > 4000 * count:
            count *= 2
        return OddEvenShape(count, 1, threads, places, 0, 1)
    groups = max(2, places // CORE)
    return OddEvenShape(1, groups, CORE // 2, CORE, CORE // 2, min(16, groups))


def bitonic_shape(places: int) -> tuple[int, int, int, int, int]:
    """(programs per line, lines per program, rows of E places per line, E, warps)."""
    held = min(max(places, 2), WIDEST)
    E = min(held, NEAR)
    blocks = held // E
    return max(places, 2) // held, max(1, 32 // E), blocks, E, max(1, min(16, blocks * E // 128))


class _Lines:
    """Everything about a call that does not depend on its numbers, computed once.

    A line is a row, or one channel of a row that has a payload. `split` lines have their own copy of the items and a
    channel-major payload, as the layers through memory need.
    """

    def __init__(self, settings: str, shape: torch.Size, channels: int, dtype: torch.dtype, device: torch.device):
        self.plan = decode(settings)
        self.n = n = shape[-1]
        self.rows = rows = shape.numel() // n
        self.channels = channels
        self.count = rows * max(channels, 1)
        self.places = 1 << (n - 1).bit_length()
        self.split = self.places > WIDEST and channels > 0
        self.stride = 1 if self.split else max(channels, 1)
        self.odd_even = self.plan.network == "odd_even"
        self.module = _kernels(self.plan.form)
        self.depth = self.plan.table(n).depth
        self.groups = self._groups()
        self.options = (self.plan.masked, channels > 0)
        # Whether 2e18 times the steepness gives exactly 0 or 1 without further ado
        self.light = float(self.plan.sigmoid.reach(1e-30)) < 1e3
        self.device, self.dtype, self.item = device, dtype, dtype.itemsize
        self.shape: Any = odd_even_shape(n, self.count) if self.odd_even else bitonic_shape(self.places)
        self.masks = None if self.odd_even else _masks(self.depth, device)
        self.far_off = device.type == "cuda" and torch.cuda.device_count() > 1
        self.runners: dict[tuple, Any] = {}
        self.states = 2 if channels else 1
        self.segment, self.segments, self.kept = self.depth, 1, None
        if self.odd_even:
            self._keep(shape)

    def _keep(self, shape: torch.Size) -> None:
        """How many layers of an odd-even sort backward goes back at a time, and what forward keeps for that."""
        _, groups, threads, core, _, _ = self.shape
        everything = self.count * self.states * groups * (2 * core + self.depth * 4 * threads) * self.item
        if groups > 1 or everything > SCRATCH:
            self.segment = min(SEGMENT, self.depth)
            self.segments = -(-self.depth // self.segment)
        self.row_bytes = max(self.channels, 1) * (self.segments - 1) * self.states * self.n * self.item
        if 0 < self.rows * self.row_bytes <= KEPT:
            self.kept = (*shape[:-1], self.row_bytes // self.item)

    def new_kept(self, x: Tensor) -> Tensor:
        return x.new_empty(self.rows, self.row_bytes // self.item)

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

    def forth(self, x: Tensor, payload: Tensor, lengths: Tensor) -> tuple[State, Tensor]:
        """Rows to lines."""
        if not self.split:
            return (x, payload), lengths
        x = x.reshape(self.rows, 1, self.n).expand(self.rows, self.channels, self.n).contiguous()
        payload = payload.reshape(self.rows, self.n, self.channels).transpose(1, 2).contiguous()
        return (x, payload), lengths.reshape(-1).repeat_interleave(self.channels)

    def back(self, state: State) -> State:
        """Lines to rows: one copy of the items, the payload as it came."""
        if not self.split:
            return state
        values, moved = (t.reshape(self.rows, self.channels, self.n) for t in state)
        return values[:, 0], moved.transpose(1, 2)

    def forth_grads(self, grads: list[Tensor]) -> State:
        """Gradients of rows to those of lines: that of the items enters at the first channel."""
        if not self.split:
            return grads[0], grads[-1]
        first = torch.zeros(self.rows, self.channels, self.n, dtype=self.dtype, device=self.device)
        first[:, 0] = grads[0].reshape(self.rows, self.n)
        return first, grads[1].reshape(self.rows, self.n, self.channels).transpose(1, 2).contiguous()

    def forward(self, group: _Group, state: State, lengths: Tensor, steepness: Tensor, kept: Tensor | None) -> State:
        x, payload = state
        values = torch.empty_like(x)
        moved = torch.empty_like(payload) if self.channels else values
        tensors = (x, payload, values, moved, lengths, steepness)
        if group.far:
            grid = (-(-self.places // 2 // _FAR_BLOCK), self.count)
            args = (*tensors, self.n, *self._far(group))
            self._launch("far_forward_kernel", grid, args, (self.light, *self.options, _FAR_BLOCK), 4)
        elif self.odd_even:
            lines, groups, threads, core, halo, warps = self.shape
            segment, scratch = (self.segment, kept) if kept is not None else (halo if groups > 1 else self.depth, x)
            if kept is None and groups > 1:
                scratch = x.new_empty(self.count * 2 * self.states * self.n)
            ints = (self.count, self.n, self.stride, self.depth, segment, -(-self.depth // segment))
            fixed = (
                self.light,
                self.plan.steps is not None,
                *self.options,
                kept is not None,
                lines,
                groups,
                threads,
                core,
                halo,
            )
            grid = (-(-self.count // lines), 1)
            self._launch("odd_even_forward_kernel", grid, (*tensors, scratch, *ints), fixed, warps)
        else:
            chunks, lines, blocks, E, warps = self.shape
            programs = -(-self.count // lines) * chunks
            scratch = x.new_empty(programs * 2 * lines * blocks * E) if blocks > 1 else x
            args = (*tensors, self.masks, scratch, *self._span(group))
            self._launch(
                "bitonic_forward_kernel", (programs, 1), args, (self.light, *self.options, *self.shape[:4]), warps
            )
        return values, moved

    def backward(
        self,
        group: _Group,
        state: State,
        slopes: State,
        lengths: Tensor,
        steepness: Tensor,
        steep: bool,
        kept: Tensor | None,
    ) -> tuple[State, Tensor | None]:
        x, payload = state
        grad_x = torch.empty_like(x) if self.stride == 1 else x.new_empty(*x.shape[:-1], self.stride, self.n)
        grad_payload = torch.empty_like(payload) if self.channels else grad_x
        before, after = (x, payload, lengths, steepness), (*slopes, grad_x, grad_payload)
        if group.far:
            grid = (-(-self.places // 2 // _FAR_BLOCK), self.count)
            part = x.new_empty(grid[0] * grid[1]) if steep else x
            args = (*before, *after, part, self.n, *self._far(group))
            self._launch("far_backward_kernel", grid, args, (self.light, *self.options, steep, _FAR_BLOCK), 4)
        elif self.odd_even:
            lines, groups, threads, core, halo, warps = self.shape
            size = self.states * lines * groups * (2 * core + self.segment * 4 * threads)
            tiles = -(-self.count // lines)
            programs = self._programs(tiles, size)
            part = x.new_empty(programs) if steep else x
            ints = (self.count, self.n, self.stride, self.depth, self.segment, self.segments, tiles, programs)
            fixed = (self.light, self.plan.steps is not None, *self.options, steep, lines, groups, threads, core, halo)
            args = (*before, *after, part, x if kept is None else kept, x.new_empty(programs * size), *ints)
            self._launch("odd_even_backward_kernel", (programs, 1), args, fixed, warps)
        else:
            chunks, lines, blocks, E, warps = self.shape
            tiles = -(-self.count // lines) * chunks
            size = (group.end - group.begin + 1) * self.states * lines * blocks * E
            programs = self._programs(tiles, size)
            part = x.new_empty(programs) if steep else x
            args = (
                *before,
                self.masks,
                *after,
                part,
                x.new_empty(programs * size),
                *self._span(group),
                tiles,
                programs,
            )
            fixed = (self.light, *self.options, steep, *self.shape[:4])
            self._launch("bitonic_backward_kernel", (programs, 1), args, fixed, warps)
        return (grad_x, grad_payload), part if steep else None

    def _span(self, group: _Group) -> tuple[int, ...]:
        return self.count, self.n, self.stride, group.begin, group.end, self.depth, self.places

    def _far(self, group: _Group) -> tuple[int, int, int, int]:
        mask = Bitonic.stage_and_mask(group.begin)[1]
        return mask.bit_length() - 1, mask, Bitonic().layer_need(group.begin), self.places

    def _programs(self, tiles: int, size: int) -> int:
        """As many programs as there is work for, the device can hold and SCRATCH can feed."""
        return max(1, min(tiles, 16 * _processors(self.device), SCRATCH // (size * self.item)))

    def _launch(self, name: str, grid: tuple[int, int], args: tuple, fixed: tuple, warps: int) -> None:
        """Launch a kernel; from the second time on without Triton's look at each argument, which costs more than a sort.

        That is sound because no argument is specialised (see `PLAIN` in the template): the types alone choose the code.
        """
        if self.far_off and self.device.index != torch.cuda.current_device():
            with torch.cuda.device(self.device):
                return self._launch(name, grid, args, fixed, warps)
        again = self.runners.get((name, fixed, grid))
        if again is not None:
            again(*args, *fixed)
            return None
        key = (name, self.plan.form, self.dtype, fixed, warps, self.device)
        compiled = _COMPILED.get(key)
        if compiled is None:
            compiled = getattr(self.module, name)[grid](*args, *fixed, num_warps=warps)
            if compiled is not None:  # the interpreter compiles nothing
                _COMPILED[key] = compiled
            return None
        again = compiled[(*grid, 1)]
        try:
            again(*args, *fixed)
        except TypeError:  # releases before 3.3 want the arguments without constants
            again = functools.partial(getattr(self.module, name)[grid], num_warps=warps)
            again(*args, *fixed)
        self.runners[name, fixed, grid] = again
        return None


_COMPILED: dict[tuple, Any] = {}
#: Shorter formulas for the value alone. exp overflows to infinity for z < -88, of which the reciprocal is the 0 it should be.
_CHANCES = {"Logistic": "value = 1.0 / (1.0 + tl.exp(-z))"}


@functools.lru_cache(maxsize=1024)
def _lines(settings: str, shape: torch.Size, channels: int, dtype: torch.dtype, device: torch.device) -> _Lines | None:
    if shape.numel() == 0 or decode(settings).table(shape[-1]).depth == 0:
        return None
    return _Lines(settings, shape, channels, dtype, device)


@functools.lru_cache(maxsize=64)
def _masks(depth: int, device: torch.device) -> Tensor:
    """Masks of the bitonic layers, then the numbers of items they need."""
    masks = [Bitonic.stage_and_mask(layer)[1] for layer in range(depth)]
    return torch.tensor(masks + [Bitonic().layer_need(layer) for layer in range(depth)], dtype=torch.int32).to(device)


@functools.lru_cache(maxsize=16)
def _processors(device: torch.device) -> int:
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 2


@functools.lru_cache(maxsize=64)
def _kernels(form: str) -> ModuleType:
    template = Path(__file__).with_name("triton_layers.py").read_text(encoding="utf-8")
    _, kernels = template.split("# --- template ---\n")
    gate = codegen.scalar_function(Plan("odd_even", form).sigmoid, "gate", "triton")
    chance = f"@triton.jit\ndef chance(z):\n    {_CHANCES.get(form, 'value, slope = gate(z)')}\n    return value\n"
    return codegen.load(f"sort_triton_{form}", "\n\n".join([codegen.PRELUDES["triton"], gate, chance, kernels]))

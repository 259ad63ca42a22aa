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
#: Layers between two exchanges of the cores in forward (the halo is CORE / 2), and layers kept at once in backward.
FORWARD_SEGMENT, LONGEST = 32, 512
#: Bitonic partners up to this far apart meet inside a warp.
NEAR = 32
_FAR_BLOCK = 1024


def sort_forward(tensors: list[Tensor], settings: str) -> tuple[list[Tensor], list[Tensor]]:
    """The kernel of `sort_reference`; nothing is saved."""
    x, payload, lengths, steepness = _ready(tensors)
    plan = decode(settings)
    if x.numel() == 0 or _depth(plan, x.shape[-1]) == 0:
        return [x.clone(), payload.clone()], []
    lines = _lines(x, payload, lengths, plan)
    state = (lines.x, lines.payload)
    for group in _groups(plan, lines):
        state = _forward(group, lines, state, steepness)
    values, moved = lines.back(*state)
    return [values.reshape(x.shape), moved.reshape(payload.shape)], []


def sort_backward(
    grads: list[Tensor], tensors: list[Tensor], saved: list[Tensor], settings: str, needs: list[bool]
) -> list[Tensor]:
    """The gradients of `sort_forward` by items, payload and steepness."""
    x, payload, lengths, steepness = _ready(tensors)
    grad, grad_payload = (g.contiguous() for g in grads)
    plan = decode(settings)
    none = x.new_empty(0)
    if x.numel() == 0 or _depth(plan, x.shape[-1]) == 0:
        return [grad.clone(), grad_payload.clone(), none, torch.zeros_like(steepness)]
    lines = _lines(x, payload, lengths, plan)
    groups = _groups(plan, lines)
    states = [(lines.x, lines.payload)]
    for group in groups[:-1]:
        states.append(_forward(group, lines, states[-1], steepness))
    slopes = lines.forth(grad, grad_payload)
    by_steepness = torch.zeros_like(steepness)
    while groups:
        slopes, part = _backward(groups.pop(), lines, states.pop(), slopes, steepness)
        by_steepness = by_steepness + part.sum() if needs[3] else by_steepness
    grad_x, grad_payload = slopes[0].reshape(lines.rows, -1, lines.n), slopes[1]
    grad_x = grad_x.sum(1) if grad_x.shape[1] > 1 else grad_x
    if lines.split:
        grad_payload = grad_payload.reshape(lines.rows, -1, lines.n).transpose(1, 2)
    return [grad_x.reshape(x.shape), grad_payload.reshape(payload.shape), none, by_steepness]


class _Group(NamedTuple):
    """Layers that run in one launch: `begin` to `end` inside chunks of the row, or one `far` layer through memory."""

    begin: int
    end: int
    far: bool


class _Lines(NamedTuple):
    """Rows as the kernels see them. A line is a row, or one channel of a row that has a payload.

    `split` lines have their own copy of the items and a channel-major payload, as the layers through memory need.
    """

    x: Tensor
    payload: Tensor
    lengths: Tensor
    plan: Plan
    rows: int
    n: int
    channels: int
    places: int
    split: bool

    @property
    def count(self) -> int:
        return self.rows * max(self.channels, 1)

    @property
    def stride(self) -> int:
        """How many lines share their items and interleave their payload."""
        return 1 if self.split else max(self.channels, 1)

    @property
    def options(self) -> dict[str, Any]:
        return {"MASKED": self.plan.masked, "PAYLOAD": self.channels > 0}

    def back(self, values: Tensor, moved: Tensor) -> tuple[Tensor, Tensor]:
        """Lines to rows: one copy of the items, the payload as it came."""
        if not self.split:
            return values, moved
        moved = moved.reshape(self.rows, self.channels, self.n).transpose(1, 2)
        return values.reshape(self.rows, self.channels, self.n)[:, 0], moved

    def forth(self, grad: Tensor, grad_payload: Tensor) -> tuple[Tensor, Tensor]:
        """Gradients of rows to those of lines: that of the items enters at the first channel."""
        if not self.split:
            return grad, grad_payload
        first = torch.zeros(self.rows, self.channels, self.n, dtype=grad.dtype, device=grad.device)
        first[:, 0] = grad.reshape(self.rows, self.n)
        grad_payload = grad_payload.reshape(self.rows, self.n, self.channels).transpose(1, 2)
        return first, grad_payload.contiguous()


def _ready(tensors: list[Tensor]) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    x, payload, lengths, steepness = tensors
    return x.contiguous(), payload.contiguous(), lengths.to(torch.int32).contiguous(), steepness.to(x.dtype)


def _depth(plan: Plan, n: int) -> int:
    return plan.table(n).depth


def _lines(x: Tensor, payload: Tensor, lengths: Tensor, plan: Plan) -> _Lines:
    n, channels = x.shape[-1], payload.shape[-1]
    rows = x.numel() // n
    places = 1 << (n - 1).bit_length()
    split = places > WIDEST and channels > 0
    if split:
        x = x.reshape(rows, 1, n).expand(rows, channels, n).contiguous()
        payload = payload.reshape(rows, n, channels).transpose(1, 2).contiguous()
        lengths = lengths.reshape(-1).repeat_interleave(channels)
    return _Lines(x, payload, lengths, plan, rows, n, channels, places, split)


def _groups(plan: Plan, lines: _Lines) -> list[_Group]:
    depth = _depth(plan, lines.n)
    if lines.places <= WIDEST:
        return [_Group(0, depth, False)]
    groups: list[_Group] = []
    for layer in range(depth):
        far = Bitonic.stage_and_mask(layer)[1] >= WIDEST
        if far or not groups or groups[-1].far:
            groups.append(_Group(layer, layer + 1, far))
        else:
            groups[-1] = _Group(groups[-1].begin, layer + 1, False)
    return groups


def _forward(group: _Group, lines: _Lines, state: tuple[Tensor, Tensor], steepness: Tensor) -> tuple[Tensor, Tensor]:
    module = _kernels(lines.plan.form, lines.plan.sigmoid.scalar or "")
    x, payload = state
    values, moved = torch.empty_like(x), torch.empty_like(payload)
    tensors = (x, payload, values, moved, lines.lengths, steepness)
    if group.far:
        module.far_forward_kernel[_far_grid(lines)](
            *tensors, lines.n, *_far(group, lines), BLOCK=_FAR_BLOCK, **lines.options
        )
    elif lines.plan.network == "odd_even":
        shape = odd_even_shape(lines.n, lines.count)
        programs = -(-lines.count // shape.lines)
        segment = FORWARD_SEGMENT if shape.groups > 1 else group.end
        scratch = x.new_empty(programs * 4 * lines.n if shape.groups > 1 else 0)
        module.odd_even_forward_kernel[(programs,)](
            *tensors, scratch, lines.count, lines.n, lines.stride, group.end, segment, -(-group.end // segment),
            FIXED=lines.plan.steps is not None, **shape.options, **lines.options,
        )  # fmt: skip
    else:
        chunks, count, blocks, E, warps = bitonic_shape(lines.places, lines.count)
        programs = -(-lines.count // count) * chunks
        scratch = x.new_empty(programs * 2 * count * blocks * E if blocks > 1 else 0)
        module.bitonic_forward_kernel[(programs,)](
            *tensors, _masks(group.end, str(x.device)), scratch,
            lines.count, lines.n, lines.stride, group.begin, group.end, group.end, lines.places,
            CHUNKS=chunks, LINES=count, BLOCKS=blocks, E=E, num_warps=warps, **lines.options,
        )  # fmt: skip
    return values, moved


def _backward(
    group: _Group, lines: _Lines, state: tuple[Tensor, Tensor], slopes: tuple[Tensor, Tensor], steepness: Tensor
) -> tuple[tuple[Tensor, Tensor], Tensor]:
    module = _kernels(lines.plan.form, lines.plan.sigmoid.scalar or "")
    x, payload = state
    grad_x, grad_payload = x.new_empty(lines.count * lines.n), torch.empty_like(payload)
    before, after = (x, payload, lines.lengths, steepness), (*slopes, grad_x, grad_payload)
    states = 2 if lines.channels else 1
    if group.far:
        grid = _far_grid(lines)
        part = x.new_empty(grid[0] * grid[1])
        module.far_backward_kernel[grid](
            *before, *after, part, lines.n, *_far(group, lines), BLOCK=_FAR_BLOCK, **lines.options
        )
    elif lines.plan.network == "odd_even":
        shape = odd_even_shape(lines.n, lines.count)
        segment = shape.halo // 2 if shape.groups > 1 else min(group.end, LONGEST)
        segments = -(-group.end // segment)
        rows = shape.lines * shape.groups
        size = states * rows * ((segments + 2) * shape.core + segment * 4 * shape.threads)
        tiles = -(-lines.count // shape.lines)
        programs = _programs(tiles, size * x.element_size(), str(x.device))
        part = x.new_empty(programs)
        module.odd_even_backward_kernel[(programs,)](
            *before, *after, part, x.new_empty(programs * size),
            lines.count, lines.n, lines.stride, group.end, segment, segments, tiles, programs,
            FIXED=lines.plan.steps is not None, **shape.options, **lines.options,
        )  # fmt: skip
    else:
        chunks, count, blocks, E, warps = bitonic_shape(lines.places, lines.count)
        tiles = -(-lines.count // count) * chunks
        size = (group.end - group.begin + 1) * states * count * blocks * E
        programs = _programs(tiles, size * x.element_size(), str(x.device))
        part = x.new_empty(programs)
        module.bitonic_backward_kernel[(programs,)](
            *before, _masks(group.end, str(x.device)), *after, part, x.new_empty(programs * size),
            lines.count, lines.n, lines.stride, group.begin, group.end, group.end, lines.places, tiles, programs,
            CHUNKS=chunks, LINES=count, BLOCKS=blocks, E=E, num_warps=warps, **lines.options,
        )  # fmt: skip
    return (grad_x, grad_payload), part


def _programs(tiles: int, scratch: int, device: str) -> int:
    """As many programs as there is work for, the device can hold and SCRATCH can feed."""
    return max(1, min(tiles, 16 * _processors(device), SCRATCH // scratch))


class OddEvenShape(NamedTuple):
    """How lines map to programs: `lines` per program, each of `groups` of `core` items with `halo` more on both sides."""

    lines: int
    groups: int
    threads: int
    core: int
    halo: int
    warps: int

    @property
    def options(self) -> dict[str, int]:
        return {
            "LINES": self.lines,
            "GROUPS": self.groups,
            "H": self.threads,
            "CORE": self.core,
            "HALO": self.halo,
            "num_warps": self.warps,
        }


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


def bitonic_shape(places: int, lines: int) -> tuple[int, int, int, int, int]:
    """(programs per line, lines per program, rows of E places per line, E, warps)."""
    held = min(max(places, 2), WIDEST)
    E = min(held, NEAR)
    blocks = held // E
    count = max(1, 32 // E)
    return max(places, 2) // held, count, blocks, E, max(1, min(16, blocks * E // 128))


def _far_grid(lines: _Lines) -> tuple[int, int]:
    return -(-lines.places // 2 // _FAR_BLOCK), lines.count


def _far(group: _Group, lines: _Lines) -> tuple[int, int, int, int]:
    mask = Bitonic.stage_and_mask(group.begin)[1]
    return mask.bit_length() - 1, mask, Bitonic().layer_need(group.begin), lines.places


@functools.lru_cache(maxsize=64)
def _masks(depth: int, device: str) -> Tensor:
    """Masks of the bitonic layers, then the numbers of items they need."""
    masks = [Bitonic.stage_and_mask(layer)[1] for layer in range(depth)]
    return torch.tensor(masks + [Bitonic().layer_need(layer) for layer in range(depth)], dtype=torch.int32).to(device)


@functools.lru_cache(maxsize=16)
def _processors(device: str) -> int:
    return torch.cuda.get_device_properties(device).multi_processor_count if device.startswith("cuda") else 2


@functools.lru_cache(maxsize=64)
def _kernels(form: str, scalar: str) -> ModuleType:
    template = Path(__file__).with_name("triton_layers.py").read_text(encoding="utf-8")
    gate = codegen.scalar_function(Plan("odd_even", form).sigmoid, "gate", "triton")
    _, kernels = template.split("# --- template ---\n")
    source = "\n\n".join([codegen.PRELUDES["triton"], gate, kernels])
    return codegen.load(f"sort_triton_{form}", source)

"""Recorded programs in plain torch, row by row, from the table of instructions: slow, differentiable to any order."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from algonet.core import tracing
from algonet.core.cache import Cache

from .machine import instructions
from .machine.instructions import COLUMN, CONSTANT, COUNTER, ROW, Instruction

_MASK = 0xFFFFFFFF
_FUNCTIONS: Cache[Callable[..., Any]] = Cache("instructions of smooth programs", 256)


def uniform(seed: Tensor, item: Tensor, counter: int) -> Tensor:
    """Numbers in [0, 1) from the seed, the items and a counter: integers are mixed by 32-bit multiplications and shifts."""
    low, high = seed.to(item.device).unbind()
    mixed = _mixed((item & _MASK) ^ low)
    mixed = _mixed((mixed + ((counter * 0x9E3779B9) & _MASK) & _MASK) ^ high)
    return (mixed >> 8).double() * 2.0**-24


def _mixed(h: Tensor) -> Tensor:
    h = ((h ^ (h >> 16)) * 0x85EBCA6B) & _MASK
    h = ((h ^ (h >> 13)) * 0xC2B2AE35) & _MASK
    return h ^ (h >> 16)


def _fma(a: Tensor, b: Tensor, c: Tensor) -> Tensor:
    return torch.addcmul(c, a, b)


def _still(x: Tensor) -> Tensor:
    return x - x.detach()


#: The names of the formulas, in torch's terms.
_NAMES = {
    "abs": torch.abs,
    "exp": torch.exp,
    "log": torch.log,
    "sqrt": torch.sqrt,
    "where": torch.where,
    "fma": _fma,
    "still": _still,
    "exact_exp": torch.exp,
    "exact_log": torch.log,
    "cos": torch.cos,
    "sin": torch.sin,
    "floor": torch.floor,
    "minimum": torch.minimum,
    "maximum": torch.maximum,
}


class _Finite(torch.autograd.Function):
    """The tensor as it is; where its gradient is not a number though the tensor is one, there is none.

    A branch that an item does not take has gradient 0 there, and 0 times an infinite slope is what it would be given else.
    Kernels skip gradients that are 0.
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor) -> Tensor:
        return x.view_as(x)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor], output: Tensor) -> None:
        ctx.save_for_backward(inputs[0])

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        (x,) = ctx.saved_tensors
        return torch.where(gradient.isnan() & ~x.isnan(), 0.0, gradient)

    @staticmethod
    def jvp(ctx: Any, tangent: Tensor) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        return tangent.view_as(tangent)


def guarded(x: Tensor) -> Tensor:
    """x, whose gradient is a number if x is: for operands where one of two states is chosen whatever the other is."""
    if not tracing.transforming() and not tracing.differentiating((x,)):
        return x
    return x if tracing.compiling() else _Finite.apply(x)  # pyright: ignore[reportReturnType]


def value_function(instruction: Instruction) -> Callable[..., Tensor]:
    """The value of an instruction as a function of (uniform, a, b, c), as many operands as it has."""
    return _FUNCTIONS.get(instruction, lambda: _value_function(instruction))


def _value_function(instruction: Instruction) -> Callable[..., Tensor]:
    names = ", ".join("abc"[: len(instruction.operands)])
    return eval(f"lambda uniform, {names}: {instruction.value}", dict(_NAMES))


def direct(name: str, *operands: Any) -> Tensor:
    """An instruction on tensors at once, in programs that are not recorded."""
    return value_function(instructions.TABLE[name])(None, *operands)


#: Each operand by where it comes from; a counter is the number itself.
_LOADS = {ROW: "rows[{}]", COLUMN: "columns[{}]", CONSTANT: "constants[{}]", COUNTER: "{}"}
_STEPS: Cache[list[Callable[..., Tensor]]] = Cache("steps of smooth programs", 16)


def _steps() -> list[Callable[..., Tensor]]:
    """Every instruction of the table as a function of (uniform, rows, columns, constants) and its three numbers."""
    table = tuple(instructions.TABLE.values())
    return _STEPS.get(table, lambda: [_step(instruction) for instruction in table])


def _step(instruction: Instruction) -> Callable[..., Tensor]:
    lines = [
        f"{place} = {_LOADS[source].format(place)}" for source, place in zip(instruction.operands, "abc", strict=False)
    ]
    lines.append(f"return {instruction.value}")
    scope: dict[str, Any] = dict(_NAMES)
    exec("def step(uniform, rows, columns, constants, a, b, c):\n    " + "\n    ".join(lines), scope)
    return scope["step"]


#: Instructions that take one of two numbers, or draw which.
_CHOOSING = frozenset(map(instructions.code_of, ("select", "coin")))


class _Guarded(list[Tensor]):
    """Rows whose gradient is a number if they are."""

    def __getitem__(self, k: Any) -> Any:
        return guarded(super().__getitem__(k))


def run_program(tensors: Sequence[Tensor], settings: Any) -> list[Tensor]:
    """y[..., k] = row wanted[k] of the instructions on x[..., column]."""
    x, steepness, constants, program, wanted, seed = tensors
    shape, dtype = x.shape[:-1], x.dtype

    def draw(counter: int) -> Tensor:
        items = torch.arange(shape.numel(), device=x.device).reshape(shape)
        return uniform(seed, items, counter).to(dtype)

    listed, steps = program.tolist(), _steps()
    columns, numbers, scales = x.unbind(-1), constants.unbind(0), steepness.unbind(0)
    rows: list[Tensor] = [] if _CHOOSING.isdisjoint([code for code, _, _, _ in listed]) else _Guarded()
    for code, a, b, c in listed:
        if code >= len(steps):
            y = settings.formulas[code - len(steps)](rows[a] * scales[b])
        else:
            y = steps[code](draw, rows, columns, numbers, a, b, c)
        # A choice between two constants has torch's own precision
        rows.append(y if y.dtype == dtype else y.to(dtype))
    found = list(rows)
    return [torch.stack([found[k].expand(shape) for k in wanted.tolist()], dim=-1)]

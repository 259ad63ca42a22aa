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


def _where(condition: Any, a: Any, b: Any) -> Tensor:
    return torch.where(condition, a, b)


def _fma(a: Tensor, b: Tensor, c: Tensor) -> Tensor:
    return torch.addcmul(c, a, b)


#: The names of the formulas, in torch's terms.
_NAMES = {
    "abs": torch.abs,
    "exp": torch.exp,
    "log": torch.log,
    "sqrt": torch.sqrt,
    "where": _where,
    "fma": _fma,
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
    if not x.requires_grad and not tracing.transforming():
        return x
    return x if tracing.compiling() else _Finite.apply(x)  # pyright: ignore[reportReturnType]


def value_function(instruction: Instruction) -> Callable[..., Tensor]:
    """The value of an instruction as a function of (uniform, a, b, c), as many operands as it has."""
    names = ", ".join("abc"[: len(instruction.operands)])
    text = f"lambda uniform, {names}: {instruction.value}"
    return _FUNCTIONS.get(text, lambda: eval(text, dict(_NAMES)))


def direct(name: str, *operands: Any) -> Tensor:
    """An instruction on tensors at once, in programs that are not recorded."""
    return value_function(instructions.TABLE[name])(None, *operands)


#: Instructions that take one of two numbers, or draw which.
_CHOOSING = tuple(map(instructions.code_of, ("select", "coin")))


def run_program(tensors: Sequence[Tensor], settings: Any) -> list[Tensor]:
    """y[..., k] = row wanted[k] of the instructions on x[..., column]."""
    x, steepness, constants, program, wanted, seed = tensors
    shape = x.shape[:-1]
    sources = {COLUMN: x.unbind(-1), CONSTANT: constants.unbind(0), COUNTER: None}
    scales = steepness.unbind(0)
    kinds = list(instructions.TABLE.values())
    items = torch.arange(shape.numel(), device=x.device).reshape(shape)

    def draw(counter: int) -> Tensor:
        return uniform(seed, items, counter).to(x.dtype)

    rows: list[Tensor] = []
    listed = program.tolist()
    chooses = any(code in _CHOOSING for code, *_ in listed)
    for code, *numbers in listed:
        if code >= len(kinds):
            relax = settings.formulas[code - len(kinds)]
            rows.append(relax(rows[numbers[0]] * scales[numbers[1]]))
            continue
        kind = kinds[code]
        operands = []
        for source, number in zip(kind.operands, numbers, strict=False):
            table: Any = rows if source == ROW else sources[source]
            operand = number if table is None else table[number]
            operands.append(guarded(operand) if chooses and source == ROW else operand)
        # A choice between two constants has torch's own precision
        rows.append(value_function(kind)(draw, *operands).to(x.dtype))
    return [torch.stack([rows[k].expand(shape) for k in wanted.tolist()], dim=-1)]

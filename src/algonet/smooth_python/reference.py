"""Recorded programs in plain torch, row by row, from the table of instructions: slow, differentiable to any order."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from algonet.core import tracing
from algonet.relax import Logistic

from .machine import instructions

_MASK = 0xFFFFFFFF


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


class Draws:
    """The random numbers of one run: a seed, made when the first one is drawn, and how many were drawn since."""

    def __init__(self, generator: torch.Generator | None = None):
        self._generator = generator
        self._seed: Tensor | None = None
        self._counter = 0

    @property
    def seed(self) -> Tensor:
        """Two numbers of 32 bits, from the generator or torch's own."""
        if self._seed is None:
            generator = self._generator
            device = "cpu" if generator is None else generator.device
            self._seed = torch.randint(0, 2**32, (2,), generator=generator, device=device).cpu()
        return self._seed

    def count(self) -> int:
        self._counter += 1
        return self._counter

    def restart(self) -> None:
        """The same numbers once more."""
        self._counter = 0

    def uniform(self, shape: torch.Size, like: Tensor) -> Tensor:
        """What the instruction `uniform` draws, for numbers that are not recorded."""
        items = torch.arange(shape.numel(), device=like.device).reshape(shape)
        dtype = like.dtype if like.is_floating_point() else torch.get_default_dtype()
        return uniform(self.seed, items, self.count()).to(dtype)


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


def direct(name: str, *operands: Any) -> Tensor:
    """An instruction on tensors at once, in programs that are not recorded."""
    return instructions.TABLE[name].step(None, operands, None, None, 0, 1, 2)


def relaxed(relax: Any, x: Tensor) -> Tensor:
    """A relaxation of a tensor."""
    if type(relax) is Logistic and x.dtype in (torch.float32, torch.float64):
        # The same numbers as relax(x) without its clamp: the logistic is flat at infinity anyway
        return torch.sigmoid(x * relax.steepness)
    return relax(x)


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

    listed, steps = program.tolist(), [*instructions.TABLE.values()]
    columns, numbers, scales = x.unbind(-1), constants.unbind(0), steepness.unbind(0)
    rows: list[Tensor] = [] if _CHOOSING.isdisjoint([code for code, _, _, _ in listed]) else _Guarded()
    for code, a, b, c in listed:
        if code >= len(steps):
            y = relaxed(settings.formulas[code - len(steps)], rows[a] * scales[b])
        else:
            y = steps[code].step(draw, rows, columns, numbers, a, b, c)
        # A choice between two constants has torch's own precision
        rows.append(y if y.dtype == dtype else y.to(dtype))
    found = list(rows)
    return [torch.stack([found[k].expand(shape) for k in wanted.tolist()], dim=-1)]

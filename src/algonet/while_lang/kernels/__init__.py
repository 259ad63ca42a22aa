"""Forward and backward passes of the kernels: values and input tangents in one run, shared parameters in a second.

Tensors are (steepness, weight, bias, inputs...). The forward pass stores each output's derivative by each input, so that the
backward pass is a product; derivatives by what all elements share (steepness, weights, biases) would need that much memory for
each, so the backward pass runs the program again and sums them up inside the kernel. A single output has the shape of the
batch, several are stacked behind it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from algonet.core.autograd import Plan
from algonet.core.identity import Signature

from ..compiler import SEEDS_AT_ONCE, KernelSpec, tangents_at_once
from ..operation import BIAS, FIRST, STEEPNESS, WEIGHT, batch_shape


class WhilePlan(Plan):
    """Forward and backward of a program for inputs of one shape and precision; what is saved are tangents of the outputs.

    Backends say what starts a kernel on contiguous tensors, as `KernelSpec.arrays` lists them, and how many elements make a
    `block`, for each of which a reducing kernel has a row for its sums.
    """

    block: int

    def __init__(self, signature: Signature):
        super().__init__(signature)
        settings, self.dtype = self.settings, signature.tensors[STEEPNESS].dtype
        self.batch = batch_shape(signature.tensors)
        self.n, self.shape = self.batch.numel(), settings.output_shape(self.batch)
        self.group = tangents_at_once(settings.code)
        self.wanted = _wanted(signature)
        self.slots = tuple(settings.inputs[i] for i in self.wanted)
        # Few: one for the values, and one for each group of gradients that is asked for
        self.starters: dict[tuple[tuple[int, ...], int], Callable[[list[Tensor]], None]] = {}

    @classmethod
    def saves(cls, signature: Signature) -> list[tuple[Sequence[int], torch.dtype]]:
        shape = signature.settings.output_shape(batch_shape(signature.tensors))
        return [(shape, signature.tensors[STEEPNESS].dtype)] * len(_wanted(signature))

    def starter(self, spec: KernelSpec) -> Callable[[list[Tensor]], None]:
        raise NotImplementedError

    def forward(self, tensors: Sequence[Tensor]) -> tuple[list[Tensor], list[Tensor]]:
        like = tensors[STEEPNESS]
        outputs = [like.new_empty(self.shape), *([like.new_empty((*self.batch, 3))] if self.settings.watched else [])]
        saved: list[Tensor] = []
        # Several passes where one kernel cannot carry all tangents
        for first in range(0, max(1, len(self.slots)), self.group):
            part = self.slots[first : first + self.group]
            slopes = [like.new_empty(self.shape) for _ in part]
            self._run([*self._given(tensors), *outputs, *slopes], part)
            saved += slopes
        return outputs, saved

    def backward(
        self, grads: Sequence[Tensor], tensors: Sequence[Tensor], saved: Sequence[Tensor], needs: Sequence[bool]
    ) -> list[Tensor | None]:
        grad = grads[0]
        found: list[Tensor | None] = [None] * len(tensors)
        for i, slope in zip(self.wanted, saved, strict=True):
            if needs[FIRST + i]:
                found[FIRST + i] = grad * slope if len(self.settings.outputs) == 1 else (grad * slope).sum(-1)
        # A program without weights has one number in their place, which it does not read
        shared = tensors[:FIRST] if self.settings.trainable else tensors[:WEIGHT]
        sizes = [t.numel() for t in shared]
        rows = [needs[place] for place, size in enumerate(sizes) for _ in range(size)]
        if any(rows):
            parts = self._summed(tensors, torch.tensor(rows), grad).split(sizes)
            found[: len(shared)] = [part.reshape(t.shape).clone() for part, t in zip(parts, shared, strict=True)]
        return [
            torch.zeros_like(t) if need and g is None else g for g, t, need in zip(found, tensors, needs, strict=True)
        ]

    def _given(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """What every kernel of this program reads."""
        settings = self.settings
        given = [*tensors[FIRST:], *([] if settings.exit.softness_field is None else [tensors[STEEPNESS]])]
        given += [tensors[WEIGHT], tensors[BIAS]] if settings.trainable else []
        return [t.contiguous() for t in given]

    def _summed(self, tensors: Sequence[Tensor], rows: Tensor, grad: Tensor) -> Tensor:
        """The gradient by shared parameters, of those that `rows` marks: tangents times `grad`, summed over all elements."""
        given, grad, total = self._given(tensors), grad.contiguous(), grad.new_zeros(len(rows), dtype=torch.float64)
        wanted = torch.eye(len(rows))[rows]
        width = min(SEEDS_AT_ONCE, len(wanted))
        for some in wanted.split(width):
            seeds = torch.nn.functional.pad(some, (0, 0, 0, width - len(some))).T.to(grad)
            sums = grad.new_zeros(-(-self.n // self.block), width)
            self._run([*given, seeds.contiguous(), grad, sums], seeds=width)
            total = total + seeds.double() @ sums.double().sum(0)
        return total.to(grad.dtype)

    def _run(self, arrays: list[Tensor], slots: tuple[int, ...] = (), seeds: int = 0) -> None:
        if self.n:
            start = self.starters.get((slots, seeds))
            if start is None:
                start = self.starters[slots, seeds] = self.starter(KernelSpec(self.settings, slots, seeds))
            start(arrays)


def _wanted(signature: Signature) -> tuple[int, ...]:
    """Positions among the inputs whose gradient is wanted."""
    return tuple([i for i, need in enumerate(signature.needs[FIRST:]) if need])

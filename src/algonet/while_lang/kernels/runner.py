"""Forward and backward passes of the kernels: values and input tangents in one run, shared parameters in a second.

Tensors are (steepness, weight, bias, inputs...), steepness last where it differs between elements. The forward pass stores
each output's derivative by each input, so that the backward pass is a product; derivatives by what all elements share
(steepness, weights, biases) would need that much memory for each, so the backward pass runs the program again and sums
them up inside the kernel. A single output has the shape of the batch, several are stacked behind it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from algonet.core.cache import Cache

from ..compiler import MAX_OWN_PARAMETERS, SEEDS_AT_ONCE, KernelSpec, tangents_at_once
from ..operation import BIAS, FIRST, STEEPNESS, WEIGHT, WhileSettings, batch_shape, output_shape

Directions = tuple[tuple[str, int], ...]


@dataclass(frozen=True)
class Dialect:
    """How a backend runs kernels.

    `load(spec, double)` compiles one. `launch(kernel, spec, tensors, epsilon, cap, n)` runs it on contiguous tensors, as
    `KernelSpec.arrays` lists them. `partial_sums(n, directions, like)` is room for a reducing kernel's sums, one row per
    block.
    """

    name: str
    load: Callable[[KernelSpec, bool], Any]
    launch: Callable[[Any, KernelSpec, list[Tensor], float, int, int], None]
    partial_sums: Callable[[int, int, Tensor], Tensor]


def passes(dialect: Dialect) -> tuple[Callable[..., Any], Callable[..., Any], Callable[..., Any]]:
    """What a kernel module gives to the operation: forward, backward, and the shapes of what forward saves."""
    runners: Cache[Runner] = Cache(f"WHILE-programs on {dialect.name}", 256)

    def runner(tensors: Sequence[Tensor], settings: WhileSettings) -> Runner:
        key = (settings, tensors[STEEPNESS].dtype)
        found = runners.find(key)
        return runners.put(key, Runner(dialect, settings, key[1] == torch.float64)) if found is None else found

    def forward(tensors: Sequence[Tensor], settings: WhileSettings) -> tuple[list[Tensor], list[Tensor]]:
        return runner(tensors, settings).forward(tensors)

    def backward(
        grads: Sequence[Tensor],
        tensors: Sequence[Tensor],
        saved: Sequence[Tensor],
        settings: WhileSettings,
        needs: Sequence[bool],
    ) -> list[Tensor | None]:
        return runner(tensors, settings).backward(grads[0], tensors, saved, needs)

    def empty_saved(tensors: Sequence[Tensor], settings: WhileSettings) -> list[Tensor]:
        shape = output_shape(tensors, settings)
        return [tensors[STEEPNESS].new_empty(shape) for _ in settings.wanted]

    return forward, backward, empty_saved


class Runner:
    """Forward and backward of one dialect, for one program, its settings and a precision: all that calls can share."""

    def __init__(self, dialect: Dialect, settings: WhileSettings, double: bool):
        self.dialect, self.settings, self.double = dialect, settings, double
        self.code = settings.code
        self.scaled = settings.exit.softness_field is not None
        self.group = tangents_at_once(self.code)
        self.wanted = settings.wanted
        self.directions = self._inputs(self.wanted)
        # Few: one for the values, and one for each group of gradients that is asked for
        self.kernels: dict[tuple[Directions, bool], tuple[Any, KernelSpec]] = {}

    def forward(self, tensors: Sequence[Tensor]) -> tuple[list[Tensor], list[Tensor]]:
        return self._stored(tensors, self.directions)

    def backward(
        self, grad: Tensor, tensors: Sequence[Tensor], saved: Sequence[Tensor], needs: Sequence[bool]
    ) -> list[Tensor | None]:
        found: list[Tensor | None] = [None] * len(tensors)
        moving = tuple(i for i, need in enumerate(needs[FIRST:]) if need)
        if moving:
            columns, slopes = self.wanted, saved
            if not set(moving) <= set(columns):
                columns, slopes = moving, self._stored(tensors, self._inputs(moving))[1]
            for i, slope in zip(columns, slopes, strict=True):
                if needs[FIRST + i]:
                    found[FIRST + i] = grad * slope if len(self.settings.outputs) == 1 else (grad * slope).sum(-1)
        parameters = self._parameters(tensors, needs)
        if parameters:
            sums = self._summed(tensors, parameters, grad)
            start = 0
            for place in (STEEPNESS, WEIGHT, BIAS):
                if needs[place]:
                    size = tensors[place].numel()
                    found[place] = sums[start : start + size].reshape(tensors[place].shape).clone()
                    start += size
        return found

    def _inputs(self, positions: tuple[int, ...]) -> Directions:
        """A direction for each of these inputs; a steepness per element comes last among them."""
        inputs = self.settings.inputs
        return tuple(("input", inputs[i]) if i < len(inputs) else ("steepness", 0) for i in positions)

    def _parameters(self, tensors: Sequence[Tensor], needs: Sequence[bool]) -> Directions:
        """A direction for each shared parameter whose gradient is needed."""
        listed = ((STEEPNESS, "steepness"), (WEIGHT, "weight"), (BIAS, "bias"))
        return tuple((kind, k) for place, kind in listed if needs[place] for k in range(tensors[place].numel()))

    def _given(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """What every kernel of this program reads."""
        settings = self.settings
        given = [t.contiguous() for t in tensors[FIRST : FIRST + len(settings.inputs)]]
        if self.scaled:
            given.append((tensors[-1] if settings.per_element else tensors[STEEPNESS]).contiguous())
        if settings.trainable:
            given += [tensors[WEIGHT].contiguous(), tensors[BIAS].contiguous()]
        return given

    def _stored(self, tensors: Sequence[Tensor], directions: Directions) -> tuple[list[Tensor], list[Tensor]]:
        """Outputs, and their tangents in each direction; several passes where one kernel cannot carry them all."""
        if len(directions) > self.group:
            parts = [directions[i : i + self.group] for i in range(0, len(directions), self.group)]
            passes = [self._stored(tensors, part) for part in parts]
            return passes[0][0], [slope for _, slopes in passes for slope in slopes]
        batch, like = batch_shape(tensors), tensors[STEEPNESS]
        shape = output_shape(tensors, self.settings)
        outputs = [like.new_empty(shape)]
        if self.settings.watched:
            outputs.append(like.new_empty((*batch, 3)))
        slopes = [like.new_empty(shape) for _ in directions]
        self._launch(directions, False, [*self._given(tensors), *outputs, *slopes], batch.numel())
        return outputs, slopes

    def _summed(self, tensors: Sequence[Tensor], directions: Directions, grad: Tensor) -> Tensor:
        """The gradient by shared parameters: tangents times `grad`, summed over all elements."""
        n = grad.numel() // len(self.settings.outputs)
        given, grad = self._given(tensors), grad.contiguous()
        sums = []
        for part, own, seeds in self._passes(directions, grad):
            rows = self.dialect.partial_sums(n, len(own), grad)
            self._launch(own, True, [*given, *seeds, grad, rows], n)
            sums.append(rows.double().sum(0)[: len(part)])
        return torch.cat(sums).to(grad.dtype)

    def _passes(self, directions: Directions, like: Tensor) -> Iterator[tuple[Directions, Directions, list[Tensor]]]:
        """(directions, those of the kernel, its seeds) for each pass over the shared parameters."""
        few = len(directions) <= MAX_OWN_PARAMETERS
        size = self.group if few else SEEDS_AT_ONCE
        own = directions if few else tuple(d for d in directions if d[0] == "steepness")
        for i in range(0, len(own), size):
            yield own[i : i + size], own[i : i + size], []
        rest = directions[len(own) :]
        for i in range(0, len(rest), size):
            part = rest[i : i + size]
            seeds = torch.zeros(len(self.code.assignments), 2, size)
            for d, (kind, k) in enumerate(part):
                seeds[k, 0 if kind == "weight" else 1, d] = 1
            yield part, tuple(("seed", d) for d in range(size)), [seeds.to(like)]

    def _launch(self, directions: Directions, reduce: bool, arrays: list[Tensor], n: int) -> None:
        if n == 0:
            return
        kernel, spec = self.kernels.get((directions, reduce)) or self._compile(directions, reduce)
        self.dialect.launch(kernel, spec, arrays, self.settings.epsilon, self.settings.max_iterations, n)

    def _compile(self, directions: Directions, reduce: bool) -> tuple[Any, KernelSpec]:
        settings = self.settings
        spec = KernelSpec(
            self.code,
            settings.exit,
            settings.inputs,
            settings.outputs,
            directions,
            reduce=reduce,
            trainable=settings.trainable,
            per_element=settings.per_element,
            watched=settings.watched and not reduce,
        )
        self.kernels[directions, reduce] = self.dialect.load(spec, self.double), spec
        return self.kernels[directions, reduce]

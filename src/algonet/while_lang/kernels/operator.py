"""The kernels as differentiable operators: values and input tangents in one pass, shared parameters in a second.

Tensors are (steepness, weight, bias, inputs...), steepness last where it differs between elements. The forward pass stores
each output's derivative by each input, so that the backward pass is a product; derivatives by what all elements share
(steepness, weights, biases) would need that much memory for each, so the backward pass runs the program again and sums
them up inside the kernel. A single output has the shape of the batch, several are stacked behind it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from algonet.core.autograd import Operator

from ..compiler import MAX_OWN_PARAMETERS, SEEDS_AT_ONCE, Plan, tangents_at_once
from ..reference import run_reference
from ..request import Request, decode_request, form_named
from . import numba_cpu, triton_gpu

#: Positions of the tensors that all elements share, and of the first that they do not.
STEEPNESS, WEIGHT, BIAS, FIRST = 0, 1, 2, 3

Directions = tuple[tuple[str, int], ...]


class Runner:
    """Forward and backward of one dialect, for one encoded request and precision: everything that calls can share."""

    def __init__(self, dialect: Any, settings: str, double: bool, watched: bool):
        self.dialect, self.double, self.watched = dialect, double, watched
        self.request = request = decode_request(settings)
        self.scaled = form_named(request.form).softness_field is not None
        self.group = tangents_at_once(request.code)
        self.wanted = request.wanted
        self.directions = self._inputs(self.wanted)
        self.kernels: dict[tuple[Directions, bool], tuple[Any, ...]] = {}

    def forward(self, tensors: list[Tensor]) -> tuple[list[Tensor], list[Tensor]]:
        return self._stored(tensors, self.directions)

    def backward(
        self, grad: Tensor, tensors: list[Tensor], saved: list[Tensor], needs: list[bool]
    ) -> list[Tensor | None]:
        found: list[Tensor | None] = [None] * len(tensors)
        moving = tuple(i for i, need in enumerate(needs[FIRST:]) if need)
        if moving:
            columns, slopes = self.wanted, saved
            if not set(moving) <= set(columns):
                columns, slopes = moving, self._stored(tensors, self._inputs(moving))[1]
            for i, slope in zip(columns, slopes, strict=True):
                if needs[FIRST + i]:
                    found[FIRST + i] = grad * slope if len(self.request.outputs) == 1 else (grad * slope).sum(-1)
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
        inputs = self.request.inputs
        return tuple(("input", inputs[i]) if i < len(inputs) else ("steepness", 0) for i in positions)

    def _parameters(self, tensors: list[Tensor], needs: list[bool]) -> Directions:
        """A direction for each shared parameter whose gradient is needed."""
        listed = ((STEEPNESS, "steepness"), (WEIGHT, "weight"), (BIAS, "bias"))
        return tuple((kind, k) for place, kind in listed if needs[place] for k in range(tensors[place].numel()))

    def _given(self, tensors: list[Tensor]) -> list[Tensor]:
        """What every kernel of this request reads."""
        request = self.request
        given = [t.contiguous() for t in tensors[FIRST : FIRST + len(request.inputs)]]
        if self.scaled:
            given.append((tensors[-1] if request.per_element else tensors[STEEPNESS]).contiguous())
        if request.trainable:
            given += [tensors[WEIGHT].contiguous(), tensors[BIAS].contiguous()]
        return given

    def _stored(self, tensors: list[Tensor], directions: Directions) -> tuple[list[Tensor], list[Tensor]]:
        """Outputs, and their tangents in each direction; several passes where one kernel cannot carry them all."""
        if len(directions) > self.group:
            parts = [directions[i : i + self.group] for i in range(0, len(directions), self.group)]
            passes = [self._stored(tensors, part) for part in parts]
            return passes[0][0], [slope for _, slopes in passes for slope in slopes]
        batch, like = tensors[FIRST].shape if len(tensors) > FIRST else torch.Size(), tensors[STEEPNESS]
        width = len(self.request.outputs)
        shape = batch if width == 1 else (*batch, width)
        outputs = [like.new_empty(shape)]
        if self.watched:
            outputs.append(like.new_empty((*batch, 3)))
        slopes = [like.new_empty(shape) for _ in directions]
        self._launch(directions, False, [*self._given(tensors), *outputs, *slopes], batch.numel())
        return outputs, slopes

    def _summed(self, tensors: list[Tensor], directions: Directions, grad: Tensor) -> Tensor:
        """The gradient by shared parameters: tangents times `grad`, summed over all elements."""
        n = grad.numel() // len(self.request.outputs)
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
            seeds = torch.zeros(len(self.request.code.assignments), 2, size)
            for d, (kind, k) in enumerate(part):
                seeds[k, 0 if kind == "weight" else 1, d] = 1
            yield part, tuple(("seed", d) for d in range(size)), [seeds.to(like)]

    def _launch(self, directions: Directions, reduce: bool, arrays: list[Tensor], n: int) -> None:
        if n == 0:
            return
        kernel = self.kernels.get((directions, reduce))
        request = self.request
        if kernel is None:
            plan = Plan(
                request.code,
                form_named(request.form),
                request.inputs,
                request.outputs,
                directions,
                reduce=reduce,
                trainable=request.trainable,
                per_element=request.per_element,
                watched=self.watched and not reduce,
            )
            kernel = self.kernels[directions, reduce] = self.dialect.kernel(plan, self.double)
        self.dialect.launch(kernel, arrays, request.epsilon, request.max_iterations, n)


def reference(tensors: list[Tensor], settings: str) -> tuple[Tensor, Tensor]:
    """The same function in plain torch: values and diagnostics."""
    request = decode_request(settings)
    values, diagnostics = run_reference(
        request.code,
        dict(zip(request.inputs, tensors[FIRST:], strict=False)),
        request.outputs,
        exit=request.exit(tensors[-1] if request.per_element else tensors[STEEPNESS]),
        epsilon=request.epsilon,
        max_iterations=request.max_iterations,
        weight=tensors[WEIGHT] if request.trainable else None,
        bias=tensors[BIAS] if request.trainable else None,
        like=tensors[STEEPNESS],
    )
    return values.squeeze(-1) if len(request.outputs) == 1 else values, diagnostics


def _operator(name: str, dialect: Any, watched: bool) -> Operator:
    runners: dict[tuple[str, bool], Runner] = {}

    def runner(tensors: list[Tensor], settings: str) -> Runner:
        double = tensors[STEEPNESS].dtype == torch.float64
        found = runners.get((settings, double))
        if found is None:
            found = runners[settings, double] = Runner(dialect, settings, double, watched)
        return found

    def fake(tensors: list[Tensor], settings: str) -> tuple[list[Tensor], list[Tensor]]:
        request: Request = decode_request(settings)
        batch, like = tensors[FIRST].shape if len(tensors) > FIRST else torch.Size(), tensors[STEEPNESS]
        shape = batch if len(request.outputs) == 1 else (*batch, len(request.outputs))
        outputs = [like.new_empty(shape), *([like.new_empty((*batch, 3))] if watched else [])]
        return outputs, [like.new_empty(shape) for _ in request.wanted]

    return Operator(
        name,
        forward=lambda tensors, settings: runner(tensors, settings).forward(tensors),
        backward=lambda grads, tensors, saved, settings, needs: runner(tensors, settings).backward(
            grads[0], tensors, saved, needs
        ),
        reference=lambda tensors, settings: reference(tensors, settings)[: 1 + watched],
        fake=fake,
        outputs=1 + watched,
        shared=frozenset({STEEPNESS, WEIGHT, BIAS}),
    )


#: Keyed by whether the diagnostics are wanted too: storing them, and carrying their (zero) gradient, takes time.
NUMBA = {True: _operator("while_numba_watched", numba_cpu, True), False: _operator("while_numba", numba_cpu, False)}
TRITON = {
    True: _operator("while_triton_watched", triton_gpu, True),
    False: _operator("while_triton", triton_gpu, False),
}

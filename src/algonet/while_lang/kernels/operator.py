"""The kernels as differentiable operators: values and input tangents in one pass, shared parameters in a second.

Tensors are (steepness, weight, bias, inputs...). The forward pass stores each output's derivative by each input, so that
the backward pass is a product; derivatives by what all elements share (steepness, weights, biases) would need that much
memory for each, so the backward pass runs the program again and sums them up inside the kernel.
"""

from __future__ import annotations

import functools
import math
from typing import Any

import torch
from torch import Tensor

from algonet.operators import Operator

from ..compiler import Plan, tangents_at_once
from ..reference import run_reference
from ..request import Request, _form, decode_request

#: Positions of the tensors that all elements share.
STEEPNESS, WEIGHT, BIAS, FIRST = 0, 1, 2, 3

Directions = tuple[tuple[str, int], ...]


class Runner:
    """Forward and backward of one dialect."""

    def __init__(self, dialect: Any):
        self.dialect = dialect

    def forward(self, tensors: list[Tensor], settings: str) -> tuple[list[Tensor], list[Tensor]]:
        request = decode_request(settings)
        values, diagnostics, slopes = self._run(tensors, settings, _input_directions(request, request.wanted))
        return [values, diagnostics], [slopes] if request.wanted else []

    def backward(
        self, grads: list[Tensor], tensors: list[Tensor], saved: list[Tensor], settings: str, needs: list[bool]
    ) -> list[Tensor]:
        request = decode_request(settings)
        found = [t.new_empty(0) for t in tensors]
        grad = grads[0]
        moving = [i for i in range(len(request.moving)) if needs[FIRST + i]]
        if moving:
            columns = request.wanted
            slopes = saved[0] if saved else grad.new_empty(0)
            if not set(moving) <= set(columns):
                columns = tuple(moving)
                slopes = self._run(tensors, settings, _input_directions(request, columns))[2]
            products = grad * slopes[..., 0, :] if grad.shape[-1] == 1 else (grad.unsqueeze(-1) * slopes).sum(-2)
            for i in moving:
                found[FIRST + i] = products[..., columns.index(i)]
        parameters: list[tuple[str, int]] = [("steepness", 0)] if needs[STEEPNESS] and not request.per_element else []
        for kind, place in (("weight", WEIGHT), ("bias", BIAS)):
            parameters += [(kind, k) for k in range(tensors[place].numel()) if needs[place]]
        if parameters:
            sums = self._sums(tensors, settings, tuple(parameters), grad)
            ends = _cumulated([1 if needs[STEEPNESS] else 0, *(tensors[p].numel() if needs[p] else 0 for p in (1, 2))])
            for place in (STEEPNESS, WEIGHT, BIAS):
                if needs[place]:
                    found[place] = sums[ends[place] : ends[place + 1]].reshape(tensors[place].shape)
        return found

    def _sums(self, tensors: list[Tensor], settings: str, directions: Directions, grad: Tensor) -> Tensor:
        group = tangents_at_once(decode_request(settings).code)
        parts = [
            self._launch(tensors, settings, directions[i : i + group], grad)[2].double().sum(0)
            for i in range(0, len(directions), group)
        ]
        return torch.cat(parts).to(grad.dtype)

    def _run(self, tensors: list[Tensor], settings: str, directions: Directions) -> list[Tensor]:
        """Values, diagnostics and all tangents; several passes where one kernel cannot carry them."""
        group = tangents_at_once(decode_request(settings).code)
        passes = [
            self._launch(tensors, settings, directions[i : i + group]) for i in range(0, max(len(directions), 1), group)
        ]
        if len(passes) == 1:
            return passes[0]
        return [*passes[0][:2], torch.cat([p[2] for p in passes], dim=-1)]

    def _launch(
        self, tensors: list[Tensor], settings: str, directions: Directions, grad: Tensor | None = None
    ) -> list[Tensor]:
        request = decode_request(settings)
        batch = tensors[FIRST].shape if len(tensors) > FIRST else torch.Size()
        n, width, like = math.prod(batch), len(request.outputs), tensors[STEEPNESS]
        arrays = [t.contiguous().reshape(-1) for t in tensors[FIRST : FIRST + len(request.inputs)]]
        steepness = tensors[-1] if request.per_element else tensors[STEEPNESS]
        shared = [t.contiguous().reshape(-1) for t in (steepness, tensors[WEIGHT], tensors[BIAS])]
        values, diagnostics = like.new_empty(n, width), like.new_empty(n, 3)
        if grad is None:
            slopes, grads = like.new_empty(n, width, len(directions)), values
        else:
            slopes, grads = self.dialect.partial_sums(n, len(directions), like), grad.reshape(n, width).contiguous()
        if n:
            run = _kernel(self.dialect, settings, directions, grad is not None, like.dtype == torch.float64)
            limits = (request.epsilon, request.max_iterations)
            self.dialect.launch(run, arrays, shared, limits, [values, diagnostics, slopes, grads])
        if grad is None:
            slopes = slopes.reshape(*batch, width, len(directions))
        return [values.reshape(*batch, width), diagnostics.reshape(*batch, 3), slopes]


@functools.lru_cache(maxsize=512)
def _kernel(dialect: Any, settings: str, directions: Directions, reduce: bool, double: bool) -> Any:
    request = decode_request(settings)
    plan = Plan(
        request.code,
        _form(request.form),
        request.inputs,
        request.outputs,
        directions,
        reduce=reduce,
        trainable=request.trainable,
        per_element=request.per_element,
    )
    return dialect.kernel(plan, double)


def _input_directions(request: Request, positions: tuple[int, ...]) -> Directions:
    """A direction for each wanted input; a steepness per element comes last among the inputs."""
    return tuple(("input", request.inputs[i]) if i < len(request.inputs) else ("steepness", 0) for i in positions)


def _cumulated(sizes: list[int]) -> list[int]:
    ends = [0]
    for size in sizes:
        ends.append(ends[-1] + size)
    return ends


def reference(tensors: list[Tensor], settings: str) -> tuple[Tensor, Tensor]:
    """The same function in plain torch."""
    request = decode_request(settings)
    steepness = tensors[-1] if request.per_element else tensors[STEEPNESS]
    return run_reference(
        request.code,
        dict(zip(request.inputs, tensors[FIRST:], strict=False)),
        request.outputs,
        exit=request.exit(steepness),
        epsilon=request.epsilon,
        max_iterations=request.max_iterations,
        weight=tensors[WEIGHT] if request.trainable else None,
        bias=tensors[BIAS] if request.trainable else None,
        like=tensors[STEEPNESS],
    )


def _fake(tensors: list[Tensor], settings: str) -> tuple[list[Tensor], list[Tensor]]:
    request = decode_request(settings)
    batch = tensors[FIRST].shape if len(tensors) > FIRST else torch.Size()
    like, width = tensors[STEEPNESS], len(request.outputs)
    outputs = [like.new_empty(*batch, width), like.new_empty(*batch, 3)]
    return outputs, [like.new_empty(*batch, width, len(request.wanted))] if request.wanted else []


def _operator(name: str, dialect: Any) -> Operator:
    runner = Runner(dialect)
    return Operator(
        name,
        forward=runner.forward,
        backward=runner.backward,
        reference=reference,
        fake=_fake,
        outputs=2,
        shared=frozenset({STEEPNESS, WEIGHT, BIAS}),
    )


@functools.cache
def numba_operator() -> Operator:
    from . import numba_cpu

    return _operator("while_numba", numba_cpu)


@functools.cache
def triton_operator() -> Operator:
    from . import triton_gpu

    return _operator("while_triton", triton_gpu)

"""Gates and weights inside an algorithm: one for each comparator, point, stencil or assignment.

A gate g scales what one step of the algorithm does: a comparator that would exchange two items with probability q does so
with probability g q, a difference d becomes g d, and an assignment y := (1 - p) y + p v becomes y := (1 - g p) y + g p v. A
layer has gates if it has `run_gated(make_gates, *inputs)`, which runs it step by step and asks for its gates once.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from algonet.relax.modules import departure

from .insertion import AlgorithmLayer

#: Makes the gates of a call, (*batch, steps), from the shape of its batch, what each step is called, and a tensor like them.
MakeGates = Callable[[tuple[int, ...], list[str], Tensor], Tensor]


@contextmanager
def gated_steps(where: str, layer: Any, make: MakeGates) -> Iterator[None]:
    """Inside the block, `layer`, or the algorithm that it inserts, runs with the gates of `make`."""
    algorithm: Any = layer.algorithm if isinstance(layer, AlgorithmLayer) else layer
    if getattr(algorithm, "is_smooth", False):
        with algorithm.gated(make):
            yield
        return
    if not hasattr(algorithm, "run_gated"):
        raise TypeError(
            f"{where}: {type(algorithm).__name__} has no gates at its steps; SoftSort, SoftMedian, FiniteDifferences, "
            f"WhileProgram and functions under @smooth have."
        )
    algorithm.forward = functools.partial(algorithm.run_gated, make)
    try:
        yield
    finally:
        del algorithm.forward


class Trainable(nn.Module):
    """An algorithm with a weight for each of its steps: the comparators of a sort, the points of a median, the stencils of
    finite differences, the assignments of a program.

    A weight w scales what its step does, as a gate does: a comparator exchanges with probability w q, a difference is
    w (x_{i+1} - x_i), a median is sum_i P(i is the median) w_i x_i. Weights start at 1, where the algorithm is the one that
    was written; `regularization()` is sum (w - 1)^2. `layer` is a `SoftSort`, `SoftMedian`, `FiniteDifferences`,
    `WhileProgram`, or an insertion of one of these or of a function under `@smooth`. It is run once on `example`, to learn how
    many steps there are; `labels` name them. The algorithm runs step by step in plain torch; `trainable=True` of
    `WhileProgram` and `@smooth` is faster, and has biases besides. The paper's future work.

    >>> from algonet.nn import FiniteDifferences
    >>> layer = Trainable(FiniteDifferences(), torch.zeros(3))
    >>> layer(torch.tensor([1.0, 4.0, 9.0])), layer.labels
    (tensor([3., 5.], grad_fn=<MulBackward0>), ('dim 0: x[1] - x[0]', 'dim 0: x[2] - x[1]'))
    """

    def __init__(self, layer: nn.Module, example: Tensor):
        super().__init__()
        if not isinstance(layer, nn.Module):
            raise TypeError(f"Trainable: `layer` must be a module, got {layer!r}; Insert(function) makes one.")
        self.layer = layer
        self.labels: tuple[str, ...] = ()

        def make(batch: tuple[int, ...], labels: list[str], like: Tensor) -> Tensor:
            self.labels = tuple(labels)
            return like.new_ones(*batch, len(labels))

        with torch.no_grad(), gated_steps("Trainable", layer, make):
            layer(example)
        self.weight = nn.Parameter(torch.ones(len(self.labels), device=example.device))

    def forward(self, *inputs: Any, **named: Any) -> Any:
        return self.run_gated(lambda batch, labels, like: like.new_ones(()), *inputs, **named)

    def run_gated(self, make_gates: MakeGates, *inputs: Any, **named: Any) -> Any:
        """A call in which each step is gated, beyond its weight."""

        def make(batch: tuple[int, ...], labels: list[str], like: Tensor) -> Tensor:
            if len(labels) != len(self.labels):
                raise ValueError(
                    f"Trainable: made for {len(self.labels)} steps, this input takes {len(labels)}: give it an example of "
                    f"the same size."
                )
            gates = make_gates(batch, labels, like)
            return self.weight.to(like) * gates.expand(*batch, len(labels))

        with gated_steps("Trainable", self.layer, make):
            return self.layer(*inputs, **named)

    def regularization(self) -> Tensor:
        """sum (w - 1)^2: 0 where the algorithm is the one that was written."""
        return departure(self.weight, torch.zeros_like(self.weight))

    def extra_repr(self) -> str:
        return f"{len(self.labels)} steps"

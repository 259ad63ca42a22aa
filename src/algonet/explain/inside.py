"""Gates inside an algorithm: one for each comparator of a sort, one for each assignment of a program or smooth function.

A gate g = 1 scales what one step of the algorithm does to the values: a comparator that would exchange two items with
probability q does so with probability g q, and an assignment y := (1 - p) y + p v becomes y := (1 - g p) y + g p v. The
gradient of an item's loss by its gates says which steps its answer hangs on; 0 is one without which nothing would change.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from algonet.nn.insertion import AlgorithmLayer
from algonet.relax import Sigmoid
from algonet.sorting import SoftSort, SortResult
from algonet.sorting.networks import Network
from algonet.while_lang import WhileProgram

#: Makes the gates of a call, (*batch, steps), from the shape of its batch and what each step is called.
MakeGates = Callable[[tuple[int, ...], list[str], Tensor], Tensor]


@contextmanager
def gated_steps(layer: nn.Module, make: MakeGates) -> Iterator[None]:
    """Inside the block, `layer` (a `SoftSort`, a `WhileProgram`, a `SmoothProgram`, or an insertion of one or of a smooth
    function) runs with the gates of `make`."""
    algorithm: Any = layer.algorithm if isinstance(layer, AlgorithmLayer) else layer
    if getattr(algorithm, "is_smooth", False):
        with algorithm.gated(make):
            yield
        return
    if isinstance(algorithm, SoftSort):
        run: Callable[..., Any] = functools.partial(_gated_sort, algorithm, make)
    elif isinstance(algorithm, WhileProgram):
        run = functools.partial(algorithm.run_gated, make)
    else:
        raise TypeError(
            f"sensitivity: gates inside are there for SoftSort, WhileProgram and @smooth, got {type(algorithm).__name__}; "
            f"without inside=True its output is gated."
        )
    algorithm.forward = run  # pyright: ignore[reportAttributeAccessIssue]
    try:
        yield
    finally:
        del algorithm.forward


def _gated_sort(
    sorter: SoftSort, make: MakeGates, x: Tensor, payload: Tensor | None = None, mask: Tensor | None = None
) -> SortResult:
    """The sorting network as it is defined, comparator by comparator, with a gate for each."""
    if payload is not None or mask is not None or sorter.options["hard"] or sorter.options["return_permutation"]:
        raise ValueError("sensitivity: gates inside a sort are there for plain values, without payload, mask or hard.")
    relax, sign = sorter.relax, -1.0 if sorter.options["descending"] else 1.0
    assert isinstance(relax, Sigmoid)
    values = x.movedim(sorter.dim, -1)
    n = values.shape[-1]
    network = sorter.method
    if not isinstance(network, Network):
        raise ValueError(
            f"sensitivity: {network!r} has no comparators to put gates on; sort by OddEven() or Bitonic()."
        )
    layers = [network.pairs(n, layer)[:2] for layer in range(network.layers(n, sorter.options["steps"]))]
    labels = [f"layer {k}: {a}-{b}" for k, pairs in enumerate(layers) for a, b in zip(*pairs, strict=True)]
    gates = make(tuple(values.shape[:-1]), labels, values)
    start = 0
    for first, second in layers:
        i, j = (torch.as_tensor(items, device=x.device).long() for items in (first, second))
        gate = gates[..., start : start + len(i)]
        start += len(i)
        a, b = values[..., i], values[..., j]
        exchanged = gate * (1 - relax(sign * (b - a)))
        moved = exchanged * (b - a)
        values = values.index_copy(-1, i, a + moved).index_copy(-1, j, b - moved)
    return SortResult(values.movedim(-1, sorter.dim), None, None)

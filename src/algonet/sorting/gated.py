"""Gates at the comparators of a sorting network, and at the points that a sort or a median is made of."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from algonet.relax import Sigmoid

from .functional import SortResult, soft_sort
from .methods import Method, SmoothedCDF
from .networks import Network
from .quantile import middle, weighted_median

MakeGates = Callable[[tuple[int, ...], list[str], Tensor], Tensor]


def gated_sort(sorter: Any, make_gates: MakeGates, x: Tensor) -> SortResult:
    """A `SoftSort` with gates: at each comparator of a network, or else at each point, values = P (gates * x)."""
    options = {"descending": sorter.descending, "steps": sorter.steps}
    if sorter.hard or sorter.return_permutation:
        raise ValueError("SoftSort.run_gated: gates are there for plain values, without hard or return_permutation.")
    values = x.movedim(sorter.dim, -1)
    if not isinstance(sorter.method, Network):
        values = _sorted_points(sorter, sorter.method, _gates_of_points(make_gates, values) * values, values, **options)
        return SortResult(values.movedim(-1, sorter.dim), None, None)
    relax, sign = sorter.relax, -1.0 if options["descending"] else 1.0
    assert isinstance(relax, Sigmoid)
    n, network = values.shape[-1], sorter.method
    layers = [network.pairs(n, layer)[:2] for layer in range(network.layers(n, options["steps"]))]
    labels = [f"layer {k}: {a}-{b}" for k, pairs in enumerate(layers) for a, b in zip(*pairs, strict=True)]
    gates = make_gates(tuple(values.shape[:-1]), labels, values)
    start = 0
    for first, second in layers:
        i, j = (torch.as_tensor(items, device=x.device).long() for items in (first, second))
        gate = gates[..., start : start + len(i)]
        start += len(i)
        a, b = values[..., i], values[..., j]
        moved = gate * (1 - relax(sign * (b - a))) * (b - a)
        values = values.index_copy(-1, i, a + moved).index_copy(-1, j, b - moved)
    return SortResult(values.movedim(-1, sorter.dim), None, None)


def gated_median(layer: Any, make_gates: MakeGates, x: Tensor) -> Tensor:
    """A `SoftMedian` with a gate at each point: sum_i P(i is the median) gate_i x_i."""
    values = x.movedim(layer.dim, -1)
    gates, method = _gates_of_points(make_gates, values), layer.method
    if isinstance(method, Method) or method == "exact":
        method = method if isinstance(method, Method) else SmoothedCDF()
        found = middle(_sorted_points(layer, method, gates * values, values))
    else:
        found = weighted_median(values, method, layer.degree, layer.relax, gates)
    return found.unsqueeze(layer.dim) if layer.keepdim else found


def _gates_of_points(make_gates: MakeGates, values: Tensor) -> Tensor:
    return make_gates(tuple(values.shape[:-1]), [f"point {i}" for i in range(values.shape[-1])], values)


def _sorted_points(layer: Any, method: Method, points: Tensor, values: Tensor, **options: Any) -> Tensor:
    """The points, gated, in the order of the values."""
    found = soft_sort(
        values, payload=points, relax=layer.relax, method=method, backend=layer.backend, **options
    ).payload
    assert found is not None
    return found

"""Finding a layer inside a model, and listening to or gating what it gives out."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn

from algonet.core.checks import check_module
from algonet.nn.insertion import AlgorithmLayer

Layer = nn.Module | str
#: (input, target) batches, or one such pair of tensors.
Data = Iterable[tuple[Any, Any]] | tuple[Tensor, Tensor]


def find_layer(where: str, model: nn.Module, layer: Layer) -> nn.Module:
    """The module `layer` of `model`, given itself or by its dotted name."""
    check_module(where, model)
    modules = dict(model.named_modules())
    if isinstance(layer, str):
        if layer not in modules:
            listed = ", ".join(filter(None, modules)) or "none inside; give the model that holds it"
            raise ValueError(f"{where}: the model has no layer {layer!r}; it has: {listed}.")
        return modules[layer]
    if not isinstance(layer, nn.Module):
        raise TypeError(f"{where}: a layer is a module of the model or its dotted name, got {type(layer).__name__}.")
    if layer not in modules.values():
        raise ValueError(f"{where}: this {type(layer).__name__} is not part of the model; pass one of its own modules.")
    return layer


def batches(where: str, data: Data) -> Iterator[tuple[Any, Any]]:
    """The (input, target) pairs of `data`; an error if there is none."""
    if isinstance(data, tuple) and len(data) == 2 and all(isinstance(t, Tensor) for t in data):
        data = [data]  # pyright: ignore[reportAssignmentType]
    empty = True
    for pair in data:
        if not isinstance(pair, (tuple, list)) or len(pair) != 2:
            raise TypeError(
                f"{where}: `data` must give (input, target) pairs, or be one pair of tensors, got {type(pair).__name__}."
            )
        empty = False
        yield pair[0], pair[1]
    if empty:
        raise ValueError(f"{where}: `data` is empty.")


def never_ran(where: str, layer: nn.Module) -> ValueError:
    """The error where a layer to be measured was not called."""
    return ValueError(f"{where}: the model did not run its layer {type(layer).__name__} on this data.")


@contextmanager
def changed_output(layer: nn.Module, change: Callable[[Tensor], Tensor]) -> Iterator[None]:
    """Inside the block, `layer` gives out `change(output)`.

    For the insertion styles of `algonet.nn` it is the *algorithm's* output that is changed, not what goes past it.
    """
    if isinstance(layer, AlgorithmLayer):
        before = layer.change
        layer.change = change if before is None else lambda output: change(before(output))
        try:
            yield
        finally:
            layer.change = before
        return
    handle = layer.register_forward_hook(lambda module, inputs, output: _first_changed(output, change))
    try:
        yield
    finally:
        handle.remove()


def _first_changed(output: Any, change: Callable[[Tensor], Tensor]) -> Any:
    """`output` with its first tensor changed: sorters and programs return tuples whose first entry is the result."""
    if isinstance(output, Tensor):
        return change(output)
    if isinstance(output, tuple) and output and isinstance(output[0], Tensor):
        rest = (change(output[0]), *output[1:])
        return type(output)(*rest) if hasattr(output, "_fields") else rest
    raise TypeError(
        f"explain: the layer gives {type(output).__name__}; a tensor, or a tuple that begins with one, is needed."
    )


def per_feature(x: Tensor, dim: int) -> Tensor:
    """x (batch, ...) summed over all but the batch and the features along `dim`: (batch, features)."""
    if x.dim() < 2:
        return x.reshape(len(x), 1) if x.dim() else x.reshape(1, 1)
    features = dim % x.dim()
    return x.sum([i for i in range(1, x.dim()) if i != features]) if x.dim() > 2 else x


def gate_shape(x: Tensor, dim: int) -> list[int]:
    """The shape of one gate per item and feature, to be multiplied onto x."""
    if x.dim() < 2:
        return list(x.shape)
    features = dim % x.dim()
    if features == 0:
        raise ValueError(
            f"explain: `dim` must be a feature dimension, not the batch; the layer gives {tuple(x.shape)}."
        )
    return [n if i in (0, features) else 1 for i, n in enumerate(x.shape)]

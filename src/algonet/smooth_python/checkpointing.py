"""Loops that are run again in the backward pass instead of being kept: memory for the carried state only."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any

from torch import Tensor
from torch.utils import _pytree as pytree
from torch.utils.checkpoint import checkpoint

from .values import Value


def rerun(frame: Any, body: Callable[..., tuple], *state: Any) -> tuple:
    """body(*state), computed again when its gradient is wanted."""
    leaves, structure = pytree.tree_flatten(list(state), is_leaf=lambda x: type(x) is Value)
    tensors = [leaf.tensor for leaf in leaves if type(leaf) is Value]
    shape_of: dict[str, Any] = {}

    def run(*moved: Tensor) -> tuple[Tensor, ...]:
        source = iter(moved)
        filled = [Value(next(source), leaf.batched) if type(leaf) is Value else leaf for leaf in leaves]
        results = body(*pytree.tree_unflatten(filled, structure))
        found, shape_of["structure"] = pytree.tree_flatten(list(results), is_leaf=lambda x: type(x) is Value)
        shape_of["leaves"] = [(f.batched if type(f) is Value else None, None if type(f) is Value else f) for f in found]
        return tuple(f.tensor for f in found if type(f) is Value)

    outputs = iter(checkpoint(run, *tensors, use_reentrant=False))  # pyright: ignore[reportArgumentType]
    filled = [other if batched is None else Value(next(outputs), batched) for batched, other in shape_of["leaves"]]
    return tuple(pytree.tree_unflatten(filled, shape_of["structure"]))


def rerun_each(frame: Any, body: Callable[..., tuple], items: Iterable[Any], *state: Any) -> tuple:
    """The body for each item, in about sqrt(n) pieces of sqrt(n) iterations: memory grows with sqrt(n) states."""
    items = list(items)
    size = max(1, math.isqrt(len(items)))
    for start in range(0, len(items), size):
        piece = items[start : start + size]

        def run(*carried: Any, piece: list = piece) -> tuple:
            for item in piece:
                carried = body(item, *carried)
            return carried

        state = rerun(frame, run, *state)
    return state

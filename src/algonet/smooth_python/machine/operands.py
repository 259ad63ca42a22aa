"""Operands of smooth arithmetic: values, tensors that all items share, and Python numbers, made to fit each other."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from .values import NUMBERS, Value

#: The operations by name: on tensors and numbers they are Python's own.
OPERATIONS: dict[str, Callable[..., Any]] = {
    name: getattr(operator, name) for name in ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "neg")
}


def counted(x: Any) -> Any:
    """Flags as 0 and 1: Python computes with them, torch does not always."""
    if type(x) is bool:
        return int(x)
    if type(x) is Value and x.row is None and x.has_tensor and x.tensor.dtype == torch.bool:
        return Value(x.tensor.long(), x.batched, x.machine)
    return x.long() if isinstance(x, Tensor) and x.dtype == torch.bool else x


def operand(x: Any) -> bool:
    """Whether x is something smooth arithmetic can take."""
    return isinstance(x, (Value, Tensor, *NUMBERS))


def aligned(*operands: Any) -> tuple[list[Tensor], bool]:
    """The operands as tensors that broadcast by their item dimensions, and whether a batch is in front of them."""
    tensors = [x.tensor if type(x) is Value else plain(x) for x in operands]
    batched = [type(x) is Value and x.batched for x in operands]
    if not any(batched):
        like = next((t for x, t in zip(operands, tensors, strict=True) if not isinstance(x, NUMBERS)), None)
        return [_like(x, t, like) for x, t in zip(operands, tensors, strict=True)], False
    like = tensors[batched.index(True)]
    most = max(t.dim() - b for t, b in zip(tensors, batched, strict=True))
    found = []
    for x, t, b in zip(operands, tensors, batched, strict=True):
        lacking = most - (t.dim() - 1)
        if b and lacking > 0:
            t = t.reshape(t.shape[0], *[1] * lacking, *t.shape[1:])
        found.append(_like(x, t, like))
    return found, True


def plain(x: Any) -> Tensor:
    """A tensor as it is, a number in Python's own precision until it meets a tensor."""
    return x if isinstance(x, Tensor) else torch.tensor(x, dtype=torch.float64 if isinstance(x, float) else None)


def _like(x: Any, tensor: Tensor, like: Tensor | None) -> Tensor:
    """Python numbers take the precision and the device of the tensors beside them."""
    if not isinstance(x, NUMBERS):
        return tensor
    if like is None:
        return tensor.to(torch.get_default_dtype()) if isinstance(x, float) else tensor
    dtype = like.dtype if like.is_floating_point() or isinstance(x, int) else torch.get_default_dtype()
    return tensor.to(dtype=dtype, device=like.device)


def floating(x: Value) -> Value:
    """x with a floating dtype: integers and flags become numbers of the default precision."""
    if x.row is not None or x.source is not None or x.tensor.is_floating_point():
        return x
    if x.tensor.is_complex():
        raise TypeError("complex numbers are neither larger nor smaller than others; compare their .abs() or .real.")
    return Value(x.tensor.to(torch.get_default_dtype()), x.batched, x.machine)

"""Functions of tensors that a program may call: which take a batch as it is, which have an instruction of their own."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from .values import NUMBERS, Value, machine_of

# fmt: off
_ELEMENTWISE_NAMES = (
    "abs", "acos", "asin", "atan", "ceil", "cos", "cosh", "deg2rad", "digamma", "erf", "erfc", "exp", "exp2", "expm1",
    "floor", "frac", "lgamma", "log", "log10", "log1p", "log2", "neg", "negative", "reciprocal", "relu", "round", "rsqrt",
    "sigmoid", "sign", "sin", "sinh", "sqrt", "square", "tan", "tanh", "trunc", "isnan", "isfinite", "isinf", "logit",
    "sinc", "clone", "detach", "float", "double", "half", "bfloat16", "clamp", "clamp_min", "clamp_max", "nan_to_num",
    "softplus", "elu", "gelu", "silu", "leaky_relu", "add", "sub", "subtract", "mul", "multiply", "div", "divide",
    "true_divide", "maximum", "minimum", "atan2", "pow", "hypot", "fmod", "lerp", "where",
)
# fmt: on
#: Functions that treat every number by itself: they may see the whole batch at once.
ELEMENTWISE: set[Any] = {
    found
    for name in _ELEMENTWISE_NAMES
    for home in (torch, Tensor, torch.nn.functional)
    if (found := getattr(home, name, None)) is not None
}
#: Functions that have an instruction of their own.
INSTRUCTIONS: dict[Any, str] = {
    getattr(home, name): name for name in ("exp", "log", "sqrt") for home in (torch, Tensor)
}
_SIZES = ("shape", "ndim", "dtype", "device", "requires_grad", "is_cuda")


def looked_up(table: dict[Any, Any], function: Any) -> Any:
    """What a table has for a function; not every callable can be a key."""
    try:
        return table.get(function)
    except TypeError:
        return None


def is_operand(leaf: Any) -> bool:
    """Whether elementwise functions take it as it is."""
    return type(leaf) is Value or isinstance(leaf, (*NUMBERS, Tensor))


def attribute(value: Value, name: str) -> Any:
    """value.name: sizes of one item, methods of tensors, properties such as .T."""
    if name == "shape":
        return value.tensor.shape[int(value.batched) :]
    if name == "ndim":
        return value.tensor.dim() - value.batched
    if name in _SIZES:
        value.machine.spoil()
        return getattr(value.tensor, name)
    if name.startswith("__") or not hasattr(Tensor, name):
        raise AttributeError(f"tensors have no attribute {name!r}.")
    if name in ("item", "tolist", "numpy", "backward", "data"):
        raise TypeError(f"`.{name}` would leave the smooth program and lose its gradient; return the tensor instead.")
    if name.endswith("_") and not name.endswith("__"):
        raise TypeError(
            f"`.{name}()` changes a tensor in place, which has no smooth meaning; write x = x.{name[:-1]}(...)."
        )
    if callable(getattr(Tensor, name)):
        return functools.partial(method, value, name)
    return value.machine.call(lambda t: getattr(t, name), (value,), {})


def method(value: Value, name: str, *args: Any, **kwargs: Any) -> Any:
    """value.name(*args, **kwargs)."""
    if name == "size":
        return value.shape[args[0]] if args else value.shape
    if name in ("dim", "ndimension"):
        return value.ndim
    if name in ("numel", "nelement"):
        return value.shape.numel()
    function: Callable = getattr(Tensor, name)
    return machine_of(value, *args).call(function, (value, *args), kwargs)

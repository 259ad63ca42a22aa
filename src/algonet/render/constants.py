"""Numbers that calls repeat, as tensors that are kept.

Copying a number to a device waits for it, takes longer than rendering a small mesh, and cannot be captured in a graph.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor


def traced() -> bool:
    """Whether `torch.compile` or a `torch.func` transform looks on."""
    return torch.compiler.is_compiling() or torch._C._functorch.peek_interpreter_stack() is not None


def constant(value: float | Sequence[float], like: Tensor) -> Tensor:
    """The number or numbers as a tensor of the dtype and device of `like`: not to be changed in place."""
    if traced():
        return torch.tensor(value, dtype=like.dtype, device=like.device)
    return _kept(value if isinstance(value, (int, float)) else tuple(value), like.dtype, like.device)


def tensor_like(value: Any, like: Tensor) -> Tensor:
    """A tensor, moved and cast to be like `like`, or numbers as a constant."""
    return value.to(like) if isinstance(value, Tensor) else constant(value, like)


@functools.lru_cache(maxsize=512)
def _kept(value: float | tuple[float, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    # Outside of inference mode, or training could not use what evaluation has made
    with torch.inference_mode(False):
        return torch.tensor(value, dtype=dtype, device=device)

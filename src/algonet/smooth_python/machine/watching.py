"""Numbers that Python reads from tensors while a program is recorded: no recording holds them.

`math.floor(w)`, `table[i]`, `f"{w}"`, `v[:i]` or `[0.0] * n` with tensors from outside turn a tensor into a Python number,
without the frame noticing. Torch notices: all of them go through a method of the tensor, and a mode sees every one.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

_NAMES = ("__index__", "__float__", "__int__", "__bool__", "__complex__", "__repr__", "__format__", "__contains__")
_NAMES += ("item", "tolist", "numpy", "__array__", "is_nonzero", "equal", "allclose", "__dlpack__", "data_ptr")
_READS = frozenset(
    found for name in _NAMES for home in (Tensor, torch) if (found := getattr(home, name, None)) is not None
)


class Watch(TorchFunctionMode):
    """While it is open, a number that the program reads from a tensor makes the journal incomplete."""

    def __init__(self, journal: Any):
        super().__init__()
        self._journal = journal

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in _READS:
            self._journal.complete = False
        return func(*args, **(kwargs or {}))


@contextmanager
def unwatched() -> Iterator[None]:
    """Foreign functions run without the mode: the recording is given up anyway, and torch.compile would trace it."""
    modes = torch.overrides._get_current_function_mode_stack()
    if modes and isinstance(modes[-1], Watch):
        with torch.overrides._pop_mode_temporarily():
            yield
    else:
        yield

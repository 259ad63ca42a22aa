"""What torch is doing around a call: compiling, transforming, faking, in inference mode. The only file that asks it.

A tensor made while one of these is at work belongs to it and must not be kept for later calls; a call that is made while
one of them is at work must not skip its checks. `plain()` says that none of them is.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import ParamSpec, TypeVar

import torch
from torch import Tensor
from torch.autograd import forward_ad

P = ParamSpec("P")
R = TypeVar("R")
#: Where algonet runs and autocast exists.
AUTOCAST_DEVICES = ("cpu", "cuda")
#: Whether `torch.compile` or `torch.export` is looking on.
compiling = torch.compiler.is_compiling

_interpreter = torch._C._functorch.peek_interpreter_stack
_modes = torch._C._len_torch_dispatch_stack


def transforming() -> bool:
    """Whether a `torch.func` transform (vmap, grad, jvp) is at work."""
    return _interpreter() is not None


def differentiating(tensors: Iterable[Tensor]) -> bool:
    """Whether autograd takes note of what is done with these: for gradients, or tangents of forward mode."""
    if torch.is_grad_enabled():
        for tensor in tensors:
            if tensor.requires_grad:
                return True
    return pushing()


def pushing() -> bool:
    """Whether forward mode is at work: tangents are pushed along with the values."""
    return forward_ad._current_level >= 0


def faking() -> bool:
    """Whether a dispatch mode (fake tensors, a tracer, a profiler of operators) sees every operator."""
    return _modes() > 0


def plain() -> bool:
    """Whether an eager call is just that: nothing compiles, transforms or fakes."""
    return not compiling() and _interpreter() is None and _modes() == 0


def wrapped(tensor: Tensor) -> bool:
    """Whether the tensor belongs to a `torch.func` transform."""
    return torch._C._functorch.is_functorch_wrapped_tensor(tensor)


def unwrapped(tensor: Tensor) -> Tensor:
    """The tensor under all transforms; a batched one has its further dimensions then."""
    while torch._C._functorch.is_functorch_wrapped_tensor(tensor):
        tensor = torch._C._functorch.get_unwrapped(tensor)
    return tensor


def readable(*tensors: Tensor) -> bool:
    """Whether Python may look at the numbers without waiting for a device or breaking a graph."""
    if compiling() or transforming():
        return False
    return all(t.device.type == "cpu" and not isinstance(t, torch._subclasses.FakeTensor) for t in tensors)


def capturing(device: torch.device) -> bool:
    """Whether a CUDA graph is being captured: what is filled now is filled again only when the graph runs."""
    return device.type == "cuda" and torch.cuda.is_current_stream_capturing()


def outside_autocast(function: Callable[P, R]) -> Callable[P, R]:
    """Decorates what autocast would spoil: places of pixels, phases and solved systems need more digits than bfloat16 has.

    The function runs as without autocast. What a network gives it in half precision is read as it is.
    """

    @functools.wraps(function)
    def run(*args: P.args, **kwargs: P.kwargs) -> R:
        for device in AUTOCAST_DEVICES:
            if torch.is_autocast_enabled(device):
                with torch.autocast(device, enabled=False):
                    return run(*args, **kwargs)
        return function(*args, **kwargs)

    return run


@contextmanager
def outside_modes() -> Iterator[None]:
    """Inside the block, tensors are made as if in a fresh process: no inference mode, gradient, autocast or default device."""
    with (
        torch.inference_mode(False),
        torch.no_grad(),
        torch._C.DisableTorchFunction(),
        torch.autocast("cpu", enabled=False),
    ):
        yield

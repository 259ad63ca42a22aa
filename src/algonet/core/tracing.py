"""What torch is doing around a call: compiling, transforming, faking, in inference mode. The only file that asks it.

A tensor made while one of these is at work belongs to it and must not be kept for later calls; a call that is made while
one of them is at work must not skip its checks. `plain()` says that none of them is.

Whether transforms and modes are at work torch tells in private functions only. They are looked up when first asked for; where
this release of torch has moved one, the answer is taken to be yes: every call goes the long way then, which is right always.
"""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from operator import attrgetter
from typing import Any, ParamSpec, TypeVar

import torch
from torch import Tensor
from torch.autograd import forward_ad

P = ParamSpec("P")
R = TypeVar("R")
#: Where algonet runs and autocast exists.
AUTOCAST_DEVICES = ("cpu", "cuda")
#: Exactly these types are tensors of torch itself: others belong to a mode, or to another library.
TENSORS = (Tensor, torch.nn.Parameter)
#: Whether `torch.compile` or `torch.export` is looking on.
compiling = torch.compiler.is_compiling

#: What torch does not promise, by the name under which it is asked for here.
PRIVATE = {
    "interpreter": "_C._functorch.peek_interpreter_stack",
    "modes": "_C._len_torch_dispatch_stack",
    "wrapped": "_C._functorch.is_functorch_wrapped_tensor",
    "unwrap": "_C._functorch.get_unwrapped",
    "level": "autograd.forward_ad._current_level",
    "apply": "_C._FunctionBase.apply",
}


_FOUND: dict[str, Any] = {}


def _private(name: str) -> Any:
    """A private part of torch, or `None` and one line where it is not there (any more)."""
    if name not in _FOUND:
        found: Any = torch
        for part in PRIVATE[name].split("."):
            found = getattr(found, part, None)
        if found is None:
            say_missing("torch", PRIVATE[name], "calls take longer")
        _FOUND[name] = found
    return _FOUND[name]


def say_missing(package: str, name: str, effect: str) -> None:
    """One line that says why this release of a package is slower here than others."""
    if not os.environ.get("ALGONET_QUIET"):
        print(f"algonet: this {package} has no {name}: {effect}, results are the same.", file=sys.stderr)


def _looked_up(name: str, make: Callable[[], Callable[[], Any]]) -> Callable[[], Any]:
    """A function of no arguments that takes the place of `name` in this module when it is first called."""

    def first() -> Any:
        globals()[name] = make()
        return globals()[name]()

    return first


#: The `torch.func` transform at work, `None` without one; how many modes see every operator. Torch's own functions, as short
#: calls have no time for a frame of Python around them.
interpreter: Callable[[], object] = _looked_up("interpreter", lambda: _private("interpreter") or object)
modes: Callable[[], int] = _looked_up("modes", lambda: _private("modes") or (lambda: 1))
#: From 0 on, forward mode is at work: tangents are pushed along with the values.
forward_level: Callable[[], int] = _looked_up(
    "forward_level",
    lambda: _probed_level if _private("level") is None else functools.partial(attrgetter("_current_level"), forward_ad),
)


def _probed_level() -> int:
    """0 if forward mode is at work, which cannot be entered twice; else -1."""
    try:
        with forward_ad.dual_level():
            return -1
    except RuntimeError:
        return 0


def transforming() -> bool:
    """Whether a `torch.func` transform (vmap, grad, jvp) is at work."""
    return interpreter() is not None


def differentiating(tensors: Iterable[Tensor]) -> bool:
    """Whether autograd takes note of what is done with these: for gradients, or tangents of forward mode."""
    if torch.is_grad_enabled():
        for tensor in tensors:
            if tensor.requires_grad:
                return True
    return forward_level() >= 0


def faking() -> bool:
    """Whether a dispatch mode (fake tensors, a tracer, a profiler of operators) sees every operator."""
    return modes() > 0


def plain() -> bool:
    """Whether an eager call is just that: nothing compiles, transforms or fakes."""
    return not compiling() and interpreter() is None and modes() == 0


def wrapped(tensor: Tensor) -> bool:
    """Whether the tensor belongs to a `torch.func` transform."""
    asked = _private("wrapped")
    return transforming() if asked is None else asked(tensor)


def unwrapped(tensor: Tensor) -> Tensor:
    """The tensor under all transforms; a batched one has its further dimensions then."""
    asked, unwrap = _private("wrapped"), _private("unwrap")
    while asked and unwrap and asked(tensor):
        tensor = unwrap(tensor)
    return tensor


def untransformed_apply(function: type[torch.autograd.Function]) -> Callable[..., Any]:
    """`function.apply` for calls without transforms, which it need not look for again."""
    if _private("apply") is None:
        return function.apply
    above: Any = super(torch.autograd.Function, function)
    return above.apply


def readable(*tensors: Tensor) -> bool:
    """Whether Python may look at the numbers without waiting for a device or breaking a graph."""
    if compiling() or interpreter() is not None:
        return False
    for tensor in tensors:  # noqa: SIM110 (a generator's frames would be most of a short call)
        if tensor.device.type != "cpu" or type(tensor) not in TENSORS:
            return False
    return True


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
        torch.device("cpu"),
        torch.autocast("cpu", enabled=False),
    ):
        yield

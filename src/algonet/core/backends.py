"""Which implementation of an operation runs where, and why.

A `Backend` knows whether it is there, and which devices and precisions it takes. An operation (`core.operation`) has a
reference and kernels for some backends. `backend="auto"` takes the fastest that takes the call; one named by the user runs or
raises with the reason. Nothing falls back silently.
"""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Backend:
    """A way to run kernels: the package that compiles them (and how to get it), the device type they run on, the precisions
    they compute in. `title` is its name in sentences."""

    name: str
    title: str
    package: str
    how_to_get: str
    device: str
    devices: str
    dtypes: tuple[torch.dtype, ...] = (torch.float32, torch.float64)

    def why_not(self, tensors: Sequence[Tensor]) -> str | None:
        """`None`, or why kernels of this backend cannot take these tensors: not installed, device, precision."""
        if not _INSTALLED[self.package]:
            return f"{self.package} is not installed ({self.how_to_get})"
        for tensor in tensors:
            if tensor.device.type != self.device and not (self.name == "triton" and interpreting()):
                return f"{self.title} kernels run on {self.devices} and a tensor is on {tensor.device}"
            if tensor.is_floating_point() and tensor.dtype not in self.dtypes:
                taken = " and ".join(str(dtype).removeprefix("torch.") for dtype in self.dtypes)
                return f"{self.title} kernels compute in {taken}, got {tensor.dtype}"
        return None


TRITON = Backend("triton", "Triton", "triton", "it comes with CUDA builds of torch", "cuda", "CUDA devices")
NUMBA = Backend("numba", "Numba", "numba", "pip install numba", "cpu", "the CPU")
#: Those that have kernels, fastest first.
KERNEL_BACKENDS: dict[str, Backend] = {backend.name: backend for backend in (TRITON, NUMBA)}
#: All names, in the order in which `auto` asks.
BACKENDS = (*KERNEL_BACKENDS, "reference")
#: Looked up once, when a compiled graph is not yet being traced.
_INSTALLED = {b.package: importlib.util.find_spec(b.package) is not None for b in KERNEL_BACKENDS.values()}


def check_backend(where: str, backend: str) -> None:
    """Refuse a name that no operation knows, before anything is done."""
    if backend not in ("auto", *BACKENDS):
        raise ValueError(f"{where}: unknown backend {backend!r}; choose one of {', '.join(('auto', *BACKENDS))}.")


def pick(operation: str, backend: str, known: Sequence[str], why_not: Callable[[str], str | None]) -> str:
    """Which of the `known` backends takes a call, for which `why_not(name)` is `None`: the fastest for "auto", else the one
    named; raises with the reasons if none does."""
    if backend == "auto":
        for name in BACKENDS:
            # The interpreter exists for tests of the kernels' logic; it is far slower than the reference.
            if name == "triton" and interpreting():
                continue
            if name in known and why_not(name) is None:
                return name
        reasons = "; ".join(f"{name}: {why_not(name)}" for name in known)
        raise ValueError(f"{operation}: no backend takes this call: {reasons}.")
    if backend not in known:
        listed = ", ".join(["auto", *(name for name in BACKENDS if name in known)])
        raise ValueError(f"{operation}: unknown backend {backend!r}; choose one of {listed}.")
    reason = why_not(backend)
    if reason is not None:
        able = [name for name in BACKENDS if name in known and why_not(name) is None]
        raise ValueError(
            f"{operation}: backend {backend!r} cannot take this call: {reason}. "
            f'Use backend="auto"{" or " + ", ".join(map(repr, able)) if able else ""}.'
        )
    return backend


def interpreting() -> bool:
    """Whether Triton kernels run in Triton's interpreter (on the CPU, for tests)."""
    return os.environ.get("TRITON_INTERPRET", "0") == "1"

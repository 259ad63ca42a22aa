"""Which implementation of an operation runs where, and why.

Every operation that has kernels registers one implementation per backend, each with a `supports(call)` that answers
`None` or says why it cannot take the call. `backend="auto"` takes the fastest that supports the call; a backend named
by the user runs or raises with that reason. Nothing falls back silently.
"""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import Tensor

#: Fastest first: the order in which `auto` asks.
BACKENDS = ("triton", "numba", "reference")

Supports = Callable[[Any], str | None]


@dataclass(frozen=True)
class Implementation:
    """One way to run an operation: `run(call)` computes it, `supports(call)` says `None` or why it cannot."""

    operation: str
    backend: str
    run: Callable[[Any], Any]
    supports: Supports


#: Looked up once, when a compiled graph is not yet being traced.
_INSTALLED = {package: importlib.util.find_spec(package) is not None for package in ("numba", "triton")}
_REGISTRY: dict[str, dict[str, Implementation]] = {}
_EXAMPLES: dict[str, Callable[[str], Any]] = {}


def _always(call: Any) -> str | None:
    return None


def register(operation: str, backend: str, *, supports: Supports = _always):
    """Decorate the function that runs `operation` on `backend`. Its one argument is the domain's frozen call object."""
    if backend not in BACKENDS:
        raise ValueError(f"register: unknown backend {backend!r}; choose one of {', '.join(BACKENDS)}.")

    def decorate(run: Callable[[Any], Any]) -> Callable[[Any], Any]:
        _REGISTRY.setdefault(operation, {})[backend] = Implementation(operation, backend, run, supports)
        return run

    return decorate


def register_example(operation: str):
    """Decorate `example(device) -> call`: a typical small call, which `algonet doctor` asks each backend about."""

    def decorate(example: Callable[[str], Any]) -> Callable[[str], Any]:
        _EXAMPLES[operation] = example
        return example

    return decorate


def operations() -> tuple[str, ...]:
    """The names of all registered operations, sorted."""
    return tuple(sorted(_REGISTRY))


def choose(operation: str, backend: str, call: Any) -> Implementation:
    """The implementation of `operation` that takes `call`: the fastest for "auto", else the one named."""
    implementations = _REGISTRY[operation]
    if backend == "auto":
        for name in BACKENDS:
            # The interpreter exists for tests of the kernels' logic; it is far slower than the reference.
            if name == "triton" and interpreting():
                continue
            if name in implementations and implementations[name].supports(call) is None:
                return implementations[name]
        raise ValueError(f"{operation}: no backend takes this call: {_reasons(implementations, call)}.")
    if backend not in implementations:
        known = ", ".join(["auto", *(name for name in BACKENDS if name in implementations)])
        raise ValueError(f"{operation}: unknown backend {backend!r}; choose one of {known}.")
    reason = implementations[backend].supports(call)
    if reason is not None:
        able = [name for name in BACKENDS if name in implementations and implementations[name].supports(call) is None]
        raise ValueError(
            f"{operation}: backend {backend!r} cannot take this call: {reason}. "
            f'Use backend="auto"{" or " + ", ".join(map(repr, able)) if able else ""}.'
        )
    return implementations[backend]


def dispatch(operation: str, backend: str, call: Any) -> Any:
    """Run `operation` on the backend that `choose` picks."""
    return choose(operation, backend, call).run(call)


def survey(device: str = "cpu") -> dict[str, dict[str, str | None]]:
    """For each operation and backend: `None` if it would run a typical call on `device`, else why not."""
    table: dict[str, dict[str, str | None]] = {}
    for operation in operations():
        call = _EXAMPLES[operation](device)
        table[operation] = {name: impl.supports(call) for name, impl in _REGISTRY[operation].items()}
    return table


def interpreting() -> bool:
    """Whether Triton kernels run in Triton's interpreter (on the CPU, for tests)."""
    return os.environ.get("TRITON_INTERPRET", "0") == "1"


def why_not_numba(*tensors: Tensor) -> str | None:
    """`None`, or why Numba kernels cannot take these tensors: not installed, or not on the CPU."""
    if not _INSTALLED["numba"]:
        return "numba is not installed (pip install numba)"
    device = next((t.device for t in tensors if t.device.type != "cpu"), None)
    return None if device is None else f"Numba kernels run on the CPU and a tensor is on {device}"


def why_not_triton(*tensors: Tensor) -> str | None:
    """`None`, or why Triton kernels cannot take these tensors: not installed, or not on a CUDA device."""
    if not _INSTALLED["triton"]:
        return "triton is not installed (it comes with CUDA builds of torch)"
    if interpreting():
        return None
    device = next((t.device for t in tensors if t.device.type != "cuda"), None)
    return None if device is None else f"Triton kernels run on CUDA devices and a tensor is on {device}"


def _reasons(implementations: dict[str, Implementation], call: Any) -> str:
    return "; ".join(f"{name}: {impl.supports(call)}" for name, impl in implementations.items())

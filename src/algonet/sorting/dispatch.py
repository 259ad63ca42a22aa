"""The two operations of this domain, sorting and its transpose, and the backends that run them."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any, NamedTuple

import torch
from torch import Tensor

from algonet.core import backends
from algonet.core.autograd import Operator
from algonet.relax import Logistic

from .identity import formula
from .networks import Bitonic, OddEven
from .plan import Plan, planned
from .reference import sort_reference, unsort_reference


class SortCall(NamedTuple):
    """x (*batch, n), lengths (*batch,) (read if the plan is masked), steepness (), payload (*batch, n, c) or None."""

    x: Tensor
    lengths: Tensor
    steepness: Tensor
    payload: Tensor | None
    plan: Plan
    settings: str

    @property
    def tensors(self) -> list[Tensor]:
        if self.payload is None:
            return [self.x, self.lengths, self.steepness]
        return [self.x, self.lengths, self.steepness, self.payload]


def _numba() -> ModuleType:
    from .kernels.numba import host

    return host


def _triton() -> ModuleType:
    from .kernels.triton import host

    return host


def _sort_operator(name: str, kernels: Callable[[], ModuleType], outputs: int) -> Operator:
    def fake(tensors: list[Tensor], settings: str) -> tuple[list[Tensor], list[Tensor]]:
        kept = kernels().kept_shape(tensors, settings) if name == "triton" else None
        return [_like(tensors[0]), *map(_like, tensors[3:])], [] if kept is None else [tensors[0].new_empty(kept)]

    def forward(tensors: list[Tensor], settings: str) -> tuple[list[Tensor], list[Tensor]]:
        # From the second call on without a look for the module
        operator.forward, operator.backward = kernels().sort_forward, kernels().sort_backward
        return operator.forward(tensors, settings)

    def backward(
        grads: list[Tensor], tensors: list[Tensor], saved: list[Tensor], settings: str, needs: list[bool]
    ) -> list[Any]:
        return kernels().sort_backward(grads, tensors, saved, settings, needs)

    operator = Operator(
        f"soft_sort_{name}" if outputs == 1 else f"soft_sort_payload_{name}",
        forward=forward,
        backward=backward,
        reference=sort_reference,
        fake=fake,
        outputs=outputs,
        shared=frozenset({2}),
        partial=name == "triton",
    )
    return operator


def _unsort_operator(name: str, kernels: Callable[[], ModuleType]) -> Operator:
    """P^T v. With <g, P^T v> = <P g, v>, its kernels are those of sorting with their roles exchanged."""

    def back(v: Tensor, sorting: list[Tensor], settings: str, needs: list[bool]) -> list[Any]:
        """The gradients of sorting, v being that of the payload; of the values there is none."""
        none: Any = None if name == "triton" else torch.zeros_like(sorting[0])
        return kernels().sort_backward([none, v], sorting, [], settings, needs)

    def forward(tensors: list[Tensor], settings: str) -> tuple[list[Tensor], list[Tensor]]:
        # The payload's own numbers play no part in its gradient
        return [back(tensors[3], tensors, settings, [False, False, False, True])[3]], []

    def backward(
        grads: list[Tensor], tensors: list[Tensor], saved: list[Tensor], settings: str, needs: list[bool]
    ) -> list[Tensor]:
        x, lengths, steepness, v = tensors
        found: list[Any] = [None] * 4
        sorting = [x, lengths, steepness, grads[0]]
        if needs[0] or needs[2]:
            found = back(v, sorting, settings, [needs[0], False, needs[2], False])
        if needs[3]:
            found[3] = kernels().sort_forward(sorting, settings)[0][1]
        return found

    return Operator(
        f"soft_unsort_{name}",
        forward=forward,
        backward=backward,
        reference=unsort_reference,
        fake=lambda tensors, settings: ([_like(tensors[3])], []),
        outputs=1,
        shared=frozenset({2}),
    )


def _like(x: Tensor) -> Tensor:
    return torch.empty_like(x, memory_format=torch.contiguous_format)


_KERNELS = {"numba": _numba, "triton": _triton}
_SORT = {(name, outputs): _sort_operator(name, get, outputs) for name, get in _KERNELS.items() for outputs in (1, 2)}
_UNSORT = {name: _unsort_operator(name, get) for name, get in _KERNELS.items()}


def _why_no_kernel(call: SortCall) -> str | None:
    if formula(call.plan.sigmoid) is None:
        return f"the sigmoid {type(call.plan.sigmoid).__name__} has no formula for kernels"
    if call.x.dtype not in (torch.float32, torch.float64):
        return f"kernels compute in float32 or float64, not {call.x.dtype}"
    return None


def _supports_numba(call: SortCall) -> str | None:
    return backends.why_not_numba(call.x) or _why_no_kernel(call)


def _release(package: str) -> tuple[int, int] | None:
    """(major, minor), `None` if unknown."""
    try:
        major, minor = importlib.metadata.version(package).split(".")[:2]
        return int(major), int(minor)
    except (importlib.metadata.PackageNotFoundError, ValueError):
        return None


#: Looked up once, when a compiled graph is not yet being traced. Tuples inside kernels came with 3.3, and worked from 3.4 on.
_OLD_TRITON = (_release("triton") or (3, 4)) < (3, 4)


def _supports_triton(call: SortCall) -> str | None:
    if reason := backends.why_not_triton(call.x) or _why_no_kernel(call):
        return reason
    network = call.plan.network
    if type(network) is Bitonic:
        return None
    if type(network) is not OddEven:
        return f"there is no Triton kernel for the network {network!r}; OddEven() and Bitonic() have one"
    if _OLD_TRITON:
        return "OddEven() needs Triton 3.4 or later there (it comes with torch 2.8), Bitonic() any"
    if call.x.shape[-1] > 4096:
        return (
            f"OddEven() runs on up to 4096 items per row there, and x has {call.x.shape[-1]}; Bitonic() on any number"
        )
    return None


def sorter(backend: str, payload: bool) -> Callable[[list[Tensor], str], Sequence[Tensor]]:
    """What sorts on a backend: a function of `SortCall.tensors` and settings, to (values,) or (values, payload)."""
    return sort_reference if backend == "reference" else _SORT[backend, 2 if payload else 1]


@backends.register("soft_sort", "reference")
def _sort_reference(call: SortCall) -> Sequence[Tensor]:
    return sort_reference(call.tensors, call.settings)


@backends.register("soft_sort", "numba", supports=_supports_numba)
def _sort_numba(call: SortCall) -> Sequence[Tensor]:
    return sorter("numba", call.payload is not None)(call.tensors, call.settings)


@backends.register("soft_sort", "triton", supports=_supports_triton)
def _sort_triton(call: SortCall) -> Sequence[Tensor]:
    return sorter("triton", call.payload is not None)(call.tensors, call.settings)


@backends.register("soft_unsort", "reference")
def _unsort_reference(call: SortCall) -> Sequence[Tensor]:
    return unsort_reference(call.tensors, call.settings)


@backends.register("soft_unsort", "numba", supports=_supports_numba)
def _unsort_numba(call: SortCall) -> Sequence[Tensor]:
    return _UNSORT["numba"](call.tensors, call.settings)


@backends.register("soft_unsort", "triton", supports=_supports_triton)
def _unsort_triton(call: SortCall) -> Sequence[Tensor]:
    return _UNSORT["triton"](call.tensors, call.settings)


@backends.register_example("soft_unsort")
@backends.register_example("soft_sort")
def _example(device: str) -> SortCall:
    x = torch.zeros(4, 8, device=device)
    plan, settings = planned(OddEven(), Logistic(), None, None, False)
    return SortCall(x, torch.zeros(4, dtype=torch.int32), x.new_ones(()), x.unsqueeze(-1), plan, settings)

"""The two operations of this domain, sorting and its transpose, and the backends that run them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from types import ModuleType

import torch
from torch import Tensor

from algonet import backends
from algonet.operators import Operator

from .networks import NETWORKS
from .plan import Plan
from .reference import sort_reference, unsort_reference


@dataclass(frozen=True, eq=False)
class SortCall:
    """x (*batch, n), payload (*batch, n, c), lengths (*batch,) (read if the plan is masked), steepness (), plan."""

    x: Tensor
    payload: Tensor
    lengths: Tensor
    steepness: Tensor
    plan: Plan

    @property
    def tensors(self) -> list[Tensor]:
        return [self.x, self.payload, self.lengths, self.steepness]


def _numba() -> ModuleType:
    from .kernels import numba_cpu

    return numba_cpu


def _triton() -> ModuleType:
    from .kernels import triton_gpu

    return triton_gpu


def _sort_operator(name: str, kernels) -> Operator:
    return Operator(
        f"soft_sort_{name}",
        forward=lambda tensors, settings: kernels().sort_forward(tensors, settings),
        backward=lambda grads, tensors, saved, settings, needs: kernels().sort_backward(
            grads, tensors, saved, settings, needs
        ),
        reference=sort_reference,
        fake=lambda tensors, settings: ([_like(tensors[0]), _like(tensors[1])], []),
        outputs=2,
        shared=frozenset({3}),
    )


def _unsort_operator(name: str, kernels) -> Operator:
    """P^T v. With <g, P^T v> = <P g, v>, its kernels are those of sorting with their roles exchanged."""

    def forward(tensors: list[Tensor], settings: str) -> tuple[list[Tensor], list[Tensor]]:
        x, v, lengths, steepness = tensors
        sorting = [x, torch.zeros_like(v), lengths, steepness]
        found = kernels().sort_backward([torch.zeros_like(x), v], sorting, [], settings, [False, True, False, False])
        return [found[1]], []

    def backward(
        grads: list[Tensor], tensors: list[Tensor], saved: list[Tensor], settings: str, needs: list[bool]
    ) -> list[Tensor]:
        x, v, lengths, steepness = tensors
        found = [x.new_empty(0)] * 4
        sorting = [x, grads[0], lengths, steepness]
        if needs[0] or needs[3]:
            wanted = [needs[0], False, False, needs[3]]
            pulled = kernels().sort_backward([torch.zeros_like(x), v], sorting, [], settings, wanted)
            found[0], found[3] = pulled[0], pulled[3]
        if needs[1]:
            found[1] = kernels().sort_forward(sorting, settings)[0][1]
        return found

    return Operator(
        f"soft_unsort_{name}",
        forward=forward,
        backward=backward,
        reference=unsort_reference,
        fake=lambda tensors, settings: ([_like(tensors[1])], []),
        outputs=1,
        shared=frozenset({3}),
    )


def _like(x: Tensor) -> Tensor:
    return torch.empty_like(x, memory_format=torch.contiguous_format)


_SORT = {"numba": _sort_operator("numba", _numba), "triton": _sort_operator("triton", _triton)}
_UNSORT = {"numba": _unsort_operator("numba", _numba), "triton": _unsort_operator("triton", _triton)}


def _why_no_kernel(call: SortCall) -> str | None:
    if call.plan.sigmoid.scalar is None:
        return f"the sigmoid {call.plan.form} has no formula for kernels"
    if call.x.dtype not in (torch.float32, torch.float64):
        return f"kernels compute in float32 or float64, not {call.x.dtype}"
    return None


def _supports_numba(call: SortCall) -> str | None:
    return backends.why_not_numba(call.x, call.payload) or _why_no_kernel(call)


def _supports_triton(call: SortCall) -> str | None:
    if reason := backends.why_not_triton(call.x, call.payload) or _why_no_kernel(call):
        return reason
    if call.plan.network not in NETWORKS:
        return f"there is no Triton kernel for the network {call.plan.network!r}"
    if call.plan.network == "odd_even" and call.x.shape[-1] > 4096:
        return f"OddEven() runs on up to 4096 items per row there, and x has {call.x.shape[-1]}; Bitonic() on any number"
    return None


@backends.register("soft_sort", "reference")
def _sort_reference(call: SortCall) -> Sequence[Tensor]:
    return sort_reference(call.tensors, call.plan.encode())


@backends.register("soft_sort", "numba", supports=_supports_numba)
def _sort_numba(call: SortCall) -> Sequence[Tensor]:
    return _SORT["numba"](call.tensors, call.plan.encode())


@backends.register("soft_sort", "triton", supports=_supports_triton)
def _sort_triton(call: SortCall) -> Sequence[Tensor]:
    return _SORT["triton"](call.tensors, call.plan.encode())


@backends.register("soft_unsort", "reference")
def _unsort_reference(call: SortCall) -> Sequence[Tensor]:
    return unsort_reference(call.tensors, call.plan.encode())


@backends.register("soft_unsort", "numba", supports=_supports_numba)
def _unsort_numba(call: SortCall) -> Sequence[Tensor]:
    return _UNSORT["numba"](call.tensors, call.plan.encode())


@backends.register("soft_unsort", "triton", supports=_supports_triton)
def _unsort_triton(call: SortCall) -> Sequence[Tensor]:
    return _UNSORT["triton"](call.tensors, call.plan.encode())


@backends.register_example("soft_unsort")
@backends.register_example("soft_sort")
def _example(device: str) -> SortCall:
    x = torch.zeros(4, 8, device=device)
    return SortCall(x, x.unsqueeze(-1), torch.zeros(4, dtype=torch.int32), x.new_ones(()), Plan("odd_even", "Logistic"))



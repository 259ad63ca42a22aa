"""Calls of `soft_sort` that were made before and need nothing but their kernel: the second time, only that runs.

A small sort takes the GPU a few microseconds, checking its arguments and choosing its backend several times as long.
Whatever these look at is part of the key, so a known key has passed them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import NoneType
from typing import TYPE_CHECKING, Any, NamedTuple

from torch import Tensor
from torch.nn import Parameter

from algonet.core import backends

from .dispatch import SortCall, sorter
from .identity import identity
from .networks import Network

if TYPE_CHECKING:
    from .functional import Job

#: How many calls are remembered before all are forgotten.
MOST = 1000


class Known(NamedTuple):
    """What runs a call, and what it takes besides the tensors of the user; `steepness` is `None` where it is one of these."""

    run: Callable[[list[Tensor], str], Sequence[Tensor]]
    lengths: Tensor
    steepness: Tensor | None
    descending: bool
    settings: str

    def __call__(self, x: Tensor, payload: Tensor | None, given: Any) -> tuple[Tensor, Tensor | None]:
        steepness = self.steepness
        if steepness is None:
            steepness = -given if self.descending else given
        if payload is None:
            return self.run([x, self.lengths, steepness], self.settings)[0], None
        values, moved = self.run([x, self.lengths, steepness, payload], self.settings)
        return values, moved


CALLS: dict[tuple | None, Known] = {}
#: Exactly these types: others (of a mode, of a transform) and wrong ones take the long way.
_TENSORS, _PAYLOADS, _STEPS = (Tensor, Parameter), (NoneType, Tensor, Parameter), (NoneType, int)


def key(
    x: Any,
    dim: Any,
    descending: Any,
    relax: Any,
    method: Any,
    steps: Any,
    payload: Any,
    backend: Any,
) -> tuple | None:
    """What a call depends on, apart from the numbers in x and the payload. `None` for what is not worth remembering."""
    if type(x) not in _TENSORS or type(payload) not in _PAYLOADS:
        return None
    if (type(dim), type(descending), type(backend)) != (int, bool, str) or type(steps) not in _STEPS:
        return None
    steepness: Any = getattr(relax, "steepness", None)
    if type(steepness) in _TENSORS:
        if steepness.dim() or steepness.dtype != x.dtype or steepness.device != x.device:
            return None
        if not isinstance(method, Network):
            return None
        steepness = None
    elif type(steepness) is not float or not isinstance(method, Network):
        return None
    shape = None if payload is None else (payload.shape, payload.dtype, payload.device)
    return (
        x.shape,
        x.dtype,
        x.device,
        shape,
        dim,
        descending,
        identity(relax),
        steepness,
        identity(method),
        steps,
        backend,
    )


def remember(known_as: tuple, job: Job, payload: Tensor | None, given: Any) -> None:
    """Remember a call that changes neither the layout nor the precision of its tensors."""
    constant = None if isinstance(given, Tensor) else job.steepness
    if constant is not None and (type(constant) is not Tensor or constant.is_inference()):  # made in a mode that ends
        return
    if payload is not None and payload.dtype != job.x.dtype:
        return
    if len(CALLS) > MOST:
        CALLS.clear()
    call = SortCall(job.x, job.lengths, job.steepness, payload, job.plan, job.settings)
    run = sorter(backends.choose("soft_sort", job.backend, call).backend, payload is not None)
    CALLS[known_as] = Known(run, job.lengths, constant, job.descending, job.settings)

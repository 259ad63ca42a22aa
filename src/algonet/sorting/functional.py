"""Soft sorting and what follows from it: pure functions that check their arguments, dispatch and return.

Convention of every permutation here: `values = P @ x`, so `P[..., i, j]` is the share of item j in sorted position i.
Rows and columns of P sum to 1.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from algonet.core import backends
from algonet.core.hints import hints_at_relax
from algonet.core.identity import interned
from algonet.relax import DECISION, Heaviside, Sigmoid

from . import checks, plain
from .cache import ByteCache
from .dispatch import SortCall
from .masks import Placement, place
from .methods import Method, Pairwise, Permutahedron, SoftmaxMethod, chosen, names, short, suggestions
from .networks import Network, OddEven
from .operation import PAIRWISE, PairwiseSettings
from .pairwise import laplace_counts
from .plan import planned


class SortResult(NamedTuple):
    """`values` (*x), `payload` (*x, *trailing) or None, `permutation` (*batch, n, n) or None; all differentiable."""

    values: Tensor
    payload: Tensor | None
    permutation: Tensor | None


class TopKResult(NamedTuple):
    """`values` and `indices` with k entries along dim, `permutation` (*batch, k, n) or None. All are differentiable.

    `indices` are expected positions in x, in float32 at least.
    """

    values: Tensor
    indices: Tensor
    permutation: Tensor | None


@hints_at_relax
def soft_sort(
    x: Tensor,
    *,
    dim: int = -1,
    descending: bool = False,
    relax: Sigmoid = DECISION,
    method: Method = OddEven(),
    steps: int | None = None,
    payload: Tensor | None = None,
    mask: Tensor | None = None,
    return_permutation: bool = False,
    hard: bool = False,
    backend: str = "auto",
    network: Network | None = None,
) -> SortResult:
    """Sort smoothly along `dim`: neighbours in a sorting network exchange as far as they are out of order.

    A pair a, b becomes a' = alpha a + (1 - alpha) b, b' = (1 - alpha) a + alpha b with alpha = r(steepness (b - a)), the
    probability that it is in order; descending (the paper's direction) with alpha = r(steepness (a - b)).
    steepness -> inf gives `torch.sort`. The mixtures keep sums: `values.sum(dim) == x.sum(dim)`.

    - `payload` of shape (*x.shape, *trailing) is sorted along with x in the same pass.
    - `mask` (boolean, shape of x) is True where an item is present. The others come last, in their order and as they
      are; they get no gradient, and how many there are changes nothing for the rest.
    - `steps` < n layers sort coarsely. All layers are the default.
    - `return_permutation` gives P (*batch, n, n) with values = P x (with the sorted dimension last).
    - `hard` returns the crisp sort with the gradient of the soft one (straight-through).

    Differentiable in x, payload and the steepness as often as the sigmoid is. Infinite items take part crisply; a NaN
    spoils its own row. O(n^2) exchanges with OddEven, O(n log^2 n) with Bitonic; no n x n matrix unless it is asked for.

    >>> from algonet.relax import Logistic
    >>> soft_sort(torch.tensor([3.0, 1.0, 2.0]), relax=Logistic(2.0)).values
    tensor([1.1470, 2.0113, 2.8416])
    """
    method = chosen("soft_sort", method, network)
    key = None
    if not (return_permutation or hard or mask is not None or torch.compiler.is_compiling()):
        key = plain.key(x, dim, descending, relax, method, steps, payload, backend)
        known = plain.CALLS.get(key)
        if known is not None:
            return SortResult(*known(x, payload, relax.steepness), None)
    x = checks.items("soft_sort", x, dim)
    if not (payload is None and not return_permutation) and not getattr(method, "payload", True):
        able = names(suggestions("argsort"))
        raise ValueError(f"soft_sort: {short(method)} sorts neither payloads nor permutations along; {able} do.")
    flat = checks.payload("soft_sort", x, payload, dim)
    n = x.shape[dim]
    extra = [] if flat is None else [flat]
    if return_permutation:
        eye = torch.eye(n, dtype=x.dtype if flat is None else flat.dtype, device=x.device)
        extra.append(eye.expand(*x.movedim(dim, -1).shape, n))
    whole = torch.cat(extra, -1) if len(extra) > 1 else extra[0] if extra else None
    spared = 0 if flat is None else flat.shape[-1]
    job = Job("soft_sort", x, dim, descending, relax, method, steps, mask, None, backend, flat)
    if key is not None and job.x is x and flat is payload:
        plain.remember(key, job, payload, relax.steepness)
    values, moved = job.sort(whole, spared)
    if hard:
        order = job.crisp_order()
        values = _straight_through(torch.gather(job.x, -1, order), values)
        if whole is not None and moved is not None:
            moved = _straight_through(torch.gather(whole, -2, order.unsqueeze(-1).expand_as(whole)), moved)
    permutation = moved[..., spared:] if return_permutation and moved is not None else None
    carried = None
    if payload is not None and moved is not None:
        carried = moved[..., :spared] if return_permutation else moved
        carried = carried if job.dim is None else carried.movedim(-2, dim % x.dim())
        carried = carried if carried.shape == payload.shape else carried.reshape(payload.shape)
        carried = carried if carried.dtype == payload.dtype else carried.to(payload.dtype)
    return SortResult(job.back(values), carried, None if permutation is None else permutation.to(x.dtype))


@hints_at_relax
def soft_argsort(
    x: Tensor,
    *,
    dim: int = -1,
    descending: bool = False,
    relax: Sigmoid = DECISION,
    method: Method = OddEven(),
    mask: Tensor | None = None,
    hard: bool = False,
    backend: str = "auto",
    network: Network | None = None,
) -> Tensor:
    """The expected index of the item in each sorted position, P (0, 1, ..., n-1): real numbers of the shape of x.

    In float32 at least: half precisions cannot count so far.

    steepness -> inf gives `torch.argsort`. Differentiable like `soft_sort`, at the cost of one payload channel.

    >>> soft_argsort(torch.tensor([30.0, 10.0, 20.0]))
    tensor([1., 2., 0.])
    """
    method = chosen("soft_argsort", method, network)
    x = checks.items("soft_argsort", x, dim)
    job = Job("soft_argsort", x, dim, descending, relax, method, None, mask, None, backend)
    index = torch.arange(job.x.shape[-1], dtype=job.x.dtype, device=x.device).expand(job.x.shape)
    _, moved = job.sort(index.unsqueeze(-1), 0)
    assert moved is not None
    result = moved.squeeze(-1)
    if hard:
        result = _straight_through(job.crisp_order().to(result.dtype), result)
    return job.back_positions(result)


@hints_at_relax
def soft_rank(
    x: Tensor,
    *,
    dim: int = -1,
    descending: bool = False,
    relax: Sigmoid = DECISION,
    method: Method = OddEven(),
    mask: Tensor | None = None,
    hard: bool = False,
    backend: str = "auto",
    network: Network | None = None,
) -> Tensor:
    """The expected sorted position (from 0) of each item, P^T (0, 1, ..., n-1): real numbers of the shape of x.

    In float32 at least: half precisions cannot count so far.

    steepness -> inf gives `x.argsort().argsort()`. The transposed pass through the network: O(n) memory, no matrix.
    Differentiable like `soft_sort`.

    >>> soft_rank(torch.tensor([30.0, 10.0, 20.0]))
    tensor([2., 0., 1.])
    """
    method = chosen("soft_rank", method, network)
    x = checks.items("soft_rank", x, dim)
    job = Job("soft_rank", x, dim, descending, relax, method, None, mask, None, backend)
    result = job.ranks()
    if hard:
        result = _straight_through(job.crisp_order().argsort(-1).to(result.dtype), result)
    return job.back_positions(result)


@hints_at_relax
def soft_topk(
    x: Tensor,
    k: int,
    *,
    dim: int = -1,
    largest: bool = True,
    relax: Sigmoid = DECISION,
    method: Method = OddEven(),
    mask: Tensor | None = None,
    return_permutation: bool = False,
    hard: bool = False,
    backend: str = "auto",
    network: Network | None = None,
) -> TopKResult:
    """The k largest items in descending order (smallest in ascending), by the exchanges that can reach them.

    steepness -> inf gives `torch.topk`. `indices` are expected positions in x; `permutation` (*batch, k, n), when asked
    for, holds the share of every item in each of the k places. In a row whose mask leaves fewer than k items the
    absent ones follow. Differentiable like `soft_sort`.

    >>> values, indices, _ = soft_topk(torch.tensor([1.0, 7.0, 5.0, 3.0]), 2)
    >>> values, indices
    (tensor([7., 5.]), tensor([1., 2.]))
    """
    method = chosen("soft_topk", method, network)
    x = checks.items("soft_topk", x, dim)
    checks.count("soft_topk", k, x.shape[dim], dim)
    wanted = tuple(range(k)) if mask is None else None
    job = Job("soft_topk", x, dim, largest, relax, method, None, mask, wanted, backend)
    n = job.x.shape[-1]
    index = torch.arange(n, dtype=job.x.dtype, device=x.device).expand(job.x.shape).unsqueeze(-1)
    values, moved = job.sort(index, 0)
    assert moved is not None
    values, indices, permutation = values[..., :k], moved[..., :k, 0], None
    if return_permutation:
        eye = torch.eye(n, k, dtype=job.x.dtype, device=x.device).expand(*job.x.shape, k)
        permutation = job.transposed(eye).transpose(-1, -2)
    if hard:
        order = job.crisp_order()[..., :k]
        values = _straight_through(torch.gather(job.x, -1, order), values)
        indices = _straight_through(order.to(indices.dtype), indices)
        if permutation is not None:
            crisp = torch.nn.functional.one_hot(order, n).to(permutation.dtype)
            permutation = _straight_through(crisp, permutation)
    permutation = None if permutation is None else permutation.to(x.dtype)
    return TopKResult(job.back(values), job.back_positions(indices), permutation)


#: The question that each function asks a method.
_TASKS = {"soft_sort": "sort", "soft_argsort": "argsort", "soft_rank": "rank", "soft_topk": "topk"}


class Job:
    """One validated call with the sorted dimension last and half precision widened."""

    def __init__(
        self,
        name: str,
        x: Tensor,
        dim: int,
        descending: bool,
        relax: Sigmoid,
        method: Method,
        steps: int | None,
        mask: Tensor | None,
        keep: tuple[int, ...] | None,
        backend: str,
        payload: Tensor | None = None,
    ):
        checks.options(name, relax, method, steps, _TASKS.get(name, "quantile"))
        last = dim in (-1, x.dim() - 1)
        self.x = checks.widened(x if last else x.movedim(dim, -1))
        if payload is not None and payload.dtype == torch.float64:
            self.x = self.x.double()  # or the payload would be rounded on its way
        self.backend, self.descending, self.method, self.relax = backend, descending, method, relax
        self.dim, self.dtype = None if last else dim, x.dtype
        self.placement: Placement | None = None
        self.mask = checks.mask(name, x, mask)
        network = isinstance(method, Network)
        if self.mask is not None:
            self.mask = self.mask if last else self.mask.movedim(dim, -1)
            self.placement = place(self.mask, network and method.right_aligned)
        self.lengths = _no_lengths(x.device) if self.placement is None else self.placement.lengths
        self.steepness = checks.steepness(name, relax, self.x, -1.0 if descending and network else 1.0)
        if keep is not None and len(keep) == self.x.shape[-1]:
            keep = None
        if network:
            method.hint(name, self.x.shape[-1], steps)
            self.plan, self.settings = planned(method, relax, steps, keep, self.placement is not None)
        elif backend not in ("auto", "reference") and not isinstance(method, Pairwise):
            raise ValueError(f'{name}: {short(method)} is plain torch and has no kernels; use backend="auto".')

    def sort(self, payload: Tensor | None, spared: int) -> tuple[Tensor, Tensor | None]:
        """(values, payload) in sorted order. Of the payload, the first `spared` channels of absent items are unused."""
        x = self.x
        payload = None if payload is None else payload.to(x.dtype)
        if self.placement is None:
            found = self._sort(x, payload)
            return found[0], None if payload is None else found[1]
        placed = self.placement
        sent = None if payload is None else placed.forth_payload(payload, spared)
        found = self._sort(placed.forth(x), sent)
        return placed.back(found[0], x), None if payload is None else placed.back_payload(found[1], payload, spared)

    def transposed(self, v: Tensor) -> Tensor:
        """P^T v for v (*batch, n, c) in sorted order."""
        if self.placement is None:
            return self._transposed(self.x, v)
        placed = self.placement
        return placed.back_items(self._transposed(placed.forth(self.x), placed.forth_sorted(v)))

    def ranks(self) -> Tensor:
        """The expected position of each item."""
        x = -self.x if self.descending else self.x
        if isinstance(self.method, Permutahedron):
            if self.placement is None:
                return self.method.ranks(x, None)
            placed = self.method.ranks(self.placement.forth(x), self.placement.lengths)
            return self.placement.back_items(placed.unsqueeze(-1)).squeeze(-1)
        if isinstance(self.method, Pairwise):
            return self._pairwise(x)
        positions = torch.arange(x.shape[-1], dtype=x.dtype, device=x.device).expand(x.shape)
        return self.transposed(positions.unsqueeze(-1)).squeeze(-1)

    def _sort(self, x: Tensor, payload: Tensor | None) -> Sequence[Tensor]:
        if isinstance(self.method, Network):
            return self._dispatch("soft_sort", x, payload)
        if isinstance(self.method, Permutahedron):
            lengths = None if self.placement is None else self.placement.lengths
            return [self.method.sorted(x, self.descending, lengths)]
        p = self._permutation(x)
        values = (p @ x.unsqueeze(-1)).squeeze(-1)
        return [values] if payload is None else [values, p @ payload]

    def _transposed(self, x: Tensor, v: Tensor) -> Tensor:
        if isinstance(self.method, Network):
            return self._dispatch("soft_unsort", x, v)[0]
        return self._permutation(x).transpose(-1, -2) @ v

    def _permutation(self, x: Tensor) -> Tensor:
        assert isinstance(self.method, SoftmaxMethod)
        x = -x if self.descending else x
        lengths = None if self.placement is None else self.placement.lengths
        if isinstance(self.relax, Heaviside):
            order = torch.where(_before(x, lengths), x, torch.inf).argsort(dim=-1, stable=True)
            return torch.nn.functional.one_hot(order, x.shape[-1]).to(x.dtype)
        return self.method.permutation(x, self.steepness, lengths)

    def _pairwise(self, x: Tensor) -> Tensor:
        if Pairwise.scans(self.relax) and self.backend == "auto":
            counts = laplace_counts(x, self.steepness, self.mask)
        else:
            weights = torch.ones_like(x) if self.mask is None else self.mask.to(x.dtype)
            counts = PAIRWISE([x, weights, self.steepness], PairwiseSettings(interned(self.relax)), self.backend)[0]
        if self.mask is None:
            return counts
        absent = self.mask.sum(-1, keepdim=True) + (~self.mask).long().cumsum(-1) - 1
        return torch.where(self.mask, counts, absent.to(counts.dtype))

    def back(self, values: Tensor) -> Tensor:
        """With the sorted dimension where x has it, in x's precision."""
        values = self.back_positions(values)
        return values if values.dtype == self.dtype else values.to(self.dtype)

    def back_positions(self, positions: Tensor) -> Tensor:
        """The same for positions, which stay in float32 at least: half precisions cannot count beyond 256 or 2048."""
        return positions if self.dim is None else positions.movedim(-1, self.dim)

    def crisp_order(self) -> Tensor:
        """The indices of a stable crisp sort, absent items last."""
        x = self.x.detach()
        if self.mask is None:
            return torch.argsort(x, dim=-1, descending=self.descending, stable=True)
        # Equal among themselves, so that they keep their order
        x = torch.where(self.mask, x, 0.0)
        order = torch.argsort(x, dim=-1, descending=self.descending, stable=True)
        late = torch.gather(~self.mask, -1, order).to(torch.int8)
        return torch.gather(order, -1, torch.argsort(late, dim=-1, stable=True))

    def _dispatch(self, operation: str, x: Tensor, payload: Tensor | None) -> Sequence[Tensor]:
        call = SortCall(x, self.lengths, self.steepness, payload, self.plan, self.settings)
        return backends.dispatch(operation, self.backend, call)


#: One empty tensor for each device.
_EMPTY: ByteCache[Tensor] = ByteCache(2**10, lambda empty: (empty,))


def _no_lengths(device: torch.device) -> Tensor:
    """What stands for the lengths of rows that are all complete."""
    if torch.compiler.is_compiling():
        return torch.empty(0, dtype=torch.int32, device=device)
    return _EMPTY.get(device, device, lambda: torch.empty(0, dtype=torch.int32, device=device))


def _before(x: Tensor, lengths: Tensor | None) -> Tensor:
    places = torch.arange(x.shape[-1], device=x.device)
    return places < (x.shape[-1] if lengths is None else lengths.unsqueeze(-1))


def _straight_through(crisp: Tensor, soft: Tensor) -> Tensor:
    """The crisp values with the gradient of the soft ones."""
    return crisp.detach() + torch.where(soft.isfinite(), soft - soft.detach(), 0.0)

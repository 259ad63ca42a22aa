"""A call of soft sorting after its checks: what every public function of the domain runs."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from algonet.core.backends import check_backend
from algonet.core.cache import constant
from algonet.core.checks import widened
from algonet.relax import Heaviside, Relative, Sigmoid

from .checks import check_mask, check_options, check_room, signed_steepness
from .masks import Placement, occupied, place
from .methods import Method, Pairwise, Permutahedron, SmoothedCDF, SoftmaxMethod, short
from .networks import Network
from .operation import SORT, TRANSPOSED
from .order import Order
from .pairwise import pair_counts
from .settings import sort_settings

#: The question that each function asks a method.
_TASKS = {"soft_sort": "sort", "soft_argsort": "argsort", "soft_rank": "rank", "soft_topk": "topk"}


class SortCall:
    """One checked call: the sorted dimension last, half precision widened, defaults filled in."""

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
        check_options(name, relax, method, steps, _TASKS.get(name, "quantile"))
        check_backend(name, backend)
        check_room(name, x, x.shape[dim], x.shape[dim] if isinstance(method, SoftmaxMethod) else 1)
        last = dim in (-1, x.dim() - 1)
        self.x = widened(x if last else x.movedim(dim, -1))
        if payload is not None and payload.dtype == torch.float64:
            self.x = self.x.double()  # or the payload would be rounded on its way
        self.backend, self.descending, self.method, self.relax = backend, descending, method, relax
        self.dim, self.dtype = None if last else dim, x.dtype
        self.placement: Placement | None = None
        self.order: Order | None = None
        self.first = 0
        self.mask = check_mask(name, x, mask)
        network = isinstance(method, Network)
        if isinstance(relax, Relative) and not isinstance(method, (SmoothedCDF, Pairwise)):
            raise ValueError(
                f"{name}: a relative steepness is for SmoothedCDF() and Pairwise(), not for {short(method)}."
            )
        if isinstance(method, SmoothedCDF):
            if self.mask is not None and not last:
                self.mask = self.mask.movedim(dim, -1)
            self.lengths = self.steepness = constant((), torch.int32, x.device)
            self.first, self.last = (0, self.x.shape[-1]) if not keep else (keep[0], keep[-1] + 1)
            self.order = Order(self.x, relax, self.mask, descending, backend, self.crisp_order)
            return
        if self.mask is not None:
            self.mask = self.mask if last else self.mask.movedim(dim, -1)
            self.placement = place(self.mask, network and method.right_aligned)
        no_lengths = constant((), torch.int32, x.device)
        self.lengths = no_lengths if self.placement is None else self.placement.lengths
        self.steepness = signed_steepness(name, relax, self.x, -1.0 if descending and network else 1.0)
        if keep is not None and len(keep) == self.x.shape[-1]:
            keep = None
        if network:
            method.hint(name, self.x.shape[-1], steps)
            self.settings = sort_settings(method, relax, steps, keep, self.placement is not None)
        elif backend not in ("auto", "reference") and not isinstance(method, Pairwise):
            raise ValueError(f'{name}: {short(method)} is plain torch and has no kernels; use backend="auto".')

    def tensors(self, x: Tensor, payload: Tensor | None) -> tuple[Tensor, ...]:
        """The inputs of `SORT`."""
        given = x, self.lengths, self.steepness
        return given if payload is None else (*given, payload)

    def sort(self, payload: Tensor | None, user_channels: int) -> tuple[Tensor, Tensor | None]:
        """(values, payload) in sorted order. Absent items keep what they have in the payload's first `user_channels`."""
        x = self.x
        payload = None if payload is None else payload.to(x.dtype)
        if self.order is not None:
            return self.order.sorted(payload, self.first, self.last)
        if self.placement is None:
            found = self._sort(x, payload)
            return found[0], None if payload is None else found[1]
        placed = self.placement
        sent = None if payload is None else placed.payload_to_places(payload, user_channels)
        found = self._sort(placed.to_places(x), sent)
        values = placed.values_from_places(found[0], x)
        return values, None if payload is None else placed.payload_from_places(found[1], payload, user_channels)

    def apply_transposed(self, v: Tensor) -> Tensor:
        """P^T v for v (*batch, n, c) in sorted order."""
        if self.placement is None:
            return self._apply_transposed(self.x, v)
        placed = self.placement
        return placed.items_from_places(self._apply_transposed(placed.to_places(self.x), placed.sorted_to_places(v)))

    def rows(self, count: int) -> Tensor:
        """The first rows of P, (*batch, count, n)."""
        if self.order is not None:
            return self.order.rows(0, count)
        n = self.x.shape[-1]
        eye = torch.eye(n, count, dtype=self.x.dtype, device=self.x.device)
        return self.apply_transposed(eye.expand(*self.x.shape, count)).transpose(-1, -2)

    def ranks(self) -> Tensor:
        """The expected position of each item."""
        if self.order is not None:
            return self.order.ranks()
        x = -self.x if self.descending else self.x
        if isinstance(self.method, Permutahedron):
            if self.placement is None:
                return self.method.ranks(x, None)
            placed = self.method.ranks(self.placement.to_places(x), self.placement.lengths)
            return self.placement.items_from_places(placed.unsqueeze(-1)).squeeze(-1)
        if isinstance(self.method, Pairwise):
            return self._pairwise(x)
        positions = torch.arange(x.shape[-1], dtype=x.dtype, device=x.device).expand(x.shape)
        return self.apply_transposed(positions.unsqueeze(-1)).squeeze(-1)

    def _sort(self, x: Tensor, payload: Tensor | None) -> Sequence[Tensor]:
        if isinstance(self.method, Network):
            return SORT(self.tensors(x, payload), self.settings, self.backend)
        if isinstance(self.method, Permutahedron):
            lengths = None if self.placement is None else self.placement.lengths
            return [self.method.sorted(x, self.descending, lengths)]
        p = self._permutation(x)
        values = (p @ x.unsqueeze(-1)).squeeze(-1)
        return [values] if payload is None else [values, p @ payload]

    def _apply_transposed(self, x: Tensor, v: Tensor) -> Tensor:
        if isinstance(self.method, Network):
            return TRANSPOSED(self.tensors(x, v), self.settings, self.backend)[0]
        return self._permutation(x).transpose(-1, -2) @ v

    def _permutation(self, x: Tensor) -> Tensor:
        assert isinstance(self.method, SoftmaxMethod)
        x = -x if self.descending else x
        lengths = None if self.placement is None else self.placement.lengths
        if isinstance(self.relax, Heaviside):
            order = torch.where(occupied(x, lengths), x, torch.inf).argsort(dim=-1, stable=True)
            return torch.nn.functional.one_hot(order, x.shape[-1]).to(x.dtype)
        return self.method.permutation(x, self.steepness, lengths)

    def _pairwise(self, x: Tensor) -> Tensor:
        relax, x = self.relax.absolute(x, self.mask) if isinstance(self.relax, Relative) else (self.relax, x)
        if self.mask is None:
            return pair_counts(x, torch.ones_like(x), relax, self.steepness, self.backend)
        present = torch.where(self.mask, x, 0.0)
        counts = pair_counts(present, self.mask.to(x.dtype), relax, self.steepness, self.backend)
        absent = self.mask.sum(-1, keepdim=True) + (~self.mask).long().cumsum(-1) - 1
        return torch.where(self.mask, counts, absent.to(counts.dtype))

    def restore(self, values: Tensor) -> Tensor:
        """With the sorted dimension where x has it, in x's precision."""
        return self.restore_positions(values).to(self.dtype)

    def restore_positions(self, positions: Tensor) -> Tensor:
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

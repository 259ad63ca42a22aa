"""Layers: each holds its relaxation (a learnable steepness is an nn.Parameter) and its options, and calls its function."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from algonet.core.checks import check_integer
from algonet.core.hints import hints_at_relax
from algonet.relax import DECISION, Relative, Sigmoid, SoftModule

from .checks import check_options, check_quantiles
from .functional import Payload, SortResult, TopKResult, soft_argsort, soft_rank, soft_sort, soft_topk, soft_topk_mask
from .methods import Method, Permutahedron, SmoothedCDF
from .networks import Network
from .quantile import by_weights, check_median, interpolated, soft_median, soft_quantile

#: make_gates(batch, labels, like): gates at the comparators of a network, or at the points that a sort or a median is made of.
MakeGates = Callable[[tuple[int, ...], list[str], Tensor], Tensor]


class _Sorting(SoftModule):
    #: The question that the layer asks its method.
    task = "sort"
    #: Whether methods may be names.
    by_name = False
    #: Whether results are in the unit of x.
    valued = False
    #: What the layer calls with x.
    _function: Callable[..., Any]

    relax: Sigmoid
    method: Any
    dim: int

    def __init__(self, relax: Sigmoid, method: Any, dim: int, backend: str, **options: object):
        super().__init__(relax)
        if isinstance(method, str) and self.by_name:
            check_median(type(self).__name__, method)
        else:
            check_options(type(self).__name__, relax, method, None, self.task)
        self._named = {"dim": dim, "method": method, "backend": backend, **options}
        for name, value in self._named.items():
            setattr(self, name, value)

    def _answer(self, x: Tensor, **given: Any) -> Any:
        named = {name: getattr(self, name) for name in self._named}
        return type(self)._function(x, relax=self.relax, **named, **given)

    @staticmethod
    def _gate_points(make_gates: MakeGates, values: Tensor) -> Tensor:
        return make_gates(tuple(values.shape[:-1]), [f"point {i}" for i in range(values.shape[-1])], values)

    def _sort_points(self, points: Tensor, values: Tensor, method: Method, descending: bool = False) -> Tensor:
        """Points in the order of the values."""
        options: Any = {"relax": self.relax, "method": method, "descending": descending, "backend": self.backend}
        return soft_sort(values, payload=points, **options).payload

    def blur_note(self, soft: Tensor, hard: Tensor) -> str:
        """What `softness_report` says where the method moves values by more than 1 / steepness; "" elsewhere."""
        steepness, blur = getattr(self.relax, "steepness", 0.0), float((soft - hard).abs().nanmean())
        read = not isinstance(self.relax, Relative) and not isinstance(self.method, str | Permutahedron)
        if not (self.valued and read and blur * float(steepness) > 1):
            return ""
        return (
            f"mostly blurred: {self.method} moves values by {blur:.2g}, further than 1 / steepness: "
            "raise the steepness by about 3x, or take SmoothedCDF()"
        )

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, method={self.method}, dim={self.dim}"


class _ToTensor(_Sorting):
    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        return self._answer(x, mask=mask)

    if TYPE_CHECKING:

        def __call__(self, x: Tensor, mask: Tensor | None = None) -> Tensor: ...


class SoftSort(_Sorting):
    """`soft_sort` as a layer: forward(x, payload=None, mask=None) -> SortResult.

    >>> from algonet.relax import Logistic
    >>> import torch
    >>> SoftSort(Logistic(20.0))(torch.tensor([2.0, 1.0, 3.0])).values
    tensor([1.0000, 2.0000, 3.0000])
    """

    _function = staticmethod(soft_sort)
    valued = True
    descending: bool
    steps: int | None

    @hints_at_relax
    def __init__(
        self,
        relax: Sigmoid = DECISION,
        *,
        method: Method = SmoothedCDF(),
        dim: int = -1,
        descending: bool = False,
        steps: int | None = None,
        return_permutation: bool = False,
        hard: bool = False,
        backend: str = "auto",
    ):
        options = {"descending": descending, "steps": steps, "return_permutation": return_permutation, "hard": hard}
        super().__init__(relax, method, dim, backend, **options)

    def forward(
        self,
        x: Tensor,
        payload: Payload = None,  # pyright: ignore[reportArgumentType]
        mask: Tensor | None = None,
    ) -> SortResult[Payload]:
        return self._answer(x, payload=payload, mask=mask)

    def run_gated(self, make_gates: MakeGates, x: Tensor) -> SortResult:
        """A sort whose comparators (points, where a method has none) are gated by `make_gates(batch, labels, like)`."""
        if self.hard or self.return_permutation:
            raise ValueError(
                "SoftSort.run_gated: gates are there for plain values, without hard or return_permutation."
            )
        items, network = x.movedim(self.dim, -1), self.method
        if not isinstance(network, Network):
            items = self._sort_points(self._gate_points(make_gates, items) * items, items, network, self.descending)
            return SortResult(items.movedim(-1, self.dim), None, None)
        relax, sign, n = self.relax, -1.0 if self.descending else 1.0, items.shape[-1]
        layers = [network.pairs(n, layer)[:2] for layer in range(network.layers(n, self.steps))]
        labels = [f"layer {k}: {a}-{b}" for k, pairs in enumerate(layers) for a, b in zip(*pairs, strict=True)]
        gates = make_gates(tuple(items.shape[:-1]), labels, items).split([len(first) for first, _ in layers], -1)
        for pairs, gate in zip(layers, gates, strict=True):
            i, j = (torch.as_tensor(ends, device=x.device).long() for ends in pairs)
            a, b = items[..., i], items[..., j]
            moved = gate * (1 - relax(sign * (b - a))) * (b - a)
            items = items.index_copy(-1, i, a + moved).index_copy(-1, j, b - moved)
        return SortResult(items.movedim(-1, self.dim), None, None)

    if TYPE_CHECKING:

        def __call__(
            self,
            x: Tensor,
            payload: Payload = None,  # pyright: ignore[reportArgumentType]
            mask: Tensor | None = None,
        ) -> SortResult[Payload]: ...


class SoftArgsort(_ToTensor):
    """`soft_argsort` as a layer: forward(x, mask=None) -> expected indices."""

    _function = staticmethod(soft_argsort)
    task = "argsort"

    @hints_at_relax
    def __init__(
        self,
        relax: Sigmoid = DECISION,
        *,
        method: Method = SmoothedCDF(),
        dim: int = -1,
        descending: bool = False,
        hard: bool = False,
        backend: str = "auto",
    ):
        super().__init__(relax, method, dim, backend, descending=descending, hard=hard)


class SoftRank(_ToTensor):
    """`soft_rank` as a layer: forward(x, mask=None) -> expected positions."""

    _function = staticmethod(soft_rank)
    task = "rank"

    @hints_at_relax
    def __init__(
        self,
        relax: Sigmoid = DECISION,
        *,
        method: Method = SmoothedCDF(),
        dim: int = -1,
        descending: bool = False,
        hard: bool = False,
        backend: str = "auto",
    ):
        super().__init__(relax, method, dim, backend, descending=descending, hard=hard)


class SoftTopK(_Sorting):
    """`soft_topk` as a layer: forward(x, mask=None) -> TopKResult."""

    _function = staticmethod(soft_topk)
    task = "topk"

    @hints_at_relax
    def __init__(
        self,
        k: int,
        relax: Sigmoid = DECISION,
        *,
        method: Method = SmoothedCDF(),
        dim: int = -1,
        largest: bool = True,
        return_permutation: bool = False,
        hard: bool = False,
        backend: str = "auto",
    ):
        options = {"largest": largest, "return_permutation": return_permutation, "hard": hard}
        super().__init__(relax, method, dim, backend, k=check_integer("SoftTopK", "k", k, 0), **options)

    def extra_repr(self) -> str:
        return f"k={self.k}, {super().extra_repr()}"

    def forward(self, x: Tensor, mask: Tensor | None = None) -> TopKResult:
        return self._answer(x, mask=mask)

    if TYPE_CHECKING:

        def __call__(self, x: Tensor, mask: Tensor | None = None) -> TopKResult: ...


class SoftTopKMask(SoftModule):
    """`soft_topk_mask` as a layer: forward(x, mask=None, k=None) -> memberships that sum to k.

    `k` given to forward (a number, or a tensor with one for each row) takes the place of the layer's own.

    >>> from algonet.relax import Logistic
    >>> import torch
    >>> SoftTopKMask(2, Logistic(20.0))(torch.tensor([3.0, 1.0, 2.0]))
    tensor([1.0000e+00, 4.5398e-05, 9.9995e-01])
    """

    relax: Sigmoid

    def __init__(
        self,
        k: int | float,
        relax: Sigmoid = DECISION,
        *,
        dim: int = -1,
        largest: bool = True,
        hard: bool = False,
        backend: str = "auto",
    ):
        super().__init__(relax)
        self.k = k
        self.options: dict[str, Any] = {"dim": dim, "largest": largest, "hard": hard, "backend": backend}

    def forward(self, x: Tensor, mask: Tensor | None = None, k: int | float | Tensor | None = None) -> Tensor:
        return soft_topk_mask(x, self.k if k is None else k, relax=self.relax, mask=mask, **self.options)

    def extra_repr(self) -> str:
        return f"k={self.k}, {super().extra_repr()}, largest={self.options['largest']}, hard={self.options['hard']}"


class SoftQuantile(_ToTensor):
    """`soft_quantile` as a layer: forward(x, mask=None) -> quantiles."""

    _function = staticmethod(soft_quantile)
    task = "quantile"
    valued = True

    @hints_at_relax
    def __init__(
        self,
        q: float | Sequence[float],
        relax: Sigmoid = DECISION,
        *,
        method: Method = SmoothedCDF(),
        dim: int = -1,
        keepdim: bool = False,
        backend: str = "auto",
    ):
        super().__init__(relax, method, dim, backend, q=q, keepdim=keepdim)
        check_quantiles("SoftQuantile", q)

    def extra_repr(self) -> str:
        return f"q={self.q}, {super().extra_repr()}"


class SoftMedian(_ToTensor):
    """`soft_median` as a layer: forward(x, mask=None) -> medians."""

    _function = staticmethod(soft_median)
    task = "quantile"
    by_name = True
    valued = True
    degree: int

    @hints_at_relax
    def __init__(
        self,
        relax: Sigmoid = DECISION,
        *,
        method: Method | str = SmoothedCDF(),
        degree: int = 1,
        dim: int = -1,
        keepdim: bool = False,
        backend: str = "auto",
    ):
        super().__init__(relax, method, dim, backend, degree=degree, keepdim=keepdim)

    def run_gated(self, make_gates: MakeGates, x: Tensor) -> Tensor:
        """sum_i P(i is the median) gate_i x_i: a median whose points are gated by `make_gates(batch, labels, like)`."""
        values, method = x.movedim(self.dim, -1), self.method
        gates = self._gate_points(make_gates, values)
        if isinstance(method, Method) or method == "exact":
            method = method if isinstance(method, Method) else SmoothedCDF()
            found = interpolated(self._sort_points(gates * values, values, method), 0.5, None, values.shape[-1], 0)
        else:
            found = by_weights(values, -1, method, self.degree, self.relax, None, False, gates)
        return found.unsqueeze(self.dim) if self.keepdim else found

"""Layers: each holds its relaxation (a learnable steepness is an nn.Parameter) and its options, and calls its function."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from torch import Tensor

from algonet.core.hints import hints_at_relax
from algonet.relax import Logistic, Sigmoid, SoftModule

from . import checks
from .functional import SortResult, TopKResult, soft_argsort, soft_rank, soft_sort, soft_topk
from .networks import Network, OddEven
from .quantile import soft_median, soft_quantile


class _Sorting(SoftModule):
    def __init__(self, relax: Sigmoid, network: Network, dim: int, backend: str):
        super().__init__(relax)
        checks.options(type(self).__name__, relax, network, None)
        self.network, self.dim, self.backend = network, dim, backend

    @property
    def _common(self) -> dict[str, Any]:
        return {"dim": self.dim, "relax": self.relax, "network": self.network, "backend": self.backend}

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, network={self.network}, dim={self.dim}"


class SoftSort(_Sorting):
    """`soft_sort` as a layer: forward(x, payload=None, mask=None) -> SortResult.

    >>> import torch
    >>> SoftSort(Logistic(20.0))(torch.tensor([2.0, 1.0, 3.0])).values
    tensor([1., 2., 3.])
    """

    @hints_at_relax
    def __init__(
        self,
        relax: Sigmoid = Logistic(10.0),
        *,
        network: Network = OddEven(),
        dim: int = -1,
        descending: bool = False,
        steps: int | None = None,
        return_permutation: bool = False,
        hard: bool = False,
        backend: str = "auto",
    ):
        super().__init__(relax, network, dim, backend)
        self.options: dict[str, Any] = {
            "descending": descending,
            "steps": steps,
            "return_permutation": return_permutation,
            "hard": hard,
        }

    def forward(self, x: Tensor, payload: Tensor | None = None, mask: Tensor | None = None) -> SortResult:
        return soft_sort(x, payload=payload, mask=mask, **self._common, **self.options)

    if TYPE_CHECKING:

        def __call__(self, x: Tensor, payload: Tensor | None = None, mask: Tensor | None = None) -> SortResult: ...


class SoftArgsort(_Sorting):
    """`soft_argsort` as a layer: forward(x, mask=None) -> expected indices."""

    @hints_at_relax
    def __init__(
        self,
        relax: Sigmoid = Logistic(10.0),
        *,
        network: Network = OddEven(),
        dim: int = -1,
        descending: bool = False,
        hard: bool = False,
        backend: str = "auto",
    ):
        super().__init__(relax, network, dim, backend)
        self.descending, self.hard = descending, hard

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        return soft_argsort(x, mask=mask, descending=self.descending, hard=self.hard, **self._common)

    if TYPE_CHECKING:

        def __call__(self, x: Tensor, mask: Tensor | None = None) -> Tensor: ...


class SoftRank(_Sorting):
    """`soft_rank` as a layer: forward(x, mask=None) -> expected positions."""

    @hints_at_relax
    def __init__(
        self,
        relax: Sigmoid = Logistic(10.0),
        *,
        network: Network = OddEven(),
        dim: int = -1,
        descending: bool = False,
        hard: bool = False,
        backend: str = "auto",
    ):
        super().__init__(relax, network, dim, backend)
        self.descending, self.hard = descending, hard

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        return soft_rank(x, mask=mask, descending=self.descending, hard=self.hard, **self._common)

    if TYPE_CHECKING:

        def __call__(self, x: Tensor, mask: Tensor | None = None) -> Tensor: ...


class SoftTopK(_Sorting):
    """`soft_topk` as a layer: forward(x, mask=None) -> TopKResult."""

    @hints_at_relax
    def __init__(
        self,
        k: int,
        relax: Sigmoid = Logistic(10.0),
        *,
        network: Network = OddEven(),
        dim: int = -1,
        largest: bool = True,
        return_permutation: bool = False,
        hard: bool = False,
        backend: str = "auto",
    ):
        super().__init__(relax, network, dim, backend)
        self.k = k
        self.options: dict[str, Any] = {"largest": largest, "return_permutation": return_permutation, "hard": hard}

    def extra_repr(self) -> str:
        return f"k={self.k}, {super().extra_repr()}"

    def forward(self, x: Tensor, mask: Tensor | None = None) -> TopKResult:
        return soft_topk(x, self.k, mask=mask, **self._common, **self.options)

    if TYPE_CHECKING:

        def __call__(self, x: Tensor, mask: Tensor | None = None) -> TopKResult: ...


class SoftQuantile(_Sorting):
    """`soft_quantile` as a layer: forward(x, mask=None) -> quantiles."""

    @hints_at_relax
    def __init__(
        self,
        q: float | Sequence[float],
        relax: Sigmoid = Logistic(10.0),
        *,
        network: Network = OddEven(),
        dim: int = -1,
        keepdim: bool = False,
        backend: str = "auto",
    ):
        super().__init__(relax, network, dim, backend)
        checks.quantiles(type(self).__name__, q)
        self.q, self.keepdim = q, keepdim

    def extra_repr(self) -> str:
        return f"q={self.q}, {super().extra_repr()}"

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        return soft_quantile(x, self.q, mask=mask, keepdim=self.keepdim, **self._common)

    if TYPE_CHECKING:

        def __call__(self, x: Tensor, mask: Tensor | None = None) -> Tensor: ...


class SoftMedian(_Sorting):
    """`soft_median` as a layer: forward(x, mask=None) -> medians."""

    @hints_at_relax
    def __init__(
        self,
        relax: Sigmoid = Logistic(10.0),
        *,
        method: str = "exact",
        degree: int = 1,
        network: Network = OddEven(),
        dim: int = -1,
        keepdim: bool = False,
        backend: str = "auto",
    ):
        super().__init__(relax, network, dim, backend)
        self.options: dict[str, Any] = {"method": method, "degree": degree, "keepdim": keepdim}

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        return soft_median(x, mask=mask, **self._common, **self.options)

    if TYPE_CHECKING:

        def __call__(self, x: Tensor, mask: Tensor | None = None) -> Tensor: ...

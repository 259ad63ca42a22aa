"""Methods: ways to answer a question about order softly. Frozen options, each with its formula, its hard limit and its cost.

Sorting networks (`OddEven`, `Bitonic`, in `networks.py`) answer every question. The others answer some, and say which do.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from algonet.core.checks import check_integer, check_softness
from algonet.relax import Laplace, Logistic, Sigmoid

from .isotonic import project
from .masks import occupied

#: The questions, by the names that errors and `which_method` use.
TASKS = ("sort", "argsort", "rank", "topk", "quantile")


@dataclass(frozen=True)
class Method:
    """How a question about order is answered. `answers`: which of `TASKS`; `payload`: whether it sorts others along;
    `kernels`: whether other backends than plain torch run it."""

    answers: ClassVar[frozenset[str]] = frozenset(TASKS)
    payload: ClassVar[bool] = True
    kernels: ClassVar[bool] = False

    def work(self, n: int, relax: Sigmoid) -> float:
        """How many numbers it computes for a row of n items, roughly: what `which_method` plans with."""
        return n * max(math.log2(max(n, 2)), 1.0)

    def kept(self, n: int) -> float:
        """How many numbers of a row of n items it keeps for backward, roughly."""
        return 8.0 * n

    def check(self, where: str, task: str, relax: Sigmoid) -> None:
        """Raise where this method cannot answer, or not with this relaxation."""
        if task not in self.answers:
            raise ValueError(f"{where}: {short(self)} does not answer it; {names(suggestions(task))} do.")


class SoftmaxMethod(Method):
    """A method made of softmaxes, which for two items are logistic: it reads the steepness of `relax`, a `Logistic`.

    `matrices`: how many n x n matrices it keeps for backward.
    """

    matrices: ClassVar[int] = 5

    def work(self, n: int, relax: Sigmoid) -> float:
        return 3 * self.kept(n)

    def kept(self, n: int) -> float:
        return self.matrices * n**2

    def check(self, where: str, task: str, relax: Sigmoid) -> None:
        super().check(where, task, relax)
        if not isinstance(relax, Logistic) and relax.smoothness >= 0:
            raise ValueError(
                f"{where}: {short(self)} is made of softmaxes, so `relax` must be Logistic(...), "
                f"got {relax!r}; OddEven() and Bitonic() take every sigmoid."
            )

    def permutation(self, x: Tensor, steepness: Tensor, lengths: Tensor | None) -> Tensor:
        """P (*batch, n, n) with values = P x in ascending order; beyond `lengths` it is the identity."""
        raise NotImplementedError


@dataclass(frozen=True)
class SmoothedCDF(Method):
    """Places between smoothed quantiles: P_p = m_{p+1} - m_p, m_k the soft membership in the k largest (`soft_topk_mask`).

    Every item is a soft step; b_k is where the smoothed distribution function leaves k above it, and
    m_k(j) = r(steepness (x_j - b_k)) sums to k. Rows and columns of P sum to 1, any k rows from the top are the top-k
    memberships, and the blur does not grow with n: mean distance from `torch.sort` 0.029 for 10 standard normal items and
    0.013 for 3,000 at steepness 10, which is a third to an eighth of 1 / steepness.

    For any sigmoid; smooth as the sigmoid is; values are in order for log-concave ones (`Logistic`, `Gaussian`, not `Cauchy`).
    steepness -> inf gives `torch.sort`. O(n) work and memory without kinks in the sigmoid, O(n^2) work with them
    (`Laplace`, `SmoothStep`): README.md has the derivation. Answers every question; the default.
    """

    kernels: ClassVar[bool] = True

    def work(self, n: int, relax: Sigmoid) -> float:
        return 50.0 * n if relax.smoothness == math.inf else 6.0 * n**2


@dataclass(frozen=True)
class Pairwise(Method):
    """rank_i = sum over j != i of r(steepness (x_i - x_j)): every pair is compared once, and equal items rank equally.

    For any sigmoid. steepness -> inf gives the mean of the positions that equal items share (SciPy's `rankdata` less 1).
    Ranks of symmetric sigmoids sum to n (n - 1) / 2. Smooth as the sigmoid is. O(n) without kinks in the sigmoid, O(n^2) pairs,
    streamed, with them, O(n) memory. With `Laplace` it is O(n log n): the items are sorted, and A_{i+1} = (A_i + 1)
    exp(-steepness (x_{i+1} - x_i)) sums the exponentials of all before. Answers ranks.
    """

    answers: ClassVar[frozenset[str]] = frozenset({"rank"})
    payload: ClassVar[bool] = False
    kernels: ClassVar[bool] = True

    def work(self, n: int, relax: Sigmoid) -> float:
        return super().work(n, relax) if type(relax) is Laplace else float(n) ** 2

    @staticmethod
    def scans(relax: Sigmoid, x: Tensor) -> bool:
        """Whether the O(n log n) way applies, and is the faster one: both give the same numbers."""
        return type(relax) is Laplace and not (x.is_cuda and x.numel() * x.shape[-1] <= _MOST_PAIRS_ON_GPU)


#: Up to here comparing all pairs takes less than sorting and scanning: on an H200 both take 0.45 ms for 64 x 1024, and 4.7
#: against 0.6 ms for 64 x 4096.
_MOST_PAIRS_ON_GPU = 64_000_000


@dataclass(frozen=True)
class NeuralSort(SoftmaxMethod):
    """P_i = softmax over j of steepness ((2 i - n - 1) x_j - sum_k |x_j - x_k|), i = 1 ... n (Grover et al., 2019).

    Rows of P sum to 1, columns do not, so sums are not kept and ranks have no answer. steepness -> inf gives `torch.sort`.
    Differentiable where no two items are equal. O(n^2) memory.
    """

    answers: ClassVar[frozenset[str]] = frozenset(TASKS) - {"rank"}
    matrices: ClassVar[int] = 6

    def permutation(self, x: Tensor, steepness: Tensor, lengths: Tensor | None) -> Tensor:
        n = x.shape[-1]
        here = occupied(x, lengths)
        apart = (x.unsqueeze(-1) - x.unsqueeze(-2)).abs()
        spread = torch.where(here.unsqueeze(-2), apart, 0.0).sum(-1)
        count = torch.full_like(x[..., 0], n) if lengths is None else lengths.to(x.dtype)
        place = 2 * torch.arange(1, n + 1, dtype=x.dtype, device=x.device) - count.unsqueeze(-1) - 1
        logits = steepness * (place.unsqueeze(-1) * x.unsqueeze(-2) - spread.unsqueeze(-2))
        return _rows(logits, here)


@dataclass(frozen=True)
class Unimodal(SoftmaxMethod):
    """P_i = softmax over j of -steepness |sort(x)_i - x_j|, the SoftSort of Prillo and Eisenschlos (2020).

    Each row is unimodal and sums to 1; columns do not, so ranks have no answer. steepness -> inf gives `torch.sort`.
    Differentiable where no two items are equal. O(n^2) memory.
    """

    answers: ClassVar[frozenset[str]] = frozenset(TASKS) - {"rank"}

    def permutation(self, x: Tensor, steepness: Tensor, lengths: Tensor | None) -> Tensor:
        here = occupied(x, lengths)
        ordered = torch.where(here, x, torch.inf).sort(dim=-1, stable=True).values
        ordered = torch.where(here, ordered, 0.0)
        return _rows(-steepness * (ordered.unsqueeze(-1) - x.unsqueeze(-2)).abs(), here)


@dataclass(frozen=True)
class Transport(SoftmaxMethod):
    """The doubly stochastic P that maximises 2 steepness sum_ij P_ij i x_j + entropy(P): optimal transport to the positions.

    For two items P is the logistic exchange. Found by `iterations` of Sinkhorn's in logarithms, begun at the crisp
    sort's prices,
    so that rows sum to 1 exactly and columns nearly (within 1e-2 for 30 normal numbers; more iterations bring them closer).
    steepness -> inf gives `torch.sort`. Derivatives are those of the iterations. O(n^2 iterations) work and memory for
    backward.
    """

    iterations: int = 50

    def __post_init__(self):
        object.__setattr__(self, "iterations", check_integer("Transport", "iterations", self.iterations, 1))

    def kept(self, n: int) -> float:
        return 3.0 * self.iterations * n**2

    def permutation(self, x: Tensor, steepness: Tensor, lengths: Tensor | None) -> Tensor:
        n = x.shape[-1]
        here = occupied(x, lengths)
        place = torch.arange(n, dtype=x.dtype, device=x.device)
        order = torch.where(here, x.detach(), torch.inf).argsort(dim=-1, stable=True)
        ordered = torch.where(here, torch.gather(x, -1, order), 0.0)
        # Prices at which position i prefers the i-th item: between those of its neighbours
        gaps = torch.diff(ordered, dim=-1) * (place[:-1] + 0.5)
        prices = torch.nn.functional.pad(torch.where(here[..., 1:], gaps, 0.0).cumsum(-1), (1, 0))
        prices = 2 * steepness * torch.zeros_like(x).scatter(-1, order, prices)
        logits = 2 * steepness * place.unsqueeze(-1) * x.unsqueeze(-2)
        both = here.unsqueeze(-1) & here.unsqueeze(-2)
        least = torch.finfo(x.dtype).min / 4
        logits = torch.where(both, logits, least)
        for _ in range(self.iterations):
            rows = torch.logsumexp(logits - prices.unsqueeze(-2), -1)
            shares = torch.where(both, logits - rows.unsqueeze(-1), least)
            prices = torch.where(here, torch.logsumexp(shares, -2), 0.0)
        return _rows(logits - prices.unsqueeze(-2), here)


@dataclass(frozen=True)
class Permutahedron(Method):
    """Projections onto the permutahedron (Blondel et al., 2020, "fast soft sort"): l2, or `entropic`.

    With positions p = (0, ..., n - 1): ranks are the point of the permutahedron of p nearest to x / strength, sorted
    values the point
    of the permutahedron of x nearest to p / strength. The softness is `strength` (smaller is harder); `relax` is not read.
    strength -> 0 gives `torch.sort` and ranks; below a finite strength they are exact. l2 keeps sums and is piecewise
    linear (second
    derivatives are 0 where they exist); entropic is smooth inside its pieces, and its ranks are those of exp-projections.
    O(n log n) work, O(n) memory; pools are found on the CPU. Answers sorted values, quantiles and ranks: it has no permutation.
    """

    strength: float | Tensor = 1.0
    entropic: bool = False
    answers: ClassVar[frozenset[str]] = frozenset({"sort", "rank", "quantile"})
    payload: ClassVar[bool] = False

    def __post_init__(self):
        check_softness(self, "strength", self.strength)

    def sorted(self, x: Tensor, descending: bool, lengths: Tensor | None) -> Tensor:
        """The values in order, of rows whose first `lengths` items are present (`None`: all)."""
        n = x.shape[-1]
        here = None if lengths is None else occupied(x, lengths)
        places = torch.arange(n, 0, -1, dtype=x.dtype, device=x.device) / self.strength
        # Stable: which of equal items gets a place's gradient goes by position
        ordered = x if here is None else torch.where(here, x, -torch.inf)
        ordered = ordered.sort(dim=-1, descending=True, stable=True).values
        ordered = ordered if here is None else torch.where(here, ordered, 0.0)
        found = project(places.expand(ordered.shape), ordered, self.entropic, here)
        if descending:
            return found
        if lengths is None:
            return found.flip(-1)
        place = torch.arange(n, device=x.device)
        back = lengths.long().unsqueeze(-1) - 1 - place
        return torch.gather(found, -1, torch.where(back >= 0, back, place))

    def ranks(self, x: Tensor, lengths: Tensor | None) -> Tensor:
        """Ascending positions from 0, of rows whose first `lengths` items are present; the others' are their own."""
        n = x.shape[-1]
        here = None if lengths is None else occupied(x, lengths)
        key = x.detach() if here is None else torch.where(here, x.detach(), -torch.inf)
        order = key.argsort(dim=-1, descending=True, stable=True)
        z = torch.gather(x / self.strength, -1, order)
        places = torch.arange(n, 0, -1, dtype=x.dtype, device=x.device).expand(z.shape)
        if lengths is not None:
            places = (places - (n - lengths.unsqueeze(-1))).clamp_min(1)
        found = project(z, places.log(), True, here).exp() if self.entropic else project(z, places, False, here)
        ranks = torch.gather(found, -1, order.argsort(-1)) - 1
        return ranks if here is None else torch.where(here, ranks, torch.arange(n, dtype=x.dtype, device=x.device))


#: All of the library's, by what they cost; networks stand at the front (`networks.py` puts them there).
KNOWN: list[Method] = [SmoothedCDF(), Pairwise(), Permutahedron(), Unimodal(), NeuralSort(), Transport()]


def suggestions(task: str | None = None) -> list[Method]:
    """Methods that answer a question (all of them without one), by what they cost."""
    return [method for method in KNOWN if task is None or task in method.answers]


def short(method: Method) -> str:
    """The repr, without parameters where all are at their defaults."""
    return f"{type(method).__name__}()" if repr(method) == repr(type(method)()) else repr(method)


def names(methods: list[Method]) -> str:
    return ", ".join(map(short, methods))


def _rows(logits: Tensor, here: Tensor) -> Tensor:
    """Softmax along the rows over places that hold an item; the identity in rows that do not."""
    least = torch.finfo(logits.dtype).min
    p = torch.softmax(torch.where(here.unsqueeze(-2), logits, least), -1)
    eye = torch.eye(logits.shape[-1], dtype=p.dtype, device=p.device)
    return torch.where(here.unsqueeze(-1), torch.where(here.unsqueeze(-2), p, 0.0), eye)

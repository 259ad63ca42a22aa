"""Top-k memberships, ranks and ranking losses, forward and backward, beside what else there is.

float32, steepness 10, sigmoids as the functions have them (logistic for top-k, Laplace for ranks and losses) unless a column
says otherwise; one thread. All columns of a row are timed in turns in one process, and the least of their times counts: on a
busy host it tells more than the median. What takes more than two seconds is called twice. Peers: torchsort (strength 0.1;
where it is installed, as it needs a compiler), diffsort (bitonic, whose matrix is formed; up to 32 items), and formulas in a
few lines of torch: LapSum's threshold by sorting (Laplace sums, solved exactly), softsort's first k rows (SoftTorch, which
could not be installed here, has it), and all pairs at once (ApproxNDCG as allRank writes it; left out where a matrix would
take more than 256 MiB). They are not equally soft. Each is checked against the same formula of ours, where there is one,
before anything is timed. The GPU's record has top-k only.

    python -m benchmarks.ranking [--json FILE] [--quick]
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from algonet.ranking import average_precision_loss, kendall_loss, ndcg_loss, spearman_loss
from algonet.relax import Laplace, Logistic
from algonet.sorting import (
    Bitonic,
    OddEven,
    Pairwise,
    Permutahedron,
    soft_median,
    soft_rank,
    soft_sort,
    soft_topk,
    soft_topk_mask,
)
from benchmarks import harness
from benchmarks.harness import Row

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
STEEPNESS, STRENGTH, TOLERANCE = 10.0, 0.1, 1e-3
#: (batch, n, k) of top-k on a CPU and on a GPU; (batch, n) of ranks and losses.
TOPK = [(1000, 32, 5), (100, 512, 10), (100, 10_000, 100), (64, 4096, 32), (4, 131_072, 32)]
TOPK_ON_GPU = [*TOPK[:2], (64, 4096, 32), (64, 131_072, 32), (256, 50_257, 10), (1, 1_000_000, 100)]
RANKS = [(1000, 32), (100, 512), (16, 4096), (1, 24_000)]
#: (batch, n) of whole orders: sorted values, ranks and medians by the default method.
ORDERS = [(1000, 32), (100, 512), (16, 4096), (1, 1_000_000)]
LOSSES = [(64, 256), (64, 4096), (1, 24_000)]
#: Matrices beyond so many bytes are not formed, and products of matrices not beyond so many items.
MOST_BYTES, MOST_IN_DIFFSORT = 2**28, 32
#: Milliseconds from which on two calls are enough.
SLOW = 2000.0
Function = Callable[[Tensor], Tensor]


def lapsum(x: Tensor, k: int) -> Tensor:
    """Memberships F(z - b) of the Laplace distribution with sum k, b in closed form between two sorted items."""
    z = STEEPNESS * (x - x.detach().mean(-1, keepdim=True)).double()
    ordered = z.sort(-1, descending=True).values
    above = torch.exp(-ordered).cumsum(-1)
    below = torch.exp(ordered).flip(-1).cumsum(-1).flip(-1)
    place = torch.arange(1, z.shape[-1] + 1, device=x.device)
    counts = place - 0.5 * above * torch.exp(ordered) + 0.5 * (below * torch.exp(-ordered) - 1)
    # b lies below as many items as have a smaller count at their own place
    m = (counts.detach() < k).sum(-1, keepdim=True)
    a = torch.where(m > 0, above.gather(-1, (m - 1).clamp_min(0)), 0.0)
    b = torch.where(m < z.shape[-1], below.gather(-1, m.clamp_max(z.shape[-1] - 1)), 0.0)
    off = m - k
    t = b / ((off.double().square() + a * b).sqrt() - off)
    d = z - t.log()
    tail = 0.5 * torch.exp(-d.abs())
    return torch.where(d > 0, 1 - tail, tail).to(x.dtype)


def lapsum_sort(x: Tensor) -> Tensor:
    """Sorted values between smoothed quantiles of the Laplace distribution, each in closed form between two sorted items."""
    mean = x.detach().mean(-1, keepdim=True)
    z = (STEEPNESS * (x - mean)).double().sort(-1).values
    one, grown, shrunk = torch.ones_like(z), z.exp(), (-z).exp()

    def sums(t: Tensor, w: Tensor) -> Tensor:
        return torch.nn.functional.pad((t * w).cumsum(-1), (1, 0))

    def behind(w: Tensor) -> Tensor:
        return torch.nn.functional.pad((shrunk * w).flip(-1).cumsum(-1).flip(-1), (0, 1))

    before, after = sums(grown, one), behind(one)
    place = torch.arange(1, z.shape[-1] + 1, device=x.device)
    counts = place - 0.5 * before[..., 1:] * shrunk + 0.5 * after[..., 1:] * grown
    k = place[:-1].double().expand(*z.shape[:-1], -1).contiguous()
    i = torch.searchsorted(counts.detach(), k)
    a, b, off = before.gather(-1, i), after.gather(-1, i), k - i
    t = (off + (off.square() + a * b).sqrt()) / b
    total = sums(one, z).gather(-1, i) - 0.5 * sums(grown, z).gather(-1, i) / t + 0.5 * behind(z).gather(-1, i) * t
    ends = torch.nn.functional.pad(total, (1, 0)), torch.cat([total, z.sum(-1, keepdim=True)], -1)
    return ((ends[1] - ends[0]) / STEEPNESS + mean).to(x.dtype)


def softsort_topk(x: Tensor, k: int) -> Tensor:
    """The sum of the first k rows of softsort's matrix."""
    best = x.topk(k, -1).values
    return (-STEEPNESS * (best.unsqueeze(-1) - x.unsqueeze(-2)).abs()).softmax(-1).sum(-2)


def dense_ranks(x: Tensor) -> Tensor:
    """All pairs at once."""
    return torch.sigmoid(STEEPNESS * (x.unsqueeze(-1) - x.unsqueeze(-2))).sum(-1) - 0.5


def dense_ndcg(x: Tensor, relevance: Tensor) -> Tensor:
    """ApproxNDCG."""
    gain = relevance / torch.log2(dense_ranks(-x) + 2)
    best = relevance.sort(-1, descending=True).values
    ideal = (best / torch.log2(torch.arange(x.shape[-1], device=x.device) + 2.0)).sum(-1)
    return (1 - gain.sum(-1) / ideal).mean()


def correlated(ranks: Tensor, targets: Tensor) -> Tensor:
    """1 - the correlation of ranks with those of the targets."""
    places = targets.argsort(-1).argsort(-1).to(ranks.dtype)
    a, b = (t - t.mean(-1, keepdim=True) for t in (ranks, places))
    return (1 - (a * b).sum(-1) / (a.norm(dim=-1) * b.norm(dim=-1))).mean()


def torchsort_rank() -> Function | None:
    try:
        import torchsort
    except ImportError:
        return None
    return lambda x: torchsort.soft_rank(x, regularization_strength=STRENGTH) - 1


def diffsort_matrix(n: int) -> Function | None:
    """x -> P with rows in ascending order."""
    try:
        from diffsort import DiffSortNet
    except ImportError:
        return None
    if n > MOST_IN_DIFFSORT:
        return None
    network = DiffSortNet("bitonic", n, device=DEVICE, steepness=STEEPNESS, distribution="logistic")
    return lambda x: network(x)[1].mT


def fits(batch: int, *sizes: int) -> bool:
    count = batch
    for size in sizes:
        count *= size
    return 4 * count <= MOST_BYTES


def topk_candidates(batch: int, n: int, k: int) -> dict[tuple[str, str], Function]:
    """(column, by) -> a function of x."""
    found: dict[tuple[str, str], Function] = {
        ("f+b", "algonet"): lambda x: soft_topk_mask(x, k),
        ("Laplace, f+b", "algonet"): lambda x: soft_topk_mask(x, k, relax=Laplace(STEEPNESS)),
        ("bitonic, f+b", "algonet"): lambda x: soft_topk(x, k, method=Bitonic()).values,
        ("f+b", "LapSum's formula"): lambda x: lapsum(x, k),
    }
    if fits(batch, k, n):
        found["f+b", "softsort in torch"] = lambda x: softsort_topk(x, k)
    matrix = diffsort_matrix(n)
    if matrix is not None:
        found["f+b", "diffsort"] = lambda x: matrix(x)[:, -k:].sum(-2)
    return found


def rank_candidates(batch: int, n: int) -> dict[tuple[str, str], Function]:
    found: dict[tuple[str, str], Function] = {
        ("f+b", "algonet"): lambda x: soft_rank(x, method=Pairwise(), relax=Laplace(STEEPNESS)),
        ("logistic, f+b", "algonet"): lambda x: soft_rank(x, method=Pairwise()),
        ("bitonic, f+b", "algonet"): lambda x: soft_rank(x, method=Bitonic()),
        ("permutahedron, f+b", "algonet"): lambda x: soft_rank(x, method=Permutahedron(STRENGTH)),
    }
    if fits(batch, n, n):
        found["f+b", "all pairs in torch"] = dense_ranks
    ranks, matrix = torchsort_rank(), diffsort_matrix(n)
    if ranks is not None:
        found["f+b", "torchsort"] = ranks
    if matrix is not None:
        found["f+b", "diffsort"] = lambda x: matrix(x).mT @ torch.arange(float(n), device=x.device)
    return found


def order_candidates(task: str, batch: int, n: int) -> dict[tuple[str, str], Function]:
    """Sorts, ranks or medians by the default method, and by what else there is."""
    ask: dict[str, Any] = {"sort": lambda x, **o: soft_sort(x, **o).values, "ranks": soft_rank, "median": soft_median}
    soft = ask[task]
    found: dict[tuple[str, str], Function] = {("f+b", "algonet"): soft}
    if n <= 512:
        found["Laplace, f+b", "algonet"] = lambda x: soft(x, relax=Laplace(STEEPNESS))
        found["odd-even, f+b", "algonet"] = lambda x: soft(x, method=OddEven())
    if n <= 4096:
        found["bitonic, f+b", "algonet"] = lambda x: soft(x, method=Bitonic())
    if task == "sort":
        found["f+b", "LapSum's formula"] = lapsum_sort
    if task != "median":
        found["permutahedron, f+b", "algonet"] = lambda x: soft(x, method=Permutahedron(STRENGTH))
        with contextlib.suppress(ImportError):
            import torchsort

            theirs = {"sort": torchsort.soft_sort, "ranks": torchsort.soft_rank}[task]
            found["f+b", "torchsort"] = lambda x: theirs(x, regularization_strength=STRENGTH)
        matrix = diffsort_matrix(n)
        if matrix is not None:
            places = torch.arange(float(n), device=DEVICE)
            found["f+b", "diffsort"] = lambda x: (
                (matrix(x) @ x.unsqueeze(-1)).squeeze(-1) if task == "sort" else matrix(x).mT @ places
            )
    return found


def spearman_candidates(batch: int, n: int) -> dict[tuple[str, str], Function]:
    y = torch.randn(batch, n, device=DEVICE)
    found: dict[tuple[str, str], Function] = {
        ("f+b", "algonet"): lambda x: spearman_loss(x, y),
        ("logistic, f+b", "algonet"): lambda x: spearman_loss(x, y, relax=Logistic(STEEPNESS)),
        ("bitonic, f+b", "algonet"): lambda x: spearman_loss(x, y, method=Bitonic()),
        ("permutahedron, f+b", "algonet"): lambda x: spearman_loss(x, y, method=Permutahedron(STRENGTH)),
    }
    ranks = torchsort_rank()
    if ranks is not None:
        found["f+b", "torchsort"] = lambda x: correlated(ranks(x), y)
    if fits(batch, n, n):
        found["f+b", "all pairs in torch"] = lambda x: correlated(dense_ranks(x), y)
    return found


def ndcg_candidates(batch: int, n: int) -> dict[tuple[str, str], Function]:
    y = torch.randint(0, 5, (batch, n), device=DEVICE).float()
    found: dict[tuple[str, str], Function] = {
        ("f+b", "algonet"): lambda x: ndcg_loss(x, y),
        ("logistic, f+b", "algonet"): lambda x: ndcg_loss(x, y, relax=Logistic(STEEPNESS)),
        ("bitonic, f+b", "algonet"): lambda x: ndcg_loss(x, y, method=Bitonic()),
    }
    if fits(batch, n, n):
        found["f+b", "all pairs in torch"] = lambda x: dense_ndcg(x, y)
    return found


def other_candidates(name: str, batch: int, n: int) -> dict[tuple[str, str], Function]:
    y = torch.rand(batch, n, device=DEVICE)
    if name == "Kendall's loss":
        return {("f+b", "algonet"): lambda x: kendall_loss(x, y)}
    return {("f+b", "algonet"): lambda x: average_precision_loss(x, y > 0.8)}


def parity() -> str:
    """Raise where a peer's formula and ours, at the same softness, differ."""
    x = torch.randn(5, 24, device=DEVICE)
    y = torch.randint(0, 5, (5, 24), device=DEVICE).float()
    pairs = {
        "LapSum": (lapsum(x, 6), soft_topk_mask(x, 6, relax=Laplace(STEEPNESS))),
        "LapSum's order": (lapsum_sort(x), soft_sort(x, relax=Laplace(STEEPNESS)).values),
        "all pairs": (dense_ranks(x), soft_rank(x, method=Pairwise(), relax=Logistic(STEEPNESS))),
        "ApproxNDCG": (dense_ndcg(x, y), ndcg_loss(x, y, relax=Logistic(STEEPNESS), method=Pairwise())),
    }
    ranks, matrix = torchsort_rank(), diffsort_matrix(16)
    if ranks is not None:
        pairs["torchsort"] = ranks(x), soft_rank(x, method=Permutahedron(STRENGTH))
    if matrix is not None:
        places = torch.arange(16.0, device=DEVICE)
        pairs["diffsort"] = matrix(x[:, :16]).mT @ places, soft_rank(x[:, :16], method=Bitonic())
    worst = {name: float((a - b).abs().max()) for name, (a, b) in pairs.items()}
    wrong = [name for name, gap in worst.items() if not gap < TOLERANCE]
    if wrong:
        raise SystemExit(f"no parity with {', '.join(wrong)}: {worst}; timings would mean nothing")
    return ", ".join(f"{name} {gap:.0e}" for name, gap in worst.items())


def in_turns(candidates: dict[tuple[str, str], Function], batch: int, n: int, seconds: float) -> dict[Any, float]:
    """Milliseconds, the least of each, forward and backward."""
    x = torch.randn(batch, n, device=DEVICE, requires_grad=True)

    def both_ways(function: Function) -> float:
        start = time.perf_counter()
        found = function(x)
        torch.autograd.grad(found, x, torch.ones_like(found))
        if DEVICE == "cuda":
            torch.cuda.synchronize()
        return (time.perf_counter() - start) * 1e3

    least: dict[Any, float] = {}
    for key, function in candidates.items():
        with contextlib.suppress(torch.OutOfMemoryError):  # then it has no figure
            least[key] = both_ways(function)  # and compiles
    end, rounds = time.perf_counter() + seconds, 0
    while rounds < 4 or time.perf_counter() < end:
        for key, best in least.items():
            # A kernel that was compiled is slow once
            if best < SLOW or rounds == 0:
                least[key] = min(best, both_ways(candidates[key]))
        rounds += 1
    return least


def memory(function: Function, batch: int, n: int) -> float:
    """MiB beyond the scores, forward and backward."""
    x = torch.randn(batch, n, device=DEVICE, requires_grad=True)

    def both_ways() -> None:
        found = function(x)
        torch.autograd.grad(found, x, torch.ones_like(found))

    return harness.peak_mebibytes(both_ways)


def rows_of(name: str, times: dict[tuple[str, str], float]) -> list[Row]:
    rows = [Row(name, value, "ms", column, by) for (column, by), value in times.items()]
    others = [value for (_, by), value in times.items() if by != "algonet"]
    if others:
        rows.append(Row(name, min(others) / times["f+b", "algonet"], "ratio", "times faster than the next"))
    return rows


def workloads(quick: bool) -> list[tuple[str, int, int, dict[tuple[str, str], Function]]]:
    some = slice(1 if quick else None)
    sizes = TOPK_ON_GPU if DEVICE == "cuda" else TOPK
    found = [(f"top-{k} of {b} x {n:,}", b, n, topk_candidates(b, n, k)) for b, n, k in sizes[some]]
    found += [(f"ranks of {b} x {n:,}", b, n, rank_candidates(b, n)) for b, n in RANKS[some]]
    for task in ("sort", "ranks", "median"):
        found += [(f"soft order, {task} of {b} x {n:,}", b, n, order_candidates(task, b, n)) for b, n in ORDERS[some]]
    for b, n in LOSSES[some]:
        found.append((f"NDCG of {b} x {n:,}", b, n, ndcg_candidates(b, n)))
        found.append((f"Spearman's loss of {b} x {n:,}", b, n, spearman_candidates(b, n)))
    for name in ("Kendall's loss", "average precision"):
        b, n = LOSSES[0]
        found.append((f"{name} of {b} x {n:,}", b, n, other_candidates(name, b, n)))
    return found


def main() -> None:
    options = harness.arguments(__doc__)
    torch.set_num_threads(1)
    torch.manual_seed(0)
    print(f"{DEVICE}; largest deviations: {parity()}\n")
    rows: list[Row] = []
    for name, batch, n, candidates in workloads(options.quick):
        times = in_turns(candidates, batch, n, 0.1 if options.quick else 0.5 if DEVICE == "cuda" else 1.0)
        rows += rows_of(name, times)
        if DEVICE == "cuda":
            rows.append(Row(name, memory(candidates["f+b", "algonet"], batch, n), "MiB", "memory"))
        said = ", ".join(f"{'' if by == 'algonet' else by + ' '}{column} {v:.3g}" for (column, by), v in times.items())
        print(f"{name}: {said} ms", flush=True)
        harness.save(options.json, rows)
    harness.record(options.json, rows)


if __name__ == "__main__":
    main()

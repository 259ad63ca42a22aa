"""Which method? All of them, measured on the user's own items: error, vanished gradients, time and memory."""

from __future__ import annotations

import functools
import math
import statistics
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from algonet.core.checks import check_integer
from algonet.core.extras import require
from algonet.core.hints import hints_at_relax
from algonet.relax import DECISION, Heaviside, Sigmoid, SoftnessWarning
from algonet.relax.report import BLURRED, HARD, VANISHED

from .checks import check_items, check_sigmoid
from .functional import soft_argsort, soft_rank, soft_sort, soft_topk, soft_topk_mask
from .methods import TASKS, Method, short, suggestions
from .networks import Bitonic
from .quantile import soft_quantile

#: Methods that no one named are left out beyond so many numbers to compute (seconds on a CPU core; a GPU may have more)
#: or bytes to keep.
MOST_WORK, MOST_WORK_ON_GPU = 2e8, 2e10
MOST_BYTES = 2**30


@dataclass(frozen=True)
class MethodRow:
    """How one method did. `error`: mean |soft - crisp| relative to the spread of the crisp result. `vanished`: the share of
    items whose gradient through the order is negligible. `milliseconds`: forward and backward, the median. `mebibytes`: on a
    GPU how far memory rises, on the CPU what is kept for backward. `why`: why there are no figures, "" where there are."""

    name: str
    error: float = float("nan")
    vanished: float = float("nan")
    milliseconds: float = float("nan")
    mebibytes: float = float("nan")
    why: str = ""

    @property
    def balanced(self) -> bool:
        """Neither blurred nor without gradients, by the bounds of `softness_report`."""
        return not self.why and self.error <= BLURRED and self.vanished <= HARD


@dataclass(frozen=True)
class MethodReport:
    """The answers to `task` on items of `shape`, with `relax`. `rows`: one for each method, those that answered first, by
    time. `suggestion`: one line on what to take."""

    task: str
    shape: tuple[int, ...]
    relax: Sigmoid
    rows: tuple[MethodRow, ...]
    suggestion: str

    def __str__(self) -> str:
        table: list[tuple[str, ...]] = [("method", "error", "vanished", "ms", "MiB")]
        for row in self.rows:
            figures = f"{row.error:.2%}", f"{row.vanished:.0%}", f"{row.milliseconds:.3g}", f"{row.mebibytes:.3g}"
            table.append((row.name, *(("", "", "", "") if row.why else figures)))
        widths = [max(map(len, column)) for column in zip(*table, strict=True)]
        lines = [self._title()]
        for (name, *figures), why in zip(table, ("", *(row.why for row in self.rows)), strict=True):
            aligned = "  ".join(f"{figure:>{width}}" for figure, width in zip(figures, widths[1:], strict=True))
            lines.append(f"{name:<{widths[0]}}  {why or aligned}")
        return "\n".join([*lines, self.suggestion])

    def _title(self) -> str:
        return f"{self.task} of {' x '.join(map(str, self.shape))} items, {self.relax!r}"

    def plot(self, axis: Any = None) -> Any:
        """Draw time against error on a matplotlib axis (a new one by default), which is returned.

        Colours are shares of vanished gradients, areas grow with memory.
        """
        require("matplotlib")
        import matplotlib.pyplot as plt

        axis = plt.subplots(figsize=(7, 4), layout="constrained")[1] if axis is None else axis
        rows = [row for row in self.rows if not row.why]
        times, errors = [row.milliseconds for row in rows], [max(row.error, 1e-7) for row in rows]
        areas = [40 + 60 * max(0.0, math.log10(max(row.mebibytes, 1e-9)) + 3) for row in rows]
        shares = [row.vanished for row in rows]
        spots = axis.scatter(times, errors, areas, shares, cmap="plasma_r", vmin=0, vmax=1, edgecolors="0.3", zorder=3)
        for row, *place in zip(rows, times, errors, strict=True):
            axis.annotate(row.name, place, xytext=(8, 6), textcoords="offset points", fontsize=8)
        axis.axhline(BLURRED, color="0.7", ls=":", lw=1)
        axis.margins(x=0.25, y=0.2)
        axis.set(xscale="log", yscale="log", xlabel="milliseconds, forward and backward", ylabel="error against crisp")
        axis.set_title(self._title(), fontsize=10)
        axis.spines[["top", "right"]].set_visible(False)
        axis.figure.colorbar(spots, ax=axis, label="vanished gradients", shrink=0.8)
        return axis


@hints_at_relax
def which_method(
    x: Tensor,
    task: str = "sort",
    *,
    k: int | None = None,
    q: float = 0.5,
    relax: Sigmoid = DECISION,
    methods: Sequence[Method] | None = None,
    seconds: float = 0.2,
    backend: str = "auto",
) -> MethodReport:
    """Answer one question about the order of x by every method, and report what each makes of it and what it costs.

    `task` is "sort", "argsort", "rank", "topk" (with `k`; the memberships of `soft_topk_mask` are a row of their own) or
    "quantile" (with `q`). Errors are against the crisp answer, relative to its spread; vanished gradients are those through
    the order alone, as in `softness_report`. A method that cannot answer says why; one that would take minutes or more than
    1 GiB is left out unless `methods` names it. Each is timed for about `seconds`, after a first call that may compile.

    The printed report is a table; `.plot()` is a picture of it.

    >>> report = which_method(torch.randn(4, 16), "rank", seconds=0.0)
    >>> sorted(row.name for row in report.rows if not row.why)
    ['Bitonic()', 'OddEven()', 'Pairwise()', 'Permutahedron()', 'SmoothedCDF()', 'Transport()']
    """
    where = "which_method"
    if task not in TASKS:
        raise ValueError(f"{where}: unknown task {task!r}; choose one of {', '.join(TASKS)}.")
    x = check_items(where, x, -1).detach()
    check_sigmoid(where, relax)
    if task == "topk":
        if k is None:
            raise ValueError(f'{where}: task "topk" needs `k`, the number of items to find.')
        check_integer(where, "k", k, 0, x.shape[-1])
    if x.numel() == 0:
        raise ValueError(f"{where}: x has no items, shape {tuple(x.shape)}.")
    answer = functools.partial(_answer, task=task, k=k or 0, q=q, backend=backend)
    crisp = functools.partial(answer, relax=Heaviside(), method=Bitonic())
    rows = []
    for method in methods if methods is not None else suggestions():
        why = _why_not(method, task, relax) or ("" if methods is not None else _too_much(method, x, relax))
        soft = functools.partial(answer, relax=relax, method=method)
        rows.append(MethodRow(short(method), why=why) if why else _measured(short(method), soft, crisp, x, seconds))
    if task == "topk" and methods is None:
        rows.append(_memberships(x, k or 0, relax, seconds, backend))
    rows.sort(key=lambda row: (bool(row.why), row.milliseconds))
    return MethodReport(task, tuple(x.shape), relax, tuple(rows), _suggest(rows))


def _answer(x: Tensor, *, task: str, k: int, q: float, backend: str, relax: Sigmoid, method: Method) -> Tensor:
    """The answer whose error counts, one tensor."""
    options: dict[str, Any] = {"relax": relax, "method": method}
    # Softmaxes and projections are plain torch
    options["backend"] = backend if method.kernels else "auto"
    if task == "sort":
        return soft_sort(x, **options).values
    if task == "topk":
        return soft_topk(x, k, **options).values
    if task == "quantile":
        return soft_quantile(x, q, **options)
    return {"argsort": soft_argsort, "rank": soft_rank}[task](x, **options)


def _why_not(method: Method, task: str, relax: Sigmoid) -> str:
    try:
        method.check("", task, relax)
    except ValueError as error:
        return str(error).removeprefix(f": {short(method)} ")
    return ""


def _too_much(method: Method, x: Tensor, relax: Sigmoid) -> str:
    n = x.shape[-1]
    rows = x.numel() // n
    work, kept = rows * method.work(n, relax), rows * method.kept(n) * x.element_size()
    if kept > MOST_BYTES:
        return f"would keep about {kept / 2**30:.2g} GiB for backward; name it in `methods` to see it anyway"
    if work > (MOST_WORK_ON_GPU if x.is_cuda else MOST_WORK):
        return f"would compute about {work:.1g} numbers; name it in `methods` to see it anyway"
    return ""


def _measured(
    name: str,
    soft: Callable[[Tensor], Tensor],
    crisp: Callable[[Tensor], Tensor],
    x: Tensor,
    seconds: float,
) -> MethodRow:
    try:
        with torch.enable_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore", SoftnessWarning)  # the report says it in figures
            leaf = x.clone().requires_grad_()
            found, truth = soft(leaf), crisp(leaf)
            error = _gap(found.detach(), truth.detach())
            draw = torch.randn(found.shape, generator=torch.Generator().manual_seed(0)).to(found)
            change = torch.where(found.isfinite(), found - truth, 0.0)
            slope = torch.autograd.grad((change * draw).sum(), leaf)[0].abs()
            vanished = _vanished(slope)
            milliseconds = _milliseconds(lambda: torch.autograd.grad(soft(leaf), leaf, draw), x, seconds)
            mebibytes = _mebibytes(soft, leaf, draw)
    except (ValueError, TypeError, RuntimeError) as failure:  # such as a backend that has no kernel, or no memory left
        return MethodRow(name, why=str(failure).splitlines()[0])
    return MethodRow(name, error, vanished, milliseconds, mebibytes)


def _memberships(x: Tensor, k: int, relax: Sigmoid, seconds: float, backend: str) -> MethodRow:
    soft = functools.partial(soft_topk_mask, k=k, relax=relax, backend=backend)
    crisp = functools.partial(soft_topk_mask, k=k, relax=Heaviside())
    return _measured("soft_topk_mask (memberships)", soft, crisp, x, seconds)


def _gap(soft: Tensor, crisp: Tensor) -> float:
    counted = soft.isfinite() & crisp.isfinite()
    soft, crisp = soft[counted].double(), crisp[counted].double()
    if not soft.numel():
        return 0.0
    spread = (crisp - crisp.mean()).abs().mean()
    return float((soft - crisp).abs().mean() / spread.clamp_min(1e-12))


def _vanished(slope: Tensor) -> float:
    slope = slope[slope.isfinite()]
    if not slope.numel() or not slope.max() > 0:
        return 1.0
    return float((slope <= VANISHED * slope.max()).double().mean())


def _milliseconds(function: Callable[[], Any], x: Tensor, seconds: float) -> float:
    function()  # may compile
    found: list[float] = []
    end = time.perf_counter() + seconds
    while not found or time.perf_counter() < end:
        _wait(x)
        start = time.perf_counter()
        function()
        _wait(x)
        found.append((time.perf_counter() - start) * 1e3)
    return statistics.median(found)


def _wait(x: Tensor) -> None:
    if x.is_cuda:
        torch.cuda.synchronize(x.device)


def _mebibytes(soft: Callable[[Tensor], Tensor], x: Tensor, gradient: Tensor) -> float:
    if x.is_cuda:
        _wait(x)
        torch.cuda.reset_peak_memory_stats(x.device)
        before = torch.cuda.memory_allocated(x.device)
        torch.autograd.grad(soft(x), x, gradient)
        _wait(x)
        return (torch.cuda.max_memory_allocated(x.device) - before) / 2**20
    storages: dict[int, int] = {}

    def keep(saved: Tensor) -> Tensor:
        # Views of one storage count once, and x itself is there anyway
        storage = saved.untyped_storage()
        if storage.data_ptr() != x.untyped_storage().data_ptr():
            storages[storage.data_ptr()] = storage.nbytes()
        return saved

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda saved: saved):
        found = soft(x)
    return (sum(storages.values()) + found.untyped_storage().nbytes()) / 2**20


def _suggest(rows: Sequence[MethodRow]) -> str:
    answered = [row for row in rows if not row.why]
    if not answered:
        return "none of these methods answers it"
    good = [row for row in answered if row.balanced]
    if good:
        return f"{good[0].name} is the fastest that is neither blurred nor without gradients"
    if all(row.vanished > HARD for row in answered):
        return "mostly hard with every method: lower the steepness by about 5x, or take a sigmoid with longer tails"
    least = min(answered, key=lambda row: row.error)
    return f"mostly blurred: {least.name} is the least so; raise the steepness by about 3x"

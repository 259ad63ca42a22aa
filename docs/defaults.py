"""What defaults give on ordinary data as it grows: the page docs/defaults.md, which `python -m docs.defaults` writes."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

from algonet import WhileProgram, smooth
from algonet.ifs import IFS
from algonet.ranking import ndcg_loss, spearman_loss
from algonet.relax import SoftnessWarning, soft_argmax, soft_max
from algonet.render import Camera, SmoothRenderer, icosphere, render_hard
from algonet.sorting import soft_median, soft_quantile, soft_rank, soft_sort, soft_topk, soft_topk_mask

PAGE = Path(__file__).with_name("defaults.md")
INTRO = """# What defaults give

A default softness suits some data and not all. Each row calls one function with its defaults on ordinary data, and lets the
data grow by 10 and by 100: more items, larger numbers, larger pictures. Errors are mean distances from the crisp result.
*No use* is the error of an answer that ignores the order (the mean for a median or a maximum, a constant for ranks
and indices), at the largest size. Where a default stops being of use it warns (`SoftnessWarning`);
[Choosing softness](choosing_softness.md) says what to do then. Items are standard normal. The page is made by
`python -m docs.defaults`.

"""


def off(soft: Tensor, crisp: Tensor) -> float:
    return float((soft - crisp).abs().mean())


def items(n: int, scale: float = 1.0) -> Tensor:
    """20,000 items, in rows of n."""
    return scale * torch.randn(20_000 // n, n, generator=torch.Generator().manual_seed(n))


def rank(x: Tensor) -> Tensor:
    return x.argsort(-1).argsort(-1).float()


def constant(x: Tensor, crisp: Tensor) -> float:
    """How far indices are, as a share of n, from the middle one."""
    return off(torch.tensor((x.shape[-1] - 1) / 2), crisp) / x.shape[-1]


def by_items(function: Callable[[Tensor], float]) -> Callable[[int], float]:
    return lambda n: function(items(n))


def by_scale(function: Callable[[Tensor], float]) -> Callable[[int], float]:
    return lambda scale: function(items(100, scale))


def ranked(loss: Callable[[Tensor, Tensor], Tensor]) -> Callable[[int], float]:
    """The loss of scores in the right order."""
    return by_items(lambda x: float(loss(x, rank(x))))


def fractal(side: int) -> float:
    """How much two pictures of the same system by other points differ, as a share of their light."""
    one, other = (IFS.preset("sierpinski", seed=seed)((side, side)).detach() for seed in (0, 1))
    return off(one, other) / float(one.mean())


def outline(side: int) -> float:
    """How far a ball's silhouette is from the crisp one, as a share of its area."""
    ball, camera = icosphere(1), Camera.look_at((0.0, 0.0, 3.0))
    crisp = render_hard(ball.vertices, ball.faces, ball.vertices, camera, size=(side, side)).silhouette
    return off(SmoothRenderer(side)(ball, camera).silhouette.detach(), crisp) / float(crisp.mean())


def counted(x: int) -> float:
    """How far x * 2, by counting, is from 2 x, as a share of it."""
    program = WhileProgram.library("multiply")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # counters beyond max_iterations: the row says so
        return abs(float(program(x1=torch.tensor(float(x)), x2=torch.tensor(2.0))) / (2 * x) - 1)


@smooth
def larger(x, y):
    if x < y:
        x = y
    return x


def decided(scale: int) -> float:
    x, y = items(2, scale).unbind(-1)
    return off(larger(x, y), torch.maximum(x, y)) / scale


#: What grows, and its sizes.
ITEMS, SCALE, SIDE = ("items", (10, 100, 1000)), ("deviation", (1, 10, 100)), ("side, pixels", (8, 80, 800))
#: Function, figure, what grows, how it is found, and the error of no use.
ROWS: list[tuple[str, str, tuple[str, tuple[int, ...]], Callable[[int], float], Callable[[int], float] | None]] = [
    ("soft_sort", "error", ITEMS, by_items(lambda x: off(soft_sort(x).values, x.sort(-1).values)),
     by_items(lambda x: off(x.mean(-1, True), x))),
    ("soft_sort", "error / deviation, 100 items", SCALE, 
     by_scale(lambda x: off(soft_sort(x).values, x.sort(-1).values) / float(x.std())), None),
    ("soft_rank", "error / n", ITEMS, by_items(lambda x: off(soft_rank(x), rank(x)) / x.shape[-1]),
     by_items(lambda x: constant(x, rank(x)))),
    ("soft_rank", "error / n, 100 items", SCALE, by_scale(lambda x: off(soft_rank(x), rank(x)) / 100), None),
    ("soft_topk, k = 3", "error of values", ITEMS, by_items(lambda x: off(soft_topk(x, 3).values, x.topk(3).values)),
     by_items(lambda x: off(x.mean(-1, True), x.topk(3).values))),
    ("soft_topk, k = 3", "error of indices / n", ITEMS,
     by_items(lambda x: off(soft_topk(x, 3).indices, x.topk(3).indices) / x.shape[-1]),
     by_items(lambda x: constant(x, x.topk(3).indices))),
    ("soft_topk_mask, k = n / 10", "share on the wrong items", ITEMS,
     by_items(lambda x: 1 - float(soft_topk_mask(x, x.shape[-1] // 10).gather(-1, x.topk(x.shape[-1] // 10).indices).mean())),
     lambda n: 0.9),
    ("soft_median", "error", ITEMS, by_items(lambda x: off(soft_median(x), x.quantile(0.5, -1))),
     by_items(lambda x: off(x.mean(-1), x.quantile(0.5, -1)))),
    ("soft_quantile, q = 0.9", "error", ITEMS, by_items(lambda x: off(soft_quantile(x, 0.9), x.quantile(0.9, -1))),
     by_items(lambda x: off(x.mean(-1), x.quantile(0.9, -1)))),
    ("soft_max", "error", ITEMS, by_items(lambda x: off(soft_max(x), x.amax(-1))),
     by_items(lambda x: off(x.mean(-1), x.amax(-1)))),
    ("soft_max", "error / deviation, 100 items", SCALE,
     by_scale(lambda x: off(soft_max(x), x.amax(-1)) / float(x.std())), None),
    ("soft_argmax", "error / n", ITEMS, by_items(lambda x: off(soft_argmax(x), x.argmax(-1)) / x.shape[-1]),
     by_items(lambda x: constant(x, x.argmax(-1)))),
    ("spearman_loss", "loss of the right order", ITEMS, ranked(spearman_loss), lambda n: 1.0),
    ("ndcg_loss", "loss of the right order", ITEMS, ranked(ndcg_loss),
     by_items(lambda x: float(ndcg_loss(torch.zeros_like(x), rank(x))))),
    ("IFS, 16,384 points", "difference by other points / light", SIDE, fractal, None),
    ("SmoothRenderer", "error of a ball's silhouette / its area", SIDE, outline, None),
    ("WhileProgram, x times 2", "error / result", ("x", (1, 10, 100)), counted, None),
    ("@smooth, the larger of two", "error / deviation", SCALE, decided, None),
]  # fmt: skip


def rows() -> list[list[str]]:
    found = []
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore", SoftnessWarning)
        for name, figure, (grows, sizes), measure, useless in ROWS:
            figures = [f"{value:.2g}" if value >= 1e-3 else "below 0.001" for value in map(measure, sizes)]
            found.append([name, figure, grows + ": " + ", ".join(f"{size:,}" for size in sizes), *figures])
            found[-1].append("" if useless is None else f"{useless(sizes[-1]):.2g}")
    return found


def markdown() -> str:
    head = ["function", "figure", "what grows", "at first", "by 10", "by 100", "no use"]
    table = [head, ["---"] * 3 + ["---:"] * 4, *rows()]
    return INTRO + "".join(f"| {' | '.join(row)} |\n" for row in table)


if __name__ == "__main__":
    PAGE.write_text(markdown(), encoding="utf-8")
    print(f"wrote {PAGE}")

"""Seven classic algorithms, written in plain Python and run smoothly."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from algonet.apps.drawing import BLUE, GOLD, RED, no_ticks, open_frame, png
from algonet.apps.gallery import Figure
from algonet.smooth_python import smooth
from algonet.smooth_python.algorithms import ALGORITHMS

TITLE = "Plain Python, smooth"
INTRO = (
    "Write the algorithm as an ordinary Python function and decorate it with @smooth: every if, while, comparison and "
    "subscript becomes a decision with a gradient. Steepness turns the dial from a blur to the program as written."
)


def figures(quick: bool) -> Iterator[Figure]:
    yield Figure("bubble_sort", _bubble_sort(quick), _CAPTIONS["bubble_sort"])
    yield Figure("point_in_polygon", _polygon(quick), _CAPTIONS["point_in_polygon"])
    yield Figure("shortest_path", _path(quick), _CAPTIONS["shortest_path"])
    yield Figure("flood_fill", _flood(quick), _CAPTIONS["flood_fill"])
    yield Figure("binary_search", _search(quick), _CAPTIONS["binary_search"])
    yield Figure("levenshtein", _levenshtein(quick), _CAPTIONS["levenshtein"])
    yield Figure("bank_queue", _queue(quick), _CAPTIONS["bank_queue"])


def _bubble_sort(quick: bool) -> bytes:
    import matplotlib.pyplot as plt

    x = torch.tensor([0.9, -0.4, 0.35, -1.2, 0.05, 1.1, -0.75, 0.6])
    count = 24 if quick else 80
    steepness = torch.logspace(-0.3, 2, count)
    values = torch.stack(
        [ALGORITHMS["bubble_sort"](x[None], batched=True, steepness=float(s))[0][0] for s in steepness]
    )
    figure, (left, right) = plt.subplots(1, 2, figsize=(10.5, 3.6), gridspec_kw={"width_ratios": [1.5, 1]})
    colours = plt.get_cmap("plasma")
    for place in range(len(x)):
        left.plot(steepness, values[:, place], color=colours(place / len(x)), lw=2.2)
    left.set_xscale("log")
    left.set_xlabel("steepness")
    left.set_title("the eight sorted values, from a blur to the sorted list", fontsize=10)
    leaf = x.clone().requires_grad_()
    swaps = ALGORITHMS["bubble_sort"](leaf, steepness=3.0)[1]
    (slope,) = torch.autograd.grad(swaps, leaf)
    right.bar(range(len(x)), x.tolist(), color="0.8", width=0.7)
    for place, (value, direction) in enumerate(zip(x.tolist(), (-slope).tolist(), strict=True)):
        arrow = {"arrowstyle": "-|>", "color": RED, "lw": 1.8}
        right.annotate("", xy=(place, value + 0.25 * direction), xytext=(place, value), arrowprops=arrow)
    right.axhline(0, color="0.6", lw=0.8)
    right.set_title(f"where each value would move for fewer swaps (now {float(swaps.detach()):.1f})", fontsize=10)
    open_frame(left, right)
    figure.tight_layout()
    return png(figure)


def _star(points: int = 5) -> Tensor:
    angles = torch.arange(points) * (2 * 2 * torch.pi / points) + torch.pi / 2
    return torch.stack([angles.cos(), angles.sin()], dim=-1)


def _polygon(quick: bool) -> bytes:
    import matplotlib.pyplot as plt

    size = 60 if quick else 150
    ticks = torch.linspace(-1.25, 1.25, size)
    y, x = torch.meshgrid(ticks, ticks, indexing="ij")
    corners = _star().expand(size * size, -1, -1)
    figure, axes = plt.subplots(1, 3, figsize=(10.5, 3.6))
    for axis, steepness in zip(axes, (3.0, 10.0, 60.0), strict=True):
        function = ALGORITHMS["point_in_polygon"]
        inside = function(x.flatten(), y.flatten(), corners, batched=True, steepness=steepness)
        axis.imshow(
            inside.reshape(size, size).numpy(), origin="lower", cmap="magma", vmin=0, vmax=1, extent=(-1.25, 1.25) * 2
        )
        loop = torch.cat([_star(), _star()[:1]])
        axis.plot(loop[:, 0], loop[:, 1], color="white", lw=0.6, alpha=0.6)
        axis.set_title(f"steepness {steepness:g}", fontsize=10)
        no_ticks(axis)
    figure.tight_layout()
    return png(figure)


def _terrain(rows: int, columns: int) -> Tensor:
    y, x = torch.meshgrid(torch.linspace(0, 3, rows), torch.linspace(0, 4, columns), indexing="ij")
    hills = (
        torch.sin(2.1 * x + 0.4) * torch.cos(1.7 * y) + 0.6 * torch.sin(3.3 * y - 1.2 * x) + 0.4 * torch.cos(4.1 * x)
    )
    return 0.08 + (hills - hills.min()) / (hills.max() - hills.min())


def _path(quick: bool) -> bytes:
    import matplotlib.pyplot as plt

    cost = _terrain(*((6, 8) if quick else (10, 14)))
    figure, axes = plt.subplots(1, 3, figsize=(11, 3.2))
    for axis, steepness in zip(axes, (8.0, 25.0, 150.0), strict=True):
        leaf = cost[None].clone().requires_grad_()
        length = ALGORITHMS["shortest_path"](leaf, batched=True, steepness=steepness)
        (way,) = torch.autograd.grad(length.sum(), leaf)
        axis.imshow(cost.numpy(), cmap="Greys", alpha=0.85)
        rows, columns = torch.meshgrid(torch.arange(cost.shape[0]), torch.arange(cost.shape[1]), indexing="ij")
        axis.scatter(
            columns.numpy(), rows.numpy(), s=110 * way[0].clamp(0, 1).numpy(), color=RED, edgecolors="none", alpha=0.9
        )
        axis.set_title(f"steepness {steepness:g}: length {float(length.detach()):.2f}", fontsize=10)
        no_ticks(axis)
    figure.tight_layout()
    return png(figure)


def _flood(quick: bool) -> bytes:
    import matplotlib.pyplot as plt
    from matplotlib.colors import LinearSegmentedColormap

    height = _terrain(*((7, 9) if quick else (12, 16))).flip(0, 1)
    figure, axes = plt.subplots(1, 3, figsize=(11.6, 3.2), layout="constrained")
    greys = LinearSegmentedColormap.from_list("ground", ["0.98", "0.3"])
    ground: Any = None
    for axis, level in zip(axes, (0.3, 0.42, 0.55), strict=True):
        cells = ALGORITHMS["flood_fill"](height[None], level, batched=True, steepness=25.0)
        wet = torch.stack([torch.stack([cell.reshape(()) for cell in row]) for row in cells])
        ground = axis.imshow(height.numpy(), cmap=greys, vmin=0, vmax=1)
        water = torch.zeros(*height.shape, 4)
        water[..., :3] = torch.tensor([0.12, 0.42, 0.78])
        water[..., 3] = 0.9 * wet.clamp(0, 1)
        axis.imshow(water.numpy())
        axis.set_title(f"water up to {level:g}", fontsize=10)
        no_ticks(axis)
    figure.colorbar(ground, ax=axes, shrink=0.85, pad=0.01).set_label("height of the ground")
    blues = LinearSegmentedColormap.from_list("water", ["white", (0.2, 0.47, 0.8)])
    figure.colorbar(plt.cm.ScalarMappable(cmap=blues), ax=axes, shrink=0.85, pad=0.01).set_label("probability of water")
    return png(figure)


def _search(quick: bool) -> bytes:
    import matplotlib.pyplot as plt

    items = torch.tensor([0.5, 1.1, 1.5, 2.6, 3.0, 4.2, 4.6, 5.5, 6.4])
    values = torch.linspace(0, 7, 200 if quick else 600)
    figure, axis = plt.subplots(figsize=(8.5, 3.4))
    for item in items.tolist():
        axis.axvline(item, color="0.9", lw=1)
    for steepness, colour in ((3.0, GOLD), (10.0, RED), (100.0, BLUE)):
        found = ALGORITHMS["binary_search"](items.expand(len(values), -1), values, batched=True, steepness=steepness)
        axis.plot(values, found, color=colour, lw=2, label=f"steepness {steepness:g}")
    axis.set_xlabel("the value searched for (grey: the sorted items)")
    axis.set_ylabel("position found")
    axis.legend(frameon=False, fontsize=8)
    open_frame(axis)
    figure.tight_layout()
    return png(figure)


@smooth
def _edit_distance(unlike):
    """Levenshtein's distance, where `unlike[i][j]` is what replacing letter i by letter j costs."""
    row = [float(j) for j in range(len(unlike[0]) + 1)]
    for i in range(len(unlike)):
        diagonal = row[0]
        row[0] = float(i + 1)
        for j in range(len(unlike[0])):
            replaced = diagonal + unlike[i][j]
            diagonal = row[j + 1]
            row[j + 1] = min(replaced, row[j] + 1.0, row[j + 1] + 1.0)
    return row[len(unlike[0])]


def _levenshtein(quick: bool) -> bytes:
    import matplotlib.pyplot as plt

    source, target = ("kitten", "sitting") if quick else ("intention", "execution")
    unlike = torch.tensor([[float(a != b) for b in target] for a in source])
    figure, axes = plt.subplots(1, 3, figsize=(11, 3.9), layout="constrained")
    for axis, steepness in zip(axes, (1.0, 3.0, 60.0), strict=True):
        leaf = unlike[None].clone().requires_grad_()
        distance = _edit_distance(leaf, batched=True, steepness=steepness)
        (used,) = torch.autograd.grad(distance.sum(), leaf)
        axis.imshow(1 - unlike.numpy(), cmap="Blues", vmin=0, vmax=3)
        rows, columns = torch.meshgrid(torch.arange(len(source)), torch.arange(len(target)), indexing="ij")
        sizes = 190 * used[0].clamp(0, 1).numpy()
        axis.scatter(columns.numpy(), rows.numpy(), s=sizes, color=RED, edgecolors="none", alpha=0.9)
        axis.set_xticks(range(len(target)), list(target))
        axis.set_yticks(range(len(source)), list(source))
        axis.tick_params(length=0)
        axis.set_title(f"steepness {steepness:g}: distance {float(distance.detach()):.2f}", fontsize=10)
    return png(figure)


def _queue(quick: bool) -> bytes:
    import matplotlib.pyplot as plt

    generator = torch.Generator().manual_seed(4)
    customers = 14 if quick else 24
    arrivals = torch.rand(1, customers, generator=generator) * 1.1
    services = (0.4 + 1.8 * torch.rand(1, customers, generator=generator)).requires_grad_()
    figure, axes = plt.subplots(1, 2, figsize=(10.5, 3.2), sharey=True)
    for axis, tellers in zip(axes, (2, 3), strict=True):
        wait = ALGORITHMS["bank_queue"](arrivals, services, tellers, batched=True, steepness=15.0)
        (blame,) = torch.autograd.grad(wait.sum(), services)
        axis.bar(
            range(customers), blame[0].tolist(), color=[RED if b > 0 else BLUE for b in blame[0].tolist()], width=0.75
        )
        axis.set_title(f"{tellers} tellers: customers wait {float(wait.detach()):.2f} on average", fontsize=10)
        axis.set_xlabel("customer")
        open_frame(axis)
    axes[0].set_ylabel("waiting caused, per\nunit of service")
    figure.tight_layout()
    return png(figure)


_CAPTIONS = {
    "bubble_sort": (
        "Left: bubble sort of eight numbers as the steepness grows. Right: the gradient of the number of swaps. It tells every "
        "number which way to go for the list to be better sorted, which the crisp count cannot."
    ),
    "point_in_polygon": (
        "How often the star winds around a point, asked once per pixel as one batch. The probability of being inside is smooth "
        "everywhere, also at the corners; in the middle the star winds around twice."
    ),
    "shortest_path": (
        "Bellman and Ford's relaxation over a grid of costs (dark is dear). The dots are the gradient of the length by each "
        "cell's cost: the way itself. A soft run hedges between ways that are nearly as short."
    ),
    "flood_fill": (
        "Water poured in at the upper left corner. Each cell's wetness is the probability that the water reaches it; it has a "
        "gradient by every height on the way."
    ),
    "binary_search": (
        "Where a value belongs in a sorted list. In a smooth run the position is a real number, and reading there is reading "
        "between the items. Where the first, longest steps are undecided the search wavers: a mean of two states is no state."
    ),
    "levenshtein": (
        "The edit distance between two words. The dots are its gradient by the cost of replacing one letter by another: which "
        "letters are aligned. A soft run keeps several alignments in mind, a steep one shares between those that are equally "
        "short. Blue: letters that are the same."
    ),
    "bank_queue": (
        "Customers served in order by whichever teller is free first. The gradient by each customer's service time says who "
        "makes the others wait; another teller changes the picture."
    ),
}

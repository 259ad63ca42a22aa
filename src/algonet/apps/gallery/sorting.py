"""Gallery: soft sorting."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from algonet.apps.drawing import no_ticks, open_frame, png
from algonet.apps.gallery import Figure
from algonet.relax import Logistic
from algonet.sorting import Bitonic, OddEven, soft_median, soft_sort, which_method

TITLE = "Soft sorting"
INTRO = (
    "Pairs of items meet in a sorting network and exchange only as far as they are out of order. What is sorted has "
    "gradients by its order, not only by its values."
)


def figures(quick: bool) -> Iterator[Figure]:
    yield _network()
    yield _layers(12 if quick else 32)
    yield _permutations(8 if quick else 16)
    yield _median()
    yield _methods(quick)


def _items(n: int, seed: int = 3) -> torch.Tensor:
    return torch.rand(n, generator=torch.Generator().manual_seed(seed))


def _trace(x: torch.Tensor, network: Any, relax: Any) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """(items before each layer and at the end, how surely each pair of a layer is in order)."""
    states, stays, table = [x], [], network.table(len(x))
    for layer in range(table.depth):
        first, second = table.layer(layer)
        a, b, x = x[first], x[second], x.clone()
        alpha = relax(b - a)
        x[first], x[second] = alpha * a + (1 - alpha) * b, alpha * b + (1 - alpha) * a
        states.append(x)
        stays.append(alpha)
    return states, stays


def _network() -> Figure:
    import matplotlib.pyplot as plt

    x = _items(8)
    figure, axes = plt.subplots(2, 1, figsize=(9, 6.4), height_ratios=[1, 1])
    for ax, network in zip(axes, (OddEven(), Bitonic()), strict=True):
        relax = Logistic(12.0)
        table = network.table(8)
        states, stays = _trace(x, network, relax)
        place = 0.0
        for layer, alphas in enumerate(stays):
            first, second = (t.tolist() for t in table.layer(layer))
            # Comparators that overlap in the drawing stand side by side
            lanes: list[list[tuple[int, int]]] = []
            for f, g, alpha in sorted(zip(first, second, alphas.tolist(), strict=True), key=lambda p: p[1] - p[0]):
                lane = next((i for i, held in enumerate(lanes) if all(g < a or f > b for a, b in held)), len(lanes))
                if lane == len(lanes):
                    lanes.append([])
                lanes[lane].append((f, g))
                colour = plt.get_cmap("inferno_r")(0.12 + 0.8 * (1 - float(alpha)))
                spot = place + 0.22 * lane
                ax.plot([spot, spot], [f, g], color=colour, lw=3.2, solid_capstyle="round", zorder=3)
                ax.scatter([spot, spot], [f, g], color=colour, s=26, zorder=4)
            place += 1 + 0.22 * (len(lanes) - 1)
        for row in range(8):
            ax.plot([-0.8, place - 0.2], [row, row], color="0.82", lw=1.2, zorder=1)
            ax.text(-0.95, row, f"{states[0][row]:.2f}", ha="right", va="center", fontsize=9)
            ax.text(place, row, f"{states[-1][row]:.2f}", ha="left", va="center", fontsize=9)
        ax.set_ylim(7.6, -0.6)
        ax.axis("off")
        ax.set_title(f"{type(network).__name__}: {table.depth} layers, {table.count} exchanges", fontsize=11)
    bar = figure.colorbar(plt.cm.ScalarMappable(cmap="inferno_r"), ax=axes, shrink=0.6, pad=0.08)
    bar.set_label("how far the pair exchanges (1 - alpha)")
    return Figure(
        "network",
        png(figure),
        "Two networks sort the same eight numbers, Logistic(12). Dark exchanges swap, pale ones leave their pair in order, and "
        "those in between mix: there the order itself has a gradient.",
    )


def _layers(n: int) -> Figure:
    import matplotlib.pyplot as plt

    x = _items(n, seed=7)
    figure, axes = plt.subplots(1, 3, figsize=(10.4, 3.9), sharey=True, layout="constrained")
    image: Any = None
    for ax, steepness in zip(axes, (5.0, 40.0, 400.0), strict=True):
        states, _ = _trace(x, OddEven(), Logistic(steepness))
        image = ax.imshow(torch.stack(states, 1).numpy(), cmap="viridis", vmin=0, vmax=1, origin="lower")
        ax.set_title(f"steepness {steepness:g}", fontsize=10)
        ax.set_xlabel("layer")
        ax.set_xticks(range(0, n + 1, max(1, n // 4)))
        ax.set_yticks([])
    axes[0].set_ylabel("position")
    figure.colorbar(image, ax=axes, shrink=0.85, pad=0.01).set_label("value")
    return Figure(
        "layers",
        png(figure),
        f"{n} values on their way through the layers of an odd-even network, from left to right. A high steepness only moves "
        "them; a low one mixes what it moves, most of all neighbours that are nearly equal.",
    )


def _permutations(n: int) -> Figure:
    import matplotlib.pyplot as plt
    from matplotlib.colors import PowerNorm

    x = _items(n, seed=5)
    # The square root of a share, on white: what is small but not nothing can be seen
    figure, axes = plt.subplots(2, 4, figsize=(10.4, 5.2), layout="constrained")
    image: Any = None
    for row, network in enumerate((OddEven(), Bitonic())):
        for ax, steepness in zip(axes[row], (8.0, 32.0, 128.0, 1e4), strict=True):
            P = soft_sort(x, relax=Logistic(steepness), method=network, return_permutation=True).permutation
            assert P is not None
            image = ax.imshow(P.numpy(), cmap="PuBu", norm=PowerNorm(0.5, 0, 1))
            ax.set_xticks([k - 0.5 for k in range(1, n)], minor=True)
            ax.set_yticks([k - 0.5 for k in range(1, n)], minor=True)
            ax.grid(which="minor", color="white", lw=0.6)
            ax.tick_params(which="minor", length=0)
            if row == 0:
                ax.set_title(f"steepness {steepness:g}", fontsize=10)
            no_ticks(ax)
        axes[row, 0].set_ylabel(f"{type(network).__name__}: sorted position", fontsize=10)
    for ax in axes[1]:
        ax.set_xlabel("item", fontsize=10)
    bar = figure.colorbar(image, ax=axes, location="bottom", shrink=0.4, aspect=40, ticks=[0, 0.05, 0.25, 0.5, 1])
    bar.set_label("share of the item")
    return Figure(
        "permutations",
        png(figure),
        "Soft permutations: the share of every item in every sorted position. Rows and columns sum to 1 at every steepness. "
        "Odd-even smears among neighbours, bitonic with far partners too, but through fewer layers.",
    )


def _median() -> Figure:
    import matplotlib.pyplot as plt

    data = torch.randn(24, generator=torch.Generator().manual_seed(1)) * 0.6
    where = torch.linspace(-12, 12, 161)
    rows = torch.cat([data.expand(161, 24), where.unsqueeze(-1)], -1)
    figure, ax = plt.subplots(figsize=(8, 3.8))
    curves = {
        "mean": rows.mean(-1),
        "median": rows.median(-1).values,
        "soft median, exact": soft_median(rows, method=Bitonic()),
        "soft median, fast, degree 1": soft_median(rows, method="fast"),
    }
    for (name, curve), style in zip(curves.items(), ("0.6", "0.2", "tab:red", "tab:orange"), strict=True):
        ax.plot(where, curve, color=style, lw=2, ls="--" if name in ("mean", "median") else "-", label=name)
    ax.scatter(data, torch.full_like(data, ax.get_ylim()[0]), marker="|", color="0.3", s=60)
    ax.set_xlabel("position of one more item")
    ax.set_ylabel("result")
    ax.legend(frameon=False, fontsize=9)
    open_frame(ax)
    return Figure(
        "median",
        png(figure),
        "One outlier drags the mean along without end. The soft medians let go of it, smoothly.",
    )


def _methods(quick: bool) -> Figure:
    x = torch.randn(16, 16 if quick else 32, generator=torch.Generator().manual_seed(0))
    axis = which_method(x, "sort", seconds=0.0 if quick else 0.3).plot()
    return Figure(
        "methods",
        png(axis.figure),
        "Seven ways to sort the same numbers, by time and by error against the crisp sort. Bright ones have gradients "
        "everywhere, dark ones almost nowhere; areas grow with memory. Pairs only rank, so they are not here.",
    )

"""The curves of every sigmoid and exit, with their first and second derivatives."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from algonet.apps.drawing import BLUE, GOLD, RED, open_frame, png
from algonet.apps.gallery import Figure
from algonet.relax import CONORMS, EXITS, SIGMOIDS, GaussianNoise, Heaviside, Logistic, SmoothTent, StudentT

TITLE = "How a decision becomes smooth"
INTRO = (
    "A sigmoid answers “is x > 0?”, an exit “is x ≠ 0?”, both with a probability instead of a yes or no. What matters "
    "for learning is the derivative: where it is zero, gradient descent is blind."
)


def figures(quick: bool) -> Iterator[Figure]:
    yield Figure("sigmoids", _sigmoids(), _SIGMOID_CAPTION)
    yield Figure("exits", _exits(), _EXIT_CAPTION)
    yield Figure("steepness", _steepness(), _STEEPNESS_CAPTION)
    yield Figure("conorms", _conorms(), _CONORM_CAPTION)
    yield Figure("noise", _noise(), _NOISE_CAPTION)


def _with_derivatives(function: Any, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    x = x.clone().requires_grad_()
    y = function(x)
    if not y.requires_grad or isinstance(function, Heaviside):
        return y.detach(), torch.zeros_like(y).detach(), torch.zeros_like(y).detach()
    (first,) = torch.autograd.grad(y.sum(), x, create_graph=True)
    second = torch.zeros_like(x)
    if first.requires_grad:
        (second,) = torch.autograd.grad(first.sum(), x)
    return y.detach(), first.detach(), second.detach()


def _grid(functions: Sequence[Any], names: Sequence[str], x: Tensor, columns: int) -> bytes:
    import matplotlib.pyplot as plt

    rows = -(-len(functions) // columns)
    figure, axes = plt.subplots(rows, columns, figsize=(9.6, 2.0 * rows + 0.4), sharex=True, squeeze=False)
    for axis in axes.flat[len(functions) :]:
        axis.axis("off")
    for axis, function, name in zip(axes.flat, functions, names, strict=False):
        value, first, second = _with_derivatives(function, x)
        axis.axhline(0, color="0.85", lw=0.8)
        axis.plot(x, second, color=GOLD, lw=1.0, label="second derivative")
        axis.plot(x, first, color=RED, lw=1.3, label="first derivative")
        axis.plot(x, value, color=BLUE, lw=2.0, label="value")
        axis.set_title(name, fontsize=10)
        axis.set_ylim(-1.6, 1.6)
        open_frame(axis)
    lines, labels = axes.flat[0].get_legend_handles_labels()
    figure.legend(lines[::-1], labels[::-1], loc="upper center", ncols=3, frameon=False)
    figure.tight_layout(rect=(0, 0, 1, 0.95))
    return png(figure)


def _sigmoids() -> bytes:
    x = torch.linspace(-4, 4, 801, dtype=torch.float64) + 1e-9
    return _grid([S() for S in SIGMOIDS], [S.__name__ for S in SIGMOIDS], x, 4)


def _exits() -> bytes:
    x = torch.linspace(-2.5, 2.5, 801, dtype=torch.float64) + 1e-9
    functions = [E() for E in EXITS] + [SmoothTent(2), SmoothTent(5)]
    names = ["Sech(2)", "Tent", "SmoothTent(1)", "BumpExit", "SmoothTent(2)", "SmoothTent(5)"]
    return _grid(functions, names, x, 3)


def _steepness() -> bytes:
    import matplotlib.pyplot as plt

    x = torch.linspace(-2, 2, 801, dtype=torch.float64)
    figure, (left, right) = plt.subplots(1, 2, figsize=(9.5, 3.2))
    colours = plt.get_cmap("viridis")
    for i, steepness in enumerate((1.0, 2.0, 5.0, 10.0, 40.0)):
        value, first, _ = _with_derivatives(Logistic(steepness), x)
        left.plot(x, value, color=colours(i / 5), label=f"steepness {steepness:g}")
        right.plot(x, first / first.max(), color=colours(i / 5))
    left.legend(frameon=False, fontsize=8)
    left.set_title("P(x > 0)", fontsize=10)
    right.set_title("slope, relative to its peak", fontsize=10)
    open_frame(left, right)
    figure.tight_layout()
    return png(figure)


def _conorms() -> bytes:
    import matplotlib.pyplot as plt

    p = torch.linspace(0, 1, 60, dtype=torch.float64)
    figure, axes = plt.subplots(2, 5, figsize=(9.6, 4.3), sharex=True, sharey=True)
    for axis, family in zip(axes.flat, CONORMS, strict=True):
        joined = family()(p[:, None], p[None, :])
        axis.contourf(p, p, joined, levels=20, cmap="magma", vmin=0, vmax=1)
        axis.contour(p, p, joined, levels=[0.25, 0.5, 0.75, 0.95], colors="white", linewidths=0.6)
        axis.set_title(family.__name__, fontsize=10)
        axis.set_aspect("equal")
    figure.tight_layout()
    return png(figure)


def _noise() -> bytes:
    import matplotlib.pyplot as plt

    r = torch.linspace(0, 8, 400, dtype=torch.float64)
    figure, axis = plt.subplots(figsize=(7, 3))
    for df in (2, 4, 8, 30):
        axis.semilogy(r, StudentT(df).tail(r), label=f"StudentT(df={df})")
    axis.semilogy(r, GaussianNoise().tail(r), "k--", label="GaussianNoise()")
    axis.set_ylim(1e-6, 1.2)
    axis.set_xlabel("r, in units of the scale")
    axis.legend(frameon=False, fontsize=8)
    open_frame(axis)
    figure.tight_layout()
    return png(figure)


_SIGMOID_CAPTION = (
    "Every sigmoid with its slope and curvature. Long tails (Cauchy, Reciprocal) send gradients far; compact ones "
    "(Bump, SmoothStep) are exact outside their transition."
)
_EXIT_CAPTION = (
    "Every exit of a loop. Sech is the paper’s C-infinity form, Tent its C⁰ form; BumpExit is C-infinity and exact on "
    "integers at once."
)
_STEEPNESS_CAPTION = (
    "One dial: the steepness. Left, the decision; right, its slope. Soft decisions are blurred but can learn from afar, "
    "hard ones are exact and learn only at the edge. Annealing goes from one to the other."
)
_CONORM_CAPTION = (
    "“At least one of a and b”, for every t-conorm: from the most cautious (Maximum) to the most generous (BoundedSum)."
)
_NOISE_CAPTION = (
    "Noise smooths positions: the chance that a point is displaced by more than r. Student-t noise with few degrees of "
    "freedom reaches far."
)

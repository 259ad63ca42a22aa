"""The paper's figure, what each exit costs in accuracy, where `Sech` stops halting, and a program that was trained."""

from __future__ import annotations

import warnings
from collections.abc import Iterator

import torch
from torch import Tensor

from algonet.apps.drawing import BLUE, GOLD, RED, open_frame, png
from algonet.apps.gallery import Figure
from algonet.relax import BumpExit, Exit, Sech, SmoothTent, Tent
from algonet.while_lang import NonHaltingWarning, WhileProgram, load_program
from algonet.while_lang.plots import surfaces

TITLE = "Any program, smooth"
INTRO = (
    "A WHILE-program knows only copies, increments, decrements and loops, and yet computes everything that is computable. "
    "Run to the extent of its probability, each statement has a gradient. Here the paper's example, which multiplies by "
    "counting."
)


def figures(quick: bool) -> Iterator[Figure]:
    yield Figure("surfaces", _surfaces(24 if quick else 48), _SURFACE_CAPTION)
    yield Figure("accuracy", _accuracy(26 if quick else 76), _ACCURACY_CAPTION)
    yield Figure("halting", _halting(24 if quick else 48), _HALTING_CAPTION)
    yield Figure("trained", _trained(150 if quick else 800), _TRAINED_CAPTION)
    yield Figure("readings", _readings(41 if quick else 121), _READINGS_CAPTION)


def _multiply(exit: Exit, **options) -> WhileProgram:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", NonHaltingWarning)
        return WhileProgram.library("multiply", exit, **options)


def _grid(axis: Tensor) -> tuple[Tensor, ...]:
    return torch.meshgrid(axis, axis, indexing="ij")


def _surfaces(size: int) -> bytes:
    return png(surfaces(load_program("multiply"), "multiply", Sech(2.0), (0.0, 6.0), size, 1000))


def _accuracy(size: int) -> bytes:
    """Program less product for four exits, between the integers and (dots) on them."""
    import matplotlib.pyplot as plt
    from matplotlib.colors import SymLogNorm

    exits = (("Sech(2)", Sech(2.0)), ("Tent", Tent()), ("SmoothTent(3)", SmoothTent(3)), ("BumpExit", BumpExit()))
    a, b = _grid(torch.linspace(0.0, 5.0, size))
    whole = _grid(torch.arange(0.0, 6.0))
    figure, axes = plt.subplots(1, 4, figsize=(11.2, 3.3), sharey=True, layout="constrained")
    norm, image = SymLogNorm(0.1, vmin=-3, vmax=3), None
    for axis, (name, exit) in zip(axes, exits, strict=True):
        program = _multiply(exit, backend="reference")
        error = program(a, b) - a * b
        image = axis.imshow(error.T.numpy(), origin="lower", extent=(0, 5, 0, 5), norm=norm, cmap="RdBu_r")
        there = program(*whole) - whole[0] * whole[1]
        axis.scatter(
            *whole, c=there, norm=norm, cmap="RdBu_r", s=34, edgecolors="0.25", linewidths=0.7, clip_on=False, zorder=3
        )
        axis.set_title(
            f"{name}: mean {float(error.abs().mean()):.2f},\non integers {float(there.abs().mean()):.2f}", fontsize=10
        )
        axis.set_xlabel("x1")
        axis.set_xticks(range(6))
        axis.spines[:].set_visible(False)
    axes[0].set_ylabel("x2")
    figure.colorbar(image, ax=axes, shrink=0.85, pad=0.01).set_label("program − product")
    return png(figure)


def _readings(size: int) -> bytes:
    """One program as an analog circuit, and one decision repeated: means, masses, amplitudes."""
    import matplotlib.pyplot as plt

    figure, (left, right) = plt.subplots(1, 2, figsize=(9.6, 3.5))
    x = torch.linspace(0, 4, size, dtype=torch.float64)
    left.axhline(0, color="0.8", lw=1.2, zorder=0)
    for step, colour in ((1.0, BLUE), (1 / 4, GOLD), (1 / 16, RED)):
        label = "step 1: smooth WHILE" if step == 1 else f"step 1/{round(1 / step)}"
        left.plot(x, x - _circuit(x, step), color=colour, lw=1.8, label=label)
    left.set_xlabel("x1")
    left.set_ylabel("x1 − x0: how much too little was counted")
    left.set_title("towards the analog circuit", fontsize=11)
    exit, x2 = BumpExit(), torch.linspace(0, 1, size, dtype=torch.float64)
    p, program = exit(x2), WhileProgram(_FLIPS, exit, backend="reference")
    turns = 3
    right.plot(p, (1 - (1 - 2 * p) ** turns) / 2, color=GOLD, lw=1.8, label="mass splitting")
    right.plot(p, torch.sin(turns * p.sqrt().asin()) ** 2, color=RED, lw=1.8, label="amplitudes")
    right.plot(p, program(x1=torch.full_like(p, turns), x2=x2), color=BLUE, lw=1.8, label="smooth WHILE")
    right.plot([0, 1], [0, 1], "o", color="black", ms=5, label="the discrete program")
    right.set_ylim(-0.05, 1.45)
    right.set_xlabel("probability of each of three flips")
    right.set_ylabel("the bit")
    right.set_title("where paths meet", fontsize=11)
    for axis in (left, right):
        axis.legend(frameon=False, fontsize=8)
        open_frame(axis)
    figure.tight_layout()
    return png(figure)


_FLIPS = "LOOP x1 DO IF x2 != 0 DO IF x0 != 0 DO x3 := 0 ELSE x3 := 1 END x0 := x3 END END"


def _circuit(x: Tensor, step: float) -> Tensor:
    """The counting loop with p := p phi(x)^step and moves of step p: the smooth program at step 1, analog as step -> 0."""
    p, counted = torch.ones_like(x), torch.zeros_like(x)
    for _ in range(round(40 / step)):
        p = p * Sech()(x) ** step
        x, counted = x - step * p, counted + step * p
    return counted


def _halting(size: int) -> bytes:
    import matplotlib.pyplot as plt

    a, b = _grid(torch.linspace(0.05, 5.95, size))
    steepnesses = (4.0, 4.5, 6.0)
    figure, axes = plt.subplots(1, 4, figsize=(10, 2.8), width_ratios=[1.3, 1, 1, 1])
    shares, image = [], None
    sweep = torch.linspace(2.0, 6.0, 9).tolist()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", NonHaltingWarning)
        for s in sweep:
            program = _multiply(Sech(s), max_iterations=60)
            shares.append(float((program.run(a[::3, ::3], b[::3, ::3]).remaining > 0).float().mean()))
        for axis, s in zip(axes[1:], steepnesses, strict=True):
            remaining = _multiply(Sech(s), max_iterations=60).run(a, b).remaining
            image = axis.imshow(
                remaining.T.numpy(), origin="lower", extent=(0, 6, 0, 6), vmin=0, vmax=1, cmap="magma_r"
            )
            halted = float((remaining == 0).float().mean())
            axis.set_title(f"steepness {s:g}: {halted:.0%} halt", fontsize=10)
            axis.set_xlabel("x1")
            axis.set_xticks(range(0, 7, 2))
            axis.set_yticks(range(0, 7, 2))
    axes[1].set_ylabel("x2")
    axes[0].plot(sweep, shares, "o-", color=RED, ms=4)
    axes[0].set_title("inputs that never halt", fontsize=10)
    axes[0].set_xlabel("steepness of Sech")
    axes[0].set_ylim(-0.02, 1.02)
    open_frame(axes[0])
    figure.tight_layout()
    figure.colorbar(image, ax=axes.tolist(), fraction=0.012, pad=0.01).set_label("probability left", fontsize=8)
    return png(figure)


def _trained(steps: int) -> bytes:
    import matplotlib.pyplot as plt

    a, b = _grid(torch.arange(1.0, 7.0))
    program = _multiply(Sech(2.0), trainable=True, max_iterations=200)
    before = (program(a, b) - a * b).detach()
    optimizer = torch.optim.Adam(program.parameters(), lr=0.01)
    for _ in range(steps):
        optimizer.zero_grad()
        loss = (program(a, b) - a * b).square().mean() + 1e-3 * program.regularization()
        loss.backward()
        optimizer.step()
    after = (program(a, b) - a * b).detach()
    figure, axes = plt.subplots(1, 2, figsize=(8.2, 3.7))
    most, image = float(before.abs().max()), None
    for axis, error, name in zip(axes, (before, after), ("as written", "weights and biases fitted"), strict=True):
        image = axis.imshow(
            error.T.numpy(), origin="lower", extent=(0.5, 6.5, 0.5, 6.5), vmin=-most, vmax=most, cmap="RdBu"
        )
        for x1 in range(6):
            for x2 in range(6):
                value = float(error[x1, x2])
                colour = "white" if abs(value) > 0.6 * most else "black"
                axis.text(x1 + 1, x2 + 1, f"{value:+.2f}", ha="center", va="center", fontsize=7, color=colour)
        axis.set_title(f"{name}: mean error {float(error.abs().mean()):.2f}", fontsize=10)
        axis.set_xlabel("x1")
    axes[0].set_ylabel("x2")
    figure.colorbar(image, ax=axes.tolist(), fraction=0.03, pad=0.02).set_label("program − product", fontsize=9)
    return png(figure)


_SURFACE_CAPTION = (
    "Multiplication three times, as in the paper: the function itself, the C-infinity program (Sech) and the C⁰ program "
    "(Tent). Height is the result, colour the size of the analytic gradient. The program never multiplies: it counts in "
    "two loops."
)
_ACCURACY_CAPTION = (
    "What each exit costs. Tent, SmoothTent and BumpExit are exact on the integers (dots), whatever their smoothness, and "
    "interpolate between them. The paper's Sech, which is analytic, is off by a small factor and offset everywhere."
)
_HALTING_CAPTION = (
    "Steeper is not always better: the paper's proof that loops halt needs φ(x) ≤ |x|, which Sech keeps up to steepness 2.6. "
    "At 3 all of these still halt; at 4 the counter of half of them overshoots zero and runs away. Dark: probability left "
    "after 60 iterations."
)
_READINGS_CAPTION = (
    "Two relatives. Left: a smooth WHILE-program is the unit step of an analog circuit, from x1 = 1.5 on within 0.01 of it. "
    "Right: a bit flipped three times with probability p, as a mean (smooth WHILE), as masses that add where paths meet, "
    "as amplitudes that interfere there. All are exact where p is 0 or 1."
)
_TRAINED_CAPTION = (
    "A weight and a bias on each of the four assignments, fitted on the 36 products up to 6 × 6, take away most of the "
    "factor and offset of the C-infinity program. A penalty keeps them near 1 and 0."
)

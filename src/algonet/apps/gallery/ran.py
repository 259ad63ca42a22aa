"""A backward AlgoNet in miniature: find discs in coloured pictures, told nothing but how a disc is drawn."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from algonet.apps.drawing import RED, no_ticks, open_frame, png
from algonet.apps.gallery import Figure
from algonet.ran import RAN, LossWeights
from algonet.ran.config import TrainConfig
from algonet.ran.losses import LOSSES
from algonet.ran.networks import LocalTranslator, PairDiscriminator
from algonet.ran.schedules import component_rate, set_softness, softness_at
from algonet.relax import Logistic, SoftModule

TITLE = "Backward AlgoNet: what is in the picture, without being told"
INTRO = (
    "A network guesses where a disc lies and how large it is; the only judge is a smooth drawing of the guess. Drawings look "
    "nothing like the coloured pictures, so two translators and a discriminator learn on the side to carry one style into the "
    "other (RAN). Not one picture comes with its answer. Meshes are learned in the same way, in minutes instead of seconds."
)
_SIZE = 16
_TEMPLATE = torch.tensor([0.0, 0.0, 0.43])


class Disc(SoftModule):
    """(x, y, radius) to a picture (B, 1, H, W): inside with the probability that a soft decision gives."""

    def __init__(self, softness: float = 1.0):
        super().__init__(Logistic(1 / softness))

    def forward(self, where: Tensor) -> Tensor:
        line = (torch.arange(_SIZE) + 0.5) * 2 / _SIZE - 1
        x, y, radius = (where[:, i, None, None] for i in range(3))
        apart = ((line[None, None] - x) ** 2 + (line[None, :, None] - y) ** 2 + 1e-4).sqrt()
        soft: Any = self.relax
        return soft(_SIZE * (radius - apart))[:, None]


class Finder(nn.Module):
    """A picture to (x, y, radius), which begin in the middle and stay in the picture."""

    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(3, 16, 3, 2, 1), nn.GELU(), nn.Conv2d(16, 32, 3, 2, 1), nn.GELU(), nn.Flatten(),
            nn.Linear(2 * _SIZE**2, 64), nn.GELU(), nn.Linear(64, 3),
        )  # fmt: skip
        for parameter in self.layers[-1].parameters():
            nn.init.zeros_(parameter)

    def forward(self, picture: Tensor) -> Tensor:
        return _TEMPLATE + torch.tanh(self.layers(picture)) * torch.tensor([0.6, 0.6, 0.2])


def figures(quick: bool) -> Iterator[Figure]:
    yield Figure("data paths", _data_paths(), _DATA_PATHS_CAPTION)
    steps = 200 if quick else 340
    ran, frames, errors = _trained(steps)
    yield Figure("paths", _paths(ran), _PATHS_CAPTION)
    caption = _LEARNING_CAPTION.format(steps, errors[-1], errors[0])
    yield Figure("learning", _strip(frames, errors), caption)


def _pictures(count: int, seed: int) -> tuple[Tensor, Tensor]:
    """Warm discs on cool ground, with noise, and where they lie."""
    random = torch.Generator().manual_seed(seed)

    def between(low: list[float], high: list[float]) -> Tensor:
        return torch.tensor(low) + torch.rand(count, 3, generator=random) * (torch.tensor(high) - torch.tensor(low))

    where = between([-0.5, -0.5, 0.25], [0.5, 0.5, 0.6])
    warm = between([0.6, 0.15, 0.05], [0.9, 0.45, 0.25])[..., None, None]
    cool = between([0.05, 0.25, 0.5], [0.25, 0.65, 0.9])[..., None, None]
    disc = Disc(0.5)(where)
    noise = 0.04 * torch.randn(count, 3, _SIZE, _SIZE, generator=random)
    return (disc * warm + (1 - disc) * cool + noise).clamp(0, 1), where


def _trained(steps: int, seed: int = 0) -> tuple[RAN, list[tuple[int, Tensor]], list[float]]:
    """The training loop itself, in a dozen lines: sections in turn, one Adam per component.

    Returns the model, where it finds the discs of held-out pictures at some steps, and its mean error at each tenth.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        parts = (
            Finder(),
            Disc(),
            LocalTranslator(3, 1, 8, reach=1),
            LocalTranslator(1, 3, 8, reach=0),
            PairDiscriminator(3, 1, 8),
        )
        ran = RAN(*parts, weights=LossWeights(l1=3.0), regulariser=_near_the_middle, separately=False)
    settings = TrainConfig(
        steps=steps, batch=16, learning_rate=2e-3, translator_rate=3.0, reconstructor_rate=1.0, wait=40, warmup=20,
        softness=(2.0, 0.7),
    )  # fmt: skip
    (pictures, _), (unseen, truth) = _pictures(512, seed=1), _pictures(64, seed=2)
    optimisers = {n: torch.optim.Adam(p.parameters(), betas=settings.betas) for n, p in ran.components().items()}
    random = torch.Generator().manual_seed(seed)
    inverse: Any = ran.inverse
    frames, errors = [(0, _found(ran, unseen))], [_error(ran, unseen, truth)]
    for step in range(settings.steps):
        set_softness(inverse, softness_at(settings, step))
        batch = {"a": pictures[torch.randint(len(pictures), (settings.batch,), generator=random)]}
        for section, names in ran.sections.items():
            with ran.training_only(section):
                for number in ran.numbers(section):
                    ran(batch, section, number).backward()
                    for name in names:
                        optimisers[name].param_groups[0]["lr"] = component_rate(settings, step, name)
                        optimisers[name].step()
                        optimisers[name].zero_grad()
        if (step + 1) % (steps // 10) == 0:
            errors.append(_error(ran, unseen, truth))
        if step + 1 in (3 * steps // 10, steps // 2, steps):
            frames.append((step + 1, _found(ran, unseen)))
    return ran, frames, errors


def _near_the_middle(where: Tensor) -> Tensor:
    """Keeps a reconstructor that knows nothing yet from running into a corner."""
    return (where - _TEMPLATE).square().mean()


@torch.no_grad()
def _found(ran: RAN, pictures: Tensor) -> Tensor:
    return ran.reconstruct(pictures)


def _error(ran: RAN, pictures: Tensor, truth: Tensor) -> float:
    """How far the centre is off on average, in pixels."""
    return _SIZE / 2 * float((_found(ran, pictures) - truth)[:, :2].norm(dim=-1).mean())


#: Where the pictures and the components of the drawing stand.
_PLACES = {"a": (0.0, 1.0), "b1": (4.4, 2.0), "b2": (4.4, 0.0), "a1": (7.4, 2.0), "a2": (7.4, 0.0)}
_BOXES = {"a2b": (2.2, 2.0), "R": (1.5, 0.0), "Inv": (2.95, 0.0), "b2a 1": (5.9, 2.0), "b2a 2": (5.9, 0.0)}
_NAMES = {"a": "a", "b1": "b′", "b2": "b″", "a1": "a′", "a2": "a″"}
_ARROWS = (
    ("a", "a2b"), ("a2b", "b1"), ("b1", "b2a 1"), ("b2a 1", "a1"),
    ("a", "R"), ("R", "Inv"), ("Inv", "b2"), ("b2", "b2a 2"), ("b2a 2", "a2"),
)  # fmt: skip


def _data_paths() -> bytes:
    """The network above, and for each of the five losses what its discriminator accepts and rejects, and what must be alike."""
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(2, 3, figsize=(13.5, 6.2))
    figure.tight_layout(pad=0.6)
    _network(axes[0, 0], frozenset(_PLACES))
    axes[0, 0].set_title("all of it", fontsize=12)
    for axis, (number, terms) in zip(axes.flat[1:], LOSSES.items(), strict=True):
        _network(axis, terms.needs)
        for pair, colour in ((terms.real, "#2e7d32"), (terms.fake, "#c62828")):
            ends = [_PLACES[name] for name in pair]
            bend = 0.62 if ends[0][1] == ends[1][1] or "a" in pair else 0.25
            bend = bend if colour == "#2e7d32" else -bend
            axis.annotate(
                "", ends[1], ends[0], zorder=1,
                arrowprops={"arrowstyle": "-", "color": colour, "lw": 2.5, "connectionstyle": f"arc3,rad={bend}",
                            "shrinkA": 17, "shrinkB": 17},
            )  # fmt: skip
            (x0, y0), (x1, y1) = axis.transData.transform(ends)
            # The middle of such an arc lies beside that of its ends, by half of `rad` times their distance
            middle = (x0 + x1 + bend * (y1 - y0)) / 2, (y0 + y1 - bend * (x1 - x0)) / 2
            axis.text(
                *axis.transData.inverted().transform(middle), "D", ha="center", va="center", color="white", fontsize=11,
                zorder=4, bbox={"boxstyle": "square,pad=0.3", "fc": colour, "ec": "black"},
            )  # fmt: skip
        for one, other in terms.alike:
            bend = 0.5 if {one, other} & {"a"} else 0.0
            axis.annotate(
                "", _PLACES[other], _PLACES[one], zorder=1,
                arrowprops={"arrowstyle": "<->", "color": "#555", "lw": 1.4, "ls": ":", "connectionstyle": f"arc3,rad={bend}",
                            "shrinkA": 17, "shrinkB": 17},
            )  # fmt: skip
        axis.set_title(f"loss {number}", fontsize=12)
    figure.tight_layout(pad=0.6)
    return png(figure)


def _network(axis: Any, needs: frozenset[str]) -> None:
    """Pictures as discs and components as boxes; what a loss does not need is faint."""
    used = {"a", *needs}
    used |= {"b1"} if "a1" in used else set()
    used |= {"b2"} if "a2" in used else set()
    used |= {"a2b"} if "b1" in used else set()
    used |= {"R", "Inv"} if "b2" in used else set()
    used |= {box for box, picture in (("b2a 1", "a1"), ("b2a 2", "a2")) if picture in used}
    places = {**_PLACES, **_BOXES}
    for start, end in _ARROWS:
        shown = start in used and end in used
        axis.annotate(
            "", places[end], places[start], zorder=2,
            arrowprops={"arrowstyle": "-|>", "color": "black", "alpha": 1.0 if shown else 0.12, "lw": 1.3, "shrinkA": 17,
                        "shrinkB": 17},
        )  # fmt: skip
    for name, (x, y) in places.items():
        alpha = 1.0 if name in used else 0.15
        box = name in _BOXES
        colour = "#dfe7f2" if box else ("#f6d6a8" if name.startswith("a") else "#d9d9d9")
        style = {
            "boxstyle": "square,pad=0.35" if box else "circle,pad=0.35",
            "fc": colour,
            "ec": "black",
            "alpha": alpha,
        }
        text = name.split()[0] if box else _NAMES[name]
        axis.text(x, y, text, ha="center", va="center", fontsize=12, bbox=style, alpha=alpha, zorder=3)
    axis.set_xlim(-0.7, 8.2)
    axis.set_ylim(-1.1, 3.1)
    axis.axis("off")


@torch.no_grad()
def _paths(ran: Any) -> bytes:
    import matplotlib.pyplot as plt

    paths = ran.paths(_pictures(64, seed=2)[0][:4])
    titles = ("a: what is seen", "b′ = a2b(a)", "b″ = Inv(R(a))", "a′ = b2a(b′)", "a″ = b2a(b″)")
    figure, axes = plt.subplots(4, 5, figsize=(9.4, 7.7))
    for row, line in enumerate(axes):
        for axis, title, picture in zip(line, titles, paths[:5], strict=True):
            _show(axis, picture[row])
            if row == 0:
                axis.set_title(title, fontsize=11)
    figure.tight_layout(pad=0.4)
    return png(figure)


def _strip(frames: list[tuple[int, Tensor]], errors: list[float]) -> bytes:
    import matplotlib.pyplot as plt

    pictures = _pictures(64, seed=2)[0]
    figure, axes = plt.subplots(3, len(frames) + 1, figsize=(9.8, 5.4), width_ratios=[1] * len(frames) + [1.5])
    for column, (step, found) in enumerate(frames):
        axes[0, column].set_title(f"step {step}" if step else "at the start", fontsize=11)
        for row in range(3):
            axis = axes[row, column]
            _show(axis, pictures[row])
            x, y, radius = (found[row] * _SIZE / 2).tolist()
            middle = (_SIZE - 1) / 2
            axis.add_patch(plt.Circle((middle + x, middle + y), radius, fill=False, color="white", lw=2))
    for axis in axes[:, -1]:
        axis.remove()
    curve = figure.add_subplot(axes[0, -1].get_gridspec()[:, -1])
    steps = torch.linspace(0, frames[-1][0], len(errors))
    curve.plot(steps, errors, "o-", color=RED)
    curve.set_title("centre off by (pixels)", fontsize=11)
    curve.set_xlabel("step")
    curve.set_ylim(bottom=0)
    open_frame(curve)
    figure.tight_layout(pad=0.6)
    return png(figure)


def _show(axis: Any, picture: Tensor) -> None:
    axis.imshow(picture.expand(3, -1, -1).permute(1, 2, 0).clamp(0, 1).numpy(), interpolation="nearest")
    no_ticks(axis)
    axis.spines[:].set_visible(False)


_DATA_PATHS_CAPTION = (
    "The five data paths. A discriminator D judges pairs of one picture from A (orange) and one from B (grey): in each loss "
    "it learns to accept the pair at the green D and to reject the one at the red D, while the others learn to fool it; dotted "
    "pairs are to be alike."
)
_PATHS_CAPTION = (
    "The five pictures that the losses compare. The translator a2b finds out by itself what is disc and what is ground: the "
    "only way to agree with a drawing that can show nothing but discs."
)
_LEARNING_CAPTION = (
    "Pictures that training never saw, and the discs found in them (white). After {} steps the centre is off by {:.2f} instead "
    "of {:.2f} pixels, although nobody ever said where a disc was."
)

"""A reconstructor learns shapes from pictures alone, through a smooth renderer."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from algonet.cli.gallery import Figure, png
from algonet.ran.build import build_data, build_model, template
from algonet.ran.config import RunConfig, from_dict
from algonet.ran.evaluate import evaluate_meshes
from algonet.ran.inverses import MeshInverse
from algonet.ran.model import Trainable
from algonet.ran.trainer import component_rate, softness_at

TITLE = "Backward AlgoNet: from pictures to shapes, without being told"
INTRO = (
    "A network guesses a mesh from coloured pictures; the only judge is a smooth renderer that turns the guess back into a "
    "picture. Renderings look nothing like the pictures, so two translators and a discriminator learn on the side to carry "
    "one style into the other (RAN). No shape is ever shown to it."
)


def figures(quick: bool) -> Iterator[Figure]:
    config = _config(quick)
    model, frames, scores = _trained(config, seconds=7.0 if quick else 22.0)
    caption = _PATHS_CAPTION.format("a few steps (this is the quick gallery)" if quick else "some seconds")
    yield Figure("paths", _paths(model, config), caption, _PATHS_CODE)
    yield Figure("learning", _strip(frames, config), _LEARNING_CAPTION.format(*scores), _LEARNING_CODE)


def _config(quick: bool) -> RunConfig:
    return from_dict(
        {
            "data": {"size": 16, "views": 2, "train": 48 if quick else 120, "test": 8 if quick else 12},
            "model": {"level": 1, "radius": 0.65, "width": 64, "base": 8, "translator_base": 8},
            "loss": {"separately": False, "laplacian": 300.0},
            "train": {
                "steps": 90 if quick else 140, "batch": 4 if quick else 8, "learning_rate": 2e-3, "warmup": 5,
                "wait": 45 if quick else 50,
                "softness": (1.2, 0.6),
            },
        }
    )  # fmt: skip


def _trained(config: RunConfig, seconds: float) -> tuple[Trainable, list[tuple[int, Tensor]], tuple[float, float]]:
    """The training loop itself, in a dozen lines: sections in turn, one Adam per component."""
    model, settings = build_model(config), config.train
    data, test = build_data(config, "train"), build_data(config, "test")
    pictures = torch.stack([data[i]["a"] for i in range(config.data.train)])
    shown = torch.stack([test[i]["a"] for i in range(5)])
    optimisers = {n: torch.optim.Adam(p.parameters(), betas=settings.betas) for n, p in model.components().items()}
    random = torch.Generator().manual_seed(0)
    inverse: Any = model.inverse
    frames, started, step = [(0, _vertices(model, shown))], time.process_time(), 0
    for step in range(settings.steps):
        inverse.softness.fill_(softness_at(settings, step))
        batch = {"a": pictures[torch.randint(len(pictures), (settings.batch,), generator=random)]}
        for section, names in model.sections.items():
            with model.training_only(section):
                for number in model.numbers(section):
                    model(batch, section, number).backward()
                    for name in names:
                        optimisers[name].param_groups[0]["lr"] = component_rate(settings, step, name)
                        optimisers[name].step()
                        optimisers[name].zero_grad()
        if step == 0:  # kernels have been compiled by now, which is not training
            started = time.process_time()
        if (step + 1) % (settings.steps // 4) == 0:
            frames.append((step + 1, _vertices(model, shown)))
        if time.process_time() - started > seconds:
            break
    if frames[-1][0] != step + 1:
        frames.append((step + 1, _vertices(model, shown)))
    start: Any = template(config)
    found: Any = test
    return model, frames, (evaluate_meshes(None, found, start)["iou"], evaluate_meshes(model, found, start)["iou"])


@torch.no_grad()
def _vertices(model: Trainable, pictures: Tensor) -> Tensor:
    return model.reconstruct(pictures)


@torch.no_grad()
def _paths(model: Any, config: RunConfig) -> bytes:
    import matplotlib.pyplot as plt

    test = build_data(config, "test")
    a = torch.stack([test[i]["a"] for i in range(4)])
    paths = model.paths(a)
    titles = ("a: what is seen", "b′ = a2b(a)", "b″ = Inv(R(a))", "a′ = b2a(b′)", "a″ = b2a(b″)")
    figure, axes = plt.subplots(4, 5, figsize=(12.5, 5.2))
    for row, line in enumerate(axes):
        for axis, title, picture in zip(line, titles, paths, strict=True):
            _show(axis, picture[row])
            if row == 0:
                axis.set_title(title, fontsize=10)
    figure.tight_layout(pad=0.4)
    return png(figure)


@torch.no_grad()
def _strip(frames: list[tuple[int, Tensor]], config: RunConfig) -> bytes:
    import matplotlib.pyplot as plt

    test = build_data(config, "test")
    fine = MeshInverse(template(config).faces, 64, config.data.views, softness=0.7)
    rows = frames[0][1].shape[0]
    figure, axes = plt.subplots(rows, 1 + len(frames), figsize=(2.4 * (1 + len(frames)), 1.25 * rows), squeeze=False)
    for row in range(rows):
        _show(axes[row, 0], test[row]["a"])
    axes[0, 0].set_title("never seen in training", fontsize=10)
    for column, (step, vertices) in enumerate(frames, 1):
        axes[0, column].set_title(f"step {step}" if step else "template", fontsize=10)
        for row, picture in enumerate(fine(vertices)):
            _show(axes[row, column], picture)
    figure.tight_layout(pad=0.4)
    return png(figure)


def _show(axis: Any, picture: Tensor) -> None:
    axis.imshow(picture.expand(3, -1, -1).permute(1, 2, 0).clamp(0, 1).numpy(), interpolation="nearest")
    axis.set_xticks([])
    axis.set_yticks([])
    axis.spines[:].set_visible(False)


_PATHS_CAPTION = (
    "The five pictures that the losses compare, after {} of training. The translator a2b finds out by itself what is object "
    "and what is backdrop: the only way to agree with a renderer that can draw nothing but solid shapes."
)
_PATHS_CODE = """
ran = RAN(reconstructor, inverse, a2b, b2a, discriminator)     # inverse: vertices -> pictures, smooth
for section in ran.sections:                                   # D; b2a; R with a2b
    with ran.training_only(section):
        for number in ran.numbers(section):                    # the five losses
            ran({"a": pictures}, section, number).backward()
"""
_LEARNING_CAPTION = (
    "Held-out pictures and the reconstructed meshes, seen from the same two sides. Overlap with the true shapes (voxel IoU): "
    "{0:.2f} for the template, {1:.2f} after these few steps."
)
_LEARNING_CODE = """
algonet ran train examples/configs/ran_cpu.toml --out runs/shapes     # two minutes, on a CPU
algonet ran reconstruct runs/shapes photo.png
"""

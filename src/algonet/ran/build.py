"""From a configuration to the objects of a run, from a checkpoint back to a model, and what that is good for: figures, in the
lines that the command prints, and reconstructions of a user's files."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from algonet.core.files import check_outputs, write_files
from algonet.core.pictures import png_bytes

from .checkpoints import newest_checkpoint
from .config import RunConfig, from_dict
from .data import CachedItems, Folder
from .model import RAN, Direct, Prior, Trainable, Truth
from .problems import answers, problem_of
from .report import coloured, findings, measures
from .trainer import RANTrainer


def build_model(config: RunConfig) -> Trainable:
    """The model of a configuration, its weights drawn from the configuration's seed; the global randomness is left
    alone."""
    problem = problem_of(config)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(config.seed)
        reconstructor, inverse, regulariser = problem.parts()
        options: Any = {"weights": config.loss.weights(), "regulariser": regulariser}
        if config.method in ("supervised", "weak"):
            compare = partial(problem.truth_loss, inverse=inverse)
            options["truth"] = Truth(problem.truth, compare, config.loss.label_weight)
        if config.method in ("direct", "supervised"):
            return Direct(reconstructor, inverse, **options)
        if config.loss.samples or config.loss.way_back:
            draw: Any = reconstructor.draw
            options["prior"] = Prior(draw, config.loss.samples, config.loss.way_back)
        parts = (reconstructor, inverse, *problem.translators(), problem.discriminator())
        return RAN(*parts, separately=config.loss.separately, **options)


def build_data(config: RunConfig, split: str) -> CachedItems:
    """The items of a configuration: split "train", "validation" or "test"."""
    return problem_of(config).data(split)


def build_trainer(config: RunConfig, folder: str | Path, *, progress: bool = True) -> RANTrainer:
    """A trainer with everything in place; `fit()` starts it."""
    model, data = build_model(config), build_data(config, "train")
    if config.method == "weak":
        data.label(config.data.labels)
    return RANTrainer(
        model, data, config.train, folder, seed=config.seed, description=config.to_dict(), progress=progress
    )


def load_model(path: str | Path) -> tuple[Trainable, RunConfig]:
    """The model of a checkpoint (or of the last whole one in a run's folder) and its configuration, ready to
    reconstruct."""
    found = newest_checkpoint(Path(path))
    try:
        config = from_dict(found.state.get("description", {}))
    except ValueError as error:
        raise ValueError(f"{found.path}: {error}") from None
    model = build_model(config)
    try:
        model.load_state_dict(found.model)
    except RuntimeError as error:
        reason = " ".join(str(error).split())[:300]
        raise ValueError(f"{found.path}: the weights do not fit the configuration: {reason}") from None
    return model.eval(), config


class Figures(NamedTuple):
    """`scores`: for the template that training began from and for the model, each figure by its name; over `items`
    held-out items. `report`: what is idle or collapsed."""

    scores: dict[str, dict[str, float]]
    items: int
    report: list[str]


def figures(model: Trainable, config: RunConfig) -> Figures:
    """Where the model began and where it is, on the configuration's held-out items.

    Of a user's folder the truth is not known: the only row says how far the two ways from A to B agree.
    """
    problem, data = problem_of(config), build_data(config, "test")
    if isinstance(data, Folder):
        rows = {config.method: agreement(model, data)}
    else:
        rows = {"template": problem.evaluate(None, data), config.method: problem.evaluate(model, data)}
    shown = data.batch(list(range(min(16, len(data)))), ("a",))["a"].to(next(model.parameters()).device)
    return Figures(rows, len(data), findings([measures(model, shown)]) if len(shown) > 1 else [])


def lines(found: Figures) -> list[str]:
    """One line per row of figures."""
    rows = {name: "  ".join(f"{key} {value:.3f}" for key, value in row.items()) for name, row in found.scores.items()}
    return [*(f"{name:>12}: {row}  ({found.items} held-out items)" for name, row in rows.items()), *found.report]


@torch.no_grad()
def agreement(model: Trainable, data: CachedItems) -> dict[str, float]:
    """Mean absolute difference per pixel between b'' = Inv(R(a)) and b' = a2b(a), or a itself where there is no a2b:
    `apart`; and `varied`, the same between the b'' of neighbouring items, which is near 0 if R answers every input
    alike."""
    apart, drawn = [], []
    for a, found in answers(model, data):
        drawn.append(model.invert(found, a))
        wanted: Tensor = model.a2b(a) if isinstance(model, RAN) else a.mean(1, keepdim=True).expand_as(drawn[-1])
        apart.append((drawn[-1] - wanted).abs().flatten(1).mean(1))
    varied = torch.cat(drawn).diff(dim=0).abs().mean() if len(data) > 1 else 0.0
    return {"apart": float(torch.cat(apart).mean()), "varied": float(varied)}


@torch.no_grad()
def reconstruct_files(checkpoint: Path, inputs: list[Path], out: Path, *, overwrite: bool = True) -> list[Path]:
    """Reconstruct each input: the answer in a file of its problem's format, and a picture of both beside each other
    (.png). Both are written together, or neither; files that exist are left alone without `overwrite`."""
    check_outputs([out / f"{path.stem}.png" for path in inputs], force=overwrite, inputs=inputs)
    model, config = load_model(checkpoint)
    problem = problem_of(config)
    written = []
    for path in inputs:
        a = problem.read(path)[None]
        found = model.reconstruct(a)
        # The first item, of a tensor or of each in a tuple
        first = found[0] if isinstance(found, Tensor) else type(found)(*(t[0] for t in found))
        ending, content = problem.encoded(first)
        written.append(out / f"{path.stem}{ending}")
        files = {written[-1]: content, out / f"{path.stem}.png": _beside(model, a, found)}
        check_outputs(files, force=overwrite, inputs=inputs)
        write_files(files, overwrite=overwrite)
    return written


def _beside(model: Trainable, a: Tensor, found: Any) -> bytes:
    shown = [coloured(picture) for picture in (a, model.invert(found, a))]
    both = torch.cat(shown, -2 if a.shape[-1] > a.shape[-2] else -1)[0].clamp(0, 1)
    scale = max(1, 256 // a.shape[-2])
    return png_bytes(both.repeat_interleave(scale, -1).repeat_interleave(scale, -2).movedim(0, -1))

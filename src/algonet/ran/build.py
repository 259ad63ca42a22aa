"""From a configuration to the objects of a run, and from a checkpoint back to a model."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import torch

from .checkpoints import newest_checkpoint
from .config import RunConfig, from_dict
from .data import CachedItems
from .model import RAN, Direct, Prior, Trainable, Truth
from .problems import problem_of
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

"""From a configuration to the objects of a run, and from a checkpoint back to a model."""

from __future__ import annotations

from pathlib import Path

import torch

from .checkpoints import newest_checkpoint
from .config import RunConfig, from_dict
from .data import CachedItems
from .data.labelled import Labelled
from .model import RAN, Direct, Supervised, Trainable, Weak
from .problems import problem_of
from .trainer import RANTrainer


def build_model(config: RunConfig) -> Trainable:
    """The model of a configuration, its weights drawn from the configuration's seed; the global randomness is left
    alone."""
    problem = problem_of(config)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(config.seed)
        reconstructor, inverse, regulariser = problem.parts()
        options = {"weights": config.loss.weights(), "regulariser": regulariser}
        truth = {"compare": lambda found, batch: problem.truth_loss(found, batch, inverse), "truth": problem.truth}
        if config.method == "direct":
            return Direct(reconstructor, inverse, **options)
        if config.method == "supervised":
            return Supervised(reconstructor, inverse, **truth, **options)
        parts = (reconstructor, inverse, *problem.translators(), problem.discriminator())
        options["separately"] = config.loss.separately
        if config.method == "weak":
            return Weak(*parts, **truth, label_weight=config.loss.label_weight, **options)
        return RAN(*parts, **options)


def build_data(config: RunConfig, split: str) -> CachedItems:
    """The items of a configuration: split "train", "validation" or "test"."""
    return problem_of(config).data(split)


def build_trainer(config: RunConfig, folder: str | Path, *, progress: bool = True) -> RANTrainer:
    """A trainer with everything in place; `fit()` starts it."""
    model, data = build_model(config), build_data(config, "train")
    if config.method == "weak":
        data = Labelled(data, config.data.labels)
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

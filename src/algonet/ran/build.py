"""From a configuration to the objects of a run, and from a checkpoint back to a model."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import nn
from torch.utils.data import Dataset

from algonet.render import Mesh, icosphere

from . import checkpoints
from .config import RunConfig, from_dict
from .data import Shapes
from .fractal_data import Fractals
from .fractal_model import SupervisedSystems, ifs_parts
from .inverses import MeshInverse, MeshRegulariser
from .model import RAN, Direct, Supervised, Trainable
from .networks import Encoder, LocalTranslator, MeshReconstructor, PairDiscriminator, UNet, levels_of
from .trainer import RANTrainer


def build_model(config: RunConfig) -> Trainable:
    """The model of a configuration, its weights drawn from the configuration's seed; the global randomness is left alone."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(config.seed)
        reconstructor, inverse, regulariser = _mesh_parts(config) if config.kind == "mesh" else ifs_parts(config)
        options = {"weights": config.loss.weights(), "regulariser": regulariser}
        if config.method == "direct":
            return Direct(reconstructor, inverse, **options)
        if config.method == "supervised":
            supervised = SupervisedSystems if config.kind == "ifs" else Supervised
            return supervised(reconstructor, inverse, **options)
        base = config.model.translator_base
        return RAN(
            reconstructor,
            inverse,
            *_translators(config.model.translator, base),
            PairDiscriminator(3, 1, config.model.base),
            separately=config.loss.separately,
            **options,
        )


def build_data(config: RunConfig, split: str) -> Dataset:
    """The pictures of a configuration: split "train", "validation" or "test"."""
    data = config.data
    count = {"train": data.train, "validation": data.validation, "test": data.test}[split]
    if config.kind == "ifs":
        return Fractals(count, data.size, config.model.functions, data.seed, split=split, noise=data.noise)
    return Shapes(count, data.size, data.views, data.seed, split=split, noise=data.noise, kinds=data.kinds)


def build_trainer(config: RunConfig, folder: str | Path, *, progress: bool = True) -> RANTrainer:
    """A trainer with everything in place; `fit()` starts it."""
    model, data = build_model(config), build_data(config, "train")
    return RANTrainer(
        model, data, config.train, folder, seed=config.seed, description=config.to_dict(), progress=progress
    )


def template(config: RunConfig) -> Mesh:
    """The mesh every reconstruction begins from."""
    return icosphere(config.model.level, config.model.radius)


def load_model(path: str | Path) -> tuple[Trainable, RunConfig]:
    """The model of a checkpoint (or of the last one in a run's folder) and its configuration, ready to reconstruct."""
    found = checkpoints.load(checkpoints.find(Path(path)))
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


def _mesh_parts(config: RunConfig) -> tuple[MeshReconstructor, MeshInverse, MeshRegulariser]:
    data, width = config.data, config.model.width
    start = template(config)
    encoder = Encoder(
        3, (data.size, data.size * data.views), data.views, width, config.model.base, levels_of(data.size)
    )
    inverse = MeshInverse(start.faces, data.size, data.views, config.train.softness[0], config.model.shading)
    regulariser = MeshRegulariser(start, config.loss.laplacian, config.loss.flatten)
    return MeshReconstructor(encoder, start.vertices, width), inverse, regulariser


def _translators(kind: str, base: int) -> tuple[nn.Module, nn.Module]:
    """a2b and b2a. A pointwise b2a cannot make up for outlines that are too wide or too narrow: the reconstruction must."""
    if kind == "unet":
        return UNet(3, 1, base), UNet(1, 3, base)
    return LocalTranslator(3, 1, base, reach=1), LocalTranslator(1, 3, base, reach=0)

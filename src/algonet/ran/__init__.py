"""The backward AlgoNet: a reconstructor trained through a smooth inverse, without supervision (RAN)."""

from .build import build_data, build_model, build_trainer, load_model
from .config import RunConfig, load_config
from .losses import LossWeights, Paths, ran_loss
from .model import RAN
from .trainer import CheckpointError, LostProcessError, NonFiniteLossError, RANTrainer

__all__ = [
    "RAN",
    "CheckpointError",
    "LossWeights",
    "LostProcessError",
    "NonFiniteLossError",
    "Paths",
    "RANTrainer",
    "RunConfig",
    "build_data",
    "build_model",
    "build_trainer",
    "load_config",
    "load_model",
    "ran_loss",
]

"""The backward AlgoNet: a reconstructor trained through a smooth inverse, without supervision (RAN)."""

from . import networks
from .build import build_data, build_model, build_trainer, load_model
from .config import LossWeights, RunConfig, TrainConfig, load_config
from .losses import Paths, ran_loss
from .model import RAN, Prior
from .problems.fractal import IFSInverse
from .problems.mesh import RenderInverse
from .solve import Box, Solution, solve_inverse
from .trainer import CheckpointError, LostProcessError, NonFiniteLossError, RANTrainer

__all__ = [
    "RAN",
    "Box",
    "CheckpointError",
    "IFSInverse",
    "LossWeights",
    "LostProcessError",
    "NonFiniteLossError",
    "Paths",
    "Prior",
    "RANTrainer",
    "RenderInverse",
    "RunConfig",
    "Solution",
    "TrainConfig",
    "build_data",
    "build_model",
    "build_trainer",
    "load_config",
    "load_model",
    "networks",
    "ran_loss",
    "solve_inverse",
]

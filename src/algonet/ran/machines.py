"""The machines a run trains on: lightning-fabric as the settings ask for it, and how exactly they compute."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from algonet.core.extras import require

from .config import TrainConfig


@contextmanager
def arithmetic(settings: TrainConfig) -> Iterator[None]:
    """Inside the block, single-precision matrix products are as exact as the settings say, and if they want it, a GPU takes
    its sums in a fixed order; where torch has no such way, it warns."""
    products = torch.get_float32_matmul_precision()
    before = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
    convolutions = torch.backends.cudnn.deterministic
    torch.set_float32_matmul_precision(settings.matmul_precision)
    if settings.deterministic:
        # cuBLAS reads it before its first call
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        torch.use_deterministic_algorithms(True, warn_only=True)
        torch.backends.cudnn.deterministic = True
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(products)
        torch.use_deterministic_algorithms(before[0], warn_only=before[1])
        torch.backends.cudnn.deterministic = convolutions


def leave_process_group() -> None:
    """Leave the other processes while Python still lives: gloo's threads may abort a process that ends without it, and
    fabric does this for NCCL only."""
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()


def make_fabric(settings: TrainConfig) -> Any:
    """lightning-fabric with the devices, processes and precision of the settings, or of `torchrun` where it started us."""
    require("lightning_fabric")
    from lightning_fabric import Fabric
    from lightning_fabric.strategies import DDPStrategy

    # torchrun says how many processes there are
    processes = int(os.environ.get("WORLD_SIZE", "1"))
    many = processes > 1 or settings.devices * settings.nodes > 1
    devices = int(os.environ.get("LOCAL_WORLD_SIZE", settings.devices)) if processes > 1 else settings.devices
    nodes = max(1, processes // devices) if processes > 1 else settings.nodes
    # Each section leaves the parameters of the others out
    strategy = DDPStrategy(find_unused_parameters=True) if many else "auto"
    return Fabric(
        accelerator=settings.accelerator, devices=devices, num_nodes=nodes, strategy=strategy, precision=settings.precision,  # pyright: ignore[reportArgumentType]
    )  # fmt: skip

"""The trainer: sections in turn, losses in turn, on whatever machines lightning-fabric finds."""

from __future__ import annotations

import atexit
import json
import math
import os
import signal
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import Dataset, default_collate

from algonet.core.extras import require
from algonet.core.files import write_bytes, write_text
from algonet.core.pictures import png_bytes
from algonet.fit.progress import progress_of

from .checkpoints import (
    Checkpoint,
    detached,
    list_checkpoints,
    newest_checkpoint,
    remove_unfinished,
    save_checkpoint,
)
from .config import TrainConfig
from .model import Batch, Trainable
from .report import findings, measures, picture_grid
from .schedules import component_rate, order, seed_random, set_softness, softness_at

History = list[dict[str, float]]


class NonFiniteLossError(ValueError):
    """A loss became NaN or infinite; the batch and the losses were written next to the checkpoints."""


class LostProcessError(RuntimeError):
    """Another process of the run ended or no longer answers; the run can be resumed from its last checkpoint."""


class CheckpointError(OSError):
    """A checkpoint could not be written; the last whole one is as it was."""


class RANTrainer:
    """Trains a `RAN` (or another `Trainable`): for each section in turn, for each of its losses in turn, one Adam step.

    `data` gives dictionaries with the picture `a`; what else is in them reaches a model only if it `sees` it. A data set
    with `to(device)` and `batch(indices, names)` makes its batches itself, where they are used. Everything goes into
    `folder`: checkpoints, TensorBoard events, and `pictures.png`, the present state of a few items. `fit(resume=True)`
    continues from the last checkpoint, on the same machine bit for bit: every step seeds the random generators of Python,
    NumPy and torch by `seed` and its number. Devices, processes, machines and precision are
    lightning-fabric's business: see `TrainConfig`; under `torchrun` its processes are used. `description` (plain values)
    is kept in the checkpoints.

    After `fit`, `history` holds one dictionary of losses per logged step, named section/number, and `report` names parts that
    are idle or collapsed.
    """

    def __init__(
        self,
        model: Trainable,
        data: Dataset,
        settings: TrainConfig,
        folder: str | os.PathLike[str],
        *,
        seed: int = 0,
        description: dict[str, Any] | None = None,
        progress: bool = True,
    ):
        self.model, self.data, self.settings = model, data, settings
        self.folder = Path(folder)
        self.seed, self.description, self.progress = seed, description or {}, progress
        self.step = 0
        self.history: History = []
        #: Of each time that pictures were made, what `report.measures` found
        self.checks: History = []
        self.fabric = make_fabric(settings)
        self.optimisers = {
            name: torch.optim.Adam(part.parameters(), lr=settings.learning_rate, betas=settings.betas)
            for name, part in model.components().items()
        }

    @property
    def checkpoint_folder(self) -> Path:
        return self.folder / "checkpoints"

    @property
    def report(self) -> list[str]:
        """What was idle or collapsed in the last checks, a line each, and what usually helps."""
        return findings(self.checks)

    def fit(
        self, steps: int | None = None, *, resume: bool = False, seconds: float | None = None,
        on_step: Callable[[RANTrainer, dict[str, float]], None] | None = None,
    ) -> History:  # fmt: skip
        """Train up to `steps` in all (default: the settings'), or until `seconds` have passed; returns the history.

        `on_step(trainer, losses)` is called after every step. A folder that already holds a run is only continued. On
        SIGTERM the step is finished, a checkpoint is written, and the signal is then passed on to whoever handled it
        before."""
        self._terminated = self._stopping = False
        total = self.settings.steps if steps is None else steps
        with ExitStack() as stack:
            for around in (arithmetic(self.settings), self._ending_on_sigterm(), self._others_watched()):
                stack.enter_context(around)
            self._launch(resume)
            end = time.monotonic() + (math.inf if seconds is None else seconds)
            shown = self.progress and self.fabric.is_global_zero
            advance = stack.enter_context(progress_of(total, "training", shown, self.step))
            for batch in self._batches(total):
                self._follow_schedules()
                seed_random(self.seed, self.fabric.global_rank, self.step, 1)
                losses = self._train(self.fabric.to_device(batch))
                values = self._checked(losses, batch, stop=self._terminated or time.monotonic() > end)
                self.step += 1
                advance(1, _means(values))
                self._record(values, batch)
                if on_step is not None:
                    on_step(self, values)
                if self.step % self.settings.checkpoint_every == 0 or self.step == total or self._stopping:
                    self._save_or_explain()
                if self._stopping:
                    break
        if self._logger is not None:
            self._logger.flush()
        return self.history

    # -- one step

    def _train(self, batch: Batch) -> dict[str, Tensor]:
        """All sections on one batch; the losses by name, detached."""
        count = self.settings.accumulate
        chunks = [
            dict(zip(batch, parts, strict=True))
            for parts in zip(*(t.chunk(count) for t in batch.values()), strict=True)
        ]
        losses: dict[str, Tensor] = {}
        for section, names in self.model.sections.items():
            with self.model.training_only(section):
                with torch.no_grad():
                    precomputed = [self._wrapped(chunk, section, 0) for chunk in chunks]
                for index in self.model.numbers(section):
                    name = f"{section}/{'all' if index < 0 else index}"
                    losses[name] = self._descend(chunks, section, index, precomputed)
                    for component in names:
                        self._move(component)
        return losses

    def _descend(self, chunks: list[Batch], section: str, index: int, precomputed: list[Any]) -> Tensor:
        """Gradients of one loss of one section, accumulated over the chunks; returns its value."""
        total = torch.zeros((), device=self.fabric.device)
        for i, (chunk, fixed) in enumerate(zip(chunks, precomputed, strict=True)):
            with self.fabric.no_backward_sync(self._wrapped, i + 1 < len(chunks)):
                loss = self._wrapped(chunk, section, index, fixed)
                self.fabric.backward(loss / len(chunks), model=self._wrapped)
            total = total + loss.detach() / len(chunks)
        return total

    def _move(self, component: str) -> None:
        optimiser = self._stepping[component]
        if self.settings.clip:
            self.fabric.clip_gradients(self._wrapped, optimiser, max_norm=self.settings.clip, error_if_nonfinite=False)
        optimiser.step()
        optimiser.zero_grad(set_to_none=True)

    def _follow_schedules(self) -> None:
        """Learning rate and softness of this step: pure functions of it, so that nothing about them needs saving."""
        for name, optimiser in self.optimisers.items():
            for group in optimiser.param_groups:
                group["lr"] = component_rate(self.settings, self.step, name, alone=len(self.optimisers) == 1)
        if self.settings.softness and isinstance(self.model.inverse, nn.Module):
            set_softness(self.model.inverse, softness_at(self.settings, self.step))

    def _checked(self, losses: dict[str, Tensor], batch: Batch, stop: bool) -> dict[str, float]:
        """The losses as numbers, averaged over all processes; raises if one is not finite, after writing the batch down."""
        stacked = torch.stack([*losses.values(), torch.tensor(float(stop), device=self.fabric.device)])
        stacked = self.fabric.all_reduce(stacked, reduce_op="mean")
        *numbers, stopping = stacked.tolist()  # pyright: ignore[reportAttributeAccessIssue]
        # One process that was told to end is enough: all stop after the same step
        self._stopping = stopping > 0
        values = dict(zip(losses, numbers, strict=True))
        wrong = [name for name, value in values.items() if not math.isfinite(value)]
        if not wrong:
            return values
        dump = self._dump(values, batch)
        raise NonFiniteLossError(
            f"RANTrainer: loss {wrong[0]} is {values[wrong[0]]} at step {self.step}; the batch is in {dump}. "
            "Lower the learning rate or raise the softness, and resume from the last checkpoint."
        )

    def _dump(self, values: dict[str, float], batch: Batch) -> Path:
        require("safetensors")
        from safetensors.torch import save

        name = f"nonfinite-step-{self.step:08d}-process-{self.fabric.global_rank}"
        path = write_bytes(self.folder / f"{name}.safetensors", save(detached(batch)))
        write_text(
            self.folder / f"{name}.json",
            json.dumps({"step": self.step, "losses": {k: str(v) for k, v in values.items()}}),
        )
        return path

    # -- beginning, order of the data, end

    def _launch(self, resume: bool) -> None:
        if not hasattr(self, "_wrapped"):
            self.fabric.launch()
            if self.fabric.world_size > 1:
                atexit.register(leave_process_group)
            found = self.fabric.setup(self.model, *self.optimisers.values())
            self._wrapped: Any = found[0]
            self._stepping: dict[str, Any] = dict(zip(self.optimisers, found[1:], strict=True))
            if hasattr(self.data, "batch"):
                self.data.to(self.fabric.device)  # pyright: ignore[reportAttributeAccessIssue]
        processes = self.fabric.world_size * self.settings.accumulate
        if self.settings.batch % processes:
            raise ValueError(
                f"RANTrainer: a batch of {self.settings.batch} cannot be shared by {self.fabric.world_size} processes in "
                f"{self.settings.accumulate} parts; take a multiple of {processes}."
            )
        existing = list_checkpoints(self.checkpoint_folder)
        if resume and existing:
            self.restore(newest_checkpoint(self.checkpoint_folder))
        elif existing and self.step == 0:
            raise ValueError(f"RANTrainer: {self.folder} already holds a run; resume it, or choose another folder.")
        if self.fabric.is_global_zero:
            remove_unfinished(self.checkpoint_folder)
        if not hasattr(self, "_logger"):
            self._logger = self._open_log()

    def _batches(self, total: int) -> Iterator[Batch]:
        """The batches of this process; what is drawn for one is a function of the step."""
        rank, names, data = self.fabric.global_rank, self.model.sees, self.data
        count: int = len(data)  # pyright: ignore[reportArgumentType]
        chosen = order(count, self.settings.batch, self.seed, self.step, total, rank, self.fabric.world_size)
        for step, indices in enumerate(chosen, self.step):
            seed_random(self.seed, rank, step)
            if hasattr(data, "batch"):
                yield data.batch(indices, names)  # pyright: ignore[reportAttributeAccessIssue]
            else:
                items = default_collate([data[index] for index in indices])
                yield {name: items[name] for name in names}

    def _open_log(self) -> Any:
        if not self.settings.tensorboard or not self.fabric.is_global_zero:
            return None
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError as error:
            raise ImportError(
                "RANTrainer: tensorboard is not installed; pip install 'algonet-torch[train]' or set train.tensorboard = false."
            ) from error
        return SummaryWriter(str(self.folder / "tensorboard"))

    def _record(self, values: dict[str, float], batch: Batch) -> None:
        if self.step % self.settings.log_every == 0:
            self.history.append({"step": float(self.step), **values})
            if self._logger is not None:
                for name, value in values.items():
                    self._logger.add_scalar(name, value, self.step)
        if self.step % self.settings.pictures_every == 0 and self.fabric.is_global_zero:
            shown = self.fabric.to_device(batch["a"])
            self.checks.append(measures(self.model, shown))
            grid = picture_grid(self.model, shown[:6])
            write_bytes(self.folder / "pictures.png", png_bytes(grid.movedim(0, -1)))
            if self._logger is not None:
                self._logger.add_image("pictures", grid, self.step)

    @contextmanager
    def _ending_on_sigterm(self) -> Iterator[None]:
        """Inside the block SIGTERM only asks the loop to save and stop; afterwards it does what it would have done."""
        if threading.current_thread() is not threading.main_thread():  # only there can signals be handled
            yield
            return

        def ask(number: int, frame: Any) -> None:
            self._terminated = True

        before = signal.signal(signal.SIGTERM, ask)
        try:
            yield
        finally:
            signal.signal(signal.SIGTERM, before)
        if self._terminated:
            os.kill(os.getpid(), signal.SIGTERM)

    @contextmanager
    def _others_watched(self) -> Iterator[None]:
        """Inside the block, an error of the communication says that another process of the run is gone."""
        try:
            yield
        except RuntimeError as error:
            if self.fabric.world_size == 1 or isinstance(error, (NotImplementedError, RecursionError)):
                raise
            reason = " ".join(str(error).split())[:200]
            raise LostProcessError(
                f"RANTrainer: process {self.fabric.global_rank} of {self.fabric.world_size} ends at step {self.step}: "
                f"another one no longer answers ({reason}). Start the run again with resume; it goes on from the last "
                "checkpoint."
            ) from error

    # -- checkpoints

    def _save_or_explain(self) -> None:
        """`save`, and if the disk does not take it, stop or go on, as the settings say; the last whole checkpoint stays."""
        try:
            self.save()
        except OSError as error:
            whole = list_checkpoints(self.checkpoint_folder)
            last = f"the last whole one is {whole[-1].name}" if whole else "there is none yet"
            message = (
                f"RANTrainer: the checkpoint of step {self.step} could not be written to {self.checkpoint_folder}: "
                f"{error.strerror or error}; {last}. Make room there or allow writing, and resume."
            )
            if self.settings.save_errors == "stop":
                raise CheckpointError(message) from error
            warnings.warn(message, RuntimeWarning, stacklevel=2)

    def save(self) -> Path | None:
        """Write a checkpoint of this step; only the first process does."""
        # Of an optimiser only the moments: its options are those of the settings
        tensors = {
            f"optimiser.{name}.{index}.{key}": torch.as_tensor(value)
            for name, optimiser in self.optimisers.items()
            for index, entries in optimiser.state_dict()["state"].items()
            for key, value in entries.items()
        }
        state = {
            "precision": self.fabric.strategy.precision.state_dict(),
            "description": self.description,
            "versions": {"torch": str(torch.__version__)},
        }
        folder, keep = self.checkpoint_folder, self.settings.keep
        try:
            if self.fabric.is_global_zero:
                return save_checkpoint(folder, self.step, self.model.state_dict(), tensors, state, keep)
        finally:
            self.fabric.barrier()

    def restore(self, found: Checkpoint) -> None:
        """Continue from a checkpoint: model, optimisers, step."""
        self.model.load_state_dict(found.model)
        states = {name: optimiser.state_dict() for name, optimiser in self.optimisers.items()}
        for key, value in found.training.items():
            _, name, index, entry = key.split(".", 3)
            states[name]["state"].setdefault(int(index), {})[entry] = value
        for name, optimiser in self.optimisers.items():
            optimiser.load_state_dict(states[name])
        if found.state["precision"]:
            self.fabric.strategy.precision.load_state_dict(found.state["precision"])
        self.step = found.step


def _means(losses: dict[str, float]) -> str:
    """The mean loss of each section."""
    sums: dict[str, list[float]] = {}
    for name, value in losses.items():
        sums.setdefault(name.split("/")[0], []).append(value)
    return "  ".join(f"{name} {sum(values) / len(values):.3f}" for name, values in sums.items())


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

"""The inverse problems that ship, by the `kind` of a configuration: each a class, loaded when first asked for.

`Problem` is what an inverse problem must say of itself, so that one RAN, one trainer and one command serve all of them.
"""

from __future__ import annotations

import importlib
from abc import ABC, abstractmethod
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from torch import Tensor, nn

from algonet.ran.config import PROBLEMS, RunConfig
from algonet.ran.data import STYLES, CachedItems, Folder, Style, read_views
from algonet.ran.networks import Encoder, LocalTranslator, PairDiscriminator, Repaint, UNet, levels_of

if TYPE_CHECKING:
    from algonet.ran.model import Batch, Regulariser, Trainable

Scores = dict[str, float]
#: The components of a model that a problem decides: R, the smooth inverse, L_reg.
Parts = tuple[nn.Module, nn.Module, "Regulariser | None"]


class Problem(ABC):
    """One inverse problem under one configuration: its networks, its data, its figures, its files.

    A picture of domain A has `a_channels`, one of B, which the smooth inverse makes, `b_channels`. `truth` names what of an
    item only supervised training may see; `truth_loss` compares a reconstruction with it.
    """

    truth: ClassVar[tuple[str, ...]]
    #: What its inputs are called where people read it
    inputs: ClassVar[str] = "pictures"

    def __init__(self, config: RunConfig):
        self.config = config

    @property
    def style(self) -> Style:
        return STYLES[self.config.data.style]

    @property
    def a_channels(self) -> int:
        return 3

    @property
    def views(self) -> int:
        """How many views stand side by side in a picture."""
        return 1

    @property
    def b_channels(self) -> int:
        return 1

    @abstractmethod
    def parts(self) -> Parts:
        """New networks, their weights drawn from the global generator."""

    def translators(self) -> tuple[nn.Module, nn.Module]:
        """a2b and b2a. A pointwise b2a cannot make up for outlines that are too wide or too narrow: the reconstruction
        must."""
        a2b = self._translator(self.a_channels, self.b_channels, 1)
        if self.config.model.translator == "repaint":
            return a2b, Repaint(self.b_channels, self.a_channels, self.config.model.translator_base)
        return a2b, self._translator(self.b_channels, self.a_channels, 0)

    def _translator(self, channels: int, out_channels: int, reach: int) -> nn.Module:
        base = self.config.model.translator_base
        if self.config.model.translator == "local":
            return LocalTranslator(channels, out_channels, base, reach=reach)
        return UNet(channels, out_channels, base, views=self.views)

    def discriminator(self) -> nn.Module:
        model = self.config.model
        return PairDiscriminator(self.a_channels, self.b_channels, model.base, patches=model.translator != "local")

    def encoder(self, width: int | None = None) -> Encoder:
        """From pictures of A, each view `width` pixels wide (or square), to codes."""
        size, model = self.config.data.size, self.config.model
        width = width or size
        levels = levels_of(min(size, width))
        return Encoder(self.a_channels, (size, width * self.views), self.views, model.width, model.base, levels)

    def data(self, split: str) -> CachedItems:
        """The items of "train", "validation" or "test": the user's, where a folder is configured, or made on the spot."""
        data = self.config.data
        if data.folder:
            return Folder(data.folder, self.read, split=split, bad_files=data.bad_files)
        return self.procedural(split)

    @abstractmethod
    def procedural(self, split: str) -> CachedItems:
        """Procedural items, with their truth."""

    @abstractmethod
    def truth_loss(self, reconstruction: Any, batch: Batch, inverse: nn.Module) -> Tensor:
        """How far each reconstruction is from the truth in the batch: (B,)."""

    @abstractmethod
    def evaluate(self, model: Trainable | None, data: Any) -> Scores:
        """The figures of a model (of the template everything begins from, without one) on all of `data`."""

    def read(self, path: Path) -> Tensor:
        """One input (C, H, W) from a user's file."""
        return read_views(path, self.config.data.size, self.views)

    @abstractmethod
    def encoded(self, found: Any) -> tuple[str, bytes]:
        """One reconstruction as a file: its ending and its content."""

    def look(self, split: str) -> dict[str, Any]:
        """How many procedural items a split has, and how they look."""
        data = self.config.data
        return {
            "count": getattr(data, split), "seed": data.seed, "split": split, "noise": data.noise, "style": data.style,
        }  # fmt: skip


def answers(model: Trainable, data: CachedItems) -> Iterator[tuple[Tensor, Any]]:
    """The inputs of all items, up to 64 at once, and what the model reconstructs from them."""
    device = next(model.parameters()).device
    for first in range(0, len(data), 64):
        a = data.batch(list(range(first, min(first + 64, len(data)))), ("a",))["a"].to(device)
        yield a, model.reconstruct(a)


def problem_of(config: RunConfig) -> Problem:
    """The problem that a configuration describes."""
    module, name = PROBLEMS[config.kind]
    return getattr(importlib.import_module(f"{__name__}.{module}"), name)(config)

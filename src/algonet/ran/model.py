"""The five components put together, and what each section of the training sees of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from .config import LossWeights
from .losses import ALL_LOSSES, LOSSES, SAMPLES, WAY_BACK, Paths, distance, ran_losses

Batch = dict[str, Tensor]
#: As the number of a loss: all of them, weighted and summed.
TOGETHER = -1
Regulariser = Callable[[Any], Tensor]


@dataclass(frozen=True)
class Truth:
    """What supervision sees: of a batch, the entries `names`; `compare(reconstruction, batch)` gives the distance (B,) of each
    item to them. `weight`: of the labelled items of a RAN, which then is weakly supervised; its batches hold them beside the
    others, as "labelled.a" and "labelled.NAME"."""

    names: tuple[str, ...]
    compare: Callable[[Any, Batch], Tensor]
    weight: float = 10.0

    def distance(self, reconstruction: Any, batch: Batch) -> Tensor:
        missing = [name for name in self.names if name not in batch]
        if missing:
            raise ValueError(f"Truth: the batch must hold the true `{missing[0]}`; it holds {', '.join(batch)}.")
        return self.compare(reconstruction, batch).mean()


@dataclass(frozen=True)
class Prior:
    """Samples of B cost nothing: the smooth inverse of random reconstructions `draw(count)` is in B.

    With b3 = Inv(draw) and a3 = b2a(b3), a RAN has two more losses, of the weights `judged` and `back`:

        L6 = z(0, b3) - z(0, b')
        L7 = ||a2b(a3) - b3||_1 + ||Inv(R(a3)) - b3||_1

    In L6, D learns what B looks like before R finds anything, and a2b learns it from D. z are D's logits: with logarithms, a D
    that is sure would teach a2b nothing. D's slope must be bounded, as by spectral normalisation; L6 then is a distance between
    samples and b' (Wasserstein's), and else grows without end.
    In L7, a2b and R learn the way back from samples. b' then teaches R and learns nothing of it: ||b'' - b'||_1 moves R alone,
    because a2b would otherwise learn the template that R begins from."""

    draw: Callable[[int], Any]
    judged: float = 1.0
    back: float = 1.0


class Trainable(nn.Module):
    """What the trainer trains: named components with an optimiser each, and sections of them trained in turn.

    `sections` maps a section's name to the components it moves, in the order of training. `forward(batch, section, index,
    precomputed)` is the value that the section *minimises* for its loss number `index`; with index 0 it computes what stays
    the same during the section. `forward(pictures)` reconstructs. `sees` names what of an item it is shown in training: the
    rest of a batch never reaches it."""

    reconstructor: nn.Module
    inverse: Callable[[Any], Tensor]
    sees: tuple[str, ...] = ("a",)
    sections: dict[str, tuple[str, ...]]

    def __init__(
        self,
        inverse: Callable[[Any], Tensor],
        weights: LossWeights,
        regulariser: Regulariser | None,
        truth: Truth | None,
    ):
        super().__init__()
        if not callable(inverse):
            raise TypeError(f"RAN: `inverse` must be a smooth algorithm, got {type(inverse).__name__}.")
        # It is an algorithm: nothing in it is trained
        self.inverse = inverse.requires_grad_(False) if isinstance(inverse, nn.Module) else inverse
        self.weights, self.regulariser, self.truth = weights, regulariser, truth

    def numbers(self, section: str) -> tuple[int, ...]:
        """The numbers of the losses that `section` trains, in order."""
        raise NotImplementedError

    def components(self) -> dict[str, nn.Module]:
        """The trainable parts by name; one optimiser each."""
        return {name: getattr(self, name) for names in self.sections.values() for name in names}

    @contextmanager
    def training_only(self, section: str) -> Iterator[None]:
        """Inside the block, gradients go to the parameters of this section alone."""
        flags = [(p, p.requires_grad) for p in self.parameters()]
        for name, component in self.components().items():
            component.requires_grad_(name in self.sections[section])
        try:
            yield
        finally:
            for parameter, flag in flags:
                parameter.requires_grad_(flag)

    def reconstruct(self, a: Tensor) -> Any:
        """What the input shows: the reconstructor's answer, in single precision whatever the autocast."""
        return tree_map(
            lambda t: t.float() if isinstance(t, Tensor) and t.is_floating_point() else t, self.reconstructor(a)
        )

    def invert(self, reconstruction: Any, like: Tensor) -> Tensor:
        """The smooth inverse of a reconstruction, never in half precision."""
        with torch.autocast(like.device.type, enabled=False):
            return self.inverse(reconstruction)

    def _regular(self, reconstruction: Any) -> Tensor:
        """L_reg with its weight."""
        if self.regulariser is None or not self.weights.regular:
            return torch.zeros(())  # a scalar on the CPU adds to anything
        return self.weights.regular * self.regulariser(reconstruction).float()


class RAN(Trainable):
    """The reconstructive adversarial network: reconstructor R, smooth inverse, translators a2b and b2a, discriminator.

        a -> R -> reconstruction -> Inv -> b''        b' = a2b(a)   a' = b2a(b')   a'' = b2a(b'')

    `inverse` is any smooth algorithm from a reconstruction to pictures of domain B: a renderer, an IFS, any callable or
    module; it is not trained. `discriminator(a, b)` gives logits. `regulariser(reconstruction)` is L_reg, a scalar.
    `separately` trains each section on the five losses one after the other, as the paper does; otherwise on their weighted
    sum at once, which costs a fifth of the steps. `prior` adds two losses (see `Prior`), `truth` the labels of a few items
    (see `Truth`). The model itself, called with pictures, reconstructs; `RANTrainer` trains it. The paper's section on the
    RAN.

    >>> from torch import nn
    >>> picture = nn.Conv2d(1, 1, 1)
    >>> class Pair(nn.Conv2d):
    ...     def forward(self, a, b):
    ...         return super().forward(torch.cat([a, b], 1)).mean((1, 2, 3))
    >>> ran = RAN(nn.Conv2d(1, 1, 1), torch.sigmoid, nn.Conv2d(1, 1, 1), nn.Conv2d(1, 1, 1), Pair(2, 1, 1))
    >>> list(ran.sections)
    ['discriminator', 'b2a', 'a2b']
    >>> ran.paths(torch.zeros(2, 1, 4, 4)).a2.shape
    torch.Size([2, 1, 4, 4])
    """

    a2b: nn.Module
    b2a: nn.Module
    discriminator: nn.Module

    def __init__(
        self,
        reconstructor: nn.Module,
        inverse: Callable[[Any], Tensor],
        a2b: nn.Module,
        b2a: nn.Module,
        discriminator: nn.Module,
        *,
        weights: LossWeights = LossWeights(),
        regulariser: Regulariser | None = None,
        separately: bool = True,
        prior: Prior | None = None,
        truth: Truth | None = None,
    ):
        super().__init__(inverse, weights, regulariser, truth)
        parts = {"reconstructor": reconstructor, "a2b": a2b, "b2a": b2a, "discriminator": discriminator}
        for name, part in parts.items():
            if not isinstance(part, nn.Module):
                raise TypeError(f"RAN: `{name}` must be a module, got {type(part).__name__}.")
            setattr(self, name, part)
        self.separately, self.prior = separately, prior
        self.sections = {"discriminator": ("discriminator",), "b2a": ("b2a",), "a2b": ("reconstructor", "a2b")}
        added = {SAMPLES: prior.judged, WAY_BACK: prior.back} if prior else {}
        #: Loss number -> its weight, where it has one
        self.alpha = {i: w for i, w in {**dict(zip(LOSSES, weights.alpha, strict=True)), **added}.items() if w}
        if truth:
            self.sees = ("a", "labelled.a", *(f"labelled.{name}" for name in truth.names))

    def numbers(self, section: str) -> tuple[int, ...]:
        """The losses in which something of the section occurs."""
        if section == "discriminator":
            found = [i for i in self.alpha if self.weights.adversarial and ALL_LOSSES[i].real]
        elif section == "b2a":
            found = [i for i in self.alpha if ALL_LOSSES[i].needs & {"a1", "a2", "b4"}]
        else:
            found = list(self.alpha)
        return tuple(found) if self.separately or not found else (TOGETHER,)

    def _chosen(self, index: int) -> list[int]:
        return list(self.alpha) if index in (0, TOGETHER) else [index]

    def _to_a(self, b: Tensor, a: Tensor) -> Tensor:
        """b2a of b; one that borrows is shown the picture a to look like."""
        return self.b2a(b, a) if getattr(self.b2a, "borrows", False) else self.b2a(b)

    def paths(
        self, a: Tensor, needs: frozenset[str] = frozenset(("b1", "b2", "a1", "a2")), precomputed: Paths | None = None
    ) -> Paths:
        """The pictures of `needs` and those they come from; what is `precomputed` already is taken as it is."""
        _, b1, b2, a1, a2, *_ = precomputed or Paths(a)
        if b1 is None and needs & {"b1", "a1"}:
            b1 = self.a2b(a)
        if b2 is None and needs & {"b2", "a2"}:
            b2 = self.invert(self.reconstruct(a), a)
        if a1 is None and b1 is not None and "a1" in needs:
            a1 = self._to_a(b1, a)
        if a2 is None and b2 is not None and "a2" in needs:
            a2 = self._to_a(b2, a)
        return Paths(a, b1, b2, a1, a2)

    def _sampled(self, paths: Paths, needs: frozenset[str]) -> Paths:
        """`paths` with those of `needs` that begin at samples of B."""
        if self.prior is None or not needs & {"b3"}:
            return paths
        with torch.no_grad():
            b3 = self.invert(self.prior.draw(len(paths.a)), paths.a)
        paths = paths._replace(b3=b3, none=torch.zeros_like(paths.a))
        if "b4" in needs:
            a3 = self._to_a(b3, paths.a)
            paths = paths._replace(b4=self.a2b(a3), b5=self.invert(self.reconstruct(a3), a3))
        return paths

    @torch.no_grad()
    def _precomputed(self, a: Tensor, section: str) -> Paths | None:
        """Pictures that do not change while `section` is trained: all of them for D, those of domain B for b2a."""
        if section == "a2b":
            return None
        needs = frozenset(name for i in self.alpha for name in ALL_LOSSES[i].needs)
        return self.paths(a, needs if section == "discriminator" else needs & {"b1", "b2"})

    def forward(
        self, batch: Batch | Tensor, section: str | None = None, index: int = 0, precomputed: Paths | None = None
    ) -> Any:
        if isinstance(batch, Tensor):
            return self.reconstruct(batch)
        if section is None:
            raise ValueError("RAN: to train, say which section; to reconstruct, give the pictures alone.")
        a = batch["a"]
        if index == 0:
            return self._precomputed(a, section)
        chosen = self._chosen(index)
        if section == "discriminator":
            chosen = [i for i in chosen if ALL_LOSSES[i].real]
        needs = frozenset(name for i in chosen for name in ALL_LOSSES[i].needs)
        value = a.new_zeros((), dtype=torch.float32)
        if section == "a2b" and needs & {"b2", "a2"}:
            reconstruction = self.reconstruct(a)
            precomputed = Paths(a, b2=self.invert(reconstruction, a))
            value = self._own(reconstruction, chosen, batch)
        paths = self._sampled(self.paths(a, needs, precomputed), needs)
        found = ran_losses(chosen, paths, self.discriminator, self.weights, teaches=self.prior is not None)
        for i, loss in found.items():
            value = value + self.alpha[i] * loss
        return -value if section == "discriminator" else value

    def _own(self, reconstruction: Any, chosen: list[int], batch: Batch) -> Tensor:
        """What is asked of the reconstruction itself, shared out evenly among the losses that see it: it adds up to one."""
        value = self._regular(reconstruction)
        if self.truth:
            labelled = {name: batch[f"labelled.{name}"] for name in ("a", *self.truth.names)}
            value = value + self.truth.weight * self.truth.distance(self.reconstruct(labelled["a"]), labelled)
        seeing = {i for i in self.alpha if ALL_LOSSES[i].needs & {"b2", "a2"}}
        return value * (len(seeing & set(chosen)) / len(seeing))


class Direct(Trainable):
    """Training without translators: min over R of ||Inv(R(a)) - a||_1, which the paper calls impossible for the domain shift.

    Where A has colours and B has not, the mean over the channels stands for a. With `truth` it is the upper bound: R is
    trained on the truth of every item instead."""

    def __init__(
        self,
        reconstructor: nn.Module,
        inverse: Callable[[Any], Tensor],
        *,
        weights: LossWeights = LossWeights(),
        regulariser: Regulariser | None = None,
        truth: Truth | None = None,
    ):
        super().__init__(inverse, weights, regulariser, truth)
        self.reconstructor = reconstructor
        self.sections = {"reconstructor": ("reconstructor",)}
        if truth:
            self.sees = ("a", *truth.names)

    def numbers(self, section: str) -> tuple[int, ...]:
        return (1,)

    def forward(
        self, batch: Batch | Tensor, section: str | None = None, index: int = 0, precomputed: Any = None
    ) -> Any:
        if isinstance(batch, Tensor):
            return self.reconstruct(batch)
        if index == 0:
            return None
        a = batch["a"]
        reconstruction = self.reconstruct(a)
        if self.truth:
            apart = (self.weights.l1 or 1.0) * self.truth.distance(reconstruction, batch)
        else:
            b2 = self.invert(reconstruction, a)
            target = a if a.shape[1] == b2.shape[1] else a.mean(1, keepdim=True).expand_as(b2)
            apart = distance(b2, target, self.weights.l1)
        # As often as a RAN's reconstructor is shown it, so that a regulariser of one weight is as strong for both
        return sum(self.weights.alpha[:4]) * apart + self._regular(reconstruction)

"""The five components put together, and what each section of the training sees of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from .losses import LOSSES, LossWeights, Paths, distance, ran_losses

Batch = dict[str, Tensor]
#: As the number of a loss: all of them, weighted and summed.
TOGETHER = -1
Regulariser = Callable[[Any], Tensor]
#: The distance (B,) between reconstructions and the truth in a batch.
Compare = Callable[[Any, Batch], Tensor]


class Trainable(nn.Module):
    """What the trainer trains: named components with an optimiser each, and sections of them trained in turn.

    `sections` maps a section's name to the components it moves, in the order of training. `forward(batch, section, index,
    precomputed)` is the value that the section *minimises* for its loss number `index`; `precompute(batch, section)`
    computes what stays the same during the section."""

    reconstructor: nn.Module
    inverse: Callable[[Any], Tensor]
    #: What of an item it is shown in training: the rest of a batch never reaches it
    sees: tuple[str, ...] = ("a",)
    sections: dict[str, tuple[str, ...]]

    def __init__(self, inverse: Callable[[Any], Tensor], weights: LossWeights, regulariser: Regulariser | None):
        super().__init__()
        # It is an algorithm: nothing in it is trained
        self.inverse = inverse.requires_grad_(False) if isinstance(inverse, nn.Module) else inverse
        self.weights, self.regulariser = weights, regulariser

    def numbers(self, section: str) -> tuple[int, ...]:
        """The numbers of the losses that `section` trains, in order."""
        raise NotImplementedError

    def precompute(self, batch: Batch, section: str) -> Any:
        return None

    def components(self) -> dict[str, nn.Module]:
        """The trainable parts by name; one optimiser each."""
        return {name: getattr(self, name) for names in self.sections.values() for name in names}

    @contextmanager
    def training_only(self, section: str) -> Iterator[None]:
        """Inside the block, gradients go to the parameters of this section alone."""
        chosen = self.sections[section]
        flags = [(p, p.requires_grad) for p in self.parameters()]
        for name, component in self.components().items():
            component.requires_grad_(name in chosen)
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

    def _regular(self, reconstruction: Any) -> Tensor:
        """L_reg with its weight."""
        if self.regulariser is None or not self.weights.regular:
            return torch.zeros(())  # a scalar on the CPU adds to anything
        return self.weights.regular * self.regulariser(reconstruction).float()

    def invert(self, reconstruction: Any, like: Tensor) -> Tensor:
        """The smooth inverse of a reconstruction, never in half precision."""
        with torch.autocast(like.device.type, enabled=False):
            return self.inverse(reconstruction)


class RAN(Trainable):
    """The reconstructive adversarial network: reconstructor R, smooth inverse, translators a2b and b2a, discriminator.

        a -> R -> reconstruction -> Inv -> b''        b' = a2b(a)   a' = b2a(b')   a'' = b2a(b'')

    `inverse` is any smooth algorithm from a reconstruction to pictures of domain B: a renderer, an IFS, any callable or
    module; it has no say in training. `discriminator(a, b)` gives logits. `regulariser(reconstruction)` is L_reg, a scalar.
    `separately` trains each section on the five losses one after the other, as the paper does; otherwise on their weighted
    sum at once, which costs a fifth of the steps. The model itself, called with pictures, reconstructs; `RANTrainer`
    trains it. The paper's section on the RAN.

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
    ):
        if not callable(inverse):
            raise TypeError(f"RAN: `inverse` must be a smooth algorithm, got {type(inverse).__name__}.")
        super().__init__(inverse, weights, regulariser)
        self.separately = separately
        parts = {"reconstructor": reconstructor, "a2b": a2b, "b2a": b2a, "discriminator": discriminator}
        for name, part in parts.items():
            if not isinstance(part, nn.Module):
                raise TypeError(f"RAN: `{name}` must be a module, got {type(part).__name__}.")
            setattr(self, name, part)
        self.sections = {"discriminator": ("discriminator",), "b2a": ("b2a",), "a2b": ("reconstructor", "a2b")}

    def numbers(self, section: str) -> tuple[int, ...]:
        if section == "discriminator" and not self.weights.adversarial:
            return ()
        if not self.separately:
            return (TOGETHER,)
        # b2a does not occur in the first loss: there is nothing to train
        return tuple(i for i in self.weights.active if section != "b2a" or LOSSES[i].needs & {"a1", "a2"})

    def paths(
        self, a: Tensor, needs: frozenset[str] = frozenset(("b1", "b2", "a1", "a2")), precomputed: Paths | None = None
    ) -> Paths:
        """The pictures of `needs` and those they come from; what is `precomputed` already is taken as it is."""
        precomputed = Paths(a) if precomputed is None else precomputed
        b1, b2, a1, a2 = precomputed.b1, precomputed.b2, precomputed.a1, precomputed.a2
        if b1 is None and needs & {"b1", "a1"}:
            b1 = self.a2b(a)
        if b2 is None and needs & {"b2", "a2"}:
            b2 = self.invert(self.reconstruct(a), a)
        if a1 is None and "a1" in needs:
            a1 = self.b2a(b1)
        if a2 is None and "a2" in needs:
            a2 = self.b2a(b2)
        return Paths(a, b1, b2, a1, a2)

    @torch.no_grad()
    def precompute(self, batch: Batch, section: str) -> Paths | None:
        """Pictures that do not change while `section` is trained: all of them for D, those of domain B for b2a."""
        needs = frozenset(name for i in self.weights.active for name in LOSSES[i].needs)
        if section == "discriminator":
            return self.paths(batch["a"], needs)
        if section == "b2a":
            return self.paths(batch["a"], needs & {"b1", "b2"})
        return None

    def forward(
        self, batch: Batch | Tensor, section: str | None = None, index: int = 0, precomputed: Paths | None = None
    ) -> Any:
        if isinstance(batch, Tensor):
            return self.reconstruct(batch)
        if section is None:
            raise ValueError("RAN: to train, say which section; to reconstruct, give the pictures alone.")
        if index == 0:
            return self.precompute(batch, section)
        a = batch["a"]
        chosen = self.weights.active if index == TOGETHER else (index,)
        needs = frozenset(name for i in chosen for name in LOSSES[i].needs)
        value = a.new_zeros((), dtype=torch.float32)
        if section == "a2b" and needs & {"b2", "a2"}:
            reconstruction = self.reconstruct(a)
            precomputed = Paths(a, b2=self.invert(reconstruction, a))
            value = self._own(reconstruction, chosen, batch)
        paths = self.paths(a, needs, precomputed)
        for i, loss in ran_losses(chosen, paths, self.discriminator, self.weights).items():
            value = value + self.weights.alpha[i - 1] * loss
        return -value if section == "discriminator" else value

    def _own(self, reconstruction: Any, chosen: tuple[int, ...], batch: Batch) -> Tensor:
        """The share of what is asked of the reconstruction itself that goes with the chosen losses."""
        return self._regular(reconstruction) * self._share(chosen)

    def _share(self, chosen: tuple[int, ...]) -> float:
        """What belongs to R is shared out evenly among the losses that see R, so that it adds up to one."""
        seeing = [i for i in self.weights.active if LOSSES[i].needs & {"b2", "a2"}]
        return len(set(chosen) & set(seeing)) / len(seeing)


class Direct(Trainable):
    """Training without translators, which the paper calls impossible for the domain shift: min over R of ||Inv(R(a)) -
    a||_1.

    Where A has colours and B has not, the mean over the channels stands for a.
    """

    def __init__(
        self,
        reconstructor: nn.Module,
        inverse: Callable[[Any], Tensor],
        *,
        weights: LossWeights = LossWeights(),
        regulariser: Regulariser | None = None,
    ):
        super().__init__(inverse, weights, regulariser)
        self.reconstructor = reconstructor
        self.sections = {"reconstructor": ("reconstructor",)}

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
        # As often as a RAN's reconstructor is shown it, so that a regulariser of one weight is as strong for both
        return sum(self.weights.alpha[:4]) * self.fit(reconstruction, batch) + self._regular(reconstruction)

    def fit(self, reconstruction: Any, batch: Batch) -> Tensor:
        a = batch["a"]
        b2 = self.invert(reconstruction, a)
        target = a if a.shape[1] == b2.shape[1] else a.mean(1, keepdim=True).expand_as(b2)
        return distance(b2, target, self.weights.l1)


class Supervised(Direct):
    """The upper bound: R trained on the truth. `compare(reconstruction, batch)` gives the distance (B,) of each item to
    what of the batch `truth` names."""

    def __init__(
        self,
        reconstructor: nn.Module,
        inverse: Callable[[Any], Tensor],
        compare: Compare,
        truth: tuple[str, ...],
        *,
        weights: LossWeights = LossWeights(),
        regulariser: Regulariser | None = None,
    ):
        super().__init__(reconstructor, inverse, weights=weights, regulariser=regulariser)
        self.compare, self.truth = compare, truth
        self.sees = ("a", *truth)

    def fit(self, reconstruction: Any, batch: Batch) -> Tensor:
        return (self.weights.l1 or 1.0) * _compared(self, reconstruction, batch).mean()


class Weak(RAN):
    """A RAN that also sees the truth of a few items: to R's section it adds `label_weight` times their mean distance.

    The batch holds them beside the unlabelled ones, as "labelled.a" and "labelled.NAME" (`data.Labelled` makes such
    batches)."""

    def __init__(
        self, *parts: Any, compare: Compare, truth: tuple[str, ...], label_weight: float = 10.0, **options: Any
    ):
        super().__init__(*parts, **options)
        self.compare, self.truth, self.label_weight = compare, truth, label_weight
        self.sees = ("a", "labelled.a", *(f"labelled.{name}" for name in truth))

    def _own(self, reconstruction: Any, chosen: tuple[int, ...], batch: Batch) -> Tensor:
        value = super()._own(reconstruction, chosen, batch)
        labelled = {name: batch[f"labelled.{name}"] for name in ("a", *self.truth)}
        share = self._share(chosen)
        return value + self.label_weight * share * _compared(self, self.reconstruct(labelled["a"]), labelled).mean()


def _compared(model: Supervised | Weak, reconstruction: Any, batch: Batch) -> Tensor:
    missing = [name for name in model.truth if name not in batch]
    if missing:
        raise ValueError(f"{type(model).__name__}: the batch must hold the true `{missing[0]}`.")
    return model.compare(reconstruction, batch)

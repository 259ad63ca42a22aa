"""The five losses of the reconstructive adversarial network, as the paper prints them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from .config import LossWeights

Discriminator = Callable[[Tensor, Tensor], Tensor]


class Paths(NamedTuple):
    """The five pictures of one input a: b1 = a2b(a), b2 = Inv(R(a)), a1 = b2a(b1), a2 = b2a(b2) (the paper's b', b'', a',
    a''). What a loss does not need may be None. b3 is a sample of B that no input belongs to, a3 = b2a(b3), b4 = a2b(a3),
    b5 = Inv(R(a3)), and none an empty picture of A: see `model.Prior`."""

    a: Tensor
    b1: Tensor | None = None
    b2: Tensor | None = None
    a1: Tensor | None = None
    a2: Tensor | None = None
    b3: Tensor | None = None
    b4: Tensor | None = None
    b5: Tensor | None = None
    none: Tensor | None = None

    def get(self, name: str) -> Tensor:
        found = getattr(self, name)
        if found is None:
            raise ValueError(f"Paths: this loss needs `{name}`, which was not computed.")
        return found


class Terms(NamedTuple):
    """One loss: the pair that D should accept, the one it should reject (or neither), the pairs that should be alike."""

    real: tuple[str, ...]
    fake: tuple[str, ...]
    alike: tuple[tuple[str, str], ...]

    @property
    def needs(self) -> frozenset[str]:
        """The names of the pictures that occur."""
        return frozenset(name for pair in (self.real, self.fake, *self.alike) for name in pair)


#: The paper's losses: number -> terms.
LOSSES = {
    1: Terms(("a", "b2"), ("a", "b1"), (("b2", "b1"),)),
    2: Terms(("a", "b2"), ("a2", "b2"), (("a2", "a"),)),
    3: Terms(("a", "b1"), ("a2", "b1"), (("a1", "a"), ("b2", "b1"))),
    4: Terms(("a", "b2"), ("a1", "b2"), (("a1", "a"), ("b2", "b1"))),
    5: Terms(("a", "b1"), ("a1", "b1"), (("a1", "a"),)),
}
#: With those of `model.Prior`: what B looks like, and the way back from a sample of it.
SAMPLES, WAY_BACK = 6, 7
ALL_LOSSES = {
    **LOSSES,
    SAMPLES: Terms(("none", "b3"), ("none", "b1"), ()),
    WAY_BACK: Terms((), (), (("b4", "b3"), ("b5", "b3"))),
}


def distance(x: Tensor, y: Tensor, weight: float | None) -> Tensor:
    """E ||x - y||_1 over the items: the norm as printed for weight None, else weight times the mean per element."""
    if x.shape != y.shape:
        raise ValueError(f"ran loss: pictures to compare differ in shape: {tuple(x.shape)} and {tuple(y.shape)}.")
    difference = (x - y).abs().float()
    return difference.flatten(1).sum(1).mean() if weight is None else weight * difference.mean()


def ran_loss(index: int, paths: Paths, discriminator: Discriminator, weights: LossWeights = LossWeights()) -> Tensor:
    """Loss L_index (1 to 5), without its alpha: E[log D(real)] + E[log(1 - D(fake))] + the L1 terms.

    The discriminator maximises it, everything else minimises it. `discriminator(a, b)` gives *logits* z, D = sigmoid(z):
    log D = logsigmoid(z) and log(1 - D) = logsigmoid(-z) are finite, with finite slopes, for every finite z.

    >>> a, b = torch.zeros(1, 1, 2, 2), torch.ones(1, 1, 2, 2)
    >>> undecided = lambda a, b: a.new_zeros(len(a))       # D = 1/2 everywhere
    >>> ran_loss(5, Paths(a, b1=b, a1=a + 0.25), undecided)   # 2 log(1/2) + 4 * 0.25
    tensor(-0.3863)
    """
    if index not in LOSSES:
        raise ValueError(f"ran_loss: the losses are numbered 1 to 5, got {index!r}.")
    return ran_losses((index,), paths, discriminator, weights)[index]


def ran_losses(
    indices: Sequence[int],
    paths: Paths,
    discriminator: Discriminator,
    weights: LossWeights = LossWeights(),
    *,
    teaches: bool = False,
) -> dict[int, Tensor]:
    """`ran_loss` of several indices at once: what they share is computed once, and the discriminator is asked once.

    It judges all pairs as one batch, so it must judge each pair on its own (no batch normalisation). If b' `teaches`, the L1
    terms move b'' towards it and not the other way.
    """
    chosen = {index: ALL_LOSSES[index] for index in indices}
    apart = {
        (x, y): distance(paths.get(x), paths.get(y).detach() if teaches and y == "b1" else paths.get(y), weights.l1)
        for x, y in dict.fromkeys(pair for terms in chosen.values() for pair in terms.alike)
    }
    pairs = list(dict.fromkeys(pair for terms in chosen.values() for pair in (terms.real, terms.fake) if pair))
    logits: dict[tuple[str, ...], Tensor] = {}
    if weights.adversarial and pairs:
        left, right = (torch.cat([paths.get(pair[side]) for pair in pairs]) for side in (0, 1))
        logits = dict(zip(pairs, discriminator(left, right).float().chunk(len(pairs)), strict=True))
    found = {}
    for index, terms in chosen.items():
        total = paths.a.new_zeros((), dtype=torch.float32)
        if terms.real in logits:
            accepted, rejected = logits[terms.real], -logits[terms.fake]
            if index in LOSSES:
                accepted, rejected = functional.logsigmoid(accepted), functional.logsigmoid(rejected)
            total = weights.adversarial * (accepted.mean() + rejected.mean())
        found[index] = sum((apart[pair] for pair in terms.alike), total)
    return found

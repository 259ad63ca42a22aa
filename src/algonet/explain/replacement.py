"""Gradual replacement: fade a trained part of a network into an algorithm and see what that does to its accuracy."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from algonet.core.checks import check_module
from algonet.nn import Insert
from algonet.nn.programs import is_program
from algonet.relax.modules import evaluating

from .layers import Data, batches

Measure = Callable[[nn.Module], float]


@dataclass(frozen=True, eq=False)
class Replacement:
    """`network`: a copy in which the algorithm stands where the part was; `mixture` and `score`: the algorithm's share at
    each measurement, from 0 (the trained network) to 1, and what was measured there; `fixed`: scores before fine-tuning at
    that share."""

    network: nn.Module
    mixture: list[float]
    score: list[float]
    fixed: list[float]

    @property
    def change(self) -> float:
        """Score with the algorithm minus score of the trained network."""
        return self.score[-1] - self.score[0]

    def __str__(self) -> str:
        return f"score {self.score[0]:.3f} with the trained part, {self.score[-1]:.3f} with the algorithm"


class Fade(nn.Module):
    """(1 - mixture) part(x) + mixture algorithm(x): the trained part, frozen, giving way to the algorithm."""

    mixture: Tensor

    def __init__(self, part: nn.Module, algorithm: Callable[..., Any]):
        super().__init__()
        self.part = part.requires_grad_(False)
        self.algorithm = algorithm
        self.register_buffer("mixture", torch.zeros(()))

    def forward(self, *inputs: Any) -> Tensor:
        new = self.algorithm(*inputs)
        new = new[0] if isinstance(new, tuple) else new
        share = float(self.mixture)
        if share == 1.0:
            return new
        old = self.part(*inputs)
        if old.shape != new.shape:
            raise ValueError(
                f"replace_gradually: the algorithm must give what the part gives: {tuple(old.shape)}, got {tuple(new.shape)}."
            )
        return torch.lerp(old, new, share)


def replace_gradually(
    network: nn.Module,
    part: str,
    algorithm: Callable[..., Any],
    data: Data,
    loss: Callable[[Any, Any], Tensor],
    *,
    score: Measure,
    levels: int = 10,
    steps: int = 50,
    learning_rate: float = 1e-3,
) -> Replacement:
    """Fade `part` of a trained network into `algorithm` and record the score on the way.

    The output of the part becomes (1 - m) part(x) + m algorithm(x), with m from 0 to 1 in `levels` steps; at each, the
    *rest* of the network is fine-tuned for `steps` Adam steps on `data` (going round it), the part is not. If what the
    part learned is what the algorithm computes, the score stays; if not, it falls and fine-tuning must make up for it.
    `steps=0` shows the bare effect.

    `part` is a dotted name; `algorithm` a module with the part's inputs and output shape, a function of one tensor (tuples
    count by their first entry), or a program that takes and gives the part's features; `loss(output, target)`;
    `score(network)` a number, higher is better, computed in evaluation mode. The given network and algorithm are left as
    they were: the result holds copies. Cost: levels * steps training steps.

    >>> net = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 1))
    >>> x = torch.randn(8, 3)
    >>> found = replace_gradually(net, "0", torch.sort, (x, x[:, :1]), nn.functional.mse_loss, levels=2, steps=1,
    ...                           score=lambda net: -float(nn.functional.mse_loss(net(x), x[:, :1])))
    >>> found.mixture
    [0.0, 0.5, 1.0]
    """
    where = "replace_gradually"
    if levels < 1 or steps < 0:
        raise ValueError(f"{where}: wanted at least 1 level and 0 steps, got {levels} and {steps}.")
    # One copy of both: what they share stays shared, and training touches nothing of the caller's
    memo: dict[int, Any] = {}
    network = copy.deepcopy(network, memo)
    if isinstance(algorithm, nn.Module):
        algorithm = copy.deepcopy(algorithm, memo)
    if not isinstance(algorithm, nn.Module) or is_program(algorithm):
        algorithm = Insert(algorithm)
    check_module("replace_gradually", network)
    parts = dict(network.named_modules())
    if not part or part not in parts:
        raise ValueError(f"{where}: the network has no part {part!r}; it has: {', '.join(filter(None, parts))}.")
    old = parts[part]
    frozen = [p for p in old.parameters() if p.requires_grad]
    fade = Fade(old, algorithm)
    _put(network, part, fade)
    rest = [p for p in network.parameters() if p.requires_grad]
    optimizer = torch.optim.Adam(rest, lr=learning_rate) if rest else None
    endless = itertools.chain.from_iterable(batches(where, data) for _ in itertools.repeat(None))

    def measured() -> float:
        with evaluating(network), torch.no_grad():
            return float(score(network))

    mixture, scores, fixed = [level / levels for level in range(levels + 1)], [], []
    for share in mixture:
        fade.mixture.fill_(share)
        fixed.append(measured())
        for inputs, targets in itertools.islice(endless, steps if share and optimizer is not None else 0):
            with torch.enable_grad():
                value = loss(network(inputs), targets)
                network.zero_grad()
                value.backward()
            optimizer.step()  # pyright: ignore[reportOptionalMemberAccess]
        scores.append(measured() if share else fixed[0])
    for parameter in frozen:
        parameter.requires_grad_(True)
    _put(network, part, algorithm)
    return Replacement(network, mixture, scores, fixed)


def _put(network: nn.Module, name: str, module: nn.Module) -> None:
    owner, _, last = name.rpartition(".")
    setattr(network.get_submodule(owner), last, module)

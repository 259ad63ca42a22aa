"""Fitting a trainable program to its discrete self."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from typing import Any, NamedTuple

import torch
from torch import Tensor


class DiscreteFit(NamedTuple):
    """Mean errors against the discrete program, (before, after): on the inputs fitted to, and on those held out.

    `inside` and `outside` are (before, after); `outside` is `None` where nothing was held out. `print` says which part of the
    error is gone.
    """

    inside: tuple[float, float]
    outside: tuple[float, float] | None

    def __str__(self) -> str:
        rows = [("fitted", self.inside), ("held out", self.outside)]
        return "\n".join(
            f"{name:9} mean error {before:.3g} -> {after:.3g}, {1 - after / max(before, 1e-30):.0%} of it gone"
            for name, (before, after) in ((name, pair) for name, pair in rows if pair is not None)
        )


def fit_discrete(
    program: Any,
    inputs: Iterable[int],
    held_out: Iterable[int],
    steps: int,
    learning_rate: float,
    regularize: float,
) -> DiscreteFit:
    """See `WhileProgram.fit_discrete`."""
    if not program.trainable:
        raise ValueError("WhileProgram.fit_discrete: the program has no parameters; pass trainable=True.")
    fitted, others = _rows(program, inputs), _rows(program, held_out)
    if fitted is None:
        raise ValueError(f"WhileProgram.fit_discrete: `inputs` must hold at least one integer, got {inputs!r}.")
    before = [_error(program, rows) for rows in (fitted, others)]
    optimizer = torch.optim.Adam(program.parameters(), lr=learning_rate)
    for _ in range(steps):
        optimizer.zero_grad()
        loss = _difference(program, *fitted).square().mean() + regularize * program.regularization()
        loss.backward()
        optimizer.step()
    inside, outside = zip(before, (_error(program, rows) for rows in (fitted, others)), strict=True)
    return DiscreteFit(inside, None if others is None else outside)


def _rows(program: Any, numbers: Iterable[int]) -> tuple[Tensor, Tensor] | None:
    """Every tuple of inputs, (inputs, rows), and what the discrete program gives for them, (outputs, rows)."""
    listed = list(itertools.product(list(numbers), repeat=len(program.inputs)))
    if not listed:
        return None
    found = [program.crisp(**dict(zip(program.inputs, row, strict=True))) for row in listed]
    like = next(program.parameters())
    given, wanted = (torch.tensor(table, dtype=like.dtype, device=like.device) for table in (listed, found))
    return given.movedim(0, -1), wanted.movedim(0, -1)


def _difference(program: Any, given: Tensor, wanted: Tensor) -> Tensor:
    found = program(*given)
    return (found if isinstance(found, Tensor) else torch.stack(found)) - wanted


@torch.no_grad()
def _error(program: Any, rows: tuple[Tensor, Tensor] | None) -> float:
    return 0.0 if rows is None else _difference(program, *rows).abs().mean().item()

"""How the paths through a program are taken: an option of every smooth call.

A smooth decision has a probability p, and a program with decisions has many paths. `Merge` joins the states of both ways after
each decision: f of the mean state. The others keep states whole, and give the mean of f over paths,

    F(x) = E[f],  every decision an independent coin that shows yes with its probability,

by drawing paths (`Particles`), by going through all of them (`Enumerate`), or, for `Perturb`, over Gaussian noise on the inputs
of the crisp program. Where the mean of two states is no sensible state (half a bounce, half an order) these are what is meant.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor

from algonet.core.checks import check_integer, is_integer


@dataclass(frozen=True, eq=False)
class Paths:
    """How the paths through a program are taken."""


@dataclass(frozen=True, eq=False)
class Merge(Paths):
    """After each decision the two states become one, p A + (1 - p) B: deterministic, one run, and the default.

    `check`: the first time a function's result differs grossly from that of the crisp program, a warning says so.
    """

    check: bool = True


@dataclass(frozen=True, eq=False)
class Particles(Paths):
    """`count` copies of each item draw every decision and follow it: crisp states, unbiased value and gradient of E[f].

    The result is a sum of terms t (costs that add up; a list has a sum for each entry). With L_t the sum of the logarithms of
    the probabilities of the coins that t depends on, M_t the same number without a gradient, and b_t the mean of t over the
    *other* particles of the item, each is the mean of (t - b_t) exp(L_t - M_t) + b_t: t itself, with the gradient
    dt + (t - b_t) dL_t, and higher derivatives alike. So a decision answers only for what comes after it and depends on it,
    with the others' mean of just that as its baseline. A coin that decides nothing further is averaged over instead, p A +
    (1 - p) B. A decision that is within `epsilon` of certain is taken without a draw. Cost: `count` runs, side by side; the
    error falls with its square root.

    `expected`: every term is averaged over its last coin, also where that decides other terms. Less noise where terms go
    together (who is infected infects others), more where one makes up for another (who orders today need not tomorrow).
    """

    count: int = 64
    expected: bool = False

    def __post_init__(self):
        object.__setattr__(self, "count", check_integer("Particles", "count", self.count, 2))


@dataclass(frozen=True, eq=False)
class Enumerate(Paths):
    """All paths with their probabilities: the exact mean, and all its derivatives. Raises where there are more than `limit`.

    A path whose probability is below `epsilon` for every item is left out, and the others share what it had.
    """

    limit: int = 1024

    def __post_init__(self):
        object.__setattr__(self, "limit", check_integer("Enumerate", "limit", self.limit, 1))


@dataclass(frozen=True, eq=False)
class Perturb(Paths):
    """The crisp program on inputs with Gaussian noise of that `scale`, `count` times in antithetic pairs.

    E[f(x + scale e)], whose gradient is the mean of (f(x + scale e) - f(x - scale e)) e / (2 scale): smooth in x whatever f
    does inside. A mapping as `scale` gives each named parameter its own noise. The other parameters keep their
    values; their gradient is that along the paths taken, without that of the decisions. `as_written` runs the
    function itself, sample by sample, for functions whose calls cannot be rewritten or mapped.
    """

    count: int = 64
    scale: float | Tensor | Mapping[str, float | Tensor] = 0.1
    as_written: bool = False

    def __post_init__(self):
        if not is_integer(self.count) or self.count < 2 or self.count % 2:
            raise ValueError(f"Perturb: `count` must be an even integer from 2 on, got {self.count!r}.")
        scales = list(self.scale.values()) if isinstance(self.scale, Mapping) else [self.scale]
        for scale in scales:
            if not isinstance(scale, Tensor) and not (isinstance(scale, (int, float)) and scale > 0):
                raise ValueError(f"Perturb: `scale` must be a positive number, got {scale!r}.")
        if not scales:
            raise ValueError("Perturb: `scale` names no parameter; give {name: scale} or one number for all.")

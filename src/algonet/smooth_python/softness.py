"""How soft a program's decisions are and how its paths are taken: options of a function, of one call, or of every call inside
a `with` block."""

from __future__ import annotations

import contextvars
import dataclasses
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from algonet.core.backends import check_backend
from algonet.core.checks import check_integer, check_softness, is_integer
from algonet.core.hints import write_instead
from algonet.core.tracing import compiling
from algonet.relax import (
    CONORMS,
    DECISION,
    EXITS,
    SIGMOIDS,
    BumpExit,
    Exit,
    Probabilistic,
    Relaxation,
    Sigmoid,
    TConorm,
)


@dataclass(frozen=True, eq=False)
class Paths:
    """How the paths through a program are taken.

    A smooth decision has a probability p, and a program with decisions has many paths. `Merge` joins the states of both ways
    after each decision: f of the mean state. The others keep states whole, and give the mean of f over paths,

        F(x) = E[f],  every decision an independent coin that shows yes with its probability,

    by drawing paths (`Particles`), by going through all of them (`Enumerate`), or, for `Perturb`, over Gaussian noise on the
    inputs of the crisp program. Where the mean of two states is no sensible state (half a bounce, half an order) these are
    what is meant.
    """


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


@dataclass(frozen=True, eq=False)
class Settings:
    """The options of a smooth run; see `smooth` for what each one means. Every default is written here once."""

    relax: Sigmoid = DECISION
    exit: Exit = BumpExit()  # noqa: RUF009
    conorm: TConorm = Probabilistic()  # noqa: RUF009
    steepness: float | Tensor | None = None
    epsilon: float = 1e-6
    max_iterations: int = 1000
    max_depth: int = 100
    hard: bool = False
    backend: str = "auto"
    paths: Paths = Merge()
    shared: tuple[str, ...] = ()
    #: Whether someone chose `max_iterations`: a loop that cannot look at its mass runs that long, and no default does.
    bounded: bool = False

    def changed(self, options: dict[str, Any]) -> Settings:
        """These settings with some of them replaced; a steepness alone goes into the present relaxations."""
        if not options:
            return self
        new = dataclasses.replace(self, **options, bounded=self.bounded or "max_iterations" in options)
        steepness = options.get("steepness")
        if steepness is None:
            return new
        relax, exit_ = _with_steepness(new.relax, steepness), _with_steepness(new.exit, steepness)
        return dataclasses.replace(new, relax=relax, exit=exit_, steepness=None)


#: The names of all options: parameters of a smooth function may not use them.
OPTIONS = tuple(field.name for field in dataclasses.fields(Settings) if field.name != "bounded")
#: Options that are objects: their kind, what is wanted, and the families to choose from.
_KINDS: dict[str, tuple[type, str, tuple[type, ...]]] = {
    "relax": (Sigmoid, "a sigmoid such as Logistic(10.0)", SIGMOIDS),
    "exit": (Exit, "an exit such as BumpExit()", EXITS),
    "conorm": (TConorm, "a t-conorm such as Probabilistic()", CONORMS),
    "paths": (Paths, "a way to take paths: Merge(), Particles(64), Enumerate(1024) or Perturb(64, 0.1)", ()),
}

#: The options of the blocks around, the innermost last.
BLOCKS: contextvars.ContextVar[tuple[dict[str, Any], ...]] = contextvars.ContextVar("algonet_softness", default=())

#: How many blocks are open in all threads: torch.compile cannot read context variables, but can see this.
_open = {"blocks": 0}
_lock = threading.Lock()


def _with_steepness(relax: Any, steepness: float | Tensor) -> Any:
    if isinstance(relax, Relaxation) and relax.softness_field == "steepness":
        return dataclasses.replace(relax, steepness=steepness)
    return relax


def check_options(where: str, options: dict[str, Any]) -> dict[str, Any]:
    """The options that were given (not None), each of the right kind; an error that lists the choices otherwise."""
    unknown = [name for name in options if name not in OPTIONS]
    if unknown:
        raise TypeError(f"{where}: unknown option {unknown[0]!r}; choose from {', '.join(OPTIONS)}.")
    given = {name: value for name, value in options.items() if value is not None}
    for name, value in given.items():
        _check_option(where, name, value)
    return given


def _check_option(where: str, name: str, value: Any) -> None:
    if name in _KINDS:
        kind, wanted, family = _KINDS[name]
        if not isinstance(value, kind):
            instead = write_instead(name, value, family, "Logistic" if name == "relax" else "")
            raise TypeError(f"{where}: `{name}` must be {wanted}, got {value!r}{instead}.")
    elif name == "steepness":
        check_softness(where, "steepness", value)
    elif name == "epsilon":
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < 0.5:
            raise ValueError(f"{where}: `epsilon` must lie in [0, 0.5), got {value!r}.")
    elif name in ("max_iterations", "max_depth"):
        check_integer(where, name, value, 1)
    elif name == "shared":
        if not isinstance(value, tuple) or not all(isinstance(part, str) for part in value):
            raise TypeError(
                f'{where}: `shared` must be a tuple of parameters\' names, such as ("bounce",), got {value!r}.'
            )
    elif name == "backend":
        check_backend(where, value)
    elif not isinstance(value, bool):
        raise TypeError(f"{where}: `{name}` must be True or False, got {value!r}.")


@contextmanager
def softness(**options: Any) -> Iterator[None]:
    """Inside the block, every smooth function runs with these options instead of its own.

    Options are those of `smooth`: `relax`, `exit`, `conorm`, `steepness`, `epsilon`, `paths`, `max_iterations`, `hard`, ...
    Blocks nest, the inner one wins; an option given with a call wins over all blocks. Threads do not see each other's.

    >>> import torch
    >>> from algonet.smooth_python.algorithms import bubble_sort
    >>> with softness(steepness=1000.0):
    ...     bubble_sort(torch.tensor([3.0, 1.0, 2.0]))[0]
    tensor([1., 2., 3.])
    """
    given = check_options("softness", options)
    with _lock:
        _open["blocks"] += 1
    token = BLOCKS.set((*BLOCKS.get(), given))
    try:
        yield
    finally:
        BLOCKS.reset(token)
        with _lock:
            _open["blocks"] -= 1


def resolved(own: Settings, call: dict[str, Any]) -> Settings:
    """The settings of one call: the function's own, then the blocks around, then the call's."""
    settings = own
    if compiling():
        if _open["blocks"]:
            raise RuntimeError(
                "softness: torch.compile does not see `with softness(...)` blocks; give the options with the call."
            )
        return settings.changed(call)
    for block in BLOCKS.get():
        settings = settings.changed(block)
    return settings.changed(call)


@dataclass
class Report:
    """`iterations`: of each loop by source line (the longest run of it). `mass_left`: the probability, per item, that had
    not left the loop in that line when it was stopped; lines of loops that ended by themselves are not in it."""

    iterations: dict[int, int] = field(default_factory=dict)
    mass_left: dict[int, Tensor] = field(default_factory=dict)
    #: Smooth decisions that were taken while the program ran (none are counted while it is repeated).
    decisions: int = 0
    #: The first differences that exits were asked about, with their lines, until the run is over.
    gaps: list[Any] = field(default_factory=list, init=False, repr=False)

    def add(self, line: int, iterations: int) -> None:
        self.iterations[line] = max(iterations, self.iterations.get(line, 0))

    def left(self, line: int, mass: Tensor) -> None:
        before = self.mass_left.get(line)
        self.mass_left[line] = mass if before is None else torch.maximum(before, mass)

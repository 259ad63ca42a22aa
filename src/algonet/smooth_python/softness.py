"""How soft a program's decisions are: options of a function, of one call, or of every call inside a `with` block."""

from __future__ import annotations

import contextvars
import dataclasses
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from algonet.core.checks import check_integer, check_softness
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

from .paths import Merge, Paths


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
    checkpoint: bool = False
    backend: str = "auto"
    paths: Paths = Merge()  # noqa: RUF009
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
        choices = ("auto", "reference", "numba", "triton")
        if value not in choices:
            raise ValueError(f"{where}: unknown backend {value!r}; choose one of {', '.join(choices)}.")
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
    try:
        with within((*BLOCKS.get(), given)):
            yield
    finally:
        with _lock:
            _open["blocks"] -= 1


@contextmanager
def within(blocks: tuple[dict[str, Any], ...]) -> Iterator[None]:
    """Inside these blocks, and no others."""
    token = BLOCKS.set(blocks)
    try:
        yield
    finally:
        BLOCKS.reset(token)


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

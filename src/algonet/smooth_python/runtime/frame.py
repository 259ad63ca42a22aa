"""One run of a smooth function: its softness, the probability of being here, and the operations the rewritten code calls."""

from __future__ import annotations

import inspect
import math
import operator
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from algonet.core.tracing import compiling, transforming

from ..machine.credit import Coin
from ..machine.eager import Machine, as_value, soft_number, softened
from ..machine.values import Value, leaves, mapped, smooth_kind
from ..operation import Draws
from ..softness import Report, Settings
from . import calls, comparisons, subscripts
from .control import Branch, Loop, any_left
from .merging import Missing, Mixture, merged


class Coins:
    """Every decision is a coin per item (which is a particle); `score` sums up the logarithms of what they showed."""

    crisp = merges = False

    def __init__(self):
        self.score: Any = 0.0
        self.shown: list[Coin] = []

    def decide(self, frame: Any, p: Value) -> Value:
        epsilon = frame.settings.epsilon
        here = frame.presence()
        if here is not None:
            # Who is not here decides nothing, whatever the numbers of a state that is not theirs say
            p = frame.operate("select", here, p, 0.0)
        p = frame.operate("snap", p, epsilon, 1 - epsilon)
        shown = frame.coin(p)
        self.score = frame.operate("tally", self.score, p, shown)
        self.shown.append(Coin(shown.row, self.score))
        return shown


class Numbers:
    """Decisions as Python takes them: comparisons are 0 or 1 already."""

    crisp, merges = True, False

    def decide(self, frame: Any, p: Value) -> Value:
        return p


class PathEndedError(Exception):
    """Nobody is on this path any more."""


class Answers:
    """Every decision is a Python answer from a list; beyond its end, yes, and the other way is noted if anybody takes it."""

    crisp = merges = False

    def __init__(self, answers: list[bool]):
        self._given = answers
        self.taken: list[bool] = []
        self.others: list[list[bool]] = []
        self.weight: Any = 1.0

    def decide(self, frame: Any, p: Value) -> bool:
        epsilon = frame.settings.epsilon
        # Both ways, each item's share cut by itself
        yes = frame.operate("cut", self.weight * p, epsilon)
        no = frame.operate("cut", self.weight * (1.0 - as_value(p)), epsilon)
        place = len(self.taken)
        if place < len(self._given):
            answer = self._given[place]
        else:
            frame.settle(yes, no)
            some, others = frame.any_left(yes), frame.any_left(no)
            if not some and not others:
                raise PathEndedError
            answer = some
            if some and others:
                self.others.append([*self.taken, False])
        self.taken.append(answer)
        self.weight = yes if answer else no
        return answer


class Sites:
    """States are merged as usual; the lines of all decisions are noted, and those of one line are taken crisply."""

    crisp, merges = False, True

    def __init__(self, harden: tuple[str, int] | None = None):
        self._harden = harden
        #: (file, line) of each decision with how undecided it was at most, from 0 to 1.
        self.lines: dict[tuple[str, int], float] = {}

    def decide(self, frame: Any, p: Value) -> Value:
        place = users_line(frame.file)
        tensor = p.tensor.detach()
        open_ = float((4 * tensor * (1 - tensor)).max()) if tensor.numel() else 0.0
        self.lines[place] = max(open_, self.lines.get(place, 0.0))
        return frame.operate("select", p - 0.5, 1.0, 0.0) if place == self._harden else p


def users_line(file: str) -> tuple[str, int]:
    """Where in the user's file we are: rewritten code keeps its line numbers."""
    code: Any = inspect.currentframe()
    while code is not None and code.f_code.co_filename != file:
        code = code.f_back
    return file, 0 if code is None else code.f_lineno


def _is_real(x: Any) -> bool:
    """Whether x is a finite Python float or a floating value: a number that assignments can scale."""
    if type(x) is float:
        return math.isfinite(x)
    if type(x) is not Value:
        return isinstance(x, Tensor) and x.is_floating_point()
    if x.parted and not x.has_tensor:
        return any(map(_is_real, x.parts))
    return x.recorded or x.tensor.is_floating_point()


@dataclass(eq=False)
class Frame:
    """`_s` in rewritten code."""

    function: Any
    settings: Settings
    report: Report
    size: int | None
    #: Options given with the call: they hold for the smooth functions it calls, too.
    overrides: dict[str, Any]
    draws: Draws
    #: Of numbers that come from nowhere else.
    precision: torch.dtype
    #: Weights and biases of the assignments, where it is trained, and the gates on them, where these are asked about.
    parameters: tuple[Tensor, ...]
    gates: Value | None
    #: What computes, and who takes the decisions (`None`: states are merged).
    machine: Machine
    decider: Any = None
    depth: int = 0
    #: Probability of being here, relative to the present loop's beginning, and that of the beginning itself.
    mass: Any = 1.0
    base: Any = 1.0
    #: Who is in the branches around, by their coins.
    inside: Callable[[], Value] | None = None
    #: Whether masses below epsilon were dropped: the weights of what is returned then do not sum to one by themselves.
    dropped: bool = False
    #: The last decision on whether to leave early: what is returned is smooth then, whichever way anybody went.
    forked: Value | None = None

    def __post_init__(self):
        self.name, self.file = self.function.__name__, self.function._file
        self._parameter_values: list[list[Any]] | None = None
        self._returns = Mixture(("the returned value",))

    gt = comparisons.greater
    lt = comparisons.less
    ge = comparisons.greater_equal
    le = comparisons.less_equal
    eq = comparisons.equal
    ne = comparisons.not_equal
    both = comparisons.both
    either = comparisons.either
    negate = comparisons.negate
    truth = comparisons.truth
    contains = comparisons.contains
    load = subscripts.load
    store = subscripts.store
    append = subscripts.append
    call = calls.call
    slice = slice
    missing = Missing
    live = subscripts.live

    # -- deciding

    def decided(self, p: Any) -> Any:
        """The value of a comparison that is kept: its probability where states are merged, else 0 or 1."""
        found = self.decide(p)
        return soft_number(found, as_value(p)) if smooth_kind(p) and not smooth_kind(found) else found

    def decide(self, p: Any) -> Any:
        """A decision: as it is where states are merged, else a coin's 0 or 1, or a plain yes or no."""
        if not smooth_kind(p):
            return p
        self.report.decisions += 1
        if self.decider is None:
            return p
        return self.decider.decide(self, as_value(p))

    def compared(self, gap: Value) -> None:
        """The exit is asked about this difference: the first few are looked at when the run is over."""
        if not compiling() and not transforming() and len(self.report.gaps) < 16:
            self.report.gaps.append((users_line(self.file), gap))

    @property
    def chooses(self) -> bool:
        """Whether states are kept apart: decisions are 0 or 1, and one of two states is chosen."""
        return self.decider is not None and not self.decider.merges

    def presence(self) -> Value | None:
        """Which items are here (1, else 0), under deciders that keep states apart; None where all are."""
        found = None if self.inside is None else self.inside()
        for mass in (self.mass, self.base):
            if isinstance(mass, Value):
                found = mass if found is None else found * mass
        return found

    def enter(self, coin: Value, shown: bool, around: Callable[[], Value] | None) -> None:
        """One side of a branch begins: `inside` is 1 for those whose coin shows it, and who are inside what is around."""

        def inside() -> Value:
            here = coin if shown else 1.0 - coin
            return here if around is None else here * around()

        if self.chooses:
            self.inside = inside

    def operate(self, name: str, *operands: Any) -> Value:
        """An instruction by name."""
        return self.machine.operate(name, *operands)

    def coin(self, p: Value) -> Value:
        """1 with probability p, else 0, drawn for each item."""
        return self.machine.draw("coin", self.draws, self.size, self.precision, p)

    def uniform(self) -> Value:
        """A number in [0, 1), drawn for each item."""
        return self.machine.draw("uniform", self.draws, self.size, self.precision)

    def any_left(self, mass: Value) -> bool:
        """Whether any item has mass left; looks at numbers."""
        return self.machine.ask(mass, any_left)

    @property
    def going(self) -> bool:
        """Whether the next statement can be reached at all."""
        return self.mass is not None

    def likely(self) -> bool:
        """Whether the next statements, which call something, are reached with more than epsilon: this ends recursions.

        Masses below are dropped for each item by itself, so that no result depends on who else is in the batch.
        """
        if not isinstance(self.mass, Value) or self.settings.epsilon == 0 or compiling():
            return self.going
        mass, self.mass = self.mass, None
        self.dropped = True
        cut = self.operate("cut", mass, self.settings.epsilon)
        self.settle(cut)
        left = self.any_left(cut)
        if left:
            self.mass = cut
        return left

    def settle(self, *values: Any) -> None:
        """Compute these, and what the frame itself holds, together: before something is looked at."""
        self.machine.settle(values, self.mass, self.base, self._returns.mass, self._returns.values())

    def mark_unrecordable(self) -> None:
        """Something that is not recorded looks at numbers, or acts: the run cannot be repeated without the program."""
        self.machine.mark_unrecordable()

    def branch(self, test: Any, alive: list | None = None, /, **state: Any) -> Branch:
        """An `if` that is left at its end only. One worth skipping is given the variables that live on."""
        return Branch(self, test, state, alive, leaving=False)

    def fork(self, test: Any, alive: list | None = None, /, **state: Any) -> Branch:
        """An `if` with `break`, `continue` or `return` inside."""
        return Branch(self, test, state, alive, leaving=True)

    def loop(self, line: int, names: str, keep: int, returns: bool = False) -> Loop:
        return Loop(self, line, tuple(names.split()), keep, returns)

    def choose(self, test: Any, then: Any, other: Any, heavy: bool = False) -> Any:
        """then() if test else other()."""
        sides = Branch(self, test, {"the chosen value": None}, [] if heavy else None, leaving=False)
        chosen = None
        if sides.then:
            (chosen,) = sides.turn(then())
        if sides.orelse:
            chosen = other()
        return sides.join(chosen)[0]

    def merge(self, p: Value, then: Any, other: Any) -> Any:
        return merged(p, then, other, chosen=self.chooses)

    def crisp(self, test: Any) -> bool:
        """The condition of a comprehension, which cannot run both ways."""
        if smooth_kind(test):
            raise TypeError(
                "the `if` of a comprehension decides how many items there are and must be crisp; use an `if` in a loop."
            )
        return test

    def check(self, test: Any, message: Any = None) -> None:
        """An `assert`: crisp conditions are checked, smooth ones have no truth to check."""
        if not smooth_kind(test) and not test:
            raise AssertionError(*([] if message is None else [message()]))

    def assign(self, number: int, value: Any, old: Callable[[], Any] | None = None) -> Any:
        """What an assignment assigns: w value + b by its weight and bias; with a gate g, g of that and 1 - g of the old value.

        Python's floats are numbers of the program here, and become values; integers, words and infinities stay crisp.
        """
        if self.parameters:
            if self._parameter_values is None:
                # In the precision that is computed in, for all items
                cast, machine = operator.methodcaller("to", self.precision), self.machine
                self._parameter_values = [
                    Value(machine.derived(t, cast), False, machine).parts for t in self.parameters
                ]
            weight, bias = (values[number] for values in self._parameter_values)
            value = mapped(lambda x: self.operate("accumulate", bias, weight, x) if _is_real(x) else x, value)
        return value if self.gates is None else self._gated(self.gates.parts[number], value, old)

    def _gated(self, gate: Value, value: Any, old: Callable[[], Any] | None) -> Any:
        def one(new: Any, *before: Any) -> Any:
            if not _is_real(new):
                return new
            return self.merge(gate, new, before[0]) if before and _is_real(before[0]) else gate * new

        try:
            return mapped(one, value) if old is None else mapped(one, value, old())
        except (NameError, ValueError, TypeError, KeyError):
            # It was nothing before, or something else
            return mapped(one, value)

    def returned(self, value: Any) -> Any:
        """What is returned: a variable without a value in it is used here, and says so."""
        for x in leaves(value):
            if isinstance(x, Missing):
                x._used()
        return value

    def give(self, value: Any) -> None:
        """`return` before the end."""
        if self.mass is not None:
            self._returns.add(self.mass if self.base == 1.0 else self.mass * self.base, (value,))
            self.mass = None

    def result(self) -> Any:
        """The mixture of all returned values; what is left undone in endless loops is shared out."""
        found = self._returns.result(normalise=self.mass is not None or self.dropped)[0]
        return found if self.forked is None else softened(found, self.forked)

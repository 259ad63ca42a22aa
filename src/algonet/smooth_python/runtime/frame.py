"""One run of a smooth function: its softness, the probability of being here, and the operations the rewritten code calls."""

from __future__ import annotations

from typing import Any

import torch

from ..machine.values import Value, flat, settled, smooth_kind, softened
from ..report import Report
from ..softness import Settings
from . import calls, checkpointing, comparisons, subscripts
from .control import Branch, Loop, any_left, visible
from .merging import Missing, Mixture, merged


class Frame:
    """`_s` in rewritten code."""

    def __init__(
        self, name: str, file: str, settings: Settings, report: Report, depth: int = 0, size: int | None = None
    ):
        self.name = name
        self.file = file
        self.settings = settings
        self.report = report
        self.depth = depth
        self.size = size
        #: The recorder of arithmetic on single numbers, where there is one.
        self.tape: Any = None
        #: Probability of being here, relative to the present loop's beginning, and that of the beginning itself.
        self.mass: Any = 1.0
        self.base: Any = 1.0
        #: Options given with the call: they hold for the smooth functions it calls, too.
        self.overrides: dict[str, Any] = {}
        #: What the function reads from outside, and whether this is its second run, for the backward pass.
        self.outside: Any = None
        self.rerunning = False
        self._returns = Mixture(("the returned value",))
        #: Whether masses below epsilon were dropped: the weights of what is returned then do not sum to one by themselves.
        self.dropped = False
        #: The last decision on whether to leave early: what is returned is smooth then, whichever way anybody went.
        self.forked: Value | None = None

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
    live = subscripts.live
    rerun = checkpointing.rerun
    rerun_each = checkpointing.rerun_each

    @property
    def going(self) -> bool:
        """Whether the next statement can be reached at all."""
        return self.mass is not None

    def likely(self) -> bool:
        """Whether the next statements, which call something, are reached with more than epsilon: this ends recursions.

        Masses below are dropped for each item by itself, so that no result depends on who else is in the batch.
        """
        if not isinstance(self.mass, Value) or self.settings.epsilon == 0 or torch.compiler.is_compiling():
            return self.going
        mass, self.mass = self.mass, None
        self.dropped = True
        tape = mass.tape
        cut = tape.record("cut", mass, self.settings.epsilon) if tape is not None else None
        if tape is not None and cut is not None:
            self.settle(cut)
            left = tape.ask(cut, any_left)
        else:
            self.spoil()
            tensor = mass.tensor
            cut = Value(torch.where(tensor > self.settings.epsilon, tensor, 0.0), mass.batched, None, mass.tape)
            left = any_left(visible(cut.tensor))
        if left:
            self.mass = cut
        return left

    def settle(self, *values: Any) -> None:
        """Carry out what was recorded for these and for what the frame itself holds, before something is looked at."""
        settled(flat((values, self.mass, self.base, self._returns.mass, self._returns.values())))

    def spoil(self) -> None:
        """Something that is not recorded looks at numbers, or acts: the run cannot be repeated without the program."""
        if self.tape is not None:
            self.tape.spoil()

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
        return merged(p, then, other)

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

    def missing(self, name: str) -> Missing:
        return Missing(name)

    def give(self, value: Any) -> None:
        """`return` before the end."""
        if self.mass is not None:
            self._returns.add(self.mass if self.base == 1.0 else self.mass * self.base, (value,))
            self.mass = None

    def result(self) -> Any:
        """The mixture of all returned values; what is left undone in endless loops is shared out."""
        found = self._returns.result(normalise=self.mass is not None or self.dropped)[0]
        return found if self.forked is None else softened(found, self.forked)

    def need_bound(self, line: int) -> None:
        if not self.settings.bounded:
            raise RuntimeError(
                f"the loop in line {line} ends by its probability mass, which torch.compile cannot look at; give "
                "max_iterations to unroll it that often, or compile the parts around."
            )

"""Control flow at run time: branches, loops, and leaving them early.

The rewritten program runs on one state, like any Python function. `Branch` runs both sides one after the other and joins
the two states; `Loop` collects the states that leave it, weighted by the probability of leaving then. Masses are
probabilities of still being in the present loop iteration (or in the function, outside loops): `None` when certainly not,
1.0 when certainly, a value else.
"""

from __future__ import annotations

import warnings
from typing import Any

from torch import Tensor

from algonet.core.tracing import compiling, unwrapped

from ..machine.eager import PATIENCE, as_value, softened
from ..machine.values import Value, smooth_kind
from .merging import Mixture, kept, merged, share

#: A look at the mass that is left in a recorded loop costs more than a short iteration: it is taken only after `PATIENCE`
#: iterations, or after this many instructions.
LONG_ENOUGH = 2048


class Branch:
    """One `if`: `then` and `orelse` say which sides run; `turn` changes from one to the other, `join` ends both."""

    def __init__(self, frame: Any, test: Any, state: dict[str, Any], alive: list | None, *, leaving: bool):
        self._frame, self._leaving, self._around, self._chooses = frame, leaving, frame.inside, frame.chooses
        #: The probability of `then` where it is open; what later decisions on the state are smooth by, whichever sides run.
        self._p: Any = None
        self._soft: Value | None = None
        if smooth_kind(test):
            if self._chooses or alive is not None:
                self._soft = as_value(test)
            test = frame.decide(test)
        if not smooth_kind(test):
            self.then = bool(test)
            self.orelse = not self.then
            if leaving and self._soft is not None:
                frame.forked = self._soft
            return
        self._p = as_value(test)
        self.then = self.orelse = True
        self._names = tuple(state)
        self._state: Any = tuple(state.values())
        if alive is not None:
            self._skip(alive)
        if leaving:
            frame.forked = self._p
            self._mass, self._then_mass = frame.mass, None
            self._first_mass = self._p if frame.mass == 1.0 else frame.mass * self._p
            self._else_mass = frame.mass - self._first_mass
            frame.mass = self._first_mass if self.then else self._else_mass
        elif self._chooses:
            frame.enter(self._p, self.then, self._around)

    def _skip(self, alive: list) -> None:
        """Sides that no item takes with more than epsilon do not run; the small shares are cut for every item alike."""
        frame, epsilon = self._frame, self._frame.settings.epsilon
        if epsilon == 0 or compiling():
            return
        self._p = frame.operate("snap", self._p, epsilon, 1 - epsilon)
        # Looking ends a stretch: whatever will be read after it is better asked for now
        frame.settle(self._p, alive)
        self.then, self.orelse = frame.machine.ask(self._p, sides)

    def turn(self, *state: Any) -> tuple:
        """From the end of `then` to the beginning of `else`: the state before the `if` again."""
        if self._p is None:
            return state
        state, self._state = self._state, state
        if self._leaving:
            self._then_mass, self._frame.mass = self._frame.mass, self._else_mass
        elif self._chooses:
            self._frame.enter(self._p, False, self._around)
        return state

    def join(self, *state: Any) -> tuple:
        """After both sides: the mixture of what they left. Takes and returns the variables that are used later."""
        if self._p is not None:
            self._frame.inside = self._around
            state = self._joined(state)
        return state if self._soft is None else softened(state, self._soft)

    def _joined(self, state: tuple) -> tuple:
        frame, p, before = self._frame, self._p, self._state[: len(state)]
        if self._leaving:
            then, other = self._then_mass, frame.mass
            if not (self.then and then is not self._first_mass) and not (self.orelse and other is not self._else_mass):
                # Nobody has left, and the cut share of a side that did not run stays
                frame.mass = self._mass
            elif not (self.then and self.orelse):
                frame.mass = then if self.then else other
            elif then is None or other is None:
                frame.mass = other if then is None else then
                return state if then is None else before
            else:
                frame.mass = then + other
                p = share(then, frame.mass)
        if not self.then or not self.orelse:
            return before if self.then else state
        triples = zip(before, state, self._names, strict=False)
        return tuple([merged(p, then, other, name, self._chooses) for then, other, name in triples])


class Loop:
    """One `while`, or a `for` that may be left early.

    `goes` decides whether another iteration runs, `next` ends one, `skip` and `leave` are `continue` and `break`,
    `finish` gives the state of those that left by the condition, `end` that of all.
    """

    def __init__(self, frame: Any, line: int, names: tuple[str, ...], keep: int, returns: bool):
        self._frame = frame
        self._line = line
        self._names = names
        self._keep = keep
        self._returns = returns
        self._outer, frame.mass = frame.mass, 1.0
        self._outer_base = frame.base
        frame.base = frame.base if self._outer == 1.0 else self._outer * frame.base
        self._normal = Mixture(names[:keep])
        self._breaks = Mixture(names[:keep])
        self._skipped = Mixture(names)
        self._before: tuple = ()
        self._iterations = 0
        #: Who is still in the loop; None: everybody.
        self._live: Value | None = None
        #: A probability by which the loop is left: what it assigns is smooth afterwards, however soon everybody has left.
        self._decided: Value | None = None
        self._looked = (*frame.machine.clock(), 0)

    @property
    def over(self) -> bool:
        """Whether no item has probability left in the loop."""
        return self._frame.mass is None or not self._goes_on(bounded=False)

    def goes(self, test: Any, *state: Any) -> bool:
        """The condition of a `while` at this state: the share that leaves is collected, the rest goes on."""
        frame = self._frame
        if frame.mass is None:
            return False
        if smooth_kind(test):
            self._decided = as_value(test)
            if self._returns:
                frame.forked = self._decided
            test = frame.decide(test)
        if smooth_kind(test):
            p, before = as_value(test), frame.mass
            goes = self._goes_on(p if before == 1.0 else before * p, before, state)
        else:
            goes = bool(test) and self._goes_on()
        if goes:
            self._before = state
            self._iterations += 1
        return goes

    def _goes_on(self, mass: Any = None, before: Any = None, state: tuple = (), bounded: bool = True) -> bool:
        """Whether any of this mass (of all that is in the loop) stays for another iteration; what was there `before` and does
        not leaves with the state. A `for` has bounds of its own."""
        frame = self._frame
        mass = frame.mass if mass is None else mass
        if not isinstance(mass, Value):
            return True
        if bounded and self._iterations >= frame.settings.max_iterations:
            self._warn(mass)
            return False
        mass, alive = self._cut(mass)
        if before is not None:
            self._normal.add(before - mass, state[: self._keep])
        if alive is None:
            alive = self._look(mass, state)
        frame.mass = mass if alive else None
        return alive

    def _cut(self, mass: Value) -> tuple[Value, bool | None]:
        """Without masses below epsilon, for each item by itself; and whether any is left, None where `_look` has to tell."""
        # Whether or not anything is dropped this time: an item's result must not depend on when the others leave
        self._frame.dropped = self._frame.dropped or self._returns
        if compiling():
            if not self._frame.settings.bounded:
                raise RuntimeError(
                    f"the loop in line {self._line} ends by its probability mass, which torch.compile cannot look at; give "
                    "max_iterations to unroll it that often, or compile the parts around."
                )
            return mass, True
        mass, self._live, alive = self._frame.machine.leave(mass, self._frame.settings.epsilon, self._iterations)
        return mass, alive

    def _look(self, cut: Value, state: tuple) -> bool:
        """Whether any mass is left in the loop, or it is too early to look."""
        machine = self._frame.machine
        first, length = machine.clock()
        since, before, iterations = self._looked
        if first == since and length - before < LONG_ENOUGH and self._iterations - iterations < PATIENCE:
            return True
        masses = (self._normal.mass, self._breaks.mass, self._skipped.mass)
        machine.settle(cut, state, self._before, masses, self._normal.values(), self._breaks.values())
        self._looked = (*machine.clock(), self._iterations)
        return machine.ask(cut, any_left)

    def next(self, *state: Any) -> tuple:
        """The end of an iteration: those that `continue`d join those that came to the end."""
        if self._skipped.mass is not None:
            state = self._with(self._skipped, state, True)
            self._skipped = Mixture(self._names)
        if self._live is not None and self._before:
            # Items that have left keep the state they had: it could otherwise run to infinity, and 0 * inf is not 0
            state = kept(self._live, state, self._before)
        return state

    def advance(self, *state: Any) -> tuple:
        """`next` for a `for` loop, which has no condition to count iterations."""
        self._before = ()
        self._iterations += 1
        return self.next(*state)

    def skip(self, *state: Any) -> None:
        """`continue`."""
        if self._frame.mass is not None:
            self._skipped.add(self._frame.mass, state)
            self._frame.mass = None

    def leave(self, *state: Any) -> None:
        """`break`."""
        mass = self._frame.mass
        if mass is not None:
            if isinstance(mass, Value):
                self._decided = mass
            self._breaks.add(mass, state[: self._keep])
            self._frame.mass = None

    def finish(self, *state: Any) -> tuple:
        """After the last iteration: the mixed state of those that left by the condition, which `else` goes on with."""
        if self._normal.mass is not None:
            # With neither `break` nor `return` all mass leaves here: the weights sum to one by construction
            whole = self._breaks.mass is None and not self._returns
            state = self._with(self._normal, state, not whole)
            if whole:
                self._frame.mass = 1.0
        return state

    def end(self, *state: Any) -> tuple:
        """After `finish` (and `else`): with those that broke."""
        frame = self._frame
        if self._breaks.mass is not None:
            state = self._with(self._breaks, state, self._returns)
            if not self._returns:
                frame.mass = 1.0
        if self._decided is not None:
            state = softened(state, self._decided)
        frame.base = self._outer_base
        if frame.mass is not None and self._outer != 1.0:
            frame.mass = self._outer if frame.mass == 1.0 else frame.mass * self._outer
        frame.report.add(self._line, self._iterations)
        return state

    def _with(self, others: Mixture, state: tuple, normalise: bool) -> tuple:
        """The state mixed with those of others, who are here again."""
        if self._frame.mass is not None:
            others.add(self._frame.mass, state)
        self._frame.mass = others.mass
        return others.result(normalise)

    def _warn(self, left: Value) -> None:
        if compiling():
            return
        self._frame.mark_unrecordable()
        mass = unwrapped(left.tensor).detach()
        most = float(mass.max()) if mass.numel() else 0.0
        frame = self._frame
        if most > frame.settings.epsilon:
            frame.report.left(self._line, left.bare.detach())
            message = (
                f"{frame.name}: the loop in line {self._line} of {frame.file} stopped after {self._iterations} "
                f"iterations with a probability of up to {most:.3g} still inside; raise max_iterations or the steepness."
            )
            # At the user's own line, however deep we are below it
            warnings.warn_explicit(message, RuntimeWarning, frame.file, self._line)


def any_left(mass: Tensor) -> bool:
    """Whether any item has mass left."""
    return bool((mass > 0).any())


def sides(p: Tensor) -> tuple[bool, bool]:
    """Which sides of a branch have probability; at least one of them is run."""
    then = not bool((p == 0).all())
    return then, not bool((p == 1).all()) or not then

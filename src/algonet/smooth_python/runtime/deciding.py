"""Who takes the decisions of a run: a coin per particle, a list of answers, or the numbers themselves."""

from __future__ import annotations

import inspect
from typing import Any

from ..machine.credit import Coin
from ..machine.eager import as_value
from ..machine.values import Value


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
        #: How many decisions had two ways.
        self.open = 0

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

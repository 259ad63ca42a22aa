"""Which coins a result depends on, part by part: the others take no credit for it.

A recorded run of particles is a graph of instructions, some of which draw coins. A result is a sum of terms (costs that add
up, say), and a term depends on the coins that its row can be traced back to. The gradient of a mean, E[t d log P], needs for
each term t the probabilities P of these coins alone: all others are independent noise. Where a term depends on a coin only by
a choice between two numbers that know nothing of it, the choice is replaced by its mean p a + (1 - p) b, and the coin is gone
(Rao and Blackwell). Both are exact; what is found is recorded behind the program, so that a replay has it for free.
"""

from __future__ import annotations

from functools import reduce
from itertools import chain, islice
from operator import or_
from typing import Any, NamedTuple

from ..operation import TABLE
from .tape import TapeMachine
from .values import Value

#: How many terms a result is taken apart into at most, and how many steps the search for what two ways have in common takes.
TERMS, STEPS = 4096, 64
#: Choices inside of choices that are looked into.
NESTED = 32
#: Factors of a term that are looked into for a last choice.
DEPTH = 8
#: Terms with coins of their own that results have on average, and instructions for each of them: terms beyond share coins.
GROUPS, INSTRUCTIONS_PER_GROUP = 4, 256


class Coin(NamedTuple):
    """A coin: the row that drew it (its value has another one where a later stretch takes it in), and the logarithms of the
    probabilities of all that was shown so far, summed up."""

    row: int | None
    score: Value


def credit(tape: Any, results: list[Any], coins: list[Coin], expected: bool) -> tuple[Value, list[int]] | None:
    """Results that are single numbers as sums: their terms and then as many scores as one vector, and how many terms each has;
    None where the run is not on the tape."""
    if not isinstance(tape, TapeMachine) or not coins or any(coin.row is None for coin in coins):
        return None
    graph = _Graph(tape, coins, expected)
    rows = [graph.row(result) for result in results]
    limit = max(GROUPS * len(rows), graph.length // INSTRUCTIONS_PER_GROUP) // len(rows)
    terms: list[int] = []
    scores: list[int] = []
    counts = []
    for row in rows:
        groups = graph.groups(graph.terms(row), limit)
        counts.append(len(groups))
        terms += [term for term, _ in groups]
        scores += [graph.score(coins_of) for _, coins_of in groups]
    return Value(None, True, tape, [tape.at(row) for row in terms + scores]), counts


class _Graph:
    """The instructions of the present stretch of a tape; rows are counted from its beginning.

    `deps` has a bit for each coin that a row depends on; bit 0 stands for all coins of earlier stretches together.
    """

    def __init__(self, tape: TapeMachine, coins: list[Coin], expected: bool):
        self._tape = tape
        self._code = [*tape.code]
        here = {(coin.row or 0) - tape.first: coin.score for coin in coins if (coin.row or 0) >= tape.first}
        before = [0.0, *(coin.score for coin in coins[: len(coins) - len(here)])]
        self._p = {row: self._code[row][1] for row in here}
        self._bits = {row: 2 << k for k, row in enumerate(here)}
        # The scores of coins by their bit, summed up
        self._summed = [before[-1], *here.values()]
        self._shown = list(here)
        self._earlier = bool(tape.stretches)
        self._names = [*TABLE]
        self._reads = [instruction.rows for instruction in TABLE.values()]
        self._scores: dict[int, int] = {}
        self._nested = 0
        self._parts: dict[int, dict[int, float] | None] = {}
        self.deps: list[int] = []
        self._trace()
        self.length = len(self.deps)
        #: Coins over which means are taken: all, or those that decide no other one.
        self._averaged = -1 if expected else ~reduce(or_, map(self.deps.__getitem__, self._p.values()), 0)

    def row(self, x: Value | float) -> int:
        row = self._tape.row(x)
        if row is None:
            raise RuntimeError("a number of a recorded run is not on its tape.")
        self._trace()
        return row

    # -- the graph

    def _trace(self) -> None:
        """Extend `deps` to the end of the tape."""
        code, deps = self._code, self.deps
        lacking = len(self._tape.code) - len(code)
        code += [*islice(reversed(self._tape.code), lacking)][::-1]
        for row in range(len(deps), len(code)):
            number, *operands = code[row]
            reads = self._reads[number] if number < len(self._reads) else 1
            found = self._bits.get(row, 0)
            for operand in operands[:reads]:
                found |= deps[operand]
            if self._earlier and self.name(row) == "input":
                found |= 1
            deps.append(found)

    def name(self, row: int) -> str:
        code = self._code[row][0]
        return self._names[code] if code < len(self._names) else ""

    def _emit(self, name: str, *rows: int) -> int:
        row = self._tape.emit(name, *rows)
        self._trace()
        return row

    def _number(self, row: int) -> float | None:
        return [*self._tape.constants][self._code[row][1]] if self.name(row) == "const" else None

    # -- sums

    def terms(self, row: int) -> list[int]:
        """Rows whose sum is this one, each with as few coins as it can have."""
        open_, found = {row: 1.0}, []
        while open_:
            if len(open_) + len(found) > TERMS:
                found += [self._scaled(r, c) for r, c in open_.items()]
                break
            last = max(open_)
            factor = open_.pop(last)
            parts = self._expanded(last)
            if parts is None:
                found.append(self._scaled(self._mean(last, 0), factor))
                continue
            # What was recorded for this purpose is a term
            found += [self._scaled(part, factor * share) for part, share in parts.items() if part >= self.length]
            _added(open_, {part: share for part, share in parts.items() if part < self.length}, factor)
        return found

    def _expanded(self, row: int) -> dict[int, float] | None:
        """A row as a sum of others with factors; None for one that is no sum, or has no coins."""
        if row not in self._parts:
            self._nested += 1
            self._parts[row] = self._expand(row) if self.deps[row] and self._nested <= NESTED else None
            self._nested -= 1
        return self._parts[row]

    def _expand(self, row: int) -> dict[int, float] | None:
        name, (_, a, b, c) = self.name(row), self._code[row]
        if name in ("add", "sub"):
            return _added({a: 1.0}, {b: 1.0}, 1.0 if name == "add" else -1.0)
        if name == "neg":
            return {a: -1.0}
        if name == "mul":
            left, right = self._number(a), self._number(b)
            return {b: left} if left is not None else {a: right} if right is not None else None
        if name == "truediv":
            divisor = self._number(b)
            return {a: 1.0 / divisor} if divisor else None
        if name == "accumulate":
            return _added({a: 1.0}, {self._mean(self._emit("mul", b, c), 0): 1.0})
        if name == "select":
            return self._choice(a, b, c)
        return None

    def _choice(self, test: int, then: int, other: int) -> dict[int, float] | None:
        """A choice between two sums as what they have in common, and the choice between the rest."""
        one, two, common, closed = {then: 1.0}, {other: 1.0}, {}, set()
        for _ in range(STEPS):
            for row in [r for r in one if one[r] == two.get(r)]:
                common[row] = one.pop(row)
                two.pop(row)
            last = max((r for r in (*one, *two) if not (r in one and r in two) and r not in closed), default=None)
            if last is None:
                break
            way, rest = (one, two) if last in one else (two, one)
            # Constants are nothing to meet further down
            if not any(r < last and self.name(r) != "const" for r in rest):
                break
            parts = self._expanded(last)
            if parts is None:
                closed.add(last)
                continue
            _added(way, parts, way.pop(last))
        if not common:
            found = self._mean_choice(test, then, other, 0)
            return None if found is None else {found: 1.0}
        rest = [self._total(way) for way in (one, two)]
        found = self._mean_choice(test, rest[0], rest[1], 0)
        if found is None:
            found = self._emit("select", test, *rest)
        return _added(common, {found: 1.0})

    def _total(self, parts: dict[int, float]) -> int:
        found = None
        for row, factor in parts.items():
            term = self._scaled(row, factor)
            found = term if found is None else self._emit("add", found, term)
        return self.row(0.0) if found is None else found

    def _scaled(self, row: int, factor: float) -> int:
        if factor == 1.0:
            return row
        return self._emit("neg", row) if factor == -1.0 else self._emit("mul", row, self.row(factor))

    # -- means over last coins

    def _mean(self, row: int, around: int, depth: int = DEPTH) -> int:
        """The mean of a row over the coins that only its own last choices know of; `around` are those of its factors."""
        if not depth or not self.deps[row] & self._averaged & ~around:
            return row
        name, (_, a, b, c) = self.name(row), self._code[row]
        if name == "coin":
            return self._p[row] if self._bits[row] & self._averaged & ~around else row
        if name == "select":
            found = self._mean_choice(a, b, c, around, depth - 1)
            return row if found is None else found
        if name in ("add", "sub"):
            one, two = self._mean(a, around, depth - 1), self._mean(b, around, depth - 1)
        elif name == "mul":
            one = self._mean(a, around | self.deps[b], depth - 1)
            two = self._mean(b, around | self.deps[one], depth - 1)
        elif name == "neg":
            one, two = self._mean(a, around, depth - 1), b
        else:
            return row
        return row if (one, two) == (a, b) else self._emit(name, one, two)

    def _mean_choice(self, test: int, then: int, other: int, around: int, depth: int = DEPTH) -> int | None:
        """The mean of a choice over its coin, and over those of what is chosen; None where that is the choice itself."""
        bit = self._bits.get(test)
        last = bit is not None and bit & self._averaged & ~(around | self.deps[then] | self.deps[other])
        p = self._p[test] if last else test
        one, two = (self._mean(row, around | self.deps[p], depth - 1) for row in (then, other))
        if last:
            return self._emit("expect", p, one, two)
        return None if (one, two) == (then, other) else self._emit("select", test, one, two)

    # -- scores

    def groups(self, terms: list[int], limit: int) -> list[tuple[int, int]]:
        """(row, coins) of sums of terms with the same coins; neighbours share theirs where there are more than the limit."""
        by_coins: dict[int, list[int]] = {}
        for term in terms:
            by_coins.setdefault(self.deps[term], []).append(term)
        ordered = sorted(by_coins.items())
        size = -(-len(ordered) // max(limit, 1))
        found = []
        for k in range(0, len(ordered), size):
            coins, rows = zip(*ordered[k : k + size], strict=True)
            found.append((self._total(dict.fromkeys(chain(*rows), 1.0)), reduce(or_, coins)))
        return found or [(self.row(0.0), 0)]

    def score(self, coins: int) -> int:
        """The row of the logarithms of the probabilities of what these coins showed, summed up."""
        if coins not in self._scores:
            self._scores[coins] = self._score(coins)
        return self._scores[coins]

    def _score(self, coins: int) -> int:
        if not coins:
            return self.row(0.0)
        last = coins.bit_length() - 1
        everything = (2 << last) - (1 if self._earlier else 2)
        if coins == everything:
            return self.row(self._summed[last])
        # The largest set that is known already, and what it lacks
        known = max((k for k in self._scores if k and not k & ~coins), key=int.bit_count, default=0)
        lacking = coins & ~known
        if lacking.bit_count() > len(self._shown) // 2:
            # Too many by themselves: those in between come along, and add nothing but noise
            return self.score(everything)
        parts = {self._scores[known]: 1.0} if known else {}
        while lacking:
            k = lacking.bit_length() - 1
            lacking ^= 1 << k
            if k:
                shown = self._shown[k - 1]
                parts[self._emit("tally", self.row(0.0), self._p[shown], shown)] = 1.0
            else:
                # All coins of earlier stretches
                parts[self.row(self._summed[0])] = 1.0
        return self._total(parts)


def _added(total: dict[int, float], parts: dict[int, float], factor: float = 1.0) -> dict[int, float]:
    """A sum of rows with factors, and as much of another one; rows that come to nothing are gone."""
    for row, share in parts.items():
        total[row] = total.get(row, 0.0) + factor * share
        if not total[row]:
            del total[row]
    return total

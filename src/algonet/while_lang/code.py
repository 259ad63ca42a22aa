"""Flat code: what the interpreters run and the compiler reads. One operation after the other, loops by jumps.

Variables become slots 0, 1, 2, ... Neighbouring increments of one variable are one operation, unless each has parameters.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from algonet.core.cache import cached

from .sugar import desugar
from .syntax import Copy, Decrement, Increment, Program, While, walk


class Op(NamedTuple):
    """One operation.

    "copy": slot `target` takes slot `argument`. "add": slot `target` grows by the number `argument`. "while": tests slot
    `target`; `argument` is the index of its "end". "end": `argument` is the index of its "while".
    """

    kind: str
    target: int
    argument: int


@dataclass(frozen=True)
class Code:
    """A core program, flat. `names[slot]` is the variable's name; `text` encodes everything and decodes to an equal code.

    `lines[i]` is the source line of operation i; it is not part of the text.
    """

    ops: tuple[Op, ...]
    names: tuple[str, ...]
    lines: tuple[int, ...] = ()

    #: Variable -> its slot.
    slots: dict[str, int] = field(init=False, repr=False, compare=False)
    #: The indices of the "while" operations, in order: loop k is the k-th.
    loops: tuple[int, ...] = field(init=False, repr=False, compare=False)
    #: Index of a "while" operation -> its number among the loops.
    loop_numbers: dict[int, int] = field(init=False, repr=False, compare=False)
    #: Index of an assignment -> its number among the assignments: which weight and bias it has when trainable.
    assignments: dict[int, int] = field(init=False, repr=False, compare=False)
    #: How many loops lie inside each other at most.
    depth: int = field(init=False, repr=False, compare=False)
    #: Everything but the lines; `decode` reads it.
    text: str = field(init=False, repr=False, compare=False)

    def __post_init__(self):
        # At once, and not as cached properties: before Python 3.12 those take a lock, which torch.compile cannot trace
        loops = tuple(i for i, op in enumerate(self.ops) if op.kind == "while")
        listed = [i for i, op in enumerate(self.ops) if op.kind in ("copy", "add")]
        derived = {
            "slots": {name: slot for slot, name in enumerate(self.names)},
            "loops": loops,
            "loop_numbers": {index: number for number, index in enumerate(loops)},
            "assignments": {index: number for number, index in enumerate(listed)},
            "depth": _depth(self.ops),
            "text": _encode(self.ops, self.names),
        }
        for name, value in derived.items():
            object.__setattr__(self, name, value)


def _depth(ops: tuple[Op, ...]) -> int:
    depth = most = 0
    for op in ops:
        depth += {"while": 1, "end": -1}.get(op.kind, 0)
        most = max(most, depth)
    return most


def _encode(ops: tuple[Op, ...], names: tuple[str, ...]) -> str:
    short = {"copy": "c", "add": "a", "while": "w", "end": "e"}
    words = [
        f"{short[op.kind]}{op.target},{op.argument}" if op.kind in ("copy", "add") else f"{short[op.kind]}{op.target}"
        for op in ops
    ]
    return f"{' '.join(names)}:{' '.join(words)}"


def flatten(program: Program, *, merge: bool = True) -> Code:
    """Desugar and flatten. `merge=False` keeps every increment by itself, as trainable programs need."""
    core = desugar(program)
    numbers = core.all_variables
    slots = {number: slot for slot, number in enumerate(numbers)}
    ops: list[Op] = []
    lines: list[int] = []
    opened: list[int] = []
    for event, statement in walk(core.body):
        lines.append(statement.line)
        if event == "open" and isinstance(statement, While):
            opened.append(len(ops))
            ops.append(Op("while", slots[statement.variable], -1))
        elif event == "close" and isinstance(statement, While):
            start = opened.pop()
            ops.append(Op("end", ops[start].target, start))
            ops[start] = ops[start]._replace(argument=len(ops) - 1)
        elif isinstance(statement, Copy):
            ops.append(Op("copy", slots[statement.target], slots[statement.source]))
        elif isinstance(statement, (Increment, Decrement)):
            step = 1 if isinstance(statement, Increment) else -1
            last = ops[-1] if ops else None
            if merge and last is not None and last.kind == "add" and last.target == slots[statement.target]:
                ops[-1] = last._replace(argument=last.argument + step)
                lines.pop()
            else:
                ops.append(Op("add", slots[statement.target], step))
    return Code(tuple(ops), tuple(f"x{number}" for number in numbers), tuple(lines))


@cached(most=256)
def decode(text: str) -> Code:
    """The code whose `text` this is (without source lines)."""
    names, _, body = text.partition(":")
    ops: list[Op] = []
    opened: list[int] = []
    for word in body.split():
        kind, rest = word[0], word[1:]
        if kind in "ca":
            target, argument = map(int, rest.split(","))
            ops.append(Op("copy" if kind == "c" else "add", target, argument))
        elif kind == "w":
            opened.append(len(ops))
            ops.append(Op("while", int(rest), -1))
        else:
            start = opened.pop()
            ops.append(Op("end", int(rest), start))
            ops[start] = ops[start]._replace(argument=len(ops) - 1)
    return Code(tuple(ops), tuple(names.split()))


def read_first(code: Code, outputs: Iterable[int]) -> frozenset[int]:
    """The slots that the crisp program reads before it writes them: what it needs to be given to find `outputs`."""
    # Live variables, backwards; before a loop also what a further turn reads, until nothing new is found
    at_loop: dict[int, set[int]] = {start: set() for start in code.loops}
    while True:
        known = sum(map(len, at_loop.values()))
        live = set(outputs)
        for index in range(len(code.ops) - 1, -1, -1):
            kind, target, argument = code.ops[index]
            if kind == "copy" and target in live:
                live = live - {target} | {argument}
            elif kind == "end":
                at_loop[argument] |= live | {target}
                live = set(at_loop[argument])
            elif kind == "while":
                at_loop[index] |= live
                live = set(at_loop[index])
        if sum(map(len, at_loop.values())) == known:
            return frozenset(live)

"""Random smooth programs, and all the ways to run one.

A program is a tree of statements, so that a failing one shrinks: statements go, blocks take the place of what surrounds
them.
"""

from __future__ import annotations

import importlib.util
import random
import tempfile
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

NAMES = ("a", "b", "c")
POINTS = [(0.31, -0.72, 1.13), (-1.41, 0.27, 0.65), (2.23, 1.77, -0.58), (-0.19, -1.37, -2.11), (6.5, -7.3, 0.4)]
SOFT = 2.0
HEAD = """import math
import torch
from algonet.smooth_python import smooth

OUTSIDE = torch.tensor(0.4, dtype=torch.float64)
TABLE = [0.5, -0.25, 0.125]


@smooth
def helper(x, y):
    if x > y + 0.3:
        return x - y
    return 0.5 * y


@smooth
def program(a, b, c, v, m):
    w = [a, b, 0.5]
    u = v * 0.5
    g = [[a, 0.5], [c, b]]
    t = {(0, 1): a, ("far", 0): 0.25}
    n = 0
"""


class Row(list):
    """A vector, or a matrix of rows, for plain Python: parts of a tensor would be views, and change with it."""

    def __add__(self, other: Any) -> Row:
        return Row(x + y for x, y in zip(self, _repeated(other, self), strict=True))

    def __mul__(self, other: Any) -> Row:
        return Row(x * other for x in self)

    def __getitem__(self, place: Any) -> Any:
        return self[place[0]][place[1]] if isinstance(place, tuple) else super().__getitem__(place)

    def __setitem__(self, place: Any, value: Any) -> None:
        if isinstance(place, tuple):
            self[place[0]][place[1]] = value
        else:
            super().__setitem__(place, value)

    def sum(self) -> Any:
        return sum(x.sum() if isinstance(x, Row) else x for x in self)


def _repeated(x: Any, like: Row) -> Any:
    return x if isinstance(x, Row) and isinstance(x[0], Row) == isinstance(like[0], Row) else [x] * len(like)


@dataclass
class Statement:
    """A line, the block below it, and its `else` block."""

    text: str
    body: list[Statement] = field(default_factory=list)
    orelse: list[Statement] = field(default_factory=list)

    def lines(self, indent: int) -> Iterator[str]:
        yield "    " * indent + self.text
        for statement in self.body:
            yield from statement.lines(indent + 1)
        if self.orelse:
            yield "    " * indent + "else:"
            for statement in self.orelse:
                yield from statement.lines(indent + 1)


def source(program: list[Statement]) -> str:
    return HEAD + "\n".join(line for statement in program for line in statement.lines(1)) + "\n"


class Writer:
    """A random function of three numbers, a vector and a matrix. Every loop is bounded by a counter, no comparison ties at
    the test's points."""

    def __init__(self, seed: int):
        self.random = random.Random(seed)
        self.counters = 0
        self.program = self.block(0, in_loop=False, size=4)
        self.program.append(
            Statement(
                f"return {self.value()}, {self.value()}, w[0] + 2 * w[2] + u[1] + g[0][1] - g[1][0] + t[0, 1], v, m"
            )
        )

    def number(self, bound: float = 1.0) -> float:
        return round(self.random.uniform(-bound, bound), 3) + 0.0000171

    def place(self) -> str:
        """A part of a vector or a matrix."""
        row, column = self.random.randrange(-2, 2), self.random.randrange(-3, 3)
        key = self.random.choice(("0, 1", "'far', 0"))
        return self.random.choice(
            (
                f"v[{column}]",
                f"v[{column}]",
                f"m[{row}][{column}]",
                f"m[{row}, {column}]",
                f"g[{row}][{row}]",
                f"t[{key}]",
            )
        )

    def value(self) -> str:
        pick, number = self.random.choice, self.number()
        return pick(
            (
                f"{pick(NAMES)} * 0.5 + {number}",
                f"{pick(NAMES)} - {pick(NAMES)} * 0.3",
                f"max({pick(NAMES)} + 0.0113, {pick(NAMES)})",
                f"({pick(NAMES)} if {self.test()} else {number})",
                f"(helper({pick(NAMES)}, {pick(NAMES)}) if {self.test()} else {number})",
                f"w[{self.random.randrange(-3, 3)}] + {number}",
                f"abs({pick(NAMES)} - {number}) - 0.7",
                f"helper({pick(NAMES)}, {number})",
                f"{pick(NAMES)} / (1.5 + {pick(NAMES)} * {pick(NAMES)} * 0.1)",
                f"math.exp(-abs({pick(NAMES)})) * OUTSIDE",
                f"{pick(NAMES)} * 0.3 * math.sqrt(OUTSIDE)",
                f"w[n] * 0.9 + {number}",
                f"TABLE[n % 3] + {pick(NAMES)} * 0.5",
                f"sum(w) * 0.3 - {pick(NAMES)} * 0.2",
                f"{self.place()} * 0.5 + {number}",
                f"u[{self.random.randrange(3)}] + {self.place()} * 0.3",
                f"{pick(('v', 'u', 'm'))}.sum() * 0.1",
                "sum(g[0]) * 0.2",
                "max(t.values()) * 0.3",
                f"{number}",
            )
        )

    def test(self) -> str:
        pick, number = self.random.choice, round(self.random.uniform(-1.5, 1.5), 5) + 0.0000171
        simple = f"{pick(NAMES)} {pick('<>')} {number}"
        return pick(
            (
                simple,
                simple,
                f"{pick(NAMES)} > {pick(NAMES)} * 0.71 + {number}",
                f"w[{self.random.randrange(3)}] < {number}",
                f"{self.place()} < {number}",
                f"{simple} and {pick(NAMES)} > {number / 3}",
                f"{simple} or not {pick(NAMES)} > {number / 3}",
                f"{number} < {pick(NAMES)} < {number + 1.2}",
                f"{pick(NAMES)} > {number + 4.0}",
            )
        )

    def block(self, depth: int, in_loop: bool, size: int) -> list[Statement]:
        return [self.statement(depth, in_loop) for _ in range(self.random.randint(1, size))]

    def statement(self, depth: int, in_loop: bool) -> Statement:
        kinds = ["assign", "assign", "write", "store", "part", "part", "vector"] + (
            ["if", "if", "while", "for", "each"] if depth < 3 else []
        )
        kind = self.random.choice(kinds)
        if kind == "assign":
            return Statement(f"{self.random.choice(NAMES)} = {self.value()}")
        if kind == "write":
            return Statement(f"w[{self.random.randrange(-3, 3)}] = {self.value()}")
        if kind == "part":
            return Statement(f"{self.place()} = {self.value()}")
        if kind == "vector":
            pick, name, number = self.random.choice, self.random.choice(NAMES), self.number()
            lines = (
                f"v = v * 0.5 + {name}",
                f"v = m[1] * 0.5 + {number}",
                f"m = m * 0.9 + {name}",
                f"u = v * {number}",
            )
            return Statement(pick((*lines, f"m[{self.random.randrange(2)}] = u * 0.7 + v", f"u = u * 0.5 + {name}")))
        if kind == "store":
            return Statement(f"w[{self.random.randrange(3)}] += {self.value()} * 0.3")
        if kind == "if":
            orelse = self.inside(depth, in_loop) if self.random.random() < 0.6 else []
            return Statement(f"if {self.test()}:", self.inside(depth, in_loop), orelse)
        return self.loop(kind, depth)

    def loop(self, kind: str, depth: int) -> Statement:
        self.counters += 1
        counter = f"k{self.counters}"
        body = self.block(depth + 1, True, 3)
        orelse = self.block(depth + 1, False, 2) if self.random.random() < 0.3 else []
        if kind == "while":
            # One statement, so that nothing can take the counter away
            most = 3
            if depth == 0 and self.random.random() < 0.5:
                # Recorded loops look at their mass after eight iterations: some go on for longer, with a body without loops
                most, body = 9, self.block(3, True, 3)
            text = f"{counter} = 0\n" + "@" + f"while {counter} < {most} and ({self.test()}):"
            return Statement(text, [Statement(f"{counter} += 1"), *body], orelse)
        if kind == "each":
            number = self.random.randrange(3)
            write = Statement(f"w[{number}] = w[{number}] * 0.5 + e{self.counters} * 0.25")
            return Statement(f"for {counter}, e{self.counters} in enumerate(w):", [write, *body], orelse)
        return Statement(f"for {counter} in range({self.random.randint(1, 3)}):", body, orelse)

    def inside(self, depth: int, in_loop: bool) -> list[Statement]:
        found = self.block(depth + 1, in_loop, 2)
        way_out = self.random.random()
        if in_loop and way_out < 0.25:
            found.append(Statement(self.random.choice(("break", "continue"))))
        elif way_out > 0.88:
            found.append(Statement(f"return {self.value()}, {self.value()}, 3.5, v, m"))
        return found


def load(text: str, folder: Path, number: int) -> Any:
    """The module of a program; its text must be in a file for @smooth to read."""
    lines = []
    for line in text.split("\n"):
        indent = len(lines[-1]) - len(lines[-1].lstrip()) if lines else 0
        lines.append(" " * indent + line[1:] if line.startswith("@while") else line)
    file = folder / f"program_{number}.py"
    file.write_text("\n".join(lines))
    spec = importlib.util.spec_from_file_location(f"random_smooth_program_{number}", file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


# -- the ways to run one


def columns(shift: float = 0.0) -> list[torch.Tensor]:
    """Three numbers, a vector and a matrix for each item."""
    points = torch.tensor(POINTS, dtype=torch.float64) + shift
    vectors = points * 0.77 - 0.113
    return [*points.unbind(1), vectors, torch.stack([vectors.flip(1) + 0.41, vectors.roll(1, 1) * 0.5], 1)]


def slopes(call: Callable, inputs: list[torch.Tensor]) -> list[torch.Tensor]:
    """The results of a call, and the gradients of a functional of them."""
    leaves = [x.clone().requires_grad_() for x in inputs]
    found = call(*leaves)
    score = sum((value * (k + 1)).sum() for k, value in enumerate(found))
    moved = torch.autograd.grad(score, leaves, allow_unused=True) if score.requires_grad else [None] * len(leaves)
    gradients = [torch.zeros_like(x) if m is None else m for m, x in zip(moved, leaves, strict=True)]
    return [*(torch.as_tensor(f).detach() for f in found), *gradients]


def soft(module: Any, **options: Any) -> Callable:
    return lambda *x: module.program(*x, batched=True, steepness=SOFT, **options)


def _close(found: list[torch.Tensor], wanted: list[torch.Tensor], tolerance: float = 1e-5) -> str | None:
    for k, (one, other) in enumerate(zip(found, wanted, strict=True)):
        # Masses below epsilon (1e-6) are dropped at other times where loops look at them less often
        if not torch.allclose(one, other, atol=tolerance, rtol=tolerance, equal_nan=True):
            return f"result {k}: {one.tolist()} instead of {other.tolist()}"
    return None


def curvatures(call: Callable, inputs: list[torch.Tensor]) -> list[torch.Tensor]:
    """Second derivatives of a functional of the results, along one direction."""
    leaves = [x.clone().requires_grad_() for x in inputs]
    score: Any = sum((value * (k + 1)).sum() for k, value in enumerate(call(*leaves)))
    first = [torch.zeros_like(x) for x in leaves]
    if score.requires_grad:
        first = torch.autograd.grad(score, leaves, create_graph=True, materialize_grads=True)
    along: Any = sum((x.cos() * slope).sum() for x, slope in zip(inputs, first, strict=True))
    if not along.requires_grad:
        return [torch.zeros_like(x) for x in leaves]
    return list(torch.autograd.grad(along, leaves, materialize_grads=True))


def _twice(module: Any) -> str | None:
    ways = (soft(module, backend="numba"), soft(module, backend="reference"))
    return _close(*(curvatures(way, columns()) for way in ways), 1e-4)


def _recorded(module: Any) -> str | None:
    return _close(
        slopes(soft(module, backend="numba"), columns()), slopes(soft(module, backend="reference"), columns())
    )


def _automatic(module: Any) -> str | None:
    return _close(slopes(soft(module), columns()), slopes(soft(module, backend="reference"), columns()))


def _replayed(module: Any) -> str | None:
    """Known programs on other numbers, with another tensor outside."""
    before = module.OUTSIDE.clone()
    try:
        for shift, outside in ((0.0, 0.4), (0.37, 0.9), (-0.81, 0.2)):
            module.OUTSIDE.fill_(outside)
            wanted = slopes(soft(module, backend="reference"), columns(shift))
            problem = _close(slopes(soft(module, backend="numba"), columns(shift)), wanted)
            if problem:
                return f"shift {shift}: {problem}"
    finally:
        module.OUTSIDE.copy_(before)
    return None


def _mapped(module: Any) -> str | None:
    mapped = torch.vmap(lambda *x: module.program(*x, steepness=SOFT))
    wanted = slopes(soft(module, backend="reference"), columns())
    return _close(slopes(mapped, columns()), wanted)


def _alone(module: Any) -> str | None:
    wanted = slopes(soft(module, backend="reference"), columns())
    for k, item in enumerate(zip(*columns(), strict=True)):
        found = slopes(lambda *x: module.program(*x, steepness=SOFT), list(item))
        problem = _close(found, [w[k] for w in wanted])
        if problem:
            return f"item {k}: {problem}"
    return None


def _threaded(module: Any) -> str | None:
    shifts = (0.0, 0.2, -0.4, 0.7)
    wanted = [slopes(soft(module, backend="reference"), columns(shift)) for shift in shifts]
    found: dict[int, Any] = {}

    def run(k: int) -> None:
        try:
            found[k] = slopes(soft(module), columns(shifts[k]))
        except Exception as problem:
            found[k] = problem

    threads = [threading.Thread(target=run, args=(k,)) for k in range(len(shifts))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for k, result in found.items():
        if isinstance(result, Exception):
            raise result
        problem = _close(result, wanted[k])
        if problem:
            return f"thread {k}: {problem}"
    return None


def _rows(x: Any) -> Any:
    return Row(map(_rows, x)) if x.dim() else float(x)


def _flat(x: Any) -> list[float]:
    return [number for part in x for number in _flat(part)] if isinstance(x, (tuple, list)) else [float(x)]


def _crisp(module: Any) -> str | None:
    """As Python runs it, at a steepness that leaves nothing in between."""
    outside = module.OUTSIDE
    # As a number: `w[2] += 1` on a list of tensors would change every variable that holds the same one
    module.OUTSIDE = float(outside)
    try:
        expected = [_flat(module.program.crisp(*map(_rows, item))) for item in zip(*columns(), strict=True)]
    finally:
        module.OUTSIDE = outside
    for options in ({}, {"backend": "reference"}, {"hard": True}):
        found = module.program(*columns(), batched=True, steepness=1e7, **options)
        found = [torch.as_tensor(f, dtype=torch.float64) for f in found]
        rows = torch.cat([f.expand(len(POINTS), *f.shape[1:]).reshape(len(POINTS), -1) for f in found], 1)
        problem = _close([rows], [torch.tensor(expected, dtype=torch.float64)], 1e-6)
        if problem:
            return f"{options}: {problem}"
    return None


WAYS: dict[str, Callable[[Any], str | None]] = {
    "crisp": _crisp,
    "recorded": _recorded,
    "twice": _twice,
    "automatic": _automatic,
    "replayed": _replayed,
    "mapped": _mapped,
    "alone": _alone,
    "threaded": _threaded,
}


class SmoothPrograms:
    """The target: a random program has one meaning, whichever way it runs."""

    name = "smooth programs"
    ways: tuple[str, ...] = tuple(WAYS)

    def draw(self, seed: int) -> list[Statement]:
        return Writer(seed).program

    def compare(self, case: list[Statement], way: str) -> str | None:
        with tempfile.TemporaryDirectory() as folder:
            return WAYS[way](load(source(case), Path(folder), random.getrandbits(48)))

    def smaller(self, case: list[Statement]) -> Iterator[list[Statement]]:
        return _smaller(case)

    def snippet(self, case: list[Statement], way: str) -> str:
        return source(case)


def _smaller(program: list[Statement]) -> Iterator[list[Statement]]:
    """The same program with one statement less, or with a block in the place of what surrounds it."""
    for k, statement in enumerate(program):
        rest = program[:k], program[k + 1 :]
        if not statement.text.startswith("return") or k + 1 < len(program):
            yield [*rest[0], *rest[1]]
        if statement.body:
            yield [*rest[0], *statement.body, *rest[1]]
        if statement.orelse:
            yield [*rest[0], Statement(statement.text, statement.body), *rest[1]]
        for body in _smaller(statement.body):
            if body:
                yield [*rest[0], Statement(statement.text, body, statement.orelse), *rest[1]]
        for orelse in _smaller(statement.orelse):
            yield [*rest[0], Statement(statement.text, statement.body, orelse), *rest[1]]

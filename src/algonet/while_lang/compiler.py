"""The compiler: from flat code to the arithmetic of one fused kernel, with tangents travelling forward.

A `KernelSpec` is a program, an exit and what to differentiate by. `lower` turns it into a structured list of
assignments between scalars (`x3 = p1 * x1 + (1.0 - p1) * x3`) and loops; the dialects in kernels/ only decide how to run
them over many elements. Tangents that are zero whatever the input are found first and never computed.
"""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

from .code import Code
from .operation import WhileSettings

#: Numbers kept per element (values and tangents); more tangents run in several passes.
MAX_KERNEL_STATE = 160
#: Directions by steepness, weights and biases that one kernel sums at once. With 8, programs of few weights take 3 times as
#: long, and all compile for longer.
SEEDS_AT_ONCE = 4


@dataclass(frozen=True)
class KernelSpec:
    """What a kernel computes.

    `slots` are the inputs to differentiate by: it stores values and tangents, and diagnostics if `watched`. With `seeds` it
    differentiates by so many mixtures of the `parameters` that all elements share, which it reads from its argument `seeds`
    (parameter, direction), so that one kernel serves all; it multiplies tangents by incoming gradients and sums over elements.
    """

    settings: WhileSettings
    slots: tuple[int, ...] = ()
    seeds: int = 0

    @cached_property
    def code(self) -> Code:
        return self.settings.code

    @property
    def directions(self) -> range:
        return range(self.seeds or len(self.slots))

    @property
    def watched(self) -> bool:
        return self.settings.watched and not self.seeds

    @property
    def arguments(self) -> list[str]:
        """What the kernel takes, in order: arrays and limits."""
        return [*self.arrays, "epsilon", "cap", "n"]

    @property
    def arrays(self) -> list[str]:
        """The kernel's arrays, in order. They are flat: element i's output j is at i * outputs + j, its tangent
        in direction d at the same place of the d-th slope; with `seeds`, `slopes` has a row per block."""
        return [
            *(f"in_{self.code.names[slot]}" for slot in self.settings.inputs),
            *(["steepness_in"] if self.scaled else []),
            *(["weight", "bias"] if self.settings.trainable else []),
            *(["seeds", "grads", "slopes"] if self.seeds else ["values"]),
            *(["diagnostics"] if self.watched else []),
            *(f"slope_{d}" for d in self.directions if not self.seeds),
        ]

    @property
    def parameters(self) -> list[str]:
        """What all elements share, by its names in the kernel."""
        numbers = self.code.assignments.values() if self.settings.trainable else ()
        return ["steepness", *(f"{kind}{n}" for kind in "wb" for n in numbers)]

    @property
    def seeded(self) -> dict[tuple[str, int], str]:
        """The numbers of the argument `seeds`, by the parameters and directions whose tangents they begin."""
        return {(p, d): f"seed{row}_{d}" for row, p in enumerate(self.parameters) for d in range(self.seeds)}

    @property
    def scaled(self) -> bool:
        """Whether the exit has a steepness at all."""
        return self.settings.exit.softness_field is not None


class Line(NamedTuple):
    """`target = expression`, for every element by itself. `smooth`: tangents follow it."""

    target: str
    expression: str
    smooth: bool = True


class Mark(NamedTuple):
    """What a loop at nesting `level` does besides.

    "ask": find out whether any element is `live`. "open": repeat up to the matching "close" while any is, and fewer than the
    cap of iterations were run.
    """

    kind: str
    level: int


Step = Line | Mark


def tangents_at_once(code: Code) -> int:
    """How many directions one kernel carries."""
    return max(1, min(16, MAX_KERNEL_STATE // (len(code.names) + code.depth) - 1))


def tangent(name: str, direction: int) -> str:
    """The name of the tangent of `name` in a direction."""
    return f"d{name}_{direction}"


def _values(spec: KernelSpec) -> list[Step]:
    """The program without tangents: p1, p2, ... are the probabilities by level, r1, ... the shares of branches' first parts."""
    code = spec.code
    steps: list[Step] = []

    def emit(target: str, expression: str, smooth: bool = True) -> None:
        steps.append(Line(target, expression, smooth))

    def phi(name: str) -> None:
        emit(f"value{level}, slope{level}", f"phi(steepness * {name})" if spec.scaled else f"phi({name})")

    def test(name: str) -> None:
        """The exit test: `live` is true for the elements that go on."""
        phi(name)
        emit(q, f"{p} * value{level}")
        emit("live", f"{q} > epsilon", False)
        if spec.settings.trainable:
            # Weights can drive a value out of range: such an element stops, and is NaN rather than wrong
            emit("poison", f"poison + where({p} > 0.0, {q} - {q}, 0.0)", False)
        emit(p, f"where(live, {q}, 0.0)")
        if spec.watched:
            emit("steps", "steps + where(live, 1.0, 0.0)", False)
        steps.append(Mark("ask", level))

    def begin_part(taken: str) -> None:
        emit(p, f"where({taken}, {outer}, 0.0)")

    level = 0
    opened: list[int] = []
    for index, (kind, target, argument) in enumerate(code.ops):
        y = code.names[target]
        level += kind in ("while", "if")
        p, outer, q, r = f"p{level}", f"p{level - 1}", f"q{level}", f"r{level}"
        if kind in ("while", "if"):
            opened.append(index)
        changed = code.written(opened[-1]) if kind in ("if", "else", "fi") else ()
        kept = [(code.names[slot], f"h{level}_{code.names[slot]}") for slot in changed]
        if kind == "while":
            emit(p, outer)
            test(y)
            steps.append(Mark("open", level))
        elif kind == "end":
            test(y)
            steps.append(Mark("close", level))
            if spec.watched:
                # p is left positive only where the loop was cut off; that last test ran no body
                emit("steps", f"steps - where({p} > 0.0, 1.0, 0.0)", False)
                emit("cut", f"where({p} > mass, {code.loop_numbers[opened[-1]]}.0, cut)", False)
                emit("mass", f"where({p} > mass, {p}, mass)", False)
        elif kind == "if":
            # The share of the first part, and the state before it, which the second part will need
            phi(y)
            if spec.settings.trainable:
                emit("poison", f"poison + where({outer} > 0.0, value{level} - value{level}, 0.0)", False)
            # A part that is taken with less than epsilon is not run at all: what it would do may never halt
            emit(r, f"where({outer} * value{level} > epsilon, value{level}, 0.0)")
            emit(r, f"where({outer} * (1.0 - {r}) > epsilon, {r}, 1.0)")
            begin_part(f"{r} > 0.0")
            for name, before in kept:
                emit(before, name)
        elif kind == "else":
            begin_part(f"{r} < 1.0")
            for name, before in kept:
                emit(f"new_{name}", name)
                emit(name, before)
                emit(before, f"new_{name}")
        elif kind == "fi":
            for name, first in kept:
                emit(name, f"{r} * {first} + (1.0 - {r}) * {name}")
        elif spec.settings.trainable:
            # y := p (w value + b) + (1 - p) y, for the value the core statement would assign
            n = code.assignments[index]
            emit(f"new{n}", code.names[argument] if kind == "copy" else f"{y} {'+-'[argument < 0]} {abs(argument)}.0")
            emit(f"fitted{n}", f"w{n} * new{n} + b{n}")
            # A weight can push a value out of range. Where p is 0 that must not matter: such an element only waits for others
            emit(y, f"where({p} > 0.0, {p} * fitted{n} + (1.0 - {p}) * {y}, {y})")
        elif kind == "copy":
            x = code.names[argument]
            emit(y, x if level == 0 else f"{p} * {x} + (1.0 - {p}) * {y}")
        else:
            size = f"{abs(argument)}.0" if level == 0 else p if abs(argument) == 1 else f"{abs(argument)}.0 * {p}"
            emit(y, f"{y} {'+-'[argument < 0]} {size}")
        if kind in ("end", "fi"):
            level -= 1
            opened.pop()
    return steps


#: What only the statements right behind it read.
_PASSING = re.compile(r"d?(value|slope|q|new|fitted)\d*(_.*)?|live|given|finite")


class _Tangents:
    """Forward mode: the derivative of each line in each direction.

    `active[name]` are the directions that a name can depend on; tangents that are zero whatever the input are not computed.
    """

    def __init__(self, spec: KernelSpec, steps: Sequence[Step]):
        self.seeded = spec.seeded
        self.mixing = spec.settings.trainable
        self.active: defaultdict[str, set[int]] = defaultdict(set)
        for name, d in (*((spec.code.names[slot], d) for d, slot in enumerate(spec.slots)), *self.seeded):
            self.active[name].add(d)
        self.trees = {line: ast.parse(line.expression, mode="eval").body for line in steps if isinstance(line, Line)}
        read = [
            (line.target.split(", ")[0], set(_smooth_names(tree))) for line, tree in self.trees.items() if line.smooth
        ]
        changed = True
        while changed:
            changed = False
            for target, names in read:
                found = set().union(*(self.active[name] for name in names)) - self.active[target]
                self.active[target] |= found
                changed |= bool(found)

    def follow(self, line: Line) -> Iterator[Line]:
        """The line among those for its tangents."""
        name, _, slope = line.target.partition(", ")
        tree: Any = self.trees[line]
        if slope:
            yield line
        for d in sorted(self.active[name]) if line.smooth else ():
            found = _product(slope, self.of(line, tree.args[0], d)) if slope else self.of(line, tree, d)
            if found != tangent(name, d):
                yield Line(tangent(name, d), found or "ZERO")
        if not slope:
            yield line

    def of(self, line: Line, node: ast.expr, d: int) -> str:
        """The derivative of a part of the line's expression, empty where it is 0."""
        match node:
            case ast.Name(id=name) if d in self.active[name]:
                return self.seeded.get((name, d)) or tangent(name, d)
            case ast.BinOp(left=left, op=ast.Mult(), right=right):
                first = _product(self.of(line, left, d), _source(line, right))
                second = _product(_source(line, left), self.of(line, right, d))
                return f"{first} + {second}" if first and second else first or second
            case ast.BinOp(ast.BinOp(p, ast.Mult(), first), ast.Add(), ast.BinOp(rest, ast.Mult(), second)) if (
                self.mixing
            ):
                # p first + (1 - p) second, a product less than by the rules: half of what trained programs do
                parts = (first, _source(line, p)), (second, _source(line, rest))
                gap = _product(self.of(line, p, d), f"{_source(line, first)} - {_source(line, second)}")
                return " + ".join(filter(None, (*(_product(self.of(line, x, d), y) for x, y in parts), gap)))
            case ast.BinOp(left=left, op=op, right=right):
                first, second = self.of(line, left, d), self.of(line, right, d)
                if second and isinstance(op, ast.Sub):
                    return f"{first} - {_apart(second)}" if first else f"-{_apart(second)}"
                return f"{first} + {second}" if first and second else first or second
            case ast.Call(args=[test, left, right]):
                first, second = self.of(line, left, d), self.of(line, right, d)
                if first or second:
                    return f"where({_source(line, test)}, {first or '0.0'}, {second or '0.0'})"
        return ""


def _source(line: Line, node: ast.expr) -> str:
    return line.expression[node.col_offset : node.end_col_offset]


def _apart(text: str) -> str:
    return f"({text})" if " + " in text or " - " in text else text


def _product(first: str, second: str) -> str:
    if "" in (first, second) or "1.0" in (first, second):
        return "" if "" in (first, second) else first if second == "1.0" else second
    return f"{_apart(first)} * {_apart(second)}"


def _smooth_names(node: ast.AST) -> Iterator[str]:
    """The names in an expression, but for those in conditions."""
    if isinstance(node, ast.Name):
        yield node.id
    elif not isinstance(node, ast.Compare):
        for part in ast.iter_child_nodes(node):
            yield from _smooth_names(part)


class Body(NamedTuple):
    """A kernel's lines: numbers that all elements share, what each element starts from, the program, and what is stored.

    `array[item]` is the element's own number; `INSIDE` says that there is such an element. `state` names every number that an
    element carries along: variables, probabilities, their tangents, diagnostics. What goes to `slopes` is summed over the good
    elements of a block.
    """

    shared: list[Line]
    own: list[Line]
    steps: list[Step]
    last: list[Line]
    state: list[str]


def lower(spec: KernelSpec) -> Body:
    """The body of the kernel."""
    values = _values(spec)
    tangents = _Tangents(spec, values)
    steps = [found for step in values for found in (tangents.follow(step) if isinstance(step, Line) else (step,))]
    shared, own = _load(spec)
    written = (name for line in (*own, *steps) if isinstance(line, Line) for name in line.target.split(", "))
    told = [*(["steps", "mass", "cut"] if spec.watched else []), *(["poison"] if spec.settings.trainable else [])]
    state = [*spec.code.names, "p0", *told, *(name for name in written if not _PASSING.fullmatch(name))]
    return Body(shared, own, steps, _store(spec, tangents.active), list(dict.fromkeys(state)))


def _load(spec: KernelSpec) -> tuple[list[Line], list[Line]]:
    shared = [Line("steepness", "steepness_in[0]")] if spec.scaled else []
    for number in spec.code.assignments.values() if spec.settings.trainable else ():
        shared += [Line(f"{name[0]}{number}", f"{name}[{number}]") for name in ("weight", "bias")]
    shared += [Line(seed, f"seeds[{place}]") for place, seed in enumerate(spec.seeded.values())]
    own = [Line("finite", "INSIDE")]
    for slot in spec.settings.inputs:
        name = spec.code.names[slot]
        own.append(Line("given", f"in_{name}[item]"))
        own.append(Line("finite", "finite & (abs(given) < INF)"))
        own.append(Line(name, "where(abs(given) < INF, given, ZERO)"))
        own += [Line(tangent(name, d), "ZERO + 1.0") for d, by in enumerate(spec.slots) if by == slot]
    return shared, [*own, Line("p0", "where(finite, ZERO + 1.0, ZERO)")]


def _store(spec: KernelSpec, active: Mapping[str, set[int]]) -> list[Line]:
    names, width = spec.code.names, len(spec.settings.outputs)
    lines = [Line("good", "p0 > 0.0")]
    poison = " + poison" if spec.settings.trainable else ""
    for column, slot in enumerate(() if spec.seeds else spec.settings.outputs):
        lines.append(Line(f"values[item * {width} + {column}]", f"where(good, {names[slot]}{poison}, NAN)"))
    for column, name in enumerate(("mass", "steps", "cut") if spec.watched else ()):
        lines.append(Line(f"diagnostics[item * 3 + {column}]", name))
    for d in spec.directions:
        found = [f"bounded({tangent(names[i], d)})" if d in active[names[i]] else "ZERO" for i in spec.settings.outputs]
        places = [f"[item * {width} + {column}]" for column in range(width)]
        if spec.seeds:
            total = " + ".join(f"grads{place} * {slope}" for place, slope in zip(places, found, strict=True))
            lines.append(Line(f"slopes[block * {spec.seeds} + {d}]", total))
        else:
            lines += [
                Line(f"slope_{d}{place}", f"where(good, {slope}, ZERO)")
                for place, slope in zip(places, found, strict=True)
            ]
    return lines


class Emitter:
    """Writes the steps of a kernel as source. Dialects say how a line runs for all elements, and what a test finds out."""

    def __init__(self, indent: int):
        self.lines: list[str] = []
        self.indent = indent

    def write(self, text: str) -> None:
        self.lines.append("    " * self.indent + text)

    def line(self, line: Line) -> None:
        raise NotImplementedError

    def ask(self, level: int) -> None:
        """Set `alive` of this level: whether any element is `live`."""
        raise NotImplementedError

    def steps(self, steps: Iterable[Step]) -> None:
        for step in steps:
            if isinstance(step, Line):
                self.line(step)
            elif step.kind == "ask":
                self.ask(step.level)
            elif step.kind == "open":
                self.write(f"count{step.level} = 0")
                self.write(f"while (alive{step.level} > 0) & (count{step.level} < cap):")
                self.indent += 1
                self.write(f"count{step.level} += 1")
            else:
                self.indent -= 1


#: What a generated module begins with.
HEAD = '''"""Generated by algonet from the WHILE-program below; do not edit.

{spec.code.text}
exit {spec.settings.exit.key}, slots {spec.slots}, seeds {spec.seeds}
"""'''

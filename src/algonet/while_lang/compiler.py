"""The compiler: from flat code to the arithmetic of one fused kernel, with tangents travelling forward.

A `KernelSpec` is a program, an exit and the directions to differentiate by. `lower` turns it into a structured list of
assignments between scalars (`x3 = p1 * x1 + (1.0 - p1) * x3`) and loops; the dialects in kernels/ only decide how to run
them over many elements. Tangents that are zero whatever the input are found first and never computed.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

from algonet.relax import Exit

from .code import STEPS, Code

#: Programs beyond these take the reference: Python itself nests at most 20 loops, and compile times grow with size.
MAX_KERNEL_DEPTH = 12
MAX_KERNEL_OPS = 300
#: Numbers kept per element (values and tangents); more tangents run in several passes.
MAX_KERNEL_STATE = 160
#: Programs with more weights and biases than this share one kernel between them, with this many directions a pass:
#: a kernel of their own for each group would compile for minutes.
MAX_OWN_PARAMETERS, SEEDS_AT_ONCE = 16, 2


@dataclass(frozen=True)
class KernelSpec:
    """What a kernel computes.

    `inputs` and `outputs` are slots. `directions` are what to differentiate by: ("input", slot), ("steepness", 0),
    ("weight", k) or ("bias", k), k numbering the assignments; or ("seed", d), any mixture of weights and biases, which the
    kernel reads from its argument `seeds` (assignment, weight or bias, direction), so that one kernel serves all.
    `reduce` says that it multiplies the tangents by incoming gradients and sums over elements; otherwise it stores values
    and tangents, and with `watched` also the diagnostics. `per_element` says that the steepness differs between elements.
    """

    code: Code
    exit: Exit
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    directions: tuple[tuple[str, int], ...] = ()
    reduce: bool = False
    trainable: bool = False
    per_element: bool = False
    watched: bool = True

    @property
    def arguments(self) -> list[str]:
        """What the kernel takes, in order: arrays and limits."""
        return [*self.arrays, "epsilon", "cap", "n"]

    @cached_property
    def arrays(self) -> list[str]:
        """The kernel's arrays, in order. They are flat: element i's output j is at i * outputs + j, its tangent
        in direction d at the same place of the d-th slope; with `reduce`, `slopes` has a row per block."""
        return [
            *(f"in_{self.code.names[slot]}" for slot in self.inputs),
            *(["steepness_in"] if self.scaled else []),
            *(["weight", "bias"] if self.trainable else []),
            *(["seeds"] if self.seeded else []),
            *(["grads", "slopes"] if self.reduce else ["values"]),
            *(["diagnostics"] if self.watched and not self.reduce else []),
            *(f"slope_{d}" for d in range(len(self.directions)) if not self.reduce),
        ]

    @property
    def seeds(self) -> list[tuple[str, int]]:
        """The numbers of `seeds`: their names in the kernel, and where they stand in the array."""
        count = len(self.directions)
        return [
            (f"seed{row}_{d}", row * count + d)
            for d in range(count if self.seeded else 0)
            for row in range(2 * len(self.code.assignments))
        ]

    @property
    def seeded(self) -> bool:
        return any(kind == "seed" for kind, _ in self.directions)

    @property
    def scaled(self) -> bool:
        """Whether the exit has a steepness at all."""
        return self.exit.softness_field is not None


@dataclass(frozen=True)
class Line:
    """`target = expression`, for every element by itself."""

    target: str
    expression: str


@dataclass(frozen=True)
class Test:
    """The exit test of a loop at nesting `level`: ends in `live`, true for the elements that go on."""

    level: int
    lines: tuple[Line, ...]


@dataclass(frozen=True)
class Open:
    """Repeat up to the matching `Close` while any element is live and fewer than the cap of iterations were run."""

    level: int


@dataclass(frozen=True)
class Close:
    level: int


Step = Line | Test | Open | Close


def why_not_kernel(code: Code) -> str | None:
    """`None`, or why this program is not compiled."""
    if code.depth > MAX_KERNEL_DEPTH:
        return f"its loops nest {code.depth} levels deep and kernels take {MAX_KERNEL_DEPTH}"
    if len(code.ops) > MAX_KERNEL_OPS:
        return f"it has {len(code.ops)} operations and kernels take {MAX_KERNEL_OPS}"
    return None


def tangents_at_once(code: Code) -> int:
    """How many directions one kernel carries."""
    return max(1, min(16, MAX_KERNEL_STATE // (len(code.names) + code.depth) - 1))


def activity(spec: KernelSpec) -> dict[str, frozenset[int]]:
    """Which directions each variable ("x3"), probability ("p2", by level) and branch ("r2") can depend on: a fixed point."""
    code = spec.code
    active: dict[str, set[int]] = {name: set() for name in code.names}
    active.update({f"{kind}{level}": set() for level in range(code.depth + 1) for kind in "pr"})
    kinds = {direction: d for d, direction in enumerate(spec.directions)}
    for slot in spec.inputs:
        if ("input", slot) in kinds:
            active[code.names[slot]].add(kinds["input", slot])
    while True:
        before = sum(map(len, active.values()))
        level = 0
        for index, (kind, target, argument) in enumerate(code.ops):
            name = code.names[target]
            if kind == "while":
                level += 1
                active[f"p{level}"] |= active[f"p{level - 1}"] | active[name]
                if ("steepness", 0) in kinds:
                    active[f"p{level}"].add(kinds["steepness", 0])
            elif kind == "if":
                level += 1
                active[f"p{level}"] |= active[f"p{level - 1}"]
                active[f"r{level}"] |= active[name]
                if ("steepness", 0) in kinds:
                    active[f"r{level}"].add(kinds["steepness", 0])
                for slot in code.written(index):
                    active[code.names[slot]] |= active[f"r{level}"]
            elif kind in ("end", "fi"):
                level -= 1
            elif kind != "else":
                active[name] |= active[f"p{level}"]
                if kind == "copy":
                    active[name] |= active[code.names[argument]]
                number = code.assignments[index]
                active[name].update(kinds[k, number] for k in ("weight", "bias") if (k, number) in kinds)
                if spec.trainable:
                    active[name].update(d for d, (k, _) in enumerate(spec.directions) if k == "seed")
        if sum(map(len, active.values())) == before:
            return {name: frozenset(found) for name, found in active.items()}


def tangent(name: str, direction: int) -> str:
    """The name of the tangent of `name` in a direction."""
    return f"d{name}_{direction}"


def held(level: int, name: str) -> str:
    """Where the branch at `level` keeps a variable, or a tangent of one."""
    return f"h{level}_{name}"


class _Lowering:
    def __init__(self, spec: KernelSpec):
        self.spec, self.code = spec, spec.code
        self.active = activity(spec)
        self.steps: list[Step] = []
        self.kinds = {direction: d for d, direction in enumerate(spec.directions)}

    def emit(self, target: str, expression: str) -> None:
        self.steps.append(Line(target, expression))

    def run(self) -> list[Step]:
        level = 0
        opened: list[int] = []
        for index, (kind, target, argument) in enumerate(self.code.ops):
            name = self.code.names[target]
            if kind == "while":
                level += 1
                opened.append(index)
                self._enter(level, name)
            elif kind == "end":
                self._leave(level, name, self.code.loop_numbers[opened.pop()])
                level -= 1
            elif kind == "if":
                level += 1
                opened.append(index)
                self._fork(level, name, self.code.written(index))
            elif kind == "else":
                self._turn(level, self.code.written(opened[-1]))
            elif kind == "fi":
                self._join(level, self.code.written(opened.pop()))
                level -= 1
            elif self.spec.trainable:
                self._trained(index, name, level)
            elif kind == "copy":
                self._copy(name, self.code.names[argument], level)
            else:
                self._add(name, argument, level)
        return self.steps

    def _enter(self, level: int, name: str) -> None:
        p, outer = f"p{level}", f"p{level - 1}"
        self.emit(p, outer)
        for d in sorted(self.active[p]):
            self.emit(tangent(p, d), tangent(outer, d) if d in self.active[outer] else "ZERO")
        self.steps.append(self._test(level, name))
        self.steps.append(Open(level))

    def _leave(self, level: int, name: str, number: int) -> None:
        p = f"p{level}"
        self.steps.append(self._test(level, name))
        self.steps.append(Close(level))
        if not self.spec.watched:
            return
        # p is left positive only where the loop was cut off; that last test ran no body
        self.emit("steps", f"steps - where({p} > 0.0, 1.0, 0.0)")
        self.emit("cut", f"where({p} > mass, {number}.0, cut)")
        self.emit("mass", f"where({p} > mass, {p}, mass)")

    def _test(self, level: int, name: str) -> Test:
        p, spec = f"p{level}", self.spec
        lines = [
            Line("value, slope", self._phi(name)),
            Line("q", f"{p} * value"),
            Line("live", "q > epsilon"),
        ]
        if spec.trainable:
            # Weights can drive a value out of range: such an element stops, and is NaN rather than wrong
            lines.append(Line("poison", f"poison + where({p} > 0.0, q - q, 0.0)"))
        for d in sorted(self.active[p]):
            # A direction of p comes from the loop variable, from an outer probability or from an earlier pass
            inner = self._inner(name, d)
            moved = f"{tangent(p, d)} * value"
            if inner:
                moved += f" + {p} * slope * ({' + '.join(inner)})"
            lines.append(Line(tangent(p, d), f"where(live, {moved}, 0.0)"))
        lines.append(Line(p, "where(live, q, 0.0)"))
        if spec.watched:
            lines.append(Line("steps", "steps + where(live, 1.0, 0.0)"))
        return Test(level, tuple(lines))

    def _fork(self, level: int, name: str, written: list[int]) -> None:
        """The share r of the first part, and the state before it, which the second part will need."""
        p, r = f"p{level - 1}", f"r{level}"
        self.emit("value, slope", self._phi(name))
        if self.spec.trainable:
            self.emit("poison", f"poison + where({p} > 0.0, value - value, 0.0)")
        # A part that is taken with less than epsilon is not run at all: what it would do may never halt
        self.emit(r, f"where({p} * value > epsilon, value, 0.0)")
        self.emit(r, f"where({p} * (1.0 - {r}) > epsilon, {r}, 1.0)")
        for d in sorted(self.active[r]):
            inner = " + ".join(self._inner(name, d))
            self.emit(tangent(r, d), f"where({r} * (1.0 - {r}) > 0.0, slope * ({inner}), 0.0)" if inner else "ZERO")
        self._enter_part(level, f"{r} > 0.0")
        for y in self._carried(written):
            self.emit(held(level, y), y)

    def _turn(self, level: int, written: list[int]) -> None:
        """From the first part to the second: what the first made of the state is held, and the state is as before."""
        self._enter_part(level, f"r{level} < 1.0")
        for y in self._carried(written):
            self.emit("new", y)
            self.emit(y, held(level, y))
            self.emit(held(level, y), "new")

    def _join(self, level: int, written: list[int]) -> None:
        r = f"r{level}"
        for slot in written:
            y = self.code.names[slot]
            for d in sorted(self.active[y]):
                dy = tangent(y, d)
                mixed = f"{r} * {held(level, dy)} + (1.0 - {r}) * {dy}"
                if d in self.active[r]:
                    mixed += f" + {tangent(r, d)} * {held(level, y)} - {tangent(r, d)} * {y}"
                self.emit(dy, mixed)
            self.emit(y, f"{r} * {held(level, y)} + (1.0 - {r}) * {y}")

    def _enter_part(self, level: int, taken: str) -> None:
        p, outer = f"p{level}", f"p{level - 1}"
        for d in sorted(self.active[p]):
            moved = f"where({taken}, {tangent(outer, d)}, 0.0)" if d in self.active[outer] else "ZERO"
            self.emit(tangent(p, d), moved)
        self.emit(p, f"where({taken}, {outer}, 0.0)")

    def _carried(self, written: list[int]) -> list[str]:
        """Variables and their tangents."""
        names = [self.code.names[slot] for slot in written]
        return [*names, *(tangent(name, d) for name in names for d in sorted(self.active[name]))]

    def _phi(self, name: str) -> str:
        return f"phi(steepness * {name})" if self.spec.scaled else f"phi({name})"

    def _inner(self, name: str, d: int) -> list[str]:
        """The terms of the derivative of what phi is asked."""
        inner = []
        if d in self.active[name]:
            inner.append(f"steepness * {tangent(name, d)}" if self.spec.scaled else tangent(name, d))
        if self.kinds.get(("steepness", 0)) == d:
            inner.append(name)
        return inner

    def _copy(self, y: str, x: str, level: int) -> None:
        p = f"p{level}"
        for d in sorted(self.active[y]):
            if level == 0:
                self.emit(tangent(y, d), tangent(x, d) if d in self.active[x] else "ZERO")
                continue
            terms = []
            if d in self.active[p]:
                # Not p' (x - y): the difference of huge numbers overflows, and infinity times 0 is NaN
                terms.append(f"{tangent(p, d)} * {x} - {tangent(p, d)} * {y}")
            if d in self.active[x]:
                terms.append(f"{p} * {tangent(x, d)}")
            terms.append(f"(1.0 - {p}) * {tangent(y, d)}")
            self.emit(tangent(y, d), " + ".join(terms))
        self.emit(y, x if level == 0 else f"{p} * {x} + (1.0 - {p}) * {y}")

    def _add(self, y: str, amount: int, level: int) -> None:
        p = f"p{level}"
        sign, size = ("-", -amount) if amount < 0 else ("+", amount)
        if level == 0:
            self.emit(y, f"{y} {sign} {size}.0")
            return
        factor = "" if size == 1 else f"{size}.0 * "
        for d in sorted(self.active[p]):
            self.emit(tangent(y, d), f"{tangent(y, d)} {sign} {factor}{tangent(p, d)}")
        self.emit(y, f"{y} {sign} {factor}{p}")

    def _trained(self, index: int, y: str, level: int) -> None:
        """y := p (w value + b) + (1 - p) y, for the value the core statement would assign."""
        kind, _, argument = self.code.ops[index]
        number, p = self.code.assignments[index], f"p{level}"
        x = self.code.names[argument] if kind == "copy" else y
        self.emit("new", x if kind == "copy" else f"{y} {'-' if argument < 0 else '+'} {abs(argument)}.0")
        # A weight can push a value out of range. Where p is 0 that must not matter: such an element only waits for others
        self.emit("fitted", f"where({p} > 0.0, w{number} * new + b{number}, {y})")
        for d in sorted(self.active[y]):
            moved = []
            if d in self.active[x]:
                moved.append(f"w{number} * {tangent(x, d)}")
            if self.kinds.get(("weight", number)) == d:
                moved.append("new")
            if self.kinds.get(("bias", number)) == d:
                moved.append("1.0")
            if self.spec.directions[d][0] == "seed":
                moved.append(f"seed{2 * number}_{d} * new + seed{2 * number + 1}_{d}")
            terms = [f"(1.0 - {p}) * {tangent(y, d)}"]
            if moved:
                terms.append(f"{p} * ({' + '.join(moved)})")
            if d in self.active[p]:
                terms.append(f"{tangent(p, d)} * (fitted - {y})")
            self.emit(tangent(y, d), f"where({p} > 0.0, {' + '.join(terms)}, {tangent(y, d)})")
        self.emit(y, f"{p} * fitted + (1.0 - {p}) * {y}")


def lower(spec: KernelSpec) -> list[Step]:
    """The kernel's body: assignments, exit tests and loops, in order."""
    return _Lowering(spec).run()


def state_names(spec: KernelSpec) -> list[str]:
    """Every number that an element carries through the kernel: variables, probabilities, their tangents, diagnostics."""
    active = activity(spec)
    levels = range(spec.code.depth + 1)
    forks = _forks(spec.code)
    names = [*spec.code.names, *(f"p{level}" for level in levels), *(f"r{level}" for level in forks)]
    tangents = [tangent(name, d) for name in names for d in sorted(active[name])]
    for level, slots in forks.items():
        kept = [spec.code.names[slot] for slot in sorted(slots)]
        names += [held(level, name) for name in kept]
        tangents += [held(level, tangent(name, d)) for name in kept for d in sorted(active[name])]
    names += [*tangents, *(["steps", "mass", "cut"] if spec.watched else [])]
    return [
        *names,
        *(["poison"] if spec.trainable else []),
        *(["steepness"] if spec.scaled and spec.per_element else []),
    ]


def _forks(code: Code) -> dict[int, set[int]]:
    """The levels of branches, and the slots that a branch there may change."""
    level, found = 0, {}
    for index, op in enumerate(code.ops):
        level += STEPS.get(op.kind, 0)
        if op.kind == "if":
            found.setdefault(level, set()).update(code.written(index))
    return found


def load(spec: KernelSpec) -> tuple[list[Line], list[Line]]:
    """What a kernel begins with: numbers that all elements share, and what each element starts from.

    `array[item]` is the element's own number; `INSIDE` says that there is such an element.
    """
    shared = [Line("steepness", "steepness_in[0]")] if spec.scaled and not spec.per_element else []
    for number in spec.code.assignments.values() if spec.trainable else ():
        shared += [Line(f"{name[0]}{number}", f"{name}[{number}]") for name in ("weight", "bias")]
    shared += [Line(name, f"seeds[{place}]") for name, place in spec.seeds]
    own = [Line("finite", "INSIDE")]
    for slot in spec.inputs:
        name = spec.code.names[slot]
        own.append(Line("given", f"in_{name}[item]"))
        own.append(Line("finite", "finite & (abs(given) < INF)"))
        own.append(Line(name, "where(abs(given) < INF, given, ZERO)"))
        own += [Line(tangent(name, d), "ZERO + 1.0") for d, by in enumerate(spec.directions) if by == ("input", slot)]
    if spec.scaled and spec.per_element:
        own.append(Line("steepness", "steepness_in[item]"))
    return shared, [*own, Line("p0", "where(finite, ZERO + 1.0, ZERO)")]


def store(spec: KernelSpec) -> list[Line]:
    """What a kernel ends with, for each element; what goes to `slopes` is summed over the good ones of a block."""
    names, active, width = spec.code.names, activity(spec), len(spec.outputs)
    lines = [Line("good", "p0 > 0.0")]
    poison = " + poison" if spec.trainable else ""
    for column, slot in enumerate(() if spec.reduce else spec.outputs):
        lines.append(Line(f"values[item * {width} + {column}]", f"where(good, {names[slot]}{poison}, NAN)"))
    for column, name in enumerate(("mass", "steps", "cut") if spec.watched and not spec.reduce else ()):
        lines.append(Line(f"diagnostics[item * 3 + {column}]", name))
    for d in range(len(spec.directions)):
        found = [f"bounded({tangent(names[i], d)})" if d in active[names[i]] else "ZERO" for i in spec.outputs]
        places = [f"[item * {width} + {column}]" for column in range(width)]
        if spec.reduce:
            total = " + ".join(f"grads{place} * {slope}" for place, slope in zip(places, found, strict=True))
            lines.append(Line(f"slopes[block * {len(spec.directions)} + {d}]", total))
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
            elif isinstance(step, Test):
                for line in step.lines:
                    self.line(line)
                self.ask(step.level)
            elif isinstance(step, Open):
                self.write(f"count{step.level} = 0")
                self.write(f"while (alive{step.level} > 0) & (count{step.level} < cap):")
                self.indent += 1
                self.write(f"count{step.level} += 1")
            else:
                self.indent -= 1


#: What a generated module begins with.
HEAD = '''"""Generated by algonet from the WHILE-program below; do not edit.

{spec.code.text}
exit {spec.exit.key}, directions {spec.directions}
"""'''

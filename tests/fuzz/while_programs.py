"""Random WHILE-programs: kernels against the reference, and at integers against the crisp machine.

Nearly all of a case's time was Numba's compiler. The source of a kernel is plain Python, so most cases run it as that: what the
generator wrote is checked all the same, and some cases still check what the compiler makes of it.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from types import SimpleNamespace
from unittest import mock

import numpy as np
import torch

from algonet import relax
from algonet.core.codegen import generate
from algonet.while_lang import DidNotHaltError, WhileProgram
from algonet.while_lang.kernels import numba as host

from .hunt import differs, gradients

EXITS = ("Sech()", "Tent()", "SmoothTent()", "BumpExit()", "Sech(3.0)")
VARIABLES = ("x0", "x1", "x2", "x3")
#: One case in so many compiles its kernels.
COMPILED = 16


@dataclass(frozen=True)
class Line:
    """An assignment, or a head and its block."""

    text: str
    body: tuple[Line, ...] = ()

    def lines(self, indent: int = 0) -> Iterator[str]:
        yield "  " * indent + self.text
        for line in self.body:
            yield from line.lines(indent + 1)
        if self.body:
            yield "  " * indent + "END"


@dataclass(frozen=True)
class Run:
    """A program and how it is run."""

    seed: int
    program: tuple[Line, ...]
    exit: str
    items: int
    trainable: bool
    dtype: str
    max_iterations: int
    compiled: bool = True

    @property
    def source(self) -> str:
        return "\n".join(text for line in self.program for text in line.lines())

    @property
    def variables(self) -> tuple[str, ...]:
        """Those that the program has, which it takes and gives; x0 always is one."""
        return tuple(name for name in VARIABLES if name == "x0" or name in self.source)


class WhilePrograms:
    """The target: the kernel is the reference, and a program of whole numbers is the crisp machine's."""

    name = "WHILE-programs"
    ways: tuple[str, ...] = ("kernel as reference", "crisp at integers")

    def draw(self, seed: int) -> Run:
        pick = random.Random(seed)
        return Run(
            seed=seed,
            program=_block(pick, 0),
            exit=pick.choice(EXITS),
            items=pick.choice((1, 3, 17)),
            trainable=pick.random() < 0.4,
            dtype=pick.choice(("float64", "float64", "float32")),
            max_iterations=pick.choice((3, 12)),
            compiled=pick.randrange(COMPILED) == 0,
        )

    def compare(self, case: Run, way: str) -> str | None:
        check = _as_reference if way == self.ways[0] else _as_crisp
        if case.compiled:
            return check(case)
        with interpreted():
            return check(case)

    def smaller(self, case: Run) -> Iterator[Run]:
        for program in _smaller(case.program):
            if program:
                yield replace(case, program=program)
        simple = {"items": 1, "trainable": False, "dtype": "float64", "exit": "Sech()", "max_iterations": 3}
        for name, value in simple.items():
            if getattr(case, name) != value:
                yield replace(case, **{name: value})

    def snippet(self, case: Run, way: str) -> str:
        return (
            "import torch\nfrom algonet.relax import *\nfrom algonet.while_lang import WhileProgram\n\n"
            f'source = """{case.source}"""\ninputs = {_inputs(case).tolist()}  # rows: x1, x2, x3 of {case.dtype}\n'
            'for backend in ("reference", "numba"):\n'
            f"    program = WhileProgram(source, {case.exit}, outputs={case.variables}, trainable={case.trainable}, "
            f"max_iterations={case.max_iterations}, backend=backend)\n"
            f"    x = torch.tensor(inputs, dtype=torch.{case.dtype})\n"
            f"    print(program({', '.join(f'{n}=x[{int(n[1]) - 1}]' for n in case.variables[1:])}))\n"
        )


@contextmanager
def interpreted() -> Iterator[None]:
    """Kernels of WHILE-programs that nobody has run yet run as the Python that they are written in."""

    def load(name: str, source: str) -> SimpleNamespace:
        for prelude in generate.PRELUDES.values():
            source = source.replace(prelude, "")
        names = {**_PYTHON}
        exec(compile(source, f"<{name}>", "exec"), names)
        return SimpleNamespace(run=names["run"])

    with mock.patch.object(host.codegen, "load", load), np.errstate(all="ignore"):
        yield


def _njit(**_options):
    return lambda function: function


#: What the preludes import. Numbers are NumPy's, which overflow and divide as machine code does.
_PYTHON = {
    "njit": _njit, "float32": np.float32, "atan": np.arctan, "erf": lambda x: type(x)(math.erf(x)), "exp": np.exp,
    "log": np.log, "sqrt": np.sqrt, "maximum": lambda a, b: a if a > b else b, "minimum": lambda a, b: a if a < b else b,
    "where": lambda condition, a, b: a if condition else b,
}  # fmt: skip


def _inputs(case: Run) -> torch.Tensor:
    generator = torch.Generator().manual_seed(case.seed)
    return (3 * torch.rand(3, case.items, generator=generator, dtype=torch.float64)).to(getattr(torch, case.dtype))


def _as_reference(case: Run) -> str | None:
    found = []
    for backend, dtype in (("numba", getattr(torch, case.dtype)), ("reference", torch.float64)):
        exit = eval(case.exit, {name: getattr(relax, name) for name in relax.__all__})
        program = WhileProgram(
            case.source, exit, outputs=case.variables, trainable=case.trainable, max_iterations=case.max_iterations,
            backend=backend,
        ).to(dtype)  # fmt: skip
        given = [x.requires_grad_() for x in _inputs(case).to(dtype).unbind()]
        given += program.parameters()
        result = program.run(**{name: given[int(name[1]) - 1] for name in case.variables[1:]})
        outputs = list(result.outputs.values())
        found.append(([*outputs, result.remaining, result.iterations], gradients(outputs, given, case.seed)))
    (mine, slopes), (true, wanted) = found
    # Loops end at a probability of epsilon (1e-6), which rounding in float32 may meet an iteration earlier or later
    values, moved = (1e-9, 1e-8) if case.dtype == "float64" else (5e-4, 5e-3)
    names = [*case.variables, "remaining", "iterations"]
    for name, one, other in zip(names, mine, true, strict=True):
        problem = None if name == "iterations" and case.dtype != "float64" else differs(name, one, other, values)
        if problem:
            return problem
    for k, (one, other) in enumerate(zip(slopes, wanted, strict=True)):
        problem = differs(f"gradient {k}", one, other, moved)
        if problem:
            return problem
    return None


def _as_crisp(case: Run) -> str | None:
    program = WhileProgram(case.source, relax.Tent(), outputs=case.variables, max_iterations=200, backend="numba")
    for every in ({"x1": 2, "x2": 3, "x3": 1}, {"x1": 0, "x2": 1, "x3": 4}):
        inputs = {name: value for name, value in every.items() if name in case.variables}
        try:
            crisp = program.crisp(**inputs, max_steps=2000)
        except DidNotHaltError:
            continue
        found = program(**{name: torch.tensor(float(value), dtype=torch.float64) for name, value in inputs.items()})
        # One output comes by itself, several as a tuple
        soft = torch.stack(list(found)) if isinstance(found, tuple) else found
        problem = differs(str(inputs), soft.double(), torch.tensor(crisp, dtype=torch.float64), 1e-9)
        if problem:
            return problem
    return None


def _block(pick: random.Random, depth: int) -> tuple[Line, ...]:
    return tuple(_line(pick, depth) for _ in range(pick.randint(1, 3 if depth else 4)))


def _line(pick: random.Random, depth: int) -> Line:
    name = pick.choice(VARIABLES)
    kind = pick.choice(("step", "step", "copy", "number") + (("while", "while", "loop", "if") if depth < 2 else ()))
    if kind == "step":
        return Line(f"{name} := {pick.choice(VARIABLES)} {pick.choice('+-')} {pick.choice((1, 1, 2))}")
    if kind == "copy":
        return Line(f"{name} := {pick.choice([other for other in VARIABLES if other != name])}")
    if kind == "number":
        return Line(f"{name} := {pick.randint(0, 3)}")
    body = _block(pick, depth + 1)
    if kind == "while":
        # What is counted down last ends the loop, as a rule
        return Line(f"WHILE {name} != 0 DO", (*body, Line(f"{name} := {name} - 1")))
    if kind == "if" and pick.random() < 0.5:
        body = (*body, Line("ELSE"), *_block(pick, depth + 1))
    return Line(f"LOOP {name} DO" if kind == "loop" else f"IF {name} {pick.choice(('=', '!='))} 0 DO", body)


def _smaller(program: tuple[Line, ...]) -> Iterator[tuple[Line, ...]]:
    """With a line less, a block in the place of what surrounds it, or a smaller block."""
    for k, line in enumerate(program):
        before, after = program[:k], program[k + 1 :]
        yield (*before, *after)
        if line.body:
            yield (*before, *(inner for inner in line.body if inner.text != "ELSE"), *after)
            for body in _smaller(line.body):
                # Both parts of a branch keep a line
                if body and not any(inner.text == "ELSE" for inner in line.body):
                    yield (*before, Line(line.text, body), *after)

"""Programs nobody wrote: random nests of branches, loops and early exits run steeply as Python runs them."""

from __future__ import annotations

import importlib.util
import random

import pytest
import torch

NAMES = ("a", "b", "c")
POINTS = [(0.31, -0.72, 1.13), (-1.41, 0.27, 0.65), (2.23, 1.77, -0.58), (-0.19, -1.37, -2.11)]


class Writer:
    """A random function of three numbers. Every loop is bounded by a counter, no comparison ties."""

    def __init__(self, seed: int):
        self.random = random.Random(seed)
        self.lines = [
            "from algonet.smooth_python import smooth",
            "",
            "@smooth",
            "def program(a, b, c):",
            "    w = [a, b, 0.5]",
        ]
        self.counters = 0
        self.block(depth=0, indent=1, in_loop=False, size=4)
        self.lines.append(f"    return {self.value()}, {self.value()}, w[0] + 2 * w[2]")

    @property
    def source(self) -> str:
        return "\n".join(self.lines) + "\n"

    def value(self) -> str:
        pick, number = self.random.choice, round(self.random.uniform(-1, 1), 3)
        return pick(
            (
                f"{pick(NAMES)} * 0.5 + {number}",
                f"{pick(NAMES)} - {pick(NAMES)} * 0.3",
                f"max({pick(NAMES)} + 0.0113, {pick(NAMES)})",
                f"({pick(NAMES)} if {self.test()} else {number})",
                f"w[{self.random.randrange(3)}] + {number}",
                f"abs({pick(NAMES)} - {number}) - 0.7",
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
                f"{simple} and {pick(NAMES)} > {number / 3}",
                f"{simple} or not {pick(NAMES)} > {number / 3}",
                f"{number} < {pick(NAMES)} < {number + 1.2}",
            )
        )

    def block(self, depth: int, indent: int, in_loop: bool, size: int) -> None:
        for _ in range(self.random.randint(1, size)):
            self.statement(depth, indent, in_loop)

    def line(self, indent: int, text: str) -> None:
        self.lines.append("    " * indent + text)

    def statement(self, depth: int, indent: int, in_loop: bool) -> None:
        kinds = ["assign", "assign", "write"] + (["if", "if", "while", "for"] if depth < 3 else [])
        kind = self.random.choice(kinds)
        if kind == "assign":
            self.line(indent, f"{self.random.choice(NAMES)} = {self.value()}")
        elif kind == "write":
            self.line(indent, f"w[{self.random.randrange(3)}] = {self.value()}")
        elif kind == "if":
            self.line(indent, f"if {self.test()}:")
            self.inside(depth, indent, in_loop)
            if self.random.random() < 0.6:
                self.line(indent, "else:")
                self.inside(depth, indent, in_loop)
        else:
            self.loop(kind, depth, indent)

    def loop(self, kind: str, depth: int, indent: int) -> None:
        self.counters += 1
        counter = f"k{self.counters}"
        if kind == "while":
            self.line(indent, f"{counter} = 0")
            self.line(indent, f"while {counter} < 3 and ({self.test()}):")
            self.line(indent + 1, f"{counter} += 1")
        else:
            self.line(indent, f"for {counter} in range({self.random.randint(1, 3)}):")
        self.block(depth + 1, indent + 1, True, 3)
        if self.random.random() < 0.3:
            self.line(indent, "else:")
            self.block(depth + 1, indent + 1, False, 2)

    def inside(self, depth: int, indent: int, in_loop: bool) -> None:
        self.block(depth + 1, indent + 1, in_loop, 2)
        way_out = self.random.random()
        if in_loop and way_out < 0.25:
            self.line(indent + 1, self.random.choice(("break", "continue")))
        elif way_out > 0.88:
            self.line(indent + 1, f"return {self.value()}, {self.value()}, 3.5")


@pytest.mark.parametrize("seed", range(40))
def test_random_programs_run_as_python_runs_them(seed, tmp_path):
    source = Writer(seed).source
    file = tmp_path / f"program{seed}.py"
    file.write_text(source)
    spec = importlib.util.spec_from_file_location(f"random_program_{seed}", file)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    expected = [[float(v) for v in module.program.crisp(*point)] for point in POINTS]
    columns = torch.tensor(POINTS, dtype=torch.float64).unbind(1)
    for options in ({"backend": "auto"}, {"backend": "reference"}, {"hard": True}):
        found = module.program(*columns, batched=True, steepness=1e7, **options)
        for k, row in enumerate(expected):
            assert [float(f[k]) for f in found] == pytest.approx(row, abs=1e-6), f"{options} at {POINTS[k]}\n{source}"
    soft = [slopes(module.program, columns, backend) for backend in ("numba", "reference")]
    for one, other in zip(*soft, strict=True):
        torch.testing.assert_close(one, other, atol=1e-6, rtol=1e-5)
    # The kernel's program is known by now: other numbers run it without recording, on their own way through its loops
    for shift in (0.37, -0.81):
        moved = [column + shift for column in columns]
        for one, other in zip(
            slopes(module.program, moved, "numba"), slopes(module.program, moved, "reference"), strict=True
        ):
            torch.testing.assert_close(one, other, atol=1e-6, rtol=1e-5)
    for k, item in enumerate(zip(*columns, strict=True)):
        for one, other in zip(module.program(*item, steepness=2.0), soft[1], strict=False):
            torch.testing.assert_close(one, other[k], atol=1e-5, rtol=1e-5)


def slopes(program, columns, backend) -> list[torch.Tensor]:
    """The soft results of a program, and the gradients of a functional of them."""
    leaves = [column.clone().requires_grad_() for column in columns]
    found = program(*leaves, batched=True, steepness=2.0, backend=backend)
    score = sum((value * (k + 1)).sum() for k, value in enumerate(found))
    moved = torch.autograd.grad(score, leaves, allow_unused=True) if score.requires_grad else [None] * 3
    zero = torch.zeros(len(POINTS), dtype=torch.float64)
    return [*(f.detach() for f in found), *(zero if m is None else m for m in moved)]

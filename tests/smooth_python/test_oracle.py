"""The mean over paths against brute force: Python itself runs the function as written, once for each way it can go.

Nothing of the library is in the oracle: numbers are objects whose comparisons answer from a list and multiply up sigmoids.
"""

from __future__ import annotations

import math
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from algonet.smooth_python import Enumerate
from fuzz.smooth_programs import Row, Statement, Writer, columns, load, source

STEEPNESS = 2.0
MOST = 32


class TooManyError(Exception):
    """More paths than the test has time for."""


class Paths:
    """The paths of a program, one run after the other: answers so far, the weight of the present path, what is left."""

    def __init__(self):
        self.left: list[list[bool]] = [[]]
        self.taken: list[bool] = []
        self.given: list[bool] = []
        self.weight = torch.ones((), dtype=torch.float64)

    def start(self) -> None:
        self.given, self.taken = self.left.pop(), []
        self.weight = torch.ones((), dtype=torch.float64)

    def answer(self, p: torch.Tensor) -> bool:
        place = len(self.taken)
        yes = self.given[place] if place < len(self.given) else True
        if place >= len(self.given):
            self.left.append([*self.taken, False])
        self.taken.append(yes)
        self.weight = self.weight * (p if yes else 1 - p)
        return yes


class Number:
    """A number whose comparisons go the way that its `paths` say."""

    def __init__(self, value: torch.Tensor, paths: Paths):
        self.value, self.paths = value, paths

    def _with(self, value: Any) -> Number:
        return Number(value, self.paths)

    def __add__(self, other: Any) -> Any:
        return NotImplemented if isinstance(other, Row) else self._with(self.value + plain(other))

    def __mul__(self, other: Any) -> Any:
        return NotImplemented if isinstance(other, Row) else self._with(self.value * plain(other))

    __radd__, __rmul__ = __add__, __mul__

    def __sub__(self, other: Any) -> Number:
        return self._with(self.value - plain(other))

    def __rsub__(self, other: Any) -> Number:
        return self._with(plain(other) - self.value)

    def __truediv__(self, other: Any) -> Number:
        return self._with(self.value / plain(other))

    def __neg__(self) -> Number:
        return self._with(-self.value)

    def __gt__(self, other: Any) -> bool:
        return self.paths.answer(torch.sigmoid(STEEPNESS * (self.value - plain(other))))

    def __lt__(self, other: Any) -> bool:
        return self.paths.answer(torch.sigmoid(STEEPNESS * (plain(other) - self.value)))

    def __abs__(self) -> Number:
        return self if self > 0.0 else -self


def plain(x: Any) -> Any:
    return x.value if isinstance(x, Number) else x


def numbers(x: torch.Tensor, paths: Paths) -> Any:
    return Row(numbers(part, paths) for part in x) if x.dim() else Number(x, paths)


def flat(x: Any) -> list[torch.Tensor]:
    if isinstance(x, (tuple, list)):
        return [number for part in x for number in flat(part)]
    return [torch.as_tensor(plain(x), dtype=torch.float64)]


def brute_force(module: Any, inputs: list[torch.Tensor]) -> tuple[torch.Tensor, int]:
    """E of all results, and the number of paths."""
    paths, total, count = Paths(), torch.zeros(()), 0
    while paths.left:
        count += 1
        if count + len(paths.left) > MOST:
            raise TooManyError
        paths.start()
        found = module.program.crisp(*(numbers(x, paths) for x in inputs))
        total = total + paths.weight * torch.stack(flat(found))
    return total, count


def without_bare_numbers(text: str) -> str:
    """Python floats decide crisply as written, and smoothly once a smooth decision may have changed them: none are assigned."""
    number = r"(-?\d+\.\d+(?:e-\d+)?)"
    text = re.sub(rf"else {number}\)", r"else c * \1)", text)
    text = re.sub(rf"helper\((\w), {number}\)", r"helper(\1, c * \2)", text)
    text = re.sub(rf"= {number}( \* 0\.3)?$", r"= c * \1", text, flags=re.MULTILINE)
    return text.replace("w = [a, b, 0.5]", "w = [a, b, c * 0.5]")


@pytest.mark.parametrize("having", [" if ", "while ", "for ", "break", "        return", "continue"])
def test_enumeration_is_the_sum_over_all_ways_python_can_go(having, tmp_path: Path):
    """Values and gradients of random programs."""
    checked, seed = 0, 10_000 * len(having)
    while checked < 2:
        seed += 1
        writer = Writer(seed)
        program = [*writer.block(1, in_loop=False, size=2), *writer.block(2, in_loop=False, size=2)]
        program.append(Statement("return a * b, c, w[0] + 2 * w[2] + u[1], v, m"))
        text = without_bare_numbers(source(program))
        if having not in text.rpartition("n = 0\n")[2]:
            continue
        module = load(text, tmp_path, seed)
        inputs = [x[0].clone().requires_grad_() for x in columns()]
        module.math = SimpleNamespace(exp=lambda x: x._with(torch.exp(x.value)), sqrt=math.sqrt)
        module.OUTSIDE, outside = float(module.OUTSIDE), module.OUTSIDE
        try:
            wanted, count = brute_force(module, inputs)
        except TooManyError:
            continue
        finally:
            module.math, module.OUTSIDE = math, outside
        if count < 4:
            continue
        soft = module.program(*inputs, steepness=STEEPNESS, paths=Enumerate(MOST), epsilon=0.0)
        found = torch.cat([torch.as_tensor(y, dtype=torch.float64).flatten() for y in soft])
        torch.testing.assert_close(found, wanted, msg=text)
        score = torch.arange(1.0, len(found) + 1, dtype=torch.float64)
        options = {"allow_unused": True, "materialize_grads": True}
        for one, other in zip(
            torch.autograd.grad(found @ score, inputs, **options),
            torch.autograd.grad(wanted @ score, inputs, **options),
            strict=True,
        ):
            torch.testing.assert_close(one, other, msg=text)
        checked += 1

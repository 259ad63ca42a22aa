"""Exits people write themselves: an exit is its class and fields, on every backend, whatever its name."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import pytest
import torch

from algonet.relax import Exit, Sech, Tent
from algonet.while_lang import WhileProgram, run_while

COUNT = "WHILE x1 != 0 DO x0 := x0 + 1 x1 := x1 - 1 END"
X = torch.tensor([0.3, 1.4, 2.6], dtype=torch.float64)


@dataclass(frozen=True, eq=False)
class Wide(Exit):
    """min(1, |x| / width): one class, a field that changes the formula."""

    width: float = 1.0
    smoothness: ClassVar[float] = 0

    def _value(self, z):
        return (z.abs() / self.width).clamp_max(1.0)

    @property
    def scalar(self):
        return f"""
            value = minimum(1.0, abs(z) / {self.width!r})
            slope = where(abs(z) > {self.width!r}, 0.0, where(z > 0, 1.0, -1.0) / {self.width!r})
        """


def _found(exit, backend):
    x = X.clone().requires_grad_()
    value = run_while(COUNT, {"x1": x}, exit=exit, backend=backend).outputs["x0"]
    return value.detach(), torch.autograd.grad(value.sum(), x)[0]


@pytest.mark.parametrize("backend", ["reference", "numba"])
def test_fields_make_the_exit(backend):
    first, second = _found(Wide(1.0), backend), _found(Wide(2.0), backend)
    assert not torch.allclose(first[0], second[0])
    torch.testing.assert_close(first, _found(Tent(), "reference"))
    torch.testing.assert_close(second, _found(Wide(2.0), "reference"))


def test_subclasses_without_a_name_of_their_own_are_told_apart():
    def narrow(least):
        @dataclass(frozen=True, eq=False)
        class Narrow(Tent):
            def _value(self, z):
                return z.abs().clamp(least, 1.0) - least

        return Narrow()

    first, second = (run_while(COUNT, {"x1": X}, exit=narrow(least)).outputs["x0"] for least in (0.0, 0.2))
    assert not torch.allclose(first, second)
    # The inherited formula is Tent's, not this class's: kernels may not run it
    with pytest.raises(ValueError, match="Narrow changes its value but not `scalar`"):
        run_while(COUNT, {"x1": X}, exit=narrow(0.2), backend="numba")


def test_a_class_redefined_under_its_name_is_another():
    results = []
    for power in (1, 2):

        @dataclass(frozen=True, eq=False)
        class Mine(Exit):
            smoothness: ClassVar[float] = 0

            def _value(self, z, power=power):
                return z.abs().clamp_max(1.0) ** power

        results.append(WhileProgram(COUNT, Mine())(X))
    assert not torch.allclose(*results)


def test_compiled_graphs_carry_the_exit():
    torch._dynamo.reset()
    for exit in (Wide(2.0), Wide(1.0), Sech(2.0)):
        program = WhileProgram(COUNT, exit, backend="numba")
        compiled = torch.compile(program, fullgraph=True, backend="aot_eager")
        torch.testing.assert_close(compiled(X), program(X))

"""Slots of the CPU kernels: programs of random instructions against the reference, which keeps every row."""

import random

import numpy as np
import pytest
import torch

from algonet.core.identity import interned
from algonet.relax import Logistic
from algonet.smooth_python import operation
from algonet.smooth_python.operation import COLUMN, CONSTANT, COUNTER, PROGRAM, ROW, STEEPNESS, ProgramSettings

TABLE = operation.with_relaxations(1)
#: Those whose values run away in a long chain, or whose slopes do.
WILD = ("truediv", "reciprocal", "exp", "log", "sqrt", "tally")


def random_program(seed: int, length: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Instructions on rows that are mostly recent, as in loops, some far back, some twice; and rows that are asked for."""
    chance = random.Random(seed)
    lines = [[0, 0, 0, 0], [0, 1, 0, 0], [1, 0, 0, 0], [1, 1, 0, 0]]
    codes = [k for k, row in enumerate(TABLE) if row.name not in WILD and k > 1]
    for _ in range(length):
        code = chance.choice(codes)
        sources = {COLUMN: 2, CONSTANT: 2, STEEPNESS: 2, COUNTER: 1000}
        rows = len(lines)
        line = [code, 0, 0, 0]
        for k, kind in enumerate(TABLE[code].operands):
            near = chance.random() < 0.8
            line[1 + k] = (
                chance.randrange(max(0, rows - 6) if near else 0, rows)
                if kind == ROW
                else chance.randrange(sources[kind])
            )
        lines.append(line)
        # Bounded again, or products run away
        lines.append([len(TABLE) - 1, len(lines) - 1, chance.randrange(2), 0])
    wanted = [len(lines) - 1, chance.randrange(len(lines)), chance.randrange(len(lines))]
    return torch.tensor(lines, dtype=torch.int32), torch.tensor([*wanted, wanted[0]], dtype=torch.int32)


@pytest.mark.parametrize("needs", [(True, True), (True, False), (False, True)])
def test_kernels_with_slots_agree_with_the_reference(needs):
    settings = ProgramSettings((interned(Logistic()),))
    for seed in range(12):
        program, wanted = random_program(seed, 5 + 10 * seed)
        generator = torch.Generator().manual_seed(seed)
        # A whole block and a part of one
        x = torch.randn(140, 2, generator=generator, dtype=torch.float64)
        steepness = torch.tensor([0.7, 1.5], dtype=torch.float64)
        constants = torch.tensor([0.3, -1.2], dtype=torch.float64)
        weights = torch.randn(140, len(wanted), generator=generator, dtype=torch.float64)
        found = {}
        for backend in ("reference", "numba"):
            leaves = [x.clone().requires_grad_(needs[0]), steepness.clone().requires_grad_(needs[1])]
            tensors = [*leaves, constants, program, wanted, torch.tensor([seed, 7])]
            y = PROGRAM(tensors, settings, backend)[0]
            asked = [leaf for leaf in leaves if leaf.requires_grad]
            grads = [None] * len(asked)
            if y.requires_grad:
                grads = torch.autograd.grad((y * weights).sum(), asked, allow_unused=True)
            zeros = [torch.zeros_like(leaf) if g is None else g for g, leaf in zip(grads, asked, strict=True)]
            found[backend] = (y.detach(), *zeros)
        torch.testing.assert_close(found["numba"], found["reference"], rtol=1e-9, atol=1e-12)


def test_slots_are_shared_and_only_what_gradients_read_is_kept():
    """x -> 0.3 x + x, a thousand times: three rows are alive at a time, and no gradient reads any but that of the constant."""
    from algonet.smooth_python.kernels import numba, schedule

    names = [row.name for row in TABLE]
    mul, add = names.index("mul"), names.index("add")
    lines = [[0, 0, 0, 0], [1, 0, 0, 0]]
    for _ in range(1000):
        row = 0 if len(lines) == 2 else len(lines) - 1
        lines += [[mul, 1, row, 0], [add, len(lines), row, 0]]
    table = numba.kernels(ProgramSettings((interned(Logistic()),)), "numba64").table
    program, wanted = np.array(lines, dtype=np.int32), np.array([len(lines) - 1], dtype=np.int32)
    _, (steps, slots) = schedule.forward_schedule(program, wanted, table)
    assert steps == 2002
    assert slots <= 4
    _, (steps, slots, _, _, slopes) = schedule.backward_schedule(program, wanted, table, True, False)
    assert (steps, slots) == (1, 1)
    assert slopes <= 3


@pytest.mark.parametrize("backend", ["reference", "numba"])
def test_bounds_of_a_clamp_that_cross_are_taken_as_torch_takes_them(backend):
    x = torch.tensor([-1.0, 0.5, 2.0], dtype=torch.float64).repeat(2)
    low = torch.tensor([0.2, 1.0], dtype=torch.float64).repeat_interleave(3)
    high = torch.tensor([1.0, 0.2], dtype=torch.float64).repeat_interleave(3)
    names = ["input"] * 3 + ["clamp"]
    places = [[0, 0, 0], [1, 0, 0], [2, 0, 0], [0, 1, 2]]
    lines = [[operation.code_of(name), *place] for name, place in zip(names, places, strict=True)]
    inputs = torch.stack([x, low, high], 1).requires_grad_()
    numbers = [inputs, inputs.new_zeros(0), inputs.new_zeros(0)]
    program, wanted = torch.tensor(lines, dtype=torch.int32), torch.tensor([3], dtype=torch.int32)
    found = PROGRAM([*numbers, program, wanted, torch.zeros(2, dtype=torch.int64)], ProgramSettings(()), backend)[0]
    expected = torch.clamp(*inputs.unbind(1))
    assert torch.equal(found[:, 0], expected)
    slopes = [torch.autograd.grad(y.sum(), inputs)[0] for y in (found, expected)]
    assert torch.equal(*slopes)

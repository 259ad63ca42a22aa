"""Random smooth programs give the same numbers whichever way they run, and at high steepness those of plain Python."""

from __future__ import annotations

import random

import pytest

from .reading import EXAMPLES
from .smooth_programs import Statement, Writer, failure, shrunk, source


@pytest.mark.parametrize("part", range(4))
def test_a_random_program_has_one_meaning(part):
    first = random.SystemRandom().getrandbits(40) if EXAMPLES else 1000 * part
    for seed in range(first, first + (max(EXAMPLES // 4, 1) if EXAMPLES else 3)):
        program = Writer(seed).program
        found = failure(program)
        if found is not None:
            small = shrunk(program, found[0])
            way, problem = failure(small, (found[0],)) or found
            pytest.fail(f"seed {seed}, run {way}: {problem}\n\n{source(small)}")


def test_a_failing_program_shrinks_to_what_fails():
    """Checked on a fault of our own making: reading `c` fails in one way only."""
    program = Writer(7).program
    guilty = Statement("if a > 0.1:", [Statement("b = b * 0.5"), Statement("a = undefined_name + a")])
    small = shrunk([*program[:-1], guilty, program[-1]], "recorded")
    text = source(small)
    assert "undefined_name" in text
    assert len(small) <= 3

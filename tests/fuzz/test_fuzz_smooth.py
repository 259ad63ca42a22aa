"""Random smooth programs give the same numbers whichever way they run, and at high steepness those of plain Python."""

from __future__ import annotations

import pytest

from .hunt import failure, sample, shrunk
from .smooth_programs import SmoothPrograms, Statement, Writer, source


@pytest.mark.parametrize("part", range(4))
def test_a_random_program_has_one_meaning(part):
    sample(SmoothPrograms(), part, 3)


def test_a_failing_program_shrinks_to_what_fails():
    """Checked on a fault of our own making: reading `c` fails in one way only."""
    program, target = Writer(7).program, SmoothPrograms()
    guilty = Statement("if a > 0.1:", [Statement("b = b * 0.5"), Statement("a = undefined_name + a")])
    case = [*program[:-1], guilty, program[-1]]
    found = failure(target, case, ("recorded",))
    assert found is not None
    small, again = shrunk(target, case, found)
    assert again.way == "recorded"
    assert "undefined_name" in source(small)
    assert len(small) <= 3

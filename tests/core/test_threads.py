"""The pool that kernels share."""

from __future__ import annotations

import threading

import pytest
import torch

from algonet.core import threads


@pytest.fixture
def three_threads():
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    yield
    torch.set_num_threads(before)


def test_every_call_is_made_once_and_waited_for(three_threads):
    seen: list[int] = []
    threads.spread(seen.append, [(i,) for i in range(20)])
    assert sorted(seen) == list(range(20))


def test_calls_run_side_by_side(three_threads):
    barrier = threading.Barrier(2, timeout=300)
    threads.spread(barrier.wait, [(), ()])


def test_errors_come_through(three_threads):
    def fail(i):
        if i == 2:
            raise RuntimeError("two")

    with pytest.raises(RuntimeError, match="two"):
        threads.spread(fail, [(i,) for i in range(4)])

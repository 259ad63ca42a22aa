"""Kernels started again without Triton's front door: the same code, other tensors, other numbers."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from algonet.core.launch import Launch, _straight


@pytest.fixture
def scaled():
    pytest.importorskip("triton")
    from algonet.core.codegen import generate as codegen

    source = f"""{codegen.PRELUDES["triton"]}

@triton.jit(do_not_specialize=["x", "y", "n", "factor"])
def scaled(x, y, n, factor, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + i, factor * tl.load(x + i, mask=i < n), mask=i < n)
"""
    return codegen.load("scaled_test", source).scaled


@pytest.mark.gpu
def test_every_start_gives_the_same(scaled):
    for n, factor in ((5, 2.0), (64, 3.0), (1, 5.0), (4096, -1.0)):
        launch = Launch(scaled, -(-n // 32), warps=1, n=n, factor=factor, BLOCK=32)
        for start in range(4):
            # From the second start on unaligned: code that was compiled for aligned memory would fault or misread
            x = torch.arange(n + start, device="cuda", dtype=torch.float32)[start:]
            y = torch.full((n + 1,), 7.0, device="cuda")
            launch.start(x=x, y=y[:n])
            torch.testing.assert_close(y[:n], factor * x)
            assert y[n] == 7


class Kernel:
    """Remembers the grids it was started on."""

    arg_names = ("x", "y", "n", "factor", "BLOCK")

    @staticmethod
    def fn(x, y, n, factor, BLOCK: tl.constexpr): ...  # noqa: F821 # pyright: ignore[reportUndefinedVariable]

    def __init__(self):
        self.grids = []

    def __getitem__(self, grid):
        self.grids.append(grid)
        return lambda *arguments, **options: None


@pytest.mark.parametrize("interpreting", [True, False])
def test_an_empty_grid_starts_nothing(interpreting, monkeypatch):
    monkeypatch.setattr("algonet.core.launch.interpreting", lambda: interpreting)
    kernel, x = Kernel(), torch.zeros(0)
    for grid in (0, (3, 0), (0, 2, 2)):
        Launch(kernel, grid, warps=1, n=0, factor=1.0, BLOCK=32).start(x=x, y=x)
    assert kernel.grids == []
    if interpreting:  # one that is not empty does start
        Launch(kernel, (3, 2), warps=1, n=0, factor=1.0, BLOCK=32).start(x=x, y=x)
        assert kernel.grids == [(3, 2, 1)]


def test_hooks_that_are_set_later_are_called(monkeypatch):
    """Without any, the compiled code runs on the current stream; with one, all goes through Triton's own runner."""
    knobs = pytest.importorskip("triton.knobs")
    from triton.runtime import driver

    if not hasattr(knobs.runtime.launch_enter_hook, "calls"):
        pytest.skip("this release of Triton has hooks of another kind")
    device = SimpleNamespace(get_current_device=lambda: 3, get_current_stream=lambda index: 100 + index)
    monkeypatch.setattr(driver, "_active", device)
    started = []
    compiled = SimpleNamespace(run=lambda *a: started.append(a), function="code", packed_metadata="numbers")
    straight = _straight(compiled, (4, 2, 1), lambda *a: started.append(("runner", *a)))
    straight(7, 8)
    knobs.runtime.launch_enter_hook.add(print)
    try:
        straight(7, 8)
    finally:
        knobs.runtime.launch_enter_hook.remove(print)
    assert started == [(4, 2, 1, 103, "code", "numbers", None, None, None, 7, 8), ("runner", 7, 8)]


def test_names_are_the_kernels_own():
    x, numbers = torch.zeros(3), {"n": 3, "factor": 1.0, "BLOCK": 32}
    with pytest.raises(TypeError, match="fn has no argument m"):
        Launch(Kernel(), 1, **numbers, m=1)
    with pytest.raises(TypeError, match="tensors come first in its signature, not x"):
        Launch(Kernel(), 1, n=3, x=x)
    launch = Launch(Kernel(), 1, **numbers)
    with pytest.raises(TypeError, match="unexpected keyword argument 'z'"):
        launch.start(x=x, y=x, z=x)
    with pytest.raises(TypeError, match="missing 1 required positional argument: 'y'"):
        launch.start(x=x)

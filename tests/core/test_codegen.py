"""Formulas in every dialect equal the relaxation they belong to, and generated modules are cached and readable."""

from __future__ import annotations

import os
import subprocess
import sys

import numpy as np
import pytest
import torch

from algonet.core.codegen import generate as codegen
from algonet.relax import EXITS, SIGMOIDS, Logistic, Probabilistic, SmoothStep, SmoothTent

FORMULAS = [R() for R in (*SIGMOIDS, *EXITS)] + [SmoothStep(k) for k in (0, 2, 5)] + [SmoothTent(k) for k in (0, 2, 5)]
LOOP = """
@njit(cache=True)
def run(x, value, slope):
    for i in range(x.size):
        value[i], slope[i] = unit(x[i])
"""
KERNEL = """
@triton.jit
def run(x, value, slope, n, block: tl.constexpr):
    i = tl.arange(0, block)
    v, s = unit(tl.load(x + i, mask=i < n, other=0.0))
    tl.store(value + i, v, mask=i < n)
    tl.store(slope + i, s, mask=i < n)
"""


def arguments():
    near = torch.cat([torch.linspace(-30, 30, 241), torch.linspace(-1.2, 1.2, 97)]) + 1e-4
    return torch.cat([near, torch.tensor([-1e30, -1e4, 1e4, 1e30, torch.nan])]).double()


def expected(relaxation):
    """Value and slope as functions of the scaled argument, from the plain torch form."""
    z = arguments().requires_grad_()
    value = relaxation(z / getattr(relaxation, "steepness", 1.0))
    (slope,) = torch.autograd.grad(value.sum(), z)
    return value.detach().numpy(), slope.numpy()


@pytest.mark.parametrize(
    ("dialect", "dtype", "tolerance"), [("numba64", np.float64, 1e-12), ("numba32", np.float32, 2e-6)]
)
@pytest.mark.parametrize("relaxation", FORMULAS, ids=lambda r: r.key)
def test_numba_formula(relaxation, dialect, dtype, tolerance):
    source = codegen.PRELUDES[dialect] + codegen.scalar_function(relaxation, "unit", dialect) + LOOP
    x = arguments().numpy().astype(dtype)
    value, slope = np.full_like(x, np.nan), np.full_like(x, np.nan)
    codegen.load("test", source).run(x, value, slope)
    want_value, want_slope = expected(relaxation)
    np.testing.assert_allclose(value, want_value, atol=tolerance)
    # A NaN comes out as a NaN; its slope means nothing
    np.testing.assert_allclose(slope[:-1], want_slope[:-1], atol=tolerance)


def check_triton_formulas() -> None:
    """Runs in a process of its own, where Triton's interpreter is on."""
    for relaxation in FORMULAS:
        source = codegen.PRELUDES["triton"] + codegen.scalar_function(relaxation, "unit", "triton") + KERNEL
        for dtype, tolerance in ((torch.float32, 2e-6), (torch.float64, 1e-12)):
            x = arguments().to(dtype)
            value, slope = torch.full_like(x, torch.nan), torch.full_like(x, torch.nan)
            with np.errstate(over="ignore"):
                codegen.load("test", source).run[(1,)](x, value, slope, x.numel(), 512)
            want_value, want_slope = expected(relaxation)
            np.testing.assert_allclose(value.numpy(), want_value, atol=tolerance, err_msg=relaxation.key)
            np.testing.assert_allclose(slope.numpy()[:-1], want_slope[:-1], atol=tolerance, err_msg=relaxation.key)


def test_triton_formulas():
    pytest.importorskip("triton")
    command = "import test_codegen; test_codegen.check_triton_formulas(); print('all equal')"
    folder = os.path.dirname(__file__)
    environment = {**os.environ, "TRITON_INTERPRET": "1", "PYTHONPATH": os.pathsep.join([folder, *sys.path])}
    done = subprocess.run([sys.executable, "-c", command], env=environment, capture_output=True, text=True, timeout=300)
    assert "all equal" in done.stdout, done.stderr[-2000:]


def test_generated_modules_are_written_once_and_readable(tmp_path, monkeypatch):
    monkeypatch.setenv("ALGONET_CACHE", str(tmp_path))
    first = codegen.load("demo", "answer = 42\n")
    assert first is codegen.load("demo", "answer = 42\n")
    assert codegen.load("demo", "answer = 43\n").answer == 43
    assert len(list(tmp_path.glob("*.py"))) == 2
    assert not list(tmp_path.glob("*.tmp"))


def test_broken_source_leaves_nothing_half_loaded(tmp_path, monkeypatch):
    monkeypatch.setenv("ALGONET_CACHE", str(tmp_path))
    for _ in range(2):
        with pytest.raises(ZeroDivisionError):
            codegen.load("demo", "1 / 0\n")


def test_unwritable_cache_falls_back_to_a_temporary_folder(tmp_path, monkeypatch):
    blocked = tmp_path / "file"
    blocked.write_text("")
    monkeypatch.setenv("ALGONET_CACHE", str(blocked))
    assert codegen.cache_folder() != blocked


def test_relaxations_without_a_formula_are_refused():
    with pytest.raises(ValueError, match="Probabilistic has no formula for kernels; use the reference"):
        codegen.scalar_function(Probabilistic(), "unit", "numba64")
    assert "tl.exp" in codegen.scalar_function(Logistic(), "unit", "triton")

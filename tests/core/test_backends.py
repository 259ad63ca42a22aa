"""The registry: auto takes the fastest that can, a named backend runs or says why not."""

from __future__ import annotations

import pytest
import torch

from algonet.core import backends


def way(backend, supports=lambda call: None):
    return backends.Implementation(backend, lambda call: (backend, call), supports)


def run(backend, call):
    return backends.choose("toy", backend, call).run(call)


@pytest.fixture
def toy(monkeypatch):
    monkeypatch.setattr(backends, "_OPERATIONS", {})
    monkeypatch.setattr(backends, "_EXAMPLES", {})
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    numba = way("numba", lambda call: None if call < 10 else "ten is too much")
    backends.add("toy", [way("reference"), numba, way("triton", lambda call: "no GPU")], lambda device: 3)


def test_auto_takes_the_fastest_that_supports_the_call(toy):
    assert run("auto", 3) == ("numba", 3)
    assert run("auto", 30) == ("reference", 30)


def test_named_backend_runs_or_says_why_not(toy):
    assert run("reference", 3) == ("reference", 3)
    with pytest.raises(
        ValueError, match=r"toy: backend 'numba' cannot take this call: ten is too much\. Use .*'reference'"
    ):
        run("numba", 30)


def test_unknown_backend_lists_the_known(toy):
    with pytest.raises(ValueError, match=r"unknown backend 'cuda'; choose one of auto, triton, numba, reference"):
        run("cuda", 3)
    with pytest.raises(ValueError, match=r"toy: unknown backend 'cuda'"):
        backends.add("toy", [way("cuda")])


def test_no_backend_at_all_gives_every_reason(monkeypatch):
    monkeypatch.setattr(backends, "_OPERATIONS", {})
    backends.add("toy", [way("numba", lambda call: "it is raining")])
    with pytest.raises(ValueError, match="no backend takes this call: numba: it is raining"):
        run("auto", 3)


def test_survey_tells_which_run_and_why_not(toy):
    assert backends.survey() == {"toy": {"reference": None, "numba": None, "triton": "no GPU"}}


def test_auto_never_picks_the_interpreter(toy, monkeypatch):
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    backends.add("toy", [way("numba"), way("triton")])
    assert run("auto", 3) == ("numba", 3)
    assert run("triton", 3) == ("triton", 3)


def test_reasons_name_the_package_or_the_device(monkeypatch):
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    x = torch.ones(2)
    assert backends.NUMBA.why_not_here([x]) is None
    assert "run on the CPU and a tensor is on meta" in str(backends.NUMBA.why_not_here([x.to("meta")]))
    assert "a tensor is on cpu" in str(backends.TRITON.why_not_here([x]))
    monkeypatch.setattr(backends, "_INSTALLED", {"numba": False, "triton": False})
    assert "numba is not installed (pip install numba)" in str(backends.NUMBA.why_not_here([x]))
    assert "triton is not installed" in str(backends.TRITON.why_not_here([x]))

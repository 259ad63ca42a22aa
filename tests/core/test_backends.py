"""The registry: auto takes the fastest that can, a named backend runs or says why not."""

from __future__ import annotations

import pytest
import torch

from algonet.core import backends


@pytest.fixture
def toy(monkeypatch):
    monkeypatch.setattr(backends, "_REGISTRY", {})
    monkeypatch.setattr(backends, "_EXAMPLES", {})
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    backends.register("toy", "reference")(lambda call: ("reference", call))
    backends.register("toy", "numba", supports=lambda call: None if call < 10 else "ten is too much")(
        lambda call: ("numba", call)
    )
    backends.register("toy", "triton", supports=lambda call: "no GPU")(lambda call: ("triton", call))
    backends.register_example("toy")(lambda device: 3)


def test_auto_takes_the_fastest_that_supports_the_call(toy):
    assert backends.dispatch("toy", "auto", 3) == ("numba", 3)
    assert backends.dispatch("toy", "auto", 30) == ("reference", 30)


def test_named_backend_runs_or_says_why_not(toy):
    assert backends.dispatch("toy", "reference", 3) == ("reference", 3)
    with pytest.raises(
        ValueError, match=r"toy: backend 'numba' cannot take this call: ten is too much\. Use .*'reference'"
    ):
        backends.dispatch("toy", "numba", 30)


def test_unknown_backend_lists_the_known(toy):
    with pytest.raises(ValueError, match=r"unknown backend 'cuda'; choose one of auto, triton, numba, reference"):
        backends.dispatch("toy", "cuda", 3)
    with pytest.raises(ValueError, match=r"register: unknown backend 'cuda'"):
        backends.register("toy", "cuda")


def test_no_backend_at_all_gives_every_reason(monkeypatch):
    monkeypatch.setattr(backends, "_REGISTRY", {})
    backends.register("toy", "numba", supports=lambda call: "it is raining")(lambda call: call)
    with pytest.raises(ValueError, match="no backend takes this call: numba: it is raining"):
        backends.dispatch("toy", "auto", 3)


def test_survey_tells_which_run_and_why_not(toy):
    assert backends.survey() == {"toy": {"reference": None, "numba": None, "triton": "no GPU"}}


def test_auto_never_picks_the_interpreter(toy, monkeypatch):
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    backends.register("toy", "triton")(lambda call: ("triton", call))
    assert backends.dispatch("toy", "auto", 3) == ("numba", 3)
    assert backends.dispatch("toy", "triton", 3) == ("triton", 3)


def test_reasons_name_the_package_or_the_device(monkeypatch):
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    x = torch.ones(2)
    assert backends.why_not_numba(x) is None
    assert "run on the CPU and a tensor is on meta" in str(backends.why_not_numba(x.to("meta")))
    assert "a tensor is on cpu" in str(backends.why_not_triton(x))
    monkeypatch.setattr(backends, "_INSTALLED", {"numba": False, "triton": False})
    assert "numba is not installed (pip install numba)" in str(backends.why_not_numba(x))
    assert "triton is not installed" in str(backends.why_not_triton(x))

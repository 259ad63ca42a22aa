"""Auto takes the fastest that can, a named backend runs or says why not."""

from __future__ import annotations

import pytest
import torch

from algonet.core import backends

WAYS = {
    "reference": lambda call: None,
    "numba": lambda call: None if call < 10 else "ten is too much",
    "triton": lambda call: "no GPU",
}


def pick(backend, call, ways=WAYS):
    return backends.pick("toy", backend, tuple(ways), lambda name: ways[name](call))


@pytest.fixture(autouse=True)
def _no_interpreter(monkeypatch):
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)


def test_auto_takes_the_fastest_that_supports_the_call():
    assert pick("auto", 3) == "numba"
    assert pick("auto", 30) == "reference"


def test_named_backend_runs_or_says_why_not():
    assert pick("reference", 3) == "reference"
    with pytest.raises(
        ValueError, match=r"toy: backend 'numba' cannot take this call: ten is too much\. Use .*'reference'"
    ):
        pick("numba", 30)


def test_unknown_backend_lists_the_known():
    with pytest.raises(ValueError, match=r"unknown backend 'cuda'; choose one of auto, triton, numba, reference"):
        pick("cuda", 3)


def test_no_backend_at_all_gives_every_reason():
    with pytest.raises(ValueError, match="no backend takes this call: numba: it is raining"):
        pick("auto", 3, {"numba": lambda call: "it is raining"})


def test_auto_never_picks_the_interpreter(monkeypatch):
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    ways = {"numba": lambda call: None, "triton": lambda call: None}
    assert pick("auto", 3, ways) == "numba"
    assert pick("triton", 3, ways) == "triton"


def test_reasons_name_the_package_or_the_device(monkeypatch):
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    x = torch.ones(2)
    assert backends.NUMBA.why_not([x]) is None
    assert "run on the CPU and a tensor is on meta" in str(backends.NUMBA.why_not([x.to("meta")]))
    assert "a tensor is on cpu" in str(backends.TRITON.why_not([x]))
    monkeypatch.setattr(backends, "_INSTALLED", {"numba": False, "triton": False})
    assert "numba is not installed (pip install numba)" in str(backends.NUMBA.why_not([x]))
    assert "triton is not installed" in str(backends.TRITON.why_not([x]))

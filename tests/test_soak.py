"""Long runs: memory, threads and files over mixed calls of all domains; sixteen threads on one module; fork after use."""

from __future__ import annotations

import os
import sys
import threading
import warnings

import pytest
import torch

import algonet
import soak
from algonet.while_lang import NonHaltingWarning
from soak import Look

linux = pytest.mark.skipif(sys.platform != "linux", reason="what is watched is read from /proc")


@linux
@pytest.mark.slow
def test_mixed_calls_leave_threads_and_files_as_they_were():
    """The short version; `python -m soak --seconds 3600` is the long one, and watches memory too."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", NonHaltingWarning)
        found = soak.soak(seconds=4, looks=8)
    assert found[-1].calls >= 4 * len(soak.DOMAINS)
    grown = [fault for fault in soak.verdict(found) if fault.startswith(("threads", "files"))]
    assert not grown


def test_growth_is_noticed():
    """What is watched can fail: each figure that grows is named, and one that comes and goes is not."""
    flat = [Look(i, 100 * i, 500.0 + i % 2, 3, 9, 1000) for i in range(20)]
    assert soak.verdict(flat) == []
    for name, step in (("mib", 10.0), ("threads", 1), ("files", 1), ("objects", 1000)):
        growing = [one._replace(**{name: getattr(one, name) + step * i}) for i, one in enumerate(flat)]
        (fault,) = soak.verdict(growing)
        assert fault.startswith(name)


def _layers() -> list[tuple[torch.nn.Module, tuple]]:
    x = torch.rand(40, 12, generator=torch.Generator().manual_seed(0))
    mesh, camera = algonet.icosphere(1), algonet.Camera.look_at((0.0, 0.0, 3.0))
    return [
        (algonet.SoftSort(), (x,)),
        (algonet.SoftRank(), (x,)),
        (algonet.IFS.preset("koch", points=500), (24,)),
        (algonet.SmoothRenderer(16), (mesh, camera)),
        (algonet.Insert(algonet.WhileProgram.library("add")), (3 * x[:, :2],)),
    ]


def _result(layer: torch.nn.Module, inputs: tuple) -> torch.Tensor:
    out = layer(*inputs)
    return (out if isinstance(out, torch.Tensor) else out[0]).detach()


@pytest.mark.parametrize("number", range(5))
def test_sixteen_threads_on_one_module(number):
    layer, inputs = _layers()[number]
    expected = _result(layer, inputs)
    begin, found = threading.Barrier(16), []

    def work() -> None:
        begin.wait()
        found.extend(_result(layer, inputs) for _ in range(3))

    running = [threading.Thread(target=work) for _ in range(16)]
    for thread in running:
        thread.start()
    for thread in running:
        thread.join()
    assert len(found) == 48
    assert all(torch.equal(one, expected) for one in found)


class _Results(torch.utils.data.Dataset):
    """Every layer's result, as an epoch of a data set that computes its samples with them."""

    def __len__(self) -> int:
        return len(_layers())

    def __getitem__(self, number: int) -> torch.Tensor:
        return _result(*_layers()[number])


@pytest.mark.skipif(not hasattr(os, "fork"), reason="nothing forks here")
def test_workers_of_a_loader_fork_after_use():
    """A child inherits what its parent has compiled and kept, and none of its threads."""
    expected = list(_Results())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # Python 3.12: the process has threads
        loader = torch.utils.data.DataLoader(
            _Results(), batch_size=None, num_workers=2, multiprocessing_context="fork", timeout=300
        )
        found = list(loader)
    assert len(found) == len(expected)
    assert all(torch.equal(*pair) for pair in zip(found, expected, strict=True))

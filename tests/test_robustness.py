"""CPU kernels from several threads at once, inside DataLoader workers, and over many calls without growing memory."""

from __future__ import annotations

import gc
import os
import threading
from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from algonet.ifs import Poisson, smooth_raster
from algonet.render import Camera, icosphere, render_attributes
from algonet.smooth_python.algorithms import bubble_sort
from algonet.sorting import soft_sort
from algonet.while_lang import WhileProgram


def _draw(*shape: int) -> Tensor:
    return torch.rand(*shape, generator=torch.Generator().manual_seed(0))


def sort() -> Tensor:
    return soft_sort(_draw(4000, 16), backend="numba").values


def program() -> Tensor:
    x = 4 * _draw(2, 4000)
    return WhileProgram.library("multiply", backend="numba")(x1=x[0], x2=x[1])


def raster() -> Tensor:
    return smooth_raster(
        _draw(20000, 2), size=(32, 48), sigma=1.0, extent=(0, 1, 0, 1), aggregate=Poisson(), backend="numba"
    )


def render() -> Tensor:
    mesh = icosphere(2)
    camera = Camera.look_at((0.0, 0.0, 3.0))
    return render_attributes(mesh.vertices, mesh.faces, mesh.vertices, camera, size=(32, 32), backend="numba")[0]


def smooth() -> Tensor:
    return bubble_sort(_draw(500, 10), batched=True)[0]


#: Large enough that each kernel uses several threads of its own.
OPERATIONS = {f.__name__: f for f in (sort, program, raster, render, smooth)}


class Results(Dataset):
    """Each item is computed by a kernel inside a worker process."""

    def __len__(self) -> int:
        return len(OPERATIONS)

    def __getitem__(self, index: int) -> Tensor:
        return list(OPERATIONS.values())[index]().double().sum()


@pytest.mark.parametrize("name", OPERATIONS)
def test_two_threads_at_once(name):
    operation = OPERATIONS[name]
    expected = operation()
    wrong: list[str] = []

    def work() -> None:
        for _ in range(5):
            if not torch.equal(operation(), expected):
                wrong.append(name)

    running = [threading.Thread(target=work) for _ in range(2)]
    for thread in running:
        thread.start()
    for thread in running:
        thread.join()
    assert not wrong


@pytest.mark.parametrize("context", ["fork", "spawn"])
@pytest.mark.slow
def test_inside_dataloader_workers(context):
    expected = [operation().double().sum() for operation in OPERATIONS.values()]
    loader = DataLoader(Results(), batch_size=None, num_workers=2, multiprocessing_context=context, timeout=300)
    for got, want in zip(loader, expected, strict=True):
        torch.testing.assert_close(got, want)


def _resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="resident size is read from /proc")
@pytest.mark.parametrize("name", OPERATIONS)
def test_memory_is_flat_over_many_calls(name):
    for _ in range(5):
        OPERATIONS[name]()
    gc.collect()
    before = _resident()
    for _ in range(40):
        OPERATIONS[name]()
    gc.collect()
    grown = (_resident() - before) / 2**20
    assert grown < 20, f"{grown:.1f} MiB more after 40 calls"

"""Every operation from several threads at once, inside DataLoader workers, and over and over without growing memory.

The soak takes a slice of a second per operation; a long one: ALGONET_SOAK_SECONDS=60 pytest tests/test_robustness.py -k memory
"""

from __future__ import annotations

import gc
import itertools
import mmap
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from algonet.ifs import FitPlan, Level, Poisson, Search, fit_ifs, smooth_raster
from algonet.render import Camera, fit_camera, fit_mesh, icosphere, render_attributes
from algonet.smooth_python import Merge
from algonet.smooth_python.algorithms import bubble_sort
from algonet.sorting import soft_sort
from algonet.while_lang import WhileProgram
from helpers.contract import gradients
from matrix.operations import OPERATIONS
from matrix.transforms import Operation


@pytest.fixture(autouse=True)
def _two_threads() -> Iterator[None]:
    """Large calls are to use threads of their own here, however many the test run as a whole allows."""
    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(threads)


NAMES = [operation.case.name for operation in OPERATIONS]
BY_NAME = dict(zip(NAMES, OPERATIONS, strict=True))
SECONDS = float(os.environ.get("ALGONET_SOAK_SECONDS", "0.2"))


def _draw(*shape: int) -> Tensor:
    return torch.rand(*shape, generator=torch.Generator().manual_seed(0))


def sort() -> Tensor:
    return soft_sort(_draw(4000, 16), backend="numba").values


#: Made once: a program has a plan of its own, of which the table holds some thousands.
MULTIPLY = WhileProgram.library("multiply", backend="numba")


def program() -> Tensor:
    x = 4 * _draw(2, 4000)
    return MULTIPLY(x1=x[0], x2=x[1])


def raster() -> Tensor:
    return smooth_raster(
        _draw(20000, 2), size=(32, 48), sigma=1.0, extent=(0, 1, 0, 1), aggregate=Poisson(), backend="numba"
    )


def render() -> Tensor:
    mesh = icosphere(2)
    camera = Camera.look_at((0.0, 0.0, 3.0))
    return render_attributes(mesh.vertices, mesh.faces, mesh.vertices, camera, size=(32, 32), backend="numba")[0]


def smooth() -> Tensor:
    return bubble_sort(_draw(500, 10), batched=True, paths=Merge(check=False))[0]


#: Large enough that each kernel uses several threads of its own.
LARGE = {f.__name__: f for f in (sort, program, raster, render, smooth)}


def worked(operation: Operation, batch: int = 16, backend: str | None = None) -> list[Tensor]:
    """Outputs and gradients of an operation on typical inputs."""
    outputs, slopes = gradients(operation.case, operation.case.draw(batch, torch.float32), backend)
    return [t.detach() for t in (*outputs, *slopes)]


def _checked_in_two_threads(work: Callable[[], list[Tensor]], rounds: int) -> None:
    expected = work()
    wrong: list[str] = []

    def run() -> None:
        for _ in range(rounds):
            if not all(torch.equal(got, want) for got, want in zip(work(), expected, strict=True)):
                wrong.append("another result")

    running = [threading.Thread(target=run) for _ in range(2)]
    for thread in running:
        thread.start()
    for thread in running:
        thread.join()
    assert not wrong


@pytest.mark.parametrize("name", LARGE)
def test_large_kernels_in_two_threads_at_once(name):
    _checked_in_two_threads(lambda: [LARGE[name]()], rounds=5)


@pytest.mark.parametrize("name", NAMES)
def test_operation_and_its_gradient_in_two_threads_at_once(name):
    _checked_in_two_threads(lambda: worked(BY_NAME[name]), rounds=5)


class Results(Dataset):
    """Item i is what operation i and its gradient give, computed inside a worker process."""

    def __len__(self) -> int:
        return len(LARGE) + len(OPERATIONS)

    def __getitem__(self, index: int) -> Tensor:
        if index < len(LARGE):
            return list(LARGE.values())[index]().double().sum()
        return torch.stack([t.double().sum() for t in worked(OPERATIONS[index - len(LARGE)])])


@pytest.mark.parametrize("context", ["fork", "spawn"])
@pytest.mark.slow
def test_every_operation_inside_dataloader_workers(context):
    results = Results()
    expected = [results[i] for i in range(len(results))]
    loader = DataLoader(results, batch_size=None, num_workers=2, multiprocessing_context=context, timeout=300)
    for got, want in zip(loader, expected, strict=True):
        torch.testing.assert_close(got, want)


@pytest.mark.slow
def test_every_operation_compiles_before_it_has_run():
    """In a process of its own: what an eager call leaves in a cache must not be what makes compiling work."""
    code = (
        "import torch\nfrom matrix.operations import OPERATIONS\n"
        "for operation in OPERATIONS:\n"
        "    case = operation.case\n"
        "    torch._dynamo.reset()\n"
        "    compiled = torch.compile(lambda *t: case(*t), fullgraph=True, backend='aot_eager')\n"
        "    compiled(*case.draw(3, torch.float32))\n"
        "    print(case.name)"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), *sys.path])}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, timeout=300)
    assert done.stdout.splitlines() == NAMES, done.stderr[-2000:]


def _taken() -> int:
    """Bytes of memory of this process's own: pages of files come and go as the system likes, and so may go to swap."""
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return sum(int(status[name].split()[0]) * 1024 for name in ("RssAnon", "VmSwap"))


def _soak(work: Callable[[], object], seconds: float = SECONDS, warm: int = 3, least: int = 10) -> None:
    """Call `work` for a while, `least` times: neither the process nor the number of Python objects may grow with the calls."""
    # What is there already is not counted: to walk through it takes longer than all the calls
    gc.collect()
    gc.freeze()
    for _ in range(warm):
        work()
    gc.collect()
    gc.collect()  # what a first collection let go of may have held more
    before, objects, calls = _taken(), len(gc.get_objects()), 0
    end = time.perf_counter() + seconds
    while time.perf_counter() < end or calls < least:
        work()
        calls += 1
    gc.collect()
    kept = len(gc.get_objects()) - objects
    # The least of several looks: what an allocator holds goes up and down by tens of MiB, a leak only up
    after = _taken()
    for _ in range(least // 2):
        work()
        after = min(after, _taken())
    grown = (after - before) / 2**20
    assert kept < 50 + 0.5 * calls, f"{kept} more objects after {calls} calls"
    assert grown < 20, f"{grown:.1f} MiB more after {calls} calls"


needs_proc = pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="memory is read from /proc")


@needs_proc
@pytest.mark.parametrize("name", NAMES)
def test_memory_is_flat_over_many_calls_of_every_size(name):
    """Batches of all sizes in turn: what is kept per shape must be bounded too."""
    sizes = itertools.cycle(range(1, 41))
    operation = BY_NAME[name]
    _soak(lambda: worked(operation, next(sizes)), warm=45)


@needs_proc
@pytest.mark.parametrize("name", LARGE)
def test_memory_is_flat_over_large_calls(name):
    _soak(LARGE[name])


@needs_proc
@pytest.mark.slow
@pytest.mark.parametrize(
    "name", ["soft_sort", "WHILE-program", "@smooth (bubble_sort)", "chaos_game", "smooth_raster", "render_attributes"]
)
def test_memory_is_flat_over_compiled_calls(name):
    case = BY_NAME[name].case
    torch._dynamo.reset()
    compiled = torch.compile(lambda *tensors: case(*tensors), fullgraph=True, backend="aot_eager")

    def work() -> None:
        leaves = [t.requires_grad_() for t in case.draw(3, torch.float32)]
        sum(o.sum() for o in compiled(*leaves)).backward()

    _soak(work)


def _fit_ifs() -> None:
    level = Level(side=16, sigma=(2.0, 1.0), steps=3, rate=0.01, points=64, depth=8, keep=1)
    target = smooth_raster(_draw(200, 2), size=(16, 16), aggregate=Poisson(), weights=torch.ones(200))
    fit_ifs(
        target.clamp(0, 1), functions=2, plan=FitPlan(2, Search(candidates=2, points=16, steps=2, side=16), (level,))
    )


def _fit_mesh() -> None:
    eyes = torch.tensor([[0.0, 0.0, 3.0], [3.0, 0.0, 0.0]])
    fit_mesh(torch.ones(2, 12, 12), Camera.look_at(eyes), icosphere(1), steps=2)


def _fit_camera() -> None:
    fit_camera(icosphere(1), torch.zeros(12, 12, 4), Camera.look_at((0.0, 0.0, 3.0)), steps=2)


def _train_program() -> None:
    layer = WhileProgram.library("multiply", trainable=True, max_iterations=50)
    optimiser = torch.optim.Adam(layer.parameters())
    (layer(x1=_draw(8), x2=_draw(8)).square().mean() + layer.regularization()).backward()
    optimiser.step()


@needs_proc
@pytest.mark.slow
@pytest.mark.parametrize("fit", [_fit_ifs, _fit_mesh, _fit_camera, _train_program], ids=lambda fit: fit.__name__[1:])
def test_memory_is_flat_over_whole_fits(fit):
    _soak(fit, warm=2, least=5)


@needs_proc
def test_a_leak_is_noticed():
    kept: list[list] = []
    with pytest.raises(AssertionError, match="more objects"):
        _soak(lambda: kept.append([[] for _ in range(10)]), seconds=0.1)
    # Pages asked of the system itself: an allocator may hold as much from earlier tests, and hand that out instead
    pages: list[mmap.mmap] = []

    def leak() -> None:
        if len(pages) < 4:
            pages.append(mmap.mmap(-1, 150 * 2**20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS))
            pages[-1].write(b"1" * len(pages[-1]))

    with pytest.raises(AssertionError, match="MiB more"):
        _soak(leak, seconds=0.0, warm=1)

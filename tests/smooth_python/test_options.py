"""Softness by function, call and block; straight-through, memory, precisions, transforms, threads."""

from __future__ import annotations

import subprocess
import sys
import threading

import pytest
import torch
from torch.utils.checkpoint import checkpoint

from algonet.relax import Cauchy, Heaviside, Logistic, Sech
from algonet.smooth_python import Settings, smooth, softness
from algonet.smooth_python.algorithms import ALGORITHMS, bubble_sort

X = torch.tensor([-0.7, 0.1, 0.9], dtype=torch.float64)


@smooth(relax=Logistic(2.0))
def step(x):
    return 1.0 if x > 0 else 0.0


@smooth
def outer(x):
    return step(x) + (1.0 if x > 0 else 0.0)


def test_call_wins_over_block_wins_over_function():
    torch.testing.assert_close(step(X, batched=True), torch.sigmoid(2 * X))
    with softness(relax=Cauchy(3.0)):
        torch.testing.assert_close(step(X, batched=True), Cauchy(3.0)(X))
        with softness(steepness=5.0):
            torch.testing.assert_close(step(X, batched=True), Cauchy(5.0)(X))
        torch.testing.assert_close(step(X, batched=True, relax=Logistic(7.0)), torch.sigmoid(7 * X))
    torch.testing.assert_close(step(X, batched=True), torch.sigmoid(2 * X))


def test_options_of_a_call_hold_for_the_functions_it_calls():
    torch.testing.assert_close(outer(X, batched=True), torch.sigmoid(2 * X) + torch.sigmoid(10 * X))
    torch.testing.assert_close(outer(X, batched=True, steepness=3.0), 2 * torch.sigmoid(3 * X))
    with softness(relax=Heaviside()):
        assert outer(X, batched=True).tolist() == [0.0, 2.0, 2.0]


def test_steepness_sets_sigmoid_and_exit():
    settings = Settings().changed({"exit": Sech(1.0)}).changed({"steepness": 4.0})
    assert (settings.relax.steepness, settings.exit.steepness) == (4.0, 4.0)


@pytest.mark.parametrize("backend", ["numba", "reference"])
def test_steepness_is_learnable(backend):
    def run(steepness, x):
        return bubble_sort(x, batched=True, relax=Logistic(steepness), backend=backend)

    steepness = torch.tensor(3.0, dtype=torch.float64, requires_grad=True)
    x = torch.randn(2, 4, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(run, (steepness, x))
    assert torch.autograd.gradgradcheck(run, (steepness, x))


def test_blocks_are_closed_after_errors_and_not_shared_between_threads():
    def fail():
        with softness(steepness=50.0):
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    found = []
    with softness(steepness=50.0):
        thread = threading.Thread(target=lambda: found.append(step(X, batched=True)))
        thread.start()
        thread.join()
    torch.testing.assert_close(found[0], torch.sigmoid(2 * X))
    torch.testing.assert_close(step(X, batched=True), torch.sigmoid(2 * X))


def test_wrong_options_of_a_block():
    with pytest.raises(TypeError, match="unknown option 'beta'"), softness(beta=1.0):
        pass


# -- straight-through


@pytest.mark.parametrize("name", ["bubble_sort", "shortest_path", "bank_queue", "levenshtein", "binary_search"])
def test_hard_runs_have_crisp_values_and_smooth_gradients(name):
    args = {
        "bubble_sort": (torch.randn(3, 5),),
        "shortest_path": (torch.rand(3, 2, 3),),
        "bank_queue": (torch.rand(3, 5), 3 * torch.rand(3, 5), 2),
        "levenshtein": (torch.tensor([[1.0, 2.0, 3.0]] * 3), torch.tensor([[1.0, 3.0], [5.0, 6.0], [2.0, 3.0]])),
        "binary_search": (torch.rand(3, 6).sort().values, torch.rand(3)),
    }[name]
    function = ALGORITHMS[name]
    leaves = [a.clone().requires_grad_() if isinstance(a, torch.Tensor) else a for a in args]
    found = function(*leaves, batched=True, hard=True)
    outputs = found if isinstance(found, tuple) else (found,)
    for k in range(3):
        item = [a[k].tolist() if isinstance(a, torch.Tensor) else a for a in args]
        crisp = function.crisp(*item)
        for output, expected in zip(outputs, crisp if isinstance(crisp, tuple) else (crisp,), strict=True):
            torch.testing.assert_close(output[k].detach(), torch.tensor(expected, dtype=torch.float32))
    if name == "bubble_sort":
        outputs[-1].sum().backward()
        assert leaves[0].grad.abs().sum() > 0


def test_hard_loops_leave_when_python_does():
    @smooth(hard=True, steepness=0.5)
    def count(x):
        n = 0.0
        while x > 0:
            x = x - 1
            n += 1
        return n

    x = torch.tensor([0.5, 2.5, -1.0], requires_grad=True)
    found = count(x, batched=True)
    assert found.tolist() == [1.0, 3.0, 0.0]
    found.sum().backward()
    assert torch.isfinite(x.grad).all()
    assert x.grad.abs().sum() > 0


# -- memory


@smooth
def diffuse(x, n):
    y = x * 1.0
    for _ in range(n):
        z = torch.roll(y, 1)
        if y > z:
            y = torch.sin(y) * 0.5 + z * 0.5
    return y


def saved_bytes(function) -> int:
    total = 0

    def pack(tensor):
        nonlocal total
        total += tensor.untyped_storage().nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        function()
    return total


def test_torchs_checkpoint_around_a_call_changes_nothing_but_memory():
    x = torch.randn(2, 64, dtype=torch.float64, requires_grad=True)

    def plain():
        return diffuse(x, 49, batched=True)

    def again():
        return checkpoint(lambda x: diffuse(x, 49, batched=True), x, use_reentrant=False)

    torch.testing.assert_close(plain(), again())
    torch.testing.assert_close(*(torch.autograd.grad(run().square().sum(), x)[0] for run in (plain, again)))
    assert saved_bytes(again) < saved_bytes(plain) / 10


# -- transforms


def test_vmap_sees_loops_that_end_by_their_mass():
    @smooth(steepness=5.0)
    def count(x):
        n = 0.0
        while x > 0:
            x = x - 1
            n += 1
        return n

    x = torch.tensor([0.4, 3.3, 1.2], dtype=torch.float64)
    expected = count(x, batched=True)
    torch.testing.assert_close(torch.vmap(count)(x), expected, atol=1e-5, rtol=1e-5)
    per_item = torch.vmap(torch.func.grad(count))(x)
    leaf = x.clone().requires_grad_()
    (slopes,) = torch.autograd.grad(count(leaf, batched=True).sum(), leaf)
    torch.testing.assert_close(per_item, slopes, atol=1e-4, rtol=1e-4)


def test_compiled_loops_need_a_bound():
    @smooth
    def count(x):
        n = 0.0
        while x > 0:
            x = x - 1
            n = n + 1.0
        return n

    x = torch.tensor(1.5)
    compiled = torch.compile(lambda x: count(x, max_iterations=4), fullgraph=True, backend="eager")
    assert float(compiled(x)) == pytest.approx(float(count(x)), abs=1e-3)
    with pytest.raises(Exception, match="give max_iterations"):
        torch.compile(count, fullgraph=True, backend="eager")(x)


def test_functional_jacobians():
    x = torch.randn(4, dtype=torch.float64)
    reverse = torch.func.jacrev(lambda x: bubble_sort(x)[0])(x)
    forward = torch.func.jacfwd(lambda x: bubble_sort(x)[0])(x)
    torch.testing.assert_close(reverse, forward)
    torch.testing.assert_close(reverse.sum(0), torch.ones(4, dtype=torch.float64), atol=1e-9, rtol=0)


FIRST_CALLS = """
import threading
import torch
from algonet.smooth_python.algorithms import bubble_sort

x = torch.arange(48.0).reshape(4, 12).flip(-1)
start, found = threading.Barrier(4), []

def work():
    start.wait()
    try:
        found.append(bubble_sort(x, batched=True, steepness=100.0)[0])
    except BaseException as problem:
        found.append(problem)

threads = [threading.Thread(target=work) for _ in range(4)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
for result in found:
    assert isinstance(result, torch.Tensor), result
    torch.testing.assert_close(result, x.sort(-1).values, atol=1e-3, rtol=0)
"""


def test_first_calls_of_four_threads_at_once():
    """In a fresh process, where the first call registers operators and loads kernels."""
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", FIRST_CALLS], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr

"""Caches are bounded, and what they keep serves every later call, whatever mode the first was made in."""

from __future__ import annotations

import importlib
import os
import pkgutil
import threading

import pytest
import torch

import algonet
from algonet.core.cache import Cache, TensorCache, cached, caches, constant


def test_bounded_by_number_and_what_is_used_stays():
    cache: Cache[int] = Cache("test", 4)
    for i in range(20):
        assert cache.get(i, lambda i=i: i * i) == i * i
        assert cache.get(0, lambda: pytest.fail("made again")) == 0
        assert len(cache) <= 4
    assert 0 in cache
    assert 10 not in cache


def test_bounded_by_weight():
    cache = TensorCache("test", 100, budget=4000)
    for i in range(10):
        cache.get(i, lambda: torch.zeros(250))
    assert 2 <= len(cache) <= 4
    assert cache.get("large", lambda: torch.zeros(2000)).numel() == 2000
    assert "large" not in cache


def test_none_is_a_value():
    calls = []
    function = cached(lambda x: calls.append(x))
    assert function(1) is None
    assert function(1) is None
    assert calls == [1]


def _modes():
    from torch._subclasses import FakeTensorMode

    return {
        "inference": torch.inference_mode,
        "meta": lambda: torch.device("meta"),
        "fake": FakeTensorMode,
        "autocast": lambda: torch.autocast("cpu", torch.bfloat16),
        "no_grad": torch.no_grad,
    }


@pytest.mark.parametrize("mode", _modes())
def test_a_tensor_made_in_a_mode_serves_after_it(mode):
    cache = TensorCache("test", 8)
    make = lambda: torch.ones(3)  # noqa: E731  (names no device on purpose: a default device must not get in)
    with _modes()[mode]():
        cache.get("ones", make)
    x = torch.randn(3, requires_grad=True)
    kept = cache.get("ones", make)
    (x * kept).sum().backward()
    assert x.grad is not None
    assert x.grad.tolist() == [1.0, 1.0, 1.0]
    assert type(kept) is torch.Tensor


def test_inside_a_mode_one_gets_what_belongs_there():
    from torch._subclasses import FakeTensor, FakeTensorMode

    cache = TensorCache("test", 8)
    cache.get("ones", lambda: torch.ones(3))
    with FakeTensorMode():
        assert isinstance(cache.get("ones", lambda: torch.ones(3)), FakeTensor)


def test_transforms_leave_nothing_behind():
    cache = TensorCache("test", 8)
    torch.func.grad(lambda x: (x * cache.get("ones", lambda: torch.ones(3))).sum())(torch.ones(3))
    torch.func.vmap(lambda x: x * cache.get("ones", lambda: torch.ones(3)))(torch.ones(2, 3))
    kept = cache.get("ones", lambda: torch.ones(3))
    assert not torch._C._functorch.is_functorch_wrapped_tensor(kept)


def test_constants_are_told_apart():
    assert constant(0.0, torch.float32, "cpu") is constant(0.0, torch.float32, "cpu")
    assert str(float(constant(-0.0, torch.float32, "cpu"))) == "-0.0"
    assert constant(1.0, torch.float64, "cpu").dtype == torch.float64
    assert constant([[1.0, 2.0]], torch.float32, "cpu").shape == (1, 2)
    before = torch.get_default_dtype()
    try:
        torch.set_default_dtype(torch.float64)
        assert constant(3.5, torch.float32, "cpu").dtype == torch.float32
    finally:
        torch.set_default_dtype(before)


def test_many_threads_get_one_value():
    cache: Cache[object] = Cache("test", 16)
    barrier, found = threading.Barrier(8), []

    def look():
        barrier.wait()
        found.extend(cache.get(i, object) for i in range(50))

    threads = [threading.Thread(target=look) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 400
    assert 8 <= len(cache) <= 16


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_child_does_not_wait_for_a_lock_that_nobody_holds():
    from algonet.core import cache as module

    cache: Cache[int] = Cache("test", 16)
    held, done = threading.Event(), threading.Event()

    def hold():
        with module._lock:
            held.set()
            done.wait(300)

    thread = threading.Thread(target=hold)
    thread.start()
    held.wait(300)
    try:
        child = os.fork()
        if child == 0:
            os._exit(cache.put("a", 7))
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    finally:
        done.set()
        thread.join()


def test_every_cache_of_the_package_is_listed_and_bounded():
    for module in pkgutil.walk_packages(algonet.__path__, "algonet."):
        if not any(part in module.name for part in ("__main__", ".kernels.", "triton", ".play", "lightning")):
            try:
                importlib.import_module(module.name)
            except ImportError:
                continue  # what an extra brings
    found = caches()
    assert len(found) > 5
    assert all(0 < cache.most <= 4096 for cache in found)

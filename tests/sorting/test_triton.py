"""The Triton kernels: in the interpreter, tiny, in a process of its own; and on a GPU where there is one."""

import os
import subprocess
import sys

import pytest
import torch

from algonet.sorting import Bitonic, OddEven, soft_sort
from helpers.tolerances import assert_close

INTERPRETED = """
import torch
from algonet.sorting import Bitonic, OddEven, soft_sort, soft_topk
from algonet.sorting.kernels import bitonic_gpu, odd_even_gpu, triton_gpu

generator = torch.Generator().manual_seed(0)

def check(network, n, channels, masked, steps=None):
    x = torch.randn(2, n, generator=generator, dtype=torch.float64, requires_grad=True)
    p = torch.randn(2, n, channels, generator=generator, dtype=torch.float64, requires_grad=True) if channels else None
    mask = torch.rand(2, n, generator=generator) < 0.7 if masked else None
    results = []
    for backend in ("reference", "triton"):
        r = soft_sort(x, payload=p, network=network, mask=mask, steps=steps, backend=backend)
        outputs = [r.values] if p is None else [r.values, r.payload]
        score = sum((o * torch.arange(o.numel()).reshape(o.shape).sin()).sum() for o in outputs)
        results.append([*outputs, *torch.autograd.grad(score, [x] if p is None else [x, p])])
    for a, b in zip(*results):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-10)

check(OddEven(), 7, 2, True)
check(OddEven(), 5, 5, False)
check(Bitonic(), 6, 0, False)
# Small limits, so that a few items take every way through the kernels: groups with halos, chunks, parts, far layers
odd_even_gpu.WHOLE, odd_even_gpu.CORE, odd_even_gpu.SEGMENT, odd_even_gpu.STEP, odd_even_gpu.REACH = 4, 8, 2, 8, 4
check(OddEven(), 15, 0, False, 5)
odd_even_gpu.processors = lambda device: 100
check(OddEven(), 18, 1, True, 6)
odd_even_gpu.KEPT = 1
check(OddEven(), 14, 0, False, 4)
y = torch.randn(2, 9, generator=generator, dtype=torch.float64)
ranks = [soft_topk(y, 2, return_permutation=True, backend=backend).permutation for backend in ("reference", "triton")]
torch.testing.assert_close(*ranks, rtol=1e-9, atol=1e-10)
bitonic_gpu.WIDEST, bitonic_gpu.NEAR, bitonic_gpu.DEEPEST = 8, 4, 4
check(Bitonic(), 13, 1, True)
print("agreed")
"""


def test_interpreted_kernels_agree_with_the_reference():
    pytest.importorskip("triton")
    environment = {**os.environ, "TRITON_INTERPRET": "1"}
    done = subprocess.run([sys.executable, "-c", INTERPRETED], capture_output=True, text=True, env=environment)
    assert done.stdout == "agreed\n", done.stderr[-2000:]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("channels", [0, 2])
@pytest.mark.parametrize(("network", "n"), [(OddEven(), 16), (OddEven(), 300), (Bitonic(), 100), (Bitonic(), 9000)])
def test_gpu_kernels_agree_with_the_reference(network, n, channels):
    x = torch.randn(3, n, device="cuda", dtype=torch.float64, requires_grad=True)
    payload = torch.randn(3, n, channels, device="cuda", dtype=torch.float64, requires_grad=True)
    results = []
    for backend in ("reference", "triton"):
        result = soft_sort(x, payload=payload, network=network, backend=backend)
        score = (result.values**2).sum() + (result.payload**2).sum()
        results.append([result.values, result.payload, *torch.autograd.grad(score, [x, payload], allow_unused=True)])
    for a, b in zip(*results, strict=True):
        if a is not None:
            assert_close(a, b, factor=100)

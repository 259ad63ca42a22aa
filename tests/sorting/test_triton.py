"""The Triton kernels: in the interpreter, tiny, in a process of its own; and on a GPU where there is one."""

import os
import subprocess
import sys

import pytest
import torch

from algonet.relax import Logistic
from algonet.sorting import Bitonic, OddEven, SmoothedCDF, soft_sort
from helpers.tolerances import assert_close

INTERPRETED = """
import torch
from algonet.sorting import Bitonic, OddEven, soft_sort, soft_topk
from algonet.sorting.kernels.triton import bitonic, counts, odd_even, threshold
from algonet.sorting.operation import COUNTS, QUANTILES
from algonet.sorting.counts import CountSettings
from algonet.core.identity import interned
from algonet.sorting import Pairwise, soft_rank, soft_topk_mask
from algonet.core.cache import VALUES
from algonet.relax import Cauchy, Logistic

generator = torch.Generator().manual_seed(0)

def check(network, n, channels, masked, steps=None, rows=2):
    x = torch.randn(rows, n, generator=generator, dtype=torch.float64)
    x[0, [0, 2, 4]] = torch.inf
    x.requires_grad_()
    p = torch.randn(rows, n, channels, generator=generator, dtype=torch.float64, requires_grad=True) if channels else None
    mask = torch.rand(rows, n, generator=generator) < 0.7 if masked else None
    results = []
    for backend in ("reference", "triton"):
        r = soft_sort(x, payload=p, method=network, mask=mask, steps=steps, backend=backend)
        outputs = [r.values] if p is None else [r.values, r.payload]
        slopes = [torch.arange(o.numel(), dtype=o.dtype).reshape(o.shape).sin() for o in outputs]
        results.append([*outputs, *torch.autograd.grad(outputs, [x] if p is None else [x, p], slopes)])
    for a, b in zip(*results):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-10)

check(OddEven(), 7, 2, True)
check(OddEven(), 5, 5, False)
check(Bitonic(), 6, 0, False)
# Small limits, so that a few items take every way through the kernels: groups with halos, chunks, parts, far layers
odd_even.WHOLE, odd_even.CORE, odd_even.SEGMENT, odd_even.CHUNKS = 4, 8, 2, ((8, 4),)
check(OddEven(), 15, 0, False, 5)
odd_even.processors = lambda device: 100
check(OddEven(), 18, 1, True, 6, rows=1)
odd_even.SAVED = 1
check(OddEven(), 14, 0, False, 4)
y = torch.randn(1, 7, generator=generator, dtype=torch.float64)
ranks = [soft_topk(y, 2, return_permutation=True, backend=backend).permutation for backend in ("reference", "triton")]
torch.testing.assert_close(*ranks, rtol=1e-9, atol=1e-10)
bitonic.WIDEST, bitonic.NEAR, bitonic.DEEPEST = 8, 4, 4
check(Bitonic(), 13, 1, True)


def check_both(function, *leaves, rtol=1e-9):
    results = []
    for backend in ("reference", "triton"):
        out = function(backend)
        score = (out * torch.arange(out.numel()).reshape(out.shape).sin()).sum()
        results.append([out, *torch.autograd.grad(score, leaves)])
    for a, b in zip(*results):
        torch.testing.assert_close(a, b, rtol=rtol, atol=1e-9)

def check_memberships(n, masked, relax):
    x = torch.randn(2, n, generator=generator, dtype=torch.float64, requires_grad=True)
    k = torch.tensor([3.0, 4.5], dtype=torch.float64, requires_grad=True)
    mask = torch.rand(2, n, generator=generator) < 0.8 if masked else None
    relax = type(relax)(torch.tensor(relax.steepness, dtype=torch.float64, requires_grad=True))
    check_both(lambda backend: soft_topk_mask(x, k, relax=relax, mask=mask, backend=backend), x, k, relax.steepness)

def check_gap():
    # The threshold lies between 5 and 1, where tails of 1e-9 share the derivative by k
    y = torch.tensor([9.0, 8.0, 5.0, 1.0, 1.0, 1.0, -4.0], dtype=torch.float64, requires_grad=True)
    k = torch.tensor(3.0, dtype=torch.float64, requires_grad=True)
    check_both(lambda backend: soft_topk_mask(y, k, relax=Logistic(20.0), backend=backend), y, k)

check_memberships(13, True, Logistic(3.0))
check_memberships(40, False, Cauchy(2.0))
check_gap()
threshold.LONG, threshold.PART, threshold.BLOCK = 7, 16, 16
threshold.processors = lambda device: 100
VALUES.clear()
check_memberships(41, True, Logistic(3.0))
check_gap()
z = torch.randn(2, 19, generator=generator, dtype=torch.float64)
z[0, 3:6] = -torch.inf
z.requires_grad_()
check_both(lambda backend: soft_rank(z, relax=Logistic(2.0), method=Pairwise(), backend=backend), z)

def check_smooth_counts(sigmoid, precise, few):
    # Pairs and grids; infinite points, weights of 0, counts beyond the ends
    counts.FEW = few
    settings = CountSettings(interned(sigmoid), precise)
    x, w = torch.randn(2, 21, generator=generator).double(), torch.rand(2, 21, 2, generator=generator).double()
    y = torch.randn(2, 9, generator=generator).double()
    y[0, 1], y[1, 3], w[:, ::5] = torch.inf, -torch.inf, 0.0
    k = torch.tensor([[0.4, 3.0, 5.5, -1.0], [1.0, 2.0, 99.0, 4.0]], dtype=torch.float64)
    x, y, w, k = (t.requires_grad_() for t in (x, y, w, k))
    # Single sums of precision are right to 1e-7
    rtol = 1e-9 if precise else 1e-5
    results = []
    for backend in ("reference", "triton"):
        sums, roots = COUNTS([y, x, w], settings, backend)[0], QUANTILES([x, w[..., 0].detach(), k], settings, backend)[0]
        score = (sums * torch.arange(sums.numel()).reshape(sums.shape).sin()).sum()
        slopes = torch.autograd.grad(score, (y, x, w))
        there = roots.isfinite()
        results.append([sums, roots, *slopes, *torch.autograd.grad((roots[there] * there.nonzero()[:, 1].cos()).sum(), (x, k))])
    for a, b in zip(*results):
        torch.testing.assert_close(a, b, rtol=rtol, atol=10 * rtol)

for sigmoid in (Logistic(), Cauchy()):
    for few in (128, 0):
        check_smooth_counts(sigmoid, True, few)
check_smooth_counts(Logistic(), False, 128)
print("agreed")
"""


def test_interpreted_kernels_agree_with_the_reference():
    pytest.importorskip("triton")
    environment = {**os.environ, "TRITON_INTERPRET": "1"}
    done = subprocess.run([sys.executable, "-c", INTERPRETED], capture_output=True, text=True, env=environment)
    assert done.stdout == "agreed\n", done.stderr[-2000:]


on_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
#: Rows in a warp, in groups, in chunks over several processors; partners in a warp, in a program, through memory
CASES = [
    (OddEven(), 16, 3, True),
    (OddEven(), 128, 0, False),
    (OddEven(), 300, 5, True),
    (OddEven(), 700, 0, True),
    (OddEven(), 700, 3, False),
    (Bitonic(), 100, 3, False),
    (Bitonic(), 9000, 2, True),
]


@pytest.mark.gpu
@on_gpu
@pytest.mark.parametrize(("network", "n", "channels", "masked"), CASES, ids=lambda v: getattr(v, "name", str(v)))
def test_gpu_kernels_agree_with_the_reference(network, n, channels, masked):
    x = torch.randn(3, n, device="cuda", dtype=torch.float64, requires_grad=True)
    payload = torch.randn(3, n, channels, device="cuda", dtype=torch.float64, requires_grad=True)
    steepness = torch.tensor(4.0, device="cuda", dtype=torch.float64, requires_grad=True)
    mask = torch.rand(3, n, device="cuda") < 0.8 if masked else None
    results = []
    for backend in ("reference", "triton"):
        options = {"relax": Logistic(steepness), "method": network, "mask": mask, "backend": backend}
        result = soft_sort(x, payload=payload if channels else None, **options)
        outputs = [result.values, result.payload] if channels else [result.values]
        score = sum((o.sin() * torch.arange(o.numel(), device="cuda").reshape(o.shape).cos()).sum() for o in outputs)
        leaves = [x, payload, steepness] if channels else [x, steepness]
        results.append([*outputs, *torch.autograd.grad(score, leaves)])
    for a, b in zip(*results, strict=True):
        assert_close(b, a, factor=100)


@pytest.mark.gpu
@on_gpu
@pytest.mark.parametrize(("network", "n"), [(OddEven(), 512), (OddEven(), 1024), (Bitonic(), 1024)])
def test_gpu_kernels_are_deterministic(network, n):
    x = torch.randn(20, n, device="cuda", requires_grad=True)
    payload = torch.randn(20, n, 3, device="cuda", requires_grad=True)
    found = []
    for _ in range(5):
        result = soft_sort(x, payload=payload, method=network)
        outputs = [result.values, result.payload]
        found.append([*outputs, *torch.autograd.grad(outputs, [x, payload], [o.detach().cos() for o in outputs])])
    assert all(torch.equal(a, b) for other in found[1:] for a, b in zip(found[0], other, strict=True))


@pytest.mark.gpu
@on_gpu
@pytest.mark.parametrize("method", [OddEven(), SmoothedCDF()], ids=lambda method: type(method).__name__)
def test_gpu_rows_do_not_feel_each_other(method):
    """Bit for bit in networks; to rounding in counts, whose grid is as long as the longest row asks for."""
    x = torch.randn(10, 600, device="cuda")
    payload = torch.randn(10, 600, 2, device="cuda")
    spoiled = x.clone()
    spoiled[3, 5], spoiled[4, 7], spoiled[4, 8] = float("nan"), float("inf"), -float("inf")
    a, b = (soft_sort(t, payload=payload, method=method) for t in (x, spoiled))
    rest, close = [0, 1, 2, 5, 6, 7, 8, 9], 0 if isinstance(method, OddEven) else 1e-5
    torch.testing.assert_close(a.values[rest], b.values[rest], rtol=close, atol=close)
    torch.testing.assert_close(a.payload[rest], b.payload[rest], rtol=close, atol=close)
    assert b.values[3].isnan().all()
    assert b.values[4, 0] == -float("inf")
    assert b.values[4, -1] == float("inf")
    assert b.values[4, 1:-1].isfinite().all()

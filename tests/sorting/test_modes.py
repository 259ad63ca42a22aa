"""What a call in some mode leaves behind must not spoil the next one: each of these is the first call of its size."""

import contextlib

import pytest
import torch

from algonet.relax import Logistic
from algonet.sorting import Bitonic, OddEven, soft_median, soft_rank, soft_sort, soft_topk

CALLS = {
    "sort": lambda x, **o: soft_sort(x, **o).values,
    "masked": lambda x, **o: soft_sort(x, mask=torch.ones(x.shape, dtype=torch.bool), **o).values,
    "rank": soft_rank,
    "topk": lambda x, **o: soft_topk(x, 2, **o).values,
    "median": soft_median,
}
SIZES = iter(range(40, 10_000))


@pytest.mark.parametrize("backend", ["reference", "numba"])
@pytest.mark.parametrize("network", [OddEven(), Bitonic()], ids=str)
@pytest.mark.parametrize("name", CALLS)
def test_training_after_a_first_call_under_inference_mode(name, network, backend):
    n = next(SIZES)
    options = {"method": network, "backend": backend, "relax": Logistic(1.0 + n / 7)}
    with torch.inference_mode():
        CALLS[name](torch.randn(2, n), **options)
    x = torch.randn(2, n, requires_grad=True)
    CALLS[name](x, **options).square().sum().backward()
    assert x.grad.abs().sum() > 0


@pytest.mark.parametrize("network", [OddEven(), Bitonic()], ids=str)
def test_a_first_call_under_the_meta_device(network):
    n = next(SIZES)
    with torch.device("meta"):
        soft_sort(torch.zeros(2, n, device="cpu"), method=network, backend="reference")
    x = torch.randn(2, n, requires_grad=True)
    soft_sort(x, method=network, backend="reference").values.square().sum().backward()
    assert x.grad.abs().sum() > 0


@pytest.mark.parametrize("network", [OddEven(), Bitonic()], ids=str)
def test_a_first_call_under_fake_tensors(network):
    from torch._subclasses.fake_tensor import FakeTensorMode

    n = next(SIZES)
    relax = Logistic(1.0 + n / 7)
    # The call itself may be refused (a network's table is data); what it leaves behind must not matter
    with FakeTensorMode(), contextlib.suppress(Exception):
        soft_sort(torch.zeros(2, n), method=network, relax=relax, backend="reference")
    x = torch.randn(2, n, requires_grad=True)
    for backend in ("reference", "numba"):
        soft_sort(x, method=network, relax=relax, backend=backend).values.square().sum().backward()
    assert x.grad.abs().sum() > 0


def test_shapes_are_known_on_the_meta_device():
    x = torch.empty(3, 5, device="meta")
    assert soft_sort(x, mask=torch.ones(3, 5, dtype=torch.bool, device="meta")).values.shape == (3, 5)
    assert soft_topk(x, 2).values.shape == (3, 2)

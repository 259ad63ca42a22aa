"""Calls that were made before take a short way: same results, same errors, nothing mixed up."""

import pytest
import torch

from algonet.core.identity import PLANS
from algonet.relax import Cauchy, Logistic
from algonet.sorting import Bitonic, OddEven, soft_sort


@pytest.fixture(autouse=True)
def forgetful():
    PLANS.clear()
    yield
    PLANS.clear()


def test_the_second_call_is_known_and_gives_the_same():
    x, payload = torch.randn(3, 5, requires_grad=True), torch.randn(3, 5, 2, requires_grad=True)
    results = []
    known = []
    for _ in range(3):
        known.append(len(PLANS))
        result = soft_sort(x, payload=payload)
        score = (result.values.sin() + result.payload.cos().sum(-1)).sum()
        results.append([result.values, result.payload, *torch.autograd.grad(score, [x, payload])])
    assert known[0] == 0 < known[1] == known[2] == len(PLANS)
    assert all(torch.equal(a, b) for a, b in zip(*results[:2], strict=True))


def test_what_a_known_call_does_not_take_is_refused_all_the_same():
    x = torch.randn(3, 5)
    soft_sort(x)
    with pytest.raises(TypeError, match=r"got a torch.sparse_coo one; call .to_dense\(\) first"):
        soft_sort(x.to_sparse())


OPTIONS = [
    {},
    {"relax": Logistic(3.0)},
    {"relax": Cauchy(10.0)},
    {"descending": True},
    {"method": Bitonic(), "steps": 1},
    {"steps": 2, "method": OddEven()},
    {"dim": 0},
    {"backend": "reference"},
    {"relax": Logistic(torch.tensor(4.0))},
    {"relax": Logistic(torch.tensor(4.0)), "descending": True},
]


def test_every_option_is_part_of_what_is_known():
    x = torch.randn(4, 4)
    alone = []
    for options in OPTIONS:
        PLANS.clear()
        alone.append(soft_sort(x, **options).values)
    PLANS.clear()
    for _ in range(2):
        for options, expected in zip(OPTIONS, alone, strict=True):
            assert torch.equal(soft_sort(x, **options).values, expected), options
    assert soft_sort(x.double()).values.dtype == torch.float64
    assert soft_sort(x.half()).values.dtype == torch.float16


def test_a_learned_steepness_keeps_its_gradient():
    x = torch.randn(2, 6, dtype=torch.float64)
    expected = None
    for _ in range(3):
        steepness = torch.tensor(3.0, dtype=torch.float64, requires_grad=True)
        soft_sort(x, relax=Logistic(steepness), descending=True).values[:, 0].sum().backward()
        expected = steepness.grad if expected is None else expected
        assert steepness.grad.abs() > 1e-6
        assert torch.equal(steepness.grad, expected)
    # Another value under the same key
    values = [soft_sort(x, relax=Logistic(torch.tensor(s, dtype=torch.float64))).values for s in (1.0, 50.0)]
    assert not torch.allclose(*values)


@pytest.mark.parametrize(
    ("wrong", "match"),
    [
        ({"dim": 2}, "dim"),
        ({"dim": True}, "dim"),
        ({"steps": -1}, "steps"),
        ({"steps": 2.0}, "steps"),
        ({"steps": [1]}, "steps"),
        ({"relax": "logistic"}, "relax"),
        ({"method": OddEven}, "method"),
        ({"backend": "fortran"}, "backend"),
        ({"payload": torch.zeros(3, 4, 1)}, "payload"),
    ],
)
def test_errors_come_after_known_calls_too(wrong, match):
    x = torch.randn(3, 5)
    soft_sort(x)
    soft_sort(x, payload=torch.zeros(3, 5, 1))
    with pytest.raises((TypeError, ValueError), match=match):
        soft_sort(x, **wrong)


def test_what_a_mode_made_is_not_kept():
    x = torch.randn(3, 5)
    relax = Logistic(7.25)
    with torch.inference_mode():
        soft_sort(x, relax=relax)
    leaf = x.clone().requires_grad_()
    soft_sort(leaf, relax=relax).values[:, 0].sum().backward()
    assert leaf.grad is not None


def test_what_is_known_is_bounded(monkeypatch):
    monkeypatch.setattr(PLANS, "most", 6)
    for n in range(2, 12):
        soft_sort(torch.randn(1, n))
    assert len(PLANS) <= 6

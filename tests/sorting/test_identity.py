"""A network or sigmoid is its class and all its fields: never a bare name, never its neighbour's table or kernel."""

import gc
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest
import torch
from torch._subclasses import FakeTensorMode

from algonet.core import backends
from algonet.relax import Logistic, Sigmoid
from algonet.sorting import Bitonic, Network, OddEven, soft_quantile, soft_rank, soft_sort, soft_topk
from algonet.sorting.operation import SORT, TRANSPOSED
from algonet.sorting.reference import sort_settings

BACKENDS = ("reference", "numba")


@dataclass(frozen=True)
class Brick(Network):
    """`rounds` layers of neighbours: far too few to sort, so that the field shows."""

    rounds: int = 1

    def depth(self, n):
        return self.rounds

    def pairs(self, n, layer):
        first = np.arange(layer % 2, n - 1, 2)
        return first, first + 1, first + 2

    def layer_need(self, layer):
        return 0


class Undecorated(OddEven):
    """Fields set by hand: the dataclass's own equality does not see them."""

    def __init__(self, rounds):
        object.__setattr__(self, "rounds", rounds)

    def depth(self, n):
        return self.rounds


def backwards(n, layer):
    first = np.arange((layer + 1) % 2, n - 1, 2)
    return first, first + 1, first + 2


X = torch.tensor([[5.0, 4.0, 3.0, 2.0, 1.0, 0.0], [0.3, -1.0, 2.0, 0.1, 0.2, -2.0]])


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("kind", [Brick, Undecorated])
def test_two_instances_with_different_fields_are_two_networks(kind, backend):
    once, thrice = (soft_sort(X, method=kind(rounds), backend=backend).values for rounds in (1, 3))
    assert not torch.allclose(once, thrice)
    assert torch.equal(once, soft_sort(X, method=kind(1), backend=backend).values)
    assert torch.allclose(once, soft_sort(X, method=OddEven(), steps=1, backend=backend).values)
    assert torch.allclose(thrice, soft_sort(X, method=OddEven(), steps=3, backend=backend).values)


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_nameless_subclass_that_overrides_pairs_is_its_own_network(backend):
    Shifted = type("Shifted", (OddEven,), {"pairs": lambda self, n, layer: backwards(n, layer)})
    usual, other = (soft_sort(X, method=net, steps=1, backend=backend).values for net in (OddEven(), Shifted()))
    assert not torch.allclose(usual, other)
    assert torch.equal(other[:, 0], X[:, 0])


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_class_redefined_under_the_same_name_is_another_network(backend):
    def define(offset):
        @dataclass(frozen=True)
        class Mine(Brick):
            name: ClassVar[str] = "mine"

            def pairs(self, n, layer):
                first = np.arange(offset, n - 1, 2)
                return first, first + 1, first + 2

        return Mine()

    results = [soft_sort(X, method=define(offset), backend=backend).values for offset in (0, 1)]
    assert not torch.allclose(*results)


def test_kernels_of_the_gpu_take_their_own_networks_only(monkeypatch):
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    pytest.importorskip("triton")
    shifted = type("Shifted", (OddEven,), {"pairs": lambda self, n, layer: backwards(n, layer)})()
    for network in (shifted, Brick(2), type("Sub", (Bitonic,), {})()):
        with pytest.raises(ValueError, match="no Triton kernel for the network"):
            soft_sort(X, method=network, backend="triton")
    assert backends.interpreting()


def test_on_a_gpu_a_third_network_runs_in_the_reference(monkeypatch):
    """Before, it would have run as the bitonic one. No device is needed to ask."""
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    pytest.importorskip("triton")
    third = type("Third", (OddEven,), {"pairs": lambda self, n, layer: backwards(n, layer)})()
    with FakeTensorMode():
        x, lengths = torch.empty(4, 8, device="cuda"), torch.empty(0, dtype=torch.int32, device="cuda")
        tensors = [x, lengths, torch.empty((), device="cuda")]
        for network, backend in ((OddEven(), "triton"), (Bitonic(), "triton"), (third, "reference")):
            for operation in (SORT, TRANSPOSED):
                assert operation.choose(tensors, sort_settings(network, Logistic()), "auto") == backend


@dataclass(frozen=True, eq=False)
class Tilted(Sigmoid):
    """A logistic whose threshold lies elsewhere; no `key` of its own."""

    shift: float = 0.0

    def _value(self, z):
        return torch.sigmoid(z + self.shift)

    @property
    def scalar(self):
        return f"""
            e = exp(-abs(z + {self.shift!r}))
            value = where(z + {self.shift!r} >= 0, 1.0, e) / (1.0 + e)
            slope = e / ((1.0 + e) * (1.0 + e))
        """


#: Thresholds take up any shift of the sigmoid, the exchanges of a network do not.
NETWORK = {"method": OddEven()}


@pytest.mark.parametrize(
    "function", [lambda x, **o: soft_sort(x, **NETWORK, **o).values, lambda x, **o: soft_rank(x, **NETWORK, **o)]
)
def test_two_sigmoids_of_one_class_are_two_formulas(function):
    for shift in (0.25, 2.5):
        reference, kernel = (function(X, relax=Tilted(2.0, shift), backend=backend) for backend in BACKENDS)
        assert torch.allclose(reference, kernel, atol=1e-5), shift
    assert not torch.allclose(*(function(X, relax=Tilted(2.0, shift)) for shift in (0.25, 2.5)))


def test_a_subclass_that_changes_the_value_does_not_inherit_the_kernel():
    class Squared(Logistic):
        def _value(self, z):
            return torch.sigmoid(z) ** 2

    sharp = Squared(2.0)
    assert torch.allclose(soft_sort(X, relax=sharp).values, soft_sort(X, relax=sharp, backend="reference").values)
    with pytest.raises(ValueError, match="has no formula for kernels"):
        soft_sort(X, relax=sharp, backend="numba")
    assert type(replace(sharp, steepness=1.0)) is Squared


def _resident() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="reads /proc")
def test_many_ks_and_levels_do_not_fill_the_memory():
    x = 10 * torch.randn(1, 1000)  # apart enough for the default softness
    soft_topk(x, 1000)
    soft_topk(x, 3)
    gc.collect()
    before = _resident()
    for k in range(1, 40):
        soft_topk(x, k)
    for level in range(1, 20):
        soft_quantile(x, [level / 50, 1 - level / 60])
    gc.collect()
    grown = (_resident() - before) / 2**20
    assert grown < 160, f"grew by {grown:.0f} MiB"

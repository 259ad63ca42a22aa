"""An option is its class and all its fields but the softness: whoever defines it, whatever it is called."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from algonet.core import codec
from algonet.core.identity import canonical, identity, interned, up_to_date
from algonet.relax import Logistic, Sigmoid, SmoothStep
from algonet.sorting import Network, OddEven


@dataclass(frozen=True)
class MyNet(Network):
    stride: int = 1


def make(name: str, **body):
    """A class as a notebook's cell would define it, again and again under one name."""
    return type(name, (Logistic,), {"__module__": __name__, **body})


def test_fields_count():
    assert identity(MyNet(1)) == identity(MyNet(1)) != identity(MyNet(5))
    assert identity(SmoothStep(1)) != identity(SmoothStep(2))
    assert identity(MyNet(1)) != identity(MyNet(True)), "1 == True, but they are not the same"


def test_softness_does_not_count():
    steepness = torch.tensor(3.0, requires_grad=True)
    assert identity(Logistic(1.0)) == identity(Logistic(steepness))
    assert interned(Logistic(1.0)) is interned(Logistic(steepness)) is interned(Logistic(7.0))
    assert interned(Logistic(steepness)).steepness == 1.0


def test_softness_of_an_option_inside_another_counts():
    @dataclass(frozen=True)
    class Coverage:
        sigmoid: Sigmoid

    assert identity(Coverage(Logistic(1.0))) == identity(Coverage(Logistic(1.0))) != identity(Coverage(Logistic(2.0)))


def test_classes_are_known_by_themselves_not_by_their_names():
    first, second = make("Mine"), make("Mine")
    assert identity(first()) != identity(second())
    assert interned(first()) is not interned(second())
    assert type(interned(second())) is second
    assert identity(type("", (OddEven,), {})()) != identity(OddEven())


def test_forced_attributes_and_unhashable_fields_make_an_object_its_own():
    odd = Logistic(1.0)
    object.__setattr__(odd, "secret", 3)
    assert identity(odd) == identity(odd) != identity(Logistic(1.0))
    listed = MyNet([1, 2])  # pyright: ignore[reportArgumentType]
    assert identity(listed) == identity(listed) != identity(MyNet([1, 2]))  # pyright: ignore[reportArgumentType]


def test_through_a_graph_and_back_it_is_the_same():
    first, second = make("Mine"), make("Mine")
    for option in (interned(Logistic(2.0)), interned(SmoothStep(3)), interned(first()), interned(second())):
        assert codec.decode(codec.encode(option)) is option
    assert codec.decode(codec.encode(MyNet(5))) == MyNet(5)
    assert codec.decode(codec.encode(canonical(Logistic(4.0)))).steepness == 4.0, "a softness that is a setting stays"


def test_a_formula_is_only_as_good_as_what_it_mirrors():
    value = make("Louder", _value=lambda self, z: torch.sigmoid(2 * z))
    both = make("Both", _value=lambda self, z: torch.sigmoid(2 * z), scalar=property(lambda self: "value = z"))
    assert up_to_date(Logistic, "scalar", "_value", "__call__")
    assert up_to_date(both, "scalar", "_value", "__call__")
    assert not up_to_date(value, "scalar", "_value", "__call__")

"""Both machines do the same through one interface, and nothing outside asks which one it is."""

import inspect
import re
from pathlib import Path

import pytest
import torch
from torch.testing import assert_close

import algonet.smooth_python
from algonet.relax import BumpExit, Logistic, Sech
from algonet.smooth_python.machine.eager import EAGER, GUARDED, GuardedMachine, Machine, difference
from algonet.smooth_python.machine.tape import TapeMachine
from algonet.smooth_python.machine.values import Value
from algonet.smooth_python.operation import Draws
from algonet.smooth_python.runtime.merging import Mixture, kept

X = torch.tensor([-1.5, 0.2, 0.7, 2.0], dtype=torch.float64)
P = torch.tensor([0.0, 0.3, 1.0, 0.9], dtype=torch.float64)
V = torch.tensor([[1.0, 2.0, 3.0], [0.1, -0.4, 5.0], [2.0, 2.0, 2.0], [-1.0, 0.5, 0.0]], dtype=torch.float64)


def machines():
    return [EAGER, GUARDED, TapeMachine(len(X), X, "reference")]


#: name -> machine and values x, p (numbers) and v (a vector of three) -> a value, or a list of some
OPERATIONS = {
    "operators": lambda m, x, p, v: m.operate("mul", x, 3.0) + m.operate("truediv", 1.0, x) - p,
    "operator on a vector": lambda m, x, p, v: m.operate("mul", v, x),
    "operator with a shared tensor": lambda m, x, p, v: m.operate("add", x, torch.tensor(0.5, dtype=torch.float64)),
    "steps": lambda m, x, p, v: [m.operate("floordiv", x, 0.4), m.operate("mod", x, 0.4)],
    "pow": lambda m, x, p, v: x**2 + x**3,
    "neg": lambda m, x, p, v: m.operate("neg", x),
    "call": lambda m, x, p, v: m.call(torch.exp, (x,), {}) + m.call(torch.sum, (v,), {}),
    "compare": lambda m, x, p, v: m.relax(Logistic(3.0), difference(x, p, m)),
    "compare a vector": lambda m, x, p, v: m.relax(Logistic(3.0), difference(v, p, m)),
    "relax": lambda m, x, p, v: m.relax(BumpExit(), x),
    "truth": lambda m, x, p, v: m.operate("truth", x),
    "snap": lambda m, x, p, v: m.operate("snap", p, 0.2, 0.8),
    "cut": lambda m, x, p, v: m.operate("cut", p, 0.3),
    "weights": lambda m, x, p, v: m.weights(BumpExit(), x, 3, False),
    "weights of a wide exit": lambda m, x, p, v: m.weights(Sech(), x, 3, False),
    "mix": lambda m, x, p, v: m.operate("mix", p, x, 4.0),
    "mix of vectors": lambda m, x, p, v: m.operate("mix", p, v, v * 2.0),
    "select": lambda m, x, p, v: m.operate("select", p, x, float("inf")),
    "accumulate": lambda m, x, p, v: [m.operate("accumulate", x, p, 2.0), m.operate("accumulate", v, p, v + 1.0)],
    "mixture": lambda m, x, p, v: mixture(p, x, v),
    "number": lambda m, x, p, v: m.number(2, x) * x,
    "draw": lambda m, x, p, v: m.draw("coin", Draws(torch.Generator().manual_seed(0)), 4, torch.float64, p),
    "derived": lambda m, x, p, v: x * m.derived(X, lambda t: t[0]),
    "parts": lambda m, x, p, v: m.parts(v)[1] + x,
    "attribute": lambda m, x, p, v: [v.real, v.sum(), x.clamp(0.0, 1.0)],
    "leave": lambda m, x, p, v: m.leave(p, 0.3, 0)[0],
}


def mixture(p, x, v):
    """A sum of three states, one of them a vector that is kept as parts."""
    total = Mixture(("number", "vector", "list"))
    for weight, scale in ((p, 1.0), (1.0 - p, 2.0), (p * 0.5, 3.0)):
        total.add(weight, (x * scale, v.replaced({0: x * scale}, True, v.machine), [x + scale]))
    number, vector, (part,) = total.result(normalise=True)
    return [number, vector, part]


def tensors(result):
    values = result if isinstance(result, list) else [result]
    return [value.tensor.expand(len(X), *value.tensor.shape) if not value.batched else value.tensor for value in values]


@pytest.mark.parametrize("name", OPERATIONS)
def test_machines_agree(name):
    found = []
    for machine in machines():
        x, p, v = (Value(t, True, machine) for t in (X, P, V))
        found.append(tensors(OPERATIONS[name](machine, x, p, v)))
    for other in found[1:]:
        assert_close(other, found[0])


@pytest.mark.parametrize("machine", machines(), ids=lambda m: type(m).__name__)
def test_who_left_a_loop_keeps_its_state(machine):
    mass, new, old = (Value(t, True, machine) for t in (P, X, X + 10))
    cut, live, alive = machine.leave(mass, 0.1, 0)
    assert alive in (True, None)
    assert machine.ask(cut, lambda t: int((t > 0).sum())) == 3
    assert live is not None
    assert_close(kept(live, (new,), (old,))[0].tensor, torch.where(P > 0.1, X, X + 10))


def test_values_of_two_machines_go_to_the_one_that_leads():
    tape = TapeMachine(len(X), X, "reference")
    for y in (Value(X, True, EAGER) + Value(X, True, tape), Value(X, True, tape) + Value(X, True, EAGER)):
        assert y.machine is tape
        assert_close(y.tensor, 2 * X)


def test_the_interface_is_small_and_all_there_is():
    """No machine has a public method that the others lack, but for what the recorder tells `credit.py` about its rows."""
    methods = {name for name, _ in inspect.getmembers(Machine, inspect.isfunction) if not name.startswith("_")}
    assert len(methods) <= 18
    told = {"row", "at", "emit"}
    for kind, more in ((GuardedMachine, set()), (TapeMachine, told)):
        own = {name for name in vars(kind) if callable(getattr(kind, name)) and not name.startswith("_")}
        assert own <= methods | more, own - methods
        for name in own & methods:
            wanted = list(inspect.signature(getattr(Machine, name)).parameters)
            assert list(inspect.signature(getattr(kind, name)).parameters) == wanted, (kind, name)


def test_nobody_outside_asks_which_machine_it_is():
    folder = Path(algonet.smooth_python.__file__).parent
    asking = re.compile(r"\btape\b|TapeMachine|machine is (not )?(EAGER|GUARDED)|isinstance\([^)]*Machine")
    for file in folder.rglob("*.py"):
        lines = [line.partition("#")[0] for line in file.read_text(encoding="utf-8").splitlines()]
        code = "\n".join(line for line in lines if not line.startswith("from "))
        if file.parent.name != "machine":
            assert not asking.search(code), file

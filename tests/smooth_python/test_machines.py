"""Both machines do the same through one interface, and nothing outside asks which one it is."""

import inspect
import re
from pathlib import Path

import pytest
import torch
from torch.testing import assert_close

import algonet.smooth_python
from algonet.relax import BumpExit, Logistic, Sech
from algonet.smooth_python.machine.eager import EAGER, GUARDED, EagerMachine
from algonet.smooth_python.machine.recording import TapeMachine
from algonet.smooth_python.machine.values import Machine, Value
from algonet.smooth_python.runtime.deciding import Draws

X = torch.tensor([-1.5, 0.2, 0.7, 2.0], dtype=torch.float64)
P = torch.tensor([0.0, 0.3, 1.0, 0.9], dtype=torch.float64)
V = torch.tensor([[1.0, 2.0, 3.0], [0.1, -0.4, 5.0], [2.0, 2.0, 2.0], [-1.0, 0.5, 0.0]], dtype=torch.float64)


def machines():
    return [EAGER, GUARDED, TapeMachine(len(X), X, "reference")]


#: name -> machine and values x, p (numbers) and v (a vector of three) -> a value, or a list of some
OPERATIONS = {
    "binary": lambda m, x, p, v: m.binary("mul", x, 3.0) + m.binary("truediv", 1.0, x) - p,
    "binary of a vector": lambda m, x, p, v: m.binary("mul", v, x),
    "binary with a shared tensor": lambda m, x, p, v: m.binary("add", x, torch.tensor(0.5, dtype=torch.float64)),
    "pow": lambda m, x, p, v: x**2 + x**3,
    "unary": lambda m, x, p, v: m.unary("neg", x),
    "operate": lambda m, x, p, v: m.operate("select", x, p, 2.0),
    "call": lambda m, x, p, v: m.call(torch.exp, (x,), {}) + m.call(torch.sum, (v,), {}),
    "compare": lambda m, x, p, v: m.compare(Logistic(3.0), x, p),
    "compare a vector": lambda m, x, p, v: m.compare(Logistic(3.0), v, p),
    "relax": lambda m, x, p, v: m.relax(BumpExit(), x),
    "truth": lambda m, x, p, v: m.truth(x),
    "snap": lambda m, x, p, v: m.snap(p, 0.2),
    "cut": lambda m, x, p, v: m.cut(p, 0.3),
    "weights": lambda m, x, p, v: m.weights(BumpExit(), x, 3, False),
    "weights of a wide exit": lambda m, x, p, v: m.weights(Sech(), x, 3, False),
    "mix": lambda m, x, p, v: m.mix(p, x, 4.0),
    "mix of vectors": lambda m, x, p, v: m.mix(p, v, v * 2.0),
    "select": lambda m, x, p, v: m.select(p, x, float("inf")),
    "weigh": lambda m, x, p, v: [m.weigh(p, x), m.weigh(p, v), m.weigh(p, 3)],
    "accumulate": lambda m, x, p, v: [m.accumulate(x, p, 2.0), m.accumulate(v, p, v + 1.0)],
    "number": lambda m, x, p, v: m.number(2, x) * x,
    "draw": lambda m, x, p, v: m.draw("coin", Draws(torch.Generator().manual_seed(0)), 4, torch.float64, p),
    "derived": lambda m, x, p, v: x * m.derived(X, lambda t: t[0]),
    "parts": lambda m, x, p, v: m.parts(v)[1] + x,
    "attribute": lambda m, x, p, v: [v.real, v.sum(), x.clamp(0.0, 1.0)],
    "leave": lambda m, x, p, v: m.leave(p, 0.3, 0)[0],
}


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
    assert_close(live.machine.keep(live, new, old).tensor, torch.where(P > 0.1, X, X + 10))


def test_values_of_two_machines_go_to_the_one_that_leads():
    tape = TapeMachine(len(X), X, "reference")
    for y in (Value(X, True, EAGER) + Value(X, True, tape), Value(X, True, tape) + Value(X, True, EAGER)):
        assert y.machine is tape
        assert_close(y.tensor, 2 * X)


def test_the_interface_is_all_there_is():
    """Every method of the interface is implemented, and machines have no public method of their own but the recorder's."""
    methods = {name for name, _ in inspect.getmembers(Machine, inspect.isfunction)}
    assert methods <= set(vars(EagerMachine)), methods - set(vars(EagerMachine))
    own = {name for name in vars(TapeMachine) if callable(getattr(TapeMachine, name)) and not name.startswith("_")}
    assert own <= methods, own - methods
    for name in methods:
        wanted = list(inspect.signature(getattr(Machine, name)).parameters)
        for kind in (EagerMachine, TapeMachine):
            assert list(inspect.signature(getattr(kind, name)).parameters) == wanted, (kind, name)


def test_nobody_outside_asks_which_machine_it_is():
    folder = Path(algonet.smooth_python.__file__).parent
    asking = re.compile(r"\btape\b|TapeMachine|machine is (not )?(EAGER|GUARDED)|isinstance\([^)]*Machine")
    for file in folder.rglob("*.py"):
        code = "\n".join(line.partition("#")[0] for line in file.read_text(encoding="utf-8").splitlines())
        if file.parent.name != "machine":
            assert not asking.search(code), file

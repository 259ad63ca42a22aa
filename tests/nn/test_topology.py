"""Smooth depth and smooth graphs: gates, prices, and the ordinary network that is left."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from algonet.nn import FiniteDifferences, Graph, SmoothDepth, SmoothGraph, refine
from algonet.relax import Anneal, Logistic, Sech, SmoothStep, hardened, softness_report
from algonet.smooth_python import smooth
from algonet.sorting import SoftSort
from helpers.contract import CHECKS, Case, normal


@smooth(relax=Logistic(2.0))
def ordered(a, b, c):
    low, high = a, b
    if a > b:
        low, high = b, a
    return low, high, c


def stack(depth=1.5, **options):
    torch.manual_seed(0)
    return SmoothDepth([nn.Sequential(nn.Linear(3, 3), nn.Tanh()) for _ in range(4)], depth, **options)


def graph(**options):
    torch.manual_seed(0)
    nodes = {
        "linear": nn.Linear(3, 3),
        "sort": SoftSort(Logistic(3.0)),
        "mean": lambda x: x.mean(-1, keepdim=True),
        "program": ordered,
    }
    return SmoothGraph(nodes, **options)


def _set(graph, *kept):
    with torch.no_grad():
        for i, (source, target, _) in enumerate(graph.connections):
            graph.logits[i] = 1.0 if (source, target) in kept else -1.0
    return graph


def _in_dtype(make):
    twins = {dtype: make().to(dtype) for dtype in (torch.float32, torch.float64)}
    return lambda x: twins[x.dtype](x)


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
@pytest.mark.parametrize(
    "case",
    [
        Case(
            "SmoothDepth",
            _in_dtype(stack),
            normal(3),
            factor=10,
            dtypes=(torch.float32, torch.float64),
        ),
        Case(
            "SmoothGraph",
            _in_dtype(graph),
            normal(3),
            factor=10,
            dtypes=(torch.float32, torch.float64),
        ),
    ],
    ids=lambda case: case.name,
)
def test_contract(case, check):
    check(case)


@pytest.mark.parametrize("depth", [0, 1, 2, 4])
def test_whole_depths_are_ordinary_stacks_in_the_limit(depth):
    x = torch.randn(5, 3)
    soft = stack(depth, relax=SmoothStep(1, steepness=2.0))
    hard = soft.harden()
    assert len(hard) == depth
    torch.testing.assert_close(soft(x), hard(x))
    assert soft.price().item() == depth
    assert stack(min(depth, 3) + 0.5).gates[min(depth, 3)] == 0.5
    near = stack(depth)
    with hardened(near):
        torch.testing.assert_close(near(x), hard(x))


def test_depth_is_smooth_and_learned():
    soft = stack(1.5)
    assert soft.gates.tolist() == sorted(soft.gates.tolist(), reverse=True)
    x = torch.randn(5, 3)

    def deep(depth):
        return torch.func.functional_call(soft, {"depth": depth}, (x,))

    depth = torch.tensor(1.5, dtype=torch.float64, requires_grad=True)
    soft, x = soft.double(), x.double()
    assert torch.autograd.gradcheck(deep, depth)
    assert torch.autograd.gradgradcheck(deep, depth)
    soft.price().backward()
    assert soft.depth.grad > 0


def test_depth_finds_how_many_blocks_a_task_needs():
    # Each block adds 1: five would do, three are wanted
    class AddOne(nn.Module):
        def forward(self, x):
            return x + 1

    soft = SmoothDepth([AddOne() for _ in range(5)])
    optimizer = torch.optim.Adam(soft.parameters(), lr=0.05)
    anneal = Anneal(2.0, 50.0, steps=150, field="gate_steepness").attach(soft)
    for _ in range(150):
        optimizer.zero_grad()
        (soft(torch.zeros(1)) - 3).square().sum().backward()
        optimizer.step()
        anneal.step()
    assert len(soft.harden()) == 3
    torch.testing.assert_close(soft.harden()(torch.zeros(1)), soft(torch.zeros(1)), atol=1e-2, rtol=0)


def test_graph_is_the_formula():
    soft, x = graph(), torch.randn(2, 3)
    gates = {(c.source, c.target): c.gate for c in soft.connections}
    assert len(gates) == 1 + 2 + 3 + 4 + 5
    assert set(gates.values()) == {0.5}
    values = {"input": x}
    for name, node in soft.nodes.items():
        values[name] = node(sum(gates[source, name] * value for source, value in values.items())).expand_as(x)
    expected = sum(gates[source, "output"] * value for source, value in values.items())
    torch.testing.assert_close(soft(x), expected)


def test_a_chain_hardens_to_a_sequence_and_the_rest_is_dropped():
    soft = _set(
        graph(relax=Logistic(200.0)), ("input", "sort"), ("sort", "program"), ("program", "output"), ("sort", "mean")
    )
    hard = soft.harden()
    assert isinstance(hard, nn.Sequential)
    assert list(dict(hard.named_children())) == ["sort", "program"]
    x = torch.randn(4, 3)
    torch.testing.assert_close(hard(x), soft(x))
    assert hard[0] is not soft.nodes["sort"]


def test_other_shapes_harden_to_a_graph():
    soft = _set(
        graph(relax=Logistic(200.0)), ("input", "linear"), ("linear", "output"), ("input", "mean"), ("mean", "output")
    )
    hard = soft.harden()
    assert isinstance(hard, Graph)
    assert "output <- linear + mean" in repr(hard)
    x = torch.randn(4, 3)
    torch.testing.assert_close(hard(x), soft(x))
    nothing = _set(graph(relax=Logistic(200.0))).harden()
    assert not nothing(x).any()
    assert repr(nothing) == "Graph(\n  output <- nothing\n  (nodes): ModuleDict()\n)"


def test_price_counts_what_is_connected():
    soft = _set(
        graph(relax=Logistic(200.0), prices={"sort": 5.0, "output": 0.5}), ("input", "sort"), ("sort", "output")
    )
    assert soft.price().item() == pytest.approx(5.5)
    graph().price().backward()
    assert graph().prices.sum() == 15


def test_gates_are_annealed_apart_from_what_the_nodes_decide():
    soft = graph()
    Anneal(7.0, 9.0, steps=1, field="gate_steepness").attach(soft)
    assert float(soft.gate_steepness) == 7.0
    assert float(soft.nodes["sort"].algorithm.steepness) == 3.0
    report = softness_report(soft, torch.randn(4, 3))
    assert report.softness == {"SmoothGraph.gate_steepness": 7.0, "nodes.sort.algorithm.steepness": 3.0}
    assert "15 of 15 connections, Logistic, gate_steepness=7" in repr(soft)


def test_training_keeps_what_helps_and_drops_what_costs():
    torch.manual_seed(0)
    soft = SmoothGraph({"sort": torch.sort, "differences": FiniteDifferences(pad="zero")})
    optimizer = torch.optim.Adam(soft.parameters(), lr=0.05)
    anneal = Anneal(1.0, 100.0, steps=150, field="gate_steepness").attach(soft)
    for step in range(200):
        x = torch.randn(32, 4)
        loss = (soft(x) - x.sort(-1).values).square().mean()
        if step >= 50:
            loss = loss + 0.01 * soft.price()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step >= 50:
            anneal.step()
    hard = soft.harden()
    assert list(dict(hard.named_children())) == ["sort"]
    x = torch.randn(8, 4)
    torch.testing.assert_close(hard(x), x.sort(-1).values)
    torch.testing.assert_close(hard(x), soft(x), atol=1e-4, rtol=0)


def _refit(network, task, steps=60):
    """Trains all but the connections; the loss on examples that it was not trained on."""
    parameters = [p for name, p in network.named_parameters() if not name.endswith("logits")]

    def refit():
        optimizer = torch.optim.Adam(parameters, lr=0.05)
        for _ in range(steps):
            x = torch.randn(64, 4)
            loss = (network(x) - task(x)).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        x = torch.randn(256, 4)
        return (network(x) - task(x)).square().mean().item()

    return refit


def test_refining_takes_out_what_the_layers_behind_can_do():
    """Differences of sorted numbers, read by a layer: annealed so, they stay; the layer can do without."""
    torch.manual_seed(0)
    nodes = {"sort": torch.sort, "differences": FiniteDifferences(pad="zero"), "flip": torch.neg}
    soft = SmoothGraph(nodes, Logistic(400.0))
    _set(
        soft,
        ("input", "sort"),
        ("sort", "differences"),
        ("differences", "output"),
        ("input", "flip"),
        ("flip", "output"),
    )
    network = nn.Sequential(soft, nn.Linear(4, 1))
    assert refine(network, _refit(network, lambda x: x.amax(-1, keepdim=True) - x.amin(-1, keepdim=True)), price=0.01)
    assert soft.sources() == {"sort": ("input",), "output": ("sort",)}
    x = torch.randn(8, 4)
    torch.testing.assert_close(soft.harden()(x), soft(x))


def test_refining_leaves_what_is_needed_and_puts_back_what_it_tried():
    torch.manual_seed(0)
    soft = _set(SmoothGraph({"sort": torch.sort}, Logistic(400.0)), ("input", "sort"), ("sort", "output"))
    network = nn.Sequential(soft, nn.Linear(4, 1))
    refit = _refit(network, lambda x: x.amax(-1, keepdim=True))
    assert refit() < 0.1
    assert refine(network, refit, price=0.01) == []
    assert soft.sources() == {"sort": ("input",), "output": ("sort",)}
    x = torch.randn(256, 4)
    assert (network(x) - x.amax(-1, keepdim=True)).square().mean() < 0.1


def test_refining_puts_in_what_annealing_lost():
    torch.manual_seed(0)
    nodes = {"flip": torch.neg, "sort": torch.sort}
    soft = _set(SmoothGraph(nodes, Logistic(400.0)), ("input", "flip"), ("flip", "output"))
    network = nn.Sequential(soft, nn.Linear(4, 1))
    made = refine(network, _refit(network, lambda x: x.amax(-1, keepdim=True)), price=0.01)
    assert "alone: sort" in made
    assert soft.sources() == {"sort": ("input",), "output": ("sort",)}


def test_connections_are_cut_and_put_in():
    soft = graph(relax=Logistic(200.0))
    soft.cut("input", "sort")
    assert dict(zip(soft._pairs, soft.gates.tolist(), strict=True))["input", "sort"] == 0
    price = soft.price()
    soft.connect("input", "sort")
    assert soft.price() > price
    assert soft.state_dict()["mask"].min() == 1


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: SmoothDepth([]), "give at least one block"),
        (lambda: SmoothDepth([nn.Tanh()], depth=2), "`depth` must lie between 0 and 1, got 2"),
        (lambda: SmoothDepth([nn.Tanh()], relax=Sech()), "SmoothDepth: `relax` must be a sigmoid"),
        (lambda: SmoothDepth([nn.Linear(3, 2)])(torch.ones(1, 3)), r"Linear made \(1, 2\) of \(1, 3\)"),
        (lambda: SmoothGraph({}), "`nodes` must be a mapping from names to layers"),
        (lambda: SmoothGraph({"input": torch.neg}), "'input' is what the graph's own end is called"),
        (lambda: SmoothGraph({"a": 3}), "node 'a' must be a layer or an algorithm, got int"),
        (lambda: SmoothGraph({"a": torch.neg}, prices={"b": 1.0}), "`prices` names 'b'; the nodes are a, output"),
        (lambda: SmoothGraph({"a": torch.neg}, prices={"a": -1.0}), "must be a number from 0 on, got -1.0"),
        (
            lambda: SmoothGraph({"a": torch.neg}).cut("output", "a"),
            "no connection from 'output' to 'a'; in order, there are inp",
        ),
        (lambda: refine(nn.Linear(1, 1), lambda: 0.0, price=1.0), "refine: the network has no SmoothGraph"),
        (lambda: refine(graph(), lambda: 0.0, price=-1.0), "`price` must be a number from 0 on, got -1.0"),
        (lambda: SmoothGraph({"a": lambda x: x[..., :2]})(torch.ones(1, 3)), r"node 'a' must keep the shape \(1, 3\)"),
    ],
)
def test_errors_say_what_was_wanted(make, message):
    with pytest.raises((TypeError, ValueError), match=message):
        make()

"""What a smooth graph needs and what it can do without: found by trying, since annealing ends in some local minimum."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from torch import nn

from .topology import INPUT, OUTPUT, SmoothGraph


class _Change(NamedTuple):
    """Connections that go and others that come in their place."""

    label: str
    cut: tuple[tuple[str, str], ...]
    connected: tuple[tuple[str, str], ...] = ()

    def possible(self, graph: SmoothGraph) -> bool:
        read = graph.sources()
        return all(source in read.get(target, ()) for source, target in self.cut)

    def make(self, graph: SmoothGraph) -> None:
        for pair in self.connected:
            graph.connect(*pair)
        for pair in self.cut:
            graph.cut(*pair)


def refine(network: nn.Module, refit: Callable[[], float], *, price: float) -> list[str]:
    """Try on the smooth graphs in `network` what annealing has not: put nodes in, take nodes and connections out.

    Annealing keeps a node that the layers behind it could replace, and may lose one before they learn to use it. So changes
    are tried one at a time: each node put between input and output (beside the others, and in their place), each node
    bypassed (its readers read its sources instead), each connection cut. `refit()` trains the network a little and returns its
    loss, best on examples that it does not train on. A change stays if the loss plus `price` times the graph's own price has
    not grown; else it is undone. Connections below one half are cut first, and the others made as strong as the strongest, so
    that what is left is what `harden()` returns. The result says what was changed.

    Cost: three refits for each node and one for each connection, and again after each round in which something went.

    >>> import torch
    >>> from algonet.relax import Logistic
    >>> x, graph = torch.eye(3), SmoothGraph({"flip": torch.neg, "scale": nn.Linear(3, 3)}, Logistic(50.0))
    >>> def refit():
    ...     optimizer = torch.optim.Adam(graph.nodes.parameters(), lr=0.03)
    ...     for _ in range(100):
    ...         loss = (graph(x) - 2 * x).square().mean()
    ...         optimizer.zero_grad()
    ...         loss.backward()
    ...         optimizer.step()
    ...     return loss.item()
    >>> changes = refine(graph, refit, price=0.01)
    >>> graph.harden()
    Sequential(
      (scale): Linear(in_features=3, out_features=3, bias=True)
    )
    """
    graphs = [module for module in network.modules() if isinstance(module, SmoothGraph)]
    if not graphs:
        raise ValueError("refine: the network has no SmoothGraph.")
    if not price >= 0:
        raise ValueError(f"refine: `price` must be a number from 0 on, got {price!r}.")
    for graph in graphs:
        for target, sources in graph.sources().items():
            for source in sources:
                graph.connect(source, target)
        _cut_unused(graph)
    loss, made = refit(), []

    def stays(graph: SmoothGraph, change: _Change) -> bool:
        """Whether the change costs no more than it saves; else all is as before."""
        nonlocal loss
        before, spent = copy.deepcopy(network.state_dict()), float(graph.price().detach())
        change.make(graph)
        _cut_unused(graph)
        saved = spent - float(graph.price().detach())
        found = refit()
        if not found <= loss + price * saved:
            network.load_state_dict(before)
            return False
        loss = found
        made.append(change.label)
        return True

    for graph in graphs:
        for make, name in [(make, name) for make in (_beside, _alone) for name in graph.nodes]:
            change = make(graph, name)
            if change is not None:
                stays(graph, change)
        changed = True
        while changed:
            changed = False
            for change in list(_changes(graph)):
                changed |= change.possible(graph) and stays(graph, change)
    return made


def _beside(graph: SmoothGraph, name: str) -> _Change | None:
    """A node that is not used, between input and output, beside what is there."""
    return None if name in graph.sources() else _Change(f"in: {name}", (), ((INPUT, name), (name, OUTPUT)))


def _alone(graph: SmoothGraph, name: str) -> _Change | None:
    """A node between input and output in the place of all others."""
    way = (INPUT, name), (name, OUTPUT)
    there = [(source, target) for target, sources in graph.sources().items() for source in sources]
    others = tuple(pair for pair in there if pair not in way)
    return _Change(f"alone: {name}", others, way) if others else None


def _changes(graph: SmoothGraph) -> Iterator[_Change]:
    """Every node that is used, the last ones first, and every connection."""
    read = graph.sources()
    for name in reversed([*graph.nodes]):
        if name in read:
            sources, targets = read[name], [t for t, names in read.items() if name in names]
            own = [(s, name) for s in sources] + [(name, t) for t in targets]
            around = [(s, t) for s in sources for t in targets if s not in read[t]]
            yield _Change(f"out: {name}", tuple(own), tuple(around))
    for target, names in reversed(read.items()):
        for source in names:
            if len(names) > 1 or target != OUTPUT:
                yield _Change(f"out: {source} -> {target}", ((source, target),))


def _cut_unused(graph: SmoothGraph) -> None:
    """Connections below one half, and those of nodes that do not lead to the output."""
    read = graph.sources()
    connections: list[Any] = graph.connections
    for source, target, _ in connections:
        if source not in read.get(target, ()) or (source != INPUT and source not in read):
            graph.cut(source, target)

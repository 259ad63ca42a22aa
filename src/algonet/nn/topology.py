"""Smooth topology: how deep a network is, and what is connected to what, as numbers with a gradient."""

from __future__ import annotations

import copy
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, nn

from algonet.relax import Logistic, Sigmoid, SoftModule

from .insertion import AlgorithmLayer, Insert
from .programs import is_program

#: What the ends of a graph are called.
INPUT, OUTPUT = "input", "output"


class SmoothDepth(SoftModule):
    """A stack of blocks whose depth is a real number: block k runs to the extent of P(depth > k + 1/2).

    x := x + g_k (block_k(x) - x) with g_k = r(depth - k - 1/2) for k = 0, 1, ..., so blocks must keep the shape. `depth` is
    a parameter: a loss that gains from more blocks raises it, and `price()`, the expected number of blocks, added to the
    loss lowers it. Hard limit: steepness -> inf runs the first round(depth) blocks, which is what `harden()` returns.
    As often differentiable as the sigmoid and the blocks. Cost: all blocks run, whatever the depth, until hardened.

    >>> stack = SmoothDepth([nn.Tanh(), nn.Tanh(), nn.Tanh()], depth=2.0, relax=Logistic(50.0))
    >>> torch.testing.assert_close(stack(torch.ones(1)), torch.ones(1).tanh().tanh())
    >>> stack.harden()
    Sequential(
      (0): Tanh()
      (1): Tanh()
    )
    """

    def __init__(self, blocks: Iterable[nn.Module], depth: float | None = None, relax: Sigmoid = Logistic(4.0)):
        super().__init__(gate=_checked_sigmoid(type(self).__name__, relax))
        if not isinstance(blocks, Iterable):
            raise TypeError(f"SmoothDepth: `blocks` must be modules, such as [nn.Linear(4, 4)] * 3, got {blocks!r}.")
        self.blocks = nn.ModuleList(blocks)
        if not len(self.blocks):
            raise ValueError("SmoothDepth: give at least one block.")
        depth = len(self.blocks) / 2 if depth is None else depth
        if isinstance(depth, bool) or not isinstance(depth, (int, float)) or not 0 <= depth <= len(self.blocks):
            raise ValueError(f"SmoothDepth: `depth` must lie between 0 and {len(self.blocks)}, got {depth!r}.")
        self.depth = nn.Parameter(torch.tensor(float(depth)))

    @property
    def gates(self) -> Tensor:
        """To what extent each block runs."""
        place = torch.arange(len(self.blocks), dtype=self.depth.dtype, device=self.depth.device)
        return cast(Sigmoid, self.relaxation("gate"))(self.depth - place - 0.5)

    def forward(self, x: Tensor) -> Tensor:
        for block, gate in zip(self.blocks, self.gates.unbind(), strict=True):
            result = block(x)
            if result.shape != x.shape:
                raise ValueError(
                    f"SmoothDepth: blocks must keep the shape: {type(block).__name__} made {tuple(result.shape)} "
                    f"of {tuple(x.shape)}."
                )
            x = x + gate.to(x.dtype) * (result - x)
        return x

    def price(self) -> Tensor:
        """The expected number of blocks."""
        return self.gates.sum()

    def harden(self) -> nn.Sequential:
        """A copy of the first round(depth) blocks as an ordinary stack."""
        count = int((self.gates.detach() >= 0.5).sum())
        return nn.Sequential(*copy.deepcopy(list(self.blocks)[:count]))

    def extra_repr(self) -> str:
        return f"depth={self.depth.item():.4g} of {len(self.blocks)}, {super().extra_repr()}"


class Connection(NamedTuple):
    """What `target` reads from `source`, and to what extent."""

    source: str
    target: str
    gate: float


class SmoothGraph(SoftModule):
    """Layers and algorithms whose connections are gates: which of them the network uses is learned with the rest.

    `nodes` (name -> layer or algorithm) are sorted so that connections only lead forwards: node j reads
    sum_i g_ij h_i over the input and all nodes i before it, and so does the output. A gate is g = r(a), a its
    parameter: P(a > 0) by the sigmoid `relax`. All nodes start equally connected. Each node maps the features of the
    input to as many features (along the last dimension) or to one, which then stands for all; programs and functions
    are taken as `Insert` takes them.

    `price()` is the sum over connections of gate times price (`prices`: target -> its price, 1 where not said), to be
    added to the loss. Anneal the gates while training, `Anneal(1.0, 400.0, steps, field="gate_steepness").attach(graph)`:
    they become 0 or 1, `refine(network, refit, price=...)` tries what is needed and what is not, and `harden()` returns the
    ordinary network that remains. Hard limit: steepness -> inf is that.
    As often differentiable as sigmoid and nodes. Cost: all nodes run, until hardened.

    >>> graph = SmoothGraph({"sort": torch.sort, "linear": nn.Linear(3, 3)})
    >>> graph(torch.randn(5, 3)).shape, len(graph.connections)
    (torch.Size([5, 3]), 6)
    """

    def __init__(
        self,
        nodes: Mapping[str, nn.Module | Callable[..., Any]],
        relax: Sigmoid = Logistic(1.0),
        *,
        prices: Mapping[str, float] | None = None,
    ):
        super().__init__(gate=_checked_sigmoid(type(self).__name__, relax))
        _check_names(nodes, prices)
        self.nodes = nn.ModuleDict({name: _as_module(name, node) for name, node in nodes.items()})
        targets = [*nodes, OUTPUT]
        self._pairs = tuple((source, target) for j, target in enumerate(targets) for source in (INPUT, *targets[:j]))
        self.logits = nn.Parameter(torch.zeros(len(self._pairs)))
        listed = torch.tensor([float((prices or {}).get(target, 1.0)) for _, target in self._pairs])
        self.prices: Tensor
        self.register_buffer("prices", listed)
        self.mask: Tensor
        self.register_buffer("mask", torch.ones(len(self._pairs)))

    @property
    def gates(self) -> Tensor:
        """To what extent each of `connections` is there; 0 for those that were `cut`."""
        return cast(Sigmoid, self.relaxation("gate"))(self.logits) * self.mask

    @torch.no_grad()
    def cut(self, source: str, target: str) -> None:
        """Take the connection from `source` to `target` out for good."""
        self.mask[self._place(source, target)] = 0.0

    @torch.no_grad()
    def connect(self, source: str, target: str) -> None:
        """Put the connection from `source` to `target` in, as strong as the strongest."""
        place = self._place(source, target)
        self.mask[place] = 1.0
        self.logits[place] = self.logits.max().clamp_min(1.0)

    def _place(self, source: str, target: str) -> int:
        if (source, target) not in self._pairs:
            known = ", ".join([INPUT, *self.nodes, OUTPUT])
            raise ValueError(
                f"SmoothGraph: there is no connection from {source!r} to {target!r}; in order, there are {known}."
            )
        return self._pairs.index((source, target))

    @property
    def connections(self) -> list[Connection]:
        """All connections with their present gates."""
        return [Connection(*pair, gate) for pair, gate in zip(self._pairs, self.gates.tolist(), strict=True)]

    def forward(self, x: Tensor) -> Tensor:
        gates = dict(zip(self._pairs, self.gates.to(x.dtype).unbind(), strict=True))
        sources = {name: [source for source, target in gates if target == name] for name in (*self.nodes, OUTPUT)}
        return _run_graph(x, self.nodes, sources, gates)

    def price(self) -> Tensor:
        """The expected price of the connections."""
        return (self.gates * self.prices).sum()

    def harden(self) -> nn.Module:
        """A copy of what is left: connections of a gate of at least 1/2, and the nodes that lead to the output.

        A chain becomes an `nn.Sequential`, anything else a `Graph`.
        """
        sources = self.sources()
        nodes = {name: copy.deepcopy(self.nodes[name]) for name in sources if name != OUTPUT}
        order = [INPUT, *sources]
        if all(read == (before,) for before, read in zip(order, sources.values(), strict=False)) and nodes:
            return nn.Sequential(OrderedDict(nodes))
        return Graph(nodes, sources)

    def sources(self) -> dict[str, tuple[str, ...]]:
        """What each node that leads to the output, and the output, reads by gates of at least 1/2."""
        strong = [(c.source, c.target) for c in self.connections if c.gate >= 0.5]
        needed = {OUTPUT}
        for name in reversed([*self.nodes, OUTPUT]):
            if name in needed:
                needed |= {source for source, target in strong if target == name}
        return {
            name: tuple(source for source, target in strong if target == name)
            for name in (*self.nodes, OUTPUT)
            if name in needed
        }

    def extra_repr(self) -> str:
        strong = sum(connection.gate >= 0.5 for connection in self.connections)
        return f"{len(self.nodes)} nodes, {strong} of {len(self._pairs)} connections, {super().extra_repr()}"


class Graph(nn.Module):
    """An ordinary network: each node reads the sum of its `sources`, and the output is such a sum too.

    What reads nothing reads zeros.
    """

    def __init__(self, nodes: Mapping[str, nn.Module], sources: Mapping[str, tuple[str, ...]]):
        super().__init__()
        self.nodes = nn.ModuleDict(nodes)
        self.sources = dict(sources)

    def forward(self, x: Tensor) -> Tensor:
        return _run_graph(x, self.nodes, self.sources)

    def extra_repr(self) -> str:
        return "; ".join(f"{name} <- {' + '.join(sources) or 'nothing'}" for name, sources in self.sources.items())


def _as_module(name: str, node: Any) -> nn.Module:
    if isinstance(node, AlgorithmLayer):
        return node
    if isinstance(node, nn.Module) and not isinstance(node, SoftModule) and not is_program(node):
        return node
    if not callable(node):
        raise TypeError(f"SmoothGraph: node {name!r} must be a layer or an algorithm, got {type(node).__name__}.")
    return Insert(node)


def _run_graph(
    x: Tensor, nodes: nn.ModuleDict, sources: Mapping[str, Sequence[str]], gates: Mapping[Any, Tensor] | None = None
) -> Tensor:
    """What the output reads: each node gets the sum of its sources, to the extent of the gates of its connections."""
    values: dict[str, Tensor] = {INPUT: x}
    total = x
    for name, read in sources.items():
        total = torch.zeros_like(x)
        for source in read:
            total = total + (values[source] if gates is None else gates[source, name] * values[source])
        if name != OUTPUT:
            values[name] = _evaluated(name, nodes[name], total)
    return total


def _evaluated(name: str, node: nn.Module, x: Tensor) -> Tensor:
    result = node(x)
    if not isinstance(result, Tensor) or result.shape[:-1] != x.shape[:-1] or result.shape[-1] not in (1, x.shape[-1]):
        made = tuple(result.shape) if isinstance(result, Tensor) else type(result).__name__
        raise ValueError(
            f"SmoothGraph: node {name!r} must keep the shape {tuple(x.shape)}, or give one feature instead of "
            f"{x.shape[-1]}, got {made}."
        )
    return result.expand_as(x)


def _checked_sigmoid(where: str, relax: Any) -> Sigmoid:
    if not isinstance(relax, Sigmoid):
        raise TypeError(f"{where}: `relax` must be a sigmoid such as Logistic(1.0), got {relax!r}.")
    return relax


def _check_names(nodes: Any, prices: Mapping[str, float] | None) -> None:
    if not isinstance(nodes, Mapping) or not nodes:
        raise TypeError(f"SmoothGraph: `nodes` must be a mapping from names to layers, got {nodes!r}.")
    for name in nodes:
        if name in (INPUT, OUTPUT):
            raise ValueError(f"SmoothGraph: {name!r} is what the graph's own end is called; choose another name.")
    for name, price in (prices or {}).items():
        if name not in (*nodes, OUTPUT):
            raise ValueError(f"SmoothGraph: `prices` names {name!r}; the nodes are {', '.join(nodes)}, {OUTPUT}.")
        if isinstance(price, bool) or not isinstance(price, (int, float)) or not price >= 0:
            raise ValueError(f"SmoothGraph: the price of {name!r} must be a number from 0 on, got {price!r}.")

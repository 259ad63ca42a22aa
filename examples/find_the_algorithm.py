"""Which algorithm does a task need? A graph with a sort, a maximum, finite differences and layers finds out.

The task, six numbers to the spread of their inner four, needs the sort; nobody says so. All connections start at one half, cost
a little, and are annealed. Then every node and connection is tried, in or out, and has to prove itself: the rest is trained
again for a moment each time. What remains is an ordinary network.

python examples/find_the_algorithm.py [--seed 0]
"""

from __future__ import annotations

import argparse

import torch
from torch import Tensor, nn

from algonet import Anneal, FiniteDifferences, Logistic, SmoothGraph, SoftSort, soft_max
from algonet.nn import refine

NUMBERS, STEPS, REFIT = 6, 600, 200
#: Of a connection while searching, low enough that none is lost before it was tried, and when it has to prove itself: mean
#: squared error that it must be worth.
SEARCH_PRICE, PRICE = 0.003, 0.01


def examples(count: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    x = torch.randn(count, NUMBERS, generator=generator)
    ranked = x.sort(-1).values
    return x, ranked[:, -2:-1] - ranked[:, 1:2]


Examples = tuple[Tensor, Tensor]


def every_choice() -> SmoothGraph:
    return SmoothGraph(
        {
            "linear": nn.Linear(NUMBERS, NUMBERS),
            "sort": SoftSort(Logistic(10.0)),
            "maximum": lambda x: soft_max(x, steepness=10.0, keepdim=True),
            "differences": FiniteDifferences(pad="zero"),
            "relu": nn.Sequential(nn.Linear(NUMBERS, NUMBERS), nn.ReLU()),
        }
    )


def search(network: nn.Sequential, graph: SmoothGraph, data: Examples, generator: torch.Generator) -> None:
    """Train and anneal: first a look at what helps, then what it costs."""
    others = [p for name, p in network.named_parameters() if name != "0.logits"]
    optimizer = torch.optim.Adam([{"params": others, "lr": 0.01}, {"params": [graph.logits], "lr": 0.03}])
    anneal = Anneal(1.0, 400.0, STEPS // 2, field="gate_steepness").attach(graph)
    for step in range(STEPS):
        error = on_some(network, data, generator)
        looking = 3 * step < STEPS
        loss = error if looking else error + SEARCH_PRICE * graph.price()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if not looking:
            anneal.step()
        if step % 100 == 0 or step == STEPS - 1:
            print(f"step {step:3d}: error {error.item():.4f}, price {graph.price().item():.2f}")


def refit(network: nn.Sequential, data: Examples, aside: Examples, generator: torch.Generator) -> float:
    """Train what is left for a moment; the error on examples kept aside."""
    optimizer = torch.optim.Adam([p for name, p in network.named_parameters() if name != "0.logits"], lr=0.02)
    for step in range(REFIT):
        optimizer.param_groups[0]["lr"] = 0.02 * (1 - step / REFIT)
        loss = on_some(network, data, generator)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    with torch.no_grad():
        return nn.functional.mse_loss(network(aside[0]), aside[1]).item()


def on_some(network: nn.Sequential, data: Examples, generator: torch.Generator) -> Tensor:
    rows = torch.randint(len(data[0]), (128,), generator=generator)
    return nn.functional.mse_loss(network(data[0][rows]), data[1][rows])


def main() -> None:
    parser = argparse.ArgumentParser(description="Which algorithm does a task need?")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--starts", type=int, default=2, help="how often to begin anew; the best is kept")
    options = parser.parse_args()
    torch.manual_seed(options.seed)
    generator = torch.Generator().manual_seed(options.seed + 1)
    data, aside = examples(1500, generator), examples(500, generator)
    tried = []
    for start in range(options.starts):
        graph = every_choice()
        network = nn.Sequential(graph, nn.Linear(NUMBERS, 1))
        print(f"start {start + 1} of {options.starts}")
        search(network, graph, data, generator)
        made = refine(network, lambda network=network: refit(network, data, aside, generator), price=PRICE)
        cost = refit(network, data, aside, generator) + PRICE * graph.price().item()
        print(f"changed: {', '.join(made) or 'nothing'}; error and price {cost:.4f}")
        tried.append((cost, network, graph))
    _, network, graph = min(tried, key=lambda one: one[0])
    hard = graph.harden()
    fresh, truth = examples(2000, generator)
    with torch.no_grad():
        soft, crisp = network(fresh), network[1](hard(fresh))
    print(f"left: {hard}")
    print(f"error on new examples {nn.functional.mse_loss(crisp, truth):.4f} of a variance of {truth.var():.4f}")
    print(f"hardened and soft network differ by at most {(soft - crisp).abs().max():.1e}")


if __name__ == "__main__":
    main()

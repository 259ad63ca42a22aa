"""Which algorithm does a task need? A graph with a sort, a maximum, finite differences and layers finds out.

The task, six numbers to the spread of their inner four, needs the sort; nobody says so. All connections start at one half, cost
something, and are annealed; what is left is an ordinary network.

python examples/find_the_algorithm.py [--seed 0] [--out topology.png]
"""

from __future__ import annotations

import argparse

import torch
from torch import Tensor, nn

from algonet import Anneal, FiniteDifferences, Logistic, SmoothGraph, SoftSort, soft_max

NUMBERS, STEPS = 6, 600


def examples(count: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    x = torch.randn(count, NUMBERS, generator=generator)
    ranked = x.sort(-1).values
    return x, ranked[:, -2:-1] - ranked[:, 1:2]


def main() -> None:
    parser = argparse.ArgumentParser(description="Which algorithm does a task need?")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", help="draw the graph before and after into this file")
    options = parser.parse_args()
    torch.manual_seed(options.seed)
    generator = torch.Generator().manual_seed(options.seed + 1)
    graph = SmoothGraph(
        {
            "linear": nn.Linear(NUMBERS, NUMBERS),
            "sort": SoftSort(Logistic(10.0)),
            "maximum": lambda x: soft_max(x, steepness=10.0, keepdim=True),
            "differences": FiniteDifferences(pad="zero"),
            "relu": nn.Sequential(nn.Linear(NUMBERS, NUMBERS), nn.ReLU()),
        }
    )
    network = nn.Sequential(graph, nn.Linear(NUMBERS, 1))
    before = graph.connections
    x, wanted = examples(2000, generator)
    others = [p for name, p in network.named_parameters() if name != "0.logits"]
    optimizer = torch.optim.Adam([{"params": others, "lr": 0.01}, {"params": [graph.logits], "lr": 0.03}])
    anneal = Anneal(1.0, 400.0, STEPS // 2, field="gate_steepness").attach(graph)
    for step in range(STEPS):
        rows = torch.randint(len(x), (128,), generator=generator)
        error = nn.functional.mse_loss(network(x[rows]), wanted[rows])
        # First a look at what helps, then what it costs
        searching = 3 * step < STEPS
        loss = error if searching else error + 0.03 * graph.price()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if not searching:
            anneal.step()
        if step % 100 == 0 or step == STEPS - 1:
            print(f"step {step:3d}: error {error.item():.4f}, price {graph.price().item():.2f}")
    hard = graph.harden()
    fresh, truth = examples(2000, generator)
    with torch.no_grad():
        soft, crisp = network(fresh), network[1](hard(fresh))
    print(f"left: {hard}")
    print(f"error on new examples {nn.functional.mse_loss(crisp, truth):.4f} of a variance of {truth.var():.4f}")
    print(f"hardened and soft network differ by at most {(soft - crisp).abs().max():.1e}")
    if options.out:
        draw(options.out, before, graph.connections)


def draw(out: str, before: list, after: list) -> None:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    from algonet.nn.plots import draw_connections

    figure, axes = plt.subplots(2, 1, figsize=(9, 6))
    for axis, connections, title in zip(axes, (before, after), ("before", "after"), strict=True):
        draw_connections(axis, connections)
        axis.set_title(title)
    figure.savefig(out, dpi=120)


if __name__ == "__main__":
    main()

"""What does it cost to cross mud, forest and water? Learned from nothing but the lengths of shortest ways.

A traveller always takes the cheapest way through a map, and we are told what each journey cost, but not the way taken
nor the price of any terrain. The algorithm is known (shortest paths), only its inputs are not: so it is put between the
unknown prices and the known totals, smoothly, and the prices are learned through its decisions.

Run: python examples/smooth_terrain.py [--steps 120]
"""

from __future__ import annotations

import argparse

import torch
from torch.nn.functional import one_hot, softplus

from algonet.smooth_python.algorithms import shortest_path

NAMES = ("road", "forest", "mud", "water")
PRICES = torch.tensor([0.3, 1.0, 1.8, 4.0])


def journeys(count: int, rows: int, columns: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Maps of terrain kinds, and the crisp cost of the cheapest way through each."""
    maps = torch.randint(len(NAMES), (count, rows, columns), generator=torch.Generator().manual_seed(0))
    costs = torch.stack([torch.tensor(shortest_path.crisp(grid.tolist())) for grid in PRICES[maps]])
    return maps, costs


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=120)
    options = parser.parse_args()
    maps, totals = journeys(count=48, rows=4, columns=5)
    kinds = one_hot(maps, len(NAMES)).float()

    raw = torch.zeros(len(NAMES), requires_grad=True)  # all terrain alike to begin with
    optimiser = torch.optim.Adam([raw], lr=0.08)
    for step in range(options.steps):
        prices = softplus(raw)
        found = shortest_path(kinds @ prices, batched=True, steepness=4.0 + 26.0 * step / options.steps)
        loss = (found - totals).square().mean()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        if step % 20 == 0 or step == options.steps - 1:
            guess = ", ".join(f"{name} {price:.2f}" for name, price in zip(NAMES, prices.tolist(), strict=True))
            print(f"step {step:3d}  loss {float(loss.detach()):8.4f}   {guess}", flush=True)
    print("          the truth       " + ", ".join(f"{n} {p:.2f}" for n, p in zip(NAMES, PRICES.tolist(), strict=True)))


if __name__ == "__main__":
    main()

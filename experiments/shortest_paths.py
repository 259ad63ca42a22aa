"""Shortest paths through costs that are learned: maps of terrain in, the cheapest way from corner to corner out.

The Warcraft protocol in small, on maps made on the spot: 12 x 12 tiles of five kinds of terrain, drawn as 8 x 8
pixels each with noise; the network never sees a cost, only the right path. It gives each tile a cost, a soft
Bellman-Ford (`soft_min` over the eight neighbours, in 12 + 12 rounds) the length of the shortest path, and *the
derivative of that length by the costs is the soft path*, which is compared with the right one: training
differentiates it again. "cost" is the share of unseen maps whose path, found crisply with the learned costs, is as
cheap as the true one; "path" the share where it is the same.

Beside it, where algovision is installed, its way in its own language: distances by softmin averages of the eight
neighbours, then the way back from the last tile, step by step to the soft nearest neighbour, visits joined by the
probabilistic sum. Maps, network, loss, steps and the rise of the steepness are the same; the way back ends at the
first tile, where its published example goes on. The baseline predicts the path by a network alone. Figures that are
published for Warcraft's own maps are not comparable.

Run: python -m experiments.shortest_paths [--steps 1500] [--batch 64] [--seeds 3]
"""

from __future__ import annotations

import argparse
import heapq
from collections.abc import Callable

import torch
from torch import Tensor, nn

from algonet import soft_min
from experiments.harness import Checkpoint, Repeated, Row, arguments, cosine, record, spread_of

SIDE, TILE, ROUNDS = 12, 8, 24
COSTS = (0.8, 1.2, 5.3, 7.7, 9.2)
FAR = 1e3
OURS, PEER, ALONE = "derivative of the soft length", "algovision, soft way back", "a network alone"


def maps(count: int, seed: int) -> tuple[Tensor, Tensor]:
    """Pictures (count, 3, 96, 96) and the true cost of each tile (count, 12, 12)."""
    generator = torch.Generator().manual_seed(seed)
    # Smooth noise cut at five levels makes regions of terrain
    rough = torch.randn(count, 1, SIDE // 2, SIDE // 2, generator=generator)
    height = nn.functional.interpolate(rough, (SIDE, SIDE), mode="bicubic").squeeze(1)
    height = height + 0.5 * torch.randn(count, SIDE, SIDE, generator=generator)
    kind = torch.bucketize(height, torch.tensor([-0.8, -0.25, 0.25, 0.8]))
    colours = torch.tensor([[0.8, 0.7, 0.4], [0.3, 0.6, 0.2], [0.1, 0.3, 0.1], [0.5, 0.5, 0.5], [0.1, 0.2, 0.6]])
    wide = colours[kind].permute(0, 3, 1, 2).repeat_interleave(TILE, 2).repeat_interleave(TILE, 3)
    return (wide + 0.15 * torch.randn(wide.shape, generator=generator)).clamp(0, 1), torch.tensor(COSTS)[kind]


def cheapest(costs: Tensor) -> Tensor:
    """The crisp path (12, 12) of zeros and ones, by Dijkstra; the first tile's cost does not matter."""
    table = costs.tolist()
    distance, before, queue = {(0, 0): 0.0}, {}, [(0.0, (0, 0))]
    while queue:
        length, (i, j) = heapq.heappop(queue)
        if length > distance[i, j]:
            continue
        for a in range(max(0, i - 1), min(SIDE, i + 2)):
            for b in range(max(0, j - 1), min(SIDE, j + 2)):
                further = length + table[a][b]
                if (a, b) != (i, j) and further < distance.get((a, b), float("inf")):
                    distance[a, b], before[a, b] = further, (i, j)
                    heapq.heappush(queue, (further, (a, b)))
    path, place = torch.zeros(SIDE, SIDE), (SIDE - 1, SIDE - 1)
    while place != (0, 0):
        path[place], place = 1.0, before[place]
    path[0, 0] = 1.0
    return path


def soft_lengths(costs: Tensor, steepness: float | Tensor) -> Tensor:
    """Soft length of the shortest path to the last tile (batch,), by ROUNDS of Bellman-Ford with soft minima."""
    start = torch.full_like(costs, FAR)
    start[:, 0, 0] = 0.0
    distance = start
    for _ in range(ROUNDS):
        padded = nn.functional.pad(distance, (1, 1, 1, 1), value=FAR)
        around = nn.functional.unfold(padded.unsqueeze(1), 3).reshape(len(costs), 9, SIDE, SIDE)
        reached = soft_min(around, dim=1, steepness=steepness) + costs
        distance = torch.where(start == 0.0, start, torch.minimum(reached, start))
    return distance[:, -1, -1]


def soft_paths(costs: Tensor, steepness: float | Tensor, create_graph: bool = True) -> Tensor:
    """How much each tile is part of the shortest path: the derivative of its length by the tile's cost."""
    found = torch.autograd.grad(soft_lengths(costs, steepness).sum(), costs, create_graph=create_graph)[0]
    return found + torch.eye(1, SIDE * SIDE, device=costs.device).reshape(SIDE, SIDE)


def peer_paths(steepness: Tensor) -> Callable[[Tensor], Tensor] | None:
    """Costs (batch, 12, 12) -> soft paths in algovision's language; None where it is not installed."""
    try:
        from algovision import Algorithm, For, Input, Let, Output, Var
    except ImportError:
        return None
    far, first = torch.full((SIDE, SIDE), FAR), torch.zeros(SIDE, SIDE)
    far[0, 0], first[0, 0] = 0.0, 1.0
    # A tile is no neighbour of its own
    far, first, itself = (t.to(steepness) for t in (far, first, FAR * (torch.arange(9) == 4)))

    def around(distance: Tensor) -> Tensor:
        padded = nn.functional.pad(distance, (1, 1, 1, 1), value=FAR).unsqueeze(1)
        return nn.functional.unfold(padded, 3).reshape(-1, 9, SIDE, SIDE) + itself[:, None, None]

    def shares(distance: Tensor) -> Tensor:
        return (-steepness * around(distance)).softmax(1)

    def relaxed(distance: Tensor, costs: Tensor) -> Tensor:
        return torch.minimum((shares(distance) * around(distance)).sum(1) + costs, far)

    def moved(place: Tensor, nearest: Tensor) -> Tensor:
        # What has arrived at the first tile stays counted and goes nowhere
        gone = (place * (1 - first)).unsqueeze(1) * nearest
        return nn.functional.fold(gone.flatten(2), (SIDE, SIDE), 3, padding=1).squeeze(1)

    return Algorithm(
        Input("costs"),
        Var("distance", far),
        Var("nearest", torch.zeros(9, SIDE, SIDE).to(far)),
        Var("place", first.flip(0, 1)),
        Var("path", torch.zeros_like(first)),
        For("round", ROUNDS, Let("distance", lambda distance, costs: relaxed(distance, costs))),
        Let("nearest", lambda distance: shares(distance)),
        For(
            "step",
            ROUNDS,
            Let("path", lambda path, place: path + place - path * place),
            Let("place", lambda place, nearest: moved(place, nearest)),
        ),
        Output("path"),
        beta=1.0,
    )


def cost_network() -> nn.Module:
    """Picture -> a positive cost for each tile, from the tile and a little around it."""
    return nn.Sequential(
        nn.Conv2d(3, 32, 5, padding=2), nn.BatchNorm2d(32), nn.ReLU(), nn.AvgPool2d(2),
        nn.Conv2d(32, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.AvgPool2d(4),
        nn.Conv2d(32, 32, 1), nn.ReLU(), nn.Conv2d(32, 1, 1), nn.Softplus(), nn.Flatten(1, 2),
    )  # fmt: skip


def path_network() -> nn.Module:
    """Picture -> a logit for each tile; it sees the whole map, as a way depends on all of it."""
    layers: list[nn.Module] = [nn.Conv2d(3, 64, TILE, stride=TILE), nn.ReLU()]
    for _ in range(6):
        layers += [nn.Conv2d(64, 64, 3, padding=1), nn.BatchNorm2d(64), nn.ReLU()]
    return nn.Sequential(*layers, nn.Conv2d(64, 32, 1), nn.ReLU(), nn.Conv2d(32, 1, 1), nn.Flatten(1, 2))


def train(method: str, data: tuple[Tensor, Tensor], steps: int, batch: int, seed: int) -> nn.Module:
    torch.manual_seed(seed)
    pictures, paths = data
    device = paths.device
    model = (path_network() if method == ALONE else cost_network()).to(device)
    rate, steepness = torch.zeros((), device=device), torch.ones((), device=device)
    optimizer = torch.optim.Adam(model.parameters(), lr=rate, capturable=device.type != "cpu")
    walked = peer_paths(steepness) if method == PEER else lambda costs: soft_paths(costs, steepness)
    assert walked is not None

    def step() -> None:
        chosen = torch.randint(len(paths), (batch,), device=device)
        found = model(pictures[chosen])
        if method == ALONE:
            loss = nn.functional.binary_cross_entropy_with_logits(found, paths[chosen])
        else:
            loss = (walked(found) - paths[chosen]).square().mean()
        optimizer.zero_grad(set_to_none=False)
        loss.backward()
        optimizer.step()

    repeated = Repeated(step, str(device))
    for i in range(steps):
        rate.fill_(2e-3 * cosine(i / steps))
        # Soft at first, so that all ways count; hard at last, so that the best one does
        steepness.fill_(1.0 + 9.0 * i / steps)
        repeated()
    return model.eval()


@torch.no_grad()
def score(method: str, model: nn.Module, pictures: Tensor, costs: Tensor, paths: Tensor) -> tuple[float, float]:
    """(cost match, path match) on unseen maps."""
    found = model(pictures).cpu()
    ways = (found > 0).float() if method == ALONE else torch.stack([cheapest(f) for f in found])
    same = (ways == paths.cpu()).flatten(1).all(1)
    off_start = costs.cpu().clone()
    off_start[:, 0, 0] = 0.0
    paid, least = (ways * off_start).sum((1, 2)), (paths.cpu() * off_start).sum((1, 2))
    # A prediction that is no connected path may be cheaper than any: only crisp paths count as cheap
    cheap = same if method == ALONE else (paid - least).abs() < 1e-4
    return float(cheap.float().mean()), float(same.float().mean())


def measured(options: argparse.Namespace, tested: int) -> dict[str, list[tuple[float, float]]]:
    """(cost match, path match) of each method by seed. What is in `--out` is not trained again."""
    checkpoint = Checkpoint(options.out, f"shortest-paths-{options.batch}-{options.steps}-{options.maps}")
    done = checkpoint.load() or {}
    methods = (OURS, *((PEER,) if peer_paths(torch.ones(())) is not None else ()), ALONE)
    for seed in range(options.seeds):
        missing = [method for method in methods if f"{method}, {seed}" not in done]
        if not missing:
            continue
        pictures, costs = maps(options.maps + tested, seed)
        paths = torch.stack([cheapest(c) for c in costs])
        seen = pictures[:-tested].to(options.device), paths[:-tested].to(options.device)
        for method in missing:
            model = train(method, seen, options.steps, options.batch, seed)
            unseen = pictures[-tested:].to(options.device), costs[-tested:], paths[-tested:]
            done[f"{method}, {seed}"] = list(score(method, model, *unseen))
            checkpoint.save(done, now=True)
    return {method: [done[f"{method}, {seed}"] for seed in range(options.seeds)] for method in methods}


def main() -> None:
    options = arguments(__doc__, resumes=True, devices=True, steps=1500, seeds=3, maps=2000, batch=64)
    if options.quick:
        options.steps, options.seeds, options.maps = 3, 1, 64
    tested = 32 if options.quick else 500
    results = measured(options, tested)
    rows = []
    for method, found in results.items():
        for i, column in enumerate(("cost match, %", "path match, %")):
            mean, deviation = spread_of(100 * f[i] for f in found)
            rows.append(Row(method, mean, "score", column))
            if len(found) > 1:
                rows.append(Row(method, deviation, "difference", f"{column} (deviation)"))
    record(options.json, rows, options)


if __name__ == "__main__":
    main()

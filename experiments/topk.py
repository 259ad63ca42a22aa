"""Top-k supervision: a classifier trained on soft memberships of the k best classes, against softmax cross-entropy.

Pictures of three MNIST digits side by side are one of 1,000 classes; few pictures of each are seen, so that the best
guess is often wrong and the five best matter. With memberships p = `soft_topk_mask(logits, k)` the loss is -log p of
the right class: it asks to be among the k best and no more; "k = 1 and 5" is the mean of both losses, and
`topk_cross_entropy` -log of the mean of both memberships. The rows train the same network on the same pictures;
accuracies are on unseen digits. On a GPU the network trains in bfloat16. `--width` is the number of channels of the
first convolution (32 channels do not learn at a rate of 2e-3); a CPU can train 8 with small batches, which says how the
losses compare but not how good they get.

Run: python -m experiments.topk --data FOLDER [--steps 3000] [--seeds 3] [--batch 256] [--width 32] [--rate 5e-4]
"""

from __future__ import annotations

import argparse
import functools
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor, nn

from algonet import Logistic, ranking, soft_topk_mask
from experiments.harness import MNIST, Checkpoint, Repeated, Row, arguments, cosine, mnist, record, spread_of

Loss = Callable[[Tensor, Tensor], Tensor]
#: (folder, whether to train with them) -> pictures (count, height, width) of one digit each, and the digits.
Digits = Callable[[Path | None, bool], tuple[Tensor, Tensor]]


def among_the_best(k: int) -> Loss:
    """-log of the right class's membership in the k best."""

    def loss(logits: Tensor, labels: Tensor) -> Tensor:
        member = soft_topk_mask(logits, k, relax=Logistic(1.0)).gather(1, labels[:, None])
        return -member.clamp_min(1e-12).log().mean()

    return loss


def losses() -> dict[str, Loss]:
    cross_entropy = nn.functional.cross_entropy
    both = among_the_best(1), among_the_best(5)
    mixed = functools.partial(ranking.topk_cross_entropy, k=(1, 5), relax=Logistic(1.0))
    return {
        "softmax cross-entropy": cross_entropy,
        "memberships, k = 1": both[0],
        "memberships, k = 5": both[1],
        "memberships, k = 1 and 5": lambda logits, labels: (both[0](logits, labels) + both[1](logits, labels)) / 2,
        "topk_cross_entropy, k = 1 and 5": mixed,
    }


def classifier(width: int, pictures: Tensor, classes: int) -> nn.Module:
    """Three convolutions of `width`, 2 and 4 times as many channels, each with pooling, then 256 units."""
    a, b, c = width, 2 * width, 4 * width
    pixels = (pictures.shape[-2] // 8) * (pictures.shape[-1] // 8)
    return nn.Sequential(
        nn.Conv2d(1, a, 3, padding=1), nn.BatchNorm2d(a), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(a, b, 3, padding=1), nn.BatchNorm2d(b), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(b, c, 3, padding=1), nn.BatchNorm2d(c), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(c * pixels, 256), nn.ReLU(), nn.Linear(256, classes),
    )  # fmt: skip


def side_by_side(
    pictures: Tensor, labels: Tensor, digits: int, count: int, seed: int, device: str
) -> tuple[Tensor, Tensor]:
    """`count` pictures (count, 1, height, digits * width) of several digits and their numbers, fixed by the seed."""
    chosen = torch.randint(len(labels), (count, digits), generator=torch.Generator().manual_seed(seed))
    number = (labels[chosen] * 10 ** torch.arange(digits - 1, -1, -1)).sum(-1)
    return torch.cat(pictures[chosen].unbind(1), -1).unsqueeze(1).to(device), number.to(device)


def train(loss: Loss, data: tuple[Tensor, Tensor], classes: int, options: argparse.Namespace, seed: int) -> nn.Module:
    torch.manual_seed(seed)
    pictures, labels = data
    device = labels.device
    network = classifier(options.width, pictures, classes).to(device, memory_format=torch.channels_last)
    rate = torch.zeros((), device=device)
    optimizer = torch.optim.AdamW(network.parameters(), lr=rate, weight_decay=1e-2, capturable=device.type != "cpu")

    def step() -> None:
        chosen = torch.randint(len(labels), (options.batch,), device=device)
        with torch.autocast(device.type, torch.bfloat16, enabled=device.type != "cpu"):
            logits = network(pictures[chosen].contiguous(memory_format=torch.channels_last))
        found = loss(logits.float(), labels[chosen])
        optimizer.zero_grad(set_to_none=False)
        found.backward()
        optimizer.step()

    repeated = Repeated(step, str(device))
    for i in range(options.steps):
        rate.fill_(options.rate * cosine(i / options.steps))
        repeated()
    return network.eval()


@torch.no_grad()
def accuracies(network: nn.Module, data: tuple[Tensor, Tensor]) -> tuple[float, float]:
    """(top-1, top-5)."""
    best = torch.cat([network(part).topk(5).indices for part in data[0].split(1000)]) == data[1][:, None]
    return float(best[:, 0].float().mean()), float(best.any(1).float().mean())


def measured(
    options: argparse.Namespace, seen: tuple[Tensor, Tensor], unseen: tuple[Tensor, Tensor], digits: int
) -> dict[str, list]:
    """Accuracies of each loss by seed. What is in `--out` is not trained again."""
    checkpoint = Checkpoint(
        options.out, f"topk-{digits}-{options.width}-{options.batch}-{options.rate}-{options.steps}-{options.pictures}"
    )
    done = checkpoint.load() or {}
    tested = side_by_side(*unseen, digits, 100 if options.quick else 10_000, 99, options.device)
    # Seeds outside: a run that is cut short has the same seeds of every loss
    for seed in range(options.seeds):
        data = side_by_side(*seen, digits, options.pictures, seed, options.device)
        for name, loss in losses().items():
            if f"{name}, {seed}" not in done:
                network = train(loss, data, 10**digits, options, seed)
                done[f"{name}, {seed}"] = list(accuracies(network, tested))
                checkpoint.save(done, now=True)
    return {name: [done[f"{name}, {seed}"] for seed in range(options.seeds)] for name in losses()}


def run(description: str | None, source: Digits, digits: int, *, data: str = "", **defaults: float) -> None:
    """The command that trains on pictures of several `digits` side by side, drawn from those of `source`."""
    options = arguments(description, data=data, resumes=True, devices=True, **defaults)
    if options.quick:
        options.steps, options.seeds, options.pictures, options.width = 3, 1, 300, 8
    folder = options.data if data and not options.quick else None
    rows = []
    for name, found in measured(options, source(folder, True), source(folder, False), digits).items():
        for i, column in enumerate(("top-1, %", "top-5, %")):
            mean, deviation = spread_of(100 * f[i] for f in found)
            rows.append(Row(name, mean, "score", column))
            if len(found) > 1:
                rows.append(Row(name, deviation, "difference", f"{column} (deviation)"))
    record(options.json, rows, options)


def main() -> None:
    run(__doc__, mnist, 3, data=MNIST, steps=3000, seeds=3, pictures=10_000, batch=256, width=32, rate=5e-4)


if __name__ == "__main__":
    main()

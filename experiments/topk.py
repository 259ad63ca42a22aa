"""Top-k supervision: a classifier trained on soft memberships of the k best classes, against softmax cross-entropy.

Pictures of three MNIST digits side by side are one of 1,000 classes; few pictures of each are seen, so that the best
guess is often wrong and the five best matter. With memberships p = `soft_topk_mask(logits, k)` the loss is -log p of
the right class: it asks to be among the k best and no more. The rows train the same network on the same pictures;
accuracies are on unseen digits. On a GPU the network trains in bfloat16. `--width` is the number of channels of the
first convolution (32 channels do not learn at a rate of 2e-3); a CPU can train 8 with small batches, which says how the
losses compare but not how good they get.

Run: python -m experiments.topk --data FOLDER [--steps 3000] [--seeds 3] [--batch 256] [--width 32] [--rate 5e-4]
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor, nn

from algonet import Logistic, soft_topk_mask
from experiments.harness import MNIST, Checkpoint, Repeated, Row, arguments, cosine, mnist, record, spread_of

DIGITS, CLASSES = 3, 1000
Loss = Callable[[Tensor, Tensor], Tensor]


def among_the_best(k: int) -> Loss:
    """-log of the right class's membership in the k best."""

    def loss(logits: Tensor, labels: Tensor) -> Tensor:
        member = soft_topk_mask(logits, k, relax=Logistic(1.0)).gather(1, labels[:, None])
        return -member.clamp_min(1e-12).log().mean()

    return loss


def losses() -> dict[str, Loss]:
    cross_entropy = nn.functional.cross_entropy
    both = among_the_best(1), among_the_best(5)
    return {
        "softmax cross-entropy": cross_entropy,
        "memberships, k = 1": both[0],
        "memberships, k = 5": both[1],
        "memberships, k = 1 and 5": lambda logits, labels: (both[0](logits, labels) + both[1](logits, labels)) / 2,
    }


def classifier(width: int) -> nn.Module:
    """Three convolutions of `width`, 2 and 4 times as many channels, each with pooling, then 256 units."""
    a, b, c = width, 2 * width, 4 * width
    return nn.Sequential(
        nn.Conv2d(1, a, 3, padding=1), nn.BatchNorm2d(a), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(a, b, 3, padding=1), nn.BatchNorm2d(b), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(b, c, 3, padding=1), nn.BatchNorm2d(c), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(c * 3 * 10, 256), nn.ReLU(), nn.Linear(256, CLASSES),
    )  # fmt: skip


def triples(folder: Path | None, train: bool, count: int, seed: int, device: str) -> tuple[Tensor, Tensor]:
    """`count` pictures (count, 1, 28, 84) and their classes, fixed by the seed."""
    pictures, labels = mnist(folder, train)
    chosen = torch.randint(len(labels), (count, DIGITS), generator=torch.Generator().manual_seed(seed))
    number = (labels[chosen] * 10 ** torch.arange(DIGITS - 1, -1, -1)).sum(-1)
    return torch.cat(pictures[chosen].unbind(1), -1).unsqueeze(1).to(device), number.to(device)


def train(loss: Loss, data: tuple[Tensor, Tensor], options: argparse.Namespace, seed: int) -> nn.Module:
    torch.manual_seed(seed)
    pictures, labels = data
    device = labels.device
    network = classifier(options.width).to(device, memory_format=torch.channels_last)
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


def measured(options: argparse.Namespace, folder: Path | None, tested: tuple[Tensor, Tensor]) -> dict[str, list]:
    """Accuracies of each loss by seed. What is in `--out` is not trained again."""
    checkpoint = Checkpoint(
        options.out, f"topk-{options.width}-{options.batch}-{options.rate}-{options.steps}-{options.pictures}"
    )
    done = checkpoint.load() or {}
    # Seeds outside: a run that is cut short has the same seeds of every loss
    for seed in range(options.seeds):
        data = triples(folder, True, options.pictures, seed, options.device)
        for name, loss in losses().items():
            if f"{name}, {seed}" not in done:
                network = train(loss, data, options, seed)
                done[f"{name}, {seed}"] = list(accuracies(network, tested))
                checkpoint.save(done, now=True)
    return {name: [done[f"{name}, {seed}"] for seed in range(options.seeds)] for name in losses()}


def main() -> None:
    options = arguments(
        __doc__,
        data=MNIST,
        resumes=True,
        devices=True,
        steps=3000,
        seeds=3,
        pictures=10_000,
        batch=256,
        width=32,
        rate=5e-4,
    )
    folder = None if options.quick else options.data
    if options.quick:
        options.steps, options.seeds, options.pictures, options.width = 3, 1, 300, 8
    tested = triples(folder, False, 100 if options.quick else 10_000, 99, options.device)
    rows = []
    for name, found in measured(options, folder, tested).items():
        for i, column in enumerate(("top-1, %", "top-5, %")):
            mean, deviation = spread_of(100 * f[i] for f in found)
            rows.append(Row(name, mean, "score", column))
            if len(found) > 1:
                rows.append(Row(name, deviation, "difference", f"{column} (deviation)"))
    record(options.json, rows, options)


if __name__ == "__main__":
    main()

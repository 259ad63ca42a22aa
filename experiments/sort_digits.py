"""Sorting supervision: read four-digit numbers from their order alone.

Sets of n pictures, each four MNIST digits side by side; a convolutional network gives each a score, the scores are
sorted softly, and the soft permutation is compared with the right order. Exact match is the share of test sets in the
right order, element-wise the share of numbers in their right place. The network is the one of the literature (two
convolutions of 5 x 5 with 32 and 64 channels, each with pooling, then 64 units); `--steps 100000` is the published number
of steps. The learning rate falls to zero along a cosine, and a GPU computes in bfloat16. Where diffsort is installed it
trains with the same network, pictures and steps. Ranking losses train the same network on the same sets with their default
softness, and know no more than the order either; gains of `ndcg_loss` are the positions 0 to n - 1 in that order, so that it
asks for the largest numbers most. Beyond n = 15 rows were cut to a few thousand steps, mostly of fewer sets than the protocol's
100: they show that training is stable, not how far it gets.

Run: python -m experiments.sort_digits --data FOLDER [--n 3 5 ...] [--steps 10000] [--sorters odd-even ...]
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor, nn

from algonet import Bitonic, Cauchy, OddEven, ranking, soft_sort
from algonet.sorting import permutation_cross_entropy
from experiments.harness import MNIST, Checkpoint, Repeated, Row, arguments, cosine, mnist, record, save, spread_of

DIGITS = 4
#: Sets of the published protocol's step, and test sets that accuracies are measured on.
BATCH, TESTED = 100, 10_000
#: Steepness of the Cauchy sigmoid; scores are learned, so it only sets their scale.
STEEPNESS = 10.0

NEURALSORT = (
    "Grover et al., Stochastic Optimization of Sorting Networks via Continuous Relaxations (ICLR 2019, table 1, "
    "deterministic): softness chosen by validation"
)
DIFFSORT = (
    "odd-even with the Cauchy sigmoid as the baseline of Petersen et al., Newton Losses (NeurIPS 2024, table 1): "
    "100,000 steps of 100 sets, ten seeds"
)
LAPSUM = (
    "LapSum (ICML 2025, arXiv 2503.06242), quoted from a summary of the paper, "
    "which says that NeuralSort is ahead at n = 9 and 15"
)
#: What others publish: n, who, exact match and element-wise (if we know it) in %, where.
PUBLISHED = (
    (3, "NeuralSort", 93.0, 95.1, NEURALSORT),
    (5, "NeuralSort", 83.7, 92.7, NEURALSORT),
    (7, "NeuralSort", 73.8, 90.9, NEURALSORT),
    (9, "NeuralSort", 64.9, 89.6, NEURALSORT),
    (15, "NeuralSort", 38.6, 85.7, NEURALSORT),
    (3, "LapSum", 94.2, None, LAPSUM),
    (5, "LapSum", 85.3, None, LAPSUM),
    (7, "LapSum", 74.1, None, LAPSUM),
    (5, "diffsort", 85.09, None, DIFFSORT),
)

#: Scores and values (batch, n) -> one number to make small.
Loss = Callable[[Tensor, Tensor], Tensor]


class Numbers:
    """Sets of n different four-digit numbers, drawn on the device without a synchronisation."""

    def __init__(self, pictures: Tensor, labels: Tensor, n: int):
        self.pictures, self.labels, self.n = pictures, labels, n
        self.powers = 10 ** torch.arange(DIGITS - 1, -1, -1, device=labels.device)

    def draw(self, batch: int) -> tuple[Tensor, Tensor]:
        """(pictures (batch * n, 1, 28, 112), values (batch, n))."""
        # Twice as many as needed, so that equal numbers can be passed over
        chosen = torch.randint(len(self.labels), (batch, 2 * self.n, DIGITS), device=self.labels.device)
        values = (self.labels[chosen] * self.powers).sum(-1)
        # A number is passed over if an equal one stands before it: its twin in sorted order came first
        ranked, order = values.sort(dim=-1, stable=True)
        again = torch.zeros_like(ranked, dtype=torch.bool)
        again[:, 1:] = ranked[:, 1:] == ranked[:, :-1]
        twins = torch.zeros_like(again).scatter(1, order, again)
        first = torch.argsort(twins.to(torch.int8), dim=-1, stable=True)[:, : self.n]
        chosen = torch.gather(chosen, 1, first.unsqueeze(-1).expand(-1, -1, DIGITS)).flatten(0, 1)
        return torch.cat(self.pictures[chosen].unbind(1), -1).unsqueeze(1), torch.gather(values, 1, first)


class FirstConvolution(nn.Conv2d):
    """A convolution of one channel as a product of each pixel's neighbourhood and the weights.

    The same numbers as `Conv2d`, whose kernels for a single channel take most of a step on a GPU. A row of the product is
    (25 neighbours, 1 for the bias, zeros up to 32), and one product per picture keeps the sums of the gradient parallel.
    """

    COLUMNS = 32

    def forward(self, input: Tensor) -> Tensor:
        (batch, _, height, width), size, reach = input.shape, self.kernel_size[0], self.kernel_size[0] // 2
        near = nn.functional.pad(input, (reach,) * 4).unfold(2, size, 1).unfold(3, size, 1)
        near = near.reshape(batch, height * width, size * size)
        rest = self.COLUMNS - size * size - 1
        rows = torch.cat(
            [
                near,
                near.new_ones(1).expand(batch, height * width, 1),
                near.new_zeros(1).expand(batch, height * width, rest),
            ],
            -1,
        )
        assert self.bias is not None
        table = torch.cat(
            [self.weight.flatten(1), self.bias[:, None], self.weight.new_zeros(self.out_channels, rest)], 1
        )
        found = torch.bmm(rows, table.T.expand(batch, -1, -1))
        return found.reshape(batch, height, width, self.out_channels).permute(0, 3, 1, 2)


def scorer() -> nn.Module:
    """Picture -> score: the network that the literature trains (pooling before the ReLU gives the same, in less time)."""
    return nn.Sequential(
        FirstConvolution(1, 32, 5, padding=2), nn.MaxPool2d(2), nn.ReLU(),
        nn.Conv2d(32, 64, 5, padding=2), nn.MaxPool2d(2), nn.ReLU(),
        nn.Flatten(), nn.Linear(64 * 7 * 28, 64), nn.ReLU(), nn.Linear(64, 1),
    )  # fmt: skip


def ours(network: OddEven | Bitonic) -> Loss:
    """The soft permutation's cross-entropy with the right one."""

    def loss(scores: Tensor, values: Tensor) -> Tensor:
        found = soft_sort(scores, relax=Cauchy(STEEPNESS), method=network, return_permutation=True).permutation
        assert found is not None
        return permutation_cross_entropy(found, values.argsort(-1))

    return loss


def ndcg_of_places(scores: Tensor, values: Tensor) -> Tensor:
    # Positions, as the values themselves would tell more than the order
    return ranking.ndcg_loss(scores, values.argsort(-1).argsort(-1))


#: What `--sorters` chooses from: losses that know the order of the values and nothing else of them.
LOSSES: dict[str, Loss] = {
    "odd-even": ours(OddEven()),
    "bitonic": ours(Bitonic()),
    "spearman_loss": ranking.spearman_loss,
    "kendall_loss": ranking.kendall_loss,
    "ndcg_loss": ndcg_of_places,
    "pairwise_hinge_loss": ranking.pairwise_hinge_loss,
}


def peers(n: int, device: str) -> dict[str, Loss]:
    """Those of other libraries that are installed."""
    try:
        from diffsort import DiffSortNet
    except ImportError:
        return {}
    peer = DiffSortNet("odd_even", n, steepness=STEEPNESS, distribution="cauchy", device=device)
    return {"diffsort": lambda scores, values: permutation_cross_entropy(peer(scores)[1].mT, values.argsort(-1))}


class Training:
    """One run; on a GPU the whole step is one CUDA graph."""

    def __init__(self, loss: Loss, numbers: Numbers, steps: int, batch: int, seed: int, device: str):
        torch.manual_seed(seed)
        self.network = scorer().to(device, memory_format=torch.channels_last)
        self.numbers, self.loss, self.steps, self.batch = numbers, loss, steps, batch
        self.device, self.done = device, 0
        self.rate = torch.zeros((), device=device)
        self.optimizer = torch.optim.Adam(self.network.parameters(), lr=self.rate, capturable=device != "cpu")
        # Fused, pooling and its gradient take a third less
        self.trained = self.network if device == "cpu" else torch.compile(self.network)
        self.repeated = Repeated(self.step, device)

    def scores(self, network: Callable[[Tensor], Tensor], pictures: Tensor, values: Tensor) -> Tensor:
        # Convolutions in bfloat16 are what tensor cores are for; a CPU without such units is slower in it
        with torch.autocast(self.device, torch.bfloat16, enabled=self.device != "cpu"):
            found = network(pictures.contiguous(memory_format=torch.channels_last))
        return found.float().reshape(values.shape)

    def step(self) -> None:
        pictures, values = self.numbers.draw(self.batch)
        loss = self.loss(self.scores(self.trained, pictures, values), values)
        self.optimizer.zero_grad(set_to_none=False)
        loss.backward()
        self.optimizer.step()

    def run(self, checkpoint: Checkpoint) -> None:
        state = checkpoint.load()
        if state is not None:
            self.network.load_state_dict(state["network"])
            # Its moments alone: how they are used depends on this run's device
            own = self.optimizer.state_dict()["param_groups"]
            self.optimizer.load_state_dict({"state": state["optimizer"]["state"], "param_groups": own})
            for group in self.optimizer.param_groups:
                group["lr"] = self.rate  # the loaded one is a copy, which would stay as it was
            self.done = state["done"]
        while self.done < self.steps:
            # Up over the first twentieth, then along a cosine to zero
            share = self.done / self.steps
            self.rate.fill_(1e-3 * min(1.0, 20 * share + 1e-2) * cosine(share))
            self.repeated()
            self.done += 1
            checkpoint.save(self._state())
        checkpoint.save(self._state(), now=True)

    def _state(self) -> dict:
        return {"network": self.network.state_dict(), "optimizer": self.optimizer.state_dict(), "done": self.done}

    @torch.no_grad()
    def accuracy(self, test: Numbers, sets: int) -> tuple[float, float]:
        """(exact match, element-wise)."""
        exact, single, batch = [], [], max(1, min(BATCH, sets, 3000 // test.n))
        for _ in range(max(1, sets // batch)):
            pictures, values = test.draw(batch)
            right = self.scores(self.network, pictures, values).argsort(-1) == values.argsort(-1)
            exact.append(right.all(-1).float().mean())
            single.append(right.float().mean())
        return float(torch.stack(exact).mean()), float(torch.stack(single).mean())


def measure(n: int, name: str, loss: Loss, data: tuple, options) -> list[Row]:
    """The rows of one n and loss, over all seeds."""
    (pictures, labels), (unseen, answers) = data
    began, exact, single, resumed = time.perf_counter(), [], [], False
    for seed in range(options.seeds):
        numbers = Numbers(pictures, labels, n)
        training = Training(loss, numbers, options.steps, options.batch, seed, options.device)
        checkpoint = Checkpoint(options.out, f"{name}-{n}-{seed}")
        resumed |= checkpoint.load() is not None
        training.run(checkpoint)
        torch.manual_seed(1000 + seed)
        found = training.accuracy(Numbers(unseen, answers, n), 50 if options.quick else TESTED)
        exact.append(found[0])
        single.append(found[1])
        print(f"n = {n}, {name}, seed {seed}: {found[0]:.1%} exact, {found[1]:.1%} element-wise", flush=True)
    seconds = (time.perf_counter() - began) / options.seeds
    label, by = ("odd-even", "diffsort") if name == "diffsort" else (name, "algonet")
    sets = "" if options.batch == BATCH else f" of {options.batch} sets"
    row = f"n = {n}, {label}, {options.steps:,} steps{sets}, {options.seeds} seed{'s' if options.seeds > 1 else ''}"
    rows = []
    for column, values in (("exact match, %", exact), ("element-wise, %", single)):
        mean, deviation = spread_of(100 * v for v in values)
        rows.append(Row(row, mean, "score", column, by))
        if len(values) > 1:
            rows.append(Row(row, deviation, "difference", f"{column} (deviation)", by))
    if not resumed:
        rows.append(Row(row, seconds, "s", "a run", by))
    return rows


def published(n: int) -> list[Row]:
    found = []
    for count, by, exact, single, source in PUBLISHED:
        if count == n:
            found.append(Row(f"n = {n}, {by}", exact, "score", "exact match, %", "published", source))
            if single is not None:
                found.append(Row(f"n = {n}, {by}", single, "score", "element-wise, %", "published", source))
    return found


def main() -> None:
    options = arguments(
        __doc__,
        data=MNIST,
        resumes=True,
        devices=True,
        choices={"sorters": [*LOSSES, "diffsort"]},
        n=(3, 5, 7, 9, 15),
        steps=10_000,
        batch=BATCH,
        seeds=3,
        sorters=("odd-even", "bitonic"),
    )
    if options.quick:
        options.n, options.steps, options.batch, options.seeds, options.sorters = [3], 2, 10, 1, list(LOSSES)
    folder: Path | None = None if options.quick else options.data
    data = tuple(tuple(t.to(options.device) for t in mnist(folder, train)) for train in (True, False))
    rows = []
    for n in options.n:
        rows += published(n)
        known = LOSSES | peers(n, options.device)
        for name in options.sorters:
            if name not in known:
                raise SystemExit(f"experiments: {name} is not installed.")
            rows += measure(n, name, known[name], data, options)
            save(options.json, rows, options)
    record(options.json, rows, options)


if __name__ == "__main__":
    main()

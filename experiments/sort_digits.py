"""Sorting supervision: read four-digit numbers from their order alone.

Sets of n pictures, each four MNIST digits side by side; a convolutional network gives each a score, the scores are
sorted softly, and the soft permutation is compared with the right order. Exact match is the share of test sets in the
right order, element-wise the share of numbers in their right place. The network is the one of the literature (two
convolutions of 5 x 5 with 32 and 64 channels, each with pooling, then 64 units).

The protocol is that of diffsort's published training script: Adam with a constant rate of 10^-3.5, batches of 100 sets, 100,000
steps, binary cross-entropy over all n^2 entries of the soft permutation, 55,000 pictures to train with and 5,000 to validate
with, float32, and the weights that are tested are those with the best exact match of sets of 5 from the validation pictures,
looked at every 1,000 steps. Where diffsort is installed it trains the same way. `newton` and `fisher` are Newton losses
(Petersen et al., 2024) around the cross-entropy of `smoothed-cdf`. Ranking losses train the same network on the same sets with
their default softness, and know no more than the order either; gains of `ndcg_loss` are the positions 0 to n - 1 in that order,
so that it asks for the largest numbers most.

NeuralSort's own table is of five-digit pictures by its appendix, and others could not reproduce it; what compares is the
lineage of Cuturi et al. and Petersen et al.

Run: python -m experiments.sort_digits --data FOLDER [--n 3 5 ...] [--steps 100000] [--sorters smoothed-cdf ...]
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from algonet import Bitonic, Cauchy, Logistic, OddEven, ranking, soft_sort
from algonet.relax import Sigmoid
from algonet.sorting import Method, SmoothedCDF
from experiments.harness import MNIST, Checkpoint, Repeated, Row, arguments, mnist, record, save, spread_of

#: Sets of the published protocol's step.
BATCH = 100
#: Steepness of the sigmoid; scores are learned, so it only sets their scale.
STEEPNESS = 10.0
#: Tikhonov's strengths. The Hessian's eigenvalues reach down to -1.4 (sets of 5 scores of deviation 1), and the sum must not.
HESSIAN, FISHER = 2.0, 0.1
#: Pictures that validate, and steps between looks at them.
VALIDATING, LOOKS = 5_000, 1_000

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
KIM = (
    "Kim et al., Generalized Neural Sorting Networks with Error-Free Differentiable Swap Functions (ICLR 2024), the network "
    "with convolutions, quoted from a summary of the paper"
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
    (15, "diffsort", 31.8, None, KIM),
    (15, "error-free swap functions", 34.7, None, KIM),
)


@dataclass(frozen=True)
class Protocol:
    """What is read, by which network, at which rate, on how many test sets, and what others published for it.

    The defaults are the published protocol's.
    """

    digits: int = 4
    halved: bool = False
    channels: tuple[int, int] = (32, 64)
    rate: float = 10**-3.5
    tested: int = 10_000
    published: tuple[tuple[int, str, float, float | None, str], ...] = PUBLISHED

    def data(self, folder: Path | None, device: str) -> tuple[tuple[Tensor, Tensor], ...]:
        """Pictures and labels to train with, and unseen ones."""
        both = (mnist(folder, train) for train in (True, False))
        return tuple((self._sized(pictures).to(device), labels.to(device)) for pictures, labels in both)

    def _sized(self, pictures: Tensor) -> Tensor:
        return nn.functional.avg_pool2d(pictures, 2) if self.halved else pictures

    def scorer(self) -> nn.Module:
        """Picture -> score: the network that the literature trains (pooling before the ReLU gives the same, in less time)."""
        (a, b), side = self.channels, 14 if self.halved else 28
        return nn.Sequential(
            FirstConvolution(1, a, 5, padding=2), nn.MaxPool2d(2), nn.ReLU(),
            nn.Conv2d(a, b, 5, padding=2), nn.MaxPool2d(2), nn.ReLU(),
            nn.Flatten(), nn.Linear(b * (side // 4) * (self.digits * side // 4), 64), nn.ReLU(), nn.Linear(64, 1),
        )  # fmt: skip


#: Scores and values (batch, n) -> one number to make small.
Loss = Callable[[Tensor, Tensor], Tensor]


class Numbers:
    """Sets of n different numbers of some digits, drawn on the device without a synchronisation."""

    def __init__(self, pictures: Tensor, labels: Tensor, n: int, digits: int):
        self.pictures, self.labels, self.n, self.digits = pictures, labels, n, digits
        self.powers = 10 ** torch.arange(digits - 1, -1, -1, device=labels.device)

    def draw(self, batch: int) -> tuple[Tensor, Tensor]:
        """(pictures (batch * n, 1, height, digits * width), values (batch, n))."""
        # Twice as many as needed, so that equal numbers can be passed over
        chosen = torch.randint(len(self.labels), (batch, 2 * self.n, self.digits), device=self.labels.device)
        values = (self.labels[chosen] * self.powers).sum(-1)
        # A number is passed over if an equal one stands before it: its twin in sorted order came first
        ranked, order = values.sort(dim=-1, stable=True)
        again = torch.zeros_like(ranked, dtype=torch.bool)
        again[:, 1:] = ranked[:, 1:] == ranked[:, :-1]
        twins = torch.zeros_like(again).scatter(1, order, again)
        first = torch.argsort(twins.to(torch.int8), dim=-1, stable=True)[:, : self.n]
        chosen = torch.gather(chosen, 1, first.unsqueeze(-1).expand(-1, -1, self.digits)).flatten(0, 1)
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


def entries(permutation: Tensor, values: Tensor) -> Tensor:
    """The mean binary cross-entropy of the n^2 entries with the right permutation's."""
    right = nn.functional.one_hot(values.argsort(-1), values.shape[-1]).to(permutation.dtype)
    return nn.functional.binary_cross_entropy(permutation.clamp(0.0, 1.0), right)


def ours(method: Method, relax: Sigmoid) -> Loss:
    def loss(scores: Tensor, values: Tensor) -> Tensor:
        found = soft_sort(scores, relax=relax, method=method, return_permutation=True).permutation
        assert found is not None
        return entries(found, values)

    return loss


def ndcg_of_places(scores: Tensor, values: Tensor) -> Tensor:
    # Positions, as the values themselves would tell more than the order
    return ranking.ndcg_loss(scores, values.argsort(-1).argsort(-1))


#: What `--sorters` chooses from: losses that know the order of the values and nothing else of them.
LOSSES: dict[str, Loss] = {
    "smoothed-cdf": ours(SmoothedCDF(), Logistic(STEEPNESS)),
    "smoothed-cdf-cauchy": ours(SmoothedCDF(), Cauchy(STEEPNESS)),
    "odd-even": ours(OddEven(), Cauchy(STEEPNESS)),
    "bitonic": ours(Bitonic(), Cauchy(STEEPNESS)),
    "newton": ranking.NewtonLoss(ours(SmoothedCDF(), Logistic(STEEPNESS)), tikhonov=HESSIAN),
    "fisher": ranking.NewtonLoss(ours(SmoothedCDF(), Logistic(STEEPNESS)), fisher=True, tikhonov=FISHER),
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
    return {"diffsort": lambda scores, values: entries(peer(scores)[1].mT, values)}


class Training:
    """One run; on a GPU the whole step is one CUDA graph."""

    def __init__(
        self,
        loss: Loss,
        protocol: Protocol,
        numbers: Numbers,
        validating: Numbers,
        steps: int,
        batch: int,
        seed: int,
        device: str,
    ):
        torch.manual_seed(seed)
        self.network = protocol.scorer().to(device, memory_format=torch.channels_last)
        self.numbers, self.loss, self.steps, self.batch = numbers, loss, steps, batch
        self.device, self.done, self.validating = device, 0, validating
        self.best, self.best_score = self._weights(), -1.0
        self.optimizer = torch.optim.Adam(self.network.parameters(), lr=protocol.rate, capturable=device != "cpu")
        # Fused, pooling and its gradient take a third less
        self.trained = self.network if device == "cpu" else torch.compile(self.network)
        self.repeated = Repeated(self.step, device)

    def scores(self, network: Callable[[Tensor], Tensor], pictures: Tensor, values: Tensor) -> Tensor:
        return network(pictures.contiguous(memory_format=torch.channels_last)).reshape(values.shape)

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
            self.done, self.best, self.best_score = state["done"], state["best"], state["best_score"]
        while self.done < self.steps:
            self.repeated()
            self.done += 1
            if self.done % LOOKS == 0 or self.done == self.steps:
                score = self.accuracy(self.validating, 2_000 if self.steps >= LOOKS else 20)[0]
                if score > self.best_score:
                    self.best, self.best_score = self._weights(), score
            checkpoint.save(self._state())
        checkpoint.save(self._state(), now=True)
        self.network.load_state_dict(self.best)

    def _weights(self) -> dict[str, Tensor]:
        return {name: weight.detach().clone() for name, weight in self.network.state_dict().items()}

    def _state(self) -> dict:
        return {
            "network": self.network.state_dict(), "optimizer": self.optimizer.state_dict(), "done": self.done,
            "best": self.best, "best_score": self.best_score,
        }  # fmt: skip

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


def measure(n: int, name: str, loss: Loss, protocol: Protocol, data: tuple, options: argparse.Namespace) -> list[Row]:
    """The rows of one n and loss, over all seeds."""
    (pictures, labels), (unseen, answers) = data
    began, exact, single, resumed = time.perf_counter(), [], [], False
    for seed in range(options.seeds):
        kept = max(1, len(labels) - VALIDATING) if len(labels) > VALIDATING else len(labels)
        numbers = Numbers(pictures[:kept], labels[:kept], n, protocol.digits)
        validating = Numbers(pictures[-VALIDATING:], labels[-VALIDATING:], 5, protocol.digits)
        training = Training(loss, protocol, numbers, validating, options.steps, options.batch, seed, options.device)
        checkpoint = Checkpoint(options.out, f"{name}-{n}-{seed}")
        resumed |= checkpoint.load() is not None
        training.run(checkpoint)
        torch.manual_seed(1000 + seed)
        tested = Numbers(unseen, answers, n, protocol.digits)
        found = training.accuracy(tested, 50 if options.quick else protocol.tested)
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


def published(n: int, protocol: Protocol) -> list[Row]:
    found = []
    for count, by, exact, single, source in protocol.published:
        if count == n:
            found.append(Row(f"n = {n}, {by}", exact, "score", "exact match, %", "published", source))
            if single is not None:
                found.append(Row(f"n = {n}, {by}", single, "score", "element-wise, %", "published", source))
    return found


def run(
    description: str | None, protocol: Protocol, n: tuple[int, ...], sorters: tuple[str, ...], **defaults: int
) -> None:
    """The command of a protocol: sets of `n` and losses `sorters`, unless the options say otherwise."""
    options = arguments(
        description,
        data=MNIST,
        resumes=True,
        devices=True,
        choices={"sorters": [*LOSSES, "diffsort"]},
        n=n,
        sorters=sorters,
        **defaults,
    )
    if options.quick:
        options.n, options.steps, options.batch, options.seeds, options.sorters = [3], 2, 10, 1, list(LOSSES)
    data = protocol.data(None if options.quick else options.data, options.device)
    rows = []
    for n_items in options.n:
        rows += published(n_items, protocol)
        known = LOSSES | peers(n_items, options.device)
        for name in options.sorters:
            if name not in known:
                raise SystemExit(f"experiments: {name} is not installed.")
            rows += measure(n_items, name, known[name], protocol, data, options)
            save(options.json, rows, options)
    record(options.json, rows, options)


def main() -> None:
    run(
        __doc__,
        Protocol(),
        n=(3, 5, 7, 9, 15, 32),
        sorters=("smoothed-cdf", "odd-even"),
        steps=100_000,
        batch=BATCH,
        seeds=3,
    )


if __name__ == "__main__":
    main()

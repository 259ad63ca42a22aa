"""Learning to rank: NDCG@10 on unseen lists after training with each loss, on two data sets that scikit-learn ships.

"digits": 8 x 8 scans of handwritten digits, of relevance 0 to 4 (the digit halved); "diabetes": ten measurements of patients,
of relevance 0 to 4 by fifths of the disease's progression a year later. Lists of 50 items are drawn from one half of the
items to train on; NDCG@10, with gains 2^relevance - 1, is that of 200 lists of 100 items of the other half. The network (one
hidden layer of 32), the steps, Adam's rate and the lists are the same in all rows, and each loss has its default softness:
nothing was tuned. Losses that know only relevant and irrelevant items are told that 3 and 4 are relevant. Each seed has its
own halves, lists and first weights. Baselines: squared error of the relevance (pointwise), the pairwise hinge, and the
cross-entropy of softmaxes over the list (ListNet). Beside them, without the network and without steps, on all items of the
half at once: least squares of the relevance on the features and a constant, and scikit-learn's logistic regression of whether
an item is relevant (3 and 4), as it comes.

Run: python -m experiments.learning_to_rank [--steps 300] [--seeds 5]
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import torch
from torch import Tensor, nn

from algonet import ranking
from algonet.relax import Laplace
from algonet.sorting import Bitonic
from experiments.harness import Row, arguments, record, spread_of

ITEMS, LISTS, TEST_ITEMS, TEST_LISTS, HIDDEN = 50, 16, 100, 200, 32
Loss = Callable[[Tensor, Tensor], Tensor]


def losses() -> dict[str, Loss]:
    """Scores and relevance 0 to 4 (*batch, n) -> the mean over lists."""

    def gains(loss: Callable[..., Tensor], **options: object) -> Loss:
        return lambda scores, grade: loss(scores, 2**grade - 1, **options)

    def binary(loss: Callable[..., Tensor], **options: object) -> Loss:
        return lambda scores, grade: loss(scores, grade >= 3, **options)

    return {
        "ndcg_loss": gains(ranking.ndcg_loss),
        "ndcg_loss, k = 10": gains(ranking.ndcg_loss, k=10),
        "ndcg_loss, Laplace": gains(ranking.ndcg_loss, relax=Laplace(10.0)),
        "ndcg_loss, Bitonic": gains(ranking.ndcg_loss, method=Bitonic()),
        "average_precision_loss": binary(ranking.average_precision_loss),
        "recall_at_k_loss, k = 10": binary(functools.partial(ranking.recall_at_k_loss, k=10)),
        "auc_loss": binary(ranking.auc_loss),
        "spearman_loss": ranking.spearman_loss,
        "kendall_loss": ranking.kendall_loss,
        "pairwise_hinge_loss": ranking.pairwise_hinge_loss,
        "list_mle_loss": ranking.list_mle_loss,
        "ListNet": lambda scores, grade: -(grade.softmax(-1) * scores.log_softmax(-1)).sum(-1).mean(),
        "squared error": lambda scores, grade: (scores - grade).square().mean(),
    }


def digits() -> tuple[Tensor, Tensor]:
    """Features (count, 64) and relevance (count,)."""
    from sklearn.datasets import load_digits

    found = load_digits()
    return torch.tensor(found.data / 16, dtype=torch.float32), torch.tensor(found.target // 2, dtype=torch.float32)


def diabetes() -> tuple[Tensor, Tensor]:
    """Features (count, 10) of unit variance and relevance (count,)."""
    from sklearn.datasets import load_diabetes

    found = load_diabetes()
    features, progress = torch.tensor(found.data, dtype=torch.float32), torch.tensor(found.target)
    fifths = progress.quantile(torch.linspace(0.2, 0.8, 4, dtype=progress.dtype))
    return features / features.std(0), torch.bucketize(progress, fifths).float()


class Scorers(nn.Module):
    """One small network for each seed, side by side: (seeds, lists, n, features) -> scores (seeds, lists, n)."""

    def __init__(self, seeds: int, features: int):
        super().__init__()
        first, last = [], []
        for seed in range(seeds):
            generator = torch.Generator().manual_seed(seed)
            first.append(torch.randn(features, HIDDEN, generator=generator) / features**0.5)
            last.append(torch.randn(HIDDEN, 1, generator=generator) / HIDDEN**0.5)
        self.first, self.last = nn.Parameter(torch.stack(first)), nn.Parameter(torch.stack(last))
        self.shift = nn.Parameter(torch.zeros(seeds, 1, HIDDEN))

    def forward(self, items: Tensor) -> Tensor:
        flat = items.flatten(1, 2)
        return ((flat @ self.first + self.shift).relu() @ self.last).reshape(items.shape[:-1])


def draws(count: int, seeds: int, test: bool, lists: int, items: int, step: int) -> Tensor:
    """Indices (seeds, lists, items) of `count` items: `lists` lists for each seed, of that seed's half of the items."""
    chosen = []
    for seed in range(seeds):
        order = torch.randperm(count, generator=torch.Generator().manual_seed(seed))
        half = order[: count // 2] if test else order[count // 2 :]
        generator = torch.Generator().manual_seed(1_000_000 * (seed + 1) + step)
        chosen.append(half[torch.rand(lists, len(half), generator=generator).argsort(-1)[:, :items]])
    return torch.stack(chosen)


def trained(loss: Loss, data: tuple[Tensor, Tensor], steps: list[Tensor], tested: Tensor) -> list[float]:
    """NDCG@10 of each seed on the lists `tested`, after training on those of `steps`."""
    features, relevance = data
    scorers = Scorers(len(tested), features.shape[-1])
    optimizer = torch.optim.Adam(scorers.parameters(), lr=3e-3)
    for lists in steps:
        # The mean over all lists of all seeds: Adam does not see that their shares are smaller
        found = loss(scorers(features[lists]), relevance[lists])
        optimizer.zero_grad()
        found.backward()
        optimizer.step()
    with torch.no_grad():
        gains = 2 ** relevance[tested] - 1
        return ranking.ndcg(scorers(features[tested]), gains, k=10, reduction="none").mean(-1).tolist()


Scorer = Callable[[Tensor], Tensor]


def least_squares(features: Tensor, relevance: Tensor) -> Scorer:
    """Scores by the linear function that is nearest to the relevance."""

    def padded(items: Tensor) -> Tensor:
        return torch.nn.functional.pad(items.double(), (0, 1), value=1.0)

    # Pixels that are always 0 leave the solution open: the least one
    solution = torch.linalg.lstsq(padded(features), relevance.double()[:, None], driver="gelsd").solution[:, 0]
    return lambda items: padded(items) @ solution


def logistic_regression(features: Tensor, relevance: Tensor) -> Scorer:
    """Scores by the log odds of being relevant."""
    from sklearn.linear_model import LogisticRegression

    fitted = LogisticRegression(max_iter=10_000).fit(features.numpy(), (relevance >= 3).numpy())
    return lambda items: torch.from_numpy(fitted.decision_function(items.flatten(0, -2).numpy())).reshape(
        items.shape[:-1]
    )


#: What fits all items at once.
CLASSIC = {"least squares, linear": least_squares, "logistic regression, linear": logistic_regression}


def fitted(fit: Callable[[Tensor, Tensor], Scorer], data: tuple[Tensor, Tensor], tested: Tensor) -> list[float]:
    """NDCG@10 of each seed on the lists `tested`, after a fit to the half that its lists are drawn from."""
    features, relevance = data
    found = []
    for seed, lists in enumerate(tested):
        order = torch.randperm(len(relevance), generator=torch.Generator().manual_seed(seed))
        half = order[len(relevance) // 2 :]
        scores = fit(features[half], relevance[half])(features[lists])
        found.append(float(ranking.ndcg(scores, (2 ** relevance[lists] - 1).to(scores), k=10)))
    return found


def main() -> None:
    options = arguments(__doc__, steps=300, seeds=5)
    if options.quick:
        options.steps, options.seeds = 2, 1
    rows = []
    for name, data in (("digits", digits()), ("diabetes", diabetes())):
        count = len(data[1])
        steps = [draws(count, options.seeds, False, LISTS, ITEMS, step) for step in range(options.steps)]
        tested = draws(count, options.seeds, True, TEST_LISTS, TEST_ITEMS, 0)
        results = {"untrained": trained(losses()["squared error"], data, [], tested)}
        results |= {label: trained(loss, data, steps, tested) for label, loss in losses().items()}
        results |= {label: fitted(fit, data, tested) for label, fit in CLASSIC.items()}
        for label, found in results.items():
            mean, deviation = spread_of(100 * value for value in found)
            rows.append(Row(label, mean, "score", f"{name}, NDCG@10, %"))
            if len(found) > 1:
                rows.append(Row(label, deviation, "difference", f"{name} (deviation)"))
    record(options.json, rows, options)


if __name__ == "__main__":
    main()

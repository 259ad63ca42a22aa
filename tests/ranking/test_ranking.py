"""Losses whose hard limit is the metric, and metrics that are scikit-learn's and SciPy's."""

import pytest
import scipy.stats
import sklearn.metrics
import torch

from algonet.ranking import (
    NewtonLoss,
    auc,
    auc_loss,
    average_precision,
    average_precision_loss,
    kendall,
    kendall_loss,
    list_mle_loss,
    ndcg,
    ndcg_loss,
    pairwise_hinge_loss,
    recall_at_k,
    recall_at_k_loss,
    spearman,
    spearman_loss,
    topk_cross_entropy,
)
from algonet.relax import Laplace, Logistic
from algonet.sorting import Bitonic, Permutahedron, soft_topk_mask
from algonet.sorting.ranking.metrics import average_ranks

GENERATOR = torch.Generator().manual_seed(0)
SCORES = torch.randn(6, 12, generator=GENERATOR, dtype=torch.float64)
TIED = (SCORES * 1.5).round()
GRADES = torch.randint(0, 4, (6, 12), generator=GENERATOR)
HARD = Logistic(1e6)
PAIRS = {
    "ndcg": (ndcg_loss, ndcg),
    "ndcg@4": (lambda *a, **o: ndcg_loss(*a, k=4, **o), lambda *a, **o: ndcg(*a, k=4, **o)),
    "average precision": (average_precision_loss, average_precision),
    "average precision@4": (
        lambda *a, **o: average_precision_loss(*a, k=4, **o),
        lambda *a, **o: average_precision(*a, k=4, **o),
    ),
    "recall@3": (lambda s, y, **o: recall_at_k_loss(s, y, 3, **o), lambda s, y, **o: recall_at_k(s, y, 3, **o)),
    "spearman": (spearman_loss, spearman),
    "kendall": (kendall_loss, kendall),
    "auc": (auc_loss, auc),
}


def per_list(function, scores, targets):
    return torch.tensor([float(function(y, s)) for s, y in zip(scores.numpy(), targets.numpy(), strict=True)])


@pytest.mark.parametrize("scores", [SCORES, TIED], ids=["distinct", "tied"])
def test_metrics_are_those_of_scikit_learn_and_scipy(scores):
    binary = (GRADES > 1).long()
    peers = [
        (ndcg(scores, GRADES, reduction="none"), lambda y, s: sklearn.metrics.ndcg_score([y], [s]), GRADES),
        (ndcg(scores, GRADES, k=4, reduction="none"), lambda y, s: sklearn.metrics.ndcg_score([y], [s], k=4), GRADES),
        (average_precision(scores, binary, reduction="none"), sklearn.metrics.average_precision_score, binary),
        (auc(scores, binary, reduction="none"), sklearn.metrics.roc_auc_score, binary),
        (spearman(scores, GRADES, reduction="none"), lambda y, s: scipy.stats.spearmanr(y, s).statistic, GRADES),
        (kendall(scores, GRADES, reduction="none"), lambda y, s: scipy.stats.kendalltau(y, s).statistic, GRADES),
    ]
    for found, peer, targets in peers:
        assert torch.allclose(found.double(), per_list(peer, scores, targets).double(), atol=1e-6)


@pytest.mark.parametrize("name", PAIRS)
def test_the_hard_limit_of_each_loss_is_its_metric(name):
    loss, metric = PAIRS[name]
    soft = loss(SCORES, GRADES, relax=HARD, reduction="none")
    assert torch.allclose(soft, 1 - metric(SCORES, GRADES, reduction="none"), atol=1e-6)
    assert torch.allclose(loss(SCORES, GRADES, relax=HARD), soft.mean())
    assert torch.allclose(loss(SCORES, GRADES, relax=HARD, reduction="sum"), soft.sum())


@pytest.mark.parametrize("name", PAIRS)
def test_padding_changes_nothing(name):
    loss, metric = PAIRS[name]
    mask = torch.zeros(6, 15, dtype=torch.bool)
    mask[:, 1:13] = True
    padded, grades = torch.full((6, 15), float("nan"), dtype=torch.float64), torch.full((6, 15), 9)
    padded[mask], grades[mask] = SCORES.flatten(), GRADES.flatten()
    padded.requires_grad_()
    assert torch.allclose(loss(padded, grades, mask=mask), loss(SCORES, GRADES), atol=1e-9)
    assert torch.allclose(metric(padded, grades, mask=mask), metric(SCORES, GRADES))
    slope = torch.autograd.grad(loss(padded, grades, mask=mask), padded)[0]
    assert (slope[~mask] == 0).all()
    assert slope[mask].abs().sum() > 0
    assert slope.isfinite().all()


@pytest.mark.parametrize("name", PAIRS)
def test_lists_with_nothing_to_rank_give_zero(name):
    loss, metric = PAIRS[name]
    scores = SCORES.clone().requires_grad_()
    for grades, mask in ((torch.zeros_like(GRADES), None), (GRADES, torch.zeros(6, 12, dtype=torch.bool))):
        found = loss(scores, grades, mask=mask, reduction="none")
        assert (found == 0).all()
        assert (metric(scores, grades, mask=mask, reduction="none") == 0).all()
        assert (torch.autograd.grad(found.sum(), scores)[0] == 0).all()
    assert loss(scores[:0], GRADES[:0]) == 0


@pytest.mark.parametrize("name", PAIRS)
def test_first_and_second_derivatives(name):
    x = SCORES[:2, :6].clone().requires_grad_()
    loss = PAIRS[name][0]
    assert torch.autograd.gradcheck(lambda x: loss(x, GRADES[:2, :6], relax=Logistic(2.0)), x)
    assert torch.autograd.gradgradcheck(lambda x: loss(x, GRADES[:2, :6], relax=Logistic(2.0)), x)


@pytest.mark.parametrize("name", PAIRS)
def test_losses_do_not_jump_where_scores_tie(name):
    loss, x = PAIRS[name][0], SCORES[0, :6].clone()
    x[3], x[5] = x[1], x[1]
    near = x.clone()
    near[3], near[5] = near[3] + 1e-9, near[5] - 1e-9
    found, beside = (loss(t, GRADES[0, :6], relax=Logistic(2.0)) for t in (x, near))
    assert abs(found - beside) < 1e-7
    assert torch.autograd.gradcheck(lambda x: loss(x, GRADES[0, :6], relax=Logistic(2.0)), x.requires_grad_())


def test_average_precision_at_k_by_hand():
    scores = torch.tensor([0.9, 0.8, 0.7, 0.6, 0.5])
    relevance = torch.tensor([0, 1, 1, 0, 1])
    # Precision is 1/2 at the second place, 2/3 at the third
    assert average_precision(scores, relevance, k=2).item() == pytest.approx((1 / 2) / 2)
    assert average_precision(scores, relevance, k=4).item() == pytest.approx((1 / 2 + 2 / 3) / 3)
    assert torch.equal(average_precision(scores, relevance, k=5), average_precision(scores, relevance))
    assert torch.equal(average_precision_loss(scores, relevance, k=9), average_precision_loss(scores, relevance))


@pytest.mark.parametrize("name", PAIRS)
def test_long_lists_give_what_all_pairs_give(name):
    """The default sigmoid scans long lists; the reference compares all pairs."""
    generator = torch.Generator().manual_seed(3)
    scores = torch.randn(2, 80, generator=generator, dtype=torch.float64).requires_grad_()
    grades, mask = torch.randint(0, 3, (2, 80), generator=generator), torch.rand(2, 80, generator=generator) < 0.9
    loss = PAIRS[name][0]
    ways = [loss(scores, grades, mask=mask, backend=backend) for backend in ("auto", "reference")]
    assert torch.allclose(*ways)
    assert torch.allclose(*(torch.autograd.grad(way, scores)[0] for way in ways))


def test_other_methods_and_the_hinge():
    for options in ({"method": Bitonic()}, {"relax": Laplace(5.0)}, {"method": Permutahedron(0.1)}):
        assert 0 < spearman_loss(SCORES, GRADES, **options) < 2
        assert 0 < ndcg_loss(SCORES, GRADES, **options) < 1
        mask = torch.arange(12).expand(6, 12) < 7
        alone = spearman_loss(SCORES[:, :7], GRADES[:, :7], **options)
        assert torch.allclose(spearman_loss(SCORES, GRADES, mask=mask, **options), alone)
    assert pairwise_hinge_loss(GRADES.double() * 2, GRADES) == 0
    assert pairwise_hinge_loss(-GRADES.double(), GRADES) > 1


def test_errors():
    with pytest.raises(ValueError, match="targets must have the shape of `scores`"):
        ndcg_loss(SCORES, GRADES[:, :5])
    with pytest.raises(ValueError, match="unknown reduction"):
        auc(SCORES, GRADES, reduction="median")
    with pytest.raises(ValueError, match="`k` must be an integer from 1 on"):
        ndcg(SCORES, GRADES, k=0)
    with pytest.raises(ValueError, match="`mask` must be a boolean tensor"):
        kendall(SCORES, GRADES, mask=GRADES)


def test_negative_gains_are_refused_and_negative_labels_are_not():
    signs = torch.where(GRADES > 0, 1.0, -1.0)
    for function in (ndcg, ndcg_loss):
        with pytest.raises(ValueError, match="must not be negative, got -1; use 0 for what is irrelevant"):
            function(SCORES, signs)
        assert torch.equal(function(SCORES, signs, mask=signs > 0), function(SCORES, signs.abs(), mask=signs > 0))
    assert torch.equal(auc(SCORES, signs), auc(SCORES, (GRADES > 0).double()))


@pytest.mark.parametrize("which", ["scores", "targets"])
@pytest.mark.parametrize("name", PAIRS)
def test_a_nan_spoils_its_own_list(name, which):
    """A comparison with NaN is false: without care such a list counts as one that has nothing to rank, a loss of 0."""
    scores, targets = SCORES.clone(), GRADES.double()
    (scores if which == "scores" else targets)[1, 2] = torch.nan
    for function in PAIRS[name]:
        found, clean = function(scores, targets, reduction="none"), function(SCORES, GRADES, reduction="none")
        assert found.isnan().tolist() == [False, True, False, False, False, False]
        torch.testing.assert_close(found[2:], clean[2:])


@pytest.mark.parametrize("kind", ["float32", "float64", "int64"])
def test_targets_keep_their_digits_in_long_lists(kind):
    """Time stamps that differ by less than a rounding step of the scores' float32, and ties among 100,000 items."""
    n, generator = 100_000, torch.Generator().manual_seed(1)
    steps = torch.randint(0, n // 4, (n,), generator=generator)
    targets = steps.float() if kind == "float32" else 1_700_000_000 + steps.double() / 8
    targets = 1_700_000_000_000_000 + steps if kind == "int64" else targets
    scores = (steps + n // 8 * torch.randn(n, generator=generator)).round().float()
    rho, tau = (f(scores.numpy(), targets.numpy()).statistic for f in (scipy.stats.spearmanr, scipy.stats.kendalltau))
    assert spearman(scores, targets) == pytest.approx(rho, abs=1e-6)
    assert kendall(scores, targets) == pytest.approx(tau, abs=1e-6)
    ranks = average_ranks(targets, torch.ones(n, dtype=torch.bool))
    assert torch.equal(ranks, torch.from_numpy(scipy.stats.rankdata(targets.numpy()) - 1))
    few, exact = scores[:200] + torch.rand(200, generator=generator) / 2, steps[:200].float()
    for loss in (spearman_loss, kendall_loss, pairwise_hinge_loss):
        assert torch.equal(loss(few, targets[:200]), loss(few, exact)), loss


def test_squares_of_many_ranks_do_not_overflow():
    x = torch.arange(7_000_000).float()  # from 6.1 million on, the product of both variances overflows float32
    assert spearman(x, -x) == -1
    assert ndcg(x[:99], torch.rand(99, generator=GENERATOR, dtype=torch.float64) * 1e39) < 1


@pytest.mark.parametrize("name", PAIRS)
def test_infinite_scores_are_the_extremes_of_present_items_only(name):
    loss, metric = PAIRS[name]
    scores, grades = SCORES.clone(), GRADES
    scores[:, 3], scores[:, 5] = -torch.inf, torch.inf
    finite = scores.clamp(-100, 100)
    pad = torch.nn.functional.pad
    mask = pad(torch.ones_like(scores, dtype=torch.bool), (1, 2))
    padded = pad(scores, (1, 2), value=-torch.inf), pad(grades, (1, 2), value=1)
    for function in (metric, lambda *a, **o: loss(*a, relax=HARD, **o)):
        wanted = function(finite, grades, reduction="none")
        assert torch.allclose(function(scores, grades, reduction="none"), wanted)
        assert torch.allclose(function(*padded, mask=mask, reduction="none"), wanted)


def test_list_mle_is_the_probability_of_drawing_the_right_order():
    """Plackett and Luce: item by item from those that remain, each with the softmax of its score."""
    x, grades = SCORES[:2, :6].clone().requires_grad_(), torch.tensor([[0, 3, 1, 5, 4, 2], [5, 4, 3, 2, 1, 0]])
    for k in (None, 3):
        for row, order, found in zip(
            x, grades.argsort(descending=True), list_mle_loss(x, grades, k=k, reduction="none"), strict=True
        ):
            drawn = [row[order[i:]].softmax(0)[0] for i in range(k or 6)]
            assert torch.allclose(found, -torch.stack(drawn).prod().log())
    mask = torch.tensor([True, True, False, True, True, True])
    assert torch.allclose(list_mle_loss(x, grades, mask=mask.expand(2, -1)), list_mle_loss(x[:, mask], grades[:, mask]))
    assert torch.autograd.gradcheck(lambda x: list_mle_loss(x, grades), x)
    assert torch.autograd.gradgradcheck(lambda x: list_mle_loss(x, grades), x)


def test_topk_cross_entropy_is_the_logarithm_of_soft_memberships():
    x, labels, relax = SCORES[:3, :6].clone().requires_grad_(), torch.tensor([4, 0, 2]), Logistic(2.0)
    member = 0.3 * soft_topk_mask(x, 1, relax=relax) + 0.7 * soft_topk_mask(x, 3, relax=relax)
    options = {"k": (1, 3), "weights": (0.3, 0.7), "relax": relax, "reduction": "none"}
    wanted = -member.gather(-1, labels.unsqueeze(-1)).squeeze(-1).log()
    assert torch.allclose(topk_cross_entropy(x, labels, **options), wanted, atol=1e-9)
    several = torch.tensor([[1, 0, 0, 0, 1, 0], [0, 0, 1, 1, 1, 0], [0, 0, 0, 0, 0, 0]]).bool()
    wanted = -(member.log() * several).sum(-1) / several.sum(-1).clamp_min(1)
    assert torch.allclose(topk_cross_entropy(x, several, **options), wanted, atol=1e-9)
    assert torch.autograd.gradcheck(lambda x: topk_cross_entropy(x, labels, **options), x, atol=1e-5)
    assert torch.autograd.gradgradcheck(lambda x: topk_cross_entropy(x, labels, **options), x, atol=1e-4)
    far = torch.tensor([[9.0, 8.0, -1e4]], requires_grad=True)
    slope = torch.autograd.grad(topk_cross_entropy(far, torch.tensor([2]), relax=relax), far)[0]
    assert slope[0, 2] == pytest.approx(-2.0, rel=1e-3), "a label far below the threshold has no gradient"


@pytest.mark.parametrize("reduction", ["mean", "none"])
def test_newton_losses_solve_with_the_curvature(reduction):
    """A quadratic has its matrix for a Hessian; others are differentiated row by row."""
    target = SCORES.flip(0)[:, :5]
    root = torch.randn(5, 5, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    matrix, eye = root @ root.T, torch.eye(5, dtype=torch.float64)

    def quadratic(x, y):
        found = torch.einsum("bi,ij,bj->b", x - y, matrix, x - y) / 2
        return found.mean() if reduction == "mean" else found

    def slope(loss, *targets):
        x = SCORES[:, :5].clone().requires_grad_()
        value = loss(x, *targets)
        return value, torch.autograd.grad(value, x)[0]

    away = SCORES[:, :5] - target
    value, found = slope(NewtonLoss(quadratic, tikhonov=0.5), target)
    assert torch.allclose(value, quadratic(SCORES[:, :5], target).mean())
    assert torch.allclose(found * 6, torch.linalg.solve(matrix + 0.5 * eye, (away @ matrix).T).T)
    gradient = away @ matrix
    fisher = gradient.T @ gradient / 6
    found = slope(NewtonLoss(quadratic, fisher=True, tikhonov=0.5), target)[1]
    assert torch.allclose(found * 6, torch.linalg.solve(fisher + 0.5 * eye, gradient.T).T)

    def ndcg_like(x, grades):
        return ndcg_loss(x, grades, relax=Logistic(2.0), reduction=reduction)

    found = slope(NewtonLoss(ndcg_like, tikhonov=2.0), GRADES[:, :5])[1]
    for x, grades, step in zip(SCORES[:, :5], GRADES[:, :5], found, strict=True):

        def one(x, grades=grades):
            return ndcg_loss(x, grades, relax=Logistic(2.0))

        hessian = torch.autograd.functional.hessian(one, x)
        gradient = torch.func.grad(one)(x)
        assert torch.allclose(step * 6, torch.linalg.solve(hessian + 2.0 * eye, gradient), atol=1e-9)

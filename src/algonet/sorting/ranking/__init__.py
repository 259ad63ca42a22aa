"""Ranking: losses that are smooth forms of ranking metrics, and the crisp metrics themselves."""

from .losses import (
    NewtonLoss,
    auc_loss,
    average_precision_loss,
    kendall_loss,
    list_mle_loss,
    ndcg_loss,
    pairwise_hinge_loss,
    recall_at_k_loss,
    spearman_loss,
    topk_cross_entropy,
)
from .metrics import auc, average_precision, kendall, ndcg, recall_at_k, spearman

__all__ = [
    "NewtonLoss",
    "auc",
    "auc_loss",
    "average_precision",
    "average_precision_loss",
    "kendall",
    "kendall_loss",
    "list_mle_loss",
    "ndcg",
    "ndcg_loss",
    "pairwise_hinge_loss",
    "recall_at_k",
    "recall_at_k_loss",
    "spearman",
    "spearman_loss",
    "topk_cross_entropy",
]

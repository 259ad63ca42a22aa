"""Ranking: losses that are smooth forms of ranking metrics, and the crisp metrics themselves. Stands on `sorting`."""

from .losses import (
    auc_loss,
    average_precision_loss,
    kendall_loss,
    ndcg_loss,
    pairwise_hinge_loss,
    recall_at_k_loss,
    spearman_loss,
)
from .metrics import auc, average_precision, kendall, ndcg, recall_at_k, spearman

__all__ = [
    "auc",
    "auc_loss",
    "average_precision",
    "average_precision_loss",
    "kendall",
    "kendall_loss",
    "ndcg",
    "ndcg_loss",
    "pairwise_hinge_loss",
    "recall_at_k",
    "recall_at_k_loss",
    "spearman",
    "spearman_loss",
]

"""Soft sorting, ranking, top-k, quantiles and medians (the paper's SoftSort and SoftMedian)."""

from .functional import SortResult, TopKResult, soft_argsort, soft_rank, soft_sort, soft_topk
from .networks import Bitonic, Comparators, Network, OddEven

__all__ = [
    "Bitonic",
    "Comparators",
    "Network",
    "OddEven",
    "SortResult",
    "TopKResult",
    "soft_argsort",
    "soft_rank",
    "soft_sort",
    "soft_topk",
]

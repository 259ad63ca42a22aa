"""Soft sorting, ranking, top-k, quantiles and medians (the paper's SoftSort and SoftMedian)."""

from .functional import SortResult, TopKResult, soft_argsort, soft_rank, soft_sort, soft_topk
from .losses import expected_swaps, permutation_cross_entropy
from .modules import SoftArgsort, SoftMedian, SoftQuantile, SoftRank, SoftSort, SoftTopK
from .networks import Bitonic, Comparators, Network, OddEven
from .quantile import soft_median, soft_quantile

__all__ = [
    "Bitonic",
    "Comparators",
    "Network",
    "OddEven",
    "SoftArgsort",
    "SoftMedian",
    "SoftQuantile",
    "SoftRank",
    "SoftSort",
    "SoftTopK",
    "SortResult",
    "TopKResult",
    "expected_swaps",
    "permutation_cross_entropy",
    "soft_argsort",
    "soft_median",
    "soft_quantile",
    "soft_rank",
    "soft_sort",
    "soft_topk",
]

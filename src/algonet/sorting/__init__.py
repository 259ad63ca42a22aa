"""Soft sorting, ranking, top-k, quantiles and medians (the paper's SoftSort and SoftMedian)."""

from .choosing import MethodReport, MethodRow, which_method
from .functional import (
    SortResult,
    TopKResult,
    expected_swaps,
    permutation_cross_entropy,
    soft_argsort,
    soft_rank,
    soft_sort,
    soft_topk,
    soft_topk_mask,
)
from .methods import Method, NeuralSort, Pairwise, Permutahedron, SmoothedCDF, Transport, Unimodal
from .modules import SoftArgsort, SoftMedian, SoftQuantile, SoftRank, SoftSort, SoftTopK, SoftTopKMask
from .networks import Bitonic, Comparators, Network, OddEven
from .quantile import soft_median, soft_quantile

__all__ = [
    "Bitonic",
    "Comparators",
    "Method",
    "MethodReport",
    "MethodRow",
    "Network",
    "NeuralSort",
    "OddEven",
    "Pairwise",
    "Permutahedron",
    "SmoothedCDF",
    "SoftArgsort",
    "SoftMedian",
    "SoftQuantile",
    "SoftRank",
    "SoftSort",
    "SoftTopK",
    "SoftTopKMask",
    "SortResult",
    "TopKResult",
    "Transport",
    "Unimodal",
    "expected_swaps",
    "permutation_cross_entropy",
    "soft_argsort",
    "soft_median",
    "soft_quantile",
    "soft_rank",
    "soft_sort",
    "soft_topk",
    "soft_topk_mask",
    "which_method",
]

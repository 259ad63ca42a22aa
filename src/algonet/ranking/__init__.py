"""Ranking losses and metrics under their short name: all of it is `algonet.sorting.ranking`."""

from algonet.sorting.ranking import *  # noqa: F403
from algonet.sorting.ranking import __all__ as __all__

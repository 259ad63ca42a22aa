"""What the Numba kernels of counts and thresholds share: templates put together for a sigmoid, flat arrays, rows on threads."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import numpy as np
import torch
from torch import Tensor

from algonet.core import threads
from algonet.core.cache import cached
from algonet.core.codegen.generate import PRELUDES, load_template, scalar_function
from algonet.relax import Sigmoid

from ..symmetry import is_symmetric

#: Items below which a second thread costs more than it brings.
WORTH_A_THREAD = 20_000


@cached
def kernels(name: str, sigmoid: Sigmoid, dtype: torch.dtype) -> ModuleType:
    """The functions of `<name>_device.py` with the sigmoid written into them, in one precision."""
    dialect, real = ("numba32", "float32") if dtype == torch.float32 else ("numba64", "float64")
    prelude = f"""{PRELUDES[dialect]}import math
import numpy as np
from numba import {real} as REAL

SYMMETRIC = {is_symmetric(sigmoid)}


{scalar_function(sigmoid, "gate", dialect)}"""
    return load_template(f"{name}_{dialect}", prelude, Path(__file__).with_name(f"{name}_device.py"))


def flat(x: Tensor) -> np.ndarray:
    """(rows, n), whatever the batch dimensions."""
    return x.detach().contiguous().numpy().reshape(x.shape[:-1].numel(), x.shape[-1])


def spread_rows(run: Callable[[int, int], None], rows: int, n: int) -> None:
    """run(begin, end) over blocks of rows of n items, on as many threads as they are worth."""
    count = max(1, min(threads.workers(), rows, 1 + rows * n // WORTH_A_THREAD))
    threads.spread(run, [(rows * i // count, rows * (i + 1) // count) for i in range(count)])

"""What the Numba kernels of counts and thresholds share: templates put together for a sigmoid, flat arrays, rows on threads."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor

from algonet.core import threads
from algonet.core.cache import cached
from algonet.core.codegen.generate import PRELUDES, load_template, scalar_function
from algonet.relax import Sigmoid

from ...settings import is_symmetric

#: Items below which a second thread costs more than it brings.
WORTH_A_THREAD = 20_000


@cached
def kernels(name: str, sigmoid: Sigmoid, dtype: torch.dtype, **constants: object) -> ModuleType:
    """The functions of `<name>_device.py` with the sigmoid and constants written into them, in one precision."""
    dialect, real = ("numba32", "float32") if dtype == torch.float32 else ("numba64", "float64")
    lines = "".join(f"{constant} = {value!r}\n" for constant, value in constants.items())
    prelude = f"""{PRELUDES[dialect]}import math
import numpy as np
from numba import {real} as REAL

SYMMETRIC = {is_symmetric(sigmoid)}
{lines}

{scalar_function(sigmoid, "gate", dialect)}"""
    return load_template(f"{name}_{dialect}", prelude, Path(__file__).with_name(f"{name}_device.py"))


def arrays(tensors: Sequence[Tensor], last: Sequence[int] = ()) -> list[np.ndarray]:
    """Each as (rows, n), whatever the batch dimensions, or with the number of its `last` dimensions; an output's own memory."""
    found = []
    for i, x in enumerate(tensors):
        kept = len(x.shape) - (last[i] if last else 1)
        found.append(x.detach().contiguous().numpy().reshape(x.shape[:kept].numel(), *x.shape[kept:]))
    return found


def spread_rows(run: Callable[..., None], size: Sequence[int], given: Sequence[Any]) -> None:
    """run(begin, end, *given) over blocks of rows, on as many threads as so many (rows, items) are worth."""
    rows, n = size
    count = max(1, min(torch.get_num_threads(), rows, 1 + rows * n // WORTH_A_THREAD))
    if count == 1:
        run(0, rows, *given)
        return
    threads.spread(run, [(rows * i // count, rows * (i + 1) // count, *given) for i in range(count)])

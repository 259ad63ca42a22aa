"""@smooth: a plain Python function whose decisions are smooth."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Literal, ParamSpec, TypeVar, overload

from .function import SmoothFunction
from .trainable import SmoothProgram

P = ParamSpec("P")
R = TypeVar("R")


@overload
def smooth(function: Callable[P, R], *, trainable: Literal[True], **options: Any) -> SmoothProgram: ...
@overload
def smooth(
    function: None = None, *, trainable: Literal[True], **options: Any
) -> Callable[[Callable[..., Any]], SmoothProgram]: ...
@overload
def smooth(function: Callable[P, R], *, trainable: Literal[False] = False, **options: Any) -> SmoothFunction[P, R]: ...
@overload
def smooth(
    function: None = None, *, trainable: Literal[False] = False, **options: Any
) -> Callable[[Callable[P, R]], SmoothFunction[P, R]]: ...


def smooth(function: Callable | None = None, *, trainable: bool = False, **options: Any) -> Any:
    """Make a plain Python function smooth: every decision it takes on a tensor becomes a probability with a gradient.

    After `if c: A else: B` a variable is p A + (1 - p) B with p = P(c); a `while` sums the states weighted by the
    probability of leaving then; comparisons are sigmoids (`relax`), == and != exits (`exit`), `or` a t-conorm (`conorm`),
    `and` its dual, `not` is 1 - p; a real subscript reads a mixture. Decisions on Python numbers stay crisp and free.
    Steepness -> inf gives the function as written, which is `.crisp`, but for ties, and for == and subscripts between whole
    numbers, where the default exit has no steepness.

    Options, for all calls (here), one call, or a `with softness(...)` block: `relax`, `exit`, `conorm`, `steepness`
    (a number or a learnable tensor), `epsilon` (loops end, and branches are skipped, below this probability),
    `max_iterations`, `max_depth` (of smooth calls within each other), `hard` (crisp values with the smooth gradient),
    `checkpoint` (loops are run again in the backward pass instead of kept), `backend` of recorded arithmetic.

    `trainable=True` gives every assignment a weight and a bias and makes the function an `nn.Module`: see `SmoothProgram`.

    Calls take `batched=True` (every tensor has a batch in front, which the function does not see) and
    `with_report=True` (returns (result, report) with the loops' iterations and the mass left in them).
    Differentiable as often as the relaxations are. Cost: both sides of every branch; O(1) extra for each decision.

    >>> import torch
    >>> @smooth(steepness=4.0)
    ... def larger(a, b):
    ...     if a > b:
    ...         return a
    ...     return b
    >>> larger(torch.tensor(1.0), torch.tensor(2.0))
    tensor(1.9820)
    >>> larger.crisp(1.0, 2.0)
    2.0
    """
    if function is None:
        return functools.partial(smooth, trainable=trainable, **options)
    made = SmoothFunction(function, options)
    return SmoothProgram(made) if trainable else made

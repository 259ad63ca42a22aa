"""Smooth functions whose assignments are trained."""

from __future__ import annotations

import copy
import functools
import importlib
import operator
from collections.abc import Callable
from typing import Any, Literal, ParamSpec, TypeVar, overload

import torch
from torch import Tensor, nn

from algonet.relax.modules import departure

from .explaining import report
from .function import SmoothFunction
from .runtime.frame import Frame


class SmoothProgram(nn.Module):
    """A smooth function whose assignments have a weight and a bias: what `@smooth(trainable=True)` makes of `function`.

    Assignment k, `y = value`, gives y the value `weight[k] * value + bias[k]`; what it would assign is `value`, after `+=` the
    sum, and each of several in `a, b = c, d`. They start at 1 and 0, where the program is the one as written, and
    `regularization()` pulls them back there. Numbers are scaled: tensors, Python floats (which decide smoothly from then on;
    count in integers what is to stay crisp), and both inside of containers. `assignments` says which is which.

    Calls are those of a smooth function, batches, options and `paths=Merge()`, `Particles(...)` or `Enumerate(...)` included
    (`Perturb` is refused: it gives parameters no gradient), and are recorded and repeated like them. `crisp` is the function as
    written. Other smooth functions may call it. Cost: one multiplication and addition for each assignment that runs.

    >>> from algonet.smooth_python import smooth
    >>> @smooth(trainable=True, steepness=4.0)
    ... def clipped(x):
    ...     limit = 2.0
    ...     if x > limit:
    ...         x = limit
    ...     return x
    >>> clipped.assignments
    ['line 3: limit = 2.0', 'line 5: x = limit']
    >>> clipped(torch.tensor(5.0)).detach()
    tensor(2.0000)
    """

    is_smooth = True

    def __init__(self, function: SmoothFunction):
        super().__init__()
        count = len(function.assignments)
        name = function.__name__
        if not count:
            raise ValueError(f"smooth({name}): trainable=True trains assignments, and the function has none.")
        self.function = function
        # Now, because torch.compile cannot trace the rewriter
        function.form(weighted=True)
        self.weight = nn.Parameter(torch.ones(count))
        self.bias = nn.Parameter(torch.zeros(count))
        self.__name__, self.__doc__, self.__wrapped__ = name, function.__doc__, function.__wrapped__

    def __set_name__(self, owner: type, name: str) -> None:
        raise TypeError(
            f"smooth({name}): trainable=True is for functions, and {owner.__name__}.{name} is a method, whose objects "
            "would all share the same weights; make it a function, and the program an attribute that __init__ sets."
        )

    def forward(self, *args: Any, with_report: bool = False, **kwargs: Any) -> Any:
        """The function on tensors. See `smooth` for the options that may be given with a call."""
        return self.function.run(args, kwargs, with_report, (self.weight, self.bias))

    def regularization(self) -> Tensor:
        """sum (w - 1)^2 + b^2 over all assignments: 0 where the program is the one that was written."""
        return departure(self.weight, self.bias)

    @property
    def assignments(self) -> list[str]:
        """What each weight and bias belongs to: the line, and what is written there."""
        return self.function.assignments

    # -- as smooth functions have it

    def call(self, args: tuple, kwargs: dict[str, Any]) -> Any:
        """A call with these arguments and options, about to run."""
        return self.function.call(args, kwargs, (self.weight, self.bias))

    def inside(self, frame: Frame, args: tuple, kwargs: dict[str, Any]) -> Any:
        """A call from another smooth function."""
        return self.function.inside(frame, args, kwargs, (self.weight, self.bias))

    def crisp(self, *args: Any, **kwargs: Any) -> Any:
        """The function as written, without what was trained."""
        return self.function.crisp(*args, **kwargs)

    def explain(self) -> str:
        """The rewritten source, without weights and biases."""
        return self.function.explain()

    def softness_report(self, *args: Any, **kwargs: Any) -> Any:
        """See `algonet.softness_report`, which asks this."""
        return report(self, args, kwargs)

    @property
    def parameter_tensors(self) -> tuple[Tensor, Tensor]:
        return self.weight, self.bias

    def __getattr__(self, name: str) -> Any:
        if name in ("settings", "outside", "recordings", "gated", "source_line"):
            return getattr(self.function, name)
        return super().__getattr__(name)

    # -- copies have parameters of their own and the same function, which is found by its name

    def __deepcopy__(self, memo: dict) -> SmoothProgram:
        memo[id(self)] = other = SmoothProgram(self.function)
        other.__setstate__(copy.deepcopy(self._state(), memo))
        return other

    def __reduce__(self) -> tuple:
        return _found, (self.function.__module__, self.function.__qualname__), self._state()

    def _state(self) -> dict[str, Any]:
        return {name: x for name, x in self.__dict__.items() if name not in ("function", "__wrapped__")}

    def extra_repr(self) -> str:
        return f"{self.__name__}, {len(self.weight)} assignments"


def _found(module: str, name: str) -> SmoothProgram:
    """A program by the place of its definition, for pickle."""
    return SmoothProgram(operator.attrgetter(name)(importlib.import_module(module)).function)


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
    `backend` of recorded arithmetic.

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

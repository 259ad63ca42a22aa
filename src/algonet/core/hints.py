"""Keywords that users of other libraries try, answered with what to write here; and defaults that do not suit the data."""

from __future__ import annotations

import difflib
import functools
import inspect
import re
import warnings
from collections.abc import Callable, Iterable
from typing import Any, ParamSpec, TypeVar

from torch import Tensor

from . import tracing
from .checks import as_tensor

P = ParamSpec("P")
R = TypeVar("R")

#: What peers call the softness; here it belongs to the relaxation, with its family.
_SOFTNESS = frozenset({"steepness", "temperature", "tau", "regularization_strength"})


#: What a warning is not about: this package, and torch, whose modules call it.
_INSIDE = (__name__.partition(".")[0] + ".", "torch.")


class SoftnessWarning(UserWarning):
    """A default is so soft, for so many items or items so close, that the result tells little about them."""


def too_close(x: Tensor, dim: int, apart: float) -> bool:
    """Whether items spread by less than `apart`: the standard deviation along `dim` of the median row.

    Values on a GPU are not read, which would wait for it: there, items count as spread by 1.
    """
    return (float(x.detach().float().std(dim).nanmedian()) if x.device.type == "cpu" else 1.0) < apart


def warn_too_soft(message: str) -> None:
    """A `SoftnessWarning` at the user's line."""
    if tracing.compiling():
        return
    frame, level = inspect.currentframe(), 1
    while frame is not None and frame.f_back is not None and frame.f_globals.get("__name__", "").startswith(_INSIDE):
        frame, level = frame.f_back, level + 1
    warnings.warn(message, SoftnessWarning, stacklevel=level)


def hints_at_relax(function: Callable[P, R]) -> Callable[P, R]:
    """Decorate a function that takes `relax=`: a steepness given beside it is answered by how to say it.

    The types and the signature stay as they are, so that an editor marks the mistake as well.
    """
    name = function.__qualname__.removesuffix(".__init__")
    parameters = inspect.signature(function).parameters
    first = [p.name for p in parameters.values() if p.kind is p.POSITIONAL_OR_KEYWORD]

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        if not kwargs.keys() <= parameters.keys():
            keyword = next(keyword for keyword in kwargs if keyword not in parameters)
            raise TypeError(_hint(name, keyword, kwargs[keyword], parameters))
        if len(args) > len(first):
            named = [p for p in first if p != "self"]
            extra = args[len(first)]
            instead = f"relax=Logistic({extra!r})" if isinstance(extra, (int, float)) else "relax=Logistic(10.0)"
            raise TypeError(f"{name}: options are given by name, such as {instead}; only {', '.join(named)} by place.")
        for value in (*args, *kwargs.values()):
            if hasattr(value, "__array__") and not isinstance(value, Tensor):
                given: Any = {name: as_tensor(argument) for name, argument in kwargs.items()}
                return function(*map(as_tensor, args), **given)  # pyright: ignore[reportCallIssue]
        return function(*args, **kwargs)

    return call


def _hint(name: str, keyword: str, value: Any, known: Iterable[str]) -> str:
    # `method` was `network` before 0.2.0
    close = "".join(difflib.get_close_matches(keyword.replace("network", "method"), [*known, *_SOFTNESS], 1))
    if close not in _SOFTNESS:
        close += f"={value!r}" if close == "method" else ""
        return f"{name}: there is no option `{keyword}`{f'; did you mean `{close}`?' if close else '.'}"
    keyword = close
    number = f"{value:g}" if isinstance(value, (int, float)) and value > 0 else "..."
    steepness = number if keyword == "steepness" else f"1 / {number}"
    return (
        f"{name}: no `{keyword}` here: softness belongs to the relaxation. Say relax=Logistic({steepness}), or another family: "
        "Cauchy, Gaussian, Optimal, ..."
    )


def write_instead(name: str, value: Any, choices: Iterable[type], number: str = "") -> str:
    """What to write for an option that must be an object, where its name, its class or (for `number`) a number came:
    "; write method=Bitonic()", else nothing.

    >>> from algonet.relax import Cauchy, Logistic
    >>> write_instead("relax", "cauchy", [Logistic, Cauchy]), write_instead("relax", 10.0, [], number="Logistic")
    ('; write relax=Cauchy()', '; write relax=Logistic(10.0)')
    """
    if isinstance(value, (int, float)) and not isinstance(value, bool) and number:
        return f"; write {name}={number}({float(value)})"
    known = {choice.__name__.lower(): choice.__name__ for choice in choices}
    asked = value if isinstance(value, str) else value.__name__ if isinstance(value, type) else ""
    meant = known.get(re.sub("[-_ ]", "", asked.lower()))
    return f"; write {name}={meant}()" if meant else ""

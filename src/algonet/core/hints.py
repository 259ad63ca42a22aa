"""Keywords that users of other libraries try, answered with what to write here."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")

#: What peers call the softness; here it belongs to the relaxation, with its family.
_SOFTNESS = frozenset({"steepness", "temperature", "tau", "regularization_strength"})


def hints_at_relax(function: Callable[P, R]) -> Callable[P, R]:
    """Decorate a function that takes `relax=`: a steepness given beside it is answered by how to say it.

    The types and the signature stay as they are, so that an editor marks the mistake as well.
    """
    name = function.__qualname__.removesuffix(".__init__")
    first = [p.name for p in inspect.signature(function).parameters.values() if p.kind is p.POSITIONAL_OR_KEYWORD]

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        if not _SOFTNESS.isdisjoint(kwargs):
            keyword = next(keyword for keyword in kwargs if keyword in _SOFTNESS)
            raise TypeError(_hint(name, keyword, kwargs[keyword]))
        if len(args) > len(first):
            named = [p for p in first if p != "self"]
            extra = args[len(first)]
            instead = f"relax=Logistic({extra!r})" if isinstance(extra, (int, float)) else "relax=Logistic(10.0)"
            raise TypeError(f"{name}: options are given by name, such as {instead}; only {', '.join(named)} by place.")
        return function(*args, **kwargs)

    return call


def _hint(name: str, keyword: str, value: Any) -> str:
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
    meant = known.get(asked.lower().replace("_", "").replace("-", "").replace(" ", ""))
    return f"; write {name}={meant}()" if meant else ""

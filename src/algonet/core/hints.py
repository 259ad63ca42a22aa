"""Keywords that users of other libraries try, answered with what to write here."""

from __future__ import annotations

import functools
from collections.abc import Callable
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

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        if not _SOFTNESS.isdisjoint(kwargs):
            keyword = next(keyword for keyword in kwargs if keyword in _SOFTNESS)
            raise TypeError(_hint(name, keyword, kwargs[keyword]))
        return function(*args, **kwargs)

    return call


def _hint(name: str, keyword: str, value: Any) -> str:
    number = f"{value:g}" if isinstance(value, (int, float)) else "..."
    steepness = number if keyword == "steepness" else f"1 / {number}"
    return (
        f"{name}: no `{keyword}` here: softness belongs to the relaxation. Say relax=Logistic({steepness}), or another family: "
        "Cauchy, Gaussian, Optimal, ..."
    )

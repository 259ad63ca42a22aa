"""What the public functions ask of their arguments, and how they say so."""

from __future__ import annotations

import math
from numbers import Real
from typing import Any

import torch
from torch import Tensor

from algonet.core import tracing
from algonet.core.cache import constant
from algonet.core.checks import check_integer, check_spec, check_tensor, is_integer
from algonet.core.hints import too_close, warn_too_soft, write_instead
from algonet.core.memory import check_memory
from algonet.relax import DECISION, SIGMOIDS, Logistic, Sigmoid

from .methods import Method, Permutahedron, suggestions
from .networks import MANY, Bitonic, Network, OddEven


def check_items(where: str, x: Any, dim: int) -> Tensor:
    x = check_tensor(where, x)
    if x.dim() == 0:
        raise ValueError(f"{where}: `x` must have at least one dimension, got a scalar; use x.reshape(1).")
    if not is_integer(dim):
        raise TypeError(f"{where}: `dim` must be an integer, got {dim!r}.")
    if not -x.dim() <= dim < x.dim():
        raise ValueError(
            f"{where}: `dim` {dim} is out of range for x of shape {tuple(x.shape)}; use {-x.dim()} to {x.dim() - 1}."
        )
    return x


def check_payload(where: str, x: Tensor, given: Any, dim: int) -> Tensor | None:
    """The payload as (*batch, n, channels) with the sorted dimension where x has it after `movedim(dim, -1)`."""
    if given is None:
        return None
    given = check_spec(where, "payload", given, "*batch n")
    if given.device != x.device:
        raise ValueError(
            f"{where}: `payload` must be on the device of x: x is on {x.device}, payload on {given.device}."
        )
    if given.dim() >= x.dim() and given.shape[dim % x.dim()] != x.shape[dim]:
        raise ValueError(
            f"{where}: `payload` must share the sorted dimension: x has {x.shape[dim]} items along dim {dim}, "
            f"payload has {given.shape[dim % x.dim()]}."
        )
    if given.shape[: x.dim()] != x.shape:
        raise ValueError(
            f"{where}: `payload` must have the shape of x, {tuple(x.shape)}, followed by any others; got "
            f"{tuple(given.shape)}. Use expand to give every row the same payload."
        )
    if given.dim() != x.dim() + 1:
        given = given.reshape(*x.shape, math.prod(given.shape[x.dim() :]))
    return given if dim in (-1, x.dim() - 1) else given.movedim(dim % x.dim(), -2)


def check_mask(where: str, x: Tensor, given: Any) -> Tensor | None:
    if given is None:
        return None
    if not isinstance(given, Tensor) or given.dtype != torch.bool:
        found = given.dtype if isinstance(given, Tensor) else type(given).__name__
        raise TypeError(f"{where}: `mask` must be a boolean tensor, True where an item is present; got {found}.")
    try:
        return given.expand(x.shape)
    except RuntimeError:
        raise ValueError(
            f"{where}: `mask` must have the shape of x, {tuple(x.shape)}, or broadcast to it; got {tuple(given.shape)}."
        ) from None


def check_room(where: str, x: Tensor, n: int, columns: int) -> None:
    """Raise if the items, or a matrix of so many columns for each row of n, do not fit into memory with their gradient."""
    what = f"{x.numel()} items" if columns == 1 else f"matrices of {n} x {columns}"
    check_memory(where, what, 3 * x.numel() * columns * max(4, x.element_size()), x.device)


def check_sigmoid(where: str, relax: Any) -> None:
    if not isinstance(relax, Sigmoid):
        instead = write_instead("relax", relax, SIGMOIDS, number="Logistic")
        raise TypeError(f"{where}: `relax` must be a sigmoid such as Logistic(10.0), got {relax!r}{instead}.")


def check_options(where: str, relax: Any, method: Any, steps: Any, task: str = "sort") -> None:
    check_sigmoid(where, relax)
    if not isinstance(method, Method):
        instead = write_instead("method", method, map(type, suggestions(task)))
        raise TypeError(f"{where}: `method` must be a method such as OddEven() or Bitonic(), got {method!r}{instead}.")
    method.check(where, task, relax)
    if steps is not None:
        check_integer(where, "steps", steps, 0)
    if steps is not None and not isinstance(method, Network):
        raise ValueError(f"{where}: only sorting networks have `steps`, and {method!r} is none.")


#: From how many standard normal items on the defaults are of little use, and why; beyond `MANY`, OddEven() itself says so.
_BLURRED = {
    "soft_quantile": (128, "the median of {n} items is no nearer than their mean"),
    "soft_topk": (64, "`indices` of {n} items are means over many of them; hard=True gives theirs"),
}


def warn_if_blurred(where: str, x: Tensor, relax: Sigmoid, method: Method, steps: int | None) -> None:
    """Warn where the method is a poor choice for so many items, or one of its defaults too soft for x (*batch, n)."""
    n = x.shape[-1]
    if isinstance(method, OddEven) and n > MANY and steps is None:
        others = {
            "soft_rank": "; Pairwise() ranks without layers",
            "soft_topk": "; soft_topk_mask gives memberships without any",
        }
        warn_too_soft(
            f"{where}: OddEven() sends {n:,} items through {n:,} layers, which is slow and blurs them. method=Bitonic() has "
            f"{Bitonic().depth(n)} layers{others.get(where, '')}. which_method(x, ...) compares them."
        )
    if not tracing.plain():
        return
    least, why = _BLURRED.get(where, (MANY + 1, ""))
    if isinstance(method, OddEven) and least <= n <= MANY and too_close(x, -1, 3.0):
        if relax is DECISION or (x.device.type == "cpu" and type(relax) is Logistic and bool(relax.steepness == 10.0)):
            warn_too_soft(
                f"{where}: the default is too soft here: {why.format(n=n)}. Give method=Bitonic() or relax=Logistic(100.0), "
                "or scale x up; which_method(x, ...) compares them."
            )
    elif (
        where == "soft_rank"
        and isinstance(method, Permutahedron)
        and method.strength == 1.0
        and too_close(x, -1, n / 10)
    ):
        warn_too_soft(
            f"soft_rank: Permutahedron() has its default strength of 1, at which ranks of {n} items so close are nearly equal. "
            f"Give Permutahedron(strength={1 / n:.1g}), for items that spread by 1."
        )


def signed_steepness(where: str, relax: Sigmoid, x: Tensor, sign: float) -> Tensor:
    """The steepness as a scalar tensor beside x, negative for a descending sort."""
    value: Any = relax.steepness
    if not isinstance(value, Tensor):
        return constant(sign * value, x.dtype, x.device)
    if value.numel() != 1:
        raise ValueError(
            f"{where}: the steepness must be one number for all exchanges, got a tensor of shape {tuple(value.shape)}."
        )
    value = value if value.dim() == 0 else value.reshape(())
    return (value if sign > 0 else -value).to(x)


def check_quantiles(where: str, q: Any) -> list[float]:
    levels: Any = [q] if isinstance(q, Real) and not isinstance(q, bool) else q
    if isinstance(levels, Tensor):
        levels = levels.tolist() if levels.dim() else [levels.item()]
    if not isinstance(levels, (list, tuple)) or not levels or not all(isinstance(v, Real) for v in levels):
        raise TypeError(f"{where}: `q` must be a number in [0, 1] or a sequence of them, got {q!r}.")
    for level in levels:
        if not 0 <= level <= 1:
            raise ValueError(f"{where}: `q` must lie in [0, 1], got {level}.")
    return [float(level) for level in levels]

"""The three ways the paper inserts an algorithm into a network: fully applied, beside a shortcut, on the residual part."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from .programs import is_program, run_program, signature_of

#: From a tensor to a tensor, or a program of several inputs and outputs.
Algorithm = Callable[..., Any]


class AlgorithmLayer(nn.Module):
    """Base of the insertion styles. Holds an algorithm: a module becomes a submodule, any other callable is kept as it is.

    A `WhileProgram` or a function under `@smooth` is given its features one by one: the features are its inputs in order,
    and each of its outputs is a feature. Any other algorithm gets the tensor; of a tuple of results, the first counts.
    """

    #: What is done to the algorithm's result before it joins the other features; `explain` measures by it.
    change: Callable[[Tensor], Tensor] | None = None
    #: The share of the features that goes through the algorithm, where not all do.
    share: float | None = None

    def __init__(self, algorithm: Algorithm, dim: int, share: float | None = None):
        super().__init__()
        if not callable(algorithm):
            raise TypeError(f"{type(self).__name__}: `algorithm` must be a module or a function, got {algorithm!r}.")
        if (instead := getattr(algorithm, "as_layer", None)) is not None:
            raise TypeError(
                f"{type(self).__name__}: {type(algorithm).__name__} is not called with features; write {instead}."
            )
        self.algorithm = algorithm
        self._is_program, self._signature = is_program(algorithm), signature_of(algorithm)
        self.dim = dim
        #: What the other features go through.
        self.body: nn.Module | None = None
        if share is not None:
            if isinstance(share, bool) or not isinstance(share, (int, float)) or not 0 < share < 1:
                raise ValueError(f"{type(self).__name__}: `share` must lie strictly between 0 and 1, got {share!r}.")
            self.share = share

    def forward(self, x: Tensor) -> Tensor:
        past, part = (None, x) if self.share is None else self._parts(x, self.share)
        result = self._result(part)
        result = result if self.change is None else self.change(result)
        return result if past is None else self._joined(past if self.body is None else self.body(past), result)

    if TYPE_CHECKING:
        __call__ = forward

    def _result(self, x: Tensor) -> Tensor:
        where = type(self).__name__
        if self._is_program:
            return run_program(where, self.algorithm, self._signature, x, self.dim)
        result = self.algorithm(x)
        # Sorters return named tuples whose first entry is the differentiable result
        if isinstance(result, tuple):
            result = result[0]
        if not isinstance(result, Tensor):
            raise TypeError(f"{where}: the algorithm returned {type(result).__name__}, wanted a tensor.")
        return result

    def _parts(self, x: Tensor, share: float) -> tuple[Tensor, Tensor]:
        """x cut along `dim`: what goes past the algorithm, and the last `share` of the features, which it gets."""
        where = type(self).__name__
        if not -x.dim() <= self.dim < x.dim():
            raise ValueError(f"{where}: feature dim {self.dim} is out of range for x of shape {tuple(x.shape)}.")
        features = x.shape[self.dim]
        taken = round(share * features)
        if not 0 < taken < features:
            raise ValueError(
                f"{where}: a share of {share} of {features} features gives the algorithm {taken} and leaves "
                f"{features - taken}; both need at least one."
            )
        past, part = x.split([features - taken, taken], dim=self.dim)
        return past, part

    def _joined(self, past: Tensor, result: Tensor) -> Tensor:
        def elsewhere(t: Tensor) -> list[int]:
            return [n for i, n in enumerate(t.shape) if i != self.dim % t.dim()]

        if past.dim() != result.dim() or elsewhere(past) != elsewhere(result):
            raise ValueError(
                f"{type(self).__name__}: the algorithm's result {tuple(result.shape)} does not fit beside the other "
                f"features {tuple(past.shape)}: all dimensions but {self.dim} must agree."
            )
        return torch.cat([past, result], dim=self.dim)

    def extra_repr(self) -> str:
        shown = "" if isinstance(self.algorithm, nn.Module) else f"{getattr(self.algorithm, '__name__', 'function')}, "
        return f"{shown}dim={self.dim}"


class Insert(AlgorithmLayer):
    """The fully applied AlgoNet layer: all features go through the algorithm.

    >>> Insert(torch.sort)(torch.tensor([[3.0, 1.0, 2.0]]))
    tensor([[1., 2., 3.]])

    A program's features are its variables, here x1 and x2:

    >>> from algonet import Tent, WhileProgram
    >>> Insert(WhileProgram.library("multiply", Tent()))(torch.tensor([[3.0, 4.0], [2.0, 5.0]]))
    tensor([[12.],
            [10.]])
    """

    def __init__(self, algorithm: Algorithm):
        super().__init__(algorithm, -1)


class Shortcut(AlgorithmLayer):
    """The shortcut AlgoNet layer: the last `share` of the features go through the algorithm, the rest skip it.

    >>> Shortcut(torch.neg, share=0.5)(torch.tensor([[1.0, 2.0, 3.0, 4.0]]))
    tensor([[ 1.,  2., -3., -4.]])
    """

    def __init__(self, algorithm: Algorithm, share: float = 0.5, *, dim: int = -1):
        super().__init__(algorithm, dim, share)


class Residual(AlgorithmLayer):
    """The residual AlgoNet layer: the last `share` of the features go through the algorithm, the rest through `body`.

    `body` is any trainable stack of layers for the other features; the algorithm is the residual connection beside it.

    >>> Residual(torch.neg, nn.Identity(), share=0.25)(torch.tensor([[1.0, 2.0, 3.0, 4.0]]))
    tensor([[ 1.,  2.,  3., -4.]])
    """

    def __init__(self, algorithm: Algorithm, body: nn.Module, share: float = 0.5, *, dim: int = -1):
        super().__init__(algorithm, dim, share)
        if not isinstance(body, nn.Module):
            raise TypeError(f"Residual: `body` must be a module, got {type(body).__name__}.")
        self.body = body

"""The shell of modules that hold one relaxation: its softness is a buffer or a parameter, so it is saved, moved,
annealed and learned like any other state."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from .base import Relaxation
from .sigmoids import Heaviside, Sigmoid

R = TypeVar("R", bound=Relaxation)


class SoftModule(nn.Module):
    """Base of modules with a relaxation. Subclasses call `super().__init__(relax)` and read `self.relax`.

    A softness given as a number becomes a buffer, one given as an `nn.Parameter` stays a parameter: either way it is in
    the `state_dict`, under `steepness` or `scale`, and `self.relax` is the relaxation with its present value.
    """

    def __init__(self, relax: Relaxation):
        super().__init__()
        if not isinstance(relax, Relaxation):
            raise TypeError(
                f"{type(self).__name__}: `relax` must be an algonet relaxation such as Logistic(10.0), got {relax!r}."
            )
        self._form = relax
        self._override: Relaxation | None = None
        if relax.softness_field is not None:
            value = getattr(relax, relax.softness_field)
            if isinstance(value, nn.Parameter):
                self.register_parameter(relax.softness_field, value)
            else:
                self.register_buffer(relax.softness_field, torch.as_tensor(value, dtype=_dtype(value)).detach().clone())

    @property
    def relax(self) -> Relaxation:
        """The relaxation at its present softness."""
        if self._override is not None:
            return self._override
        name = self._form.softness_field
        return self._form if name is None else dataclasses.replace(self._form, **{name: getattr(self, name)})

    def extra_repr(self) -> str:
        name = self._form.softness_field
        return type(self._form).__name__ + (f", {name}={getattr(self, name).tolist():.4g}" if name else "")


def _dtype(value: Any) -> torch.dtype:
    return value.dtype if isinstance(value, Tensor) else torch.get_default_dtype()


def soft_modules(module: nn.Module) -> list[SoftModule]:
    """All modules inside `module` (itself included) that hold a relaxation with a softness."""
    return [m for m in module.modules() if isinstance(m, SoftModule) and m._form.softness_field is not None]


@contextmanager
def hardened(module: nn.Module) -> Iterator[None]:
    """Inside the block, every sigmoid in `module` is the crisp decision it smooths.

    Exits and noises become a thousand times harder instead: their crisp forms are not sigmoids.
    """
    touched = [m for m in module.modules() if isinstance(m, SoftModule)]
    for m in touched:
        m._override = _hard(m.relax)
    try:
        yield
    finally:
        for m in touched:
            m._override = None


def _hard(relax: R) -> R | Heaviside:
    if isinstance(relax, Sigmoid):
        return Heaviside()
    if relax.softness_field is None:
        return relax
    value = getattr(relax, relax.softness_field)
    harder = value / 1e3 if relax.softness_field == "scale" else value * 1e3
    return dataclasses.replace(relax, **{relax.softness_field: harder})

"""The shell of modules that hold relaxations: their softness is a buffer or a parameter, so it is saved, moved, annealed
and learned like any other state."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import torch
from torch import Tensor, nn

from .base import Relaxation
from .sigmoids import Heaviside, Sigmoid

R = TypeVar("R", bound=Relaxation)

#: The name of a module's first relaxation, whose softness is saved under its bare field.
MAIN = "relax"


class SoftModule(nn.Module):
    """Base of modules with relaxations. Subclasses call `super().__init__(relax)` and read `self.relax`.

    A softness given as a number becomes a buffer, one given as an `nn.Parameter` stays a parameter: either way it is in
    the `state_dict`, under `steepness` or `scale`, and `self.relax` is the relaxation with its present value.

    A module may make further decisions of another kind: `super().__init__(relax, depth=Choice(100.0))` saves the second
    softness as `depth_steepness`, and `self.relaxation("depth")` is that relaxation. A module around others, whose own
    decisions should not be annealed with theirs, holds named ones only. `Anneal`, `hardened` and `softness_report` see all.
    """

    if TYPE_CHECKING:
        # What a relaxation without one of them does not have raises AttributeError
        steepness: Tensor
        scale: Tensor

    def __init__(self, relax: Relaxation | None = None, **others: Relaxation):
        super().__init__()
        self._forms: dict[str, Relaxation] = {}
        self._overrides: dict[str, Relaxation] = {}
        if relax is not None or not others:
            self._hold(MAIN, relax)
        for name, relaxation in others.items():
            self._hold(name, relaxation)

    def _hold(self, name: str, relaxation: Relaxation | None) -> None:
        if not isinstance(relaxation, Relaxation):
            raise TypeError(
                f"{type(self).__name__}: `{name}` must be an algonet relaxation such as Logistic(10.0), got {relaxation!r}."
            )
        field = relaxation.softness_field
        if field is None:
            self._forms[name] = relaxation
            return
        value: Any = getattr(relaxation, field)
        # The form keeps no tensor: a copy of the module would carry a second one, with the graph that made it
        self._forms[name] = dataclasses.replace(relaxation, **{field: 1.0})
        attribute = _attribute(name, field)
        if isinstance(value, nn.Parameter):
            self.register_parameter(attribute, value)
        else:
            dtype = value.dtype if isinstance(value, Tensor) else torch.get_default_dtype()
            self.register_buffer(attribute, torch.as_tensor(value, dtype=dtype).detach().clone())

    @property
    def relax(self) -> Relaxation:
        """The main relaxation at its present softness."""
        return self.relaxation(MAIN)

    def relaxation(self, name: str) -> Relaxation:
        """The relaxation of this name at its present softness."""
        if name in self._overrides:
            return self._overrides[name]
        return self._soft(name)

    def _soft(self, name: str) -> Relaxation:
        form = self._forms[name]
        field = form.softness_field
        if field is None:
            return form
        # As dataclasses.replace, without a look at what was looked at when it was made
        made = object.__new__(type(form))
        made.__dict__.update(form.__dict__)
        made.__dict__[field] = getattr(self, field if name == MAIN else _attribute(name, field))
        return made

    def set_softness(self, attribute: str, value: float) -> None:
        """Set the softness that is saved as `attribute` to `value`, in place."""
        with torch.no_grad():
            getattr(self, attribute).fill_(value)

    def extra_repr(self) -> str:
        shown = []
        for name, form in self._forms.items():
            field = form.softness_field
            if name == MAIN or len(self._forms) == 1:
                shown.append(_named(form))
            if field is not None:
                attribute = _attribute(name, field)
                shown.append(f"{attribute}={_shown(getattr(self, attribute))}")
        return ", ".join(shown)


class Softness(NamedTuple):
    """Where a softness lives: attribute `attribute` of `module`, at `path` (dotted) of the model; `field` is its kind."""

    path: str
    module: SoftModule
    attribute: str
    field: str

    @property
    def value(self) -> Tensor:
        return getattr(self.module, self.attribute)


def softnesses(model: nn.Module) -> list[Softness]:
    """Every softness inside `model` (itself included). The path of the model's own begins with its class."""
    return [
        Softness(f"{path or type(module).__name__}.{_attribute(name, field)}", module, _attribute(name, field), field)
        for path, module in model.named_modules()
        if isinstance(module, SoftModule)
        for name, form in module._forms.items()
        if (field := form.softness_field) is not None
    ]


def _attribute(name: str, field: str) -> str:
    return field if name == MAIN else f"{name}_{field}"


def _named(form: Relaxation) -> str:
    """The family with its fields but the softness: SmoothTent(k=2)."""
    fields = [f.name for f in dataclasses.fields(form) if f.name != form.softness_field]
    options = ", ".join(f"{name}={getattr(form, name)!r}" for name in fields)
    return type(form).__name__ + (f"({options})" if options else "")


def _shown(value: Tensor) -> str:
    """A softness in a repr: the number, or the shape where it differs between elements or has no values to read."""
    if value.numel() != 1 or value.is_meta:
        return f"tensor of shape {tuple(value.shape)}"
    return f"{value.item():.4g}"


@contextmanager
def hardened(module: nn.Module) -> Iterator[None]:
    """Inside the block, every sigmoid in `module` is the crisp decision it smooths.

    Exits, choices and noises become a thousand times harder instead: their crisp forms are not sigmoids. Blocks may be
    nested.
    """
    touched = [m for m in module.modules() if isinstance(m, SoftModule)]
    before = [m._overrides for m in touched]
    for m in touched:
        m._overrides = {name: _hard(m._soft(name)) for name in m._forms}
    try:
        yield
    finally:
        for m, overrides in zip(touched, before, strict=True):
            m._overrides = overrides


def _hard(relax: R) -> R | Heaviside:
    if isinstance(relax, Sigmoid):
        return Heaviside()
    if relax.softness_field is None:
        return relax
    value = getattr(relax, relax.softness_field)
    harder = value / 1e3 if relax.softness_field == "scale" else value * 1e3
    return dataclasses.replace(relax, **{relax.softness_field: harder})


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Inside the block the model is in evaluation mode (no dropout, no batch statistics); each module's mode comes back."""
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for module, mode in modes:
            module.training = mode


def departure(weight: Tensor, bias: Tensor) -> Tensor:
    """sum (w - 1)^2 + b^2: how far assignments y = w value + b of a trained program are from those that were written."""
    return (weight - 1).square().sum() + bias.square().sum()

"""Is the softness well chosen? Measured on the user's own data."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from algonet.core.checks import check_module

from .modules import evaluating, hardened, softnesses

#: A gradient this much smaller than the largest one is counted as vanished.
VANISHED = 1e-6
#: With a larger share of vanished gradients than this a layer is called mostly hard; with a larger gap, mostly blurred.
HARD, BLURRED = 0.5, 0.25


@dataclass(frozen=True)
class SoftnessReport:
    """`gap`: mean |soft - hard| relative to the spread of the hard result. `vanished`: the share of input elements whose
    gradient *through the decisions* is negligible. `softness`: each softness of the module by its place, the mean where it
    is a tensor. `suggestion`: one line on what to change."""

    gap: float
    vanished: float
    softness: dict[str, float]
    suggestion: str

    def __str__(self) -> str:
        settings = ", ".join(f"{name} = {value:.4g}" for name, value in self.softness.items())
        return f"gap to hard {self.gap:.1%}, vanished gradients {self.vanished:.1%} ({settings}): {self.suggestion}"


def softness_report(module: Any, *inputs: Any, **options: Any) -> SoftnessReport:
    """Compare `module(*inputs)` with its crisp limit, and see which inputs still feel its decisions.

    A smooth function (with the options of its calls, such as `batched=True`) is compared with the function as written and
    with particles that follow crisp paths; the report then names the line whose decisions make the difference.

    The gradient of soft minus hard output is the part that comes through the decisions alone: what merely passes through
    (a sorted value's own slope) is the same in both and cancels. It is taken by the floating tensors among the inputs and
    inside them (the vertices of a `Mesh`, the matrix of a `Camera`, items of lists), or by the module's parameters where
    there are none. The module is put into evaluation mode meanwhile and left as it was. Of layers that sort, the report says
    so where sorted values, medians or quantiles lie further from the crisp ones than 1 / steepness on average.

    >>> from algonet.nn import WeightedSoftmax
    >>> print(softness_report(WeightedSoftmax(steepness=500.0), torch.randn(64, 8)).suggestion)
    mostly hard: lower the steepness by about 5x, or anneal from there
    """
    if getattr(module, "is_smooth", False):
        return module.softness_report(*inputs, **options)
    if options:
        raise TypeError(f"softness_report: unexpected option {next(iter(options))!r}; smooth functions take some.")
    check_module("softness_report", module)
    held = softnesses(module)
    if not held:
        raise ValueError(f"softness_report: {type(module).__name__} holds no algonet module with a softness.")
    moving: list[Tensor] = []
    leaves = [_as_leaves(x, moving) for x in inputs]
    moving = moving or _weights(module)
    if not moving:
        got = ", ".join(type(x).__name__ for x in inputs) or "none"
        raise ValueError(
            "softness_report: give at least one floating tensor as input, or something that holds one (a Mesh, a list), "
            f"as the module is called with them; got {got}."
        )
    with torch.enable_grad(), evaluating(module):
        soft = _tensors(module(*leaves))
        with hardened(module):
            hard = _tensors(module(*leaves))
        gap = _gap([s.detach() for s in soft], [h.detach() for h in hard])
        generator = torch.Generator().manual_seed(0)
        score: Any = sum(
            ((s - h) * torch.randn(s.shape, generator=generator).to(s)).sum() for s, h in zip(soft, hard, strict=True)
        )
        slopes = torch.autograd.grad(score, moving, allow_unused=True, materialize_grads=True)
    flat = torch.cat([g.flatten().cpu().float() for g in slopes]).abs()
    vanished = float((flat <= VANISHED * flat.max()).float().mean()) if flat.max() > 0 else 1.0
    values = {softness.path: float(softness.value.detach().mean()) for softness in held}
    # A layer whose results are in the unit of its input knows how far its softness may move them
    note = module.blur_note(soft[0].detach(), hard[0].detach()) if hasattr(module, "blur_note") else ""
    return SoftnessReport(gap, vanished, values, note or _suggest(gap, vanished, {softness.field for softness in held}))


def _as_leaves(value: Any, found: list[Tensor]) -> Any:
    """`value` with every floating tensor in it, in dataclasses and collections too, as a new leaf, which `found` gets."""
    if isinstance(value, Tensor):
        if not value.is_floating_point():
            return value
        found.append(value.detach().clone().requires_grad_())
        return found[-1]
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        held = {f.name: getattr(value, f.name) for f in dataclasses.fields(value) if f.init}
        return dataclasses.replace(value, **{name: _as_leaves(part, found) for name, part in held.items()})
    if isinstance(value, dict):
        return {name: _as_leaves(part, found) for name, part in value.items()}
    if isinstance(value, list | tuple):
        parts = [_as_leaves(part, found) for part in value]
        return type(value)(*parts) if hasattr(value, "_fields") else type(value)(parts)
    return value


def _weights(module: nn.Module) -> list[Tensor]:
    """The parameters of `module` that are not themselves a softness."""
    own = {id(softness.value) for softness in softnesses(module)}
    return [p for p in module.parameters() if p.requires_grad and id(p) not in own]


def _gap(soft: list[Tensor], hard: list[Tensor]) -> float:
    soft, hard = ([t for t in tensors if t.numel()] for tensors in (soft, hard))  # the mean of nothing is NaN
    distance = sum(float((s - h).abs().mean()) for s, h in zip(soft, hard, strict=True))
    spread = sum(float((h - h.mean()).abs().mean()) for h in hard)
    return distance / max(spread, 1e-12)


def _suggest(gap: float, vanished: float, fields: set[str]) -> str:
    def change(steepness: str, scale: str) -> str:
        words = {"steepness": f"{steepness} the steepness", "scale": f"{scale} the scale"}
        return " and ".join(words[field] for field in words if field in fields)

    if vanished > HARD:
        return f"mostly hard: {change('lower', 'raise')} by about 5x, or anneal from there"
    if gap > BLURRED:
        return f"mostly blurred: {change('raise', 'lower')} by about 3x, or anneal towards it"
    return f"balanced: {change('keep', 'keep')}, or anneal to a harder one near the end of training"


def _tensors(output: Any) -> list[Tensor]:
    if isinstance(output, Tensor):
        return [output]
    if isinstance(output, dict):
        output = output.values()
    return [t for t in output if isinstance(t, Tensor) and t.is_floating_point()]

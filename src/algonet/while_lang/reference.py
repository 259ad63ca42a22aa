"""The smooth interpreter in plain torch: slow, and differentiable to any order. The kernels mirror it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from algonet.core import tracing
from algonet.relax import Exit

from .code import Code


class Outcome(NamedTuple):
    """`values` (*batch, outputs) and `diagnostics` (*batch, 3): probability left, loop bodies run, loop that was cut."""

    values: Tensor
    diagnostics: Tensor


def run_reference(
    code: Code,
    inputs: Mapping[int, Tensor],
    outputs: Sequence[int],
    *,
    exit: Exit,
    epsilon: float,
    max_iterations: int,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    like: Tensor | None = None,
    gates: Tensor | None = None,
) -> Outcome:
    """Run `code` smoothly on `inputs` (slot -> tensor, all of one shape); `like` gives dtype and device if there are none.

    A loop over v inside probability p repeats { p := p phi(v); stop if p <= epsilon; run the body with p }. Elements
    that stopped have p = 0 from then on, so that they no longer change while others go on. An element with an infinite or
    NaN input is NaN in every output and does not run. `gates` (*batch, assignments) scale the probability with which each
    assignment is made.
    """
    like = next(iter(inputs.values())) if inputs else like
    assert like is not None
    zero = torch.zeros_like(like)
    state: list[Tensor] = [zero] * len(code.names)
    broken = zero.bool()
    for slot, value in inputs.items():
        finite = value.abs() < torch.inf
        state[slot] = torch.where(finite, value, zero)
        broken = broken | ~finite
    machine = _Machine(code, exit, epsilon, max_iterations, weight, bias, gates)
    diagnostics = machine.run(state, torch.where(broken, zero, zero + 1))
    offset = machine.poison + _unused(exit, inputs.values(), (weight, bias))
    values = torch.stack([torch.where(broken, torch.nan, state[slot] + offset) for slot in outputs], dim=-1)
    return Outcome(values, diagnostics)


def _unused(exit: Exit, elements: Iterable[Tensor], shared: Iterable[Tensor | None]) -> Tensor | float:
    """0 that depends on every tensor, with gradient 0: which of them a run used must not decide who has a gradient."""
    softness = getattr(exit, exit.softness_field) if exit.softness_field is not None else None
    total: Tensor | float = 0.0
    for tensor in (softness, *elements):
        if isinstance(tensor, Tensor):
            total = total + _nothing(tensor)
    for tensor in shared:
        if tensor is not None:
            total = total + _nothing(tensor).sum()
    return total


def _nothing(tensor: Tensor) -> Tensor:
    return torch.where(torch.zeros_like(tensor, dtype=torch.bool), tensor, 0.0)


class _Machine:
    """Runs flat code with an explicit stack of probabilities, so that nesting is not bounded by Python's own stack."""

    def __init__(
        self,
        code: Code,
        exit: Exit,
        epsilon: float,
        max_iterations: int,
        weight: Tensor | None,
        bias: Tensor | None,
        gates: Tensor | None = None,
    ):
        self.gates = gates
        self.code, self.exit, self.epsilon, self.max_iterations = code, exit, epsilon, max_iterations
        self.weight, self.bias = weight, bias
        self.poison: Tensor | float = 0.0

    def run(self, state: list[Tensor], p: Tensor) -> Tensor:
        """Run to the end, changing `state`; returns the diagnostics."""
        code = self.code
        mass, steps, cut = p * 0, p.detach() * 0, p.detach() * 0
        stack: list[tuple[Tensor, int]] = []
        position, entering, count = 0, True, 0
        while position < len(code.ops):
            op = code.ops[position]
            if op.kind == "end":
                position, entering = op.argument, False
                continue
            if op.kind != "while":
                state[op.target] = self._assigned(position, state, p)
                position += 1
                continue
            if entering:
                stack.append((p, count))
                count = 0
            entering = True
            p = self._tested(state[op.target], p)
            if count < self.max_iterations and _any(p > 0):
                steps = steps + (p > 0).to(steps.dtype)
                count += 1
                position += 1
                continue
            # p is left positive only where the loop was cut off
            worse = p.detach() > mass
            mass = torch.where(worse, p.detach(), mass)
            cut = torch.where(worse, float(code.loop_numbers[position]), cut)
            p, count = stack.pop()
            position = op.argument + 1
        return torch.stack([mass, steps, cut], dim=-1).detach()

    def _tested(self, v: Tensor, p: Tensor) -> Tensor:
        q = p * self.exit(v)
        if self.weight is not None:
            # Weights can drive a value out of range: such an element stops, and is NaN rather than wrong
            self.poison = self.poison + torch.where(p > 0, q - q, 0.0).detach()
        return torch.where(q > self.epsilon, q, 0.0)

    def _assigned(self, position: int, state: list[Tensor], p: Tensor) -> Tensor:
        kind, target, argument = self.code.ops[position]
        y = state[target]
        if self.gates is not None:
            p = p * self.gates[..., self.code.assignments[position]]
        if self.weight is None or self.bias is None:
            return p * state[argument] + (1 - p) * y if kind == "copy" else y + argument * p
        number = self.code.assignments[position]
        new = self.weight[number] * (state[argument] if kind == "copy" else y + argument) + self.bias[number]
        # A weight can push a value out of range. Where p is 0 that must not matter: such an element only waits for others
        return p * torch.where(p > 0, new, y) + (1 - p) * y


def _any(mask: Tensor) -> bool:
    """Whether any element is true; under `vmap` any element of any item, since the loop goes on for all together."""
    return bool(tracing.unwrapped(mask).any())

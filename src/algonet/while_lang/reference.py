"""The smooth program as a network in plain torch: slow, and differentiable to any order. The kernels mirror it.

Each assignment is a unit, each loop a recurrent module around those of its body. `state` holds a tensor per variable, p the
probability with which a part is run.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from algonet.core import tracing
from algonet.relax import Exit

from .code import Code, decode


@dataclass(frozen=True)
class WhileSettings:
    """A program with all its settings. `program` is `Code.text`; `exit` is interned, its softness a tensor of its own.

    `inputs` and `outputs` are slots. `watched` asks for the diagnostics too.
    """

    program: str
    exit: Exit
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    epsilon: float
    max_iterations: int
    trainable: bool
    watched: bool

    @property
    def code(self) -> Code:
        return decode(self.program)

    def output_shape(self, batch: Sequence[int]) -> tuple[int, ...]:
        return tuple(batch) if len(self.outputs) == 1 else (*batch, len(self.outputs))


def run_reference(
    tensors: Sequence[Tensor], settings: WhileSettings, gates: Tensor | None = None, body: nn.Module | None = None
) -> list[Tensor]:
    """The values, and if `watched` the diagnostics: probability left, loop bodies run, loop that was cut.

    A loop over v, reached with probability p, repeats { p := p phi(v); stop if p <= epsilon; run the body with p }; a branch
    mixes what its two parts make of the state. Elements that stopped have p = 0 from then on, so that they no longer
    change while others go on. An element with an infinite or NaN input is NaN in every output and does not run. `gates`
    (*batch, assignments) scale the probability with which each assignment is made. `body` is the network that
    `build(code, weight, bias)` gave, if there is one already.
    """
    steepness, weight, bias, *elements = tensors
    code, exit, parameters = settings.code, settings.exit, (weight, bias) if settings.trainable else ()
    softness = () if exit.softness_field is None else (steepness,)
    for value in softness:
        exit = dataclasses.replace(exit, **{str(exit.softness_field): value})
    zero = torch.zeros_like(elements[0] if elements else steepness)
    state: list[Tensor] = [zero] * len(code.names)
    broken = zero.bool()
    for slot, value in zip(settings.inputs, elements, strict=True):
        finite = value.abs() < torch.inf
        state[slot] = torch.where(finite, value, zero)
        broken = broken | ~finite
    nothing = zero.detach()
    run = Run(exit, settings.epsilon, settings.max_iterations, gates, nothing, nothing, nothing)
    (build(code, *parameters) if body is None else body)(state, torch.where(broken, zero, zero + 1), run)
    offset = run.poison
    # Of every tensor 0 with gradient 0: which of them a run used must not decide who has a gradient
    for tensor in (*softness, *elements, *parameters):
        unused = torch.where(torch.zeros_like(tensor, dtype=torch.bool), tensor, 0.0)
        offset = offset + (unused.sum() if any(tensor is t for t in parameters) else unused)
    found = [torch.where(broken, torch.nan, state[slot] + offset) for slot in settings.outputs]
    values = found[0] if len(found) == 1 else torch.stack(found, dim=-1)
    return [values, torch.stack([run.mass, run.steps, run.cut], dim=-1)] if settings.watched else [values]


@dataclass
class Run:
    """What a run carries along: its exit and limits, gates if it has some, and what it will tell of its loops."""

    exit: Exit
    epsilon: float
    max_iterations: int
    gates: Tensor | None
    mass: Tensor
    steps: Tensor
    cut: Tensor
    poison: Tensor | float = 0.0

    def watch(self, p: Tensor, q: Tensor, trainable: bool) -> None:
        """Weights can drive a value out of range: such an element stops, and is NaN rather than wrong."""
        if trainable:
            self.poison = self.poison + torch.where(p > 0, q - q, 0.0).detach()


class Unit(nn.Module):
    """One assignment, reached with probability p: y := p (w value + b) + (1 - p) y, with the value that it assigns."""

    def __init__(self, code: Code, index: int, weight: Tensor | None, bias: Tensor | None):
        super().__init__()
        self.kind, self.target, self.argument = code.ops[index]
        self.number = code.assignments[index]
        self.text = assignment_text(code, index)
        self.weight, self.bias = weight, bias

    def forward(self, state: list[Tensor], p: Tensor, run: Run) -> None:
        y = state[self.target]
        if run.gates is not None:
            p = p * run.gates[..., self.number]
        value = state[self.argument] if self.kind == "copy" else y + self.argument
        if self.weight is not None and self.bias is not None:
            # A weight can push a value out of range. Where p is 0 that must not matter: such an element only waits for others
            value = torch.where(p > 0, self.weight * value + self.bias, y)
            state[self.target] = torch.where(p > 0, p * value + (1 - p) * y, y)
        else:
            state[self.target] = p * value + (1 - p) * y if self.kind == "copy" else y + self.argument * p

    def extra_repr(self) -> str:
        if self.weight is None or self.bias is None:
            return self.text
        return f"{self.text}, weight={self.weight.item():.4g}, bias={self.bias.item():.4g}"


class Parts(nn.ModuleList):
    """One part after the other, all inside the same probability."""

    def forward(self, state: list[Tensor], p: Tensor, run: Run) -> None:
        for part in self:
            part(state, p, run)


class _Part(nn.Module):
    """A loop or a branch, which shows its condition."""

    def __init__(self, code: Code, index: int, trainable: bool):
        super().__init__()
        self.slot, self.trainable = code.ops[index].target, trainable
        self.text = f"{code.names[self.slot]} != 0"

    def extra_repr(self) -> str:
        return self.text


class Recurrent(_Part):
    """A loop: the body runs on its own result, inside p phi(v), p phi(v)^2, ..., until none of the probability is left."""

    def __init__(self, code: Code, index: int, body: Parts, trainable: bool):
        super().__init__(code, index, trainable)
        self.number, self.body = code.loop_numbers[index], body

    def forward(self, state: list[Tensor], p: Tensor, run: Run) -> None:
        for turn in range(run.max_iterations + 1):
            q = p * run.exit(state[self.slot])
            run.watch(p, q, self.trainable)
            p = torch.where(q > run.epsilon, q, 0.0)
            if turn == run.max_iterations or not _any(p > 0):
                break
            run.steps = run.steps + (p > 0).to(run.steps.dtype)
            self.body(state, p, run)
        # p is left positive only where the loop was cut off
        worse = p.detach() > run.mass
        run.mass = torch.where(worse, p.detach(), run.mass)
        run.cut = torch.where(worse, float(self.number), run.cut)


class Branch(_Part):
    """A branch: both parts run on the state before it, which then is phi(v) then + (1 - phi(v)) otherwise."""

    def __init__(self, code: Code, index: int, then: Parts, otherwise: Parts, trainable: bool):
        super().__init__(code, index, trainable)
        self.then, self.otherwise = then, otherwise

    def forward(self, state: list[Tensor], p: Tensor, run: Run) -> None:
        q = run.exit(state[self.slot])
        run.watch(p, q, self.trainable)
        # A part that is taken with less than epsilon is not run at all: what it would do may never halt
        q = torch.where(p * q > run.epsilon, q, 0.0)
        q = torch.where(p * (1 - q) > run.epsilon, q, 1.0)
        then = list(state)
        if _any(q > 0):
            self.then(then, torch.where(q > 0, p, 0.0), run)
        if _any(q < 1):
            self.otherwise(state, torch.where(q < 1, p, 0.0), run)
        for slot, (one, other) in enumerate(zip(then, state, strict=True)):
            if one is not other:
                state[slot] = q * one + (1 - q) * other


def build(code: Code, weight: Iterable[Tensor] | None = None, bias: Iterable[Tensor] | None = None) -> Parts:
    """The network that `code` is: a unit for each assignment, a recurrent module for each loop."""
    trainable = weight is not None
    weights, biases = (iter(() if given is None else given) for given in (weight, bias))
    blocks = [Parts()]
    for index, (kind, _, argument) in enumerate(code.ops):
        if kind in ("while", "if", "else"):
            blocks.append(Parts())
        elif kind == "end":
            body = blocks.pop()
            blocks[-1].append(Recurrent(code, argument, body, trainable))
        elif kind == "fi":
            otherwise, then = blocks.pop(), blocks.pop()
            blocks[-1].append(Branch(code, index, then, otherwise, trainable))
        else:
            blocks[-1].append(Unit(code, index, next(weights, None), next(biases, None)))
    return blocks[0]


def assignment_text(code: Code, index: int) -> str:
    """An assignment of the flat code, as source."""
    kind, target, argument = code.ops[index]
    y = code.names[target]
    return f"{y} := {code.names[argument]}" if kind == "copy" else f"{y} := {y} {'+-'[argument < 0]} {abs(argument)}"


def _any(mask: Tensor) -> bool:
    """Whether any element is true; under `vmap` any element of any item, since the loop goes on for all together."""
    return bool(tracing.unwrapped(mask).any())

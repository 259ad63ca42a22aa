"""A recorded program as one differentiable operation: `y[..., k] = row wanted[k]` of instructions on `x[..., column]`.

The program is data: instructions (code, a, b, c) on rows, each instruction making the next row.

    input a     column a of x                 add, sub, mul, div    a (op) b
    const a     constant a                    neg, truth            -a, min(1, |a|)
    mix         a b + (1 - a) c               relax + k             formula k at steepness[b] * a
    cut         a where a > b, else 0         select                b where a > 0, else c
    accumulate  a + b c                       reciprocal            1 / a where a > 1e-18, else 0
    clamp       a, not below b or above c     snap                  0 where a <= b, 1 where a >= c, else a
    exp, log, sqrt of a
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from algonet.core import backends
from algonet.core.autograd import Operator
from algonet.relax import Relaxation

OPCODES = {"input": 0, "const": 1, "add": 2, "sub": 3, "mul": 4, "div": 5, "neg": 6, "truth": 7, "mix": 8}
OPCODES |= {"cut": 9, "select": 10, "accumulate": 11, "reciprocal": 12, "snap": 13, "clamp": 14}
OPCODES |= {"exp": 15, "log": 16, "sqrt": 17}
#: Below this share of the mass a state is of no consequence; the square of its reciprocal is finite in float32.
NEGLIGIBLE = 1e-18
#: Codes from here on are relaxations: formula k has code RELAX + k.
RELAX = 32
#: Shorter programs run operation by operation when the backend is "auto": loading a kernel is not worth it.
SHORT = 128

_FORMULAS: dict[str, Relaxation] = {}
_FUNCTIONS = {15: torch.exp, 16: torch.log, 17: torch.sqrt}


class Formulas:
    """The relaxations that a program uses: their formulas, which a kernel is made for, and every steepness they have."""

    def __init__(self):
        self.keys: list[str] = []
        self.steepness: list[float | Tensor] = []
        self._known: dict[int, tuple[int, int]] = {}
        self._held: list[Relaxation] = []

    def place(self, relax: Relaxation) -> tuple[int, int] | None:
        """(number of the formula, number of the steepness), None where kernels cannot have it."""
        known = self._known.get(id(relax))
        if known is not None:
            return known
        steepness: Any = getattr(relax, "steepness", 1.0)
        steepness = steepness if isinstance(steepness, Tensor) else float(steepness)
        if relax.scalar is None or (isinstance(steepness, Tensor) and steepness.dim() > 0):
            return None
        _FORMULAS.setdefault(relax.key, relax)
        if relax.key not in self.keys:
            self.keys.append(relax.key)
        self._held.append(relax)
        found = self.keys.index(relax.key), self._scale(steepness)
        self._known[id(relax)] = found
        return found

    def _scale(self, steepness: float | Tensor) -> int:
        for k, known in enumerate(self.steepness):
            if known is steepness or (isinstance(known, float) and isinstance(steepness, float) and known == steepness):
                return k
        self.steepness.append(steepness)
        return len(self.steepness) - 1


@dataclass(frozen=True)
class Call:
    """One evaluation, as the backends see it."""

    x: Tensor
    steepness: Tensor
    constants: Tensor
    program: Tensor
    wanted: Tensor
    keys: tuple[str, ...]

    @property
    def tensors(self) -> list[Tensor]:
        return [self.x, self.steepness, self.constants, self.program, self.wanted]


class Program(NamedTuple):
    """Recorded instructions with their constants, the formulas they use, and the backend that is to run them."""

    instructions: Tensor
    constants: Tensor
    keys: tuple[str, ...]
    backend: str

    @staticmethod
    def of(code: list[int], constants: list[float], keys: list[str], like: Tensor, backend: str) -> Program:
        """From flat lists; `like` tells the precision and the device of the numbers."""
        if backend == "auto" and len(code) < 4 * SHORT:
            backend = "reference"
        return Program(
            torch.from_numpy(np.array(code, dtype=np.int32).reshape(-1, 4)),
            torch.tensor(constants, dtype=like.dtype, device=like.device),
            tuple(keys),
            backend,
        )

    @property
    def length(self) -> int:
        return self.instructions.shape[0]

    def moved(self, tensor: Tensor) -> Tensor:
        """Instructions or row numbers where the backend reads them, for programs that run more than once."""
        return tensor if self.backend == "reference" else tensor.to(self.constants.device)


def evaluate(program: Program, inputs: list[Tensor], steepness: Tensor, wanted: Tensor, size: int) -> Tensor:
    """The wanted rows of a program as columns (size, len(wanted)); differentiable in inputs and steepness."""
    constants = program.constants
    x = inputs[0] if len(inputs) == 1 else torch.cat(inputs, dim=1) if inputs else constants.new_zeros(size, 0)
    call = Call(x, steepness, constants, program.instructions, wanted, program.keys)
    return backends.dispatch("smooth_python", program.backend, call)


def steepness_tensor(scales: list[Any], like: Tensor) -> Tensor:
    """Numbers, and tensors of one number each, as one tensor that is differentiable in the latter."""
    if not any(isinstance(s, Tensor) for s in scales):
        return torch.tensor(scales, dtype=like.dtype, device=like.device)
    return torch.stack([torch.as_tensor(s, dtype=like.dtype, device=like.device) for s in scales])


def program_reference(tensors: list[Tensor], settings: str) -> list[Tensor]:
    """The program in plain torch, row by row: slow, differentiable to any order."""
    x, steepness, constants, program, wanted = tensors
    formulas = [_FORMULAS[key] for key in settings.split()]
    columns, scales, numbers = x.unbind(-1), steepness.unbind(0), constants.unbind(0)
    rows: list[Any] = []
    for code, a, b, c in program.tolist():
        rows.append(_instruction(code, a, b, c, rows, columns, scales, numbers, formulas))
    shape = x.shape[:-1]
    return [torch.stack([rows[k].expand(shape) for k in wanted.tolist()], dim=-1)]


def _instruction(code: int, a: int, b: int, c: int, rows, columns, scales, numbers, formulas) -> Tensor:
    if code >= RELAX:
        relax = _unit(formulas[code - RELAX])
        return relax(rows[a] * scales[b])
    if code == 0:
        return columns[a]
    if code == 1:
        return numbers[a]
    if code == 8:
        return torch.addcmul((1 - rows[a]) * rows[c], rows[a], rows[b])
    if code == 6:
        return -rows[a]
    if code == 7:
        return rows[a].abs().clamp_max(1.0)
    if code == 12:
        return reciprocal(rows[a])
    if code in _FUNCTIONS:
        return _FUNCTIONS[code](rows[a])
    first, second = rows[a], rows[b]
    if code == 13:
        return snap(first, second, rows[c])
    if code == 14:
        return first.clamp(second, rows[c])
    if code == 9:
        return torch.where(first > second, first, 0.0)
    if code == 10:
        return torch.where(first > 0, second, rows[c])
    if code == 11:
        return torch.addcmul(first, second, rows[c])
    return (
        first + second
        if code == 2
        else first - second
        if code == 3
        else first * second
        if code == 4
        else first / second
    )


def reciprocal(mass: Tensor) -> Tensor:
    """1 / mass, 0 where there is nothing to share."""
    some = mass > NEGLIGIBLE
    return torch.where(some, 1 / torch.where(some, mass, 1.0), 0.0)


def snap(p: Tensor, low: Tensor | float, high: Tensor | float) -> Tensor:
    """The probability p, exactly 0 and 1 where it is nearly so."""
    return torch.where(p <= low, 0.0, torch.where(p >= high, 1.0, p))


@functools.cache
def _unit_of(key: str) -> Relaxation:
    import dataclasses

    relax = _FORMULAS[key]
    return dataclasses.replace(relax, steepness=1.0) if hasattr(relax, "steepness") else relax


def _unit(relax: Relaxation) -> Any:
    """The relaxation at steepness one: the steepness is a tensor of its own."""
    return _unit_of(relax.key)


def _no_kernel(call: Call) -> str | None:
    if call.x.dtype not in (torch.float32, torch.float64):
        return f"kernels compute in float32 and float64, and the numbers are {call.x.dtype}"
    return None


def _why_not_numba(call: Call) -> str | None:
    return backends.why_not_numba(call.x) or _no_kernel(call)


def _why_not_triton(call: Call) -> str | None:
    return backends.why_not_triton(call.x) or _no_kernel(call)


@backends.register("smooth_python", "reference")
def _run_reference(call: Call) -> Tensor:
    return program_reference(call.tensors, " ".join(call.keys))[0]


@backends.register("smooth_python", "numba", supports=_why_not_numba)
def _run_numba(call: Call) -> Tensor:
    return _operator("numba")(call.tensors, " ".join(call.keys))[0]


@backends.register("smooth_python", "triton", supports=_why_not_triton)
def _run_triton(call: Call) -> Tensor:
    return _operator("triton")(call.tensors, " ".join(call.keys))[0]


def _fake(tensors: list[Tensor], settings: str) -> tuple[list[Tensor], list[Tensor]]:
    x, wanted = tensors[0], tensors[4]
    return [x.new_empty(*x.shape[:-1], wanted.shape[0])], []


@functools.cache
def _operator(backend: str) -> Operator:
    if backend == "numba":
        from .kernels import numba_cpu as kernels
    else:
        from .kernels import triton_gpu as kernels
    return Operator(
        f"smooth_python_{backend}",
        forward=kernels.program_forward,
        backward=kernels.program_backward,
        reference=program_reference,
        fake=_fake,
        outputs=1,
        shared=frozenset({1, 2, 3, 4}),
    )


def formula(key: str) -> Relaxation:
    return _FORMULAS[key]


@backends.register_example("smooth_python")
def _example(device: str) -> Call:
    x = torch.zeros(2, 2, device=device)
    program = torch.tensor([[0, 0, 0, 0], [0, 1, 0, 0], [2, 0, 1, 0]], dtype=torch.int32)
    return Call(x, x.new_zeros(0), x.new_zeros(0), program, torch.tensor([2], dtype=torch.int32), ())

"""A recorded program as one differentiable operation: `y[..., k] = row wanted[k]` of instructions on `x[..., column]`.

The program is data: instructions (code, a, b, c), each making the next row. From one table of them the reference and all
kernels are generated. Formulas are written in codegen's dialect (`abs, exp, log, sqrt, where, minimum, maximum`) with a few
names more: `fma(a, b, c)` = a b + c; `exact_exp`, `exact_log`, `cos`, `sin`, `floor`; `uniform(a)`, the number in [0, 1) that
the call's seed, the item and the counter a give; `still(a)`, 0 with the slope of a.

A new instruction is a new row of the table. Nothing else knows what any of them computes, and none is known by a number: a
program refers to them by their place in this table, and kernels are generated with the same places.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from algonet.core import tracing
from algonet.core.identity import interned
from algonet.core.operation import Operation
from algonet.relax import Logistic, Relaxation

#: Below this share of the mass a state is of no consequence; the square of its reciprocal is finite in float32.
NEGLIGIBLE = 1e-18

ROW, COLUMN, CONSTANT, STEEPNESS, COUNTER = "row", "column", "constant", "steepness", "counter"
#: The operands, and what kernels call their numbers.
PLACES = {"a": "first", "b": "second", "c": "third"}
#: Where the reference finds each operand; a counter is the number itself.
_LOADS = {ROW: "rows[{}]", COLUMN: "columns[{}]", CONSTANT: "constants[{}]", COUNTER: "{}"}


def _fma(a: Tensor, b: Tensor, c: Tensor) -> Tensor:
    return torch.addcmul(c, a, b) if a.dtype == b.dtype == c.dtype else a * b + c


def _still(x: Tensor) -> Tensor:
    return x - x.detach()


#: The names of the formulas, in torch's terms.
TORCH_NAMES = {
    name: getattr(torch, name) for name in ("abs", "sqrt", "where", "cos", "sin", "floor", "minimum", "maximum")
}
TORCH_NAMES |= {"exp": torch.exp, "log": torch.log, "exact_exp": torch.exp, "exact_log": torch.log}
TORCH_NAMES |= {"fma": _fma, "still": _still}


# eq=False: the table is part of a key in every call, and an instruction is no other one with the same formulas
@dataclass(frozen=True, eq=False)
class Instruction:
    """y = value(a, b, c). `operands` says where each comes from: an earlier row of the program, a column of its input, one of
    its constants, one of its steepnesses, or the number itself. Rows come first."""

    name: str
    value: str
    slopes: tuple[str, ...] = ()
    operands: tuple[str, ...] = ()
    #: What both formulas need first.
    before: str = ""
    #: The value in plain torch: step(uniform, rows, columns, constants, a, b, c), by the numbers of its operands.
    step: Callable[..., Tensor] = field(init=False, repr=False)

    def __post_init__(self):
        if self.before:
            return
        loads = [f"{name} = {_LOADS[kind].format(name)}; " for name, kind, _ in self.sources]
        scope: dict[str, Any] = dict(TORCH_NAMES)
        exec(f"def step(uniform, rows, columns, constants, a, b, c): {''.join(loads)}return {self.value}", scope)
        object.__setattr__(self, "step", scope["step"])

    @property
    def sources(self) -> list[tuple[str, str, str]]:
        """Of each operand its name, where it comes from, and what kernels call its number in the instruction."""
        return [(name, kind, place) for (name, place), kind in zip(PLACES.items(), self.operands, strict=False)]

    def drawn(self, formula: str, draw: str) -> str:
        """The formula with a kernel's own words for its random numbers."""
        for name, kind, place in self.sources:
            if kind == COUNTER:
                formula = formula.replace(f"uniform({name})", draw.format(place=place))
        return formula

    @property
    def rows(self) -> int:
        return sum(kind == ROW for kind in self.operands)


def _rows(name: str, value: str, *slopes: str) -> Instruction:
    """An instruction on rows, as many as it has slopes."""
    return Instruction(name, value, slopes, (ROW,) * len(slopes))


#: No gradient: `slopes` has one entry for each operand.
NONE = ""
_INSTRUCTIONS = (
    Instruction("input", "a", ("s",), (COLUMN,)),
    Instruction("const", "a", (NONE,), (CONSTANT,)),
    _rows("add", "a + b", "s", "s"),
    _rows("sub", "a - b", "s", "-s"),
    _rows("mul", "a * b", "s * b", "s * a"),
    _rows("truediv", "a / b", "s / b", "-(s / b) * y"),
    _rows("neg", "-a", "-s"),
    _rows("mix", "fma(a, b, (1.0 - a) * c)", "s * (b - c)", "s * a", "s * (1.0 - a)"),
    _rows("select", "where(a > 0.0, b, c)", NONE, "where(a > 0.0, s, 0.0)", "where(a > 0.0, 0.0, s)"),
    # The mean over a coin that shows b with probability a: who is certain does not look at the other way, whatever is there
    _rows(
        "expect",
        "where(a <= 0.0, c, where(a >= 1.0, b, fma(a, b, (1.0 - a) * c)))",
        "where((a <= 0.0) | (a >= 1.0), 0.0, s * (b - c))",
        "where(a <= 0.0, 0.0, where(a >= 1.0, s, s * a))",
        "where(a >= 1.0, 0.0, where(a <= 0.0, s, s * (1.0 - a)))",
    ),
    _rows("accumulate", "fma(b, c, a)", "s", "s * c", "s * b"),
    _rows(
        "truth",
        "where(abs(a) > 1.0, 1.0, abs(a))",
        "where(abs(a) > 1.0, 0.0, where(a > 0.0, s, where(a < 0.0, -s, 0.0)))",
    ),
    _rows("cut", "where(a > b, a, 0.0)", "where(a > b, s, 0.0)", NONE),
    _rows(
        "snap",
        "where(a <= b, 0.0, where(a >= c, 1.0, a))",
        "where((a <= b) | (a >= c), 0.0, s)",
        NONE,
        NONE,
    ),
    _rows(
        "clamp",
        # As torch has it where the bounds cross: the upper one
        "where((a > c) | ((b > c) & (a == a)), c, where(a < b, b, a))",
        "where((a >= b) & (a <= c), s, 0.0)",
        "where((a < b) & (b <= c), s, 0.0)",
        "where((a > c) | (b > c), s, 0.0)",
    ),
    _rows(
        "reciprocal",
        f"where(a > {NEGLIGIBLE:.1e}, 1.0 / where(a > {NEGLIGIBLE:.1e}, a, 1.0), 0.0)",
        "-s * y * y",
    ),
    _rows("exp", "exact_exp(a)", "s * y"),
    _rows("log", "exact_log(a)", "s / a"),
    _rows("sqrt", "sqrt(a)", "s / (y + y)"),
    _rows("cos", "cos(a)", "-s * sin(a)"),
    _rows("floor", "floor(a)", NONE),
    # A random number, a coin that shows 1 with probability a, and the logarithm of the probability of what coins showed:
    # a before this one, whose probability was b and which showed c. Nobody asks for more than its slopes
    Instruction("uniform", "uniform(a)", (NONE,), (COUNTER,)),
    Instruction("coin", "where(uniform(b) < a, 1.0, 0.0)", (NONE, NONE), (ROW, COUNTER)),
    _rows(
        "tally",
        "a + still(log(where(c > 0.0, b, 1.0 - b)))",
        "s",
        "s / where(c > 0.0, b, b - 1.0)",
        NONE,
    ),
)
TABLE: dict[str, Instruction] = {instruction.name: instruction for instruction in _INSTRUCTIONS}


def relaxation(number: int) -> Instruction:
    """The instruction of a program's relaxation with that number: its curve at steepness b times a."""
    return Instruction(
        f"relaxation {number}",
        # Outside of its curve's own comparisons a formula may answer a number that is none by a number
        "where(a == a, curve, a)",
        ("s * slope * b", "s * slope * a"),
        (ROW, STEEPNESS),
        f"curve, slope = formula{number}(b * a)",
    )


def code_of(name: str) -> int:
    """The place of an instruction in the table."""
    return list(TABLE).index(name)


def with_relaxations(count: int) -> list[Instruction]:
    """All instructions of programs with so many relaxations, in the order of their codes."""
    return [*TABLE.values(), *(relaxation(k) for k in range(count))]


#: Shorter programs run operation by operation when the backend is "auto": loading a kernel is not worth it, until so many
#: instructions of one have run that it would have been.
SHORT, REPAID = 128, 2**15


@dataclass(frozen=True)
class ProgramSettings:
    """The relaxations that a program uses, in the order of their numbers, without their steepness."""

    formulas: tuple[Relaxation, ...]


class Formulas:
    """The relaxations that a program uses: their formulas, which a kernel is made for, and every steepness they have."""

    def __init__(self):
        #: Each with its number. Tensors are equal to themselves alone: no other one has the same hash.
        self.relaxations: dict[Relaxation, int] = {}
        self.steepness: dict[float | Tensor, int] = {}
        # With the relaxations themselves: while they are held, no others have their ids
        self._places: dict[int, tuple[Relaxation, tuple[int, int] | None]] = {}

    def place(self, relax: Relaxation) -> tuple[int, int] | None:
        """(number of the formula, number of the steepness), None where kernels cannot have it."""
        if id(relax) not in self._places:
            steepness: Any = getattr(relax, "steepness", 1.0)
            steepness = steepness if isinstance(steepness, Tensor) else float(steepness)
            found = None
            if relax.scalar is not None and not (isinstance(steepness, Tensor) and steepness.dim()):
                formula = self.relaxations.setdefault(interned(relax), len(self.relaxations))
                found = formula, self.steepness.setdefault(steepness, len(self.steepness))
            self._places[id(relax)] = relax, found
        return self._places[id(relax)][1]

    @property
    def settings(self) -> ProgramSettings:
        return ProgramSettings(tuple(self.relaxations))


class Program(NamedTuple):
    """Recorded instructions with their constants, the relaxations they use, and the backend that is to run them.

    `asked` is the backend that was asked for, which is another one for short programs.
    """

    instructions: Tensor
    constants: Tensor
    settings: ProgramSettings
    backend: str
    asked: str

    @staticmethod
    def of(
        code: Iterable[Any], constants: Iterable[float], settings: ProgramSettings, like: Tensor, backend: str
    ) -> Program:
        """From its instructions and constants; `like` tells the precision and the device of the numbers."""
        rows = np.array([*code], dtype=np.int32).reshape(-1, 4)
        short = backend == "auto" and len(rows) < SHORT
        return Program(
            torch.from_numpy(rows),
            torch.tensor([*constants], dtype=like.dtype, device=like.device),
            settings,
            "reference" if short else backend,
            backend,
        )


def evaluate(
    program: Program, inputs: list[Tensor], steepness: Tensor, wanted: Tensor, size: int, seed: Tensor | None = None
) -> Tensor:
    """The wanted rows of a program as columns (size, len(wanted)); differentiable in inputs and steepness."""
    constants = program.constants
    x = inputs[0] if len(inputs) == 1 else torch.cat(inputs, dim=1) if inputs else constants.new_zeros(size, 0)
    seed = torch.zeros(2, dtype=torch.int64, device=x.device) if seed is None else seed
    tensors = [x, steepness, constants, program.instructions, wanted, seed]
    return PROGRAM(tensors, program.settings, program.backend)[0]


def steepness_tensor(scales: list[Any], like: Tensor) -> Tensor:
    """Numbers, and tensors of one number each, as one tensor that is differentiable in the latter."""
    if not any(isinstance(s, Tensor) for s in scales):
        return torch.tensor(scales, dtype=like.dtype, device=like.device)
    return torch.stack([torch.as_tensor(s, dtype=like.dtype, device=like.device) for s in scales])


def _example(device: str) -> tuple[list[Tensor], ProgramSettings]:
    x = torch.zeros(2, 2, device=device)
    first, second = code_of("input"), code_of("add")
    program = torch.tensor([[first, 0, 0, 0], [first, 1, 0, 0], [second, 0, 1, 0]], dtype=torch.int32)
    wanted = torch.tensor([2], dtype=torch.int32)
    return [x, x.new_zeros(0), x.new_zeros(0), program, wanted, torch.zeros(2, dtype=torch.int64)], ProgramSettings(())


_MASK = 0xFFFFFFFF


def uniform(seed: Tensor, item: Tensor, counter: int) -> Tensor:
    """Numbers in [0, 1) from the seed, the items and a counter: integers are mixed by 32-bit multiplications and shifts."""
    low, high = seed.to(item.device).unbind()
    mixed = _mixed((item & _MASK) ^ low)
    mixed = _mixed((mixed + ((counter * 0x9E3779B9) & _MASK) & _MASK) ^ high)
    return (mixed >> 8).double() * 2.0**-24


def _mixed(h: Tensor) -> Tensor:
    h = ((h ^ (h >> 16)) * 0x85EBCA6B) & _MASK
    h = ((h ^ (h >> 13)) * 0xC2B2AE35) & _MASK
    return h ^ (h >> 16)


class Draws:
    """The random numbers of one run: a seed, made when the first one is drawn, and how many were drawn since."""

    def __init__(self, generator: torch.Generator | None = None):
        self._generator = generator
        self._seed: Tensor | None = None
        self._counter = 0

    @property
    def seed(self) -> Tensor:
        """Two numbers of 32 bits, from the generator or torch's own."""
        if self._seed is None:
            generator = self._generator
            device = "cpu" if generator is None else generator.device
            self._seed = torch.randint(0, 2**32, (2,), generator=generator, device=device).cpu()
        return self._seed

    def count(self) -> int:
        self._counter += 1
        return self._counter

    def restart(self) -> None:
        """The same numbers once more."""
        self._counter = 0

    def uniform(self, shape: torch.Size, like: Tensor) -> Tensor:
        """What the instruction `uniform` draws, for numbers that are not recorded."""
        items = torch.arange(shape.numel(), device=like.device).reshape(shape)
        dtype = like.dtype if like.is_floating_point() else torch.get_default_dtype()
        return uniform(self.seed, items, self.count()).to(dtype)


class _Finite(torch.autograd.Function):
    """The tensor as it is; where its gradient is not a number though the tensor is one, there is none.

    A branch that an item does not take has gradient 0 there, and 0 times an infinite slope is what it would be given else.
    Kernels skip gradients that are 0.
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor) -> Tensor:
        return x.view_as(x)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor], output: Tensor) -> None:
        ctx.save_for_backward(inputs[0])

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        (x,) = ctx.saved_tensors
        return torch.where(gradient.isnan() & ~x.isnan(), 0.0, gradient)

    @staticmethod
    def jvp(ctx: Any, tangent: Tensor) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        return tangent.view_as(tangent)


def guarded(x: Tensor) -> Tensor:
    """x, whose gradient is a number if x is: for operands where one of two states is chosen whatever the other is."""
    if not tracing.transforming() and not tracing.differentiating((x,)):
        return x
    return x if tracing.compiling() else _Finite.apply(x)  # pyright: ignore[reportReturnType]


def relaxed(relax: Any, x: Tensor) -> Tensor:
    """A relaxation of a tensor."""
    if type(relax) is Logistic and x.dtype in (torch.float32, torch.float64):
        # The same numbers as relax(x) without its clamp: the logistic is flat at infinity anyway
        return torch.sigmoid(x * relax.steepness)
    return relax(x)


#: Instructions that take one of two numbers, or draw which.
_CHOOSING = frozenset(map(code_of, ("select", "coin")))


class _Guarded(list[Tensor]):
    """Rows whose gradient is a number if they are."""

    def __getitem__(self, k: Any) -> Any:
        return guarded(super().__getitem__(k))


def run_program(tensors: Sequence[Tensor], settings: Any) -> list[Tensor]:
    """y[..., k] = row wanted[k] of the instructions on x[..., column]."""
    x, steepness, constants, program, wanted, seed = tensors
    shape, dtype = x.shape[:-1], x.dtype

    def draw(counter: int) -> Tensor:
        items = torch.arange(shape.numel(), device=x.device).reshape(shape)
        return uniform(seed, items, counter).to(dtype)

    listed, steps = program.tolist(), [*TABLE.values()]
    columns, numbers, scales = x.unbind(-1), constants.unbind(0), steepness.unbind(0)
    rows: list[Tensor] = [] if _CHOOSING.isdisjoint([code for code, _, _, _ in listed]) else _Guarded()
    for code, a, b, c in listed:
        if code >= len(steps):
            y = relaxed(settings.formulas[code - len(steps)], rows[a] * scales[b])
        else:
            y = steps[code].step(draw, rows, columns, numbers, a, b, c)
        # A choice between two constants has torch's own precision
        rows.append(y if y.dtype == dtype else y.to(dtype))
    found = list(rows)
    return [torch.stack([found[k].expand(shape) for k in wanted.tolist()], dim=-1)]


#: x (*batch, columns), steepness (number of scales), constants, program (instructions, 4), wanted (rows) and seed (2) give
#: y (*batch, rows).
PROGRAM = Operation(
    "smooth_program",
    settings=ProgramSettings,
    inputs=("x", "steepness", "constants", "program", "wanted", "seed"),
    reference=run_program,
    kernels={"numba": ".kernels.numba", "triton": ".kernels.triton"},
    shared={"steepness", "constants", "program", "wanted", "seed"},
    hosted={"program", "wanted", "seed"},
    fake=lambda tensors, settings: [tensors[0].new_empty(*tensors[0].shape[:-1], tensors[4].shape[0])],
    example=_example,
)

"""Running WHILE-programs smoothly: `run_while` validates, dispatches to a backend and returns."""

from __future__ import annotations

import functools
import numbers
import re
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from algonet.core import tracing
from algonet.core.checks import as_tensor, broadcast_shapes, check_integer
from algonet.core.hints import write_instead
from algonet.core.identity import PLANS, interned, signature
from algonet.relax import EXITS, Exit, Sech

from .code import Code, flatten
from .goto import read_source
from .operation import RUN_WHILE, WhileSettings
from .reference import run_reference
from .syntax import NonHaltingWarning, Program

#: A loop is left at this probability of going on, and cut off after so many iterations.
EPSILON, MAX_ITERATIONS = 1e-6, 1000


class WhileResult(NamedTuple):
    """The outcome of a smooth run; every tensor has the broadcast shape of the inputs.

    `outputs` (differentiable) by variable name. `remaining`: the probability of going on that a loop still had when it
    reached `max_iterations`, the largest over all loops; 0 where all halted. `iterations`: loop bodies run, over all loops.
    """

    outputs: dict[str, Tensor]
    remaining: Tensor
    iterations: Tensor


@dataclass(frozen=True)
class Prepared:
    """A program ready to run smoothly: flat code, checked settings. Equal ones share what was found out about their calls.

    `known` are the variables a user may set and read.
    """

    code: Code
    outputs: tuple[str, ...]
    known: tuple[str, ...]
    epsilon: float
    max_iterations: int
    trainable: bool
    by_counter: bool

    def __hash__(self) -> int:
        return hash(self.code.text)


def prepare(
    program: Program | str,
    *,
    outputs: Sequence[str] = ("x0",),
    epsilon: float = EPSILON,
    max_iterations: int = MAX_ITERATIONS,
    trainable: bool = False,
) -> Prepared:
    """Parse, check and flatten a program for smooth runs."""
    parsed = read_source(program)
    known = tuple(f"x{number}" for number in parsed.variables)
    if isinstance(outputs, str) or not outputs:
        raise ValueError(f'run_while: `outputs` must be a sequence of names such as ("x0",), got {outputs!r}.')
    check_names("run_while", "output", outputs, known)
    if isinstance(epsilon, bool) or not isinstance(epsilon, (int, float)) or not 0 <= epsilon < 1:
        raise ValueError(f"run_while: `epsilon` must lie in [0, 1), got {epsilon!r}.")
    check_integer("run_while", "max_iterations", max_iterations, 1, 2**31 - 1)
    code = flatten(parsed, merge=not trainable)
    return Prepared(code, tuple(outputs), known, float(epsilon), max_iterations, trainable, parsed.by_counter)


def run_while(
    program: Program | str,
    inputs: Mapping[str, Tensor | float],
    *,
    exit: Exit = Sech(),
    outputs: Sequence[str] = ("x0",),
    epsilon: float = EPSILON,
    max_iterations: int = MAX_ITERATIONS,
    backend: str = "auto",
) -> WhileResult:
    """Run a WHILE-program smoothly: each statement changes its variable by the share of its probability.

    A loop over v, reached with probability p, repeats { p := p phi(v); stop if p <= epsilon; run the body with p }, at most
    `max_iterations` times. `y := x` is y := p x + (1-p) y; `y := y + 1` is y := y + p. Hard limit: with `Tent`,
    `SmoothTent(k)` or `BumpExit` and integer inputs the result is the discrete program's, exactly (up to 2^24 in float32).

    `inputs` maps variable names to tensors of broadcastable shapes or numbers. Differentiable as often as the exit is
    (apart from the cut at epsilon). With `Tent` an integer is a corner: its gradient is the slope on the side of 0 (at 0, the
    slope above), to about 1e-3, for one run more per input. Kernels give the first derivative, higher ones run the reference.
    Memory is that of inputs and outputs (each output's derivative in each input is kept for backward). Warns with
    `NonHaltingWarning` where a loop is cut off. The paper's "Smooth WHILE-Programs".

    >>> result = run_while("WHILE x1 != 0 DO x0 := x0 + 2 x1 := x1 - 1 END", {"x1": torch.tensor([3.0, 2.5])})
    >>> result.outputs["x0"]
    tensor([5.6327, 4.6591])
    """
    prepared = prepare(program, outputs=outputs, epsilon=epsilon, max_iterations=max_iterations)
    return as_result(prepared, *execute(prepared, inputs, exit=exit, backend=backend))


def execute(
    prepared: Prepared,
    inputs: Mapping[str, Tensor | float],
    *,
    exit: Exit,
    softness: Any = None,
    parameters: tuple[Tensor, Tensor] | None = None,
    watched: bool = True,
    backend: str = "auto",
    **network: Any,
) -> tuple[Tensor, Tensor | None]:
    """Values, and if `watched` the diagnostics (*batch, 3): probability left, bodies run, number of the cut loop.

    Values are (*batch) for one output, (*batch, outputs) for several. `softness` takes the place of the exit's own.
    `parameters` are a trainable program's weights and biases. `network` is what the reference takes besides:
    `make_gates(like)`, the extent to which each assignment is made, or the `body` of a network.
    """
    for value in inputs.values():
        if hasattr(value, "__array__") and not isinstance(value, Tensor):
            inputs = {name: as_tensor(given) for name, given in inputs.items()}
            break
    if softness is None:
        softness = getattr(exit, getattr(exit, "softness_field", None) or "", None)
    given = softness if isinstance(softness, Tensor) else None
    key = signature(prepared, (*inputs,), watched, backend, exit, given, *(parameters or ()), *inputs.values())
    run = None if key is None else PLANS.find(key)
    if run is None:
        run = _Run(prepared, inputs, exit, softness, parameters, watched, backend)
        if key is not None:
            PLANS.put(key, run)
    return run(inputs, softness, parameters, **network)


class _Run:
    """Smooth runs of one signature: what their checks found, and what is left to do with their tensors."""

    def __init__(
        self,
        prepared: Prepared,
        inputs: Mapping[str, Tensor | float],
        exit: Exit,
        softness: Any,
        parameters: tuple[Tensor, Tensor] | None,
        watched: bool,
        backend: str,
    ):
        check_exit("run_while", exit)
        names, elements, self.dtype = checked_inputs(prepared, inputs)
        if isinstance(softness, Tensor) and softness.dim():
            raise ValueError(
                f"run_while: the steepness must be one number for all elements, got a tensor of shape {tuple(softness.shape)}; "
                "torch.vmap runs a program with several."
            )
        like = elements[0] if elements else torch.empty((), dtype=self.dtype) if parameters is None else parameters[0]
        self.wide, self.device, self.backend, self.watched = like.dtype, like.device, backend, watched
        self.shape = _broadcast_shape(names, elements)
        kind = self.wide, self.device, self.shape
        given = ((name, inputs[name]) for name in names)
        self.names = [(n, isinstance(x, Tensor) and (x.dtype, x.device, x.shape) == kind) for n, x in given]
        self.by_counter = prepared.by_counter
        self.one_sided = exit.smoothness < 1
        slots = prepared.code.slots
        self.settings = WhileSettings(
            prepared.code.text,
            interned(exit),
            tuple([slots[name] for name in names]),
            tuple([slots[name] for name in prepared.outputs]),
            prepared.epsilon,
            prepared.max_iterations,
            prepared.trainable,
            watched,
        )
        self.run: Callable[..., Any] | None = None

    def __call__(
        self,
        inputs: Mapping[str, Tensor | float],
        softness: Any,
        parameters: tuple[Tensor, Tensor] | None,
        make_gates: Callable[[Tensor], Tensor] | None = None,
        body: nn.Module | None = None,
    ) -> tuple[Tensor, Tensor | None]:
        if self.by_counter and not tracing.compiling():
            _warn_by_counter()
        kind = self.wide, self.device
        elements: list[Any] = []
        for name, fits in self.names:
            elements.append(inputs[name] if fits else _fitted(inputs[name], *kind, self.shape))
        scalar = 1.0 if softness is None else softness
        if not isinstance(scalar, Tensor) or scalar.dtype != self.wide or scalar.device != self.device:
            scalar = _fitted(scalar, *kind)
        shared = [scalar, scalar, scalar]
        if parameters is not None:
            shared[1:] = [p.to(self.device, self.wide) for p in parameters]
        tensors = *shared, *elements
        gates = None if make_gates is None else make_gates(elements[0])
        beside = gates is not None or body is not None
        if beside:
            values, *diagnostics = run_reference(tensors, self.settings, gates, body)
        else:
            self.run = self.run or RUN_WHILE.bind(tensors, self.settings, self.backend)
            values, *diagnostics = self.run(tensors)
        if self.one_sided:

            def run(tensors: Sequence[Tensor], free: bool) -> Tensor:
                if not beside:
                    return RUN_WHILE(tensors, self.settings, self.backend)[0]
                held = gates if free or gates is None else gates.detach()
                return run_reference(tensors, self.settings, held, body if free else None)[0]

            values = _one_sided(values, run, shared, elements, self.settings.epsilon)
        values = values if values.dtype == self.dtype else values.to(self.dtype)
        return values, diagnostics[0].detach() if self.watched else None


def _fitted(value: Any, dtype: torch.dtype, device: torch.device, shape: Sequence[int] = ()) -> Tensor:
    if isinstance(value, Tensor):
        return value.to(device, dtype).expand(shape or value.shape)
    return torch.full(shape, float(value), dtype=dtype, device=device)


def _warn_by_counter() -> None:
    warnings.warn(
        "the jumps of this machine do not nest (a loop with two ways out, as a rule), so that it runs by a counter: its "
        "values are right on integers with an exact exit such as Tent() only. Write it with WHILE and IF for the reals.",
        NonHaltingWarning,
        stacklevel=5,
    )


def _one_sided(
    values: Tensor,
    run: Callable[[list[Tensor], bool], Tensor],
    shared: list[Tensor],
    elements: list[Tensor],
    epsilon: float,
) -> Tensor:
    """`values`, with the gradients of an exit that has corners on integers, where those of `values` mix both sides.

    The gradient in an input is that of a run in which it alone is a step off an integer, towards 0 (from 0: up). Gradients by
    what all elements share, and by what `run` holds if it is told to be free, are wanted of the first such run alone.
    """
    moving = [i for i, t in enumerate(elements) if t.requires_grad or tracing.transforming()]
    if not torch.is_grad_enabled() or not (moving or any(t.requires_grad for t in shared)):
        return values
    if tracing.readable(*elements) and not any(bool((t == t.round()).any()) for t in elements):
        return values
    # A loop that is entered with the probability of a step must not be left at once
    step = max(10 * epsilon, torch.finfo(elements[0].dtype).eps ** 0.5)
    beside = [torch.where(t == t.round(), torch.where(t > 0, t - step, t + step), t) for t in elements]
    fixed, result = [t.detach() for t in elements], values.detach()
    for count, i in enumerate(moving or range(min(1, len(elements)))):
        found = run([*shared, *fixed[:i], beside[i], *fixed[i + 1 :]], count == 0)
        result, shared = result + (found - found.detach()), [t.detach() for t in shared]
    return result


def check_names(where: str, kind: str, names: Iterable[str], known: tuple[str, ...]) -> None:
    for name in names:
        if name not in known:
            hint = "" if re.fullmatch(r"x\d+", str(name)) else "; inputs are named x0, x1, ..."
            listed = ", ".join(known)
            raise ValueError(f"{where}: unknown {kind} {name!r}; the program's variables are {listed}{hint}.")


def check_exit(where: str, exit: Any) -> None:
    if not isinstance(exit, Exit):
        instead = write_instead("exit", exit, EXITS, number="Sech")
        raise TypeError(f"{where}: `exit` must be an exit such as Sech(2.0) or Tent(), got {exit!r}{instead}.")


def as_result(prepared: Prepared, values: Tensor, diagnostics: Tensor | None) -> WhileResult:
    assert diagnostics is not None
    warn_if_cut(prepared, diagnostics, 4)
    outputs = (values,) if len(prepared.outputs) == 1 else values.unbind(-1)
    remaining, iterations, _ = diagnostics.unbind(-1)
    return WhileResult(dict(zip(prepared.outputs, outputs, strict=True)), remaining, iterations.to(torch.int64))


def warn_if_cut(prepared: Prepared, diagnostics: Tensor, level: int = 3) -> None:
    """One warning if any element ran into `max_iterations`. Reads values: on a GPU this waits for the kernel."""
    if tracing.compiling() or tracing.interpreter() is not None or diagnostics.numel() == 0:
        return
    left, where = diagnostics[..., 0].reshape(-1).max(0)
    if float(left) > 0:
        loop = int(diagnostics.reshape(-1, 3)[where, 2])
        line = prepared.code.lines[prepared.code.loops[loop]]
        share = float((diagnostics[..., 0] > 0).float().mean())
        warnings.warn(
            f"the loop at line {line} was cut off at max_iterations={prepared.max_iterations} with probability "
            f"{float(left):.3g} left to go on (in {share:.1%} of the elements); raise max_iterations, or see whether the "
            f"program halts there.",
            NonHaltingWarning,
            stacklevel=level,
        )


def checked_inputs(
    prepared: Prepared, inputs: Mapping[str, Tensor | float]
) -> tuple[tuple[str, ...], list[Tensor], torch.dtype]:
    """Names in slot order, their tensors in the precision to compute in, and the precision of the result."""
    names = tuple(name for name in prepared.known if name in inputs)
    check_names("run_while", "variable", inputs, prepared.known)
    given: list[Any] = [inputs[name] for name in names]
    for name, value in zip(names, given, strict=True):
        if isinstance(value, Tensor):
            if not value.is_floating_point():
                raise TypeError(
                    f"run_while: `{name}` must be a floating tensor, got {value.dtype}; call .float() first."
                )
        elif isinstance(value, bool) or not isinstance(value, numbers.Real):
            raise TypeError(
                f"run_while: `{name}` must be a floating tensor or a number, got {type(value).__name__}; "
                "wrap lists in torch.tensor(...)."
            )
    tensors = [value for value in given if isinstance(value, Tensor)] or [torch.empty((), device="cpu")]
    device, *strangers = dict.fromkeys(t.device for t in tensors)
    if strangers:
        raise ValueError(
            f"run_while: inputs must share a device, got {device} and {strangers[0]}; move one with .to()."
        )
    dtype = functools.reduce(torch.promote_types, [t.dtype for t in tensors])
    wide = torch.float32 if dtype in (torch.float16, torch.bfloat16) else dtype
    return names, [_fitted(value, wide, device) for value in given], dtype


def _broadcast_shape(names: tuple[str, ...], elements: list[Tensor]) -> torch.Size:
    try:
        return broadcast_shapes(*[t.shape for t in elements])
    except RuntimeError:
        shapes = ", ".join(f"{name} {tuple(t.shape)}" for name, t in zip(names, elements, strict=True))
        raise ValueError(f"run_while: inputs must broadcast together, got {shapes}.") from None

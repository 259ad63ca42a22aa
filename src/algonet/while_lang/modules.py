"""`WhileProgram`: a WHILE-program as a layer."""

from __future__ import annotations

import copy
import itertools
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import torch
from torch import Tensor, nn

from algonet.core import tracing
from algonet.relax import Exit, Sech, SoftModule
from algonet.relax.modules import MAIN, departure

from .code import desugar, run_crisp
from .functional import (
    EPSILON,
    MAX_ITERATIONS,
    WhileResult,
    as_result,
    check_exit,
    check_names,
    execute,
    prepare,
    warn_if_cut,
)
from .goto import read_source
from .python import read_python
from .reference import Unit, assignment_text, build
from .syntax import NonHaltingWarning, Program, load_program

#: Up to here `Sech` was seen to halt on the multiplication program off the integers; at 4 it overshoots zero.
HALTING_STEEPNESS = 3.0
#: Library programs that are given x1 alone; others are given x1 and x2. Further variables are theirs to count with.
_OF_ONE_INPUT = ("factorial", "primality")


class DiscreteFit(NamedTuple):
    """Mean errors against the discrete program, (before, after): on the inputs fitted to, and on those held out.

    `inside` and `outside` are (before, after); `outside` is `None` where nothing was held out. `print` says which part of the
    error is gone.
    """

    inside: tuple[float, float]
    outside: tuple[float, float] | None = None

    def __str__(self) -> str:
        rows = [("fitted", self.inside), ("held out", self.outside)]
        return "\n".join(
            f"{name:9} mean error {pair[0]:.3g} -> {pair[1]:.3g}, {1 - pair[1] / max(pair[0], 1e-30):.0%} of it gone"
            for name, pair in rows
            if pair is not None
        )


class WhileProgram(SoftModule):
    """A program of the WHILE-language, run smoothly: `program(x1=a, x2=b)` gives a tensor per output.

    `source` is WHILE or GOTO source, or a parsed `Program`. Inputs are tensors of any broadcastable shapes, named or in
    the order of `inputs`, which is x1, x2, ... unless you say so; variables that are not given start at 0. See `run_while`
    for the semantics, `exit`, `epsilon` and `max_iterations`. A steepness is a buffer, or a parameter where the exit was
    made with an `nn.Parameter`. `name` is for its repr.

    As a layer, `Insert(program)`, its inputs are features and so are its outputs.

    `trainable=True` gives each assignment of the core program a weight and a bias: y := p (w value + b) + (1-p) y, where
    value is what the statement would assign. They start at 1 and 0; `regularization()` pulls them back there.

    A loop that is cut off at `max_iterations` warns. On the CPU every call checks; on other devices, where reading the
    result would wait for the kernel, only `run` does.

    >>> from algonet.relax import Tent
    >>> program = WhileProgram.library("multiply", exit=Tent())
    >>> program(x1=torch.tensor([3.0, 2.5]), x2=torch.tensor([4.0, 4.0]))
    tensor([12., 10.])
    >>> program.crisp(x1=3, x2=4)
    12
    """

    def __init__(
        self,
        source: Program | str,
        exit: Exit = Sech(),
        *,
        epsilon: float = EPSILON,
        max_iterations: int = MAX_ITERATIONS,
        inputs: Sequence[str] | None = None,
        outputs: Sequence[str] = ("x0",),
        trainable: bool = False,
        backend: str = "auto",
        name: str | None = None,
    ):
        check_exit("WhileProgram", exit)
        super().__init__(exit)
        self.program = read_source(source)
        self._prepared = prepare(
            self.program, outputs=outputs, epsilon=epsilon, max_iterations=max_iterations, trainable=trainable
        )
        self.backend, self.name = backend, name
        self._inputs = None if inputs is None else tuple(inputs)
        if isinstance(inputs, str) or (inputs is not None and not 0 < len(inputs) == len(set(inputs))):
            raise ValueError(f'WhileProgram: `inputs` must be different names such as ("x1", "x2"), got {inputs!r}.')
        check_names("WhileProgram", "input", inputs or (), self._prepared.known)
        self.weight: nn.Parameter | None
        self.bias: nn.Parameter | None
        count = len(self._prepared.code.assignments)
        self.register_parameter("weight", nn.Parameter(torch.ones(count)) if trainable else None)
        self.register_parameter("bias", nn.Parameter(torch.zeros(count)) if trainable else None)
        _warn_if_steep(exit)

    @classmethod
    def library(cls, name: str, exit: Exit = Sech(), **options: Any) -> WhileProgram:
        """A program that ships with the package; see `load_program` for the names."""
        inputs = ("x1",) if name in _OF_ONE_INPUT else ("x1", "x2")
        return cls(load_program(name), exit, **{"name": name, "inputs": inputs, **options})

    @classmethod
    def from_python(cls, function: Callable[..., Any], exit: Exit = Sech(), **options: Any) -> WhileProgram:
        """The program that computes what a Python function does on natural numbers; its parameters are x1, x2, ...

        Functions assign, use + - *, comparisons, `and`, `or`, `not`, `if`, `while` and `for i in range(...)`, and call other
        such functions. They return a number, or a tuple of them, which are several outputs. A difference below 0 is not
        natural: it counts forever.

        >>> from algonet.relax import Tent
        >>> def triangle(n):
        ...     total = 0
        ...     for i in range(n):
        ...         total += i
        ...     return total
        >>> program = WhileProgram.from_python(triangle, Tent())
        >>> program.crisp(x1=5), program(torch.tensor(5.0)).item()
        (10, 10.0)
        """
        program, inputs, outputs = read_python(function)
        given = {"name": function.__name__, "inputs": inputs or None, "outputs": outputs}
        return cls(program, exit, **{**given, **options})

    #: Several outputs are a tuple; it is taken apart as a tensor is.
    if TYPE_CHECKING:
        __call__: Callable[..., Tensor]

    def forward(self, *positional: Tensor, **inputs: Tensor | float) -> Tensor | tuple[Tensor, ...]:
        """The output, or a tuple of them where several were asked for."""
        # Looking at the diagnostics waits for the device, so a plain call asks for them on the CPU only
        watched = not tracing.compiling()
        given: Any
        for given in (*positional, *inputs.values()):
            if isinstance(given, Tensor):
                watched = watched and given.device.type == "cpu"
                break
        values, diagnostics = self._execute(positional, inputs, watched)
        if diagnostics is not None:
            warn_if_cut(self._prepared, diagnostics)
        return values if len(self._prepared.outputs) == 1 else values.unbind(-1)

    def run(self, *positional: Tensor, **inputs: Tensor | float) -> WhileResult:
        """Outputs by name, the probability that had not halted, and the number of loop bodies run."""
        return as_result(self._prepared, *self._execute(positional, inputs, True))

    def run_gated(
        self,
        make_gates: Callable[[tuple[int, ...], list[str], Tensor], Tensor],
        *positional: Tensor,
        **inputs: Tensor | float,
    ) -> Tensor | tuple[Tensor, ...]:
        """What a call gives if each assignment is made to the extent of its gate: y := (1 - g p) y + g p value.

        `make_gates(batch, labels, like)` gives them, (*batch, assignments); `labels` say which assignment each is. Runs the
        reference. Gates of 1 change nothing; the gradient in them is what `explain.sensitivity(inside=True)` measures.
        """
        given = named_inputs("WhileProgram", self.inputs, positional, inputs)
        if not given:
            raise ValueError("run_gated: give at least one input.")
        code = self._prepared.code
        # Each assignment of the core program by its source line and what it does
        labels = [f"line {code.lines[index]}: {assignment_text(code, index)}" for index in code.assignments]
        values, _ = self._execute((), given, True, make_gates=lambda like: make_gates(tuple(like.shape), labels, like))
        return values if len(self._prepared.outputs) == 1 else values.unbind(-1)

    def crisp(self, *, max_steps: int = 1_000_000, **inputs: int) -> int | tuple[int, ...]:
        """The discrete program on Python integers; raises `DidNotHaltError` after `max_steps` operations."""
        check_names("crisp", "variable", inputs, self._prepared.known)
        final = run_crisp(self._prepared.code, inputs, max_steps)
        found = tuple(final[name] for name in self._prepared.outputs)
        return found[0] if len(found) == 1 else found

    def regularization(self) -> Tensor:
        """sum (w - 1)^2 + b^2 over all assignments: 0 where the program is the one that was written."""
        parameters = self._weight_and_bias()
        if parameters is None:
            raise ValueError("WhileProgram.regularization: the program has no parameters; pass trainable=True.")
        return departure(*parameters)

    def fit_discrete(
        self,
        inputs: Iterable[int],
        *,
        held_out: Iterable[int] = (),
        steps: int = 300,
        learning_rate: float = 0.01,
        regularize: float = 1e-3,
    ) -> DiscreteFit:
        """Fit weights and biases so that the smooth program gives what the discrete one gives for all tuples of `inputs`.

        Adam on the mean square error plus `regularize` times `regularization()`. The report holds the mean errors before and
        after, on these tuples and on those of `held_out`, numbers that were not fitted to: weights learn the factor and
        offset of the numbers they see, and of others little. The paper's "trained on a data set of integer input/output
        pairs of the respective discrete WHILE-program".
        """
        if not self.trainable:
            raise ValueError("WhileProgram.fit_discrete: the program has no parameters; pass trainable=True.")
        fitted, others = self._errors(inputs), self._errors(held_out)
        if fitted is None:
            raise ValueError(f"WhileProgram.fit_discrete: `inputs` must hold at least one integer, got {inputs!r}.")

        @torch.no_grad()
        def means() -> list[float]:
            return [errors().abs().mean().item() for errors in (fitted, others) if errors is not None]

        before = means()
        optimizer = torch.optim.Adam(self.parameters(), lr=learning_rate)
        for _ in range(steps):
            optimizer.zero_grad()
            (fitted().square().mean() + regularize * self.regularization()).backward()
            optimizer.step()
        return DiscreteFit(*zip(before, means(), strict=True))

    def _errors(self, numbers: Iterable[int]) -> Callable[[], Tensor] | None:
        """What gives the smooth outputs less the discrete ones, for every tuple of inputs among these numbers."""
        rows = list(itertools.product(numbers, repeat=len(self.inputs)))
        if not rows:
            return None
        discrete = [self.crisp(**dict(zip(self.inputs, row, strict=True))) for row in rows]
        like = next(self.parameters())
        given, wanted = (
            torch.tensor(table, dtype=like.dtype, device=like.device).movedim(0, -1) for table in (rows, discrete)
        )

        def errors() -> Tensor:
            found = self(*given)
            return (found if isinstance(found, Tensor) else torch.stack(found)) - wanted

        return errors

    @property
    def trainable(self) -> bool:
        """Whether each assignment has a weight and a bias."""
        return self._prepared.trainable

    def to_network(self) -> WhileNetwork:
        """The program as the network that it is: a recurrent module for each loop, a unit for each assignment."""
        return WhileNetwork(self)

    @property
    def core(self) -> Program:
        """The program in the paper's grammar alone, without sugar."""
        return desugar(self.program)

    @property
    def inputs(self) -> tuple[str, ...]:
        """The variables that positional arguments fill, in order: those asked for, else all but x0."""
        if self._inputs is not None:
            return self._inputs
        return tuple(name for name in self._prepared.known if name != "x0")

    @property
    def variables(self) -> tuple[str, ...]:
        """All variables of the program that may be given and read."""
        return self._prepared.known

    @property
    def outputs(self) -> tuple[str, ...]:
        return self._prepared.outputs

    def _execute(
        self, positional: tuple[Tensor, ...], named: Mapping[str, Tensor | float], watched: bool, **network: Any
    ) -> tuple[Tensor, Tensor | None]:
        # Not `self.relax`, which would make an exit for each call
        exit: Any = self._overrides.get(MAIN, self._forms[MAIN])
        held = None if self._overrides or exit.softness_field is None else getattr(self, exit.softness_field)
        return execute(
            self._prepared,
            named_inputs("WhileProgram", self.inputs, positional, named) if positional else named,
            exit=exit,
            softness=held,
            parameters=self._weight_and_bias(),
            watched=watched,
            backend=self.backend,
            **network,
        )

    def _weight_and_bias(self) -> tuple[Tensor, Tensor] | None:
        return None if self.weight is None or self.bias is None else (self.weight, self.bias)

    def extra_repr(self) -> str:
        lines = len(self.program.text.splitlines())
        name = self.name or f"{lines} line{'s' if lines > 1 else ''}"
        trainable = ", trainable" if self.trainable else ""
        return f"{name}: {', '.join(self.inputs)} -> {', '.join(self.outputs)}, {super().extra_repr()}{trainable}"


class WhileNetwork(WhileProgram):
    """A WHILE-program as a network, `program.to_network()`: called as the program is, with the same values and gradients.

    `body` is a tree of modules. Each loop is a recurrent module, whose body runs on its own result inside p phi(v); each
    assignment is a unit with a weight and a bias of its own, y := p (w value + b) + (1-p) y, which start at those of the
    program, or at 1 and 0; a branch mixes its two parts. It is what the kernels are tested against, and is slower than
    they are. The paper's "WHILE loops are considered as recurrent sub-networks".

    >>> network = WhileProgram.library("add").to_network()
    >>> network.body[2].body[0].text, network.body[2].body[0].weight.item()
    ('x0 := x0 + 1', 1.0)
    """

    def __init__(self, program: WhileProgram):
        prepared = program._prepared
        super().__init__(
            program.program,
            copy.deepcopy(cast(Exit, program.relax)),
            epsilon=prepared.epsilon,
            max_iterations=prepared.max_iterations,
            inputs=program._inputs,
            outputs=prepared.outputs,
            trainable=True,
            backend="reference",
            name=program.name,
        )
        given = program._weight_and_bias() or super()._weight_and_bias()
        assert given is not None
        self.weight = self.bias = None
        self.body = build(self._prepared.code, *([nn.Parameter(t.detach().clone()) for t in ts] for ts in given))

    def draw(self) -> Any:
        """The network as a matplotlib figure: loops are frames with an arrow back to their start."""
        from .plots import draw_network

        return draw_network(self)

    def _execute(
        self, positional: tuple[Tensor, ...], named: Mapping[str, Tensor | float], watched: bool, **network: Any
    ) -> tuple[Tensor, Tensor | None]:
        return super()._execute(positional, named, True, body=self.body, **network)

    def _weight_and_bias(self) -> tuple[Tensor, Tensor] | None:
        units = [unit for unit in self.modules() if isinstance(unit, Unit)]
        return torch.stack([u.weight for u in units]), torch.stack([u.bias for u in units])  # pyright: ignore


class Programs(nn.ModuleList):
    """Several programs as one layer, `Programs(p, q)`: all are given the same inputs, and their outputs follow each other.

    Each takes the inputs that it has by their names. Called by position, and as a layer (`Insert(Programs(p, q))`), the
    inputs are those of the first program, then what the others have beyond them.

    >>> from algonet.relax import Tent
    >>> both = Programs(*(WhileProgram.library(name, Tent(), backend="reference") for name in ("add", "multiply")))
    >>> both(torch.tensor(3.0), torch.tensor(4.0))
    (tensor(7.), tensor(12.))
    """

    def __init__(self, *programs: WhileProgram):
        for program in programs or (None,):
            if not isinstance(program, WhileProgram):
                raise TypeError(f"Programs: wanted at least one program, each a WhileProgram, got {program!r}.")
        super().__init__(programs)

    @property
    def inputs(self) -> tuple[str, ...]:
        """The variables that positional arguments fill, in order."""
        return self._all("inputs")

    @property
    def outputs(self) -> tuple[str, ...]:
        """The programs' outputs in order: `0.x0` is x0 of the first."""
        return tuple(f"{i}.{name}" for i, program in enumerate(self) for name in program.outputs)  # pyright: ignore

    def forward(self, *positional: Tensor, **inputs: Tensor | float) -> tuple[Tensor, ...]:
        """The outputs of each program, one after the other."""
        given = named_inputs("Programs", self.inputs, positional, inputs)
        strangers = [name for name in given if name not in self._all("variables")]
        if strangers:
            raise ValueError(
                f"Programs: no program has the variable {strangers[0]!r}; inputs are {', '.join(self.inputs)}."
            )
        found: list[Tensor] = []
        for program in self:
            result = program(**{name: value for name, value in given.items() if name in program.variables})  # pyright: ignore
            found += result if isinstance(result, tuple) else (result,)
        return tuple(found)

    def _all(self, kind: str) -> tuple[str, ...]:
        return tuple(dict.fromkeys(name for program in self for name in getattr(program, kind)))


def named_inputs(
    where: str, names: tuple[str, ...], positional: tuple[Tensor, ...], named: Mapping[str, Tensor | float]
) -> dict[str, Tensor | float]:
    """All arguments by name, those by position in the order of `names`."""
    if len(positional) > len(names):
        raise ValueError(
            f"{where}: it takes {len(names)} inputs ({', '.join(names)}), got {len(positional)} arguments."
        )
    inputs = dict(zip(names, positional, strict=False))
    twice = [name for name in inputs if name in named]
    if twice:
        raise ValueError(f"{where}: `{twice[0]}` was given twice, by position and by name.")
    return {**inputs, **named}


def _warn_if_steep(exit: Exit) -> None:
    # A tensor on another device is not read: that would wait for it
    value: Any = exit.steepness if isinstance(exit, Sech) else 0.0
    if isinstance(value, Tensor) and value.device.type != "cpu":
        return
    steepness = float(torch.as_tensor(value).detach().max())
    if steepness > HALTING_STEEPNESS:
        warnings.warn(
            f"Sech(steepness={steepness:g}): the proof that loops halt holds up to 2.6; on the multiplication program, off the "
            f"integers, 3 was still seen to halt, 4 overshoots zero and never does. Use at most {HALTING_STEEPNESS:g}, or "
            f"BumpExit(), which is C-infinity and exact on integers.",
            NonHaltingWarning,
            stacklevel=3,
        )

"""What @smooth makes of a plain Python function: its calls, the function as written, the rewritten source."""

from __future__ import annotations

import ast
import contextvars
import functools
import inspect
import textwrap
import traceback
import types
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Generic, Literal, ParamSpec, TypeVar, overload

import numpy as np
import torch
from torch import Tensor

from algonet.core.tracing import compiling
from algonet.relax import Sigmoid

from .explaining import check_once, report
from .liveness import NotSmoothError, check, numbered
from .machine.eager import EAGER
from .machine.keys import Outside
from .machine.replay import Recall, Recordings, recall
from .machine.values import HALVES, Value, mapped
from .operation import Draws
from .rewrite import arguments, defined, rewritten
from .running import Call, outcome
from .runtime.frame import Frame
from .softness import OPTIONS, Merge, Paths, Report, Settings, check_options, resolved

P = ParamSpec("P")
R = TypeVar("R")
#: The gates of a call from the shape of its batch, what each assignment is, and a tensor of its precision and device.
MakeGates = Callable[[tuple[int, ...], list[str], Tensor], Tensor]

#: Whether smooth functions are as written at present: those that a crisp run calls.
_crisply: contextvars.ContextVar[bool] = contextvars.ContextVar("algonet_crisply", default=False)


class SmoothFunction(Generic[P, R]):
    """What `@smooth` makes of a function: call it on tensors; `.crisp` is the function as written."""

    is_smooth = True
    __name__: str
    __qualname__: str
    __wrapped__: Callable[..., Any]
    #: What a call computes with besides its arguments; see `SmoothProgram`.
    parameter_tensors: tuple[Tensor, ...] = ()

    def __init__(self, function: Callable[P, R], options: dict[str, Any]):
        if isinstance(function, (staticmethod, classmethod)):
            raise TypeError(
                f"smooth: put @{type(function).__name__} above @smooth, which belongs directly above `def`."
            )
        if not isinstance(function, types.FunctionType):
            raise TypeError(f"smooth: decorate a function written with `def`, got {function!r}.")
        if hasattr(function, "__wrapped__"):
            raise TypeError(
                f"smooth: {function.__name__} is wrapped by another decorator; put @smooth directly above `def`."
            )
        self._function = function
        self._options = check_options(f"smooth({function.__name__})", options)
        self.settings = Settings().changed(self._options)
        self._signature = inspect.signature(function)
        self.parameter_names = list(self._signature.parameters)
        #: How many may be given by position; the others come after them.
        self._positional = function.__code__.co_argcount
        self._tree, self._file, self._lines, self._first = _parsed(function)
        check(self._tree, self._file, self._lines, self._first)
        #: What it reads from outside, and what is known of earlier runs.
        self.outside = Outside(self._tree, function)
        self.recordings = Recordings()
        #: Whether a result was compared with the crisp one.
        self.checked = False
        #: Whether anybody has looked if gradients pass its exits.
        self.looked = False
        self._compiled: dict[tuple[bool, bool], types.FunctionType] = {}
        #: Makes the gates of a call, inside `gated`.
        self._make_gates: MakeGates | None = None
        self.form()
        # For `help`, `inspect.signature` and doctests
        functools.update_wrapper(self, function)

    # To an editor a plain call has the function's own parameters; one with options is not checked further. What is a number
    # as written is a tensor, when it runs on tensors
    @overload
    def __call__(self, *args: Any, with_report: Literal[True], **kwargs: Any) -> tuple[R, Report]: ...
    @overload
    def __call__(self: SmoothFunction[..., float], *args: Any, **kwargs: Any) -> Tensor: ...
    @overload
    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R: ...
    @overload
    def __call__(self, *args: Any, batched: bool, **kwargs: Any) -> R: ...
    @overload
    def __call__(self, *args: Any, relax: Sigmoid, **kwargs: Any) -> R: ...
    @overload
    def __call__(self, *args: Any, steepness: float | Tensor, **kwargs: Any) -> R: ...
    @overload
    def __call__(self, *args: Any, hard: bool, **kwargs: Any) -> R: ...
    @overload
    def __call__(self, *args: Any, max_iterations: int, **kwargs: Any) -> R: ...
    @overload
    def __call__(self, *args: Any, paths: Paths, **kwargs: Any) -> R: ...

    def __call__(self, *args: Any, batched: bool = False, with_report: bool = False, **kwargs: Any) -> Any:
        """Run smoothly on tensors. See `smooth` for the options that may be given with a call."""
        if not compiling() and _crisply.get():
            return self._function(*args, **{k: v for k, v in kwargs.items() if k not in OPTIONS})
        return self.run(args, {**kwargs, "batched": batched}, with_report)

    def run(
        self, args: tuple, kwargs: dict[str, Any], with_report: bool = False, parameters: tuple[Tensor, ...] = ()
    ) -> Any:
        """The result of a call; `parameters` are weights and biases of its assignments."""
        bound, options, batched, draws = self._sorted(args, kwargs)
        known = None
        if self._make_gates is None and not compiling():
            # What was run like this before runs again, without a further look at what is given
            known = recall(self, Merge, bound, options, batched, parameters)
            outputs = None if known is None else known.run(draws)
            if outputs is not None:
                return (outputs.result[0], Report(outputs.iterations)) if with_report else outputs.result[0]
        call = self._call(bound, options, batched, draws, parameters, known)
        if self._make_gates is not None:
            self._gate(call, self._make_gates)
        result = outcome(call)
        check_once(call, result)
        return (result, call.report) if with_report else result

    def _gate(self, call: Call, make: MakeGates) -> None:
        if type(call.settings.paths) is not Merge:
            raise ValueError(f"{self.__name__}: gates on assignments are there with paths=Merge().")
        if call.like is None:
            raise ValueError(f"{self.__name__}: gates on assignments need a floating tensor among the arguments.")
        call.settings = call.settings.changed({"backend": "reference"})
        call.gates = make(() if call.size is None else (call.size,), self.assignments, call.like)

    @contextmanager
    def gated(self, make_gates: MakeGates) -> Iterator[None]:
        """Inside the block, calls make each assignment to the extent of its gate: y = g value + (1 - g) y.

        `make_gates(batch, labels, like)` gives them, (*batch, assignments); `labels` are `self.assignments`. What had no value
        before counts as 0. Gates of 1 change nothing; the gradient in them is what `explain.sensitivity(inside=True)` measures.
        Calls run operation by operation meanwhile.
        """
        self._make_gates, before = make_gates, self._make_gates
        try:
            yield
        finally:
            self._make_gates = before

    @property
    def assignments(self) -> list[str]:
        """Each value that the function assigns, by its line and what is written there."""
        return [a.label for statement in numbered(self._tree).values() for a in statement]

    def call(self, args: tuple, kwargs: dict[str, Any], parameters: tuple[Tensor, ...] = ()) -> Call:
        """A call with these arguments and options, about to run."""
        return self._call(*self._sorted(args, kwargs), parameters, None)

    def _sorted(self, args: tuple, kwargs: dict[str, Any]) -> tuple[list[Any], dict[str, Any], bool, Draws]:
        """The arguments in the order of the parameters, the options, whether there is a batch, and random numbers."""
        batched = kwargs.pop("batched", False)
        generator = None if "generator" in self.parameter_names else kwargs.pop("generator", None)
        if generator is not None and not isinstance(generator, torch.Generator):
            raise TypeError(
                f"{self.__name__}: `generator` must be a torch.Generator, got {generator!r}; a seed is "
                "generator=torch.Generator().manual_seed(0)."
            )
        options = {name: kwargs.pop(name) for name in OPTIONS if name in kwargs} if kwargs else {}
        bound = self._bound(args, kwargs)
        generators = (x for x in (generator, *bound) if isinstance(x, torch.Generator))
        return bound, options, batched, Draws(next(generators, None))

    def _call(
        self,
        bound: list[Any],
        options: dict[str, Any],
        batched: bool,
        draws: Draws,
        parameters: tuple[Tensor, ...],
        known: Recall | None,
    ) -> Call:
        options = check_options(self.__name__, options)
        settings = resolved(self.settings, options)
        found: list[Value] = []
        values = self._lifted(bound, batched, settings.shared, found)
        size = next((v.tensor.shape[0] for v in found if v.batched), None)
        if batched and size is None:
            raise ValueError(
                f"{self.__name__}: batched=True needs at least one tensor with a batch in front among the arguments."
            )
        if type(settings.paths) is not Merge:
            known = None
        if known is not None:
            known.arguments = [value.tensor for value in found]
        # Half precisions are for storage: the program computes in float32 and answers as it was asked
        half = next((v.tensor.dtype for v in found if v.tensor.dtype in HALVES), None)
        for value in found if half is not None else ():
            value.settle(value.tensor.float() if value.tensor.dtype in HALVES else value.tensor)
        return Call(self, values, found, settings, options, size, half, Report(), draws, parameters, recall=known)

    def source_line(self, line: int) -> str:
        """A line of its source, by its number in the file."""
        offset = line - self._first
        return self._lines[offset].strip() if 0 <= offset < len(self._lines) else ""

    def softness_report(self, *args: Any, **kwargs: Any) -> Any:
        """See `algonet.softness_report`, which asks this."""
        return report(self, args, kwargs)

    def _lifted(self, bound: list[Any], batched: bool, shared: tuple[str, ...], found: list[Value]) -> list[Any]:
        """The arguments as the program sees them: tensors as values (collected in `found`), containers copied; those that all
        items share have no batch."""
        if unknown := [name for name in shared if name not in self.parameter_names]:
            raise ValueError(f"{self.__name__}: shared={shared!r} names {unknown[0]!r}, which is no parameter of it.")

        def lift(x: Any, batched: bool) -> Any:
            if isinstance(x, Tensor):
                # A single number is the same for all items
                found.append(Value(x, batched and x.dim() > 0, EAGER))
                sizes = [value.tensor.shape[0] for value in found if value.batched]
                if found[-1].batched and sizes[-1] != sizes[0]:
                    raise ValueError(
                        f"{self.__name__}: with batched=True all tensors share their first dimension: {sizes[0]} so far, "
                        f"here {sizes[-1]} in shape {tuple(x.shape)}. A parameter that all items share is a single number, "
                        "or named in shared=(...)."
                    )
                return found[-1]
            if isinstance(x, np.ndarray):
                raise TypeError(
                    f"{self.__name__}: a NumPy array decides crisply and has no gradient; pass torch.from_numpy(...), or "
                    ".tolist() for crisp numbers."
                )
            return x.item() if isinstance(x, np.generic) else x

        return [
            mapped(functools.partial(lift, batched=batched and name not in shared), argument)
            for name, argument in zip(self.parameter_names, bound, strict=True)
        ]

    def inside(self, frame: Frame, args: tuple, kwargs: dict[str, Any], parameters: tuple[Tensor, ...] = ()) -> Any:
        """A call from another smooth function: on its values, with its softness blocks, one level deeper."""
        if frame.depth >= frame.settings.max_depth:
            raise RecursionError(
                f"{self.__name__}: calls of smooth functions are nested {frame.depth} deep (max_depth); a smooth branch "
                "runs even where it is unlikely, so bound the recursion by a Python integer, or raise epsilon or max_depth."
            )
        options = {name: kwargs.pop(name) for name in OPTIONS if name in kwargs}
        overrides = {**frame.overrides, **check_options(self.__name__, options)}
        settings = resolved(self.settings, overrides)
        shared = frame.draws, frame.precision, parameters, None, frame.machine, frame.decider
        inner = Frame(self, settings, frame.report, frame.size, overrides, *shared, depth=frame.depth + 1)
        here = None if frame.decider is None else frame.presence()
        if here is not None:
            inner.enter(here, True, None)
        return self._run(inner, self._bound(args, kwargs))

    def crisp(self, *args: Any, **kwargs: Any) -> R:
        """The function as written, on copies of the arguments: the limit that `smooth` names."""
        copies = mapped(lambda x: x.clone() if isinstance(x, Tensor) else x, self._bound(args, kwargs))
        first = self._positional
        named = zip(self.parameter_names[first:], copies[first:], strict=True)
        token = _crisply.set(True)
        try:
            return self._function(*copies[:first], **dict(named))
        finally:
            _crisply.reset(token)

    def explain(self) -> str:
        """The rewritten source: what runs, readable. `_s` is the run, `_if1` a branch, `_loop1` a loop."""
        return ast.unparse(rewritten(self._tree))

    def __get__(self, owner: Any, kind: Any = None) -> Any:
        return self if owner is None else BoundFunction(self, owner)

    def __repr__(self) -> str:
        return f"<smooth {self.__name__} in {self._file}:{self._first}>"

    def __reduce__(self) -> str:
        # Like a function: copied as itself, pickled by name
        return self.__qualname__

    def _bound(self, args: tuple, kwargs: dict[str, Any]) -> list[Any]:
        if not kwargs and len(args) == len(self.parameter_names) == self._positional:
            return list(args)
        try:
            bound = self._signature.bind(*args, **kwargs)
        except TypeError as problem:
            raise TypeError(f"{self.__name__}: {problem}; it is {self.__name__}{self._signature}.") from None
        bound.apply_defaults()
        return list(bound.arguments.values())

    def _run(self, frame: Frame, values: list[Any]) -> Any:
        form = self.form(bool(frame.parameters), frame.gates is not None)
        if compiling():
            return form(frame, *values)
        try:
            return form(frame, *values)
        except Exception as problem:
            # The user's own line, below which the error was raised
            trace = traceback.walk_tb(problem.__traceback__)
            for line in [line for code, line in trace if code.f_locals.get("_s") is frame][-1:]:
                note = f"in the smooth function {self.__name__}, {self._file}, line {line}: {self.source_line(line)}"
                if note not in getattr(problem, "__notes__", ()):
                    problem.add_note(note)
            raise

    def form(self, weighted: bool = False, gated: bool = False) -> types.FunctionType:
        """The rewritten function that runs; see `rewritten`."""
        key = weighted, gated
        if key not in self._compiled:
            self._compiled[key] = _compiled(rewritten(self._tree, *key), self._function, self._file)
        return self._compiled[key]


class BoundFunction:
    """A smooth function as a method of an object. No more than two attributes: torch.compile makes one in each call."""

    is_smooth = True

    def __init__(self, function: SmoothFunction, owner: Any):
        self.__func__ = function
        self.__self__ = owner

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.__func__(self.__self__, *args, **kwargs)

    def inside(self, frame: Frame, args: tuple, kwargs: dict[str, Any]) -> Any:
        return self.__func__.inside(frame, (self.__self__, *args), kwargs)

    def crisp(self, *args: Any, **kwargs: Any) -> Any:
        return self.__func__.crisp(self.__self__, *args, **kwargs)

    def explain(self) -> str:
        return self.__func__.explain()

    def __repr__(self) -> str:
        return f"<smooth method {self.__func__.__name__} of {self.__self__!r}>"

    @property
    def __wrapped__(self) -> Any:
        return types.MethodType(self.__func__.__wrapped__, self.__self__)

    def __getattr__(self, name: str) -> Any:
        # __name__, __doc__, __code__, ...: what tools ask of a method
        return getattr(self.__wrapped__, name)


def _parsed(function: types.FunctionType) -> tuple[ast.FunctionDef, str, list[str], int]:
    file = function.__code__.co_filename
    try:
        lines, first = inspect.getsourcelines(function)
    except (OSError, TypeError):
        raise ValueError(
            f"smooth: the source of {function.__name__} cannot be read ({file}); define it in a file or a notebook cell."
        ) from None
    first = max(first, 1)
    try:
        tree = ast.parse(textwrap.dedent("".join(lines)))
    except SyntaxError:
        tree = ast.Module([ast.Pass()], [])
    if not isinstance(tree.body[0], (ast.FunctionDef, ast.AsyncFunctionDef)):
        raise NotSmoothError(
            "smooth: a function inside a longer expression (a lambda?) is not supported: write it with `def`.",
            (file, first, 1, lines[0] if lines else ""),
        )
    ast.increment_lineno(tree, first - 1)
    found: Any = tree.body[0]
    return found, file, [line.rstrip("\n") for line in lines], first


def _compiled(tree: ast.FunctionDef, function: types.FunctionType, file: str) -> types.FunctionType:
    """The rewritten function, with the original's globals and its very closure cells."""
    outer = function.__code__.co_freevars
    module = ast.Module([tree], [])
    if outer:
        # Free variables must be someone's locals for the compiler to see them as such
        factory = defined("_outer", arguments(outer), [tree])
        module = ast.Module([ast.copy_location(factory, tree)], [])
    code = compile(ast.fix_missing_locations(module), file, "exec")
    depth = 2 if outer else 1
    for _ in range(depth):
        code = next(c for c in code.co_consts if isinstance(c, types.CodeType))
    cells = dict(zip(outer, function.__closure__ or (), strict=True))
    closure = tuple(cells[name] for name in code.co_freevars)
    return types.FunctionType(code, function.__globals__, function.__name__, None, closure)

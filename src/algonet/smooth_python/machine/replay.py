"""Recorded runs, run again without recording them anew.

While a program is recorded, a `Trace` notes what runs in terms that hold for other numbers, too: which program, on which
columns of which arguments or of what ran before, and what loops and branches learned when they looked. A `Recording` keeps
these notes for one key (`keys.py`): a tree that forks at every guard. The next call with that key walks down the tree,
kernel by kernel; where its numbers take a way that nobody took before, the call is recorded and the tree grows.

Nothing is repeated that is not known in full: a tensor whose origin the trace does not know, a foreign function, a
printed line or a warning makes the run one that is recorded every time.
"""

from __future__ import annotations

import threading
from collections import Counter, OrderedDict
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from algonet.core.tracing import capturing, transforming

from ..operation import REPAID, Program, evaluate, steepness_tensor
from ..softness import BLOCKS
from .keys import Found, UnknownError, describe
from .values import NUMBERS, Value, flat, functions_called, mapped

#: Instructions that one function's recordings may hold together (16 bytes each); how many recordings, and ways through one.
CAPACITY = 2**20
WAYS = 64
#: From so many columns on that are returned, a table is taken apart at once.
SEVERAL = 4
#: Runs with one key that could not be kept, one after the other, before nobody takes notes of the next: that takes as long as
#: to run them.
ATTEMPTS = 3


class Run:
    """One repeated call: the tensors its key came across, what has run so far, and where random numbers come from."""

    def __init__(self, tensors: list[Tensor], draws: Any, steeper: float):
        self.tensors, self.draws = tensors, draws
        #: What every steepness is multiplied by.
        self.steeper = steeper
        self.outputs: list[Tensor] = []
        self.unbound: dict[Any, tuple[Tensor, ...]] = {}


#: Where a tensor comes from: found again in another run.
Origin = Callable[[Run], Tensor]


class Step:
    """One program on its inputs, and the rows that were asked for. A short one that runs again and again gets a kernel."""

    def __init__(
        self,
        program: Program,
        wanted: Tensor,
        inputs: list[Origin],
        scales: Tensor | list[float | Origin],
        size: int,
        draws: bool,
    ):
        """`scales`: every steepness, a tensor where all are numbers, else numbers and origins; `draws`: random numbers."""
        #: The program, the wanted rows, and how often they ran again while that may change them.
        self._ready = program, wanted, 0
        self._inputs, self._scales, self._size, self._draws = inputs, scales, size, draws
        self.length = program.instructions.shape[0]

    def run(self, run: Run) -> Tensor:
        program, wanted, runs = self._ready
        if not runs or program.backend != program.asked:
            if runs * self.length >= REPAID and not capturing(program.constants.device):
                program = program._replace(backend=program.asked)
            # Moved where the kernels read them, once and for all; in one assignment: threads may run a step at once
            device = program.instructions.device if program.backend == "reference" else program.constants.device
            program, wanted = program._replace(instructions=program.instructions.to(device)), wanted.to(device)
            self._ready = program, wanted, runs + 1
        scales: Any = self._scales
        if not isinstance(scales, Tensor):
            scales = steepness_tensor([s(run) if callable(s) else s for s in scales], program.constants)
        if run.steeper != 1.0:
            scales = scales * run.steeper
        inputs = [origin(run) for origin in self._inputs]
        return evaluate(program, inputs, scales, wanted, self._size, run.draws.seed if self._draws else None)


class Guard(NamedTuple):
    """Python asked something about numbers (is any mass left in this loop?), and the answer."""

    ask: Callable[[Run], Hashable]
    answer: Hashable


class Outputs(NamedTuple):
    """What the run returned, origins in place of tensors, and the iterations of its loops by line."""

    result: Any
    iterations: dict[int, int]


class Lowering(NamedTuple):
    """How the results of a call are given back: plain tensors, every one with the batch in front when there is one.

    Real numbers that no decision touched come as tensors, too: a result's type does not depend on the data.
    """

    size: int | None
    half: torch.dtype | None
    like: tuple[torch.dtype, torch.device] | None

    def __call__(self, result: Any) -> Any:
        def lower(x: Any) -> Any:
            if type(x) is Value:
                return self.of_batch(x.tensor) if x.batched else self._shared(x.tensor)
            if isinstance(x, Tensor):
                return self._shared(x)
            return self.number(x) if type(x) is float and self.like is not None else x

        return mapped(lower, result)

    def of_batch(self, tensor: Tensor) -> Tensor:
        """A tensor with the batch in front, which is one of one for a single item."""
        return self._cast(tensor.squeeze(0) if self.size is None else tensor)

    def number(self, x: float) -> Tensor:
        dtype, device = self.like or (None, None)
        return self._shared(torch.full((), x, dtype=dtype, device=device))

    def _shared(self, tensor: Tensor) -> Tensor:
        tensor = self._cast(tensor)
        return tensor if self.size is None else tensor.expand(self.size, *tensor.shape)

    def _cast(self, tensor: Tensor) -> Tensor:
        return tensor if self.half is None or not tensor.is_floating_point() else tensor.to(self.half)


def _unbound(origin: Origin) -> Callable[[int], Origin]:
    """The parts of a tensor along the items' first dimension, which a run takes apart once."""
    key = object()

    def piece(run: Run, k: int) -> Tensor:
        if key not in run.unbound:
            run.unbound[key] = origin(run).unbind(1)
        return run.unbound[key][k]

    return lambda k: lambda run: piece(run, k)


#: What turns tensors into numbers of Python.
_READS = functions_called(
    """
    __index__ __float__ __int__ __bool__ __complex__ __repr__ __format__ __contains__ item tolist numpy __array__
    is_nonzero equal allclose __dlpack__ data_ptr
    """,
    (Tensor, torch),
)


class Watch(TorchFunctionMode):
    """While it is open, a number that the program reads from a tensor makes the trace incomplete.

    `math.floor(w)`, `table[i]`, `f"{w}"`, `v[:i]` or `[0.0] * n` with tensors from outside turn a tensor into a Python number,
    without the frame noticing. Torch notices: all of them go through a method of the tensor, and a mode sees every one.
    """

    def __init__(self, trace: Trace):
        super().__init__()
        self._trace, self._open = trace, False

    def __enter__(self) -> Any:
        self._open = True
        return super().__enter__()

    def __exit__(self, *problem: Any) -> None:
        self._open = False
        super().__exit__(*problem)

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Inside the block nobody watches: foreign functions end the recording, and torch.compile would trace the mode."""
        if not self._open:
            yield
            return
        self.__exit__(None, None, None)
        try:
            yield
        finally:
            self.__enter__()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in _READS:
            self._trace.complete = False
        return func(*args, **(kwargs or {}))


class Trace:
    """Notes of one recording. `complete` as long as they are enough to repeat it."""

    def __init__(self, known: list[tuple[Tensor, Origin]]):
        self.complete = True
        self.watch = Watch(self)
        #: Whether random numbers were drawn.
        self.draws = False
        self._events: list[Step | Guard] = []
        #: How many programs have run.
        self.programs = 0
        # The tensors themselves are kept, or another one could get the id
        self._origins: dict[int, tuple[Tensor, Origin]] = {}
        for tensor, origin in known:
            self._know(tensor, origin)

    def _know(self, tensor: Tensor, origin: Origin) -> None:
        self._origins[id(tensor)] = tensor, origin

    def _origin(self, tensor: Any) -> Origin:
        _, origin = self._origins.get(id(tensor), (None, _nowhere))
        self.complete = self.complete and origin is not _nowhere
        return origin

    def derived(self, parent: Tensor, child: Tensor, how: Callable[[Tensor], Tensor]) -> None:
        """`child` is `how(parent)`."""
        if id(parent) in self._origins:
            _, origin = self._origins[id(parent)]
            self._know(child, lambda run: how(origin(run)))

    def unbound(self, parent: Tensor, pieces: tuple[Tensor, ...]) -> None:
        """The pieces are parent.unbind(1)."""
        if id(parent) in self._origins:
            part = _unbound(self._origins[id(parent)][1])
            for k, piece in enumerate(pieces):
                self._know(piece, part(k))

    def ran(
        self, program: Program, inputs: list[Tensor], scales: list[Any], wanted: Tensor, outputs: Tensor, draws: bool
    ) -> None:
        place, self.programs = self.programs, self.programs + 1
        self.draws = self.draws or draws
        self._know(outputs, lambda run: run.outputs[place])
        if not self.complete:
            return
        known: Any = [self._origin(s) if isinstance(s, Tensor) else s for s in scales]
        if not any(map(callable, known)):
            known = steepness_tensor(scales, program.constants)
        origins = [self._origin(tensor) for tensor in inputs]
        self._events.append(Step(program, wanted, origins, known, outputs.shape[0], draws))

    def asked(self, value: Value, question: Callable[[Tensor], Hashable], answer: Hashable) -> None:
        origin = self._of_value(value)
        self._events.append(Guard(lambda run: question(origin(run).detach()), answer))

    def _of_value(self, value: Value) -> Origin:
        """Where the tensor of a value comes from, which has the batch in front."""
        self.complete = self.complete and value.batched
        if value.source is not None:
            tensor, column = value.source
            origin = self._origin(tensor)
            return lambda run: origin(run).select(1, column)
        if value.parted and value.parts and all(type(part) is Value and part.batched for part in value.parts):
            origins = [self._of_value(part) for part in value.parts]
            return lambda run: torch.stack([origin(run) for origin in origins], dim=1)
        return self._origin(value.tensor)

    def notes(self, result: Any, lowering: Lowering, iterations: dict[int, int]) -> list[Any] | None:
        """The events of the whole run, ended by its result; None where they are not all that happened."""
        #: How many columns of each table are returned, by the table's id. They are taken apart together, and so are their
        #: gradients put together, each of which would else be a table of its own. Copies, since views of many may not be
        #: changed in place.
        returned = Counter(id(value.source[0]) for value in flat(result) if value.source is not None)
        pieces: dict[int, Callable[[int], Origin]] = {}

        def leaf(x: Any) -> Any:
            if type(x) is float and lowering.like is not None:
                return lambda run: lowering.number(x)
            if type(x) is not Value:
                self.complete = self.complete and (x is None or isinstance(x, (*NUMBERS, str)))
                return x
            if x.source is None or returned[id(x.source[0])] < SEVERAL:
                origin = self._of_value(x)
                return lambda run: lowering.of_batch(origin(run))
            tensor, column = x.source
            part = pieces.setdefault(id(tensor), _unbound(self._origin(tensor)))(column)
            return lambda run: lowering.of_batch(part(run).clone())

        template = mapped(leaf, result) if self.complete else None
        return [*self._events, Outputs(template, dict(iterations))] if self.complete else None


def _nowhere(run: Run) -> Tensor:
    raise RuntimeError("a tensor of unknown origin in a recording.")


class Recording:
    """All recorded runs with one key: what runs after each series of answers, then what is asked next, or the end."""

    def __init__(self):
        self._stretches: dict[tuple[Hashable, ...], tuple[list[Step], Guard | Outputs]] = {}
        self.ways = self.length = 0
        #: How many runs in a row could not be kept, and how many programs ran in the last of them.
        self.failures = self.programs = 0

    @property
    def given_up(self) -> bool:
        """Whether nobody takes notes of such runs any more."""
        return self.failures >= ATTEMPTS

    def run(self, run: Run) -> Outputs | None:
        """The result; None where the way is not known yet."""
        answers: tuple[Hashable, ...] | None = ()
        while answers in self._stretches:
            steps, last = self._stretches[answers]
            for step in steps:
                run.outputs.append(step.run(run))
            if isinstance(last, Outputs):
                return last._replace(result=mapped(lambda x: x(run) if callable(x) else x, last.result))
            before, answers = answers, (*answers, last.ask(run))
            if answers not in self._stretches and run.steeper != 1.0:
                near = (known for known in [*self._stretches] if len(known) == len(answers) and known[:-1] == before)
                answers = next((known for known in near if _includes(known[-1], answers[-1])), None)
        return None

    def learn(self, notes: list[Any]) -> None:
        """One more way, from where it leaves those that are known."""
        new, steps = {}, []
        answers: tuple[Hashable, ...] = ()
        for event in notes:
            if isinstance(event, Step):
                steps.append(event)
                continue
            if answers not in self._stretches:
                new[answers] = steps, event
            answers, steps = (*answers, getattr(event, "answer", None)), []
        if new and self.ways < WAYS:
            self.ways += 1
            self.length += sum(step.length for steps, _ in new.values() for step in steps)
            # At once: threads may read
            self._stretches.update(new)


def _includes(known: Any, answer: Any) -> bool:
    """Whether a way goes wherever an answer leads, and further where nobody is: answers are yes or no, or several of them."""
    pairs = zip(known, answer, strict=True) if isinstance(known, tuple) else [(known, answer)]
    return all(wide or not narrow for wide, narrow in pairs)


class Recordings:
    """The recordings of one function, the latest used last; the oldest go when there are too many."""

    def __init__(self):
        self._recordings: OrderedDict[Hashable, Recording] = OrderedDict()
        self._lock = threading.Lock()

    def __iter__(self) -> Iterator[Recording]:
        return (recording for recording in list(self._recordings.values()) if recording.ways)

    def forget(self) -> None:
        """All of it: the next call of every kind is recorded."""
        with self._lock:
            self._recordings.clear()

    def find(self, key: Hashable) -> Recording | None:
        with self._lock:
            if key in self._recordings:
                self._recordings.move_to_end(key)
            return self._recordings.get(key)

    def learn(self, key: Hashable, notes: list[Any] | None, programs: int) -> None:
        """The notes of a run of so many programs; None where it cannot be kept."""
        with self._lock:
            recording = self._recordings.setdefault(key, Recording())
            recording.failures, recording.programs = recording.failures + 1 if notes is None else 0, programs
            recording.learn(notes or [])
            total = sum(recording.length for recording in self._recordings.values())
            while len(self._recordings) > 1 and (total > CAPACITY or len(self._recordings) > WAYS):
                total -= self._recordings.popitem(last=False)[1].length


class Recall:
    """One call with a key: run again as it is known, or recorded and kept."""

    def __init__(self, recordings: Recordings, key: Hashable, found: Found):
        self._recordings, self._key, self._found = recordings, key, found
        #: The arguments' tensors, before they are prepared for the run.
        self.arguments: list[Tensor] = []
        self._trace: Trace | None = None

    def run(self, draws: Any, steeper: float = 1.0) -> Outputs | None:
        """The result without running the program, every steepness multiplied; None where it has to run."""
        recording = self._recording
        return None if recording is None else recording.run(Run(self._found.tensors, draws, steeper))

    @property
    def _recording(self) -> Recording | None:
        return self._recordings.find(self._key)

    @property
    def plain(self) -> bool:
        """Whether such runs were found to have nothing to record: they compute with vectors, not with numbers."""
        recording = self._recording
        return recording is not None and recording.given_up and not recording.programs

    @property
    def repeatable(self) -> bool:
        """Whether all of the run that was recorded is known, and none of it random."""
        return self._trace is not None and self._trace.complete and not self._trace.draws

    def begin(self, values: list[Value]) -> Trace | None:
        """A trace of the recording that follows, on these arguments; None where that is given up."""
        recording = self._recording
        if recording is not None and recording.given_up:
            return None
        known: list[Any] = [(t, lambda run, k=k: run.tensors[k]) for k, t in enumerate(self._found.tensors)]
        for settings in (function.settings for function in self._found.functions):
            scales = [getattr(relax, "steepness", None) for relax in (settings.relax, settings.exit)]
            known[:0] = [(s, lambda run, s=s: s) for s in scales if isinstance(s, Tensor)]
        known += [
            (value.tensor, self._prepared(k, given, value.tensor))
            for given, value in zip(self.arguments, values, strict=True)
            if (k := self._found.places.get(id(given))) is not None
        ]
        self._trace = Trace(known)
        return self._trace

    def _prepared(self, k: int, given: Tensor, tensor: Tensor) -> Origin:
        """An argument as the run has it: in the precision that is computed in, a single item as a batch of one."""
        dtype, single = tensor.dtype, tensor.dim() > given.dim()
        if given.dtype == dtype and not single:
            return lambda run: run.tensors[k]
        return lambda run: (run.tensors[k].unsqueeze(0) if single else run.tensors[k]).to(dtype)

    def learn(self, result: Any, lowering: Lowering, iterations: dict[int, int]) -> None:
        """Keep what the trace has, if that is the whole run."""
        if self._trace is not None:
            notes = self._trace.notes(result, lowering, iterations)
            self._recordings.learn(self._key, notes, self._trace.programs)


def recall(
    function: Any, way: type, values: list[Any], options: dict[str, Any], batched: bool, parameters: Any = None
) -> Recall | None:
    """The call of a smooth function on these arguments, its paths taken that way, if there is a key to know it by."""
    if transforming():
        return None
    found = Found(function)
    try:
        key = (
            way,
            batched,
            torch.get_default_dtype(),
            # Tensors made in that mode are no good outside of it, and recordings hold some
            torch.is_inference_mode_enabled(),
            function.outside.of_arguments(values, found),
            describe((BLOCKS.get(), options, parameters), found),
            function.outside.key(found),
        )
        hash(key)
    except (UnknownError, TypeError, RecursionError):
        return None
    return Recall(function.recordings, key, found) if found.tensors else None

"""Recorded runs, run again without recording them anew.

While a program is recorded, a `Journal` notes what runs in terms that hold for other numbers, too: which program, on which
columns of which arguments or of what ran before, and what loops and branches learned when they looked. A `Recording` keeps
these notes for one key (`keys.py`): a tree that forks at every look. The next call with that key walks down the tree,
kernel by kernel; where its numbers take a way that nobody took before, the call is recorded and the tree grows.

Nothing is repeated that is not known in full: a tensor whose origin the journal does not know, a foreign function, a
printed line or a warning makes the run one that is recorded every time.
"""

from __future__ import annotations

import threading
from collections import Counter, OrderedDict
from collections.abc import Callable, Hashable, Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor

from algonet.core.tracing import capturing, transforming

from ..operation import REPAID, Program, evaluate, steepness_tensor
from ..report import Report
from ..softness import open_blocks
from .containers import flat, is_record, record_fields, record_like
from .eager import EAGER
from .keys import Found, UnknownError, describe
from .simplify import simplified
from .values import NUMBERS, Value

#: Instructions that one function's recordings may hold together (16 bytes each); how many recordings, and ways through one.
CAPACITY = 2**20
WAYS = 64
#: From so many columns on that are returned, a table is taken apart at once.
SEVERAL = 4
#: Runs with one key that could not be kept, one after the other, before nobody takes notes of the next: that takes as long as
#: to run them.
ATTEMPTS = 3


class Run(NamedTuple):
    """The tensors of one call: arguments with the batch in front, all that the key came across, what has run so far."""

    arguments: list[Tensor]
    tensors: list[Tensor]
    outputs: list[Tensor]
    unbound: dict[Any, tuple[Tensor, ...]]
    size: int
    draws: Any
    #: What every steepness is multiplied by.
    steeper: float = 1.0


#: Where a tensor comes from: found again in another run.
Origin = Callable[[Run], Tensor]


class Step:
    """One program on its inputs, and the rows that were asked for.

    It is simplified when it first runs again: many recordings never do. A short one that runs again and again gets a kernel.
    """

    __slots__ = ("_draws", "_inputs", "_ready", "_scales", "length")

    def __init__(
        self,
        program: Program,
        wanted: Tensor,
        inputs: tuple[Origin, ...],
        scales: Tensor | tuple[float | Origin, ...],
        draws: bool,
    ):
        """`scales`: every steepness, a tensor where all are numbers, else numbers and origins; `draws`: random numbers."""
        #: The program, the wanted rows, and how often they ran again while that may change them.
        self._ready = program, wanted, 0
        self._inputs, self._scales, self._draws = inputs, scales, draws
        #: Instructions as recorded.
        self.length = program.length

    def run(self, run: Run) -> Tensor:
        program, wanted, runs = self._ready
        if not runs or program.backend != program.asked:
            program, wanted = self._prepared(program, wanted, runs)
        scales: Any = self._scales
        if not isinstance(scales, Tensor):
            scales = steepness_tensor([s(run) if callable(s) else s for s in scales], program.constants)
        if run.steeper != 1.0:
            scales = scales * run.steeper
        inputs = [origin(run) for origin in self._inputs]
        return evaluate(program, inputs, scales, wanted, run.size, run.draws.seed if self._draws else None)

    def _prepared(self, program: Program, wanted: Tensor, runs: int) -> tuple[Program, Tensor]:
        if not runs:
            program, wanted = simplified(program, wanted)
        elif runs * program.length >= REPAID and not capturing(program.constants.device):
            program = program._replace(backend=program.asked)
        # Moved where the kernels read them, once and for all
        program = program._replace(instructions=program.moved(program.instructions))
        wanted = program.moved(wanted)
        # In one assignment: threads may run a step at once
        self._ready = program, wanted, runs + 1
        return program, wanted


class Look(NamedTuple):
    """Python asked something about numbers (is any mass left in this loop?), and the answer."""

    at: Origin
    question: Callable[[Tensor], Hashable]
    answer: Hashable


class Ending(NamedTuple):
    """What the run returned, `Leaf`s in place of values, and the iterations of its loops by line."""

    result: Any
    iterations: dict[int, int]


class Leaf(NamedTuple):
    origin: Origin


class _Unbound:
    """The parts of a tensor along the items' first dimension."""

    def __init__(self, origin: Origin):
        self._origin = origin

    def __call__(self, run: Run) -> tuple[Tensor, ...]:
        if self not in run.unbound:
            run.unbound[self] = self._origin(run).unbind(1)
        return run.unbound[self]


class Journal:
    """Notes of one recording. `complete` as long as they are enough to repeat it."""

    def __init__(self, arguments: list[Tensor], tensors: list[Tensor], fixed: list[Tensor]):
        self.complete = True
        #: Whether random numbers were drawn.
        self.draws = False
        self._events: list[Step | Look] = []
        #: How many programs have run.
        self.programs = 0
        self._pieces: dict[int, _Unbound] = {}
        #: How many columns of each table are returned, by the table's id.
        self._returned: Counter[int] = Counter()
        # The tensors themselves are kept, or another one could get the id
        self._origins: dict[int, tuple[Tensor, Origin]] = {}
        for tensor in fixed:
            self._know(tensor, lambda run, tensor=tensor: tensor)
        for k, tensor in enumerate(tensors):
            self._know(tensor, lambda run, k=k: run.tensors[k])
        for k, tensor in enumerate(arguments):
            self._know(tensor, lambda run, k=k: run.arguments[k])

    def _know(self, tensor: Tensor, origin: Origin) -> None:
        self._origins[id(tensor)] = tensor, origin

    def _origin(self, tensor: Any) -> Origin:
        known = self._origins.get(id(tensor))
        if known is None:
            self.complete = False
            return _nowhere
        return known[1]

    def derived(self, child: Tensor, parent: Tensor, how: Callable[[Tensor], Tensor]) -> None:
        """`child` is `how(parent)`."""
        known = self._origins.get(id(parent))
        if known is not None:
            origin = known[1]
            self._know(child, lambda run: how(origin(run)))

    def unbound(self, pieces: tuple[Tensor, ...], parent: Tensor) -> None:
        """The pieces are parent.unbind(1); a later run takes it apart once, too."""
        known = self._origins.get(id(parent))
        if known is not None:
            all_pieces = _Unbound(known[1])
            for k, piece in enumerate(pieces):
                self._know(piece, lambda run, k=k: all_pieces(run)[k])

    def ran(
        self, program: Program, inputs: list[Tensor], scales: list[Any], wanted: Tensor, outputs: Tensor, draws: bool
    ) -> None:
        place, self.programs = self.programs, self.programs + 1
        self.draws = self.draws or draws
        self._know(outputs, lambda run: run.outputs[place])
        if not self.complete:
            return
        known: Any = tuple(self._origin(s) if isinstance(s, Tensor) else s for s in scales)
        if not any(isinstance(s, Tensor) for s in scales):
            known = steepness_tensor(scales, program.constants)
        origins = tuple(self._origin(tensor) for tensor in inputs)
        self._events.append(Step(program, wanted, origins, known, draws))

    def asked(self, value: Value, question: Callable[[Tensor], Hashable], answer: Hashable) -> None:
        self._events.append(Look(self.of_value(value), question, answer))

    def of_value(self, value: Value) -> Origin:
        """Where the tensor of a value comes from, which has the batch in front."""
        if not value.batched:
            self.complete = False
        if value.source is not None:
            tensor, column = value.source
            origin = self._origin(tensor)
            return lambda run: origin(run).select(1, column)
        if value.parted:
            parts = value.parts
            if all(type(part) is Value and part.batched for part in parts) and parts:
                origins = [self.of_value(part) for part in parts]
                return lambda run: torch.stack([origin(run) for origin in origins], dim=1)
        return self._origin(value.tensor)

    def notes(self, result: Any, iterations: dict[int, int]) -> list[Step | Look | Ending] | None:
        """The events of the whole run, ended by its result; None where they are not all that happened."""
        self._returned = Counter(id(value.source[0]) for value in flat(result) if value.source is not None)
        template = self._template(result) if self.complete else None
        return [*self._events, Ending(template, dict(iterations))] if self.complete else None

    def _result(self, value: Value) -> Origin:
        """Like `of_value`, for what is returned: a table's columns are taken apart together, and so are their gradients put
        together, each of which would else be a table of its own. Copies, since views of many may not be changed in place."""
        if value.source is None or self._returned[id(value.source[0])] < SEVERAL:
            return self.of_value(value)
        tensor, column = value.source
        origin = self._origin(tensor)
        pieces = self._pieces.setdefault(id(tensor), _Unbound(origin))
        return lambda run: pieces(run)[column].clone()

    def _template(self, x: Any) -> Any:
        if type(x) is Value:
            return Leaf(self._result(x))
        if isinstance(x, tuple) and hasattr(x, "_fields"):
            return type(x)(*map(self._template, x))
        if type(x) in (list, tuple):
            return type(x)(map(self._template, x))
        if type(x) is dict:
            return {key: self._template(part) for key, part in x.items()}
        if is_record(x):
            return record_like(x, {name: self._template(getattr(x, name)) for name in record_fields(x)})
        if x is not None and not isinstance(x, (*NUMBERS, str)):
            self.complete = False
        return x


def _nowhere(run: Run) -> Tensor:
    raise RuntimeError("a tensor of unknown origin in a recording.")


class _Node:
    """A stretch of a recording: steps, then a look that decides which way to go on, or the end."""

    __slots__ = ("ending", "look", "steps", "ways")

    def __init__(self):
        self.steps: list[Step] = []
        self.look: Look | None = None
        self.ways: dict[Hashable, _Node] = {}
        self.ending: Ending | None = None


def _way(notes: list[Step | Look | Ending]) -> _Node:
    """One run, from here to its end."""
    first = node = _Node()
    for event in notes:
        if isinstance(event, Step):
            node.steps.append(event)
        elif isinstance(event, Look):
            node.look = event
            node.ways[event.answer] = node = _Node()
        else:
            node.ending = event
    return first


def _length(notes: list[Step | Look | Ending]) -> int:
    return sum(event.length for event in notes if isinstance(event, Step))


class Recording:
    """All recorded runs with one key. Nodes are whole before anybody sees them: threads may read."""

    def __init__(self, notes: list[Step | Look | Ending]):
        self._root = _way(notes)
        self.ways = 1
        self.length = _length(notes)

    def run(
        self, arguments: list[Tensor], tensors: list[Tensor], size: int | None, draws: Any, steeper: float = 1.0
    ) -> Ending | None:
        """The result (values for leaves; without the batch if `size` is None); None where the way is not known yet."""
        single = size is None
        run, node = Run(arguments, tensors, [], {}, 1 if single else size, draws, steeper), self._root
        while True:
            for step in node.steps:
                run.outputs.append(step.run(run))
            if node.ending is not None:
                return node.ending._replace(result=_filled(node.ending.result, run, single))
            answer = None if node.look is None else node.look.question(node.look.at(run).detach())
            way = node.ways.get(answer)
            if way is None and steeper != 1.0:
                way = next((way for known, way in node.ways.items() if _includes(known, answer)), None)
            if way is None:
                return None
            node = way

    def learn(self, notes: list[Step | Look | Ending]) -> None:
        """One more way, from where it leaves those that are known."""
        node = self._root
        for k, event in enumerate(notes):
            if not isinstance(event, Look):
                continue
            if event.answer not in node.ways:
                if self.ways < WAYS:
                    rest = notes[k + 1 :]
                    node.ways[event.answer] = _way(rest)
                    self.ways += 1
                    self.length += _length(rest)
                return
            node = node.ways[event.answer]


def _includes(known: Any, answer: Any) -> bool:
    """Whether a way goes wherever an answer leads, and further where nobody is: answers are yes or no, or several of them."""
    pairs = zip(known, answer, strict=True) if isinstance(known, tuple) else [(known, answer)]
    return all(wide or not narrow for wide, narrow in pairs)


def _filled(x: Any, run: Run, single: bool) -> Any:
    if type(x) is Leaf:
        tensor = x.origin(run)
        return Value(tensor.squeeze(0), False, EAGER) if single else Value(tensor, True, EAGER)
    if isinstance(x, tuple) and hasattr(x, "_fields"):
        return type(x)(*[_filled(part, run, single) for part in x])
    if type(x) in (list, tuple):
        return type(x)([_filled(part, run, single) for part in x])
    if type(x) is dict:
        return {key: _filled(part, run, single) for key, part in x.items()}
    if is_record(x):
        return record_like(x, {name: _filled(getattr(x, name), run, single) for name in record_fields(x)})
    return x


class Recordings:
    """The recordings of one function, the latest used last; the oldest go when there are too many."""

    def __init__(self):
        self._recordings: OrderedDict[Hashable, Recording] = OrderedDict()
        #: How many runs with a key could not be kept, and how many programs ran in the last of them.
        self._failures: OrderedDict[Hashable, tuple[int, int]] = OrderedDict()
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._recordings)

    def __iter__(self) -> Iterator[Recording]:
        return iter(list(self._recordings.values()))

    def forget(self) -> None:
        """All of it: the next call of every kind is recorded."""
        with self._lock:
            self._recordings.clear()
            self._failures.clear()

    def find(self, key: Hashable) -> Recording | None:
        with self._lock:
            recording = self._recordings.get(key)
            if recording is not None:
                self._recordings.move_to_end(key)
            return recording

    def failed(self, key: Hashable, programs: int) -> None:
        """A run with this key, of so many programs, could not be kept."""
        with self._lock:
            times, _ = self._failures.pop(key, (0, 0))
            self._failures[key] = times + 1, programs
            if len(self._failures) > WAYS:
                self._failures.popitem(last=False)

    def given_up(self, key: Hashable) -> int | None:
        """How many programs runs with this key have, where they are no longer kept; None where they are."""
        times, programs = self._failures.get(key, (0, 0))
        return programs if times >= ATTEMPTS else None

    def learn(self, key: Hashable, notes: list[Step | Look | Ending]) -> None:
        with self._lock:
            self._failures.pop(key, None)
            if key in self._recordings:
                self._recordings[key].learn(notes)
            else:
                self._recordings[key] = Recording(notes)
            total = sum(recording.length for recording in self._recordings.values())
            while len(self._recordings) > 1 and (total > CAPACITY or len(self._recordings) > WAYS):
                total -= self._recordings.popitem(last=False)[1].length


class Recall:
    """One call with a key: run again as it is known, or recorded and kept."""

    def __init__(self, recordings: Recordings, key: Hashable, found: Found, arguments: list[Tensor], size: int | None):
        self._recordings = recordings
        self._key = key
        self._found = found
        self._arguments = arguments
        self._size = size
        self._journal: Journal | None = None

    def again(self, report: Report, draws: Any) -> Any:
        """The result without running the program; None where it has to."""
        ending = self._run(draws)
        if ending is None:
            return None
        report.iterations.update(ending.iterations)
        return ending.result

    def steeper(self, factor: float) -> Any:
        """The result with every steepness multiplied; None where that goes a way that is not recorded."""
        ending = self._run(None, factor)
        return None if ending is None else ending.result

    def _run(self, draws: Any, steeper: float = 1.0) -> Ending | None:
        recording = self._recordings.find(self._key)
        if recording is None:
            return None
        arguments = [t.unsqueeze(0) for t in self._arguments] if self._size is None else self._arguments
        return recording.run(arguments, self._found.tensors, self._size, draws, steeper)

    @property
    def plain(self) -> bool:
        """Whether such runs were found to have nothing to record: they compute with vectors, not with numbers."""
        return self._recordings.given_up(self._key) == 0

    def begin(self, arguments: list[Value]) -> Journal | None:
        """A journal of the recording that follows, on these arguments; None where that is given up."""
        if self._recordings.given_up(self._key) is not None:
            return None
        settings = [function.settings for function in self._found.functions]
        scales = [getattr(relax, "steepness", None) for s in settings for relax in (s.relax, s.exit)]
        fixed = [s for s in scales if isinstance(s, Tensor)]
        self._journal = Journal([value.tensor for value in arguments], self._found.tensors, fixed)
        return self._journal

    def learn(self, result: Any, report: Report) -> None:
        """Keep what the journal has, if that is the whole run."""
        if self._journal is None:
            return
        notes = self._journal.notes(result, report.iterations)
        if notes is not None:
            self._recordings.learn(self._key, notes)
        else:
            self._recordings.failed(self._key, self._journal.programs)


def recall(
    function: Any,
    values: list[Any],
    found: list[Value],
    options: dict[str, Any],
    size: int | None,
    parameters: Any = None,
) -> Recall | None:
    """The call of a smooth function on these arguments, if there is a key to know it by; `found` are the tensors in them."""
    if not found or transforming():
        return None
    seen = Found(function)
    try:
        key = (
            size is None,
            torch.get_default_dtype(),
            # Tensors made in that mode are no good outside of it, and recordings hold some
            torch.is_inference_mode_enabled(),
            function.outside.of_arguments(values, seen),
            describe(open_blocks(), seen),
            describe(options, seen),
            function.outside.key(seen),
            describe(parameters, seen),
        )
        hash(key)
    except (UnknownError, TypeError, RecursionError):
        return None
    return Recall(function.recordings, key, seen, [value.tensor for value in found], size)

"""One call of a smooth function, by whichever way its paths are taken: from arguments to the mean over paths.

`Merge` runs the program once. `Particles` and `Perturb` run it on copies of every item side by side, and take the mean with a
surrogate whose gradient is that of the mean; `Enumerate` runs it once for each path, all of them into one recording.
"""

from __future__ import annotations

import dataclasses
import warnings
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from .machine.containers import lowered, mapped
from .machine.eager import EAGER
from .machine.recording import machine_for, recordable
from .machine.replay import Recall, recall
from .machine.values import Value
from .machine.watching import Watch
from .paths import Enumerate, Merge, Particles, Paths, Perturb
from .report import Report
from .runtime.deciding import Answers, Coins, Draws, Numbers, PathEndedError
from .runtime.frame import Frame
from .runtime.merging import Mixture
from .softness import Settings

#: How much probability the paths that `Enumerate` leaves out may have together.
MISSING = 0.01
#: From so many decisions on, a result that differs from the crisp one by more than this share is worth a warning. A few
#: soft decisions blur; many of them lead to states that are none.
MANY = 32
GROSS = 0.9


@dataclass
class Call:
    """A call with its arguments as values; `found` are the tensors among them, `size` is the batch (None for one item)."""

    function: Any
    values: list[Any]
    found: list[Value]
    settings: Settings
    options: dict[str, Any]
    size: int | None
    half: torch.dtype | None
    report: Report
    draws: Draws
    #: Weights and biases of its assignments, where it is trained, and the gates on them, where these are asked about.
    parameters: tuple[Tensor, Tensor] | None = None
    gates: Tensor | None = None
    #: How many decisions on tensors the run took, where it was recorded or run and not repeated.
    decisions: int = 0
    #: Whether the run did nothing but arithmetic and decisions.
    pure: bool = False

    @property
    def like(self) -> Tensor | None:
        return next((v.tensor for v in self.found if v.tensor.is_floating_point()), None)

    def lowered(self, result: Any) -> Any:
        return lowered(result, self.size, self.half, self.like)

    def frame(self) -> Frame:
        function = self.function
        frame = Frame(function.__name__, function._file, self.settings, self.report, size=self.size)
        frame.overrides, frame.outside, frame.draws = self.options, function.outside, self.draws
        if self.like is not None:
            frame.precision = self.like.dtype
        frame.parameters = self.parameters
        if self.gates is not None:
            frame.gates = Value(self.gates, self.size is not None, EAGER)
        return frame

    def run(self, program: Any) -> Any:
        """program(frame), repeated where it is known, else run and kept."""
        known = None
        if recordable(self.settings):
            known = recall(self.function, self.values, self.found, self.options, self.size, self.parameters)
        result = None if known is None else known.again(self.report, self.draws)
        return self.recorded(program, known) if result is None else result[0]

    def recorded(self, program: Any, known: Recall | None) -> Any:
        """The result of running the program; what it recorded is kept where it can be run again."""
        frame = self.frame()
        outside = () if self.parameters is None else self.parameters
        machine = frame.machine = machine_for(self.found, frame.settings, self.size is not None, outside)
        journal = machine.journal_for(known, self.found)
        if known is None or journal is None:
            result = (program(frame),)
            machine.settle(result)
        else:
            with Watch(journal):
                result = (program(frame),)
                machine.settle(result)
            known.learn(result, frame.report)
            self.pure = journal.complete and not journal.draws
        self.decisions = frame.report.decisions
        return result[0]

    def copied(self, count: int) -> Call:
        """The same call on `count` copies of each item, one after the other."""

        def copies(value: Value) -> None:
            tensor = value.tensor
            if self.size is None:
                value.settle(tensor.expand(count, *tensor.shape))
                value.batched = True
            elif value.batched:
                value.settle(tensor.repeat_interleave(count, 0))

        for value in self.found:
            copies(value)
        return dataclasses.replace(self, size=count * (1 if self.size is None else self.size))


def outcome(call: Call) -> Any:
    """The result, as the caller sees it."""
    paths = call.settings.paths
    if type(paths) is not Merge:
        _check(call)
    return _WAYS[type(paths)](call, paths)


def _check(call: Call) -> None:
    name = type(call.settings.paths).__name__
    if type(call.settings.paths) not in _WAYS:
        raise TypeError(f"{call.function.__name__}: unknown paths {call.settings.paths!r}.")
    if call.settings.checkpoint or call.settings.hard:
        option = "checkpoint" if call.settings.checkpoint else "hard"
        raise ValueError(f"{call.function.__name__}: {option}=True goes with paths=Merge(), not with {name}.")
    if isinstance(call.settings.paths, Perturb) and call.parameters is not None:
        raise ValueError(
            f"{call.function.__name__}: Perturb moves arguments and gives weights and biases no gradient; train with Merge(), "
            "Particles(64) or Enumerate(1024)."
        )
    if call.like is None:
        raise ValueError(f"{call.function.__name__}: paths={name} needs a floating tensor among the arguments.")


def _merge(call: Call, paths: Merge) -> Any:
    found = call.lowered(call.run(lambda frame: call.function._run(frame, call.values)))
    # A program that was trained is not meant to be the one as written
    comparable = call.pure and call.parameters is None
    if paths.check and call.decisions >= MANY and comparable and not call.function.checked:
        call.function.checked = True
        warn_if_gross(call, found)
    return found


class MergedStatesWarning(UserWarning):
    """The result of merging states is far from what the program gives."""


def warn_if_gross(call: Call, found: Any) -> None:
    """One warning where the result is nowhere near that of the crisp program, on the first few items."""
    items = 1 if call.size is None else min(call.size, 4)
    try:
        with torch.no_grad():
            crisp = as_written(call, items)
            soft = found if call.size is not None else mapped(lambda x: x[None] if isinstance(x, Tensor) else x, found)
            gap = _distance(soft, crisp, items)
    except Exception:
        # The crisp program may refuse tensors, or these numbers; then there is nothing to compare with
        return
    if gap > GROSS:
        name = call.function.__name__
        warnings.warn(
            f"{name}: after {call.decisions} smooth decisions the merged state is far from any that the program has: the "
            f"result differs from the crisp one by {gap:.0%} of it. Try paths=Particles(64) or a higher steepness, ask "
            f"softness_report({name}, ...) for the line to blame, or silence this by paths=Merge(check=False).",
            MergedStatesWarning,
            stacklevel=5,
        )


def _distance(soft: Any, crisp: Any, items: int) -> float:
    """The distance of all numbers of two results, relative to the second; 0 where that has nothing but zeros."""
    pairs: list[tuple[Tensor, Tensor]] = []

    def note(s: Any, c: Any) -> None:
        if isinstance(s, Tensor) and isinstance(c, Tensor):
            pairs.append((s[:items].double().flatten(), c.double().flatten()))

    mapped(note, soft, crisp)
    if not pairs:
        return 0.0
    one, other = (torch.cat(column) for column in zip(*pairs, strict=True))
    scale = float(other.norm())
    return float((one - other).norm()) / scale if scale > 0 else 0.0


def _particles(call: Call, paths: Particles) -> Any:
    many = call.copied(paths.count)

    def program(frame: Frame) -> tuple[Any, Any]:
        frame.decider = coins = Coins()
        return many.function._run(frame, many.values), coins.score

    result, score = many.lowered(many.run(program))
    call.decisions = many.decisions
    return _means(result, score, call, paths.count)


def _means(result: Any, score: Any, call: Call, count: int) -> Any:
    """Means over the copies of each item, with the gradient of the mean over what they drew."""
    size = 1 if call.size is None else call.size

    def mean(x: Any) -> Any:
        if not isinstance(x, Tensor):
            return x
        f = x.reshape(size, count, *x.shape[1:]).to(x.dtype if x.is_floating_point() else torch.get_default_dtype())
        if isinstance(score, Tensor) and score.requires_grad:
            total = score.reshape(size, count, *[1] * (f.dim() - 2))
            # The mean of the others: it knows nothing of this one's coins, so it moves no expectation
            others = ((f.sum(1, keepdim=True) - f) / (count - 1)).detach()
            f = (f - others) * torch.exp(total - total.detach()) + others
        found = f.mean(1)
        return found if call.size is not None else found[0]

    return mapped(mean, result)


def _enumerate(call: Call, paths: Enumerate) -> Any:
    name = call.function.__name__

    def program(frame: Frame) -> Any:
        open_, total, count, most = [[]], Mixture(("the returned value",)), 0, 0
        while open_:
            one = call.frame()
            one.machine, one.decider = frame.machine, Answers(open_.pop())
            call.draws.restart()
            try:
                result = (call.function._run(one, call.values),)
            except PathEndedError:
                result = None
            # The other ways of this one's decisions, also where it came to nothing itself
            open_ += one.decider.others
            count, most = count + 1, max(most, len(one.decider.others))
            if count + len(open_) > paths.limit:
                raise ValueError(
                    f"{name}: more than {paths.limit} paths (Enumerate's limit): {count} were taken, {len(open_)} more are "
                    f"known, and one path met {most} open decisions, so there may be some {2.0**most:.3g}; raise the limit "
                    "or use Particles."
                )
            if result is not None:
                total.add(one.decider.weight, result)
        if call.settings.epsilon == 0:
            return total.result(normalise=False, machine=frame.machine)[0]
        mass = total.mass
        if mass is None or (isinstance(mass, Value) and frame.any_left(frame.operate("cut", 1.0 - mass, MISSING))):
            raise ValueError(
                f"{name}: the paths above epsilon hold less than {1 - MISSING:.0%} of the probability; lower epsilon or use "
                "Particles."
            )
        return total.result(normalise=True, machine=frame.machine)[0]

    return call.lowered(call.run(program))


def _perturb(call: Call, paths: Perturb) -> Any:
    for value in call.found:
        if call.size is not None and not value.batched:
            # Every sample has its own noise on what all items share; the gradient sums up
            value.settle(value.tensor.expand(call.size, *value.tensor.shape))
            value.batched = True
    many = call.copied(paths.count)
    size = 1 if call.size is None else call.size
    noise = torch.Generator().manual_seed(int(call.draws.seed[0]) * 2**31 + int(call.draws.seed[1]) % 2**31)
    score: Any = 0.0
    for value in many.found:
        if not value.tensor.is_floating_point():
            continue
        half = torch.randn(size, paths.count // 2, *value.tensor.shape[1:], generator=noise, dtype=torch.float64)
        pairs = torch.stack([half, -half], 2).flatten(0, 2).to(value.tensor)
        centre = value.tensor
        moved = (centre + paths.scale * pairs).detach()
        value.settle(moved)
        distance = ((moved - centre) / paths.scale).square()
        score = score - 0.5 * distance.reshape(distance.shape[0], -1).sum(1)

    def program(frame: Frame) -> Any:
        frame.decider = Numbers()
        return many.function._run(frame, many.values)

    with torch.no_grad():
        result = _as_written(many) if paths.as_written else many.lowered(many.run(program))
    return _paired_means(result, score, call, paths.count)


def _as_written(call: Call) -> Any:
    """The crisp function on each item by itself."""
    return as_written(call, call.size or 0)


def as_written(call: Call, items: int) -> Any:
    """The results of the crisp function on the first items, one after the other, put together."""
    precision = torch.get_default_dtype() if call.like is None else call.like.dtype
    results = []
    for k in range(items):
        arguments = mapped(lambda v, k=k: _item(v, k), call.values)
        results.append(call.function.crisp(*arguments))

    def stack(*parts: Any) -> Any:
        if all(isinstance(p, (Tensor, int, float)) for p in parts):
            return torch.stack([torch.as_tensor(p, dtype=getattr(p, "dtype", precision)) for p in parts])
        return parts[0]

    return mapped(stack, *results)


def _item(value: Any, k: int) -> Any:
    if type(value) is not Value:
        return value
    return value.tensor[k] if value.batched else value.tensor


def _paired_means(result: Any, score: Any, call: Call, count: int) -> Any:
    """Means over pairs of copies with opposite noise: each one's baseline is its pair's mean."""
    size = 1 if call.size is None else call.size

    def mean(x: Any) -> Any:
        if not isinstance(x, Tensor):
            return x
        f = x.reshape(size, count // 2, 2, *x.shape[1:])
        f = f if f.is_floating_point() else f.to(torch.get_default_dtype())
        if isinstance(score, Tensor) and score.requires_grad:
            total = score.reshape(size, count // 2, 2, *[1] * (f.dim() - 3))
            f = f + (f - f.mean(2, keepdim=True)) * (total - total.detach())
        found = f.mean((1, 2))
        return found if call.size is not None else found[0]

    return mapped(mean, result)


_WAYS: dict[type[Paths], Any] = {Merge: _merge, Particles: _particles, Enumerate: _enumerate, Perturb: _perturb}

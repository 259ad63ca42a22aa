"""One call of a smooth function, by whichever way its paths are taken: from arguments to the mean over paths.

`Merge` runs the program once. `Particles` and `Perturb` run it on copies of every item side by side, and take the mean with a
surrogate whose gradient is that of the mean; `Enumerate` runs it once for each path, all of them into one recording.
"""

from __future__ import annotations

import dataclasses
import math
import warnings
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from algonet.core import tracing
from algonet.core.memory import check_memory

from .machine.credit import credit
from .machine.eager import EAGER
from .machine.replay import Lowering, Recall, recall
from .machine.tape import machine_for, recordable
from .machine.values import Value, flat, leaves, mapped, refilled
from .operation import Draws
from .runtime.frame import Answers, Coins, Frame, Numbers, PathEndedError
from .runtime.merging import Mixture
from .softness import Enumerate, Merge, Particles, Paths, Perturb, Report, Settings

#: How much probability the paths that `Enumerate` leaves out may have together.
MISSING = 0.01


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
    parameters: tuple[Tensor, ...] = ()
    gates: Tensor | None = None
    #: What it is known by, and was looked up under.
    recall: Recall | None = None

    @property
    def like(self) -> Tensor | None:
        """A floating tensor among the arguments, for its precision and device."""
        return next((v.tensor for v in self.found if v.tensor.is_floating_point()), None)

    @property
    def lowered(self) -> Lowering:
        like = self.like
        return Lowering(self.size, self.half, None if like is None else (like.dtype, like.device))

    def frame(self) -> Frame:
        like = self.like
        precision = torch.get_default_dtype() if like is None else like.dtype
        gates = None if self.gates is None else Value(self.gates, self.size is not None, EAGER)
        shared = self.size, self.options, self.draws, precision, self.parameters, gates, EAGER
        return Frame(self.function, self.settings, self.report, *shared)

    def run(self, program: Any) -> Any:
        """The lowered result of program(frame), repeated where it is known, else run and kept."""
        if self.recall is None and recordable(self.settings):
            way = type(self.settings.paths)
            known = recall(self.function, way, self.values, self.options, self.size is not None, self.parameters)
            if known is not None:
                self.recall, known.arguments = known, [value.tensor for value in self.found]
                outputs = known.run(self.draws)
                if outputs is not None:
                    self.report.iterations.update(outputs.iterations)
                    return outputs.result[0]
        return self.lowered(self.recorded(program, self.recall))

    def recorded(self, program: Any, known: Recall | None) -> Any:
        """The result of running the program; what it recorded is kept where it can be run again."""
        frame, lowering = self.frame(), self.lowered
        machine = machine_for(self.found, self.settings, self.size is not None, self.parameters, known)
        frame.machine = machine
        with nullcontext() if machine.trace is None else machine.trace.watch:
            result = (program(frame),)
            machine.settle(result)
        if known is not None:
            known.learn(result, lowering, frame.report.iterations)
        gaps, frame.report.gaps = frame.report.gaps, []
        looked = self.function.looked or self.settings.hard or self.size == 0
        if gaps and not looked and any(v.tensor.requires_grad for v in flat(result)):
            self.function.looked = True
            self._warn_if_flat([(line, gap.tensor) for line, gap in gaps if gap.tensor.requires_grad])
        return result[0]

    def _warn_if_flat(self, gaps: list[tuple[tuple[str, int], Tensor]]) -> None:
        """One warning where gradients want to pass `==` or a real subscript, and the exit is flat on all it is asked about."""
        exit_ = self.settings.exit
        if not gaps or not exit_.exact_on_integers or any(bool((gap % 1).any()) for _, gap in gaps):
            return
        (file, line), _ = gaps[0]
        warnings.warn_explicit(
            f"{self.function.__name__}: the `==` or real subscript in line {line} of {file} meets whole numbers only, where "
            f"{exit_!r} has slope 0: no gradient passes it. What helps: exit=Sech(1.0), which has a slope between different "
            "integers; or probabilities of letters, (p * q).sum() in the place of p == q.",
            UserWarning,
            file,
            line,
        )

    def copied(self, count: int) -> Call:
        """The same call on `count` copies of each item, one after the other."""
        items = count * (1 if self.size is None else self.size)
        # Each has at least one number per variable, and a gradient
        for value in self.found:
            tensor = value.tensor
            each = math.prod(tensor.shape[1:] if value.batched else tensor.shape) * tensor.element_size()
            check_memory("paths", f"{count} copies of each item", 2 * items * each, tensor.device)

            if self.size is None:
                value.settle(tensor.expand(count, *tensor.shape))
                value.batched = True
            elif value.batched:
                value.settle(tensor.repeat_interleave(count, 0))
        return dataclasses.replace(self, size=items)


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
    if call.settings.hard:
        raise ValueError(f"{call.function.__name__}: hard=True goes with paths=Merge(), not with {name}.")
    if isinstance(call.settings.paths, Perturb) and call.parameters:
        raise ValueError(
            f"{call.function.__name__}: Perturb moves arguments and gives weights and biases no gradient; train with Merge(), "
            "Particles(64) or Enumerate(1024)."
        )
    if call.like is None:
        raise ValueError(f"{call.function.__name__}: paths={name} needs a floating tensor among the arguments.")


def _merge(call: Call, paths: Paths) -> Any:
    return call.run(lambda frame: call.function._run(frame, call.values))


def crisply(call: Call) -> Any:
    """The result with every decision taken as Python takes it: the crisp program, but for tensors that are changed in place,
    whose parts are views: as written, `a[0], a[1] = a[1], a[0]` on a tensor is no exchange."""
    return call.lowered(call.recorded(_crisp_program(call), None))


def _crisp_program(call: Call) -> Callable[[Frame], Any]:
    def program(frame: Frame) -> Any:
        frame.decider = Numbers()
        return call.function._run(frame, call.values)

    return program


def _particles(call: Call, paths: Particles) -> Any:
    many = call.copied(paths.count)

    def program(frame: Frame) -> tuple[Any, ...]:
        frame.decider = coins = Coins()
        result = many.function._run(frame, many.values)
        placed, numbers = _placed(result, frame)
        found = credit(frame.machine, numbers, coins.shown, paths.expected) if numbers else None
        if found is None:
            return result, None, [], coins.score
        return placed, *found, coins.score if flat(placed) else None

    result, columns, counts, score = many.run(program)
    result = _by_shape(lambda f: _mean(f, score, call, 1), result)
    if columns is None:
        return result
    terms, scores = columns.unflatten(1, (2, -1)).unbind(1)
    return _filled(result, _mean(terms, scores, call, 1), counts)


def _mean(f: Tensor, score: Any, call: Call, each: int) -> Tensor:
    """The mean of f (copies, ...) over the copies of each item, whose logarithms of probabilities are `score` (broadcast to f).

    Value and all derivatives are those of the mean of (f - b) exp(score - detached score) + b, b the mean f of the *other*
    copies: it knows nothing of this one's draws, so it moves no expectation. Pairs of opposite noise (`each` = 2) have the mean
    of the other pairs: in the first derivative, where the two have opposite scores, it cancels; in the second it does not.
    """
    size, paths = 1 if call.size is None else call.size, call.settings.paths
    assert isinstance(paths, (Particles, Perturb))
    f = f.reshape(size, paths.count // each, each, *f.shape[1:])
    if isinstance(score, Tensor) and (tracing.transforming() or tracing.differentiating((score,))):
        score = score.reshape(*f.shape[:3], *score.shape[1:], *[1] * (f.dim() - 2 - score.dim()))
        means = f.mean(2, keepdim=True)
        others = (means.sum(1, keepdim=True) - means) / max(f.shape[1] - 1, 1)
        others = others.detach() if each == 1 else others
        f = (f - others) * torch.exp(score - score.detach()) + others
    means = f.mean((1, 2))
    return means if call.size is not None else means[0]


class _Place(int):
    """Where a number of a result (or a vector of that `length`) is among those that are taken apart."""

    length: int | None = None


def _placed(result: Any, frame: Frame) -> tuple[Any, list[Value]]:
    """A result with places for its recorded numbers, and these."""
    numbers: list[Value] = []

    def place(x: Any) -> Any:
        if type(x) is not Value or x.machine is not frame.machine or x.has_tensor:
            return x
        own = x.parts if x.parted else [x]
        if not own or not all(type(part) is Value and part.row is not None and not part.has_tensor for part in own):
            return x
        found = _Place(len(numbers))
        found.length = len(own) if x.parted else None
        numbers.extend(own)
        return found

    return mapped(place, result), numbers


def _filled(result: Any, means: Tensor, counts: list[int]) -> Any:
    """A result with the sums of their terms at the places of its numbers."""
    if means.shape[-1] > len(counts):
        own = torch.repeat_interleave(torch.arange(len(counts)), torch.tensor(counts)).to(means.device)
        means = means.new_zeros(*means.shape[:-1], len(counts)).index_add(-1, own, means)
    columns = means.unbind(-1)

    def fill(x: Any) -> Any:
        if type(x) is not _Place:
            return x
        return columns[x] if x.length is None else means[..., x : x + x.length]

    return mapped(fill, result)


def _by_shape(mean: Callable[[Tensor], Tensor], result: Any) -> Any:
    """`mean` of all tensors of a result, those of one kind together: a list of a hundred numbers costs as much as one."""
    kinds: dict[Any, list[Tensor]] = {}
    for x in leaves(result):
        if isinstance(x, Tensor):
            kinds.setdefault((x.shape, x.dtype), []).append(x)
    found = {}
    for kind, tensors in kinds.items():
        dtype = kind[1] if kind[1].is_floating_point else torch.get_default_dtype()
        means = mean((tensors[0] if len(tensors) == 1 else torch.stack(tensors, -1)).to(dtype))
        found[kind] = iter([means] if len(tensors) == 1 else means.unbind(-1))
    return mapped(lambda x: next(found[x.shape, x.dtype]) if isinstance(x, Tensor) else x, result)


def _enumerate(call: Call, paths: Enumerate) -> Any:
    name = call.function.__name__
    if call.size == 0:
        # Which paths are taken makes no difference, and none may be taken at all
        return _merge(call, paths)

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
            return total.result(normalise=False)[0]
        mass = total.mass
        if mass is None or (isinstance(mass, Value) and frame.any_left(frame.operate("cut", 1.0 - mass, MISSING))):
            raise ValueError(
                f"{name}: the paths above epsilon hold less than {1 - MISSING:.0%} of the probability; lower epsilon or use "
                "Particles. Decisions on NaN have no path at all: see whether there is one among the arguments."
            )
        return total.result(normalise=True)[0]

    return call.run(program)


def _scales(call: Call, paths: Perturb) -> list[tuple[Value, Any]]:
    """The floating tensors that get noise, each with the noise's size."""
    scale: Any = paths.scale
    if not isinstance(scale, Mapping):
        return [(value, scale) for value in call.found if value.tensor.is_floating_point()]
    names, found = call.function.parameter_names, []
    for name, size in scale.items():
        if name not in names:
            raise ValueError(f"{call.function.__name__}: Perturb's scale names {name!r}, which is no parameter of it.")
        inside = [v for v in flat(call.values[names.index(name)]) if v.tensor.is_floating_point()]
        if not inside:
            raise ValueError(f"{call.function.__name__}: Perturb's scale names {name!r}, which has no floating tensor.")
        found += [(value, size) for value in inside]
    return found


def _perturb(call: Call, paths: Perturb) -> Any:
    if call.size == 0:
        return _merge(call, paths)
    noisy = _scales(call, paths)
    for value, _ in noisy:
        if call.size is not None and not value.batched:
            # Every sample has its own noise on what all items share; the gradient sums up
            value.settle(value.tensor.expand(call.size, *value.tensor.shape))
            value.batched = True
    many = call.copied(paths.count)
    size = 1 if call.size is None else call.size
    noise = torch.Generator().manual_seed(_number(call))
    score: Any = 0.0
    for value, scale in noisy:
        half = torch.randn(size, paths.count // 2, *value.tensor.shape[1:], generator=noise, dtype=torch.float64)
        pairs = torch.stack([half, -half], 2).flatten(0, 2).to(value.tensor)
        centre = value.tensor
        moved = (centre + scale * pairs).detach()
        value.settle(moved)
        distance = ((moved - centre) / scale).square()
        score = score - 0.5 * distance.reshape(distance.shape[0], -1).sum(1)
    result = _as_written(many) if paths.as_written else many.run(_crisp_program(many))
    return _by_shape(lambda f: _mean(f, score, call, 2), result)


def _number(call: Call) -> int:
    """The seed of a call as a number."""
    try:
        return int(call.draws.seed[0]) * 2**31 + int(call.draws.seed[1]) % 2**31
    except RuntimeError as error:  # What torch raises where vmap draws a seed for each item
        raise ValueError(
            f"{call.function.__name__}: paths=Perturb draws for all items at once, not under torch.vmap with "
            'randomness="different"; call it with batched=True.'
        ) from error


def _as_written(call: Call) -> Any:
    """The results of the function as written on all items, one after the other, put together."""
    precision = torch.get_default_dtype() if call.like is None else call.like.dtype
    results = []
    for k in range(call.size or 0):
        item = refilled(call.values, [v.tensor[k] if v.batched else v.tensor for v in call.found])
        results.append(call.function.crisp(*item))

    def stack(*parts: Any) -> Any:
        if all(isinstance(p, (Tensor, int, float)) for p in parts):
            return torch.stack([torch.as_tensor(p, dtype=getattr(p, "dtype", precision)) for p in parts])
        return parts[0]

    return mapped(stack, *results)


_WAYS: dict[type[Paths], Any] = {Merge: _merge, Particles: _particles, Enumerate: _enumerate, Perturb: _perturb}

"""Is merging states the right way for this program, and if not, which line is to blame and what else is there?

The first result of many decisions is compared with the crisp one unasked: a mean may be a state that no program ever reaches.
"""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from algonet.core.extras import require
from algonet.relax.report import VANISHED, SoftnessReport

from .machine.values import flat, leaves, mapped, refilled
from .running import Call, crisply, outcome
from .runtime.frame import Sites
from .softness import Enumerate, Merge, Particles, Paths, Perturb

#: Particles that stand for the truth where there are too many paths to enumerate.
PLENTY = 4096
#: Lines that are tried one by one.
MOST_LINES = 16
#: From so many decisions on a result is compared with the crisp one: a few soft decisions blur, many of them lead to states
#: that are none. One that is further from it than `GROSS` of it is worth a warning, if it is also further than `APART` of it
#: from the mean over paths at the same softness: where that is as far from the crisp result, the program is merely soft.
MANY = 32
GROSS, APART = 0.9, 0.5
#: What every steepness is multiplied by for a result that is nearly the crisp one.
STEEP = 2.0**20
#: Particles that the mean over paths is taken of, on so many items at most.
PROBES, ITEMS = 64, 4


class MergedStatesWarning(UserWarning):
    """The result of merging states is far from what the program gives."""


def check_once(call: Call, result: Any) -> None:
    """One warning where the first result that took many decisions is nowhere near what the program gives, and merging, not
    softness, is why; unless `Merge` was told not to look.

    What was recorded runs once more, so steeply that its states are those of the crisp program, up to ties; only where that is
    far away, or goes where the recording does not, is the program itself run crisply, which takes as long as recording it.
    """
    function, recording, paths = call.function, call.recall, call.settings.paths
    # A program that was trained is not meant to be the one as written
    if (
        call.report.decisions < MANY
        or function.checked
        or call.parameters
        or not isinstance(paths, Merge)
        or not paths.check
    ):
        return
    if recording is None or not recording.repeatable:
        return
    function.checked = True
    items = None if call.size is None else ITEMS
    try:
        with torch.no_grad():
            soft, steep = _numbers(result, items), recording.run(None, STEEP)
            if steep is not None and _gap(soft, _numbers(steep.result[0], items)) <= GROSS:
                return
            crisp = _numbers(crisply(_first(call)))
            gap = _gap(soft, crisp)
            if gap <= GROSS or not crisp.any():
                return
            drawn = _numbers(outcome(_first(call, paths=Particles(PROBES))))
            apart = _gap(soft, drawn, crisp)
    except Exception:
        # The crisp program may refuse these numbers; then there is nothing to compare with
        return
    if apart > APART:
        name = function.__name__
        warnings.warn(
            f"{name}: after {call.report.decisions} smooth decisions the merged state is far from any that the program has: "
            f"the result differs from the crisp one by {gap:.0%} of it, and from the mean over paths likewise. Try "
            f"paths=Particles(64) or a higher steepness, ask softness_report({name}, ...) for the line to blame, or silence "
            "this by paths=Merge(check=False).",
            MergedStatesWarning,
            stacklevel=4,
        )


def _numbers(result: Any, items: int | None = None) -> Tensor:
    """All numbers of a result, or of its first items where it has a batch in front, as one vector."""
    found = [torch.as_tensor(x).double() for x in leaves(result) if isinstance(x, (Tensor, float))]
    return torch.cat([t[:items].flatten() if items else t.flatten() for t in found]) if found else torch.zeros(1)


def _gap(one: Tensor, other: Tensor, size: Tensor | None = None) -> float:
    """The distance of two results relative to the second one's size, or another's."""
    scale = other if size is None else size
    return float((one.detach() - other).norm()) / max(float(scale.norm()), 1e-12)


def _first(call: Call, **options: Any) -> Call:
    """The same call on the first items alone, with a batch in front."""
    one, function = call.size is None, call.function

    # One item has had its batch put in front where it was recorded
    parts = [x.tensor[:ITEMS] if x.batched else x.tensor[None] if one else x.tensor for x in call.found]
    given = {**call.options, "paths": Merge(check=False), **options, "batched": True}
    together = zip(function.parameter_names, call.values, strict=True)
    given["shared"] = () if one else tuple(name for name, x in together if any(not v.batched for v in flat(x)))
    if "generator" not in function.parameter_names:
        given["generator"] = torch.Generator().manual_seed(0)
    return function.call(tuple(refilled(call.values, parts)), given)


@dataclass(frozen=True)
class ProgramReport(SoftnessReport):
    """A softness report of a smooth function. `soft`, `crisp` and `particles`: the mean of all numbers of its result as merged,
    as written, and over drawn paths. `lines`: for each line that decides, the gap that is left when its decisions alone are
    taken crisply. `blame`: the line that leaves least, with its source; empty where no line stands out."""

    soft: float = 0.0
    crisp: float = 0.0
    particles: float = 0.0
    blame: str = ""
    lines: dict[int, float] = field(default_factory=dict)

    def __str__(self) -> str:
        values = f"merged {self.soft:.4g}, crisp {self.crisp:.4g}, particles {self.particles:.4g}"
        blame = f"; to blame: {self.blame}" if self.blame else ""
        return f"{values}: gap {self.gap:.1%}, vanished gradients {self.vanished:.1%}{blame}: {self.suggestion}"


def report(function: Any, args: tuple, kwargs: dict[str, Any]) -> ProgramReport:
    """What `softness_report` says of a smooth function."""
    plain = {**kwargs, "paths": Merge(check=False), "backend": "reference"}
    merged, inputs = _run(function, args, plain)
    if not inputs:
        raise ValueError("softness_report: give at least one floating tensor as input.")
    with torch.no_grad():
        crisp = _numbers(crisply(function.call(args, dict(plain))))
    drawn, moved = _run(function, args, {**kwargs, "paths": Particles(256)})
    gap = _gap(merged, crisp)
    slopes, wanted = _slopes(merged, inputs), _slopes(drawn, moved)
    vanished = float((slopes.abs() <= VANISHED * max(float(wanted.abs().max()), 1e-30)).float().mean())
    lines = _lines(function, args, plain, crisp) if gap > 0.05 else {}
    blame = ""
    if lines:
        line = min(lines, key=lambda k: lines[k])
        if lines[line] < 0.5 * gap:
            blame = f"line {line}: {function.source_line(line)}"
    close = _gap(drawn, crisp)
    return ProgramReport(
        gap,
        vanished,
        {"steepness": _steepness(function, kwargs)},
        _suggestion(gap, vanished, close),
        soft=float(merged.detach().mean()),
        crisp=float(crisp.mean()),
        particles=float(drawn.detach().mean()),
        blame=blame,
        lines=lines,
    )


def _suggestion(gap: float, vanished: float, close: float) -> str:
    if gap > 0.25 and close < 0.8 * gap:
        return "the mean of its states is no state of the program: use paths=Particles(64)"
    if gap > 0.25:
        return "mostly blurred: raise the steepness by about 3x, or anneal towards it"
    if vanished > 0.5:
        return "mostly hard: lower the steepness by about 5x, or use paths=Perturb(64, scale)"
    return "balanced: keep the steepness, or anneal to a harder one near the end of training"


def _run(function: Any, args: tuple, kwargs: dict[str, Any]) -> tuple[Tensor, list[Tensor]]:
    """The numbers of a result, and leaves that took the place of the floating tensors among the arguments."""

    def leaf(x: Any) -> Any:
        return x.detach().clone().requires_grad_() if isinstance(x, Tensor) and x.is_floating_point() else x

    moving = mapped(leaf, list(args))
    with torch.enable_grad():
        moved = [x for x in leaves(moving) if isinstance(x, Tensor) and x.requires_grad]
        return _numbers(function(*moving, **kwargs)), moved


def _slopes(result: Tensor, inputs: list[Tensor]) -> Tensor:
    if result.requires_grad:
        found = torch.autograd.grad(result.sum(), inputs, allow_unused=True, materialize_grads=True)
    else:
        found = [torch.zeros_like(x) for x in inputs]
    return torch.cat([g.flatten().double() for g in found])


def _lines(function: Any, args: tuple, kwargs: dict[str, Any], crisp: Tensor) -> dict[int, float]:
    """The gap that is left when the decisions of one line are taken crisply, by line."""

    def run(harden: tuple[str, int] | None) -> tuple[Sites, Tensor]:
        call = function.call(args, dict(kwargs))
        frame = call.frame()
        frame.decider = sites = Sites(harden)
        with torch.no_grad():
            return sites, _numbers(call.lowered(call.function._run(frame, call.values)))

    sites, _ = run(None)
    places = sorted(sites.lines, key=lambda place: -sites.lines[place])[:MOST_LINES]
    return {place[1]: _gap(run(place)[1], crisp) for place in sorted(places)}


def _steepness(function: Any, kwargs: dict[str, Any]) -> float:
    steepness: Any = kwargs.get("steepness")
    if steepness is None:
        steepness = getattr(kwargs.get("relax", function.settings.relax), "steepness", math.nan)
    return float(torch.as_tensor(steepness).double().mean())


# -- one way against the others


@dataclass(frozen=True)
class PathsRow:
    """One way to take paths: the mean of the result's numbers, its distance from the truth, the standard deviation of one run's
    value and of its gradient, the gradient's distance from the truth's relative to that, and milliseconds of both."""

    paths: Paths
    value: float
    bias: float
    spread: float
    gradient_error: float
    gradient_spread: float
    milliseconds: float


@dataclass(frozen=True)
class PathsReport:
    """What `paths_report` found; printed, a table. `truth` says what the others are measured against."""

    rows: list[PathsRow]
    truth: str

    def __str__(self) -> str:
        head = f"{'paths':<34}{'value':>11}{'bias':>11}{'spread':>11}{'grad error':>12}{'grad spread':>12}{'ms':>9}"
        lines = [
            f"{_title(r.paths):<34}{r.value:>11.4g}{r.bias:>11.2g}{r.spread:>11.2g}{r.gradient_error:>12.1%}"
            f"{r.gradient_spread:>12.1%}{r.milliseconds:>9.2f}"
            for r in self.rows
        ]
        return "\n".join([head, *lines, f"against {self.truth}"])

    def figure(self) -> Any:
        """Errors of the gradient against time, one mark for each way."""
        require("matplotlib")
        from matplotlib.figure import Figure

        figure = Figure(figsize=(5.0, 3.5), layout="constrained")
        axes = figure.subplots()
        for row in self.rows:
            error = max(math.hypot(row.gradient_error, row.gradient_spread), 1e-9)
            axes.loglog([row.milliseconds], [error], "o")
            axes.annotate(
                _title(row.paths), (row.milliseconds, error), xytext=(4, 4), textcoords="offset points", size=8
            )
        axes.set_xlabel("milliseconds, value and gradient")
        axes.set_ylabel("error of the gradient, relative")
        return figure


def _title(paths: Paths) -> str:
    number, scale = getattr(paths, "count", getattr(paths, "limit", "")), ""
    if isinstance(paths, Perturb):
        sizes = paths.scale if isinstance(paths.scale, Mapping) else {"": paths.scale}
        means = (f"{name} {float(torch.as_tensor(s).double().mean()):g}".strip() for name, s in sizes.items())
        scale = ", " + ", ".join(means)
    return f"{type(paths).__name__}({number}{scale})"


def paths_report(
    function: Any, *inputs: Any, ways: Sequence[Paths] | None = None, repeats: int = 8, seed: int = 0, **options: Any
) -> PathsReport:
    """Each way to take the paths of `function(*inputs, **options)`: value, bias, spread, errors of the gradient, and time.

    The truth is enumeration where there are few paths, else many particles. Random ways run `repeats` times, from `seed` on.
    """
    if ways is None:
        ways = (Merge(check=False), Particles(16), Particles(64), Particles(256), Perturb(64, 0.05))
    truth, (value, slopes) = _truth(function, inputs, options, seed)
    rows = []
    for paths in ways:
        count = 1 if isinstance(paths, (Merge, Enumerate)) else repeats
        found = [_timed(function, inputs, {**options, "paths": paths}, seed + k) for k in range(-1, count)][1:]
        values = torch.tensor([v for v, _, _ in found])
        gradients = torch.stack([g for _, g, _ in found])
        size = max(float(slopes.norm()), 1e-30)
        rows.append(
            PathsRow(
                paths,
                float(values.mean()),
                float(values.mean()) - value,
                float(values.std()) if count > 1 else 0.0,
                float((gradients.mean(0) - slopes).norm()) / size,
                float(gradients.std(0).norm()) / size if count > 1 else 0.0,
                1e3 * min(t for _, _, t in found),
            )
        )
    return PathsReport(rows, truth)


def _truth(function: Any, inputs: tuple, options: dict[str, Any], seed: int) -> tuple[str, tuple[float, Tensor]]:
    try:
        return "Enumerate(256)", _timed(function, inputs, {**options, "paths": Enumerate(256)}, seed)[:2]
    except ValueError:
        runs = [
            _timed(function, inputs, {**options, "paths": Particles(PLENTY)}, seed + 1000 + k)[:2] for k in range(4)
        ]
        value = sum(v for v, _ in runs) / len(runs)
        return f"Particles({len(runs) * PLENTY})", (value, torch.stack([g for _, g in runs]).mean(0))


def _timed(function: Any, inputs: tuple, options: dict[str, Any], seed: int) -> tuple[float, Tensor, float]:
    generator = torch.Generator().manual_seed(seed % 2**63)
    start = time.perf_counter()
    result, moved = _run(function, inputs, {**options, "generator": generator})
    slopes = _slopes(result, moved)
    return float(result.detach().mean()), slopes, time.perf_counter() - start

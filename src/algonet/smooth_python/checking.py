"""The first result of merging states, compared with the crisp one: a mean may be a state that the program never reaches."""

from __future__ import annotations

import warnings
from typing import Any

import torch
from torch import Tensor

from .machine.containers import flat, mapped
from .machine.replay import Recall
from .machine.values import Value
from .paths import Merge, Particles
from .running import Call, crisply, outcome

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


def check_once(call: Call, found: Any) -> None:
    """Compare the first result of a function that took many decisions, unless `Merge` was told not to."""
    paths = call.settings.paths
    # A program that was trained is not meant to be the one as written
    if call.decisions < MANY or call.function.checked or call.parameters:
        return
    if call.recall is None or not call.recall.repeatable:
        return
    if isinstance(paths, Merge) and paths.check:
        call.function.checked = True
        _warn_if_gross(call, found, call.recall)


def _warn_if_gross(call: Call, found: Any, recording: Recall) -> None:
    """One warning where the result is nowhere near what the program gives and merging, not softness, is why; on a few items.

    What was recorded runs once more, so steeply that its states are those of the crisp program, up to ties; only where that is
    far away, or goes where the recording does not, is the program itself run crisply, which takes as long as recording it.
    """
    items = 1 if call.size is None else min(call.size, ITEMS)
    try:
        with torch.no_grad():
            soft, steep = _in_batch(found, call), recording.run(None, STEEP)
            if steep is not None:
                nearly = _in_batch(steep.result[0], call)
                if _distance(soft, nearly, nearly, items) <= GROSS:
                    return
            crisp = crisply(_first(call, items))
            gap = _distance(soft, crisp, crisp, items)
            if gap <= GROSS:
                return
            drawn = outcome(_first(call, items, paths=Particles(PROBES)))
    except Exception:
        # The crisp program may refuse these numbers; then there is nothing to compare with
        return
    if _distance(soft, drawn, crisp, items) > APART:
        name = call.function.__name__
        warnings.warn(
            f"{name}: after {call.decisions} smooth decisions the merged state is far from any that the program has: the "
            f"result differs from the crisp one by {gap:.0%} of it, and from the mean over paths likewise. Try "
            f"paths=Particles(64) or a higher steepness, ask softness_report({name}, ...) for the line to blame, or silence "
            "this by paths=Merge(check=False).",
            MergedStatesWarning,
            stacklevel=5,
        )


def _in_batch(result: Any, call: Call) -> Any:
    """The result of one item with the batch of one in front; that of a batch as it is."""
    return result if call.size is not None else mapped(lambda x: x[None] if isinstance(x, Tensor) else x, result)


def _first(call: Call, items: int, **options: Any) -> Call:
    """The same call on the first items alone, with a batch in front."""
    one = call.size is None

    def part(x: Any) -> Any:
        if type(x) is not Value:
            return x
        # One item has had its batch put in front where it was recorded
        return x.tensor[:items] if x.batched else x.tensor[None] if one else x.tensor

    names = call.function.parameter_names
    together = [name for name, x in zip(names, call.values, strict=True) if any(not v.batched for v in flat(x))]
    shared = {"shared": () if one else tuple(together), "generator": torch.Generator().manual_seed(0)}
    given = {**call.options, "paths": Merge(check=False), **options, "batched": True}
    given |= {k: v for k, v in shared.items() if k != "generator" or "generator" not in names}
    return call.function.call(tuple(mapped(part, x) for x in call.values), given)


def _distance(one: Any, other: Any, crisp: Any, items: int) -> float:
    """The distance of all numbers of two results, relative to the crisp one; 0 where that has nothing but zeros."""
    found: list[tuple[Tensor, ...]] = []

    def note(*parts: Any) -> None:
        if all(isinstance(part, Tensor) for part in parts):
            found.append(tuple(part[:items].detach().double().flatten() for part in parts))

    mapped(note, one, other, crisp)
    if not found:
        return 0.0
    a, b, c = (torch.cat(column) for column in zip(*found, strict=True))
    scale = float(c.norm())
    return float((a - b).norm()) / scale if scale > 0 else 0.0

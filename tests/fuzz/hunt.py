"""Differential fuzzing: random cases, two ways to compute each, and the smallest case on which the ways still differ.

A target draws cases from seeds and says where one fails; what shrinks and what counts is here, the same for all.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import itertools
import random
import time
import warnings
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

import pytest
import torch
from torch import Tensor

from .reading import EXAMPLES, TooLongError, bounded

C = TypeVar("C")
#: Candidates that shrinking may try: each costs a run of the case.
TRIES = 300
#: What one case, shrinking and all, may take in a long run: seconds of computing, and memory.
SECONDS, MEBIBYTES = 600, 4096


class Found(NamedTuple):
    """Which way of computing a case fails, and how."""

    way: str
    problem: str

    @property
    def manner(self) -> str:
        """The kind of an error, or nothing where numbers are wrong."""
        kind = self.problem.split(":")[0]
        return kind if kind.endswith(("Error", "Exception")) else ""


class Target(Protocol, Generic[C]):
    """What can be fuzzed. `ways` are the comparisons; `smaller` yields simpler cases, the boldest cut first."""

    name: str
    ways: tuple[str, ...]

    def draw(self, seed: int) -> C: ...

    def compare(self, case: C, way: str) -> str | None: ...

    def smaller(self, case: C) -> Iterator[C]: ...

    def snippet(self, case: C, way: str) -> str: ...


def failure(target: Target[C], case: C, ways: Iterable[str] | None = None) -> Found | None:
    """The first way that fails; None where all agree."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for way in target.ways if ways is None else ways:
            try:
                problem = target.compare(case, way)
            except Exception as error:
                problem = f"{type(error).__name__}: {error}"
            if problem:
                return Found(way, problem)
    return None


def shrunk(target: Target[C], case: C, found: Found, tries: int = TRIES) -> tuple[C, Found]:
    """The smallest case that was found to fail in the same way: wrong numbers, or the same kind of error."""
    while True:
        for candidate in target.smaller(case):
            tries -= 1
            if tries < 0:
                return case, found
            with contextlib.suppress(Exception):
                again = failure(target, candidate, (found.way,))
                if again is not None and again.manner == found.manner:
                    case, found = candidate, again
                    break
        else:
            return case, found


def examine(target: Target[C], seed: int) -> str | None:
    """What is wrong with the case of a seed, as a report that ends with a snippet; None where nothing is."""
    case = target.draw(seed)
    found = failure(target, case)
    if found is None:
        return None
    small, found = shrunk(target, case, found)
    return f"{target.name}, seed {seed}, {found.way}: {found.problem}\n\n{target.snippet(small, found.way)}"


def sample(target: Target[Any], part: int, count: int, keep: Callable[[Any], bool] = lambda case: True) -> None:
    """A test: `count` cases that are always the same, or a share of as many fresh ones as `python -m fuzz` asks for.

    Of those that are always the same, only cases to `keep` run.
    """
    first = random.SystemRandom().getrandbits(40) if EXAMPLES else 100_000 * part
    seeds = range(first, first + (max(EXAMPLES // 4, 1) if EXAMPLES else count))
    for seed in (
        seeds if EXAMPLES else itertools.islice((s for s in itertools.count(first) if keep(target.draw(s))), count)
    ):
        report = examine(target, seed)
        if report is not None:
            pytest.fail(report)


def hunt(
    targets: list[Target[Any]], minutes: float, say: Callable[[str], Any] = functools.partial(print, flush=True)
) -> int:
    """Fresh cases for so long, each target the same time, every failure told as it is found; how many there were."""
    seed, end, told = random.SystemRandom().getrandbits(40), time.monotonic() + 60 * minutes, time.monotonic()
    cases = dict.fromkeys((target.name for target in targets), 0)
    failures, spent = dict(cases), dict.fromkeys(cases, 0.0)

    def counts() -> str:
        return "; ".join(f"{name}: {cases[name]} cases, {failures[name]} failures" for name in cases)

    while time.monotonic() < end:
        target = min(targets, key=lambda target: spent[target.name])
        seed, begun = seed + 1, time.monotonic()
        try:
            with bounded(SECONDS, MEBIBYTES):
                report = examine(target, seed)
        except TooLongError:
            report = f"{target.name}, seed {seed}: still computing after {SECONDS} s"
        cases[target.name] += 1
        spent[target.name] += time.monotonic() - begun
        if report is not None:
            failures[target.name] += 1
            say(report)
        if time.monotonic() > told + 60:
            told = time.monotonic()
            say(counts())
    say(counts())
    return sum(failures.values())


# -- what targets share


def simpler(case: Any, simplest: dict[str, tuple[Any, ...]]) -> Iterator[Any]:
    """A dataclass with one field as simple as it gets, then with one field a little simpler.

    `simplest` lists the values of a field from the simplest on; a number may also become any smaller one.
    """
    for name, values in simplest.items():
        now = getattr(case, name)
        for value in values[: values.index(now)] if now in values else values:
            if value != now:
                yield dataclasses.replace(case, **{name: value})
    for name in simplest:
        now = getattr(case, name)
        if isinstance(now, int) and not isinstance(now, bool) and now > 1:
            for value in (now // 2, now - 1):
                yield dataclasses.replace(case, **{name: value})


def gradients(outputs: list[Tensor], leaves: list[Tensor], seed: int) -> list[Tensor]:
    """Gradients of a random functional of the outputs: the same functional for outputs of the same shapes."""
    generator = torch.Generator().manual_seed(seed)
    terms = []
    for output in outputs:
        weights = torch.randn(output.shape, generator=generator, dtype=torch.float64)
        if output.requires_grad:
            # Outputs may be infinite; what nobody can move counts as nothing
            finite = output.isfinite()
            terms.append((torch.where(finite, output, 0.0) * weights.to(output.dtype)).sum())
    if not terms or not leaves:
        return [torch.zeros_like(leaf) for leaf in leaves]
    found = torch.autograd.grad(sum(terms), leaves, allow_unused=True)  # pyright: ignore[reportArgumentType]
    return [torch.zeros_like(leaf) if g is None else g for leaf, g in zip(leaves, found, strict=True)]


def differs(what: str, found: Tensor, wanted: Tensor, tolerance: float) -> str | None:
    """How a tensor deviates from the wanted one by more than `tolerance` of the largest number in it, or of 1."""
    if found.shape != wanted.shape:
        return f"{what}: shape {tuple(found.shape)} instead of {tuple(wanted.shape)}"
    found, wanted = found.detach().double(), wanted.detach().double()
    same = (found == wanted) | (found.isnan() & wanted.isnan())
    # Infinities that differ would be nan in the difference
    error = torch.where(same, 0.0, found - wanted).abs().nan_to_num(nan=torch.inf)
    finite = wanted[wanted.isfinite()].abs()
    scale = max(1.0, float(finite.max()) if finite.numel() else 1.0)
    worst = float(error.max()) if error.numel() else 0.0
    if worst <= tolerance * scale:
        return None
    shown = f": {found.tolist()} instead of {wanted.tolist()}" if found.numel() <= 24 else ""
    return f"{what} deviates by {worst:.3g} of {scale:.3g} (allowed: {tolerance * scale:.3g}){shown}"

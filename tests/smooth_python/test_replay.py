"""Runs that are not recorded anew: the same results, and never those of another program, softness, or way through loops."""

from __future__ import annotations

import gc
import importlib.util
import linecache
import math
import sys
import threading
import types
import warnings
import weakref
from typing import NamedTuple

import pytest
import torch

from algonet.relax import Cauchy, Gaussian, Logistic, Sech
from algonet.smooth_python import running, smooth, softness
from algonet.smooth_python.algorithms import ALGORITHMS, bubble_sort
from algonet.smooth_python.machine import replay
from algonet.smooth_python.machine.keys import Found, UnknownError, describe
from algonet.smooth_python.running import Call

X = torch.tensor([-0.7, 0.1, 0.9, 2.2], dtype=torch.float64)
SCALE = 2.0
OFFSETS = [0.0, 0.5]
LEVEL = torch.tensor(0.25, dtype=torch.float64)
TABLE = torch.tensor([1.0, 3.0], dtype=torch.float64)
settings = types.ModuleType("settings")
settings.bias = 0.5


@pytest.fixture
def recorded(monkeypatch):
    """The functions whose program ran, one entry per run: replays are not among them."""
    names = []
    original = Call.recorded
    monkeypatch.setattr(
        Call, "recorded", lambda self, *args: names.append(self.function.__name__) or original(self, *args)
    )
    return names


def reference(function, *args, **options):
    return function(*args, backend="reference", **options)


# -- the same results


ARGUMENTS = {
    "bubble_sort": lambda g: (torch.randn(5, 6, generator=g, dtype=torch.float64),),
    "binary_search": lambda g: (
        torch.rand(5, 9, generator=g, dtype=torch.float64).sort().values,
        torch.rand(5, generator=g, dtype=torch.float64),
    ),
    "levenshtein": lambda g: tuple(3 * torch.rand(2, 5, 4, generator=g, dtype=torch.float64)),
    "shortest_path": lambda g: (torch.rand(5, 3, 3, generator=g, dtype=torch.float64),),
    "flood_fill": lambda g: (torch.rand(5, 3, 4, generator=g, dtype=torch.float64), 0.5),
    "point_in_polygon": lambda g: (
        *torch.randn(2, 5, generator=g, dtype=torch.float64),
        torch.randn(5, 4, 2, generator=g, dtype=torch.float64),
    ),
    "bank_queue": lambda g: (*torch.rand(2, 5, 6, generator=g, dtype=torch.float64), 2),
}


def values_and_slopes(function, args, **options):
    leaves = [a.clone().requires_grad_() if isinstance(a, torch.Tensor) else a for a in args]
    found = torch.utils._pytree.tree_leaves(function(*leaves, steepness=3.0, **options))
    score = sum((value * (k + 1)).sum() for k, value in enumerate(found))
    slopes = torch.autograd.grad(score, [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)])
    return [*(value.detach() for value in found), *slopes]


@pytest.mark.parametrize("name", ARGUMENTS)
def test_shipped_algorithms_are_recorded_once(name, recorded):
    generator = torch.Generator().manual_seed(0)
    function = ALGORITHMS[name]
    function.recordings.forget()
    for _ in range(3):
        args = ARGUMENTS[name](generator)
        found = values_and_slopes(function, args, batched=True, backend="numba")
        for one, other in zip(found, values_and_slopes(function, args, batched=True, backend="reference"), strict=True):
            torch.testing.assert_close(one, other, atol=1e-9, rtol=1e-9)
    # Once for the kernel; the reference runs the program each time
    assert len(recorded) == 1 + 3


def test_single_items_are_recorded_once(recorded):
    function = smooth(bubble_sort._function)
    for seed in range(3):
        x = torch.randn(5, generator=torch.Generator().manual_seed(seed))
        values, swaps = function(x)
        expected = reference(function, x)
        assert values.shape == (5,)
        assert swaps.shape == ()
        torch.testing.assert_close((values, swaps), expected)
    assert len(recorded) == 1 + 3


def test_half_precision_is_answered_as_asked(recorded):
    function = smooth(bubble_sort._function)
    x = torch.randn(3, 4, dtype=torch.bfloat16)
    first, again = function(x, batched=True), function(x, batched=True)
    assert again[0].dtype == torch.bfloat16
    assert torch.equal(first[0], again[0])
    assert len(recorded) == 1


def test_all_derivatives_of_a_replay(recorded):
    function = smooth(bubble_sort._function)
    x = torch.randn(2, 4, dtype=torch.float64, requires_grad=True)
    steepness = torch.tensor(2.0, dtype=torch.float64, requires_grad=True)

    def run(x, steepness):
        return function(x, batched=True, backend="numba", relax=Logistic(steepness))

    run(x, steepness)
    assert torch.autograd.gradcheck(run, (x, steepness), check_forward_ad=True)
    assert torch.autograd.gradgradcheck(run, (x, steepness))
    assert len(recorded) == 1


def test_containers_come_back_as_they_were(recorded):
    class Pair(NamedTuple):
        low: torch.Tensor
        high: torch.Tensor

    @smooth
    def program(pair, names):
        low, high = pair
        if low > high:
            low, high = high, low
        return {"pair": [low, high], "count": len(names), "word": names[0], "half": 0.5, "none": None}

    x, y = X, X.flip(0)
    for _ in range(2):
        found = program(Pair(x, y), ("a", "b"), batched=True)
        expected = reference(program, Pair(x, y), ("a", "b"), batched=True)
        torch.testing.assert_close(found["pair"], expected["pair"])
        torch.testing.assert_close(found["half"], expected["half"])
        assert (found["count"], found["word"], found["none"]) == (2, "a", None)
        found["pair"].append("changed by the caller")
        x, y = y + 1, x
    assert len(recorded) == 1 + 2


# -- never stale: whatever Python could have decided otherwise is in the key


@smooth
def scaled(x):
    return SCALE * x if x > 0 else x + OFFSETS[1]


@smooth
def outer(x):
    return scaled(x) + 1.0


def test_a_changed_global(monkeypatch, recorded):
    for function, shift in ((scaled, 0.0), (outer, 1.0)):
        function.recordings.forget()
        p = torch.sigmoid(10 * X)
        for scale in (2.0, 5.0, 2.0, 2):
            monkeypatch.setattr(sys.modules[__name__], "SCALE", scale)
            expected = p * scale * X + (1 - p) * (X + 0.5) + shift
            torch.testing.assert_close(function(X, batched=True), expected)
    # 2.0 came back and was known, 2 is another number
    assert recorded == ["scaled"] * 3 + ["outer"] * 3


def test_a_changed_list_from_outside(recorded):
    scaled.recordings.forget()
    p = torch.sigmoid(10 * X)
    try:
        for offset in (0.5, 7.0):
            OFFSETS[1] = offset
            torch.testing.assert_close(scaled(X, batched=True), p * 2 * X + (1 - p) * (X + offset))
    finally:
        OFFSETS[1] = 0.5
    assert len(recorded) == 2


def test_a_changed_closure():
    factor = 2.0

    @smooth
    def program(x):
        return factor * x if x > 0 else 0.0

    p = torch.sigmoid(10 * X)
    torch.testing.assert_close(program(X, batched=True), p * 2 * X)
    factor = 5.0
    torch.testing.assert_close(program(X, batched=True), p * 5 * X)


def test_another_function_of_the_same_name():
    @smooth
    def added(x):
        return x + 1.0

    @smooth
    def multiplied(x):
        return x * 3.0

    @smooth
    def program(x):
        return inner(x) if x > 0 else 0.0

    inner = added
    p = torch.sigmoid(10 * X)
    torch.testing.assert_close(program(X, batched=True), p * (X + 1))
    inner = multiplied
    torch.testing.assert_close(program(X, batched=True), p * X * 3)


def test_attributes_of_modules_and_objects(recorded):
    @smooth
    def of_module(x):
        return x + settings.bias * math.pi if x > 0 else 0.0

    @smooth
    def of_object(thing, x):
        return x + thing.bias if x > 0 else 0.0

    p = torch.sigmoid(10 * X)
    thing = types.SimpleNamespace(bias=0.5)
    for bias in (0.5, 0.5, 4.0):
        settings.bias = thing.bias = bias
        torch.testing.assert_close(of_module(X, batched=True), p * (X + bias * math.pi))
        torch.testing.assert_close(of_object(thing, X, batched=True), p * (X + bias))
    settings.bias = 0.5
    assert sorted(recorded) == ["of_module"] * 2 + ["of_object"] * 2


class Levels:
    high = 1.0

    @classmethod
    @smooth
    def above(cls, x):
        return x if x > cls.high else 0.0


@smooth
def above_high(x, levels):
    return x if x > levels.high else 0.0


@smooth
def passes_levels_on(x, levels):
    return above_high(x, levels) + 0.0


@smooth
def passes_outside_on(x):
    return above_high(x, Levels) + 0.0


def test_attributes_of_classes_however_they_get_there(monkeypatch):
    for high in (1.0, 1.0, 0.3):
        monkeypatch.setattr(Levels, "high", high)
        expected = X * torch.sigmoid(10 * (X - high))
        torch.testing.assert_close(Levels.above(X, batched=True), expected)
        torch.testing.assert_close(above_high(X, Levels, batched=True), expected)
        torch.testing.assert_close(passes_levels_on(X, Levels, batched=True), expected)
        torch.testing.assert_close(passes_outside_on(X, batched=True), expected)


def test_methods_of_modules_are_recorded_once_and_follow_their_parameters(recorded):
    class Gate(torch.nn.Module):
        def __init__(self, level):
            super().__init__()
            self.level = torch.nn.Parameter(torch.tensor(level, dtype=torch.float64))

        @smooth(steepness=4.0)
        def forward(self, x):
            return 1.0 if x > self.level else 0.0

    gate, other = Gate(0.5), Gate(-1.0)
    for layer in (gate, gate, other, gate):
        with torch.no_grad():
            layer.level += 0.125
        found = layer(X, batched=True)
        torch.testing.assert_close(found, torch.sigmoid(4 * (X - layer.level)))
        (slope,) = torch.autograd.grad(found.sum(), layer.level)
        assert slope < 0
    gate.level = torch.nn.Parameter(torch.tensor(3.0, dtype=torch.float64))
    torch.testing.assert_close(gate(X, batched=True), torch.sigmoid(4 * (X - 3.0)))
    assert len(recorded) == 1


def test_tensors_from_outside_are_read_each_time(recorded):
    @smooth
    def program(x):
        return x + TABLE[1] if x > LEVEL else 0.0

    try:
        for level, step in ((0.25, 3.0), (0.75, 3.0), (0.75, -1.0)):
            LEVEL.fill_(level)
            TABLE[1] = step
            torch.testing.assert_close(program(X, batched=True), torch.sigmoid(10 * (X - level)) * (X + step))
    finally:
        LEVEL.fill_(0.25)
        TABLE[1] = 3.0
    assert len(recorded) == 1


@smooth
def crisp_arguments(x, n, name="up", table=(1.0,)):
    for _ in range(n):
        x = x + table[0] if name == "up" else x - table[0]
    return x if x > 0 else math.copysign(1.0, table[0])


@pytest.mark.parametrize(
    ("args", "expected"),
    [
        ((2,), lambda x: x + 2),
        ((3,), lambda x: x + 3),
        ((2, "down"), lambda x: x - 2),
        ((2, "up", (5.0,)), lambda x: x + 10),
        ((2, "up", [5.0]), lambda x: x + 10),
        ((True,), lambda x: x + 1),
    ],
)
def test_changed_crisp_arguments(args, expected):
    end = expected(X)
    p = torch.sigmoid(10 * end)
    torch.testing.assert_close(crisp_arguments(X, *args, batched=True), p * end + (1 - p))


def test_zeros_of_both_signs_are_different_arguments():
    found = [crisp_arguments(-X.abs() - 9, 1, "up", (zero,), batched=True) for zero in (0.0, -0.0)]
    assert torch.equal(found[0], -found[1])


def test_changed_shapes_precisions_and_batches(recorded):
    function = smooth(bubble_sort._function)
    x = torch.randn(4, 4, dtype=torch.float64)
    for args, options in (
        (x, {"batched": True}),
        (x[:, :3], {"batched": True}),
        (x[:3], {"batched": True}),
        (x.float(), {"batched": True}),
        (x[0], {}),
    ):
        found, expected = function(args, **options), reference(function, args, **options)
        assert found[0].dtype == args.dtype
        torch.testing.assert_close(found, expected)
    assert len(recorded) == 10


def test_the_same_tensor_twice_is_not_two_tensors():
    @smooth
    def program(x, y):
        return x if x > y else y * 2.0

    y = X.flip(0)
    torch.testing.assert_close(program(X, X, batched=True), 0.5 * X + X)
    p = torch.sigmoid(10 * (X - y))
    torch.testing.assert_close(program(X, y, batched=True), p * X + (1 - p) * y * 2)


@smooth
def step(x):
    return 1.0 if x > 0 else 0.0


def test_changed_softness(recorded):
    step.recordings.forget()
    torch.testing.assert_close(step(X, batched=True), torch.sigmoid(10 * X))
    torch.testing.assert_close(step(X, batched=True, steepness=2.0), torch.sigmoid(2 * X))
    torch.testing.assert_close(step(X, batched=True, relax=Cauchy(2.0)), Cauchy(2.0)(X))
    with softness(relax=Gaussian(3.0)):
        torch.testing.assert_close(step(X, batched=True), Gaussian(3.0)(X))
        with softness(steepness=1.0):
            torch.testing.assert_close(step(X, batched=True), Gaussian(1.0)(X))
    with softness(hard=True):
        assert step(X, batched=True).tolist() == [0.0, 1.0, 1.0, 1.0]
    torch.testing.assert_close(step(X, batched=True), torch.sigmoid(10 * X))
    assert len(recorded) == 6


def test_a_learnable_steepness_is_data(recorded):
    step.recordings.forget()
    steepness = torch.tensor(2.0, dtype=torch.float64, requires_grad=True)
    for new in (2.0, 7.0):
        with torch.no_grad():
            steepness.fill_(new)
        for relax in (Logistic(steepness), Logistic(torch.tensor(new / 2, dtype=torch.float64))):
            torch.testing.assert_close(step(X, batched=True, relax=relax), relax(X))
        (slope,) = torch.autograd.grad(step(X, batched=True, relax=Logistic(steepness)).sum(), steepness)
        (expected,) = torch.autograd.grad(torch.sigmoid(steepness * X).sum(), steepness)
        torch.testing.assert_close(slope, expected)
    assert len(recorded) == 1


def test_two_steepnesses_are_not_one(recorded):
    @smooth
    def program(x):
        return 1.0 if x > 0 and x != 1 else 0.0

    s, t = (torch.tensor(v, dtype=torch.float64) for v in (2.0, 1.5))
    for relax, exit_ in ((s, s), (s, t), (t, s)):
        found = program(X, batched=True, relax=Logistic(relax), exit=Sech(exit_))
        torch.testing.assert_close(found, Logistic(relax)(X) * Sech(exit_)(X - 1))
    assert len(recorded) == 2


def test_a_steepness_of_the_function_itself_is_data_too(recorded):
    own = torch.tensor(2.0, dtype=torch.float64)

    @smooth(relax=Logistic(own))
    def program(x):
        return 1.0 if x > 0 else 0.0

    for new in (2.0, 5.0):
        own.fill_(new)
        torch.testing.assert_close(program(X, batched=True), torch.sigmoid(new * X))
    assert len(recorded) == 1


# -- loops that end by their mass


@smooth(steepness=5.0)
def countdown(x):
    steps = 0.0
    while x > 0:
        x = x - 1
        steps += 1
    return x, steps


def test_loops_run_as_long_as_their_numbers_need(recorded):
    countdown.recordings.forget()
    sizes = [0.5, 30.5, 4.5, 60.5, 30.5, 0.5, 17.5, 60.5, 4.5]
    for k, size in enumerate(sizes):
        x = torch.tensor([0.3, size + 0.01 * k], dtype=torch.float64, requires_grad=True)
        found, report = countdown(x, batched=True, with_report=True)
        expected = reference(countdown, x, batched=True)
        torch.testing.assert_close(found, expected, atol=1e-9, rtol=1e-9)
        slopes = [torch.autograd.grad(y[0].sum() + y[1].sum(), x)[0] for y in (found, expected)]
        torch.testing.assert_close(*slopes, atol=1e-8, rtol=1e-8)
        (iterations,) = report.iterations.values()
        assert size < iterations < size + 20
    kernel_runs = len(recorded) - len(sizes)
    assert kernel_runs < len(sizes)
    before = len(recorded)
    countdown(torch.tensor([2.0, 30.7], dtype=torch.float64), batched=True)
    assert len(recorded) == before


def test_nested_loops_take_their_own_ways():
    @smooth(steepness=8.0)
    def program(x, y):
        total = 0.0
        while x > 0:
            z = y
            while z > x:
                z = z - 1.0
                total += 0.5
            x = x - 1.5
            if total > 9.0:
                break
        return total + x

    generator = torch.Generator().manual_seed(1)
    for _ in range(12):
        x, y = (6 * torch.rand(2, 3, generator=generator, dtype=torch.float64)).unbind(0)
        torch.testing.assert_close(
            program(x, y, batched=True), reference(program, x, y, batched=True), atol=1e-6, rtol=1e-6
        )


def test_branches_that_nobody_takes():
    @smooth
    def program(x):
        return countdown(x)[1] if x > 2 else -1.0

    for value in (-5.0, 9.5, 2.05, -5.0, 9.4):
        x = torch.tensor([value, value - 0.3], dtype=torch.float64)
        torch.testing.assert_close(program(x, batched=True), reference(program, x, batched=True), atol=1e-6, rtol=1e-6)


def test_equal_instructions_are_recorded_once():
    """x, 1, x + 1, its square, 0, the decision, the difference and the mixture; with a default device, too."""

    @smooth
    def twice(x):
        y = (x + 1.0) * (x + 1.0)
        if x > 0.0:
            y = y - (x + 1.0)
        return y

    first = twice(X, batched=True)
    with torch.device("meta"):
        torch.testing.assert_close(twice(X, batched=True), first, rtol=1e-12, atol=1e-12)
    (recording,) = twice.recordings
    assert recording.length == 9


def test_short_programs_that_run_again_and_again_get_a_kernel(monkeypatch):
    """Those that were asked for by name stay where they are."""
    backends = []
    original = replay.evaluate
    monkeypatch.setattr(
        replay, "evaluate", lambda program, *args: backends.append(program.backend) or original(program, *args)
    )
    monkeypatch.setattr(replay, "REPAID", 20)

    @smooth(steepness=3.0)
    def folded(x):
        if x > 0.5:
            x = 1.0 - x
        return x

    expected = reference(folded, X, batched=True)
    for _ in range(6):
        torch.testing.assert_close(folded(X, batched=True), expected, rtol=1e-12, atol=1e-12)
    assert backends[0] == "reference"
    assert backends[-1] == "auto"
    assert backends == sorted(backends, reverse=True)
    backends.clear()
    for _ in range(6):
        folded(X, batched=True, backend="numba")
    assert set(backends) == {"numba"}


def test_ways_and_recordings_are_bounded(monkeypatch):
    monkeypatch.setattr(replay, "WAYS", 3)
    function = smooth(countdown._function)
    for size in (0.5, 40.5, 80.5, 120.5, 160.5):
        x = torch.tensor([size], dtype=torch.float64)
        for _ in range(2):
            torch.testing.assert_close(function(x, batched=True), reference(function, x, batched=True))
    for n in range(2, 9):
        function(torch.zeros(n), batched=True)
    assert 0 < len([*function.recordings]) <= 3
    assert max(recording.ways for recording in function.recordings) <= 3


def test_long_programs_are_forgotten_first(monkeypatch):
    monkeypatch.setattr(replay, "CAPACITY", 300)
    function = smooth(bubble_sort._function)
    for n in (5, 6, 7, 5):
        x = torch.randn(2, n)
        torch.testing.assert_close(function(x, batched=True), reference(function, x, batched=True))
    assert sum(recording.length for recording in function.recordings) <= 300


def test_warnings_come_every_time():
    @smooth
    def endless(x):
        while x > 0:
            x = x * 1.0
        return x

    for _ in range(3):
        with pytest.warns(RuntimeWarning, match="stopped after 5 iterations"):
            _, report = endless(torch.tensor([1.0, -1.0]), batched=True, max_iterations=5, with_report=True)
        assert report.mass_left


# -- what is recorded every time


def test_what_acts_or_looks_runs_each_time(capsys, recorded):
    calls = []

    def helper(x):
        calls.append(1)
        return x * len(calls)

    @smooth
    def foreign(x):
        return helper(x) if x > -1e9 else x

    @smooth
    def printed(x):
        print("hello")
        return x if x > 0 else -x

    @smooth
    def by_method(x):
        return (x if x > 0 else -x).square()

    @smooth
    def by_attribute(x):
        y = x * 2.0
        if y.requires_grad:
            y = y + 1.0
        return y if y > 0 else 0.0

    for _ in range(2):
        for function in (foreign, printed, by_method):
            function(X, batched=True)
    assert len(calls) == 2
    assert capsys.readouterr().out == "hello\nhello\n"
    plain = by_attribute(X, batched=True)
    shifted = by_attribute(X.clone().requires_grad_(), batched=True)
    torch.testing.assert_close(plain, 2 * X * torch.sigmoid(20 * X))
    torch.testing.assert_close(shifted, (2 * X + 1) * torch.sigmoid(10 * (2 * X + 1)))
    assert len(recorded) == 8


def test_runs_that_cannot_be_kept_are_no_longer_watched(monkeypatch, recorded):
    watched, machines = [], []
    begin = replay.Recall.begin
    monkeypatch.setattr(
        replay.Recall, "begin", lambda self, values: (t := begin(self, values)) and (watched.append(t) or t)
    )
    chosen = running.machine_for
    monkeypatch.setattr(running, "machine_for", lambda *args: machines.append(chosen(*args)) or machines[-1])

    @smooth(steepness=3.0)
    def larger(columns):
        if columns[0] > columns[1]:
            columns[0] = columns[1] * 2.0
        return columns

    for seed in range(replay.ATTEMPTS + 2):
        # Columns of one item: each decision is on a vector, which no recording holds
        columns = list(torch.randn(2, 7, generator=torch.Generator().manual_seed(seed), dtype=torch.float64))
        found, expected = larger(list(columns)), reference(larger, list(columns))
        torch.testing.assert_close(found, expected, rtol=0, atol=0)
    assert len(watched) == replay.ATTEMPTS
    # Nor is there a tape, since there was nothing to record; every other run is the reference's
    assert [machine.leads for machine in machines[::2]] == [True] * replay.ATTEMPTS + [False] * 2
    assert len([*larger.recordings]) == 0
    # As numbers they are recorded, by the same function
    recorded.clear()
    for _ in range(2):
        torch.testing.assert_close(torch.stack(larger(columns, batched=True)), torch.stack(expected))
    assert len(recorded) == 1
    assert len([*larger.recordings]) == 1


def test_how_often_runs_could_not_be_kept_is_bounded(monkeypatch):
    monkeypatch.setattr(replay, "WAYS", 3)
    recordings = replay.Recordings()
    for key in range(5):
        for _ in range(replay.ATTEMPTS):
            found = recordings.find(key)
            assert found is None or not found.given_up
            recordings.learn(key, None, 2)
    assert [key for key in range(5) if (found := recordings.find(key)) is not None and found.given_up] == [2, 3, 4]
    recordings.learn(4, [replay.Outputs(None, {})], 2)
    assert not recordings.find(4).given_up
    assert [*recordings] == [recordings.find(4)]
    recordings.forget()
    assert recordings.find(3) is None


def test_objects_that_are_more_than_their_attributes():
    class Chain:
        def __init__(self, value, rest=None):
            self.value = value
            self.rest = rest

    @smooth
    def total(node, x):
        found = 0.0
        while node is not None:
            found = found + (node.value if x > node.value else 0.0)
            node = node.rest
        return found

    x = torch.tensor([2.5])
    short, long = Chain(1.0), Chain(1.0, Chain(2.0))
    for chain, expected in ((short, 1.0), (long, 1.0 + 2 * 0.993307), (short, 1.0)):
        assert float(total(chain, x, batched=True)) == pytest.approx(expected, abs=1e-4)
    long.rest = None
    assert float(total(long, x, batched=True)) == pytest.approx(1.0, abs=1e-4)


def test_transforms_run_the_program(recorded):
    function = smooth(bubble_sort._function)
    x = torch.randn(3, 4, dtype=torch.float64)
    batched = function(x, batched=True)
    for _ in range(2):
        torch.testing.assert_close(torch.vmap(function)(x), batched)
        torch.func.jacrev(lambda x: function(x)[0])(x[0])
    assert len(recorded) == 5


def test_inference_mode_leaves_nothing_behind():
    function = smooth(bubble_sort._function)
    x = torch.randn(3, 4)
    with torch.inference_mode():
        expected = [function(x, batched=True)[0] for _ in range(2)]
    leaf = x.clone().requires_grad_()
    found = function(leaf, batched=True, backend="numba")[0]
    found.sum().backward()
    torch.testing.assert_close(found.detach(), expected[1].clone())
    with torch.inference_mode():
        torch.testing.assert_close(function(x, batched=True)[0], expected[0])


def test_pure_functions_of_numbers_do_not_hinder(recorded):
    @smooth
    def program(x, n):
        return math.sqrt(round(n)) * x if x > math.floor(2.5) else 0.0

    for n in (4.2, 4.2, 9.0):
        expected = math.sqrt(round(n)) * X * torch.sigmoid(10 * (X - 2))
        torch.testing.assert_close(program(X, n, batched=True), expected)
    assert len(recorded) == 2


def test_threads_share_what_is_known():
    function = smooth(countdown._function)
    x = [torch.tensor([0.5 + 7 * k], dtype=torch.float64) for k in range(6)]
    expected = [reference(function, v, batched=True) for v in x]
    found: dict[int, list] = {k: [] for k in range(6)}

    def work(k):
        for _ in range(5):
            found[k].append(function(x[k], batched=True))

    threads = [threading.Thread(target=work, args=(k,)) for k in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for k in range(6):
        assert len(found[k]) == 5
        for one in found[k]:
            torch.testing.assert_close(one, expected[k])


def test_keys_refuse_what_they_do_not_know():
    for thing in (object(), {1, 2}, torch.nn.Linear(1, 1), [1, object()], "abc".upper, list(range(5000))):
        with pytest.raises(UnknownError):
            describe(thing, Found())


def test_a_tensor_is_the_same_one_or_it_is_not():
    """An argument that is also read from outside, or is the steepness, is another thing than two tensors."""
    table = torch.tensor([[0.1, 0.9], [0.7, -0.4]], dtype=torch.float64)
    other = table.flip(0).contiguous()

    @smooth
    def program(x):
        return x[0] if x[0] > outside[1][0] else x[1]

    for outside, x in ((table, table), (table, other), (other, table), (other, other)):
        for _ in range(2):
            p = torch.sigmoid(10 * (x[:, 0] - outside[1][0]))
            torch.testing.assert_close(program(x, batched=True), p * x[:, 0] + (1 - p) * x[:, 1])

    @smooth
    def scaled_by(x, factor):
        return x * factor if x > 0 else 0.0

    two, three = (torch.full((4,), v, dtype=torch.float64) for v in (2.0, 3.0))
    for factor, steepness in ((two, two[0]), (three, two[0]), (two, three[0])):
        found = scaled_by(X, factor, batched=True, relax=Logistic(steepness))
        torch.testing.assert_close(found, X * factor * torch.sigmoid(steepness * X))


def test_nothing_of_a_run_is_kept_alive():
    """A recording holds programs, not the tensors of the call that taught it, nor those it read from outside."""

    @smooth
    def program(a):
        return sum([v if v > level else 0.0 for v in a])

    x, level = torch.randn(3, 4), torch.tensor(0.5, requires_grad=True) * 2.0
    values = program(x, batched=True)
    watched = [weakref.ref(t) for t in (x, level, values if values._base is None else values._base)]
    assert len([*program.recordings]) == 1
    del x, values
    level = torch.tensor(0.1)
    gc.collect()
    assert [ref() for ref in watched] == [None] * 3
    torch.testing.assert_close(
        program(torch.ones(3, 4), batched=True), torch.full((3,), 4 * torch.sigmoid(torch.tensor(9.0)))
    )


def test_a_source_that_changed_is_another_function(tmp_path):
    """Reloading a module decorates anew: the old recordings belong to the old function."""
    file = tmp_path / "program.py"
    for number in (1.0, 2.0):
        file.write_text(
            f"from algonet.smooth_python import smooth\n\n@smooth\ndef f(x):\n    return x + {number} if x > 0 else 0.0\n"
        )
        linecache.clearcache()
        spec = importlib.util.spec_from_file_location("program_that_changes", file)
        module = importlib.util.module_from_spec(spec)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            spec.loader.exec_module(module)
        torch.testing.assert_close(module.f(X, batched=True), torch.sigmoid(10 * X) * (X + number))

"""The semantics in formulas: branches, loops, masses, subscripts, and what reports and warnings say about them."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from algonet.relax import EXITS, SIGMOIDS, BumpExit, Logistic, Maximum, Probabilistic, Sech, Tent
from algonet.smooth_python import Enumerate, Particles, smooth

X = torch.tensor([-1.3, -0.2, 0.4, 1.7], dtype=torch.float64)


def sigmoid(x):
    return torch.sigmoid(10.0 * x)


@smooth
def branch(x, a, b):
    if x > 0:
        y = a
    else:
        y = b
    return y


def test_a_branch_is_a_mixture():
    p = sigmoid(X)
    torch.testing.assert_close(branch(X, 3.0, -1.0, batched=True), p * 3 - (1 - p))


@pytest.mark.parametrize("family", SIGMOIDS, ids=lambda f: f.__name__)
def test_comparisons_are_the_sigmoid(family):
    relax = family(steepness=3.0)
    # A kernel is compiled for each family: two of them will do here, the formulas have their own tests
    for backend in ("numba", "reference") if family in SIGMOIDS[:2] else ("reference",):
        found = branch(X, 1.0, 0.0, batched=True, relax=relax, backend=backend)
        torch.testing.assert_close(found, relax(X), atol=1e-7, rtol=1e-6)


@pytest.mark.parametrize("family", EXITS, ids=lambda f: f.__name__)
def test_equality_is_the_exit(family):
    @smooth(exit=family())
    def equal(x, y):
        a = 1.0 if x == y else 0.0
        b = 1.0 if x != y else 0.0
        return a, b

    for backend in ("numba", "reference") if family is BumpExit else ("reference",):
        same, different = equal(X, X * 0 + 0.1, batched=True, backend=backend)
        torch.testing.assert_close(different, family()(X - 0.1))
        torch.testing.assert_close(same, 1 - family()(X - 0.1))


@pytest.mark.parametrize("backend", ["auto", "reference"])
def test_a_steep_equality_is_crisp_on_whole_numbers_or_by_an_exit_with_a_steepness(backend):
    @smooth(backend=backend)
    def equal(x, y):
        return 1.0 if x == y else 0.0

    gaps = torch.tensor([0.0, 1.0, -3.0, 0.3])
    found = equal(gaps + 5, gaps * 0 + 5, batched=True, steepness=1e7)
    assert found[:3].tolist() == [1, 0, 0]
    torch.testing.assert_close(found[3:], 1 - BumpExit()(gaps[3:]))
    found = equal(gaps + 5, gaps * 0 + 5, batched=True, steepness=1e7, exit=Sech())
    torch.testing.assert_close(found, torch.tensor([1.0, 0.0, 0.0, 0.0]), atol=1e-6, rtol=0)


@smooth
def logic(x, y):
    both = 1.0 if x > 0 and y > 0 else 0.0
    either = 1.0 if x > 0 or y > 0 else 0.0
    neither = 1.0 if not (x > 0 or y > 0) else 0.0
    return both, either, neither


@pytest.mark.parametrize("conorm", [Probabilistic(), Maximum()], ids=lambda c: type(c).__name__)
def test_and_or_are_norm_and_conorm(conorm):
    y = X.flip(0) * 0.1
    p, q = sigmoid(X), sigmoid(y)
    both, either, neither = logic(X, y, batched=True, conorm=conorm)
    torch.testing.assert_close(both, conorm.both(p, q), atol=1e-12, rtol=1e-9)
    torch.testing.assert_close(either, conorm(p, q), atol=1e-12, rtol=1e-9)
    torch.testing.assert_close(neither, 1 - conorm(p, q), atol=1e-12, rtol=1e-9)


def test_min_max_abs_are_decisions():
    @smooth
    def program(x, y):
        return max(x, y), min(x, y), abs(x)

    y = X.flip(0)
    p = sigmoid(y - X)
    largest, smallest, size = program(X, y, batched=True)
    torch.testing.assert_close(largest, p * y + (1 - p) * X)
    torch.testing.assert_close(smallest, (1 - p) * y + p * X)
    torch.testing.assert_close(size, X * (2 * sigmoid(X) - 1))


@smooth
def countdown(x):
    steps = 0.0
    while x > 0:
        x = x - 1
        steps += 1
    return x, steps


def test_a_loop_sums_states_by_the_probability_of_leaving():
    x = torch.tensor([0.3, 2.6], dtype=torch.float64)
    alive, state, steps, value = torch.ones(2, dtype=torch.float64), x, 0.0, 0.0
    for k in range(60):
        p = sigmoid(state)
        value = value + alive * (1 - p) * state
        steps = steps + alive * (1 - p) * k
        alive = alive * p
        state = state - 1
    for backend in ("reference", "numba"):
        found = countdown(x, batched=True, backend=backend, epsilon=1e-14)
        torch.testing.assert_close(found, (value, steps))


@given(
    st.lists(st.floats(-3, 6), min_size=1, max_size=4),
    st.sampled_from([0.5, 2.0, 30.0]),
    st.sampled_from(["reference", "numba"]),
)
def test_weights_sum_to_one(numbers, steepness, backend):
    """A variable that is 1 on every path, but different objects, comes out as 1: through loops, breaks and returns."""

    @smooth
    def one(x, unit):
        y = unit
        k = 0
        while x > 0:
            x = x - 1
            y = y * 1.0
            if x > 4:
                y = unit + 0.0
                continue
            if x < 0.5:
                y = unit * 1.0
                break
            if k > 3:
                return y
            k += 1
        else:
            y = y + 0.0
        if x > -0.5:
            return y * 1.0
        return unit

    x = torch.tensor(numbers, dtype=torch.float64)
    found = one(x, torch.ones_like(x), batched=True, steepness=steepness, backend=backend)
    torch.testing.assert_close(found, torch.ones_like(x), atol=1e-5, rtol=0)


def test_masses_below_epsilon_are_cut_for_each_item_by_itself():
    x = torch.tensor([0.5, 40.0], dtype=torch.float64)
    together = countdown(x, batched=True, epsilon=1e-2)[1]
    alone = countdown(x[:1], batched=True, epsilon=1e-2)[1]
    torch.testing.assert_close(together[:1], alone, atol=1e-12, rtol=0)


def test_items_that_have_left_stand_still():
    @smooth
    def grow(x, steps):
        y = 1.0
        while steps > 0:
            y = y * 1e15 * x
            steps = steps - 1
        return y

    for backend in ("reference", "numba"):
        steps = torch.tensor([1.5, 12.5], requires_grad=True)
        found = grow(torch.tensor([1.0, 1e-15]), steps, batched=True, steepness=50.0, backend=backend)
        found.sum().backward()
        assert torch.isfinite(found).all()
        assert torch.isfinite(steps.grad).all()


def test_report_counts_iterations():
    x = torch.tensor([0.5, 5.5])
    result, report = countdown(x, batched=True, steepness=50.0, with_report=True, backend="reference")
    (line,) = report.iterations
    assert report.iterations[line] in (6, 7)
    assert report.mass_left == {}
    assert len(result) == 2


@smooth
def endless(x):
    while x > 0:
        x = x * 1.0
    return x


def test_endless_loops_stop_with_a_warning_that_names_the_line():
    x = torch.tensor([1.0, -1.0])
    with pytest.warns(
        RuntimeWarning, match=r"endless: the loop in line \d+ of .*test_semantics.py stopped after 5 iter"
    ):
        _, report = endless(x, batched=True, max_iterations=5, with_report=True)
    (left,) = report.mass_left.values()
    assert left[0] > 0.99
    assert left[1] < 1e-3


def test_for_loops_have_their_own_bound():
    @smooth
    def program(x):
        count = 0.0
        for _ in range(30):
            if x > 100:
                break
            count += 1.0
        return count

    assert float(program(torch.tensor([0.0]), batched=True, max_iterations=5)) == pytest.approx(30.0)


# -- subscripts


@smooth
def read(a, i):
    return a[i]


@smooth
def write(a, i, v):
    a[i] = v
    return a


@pytest.mark.parametrize("exit_", [BumpExit(), Tent(), Sech(2.0)], ids=lambda e: type(e).__name__)
def test_real_subscripts_read_a_mixture(exit_):
    a = torch.randn(3, 5, dtype=torch.float64)
    i = torch.tensor([0.0, 2.4, 3.5], dtype=torch.float64)
    # Part k is also number k - 5
    weights = 1 - exit_(i[:, None] - torch.arange(5)) + 1 - exit_(i[:, None] - torch.arange(-5, 0))
    weights = weights / weights.sum(1, keepdim=True)
    torch.testing.assert_close(read(a, i, batched=True, exit=exit_), (weights * a).sum(1))
    torch.testing.assert_close(write(a, i, 9.0, batched=True, exit=exit_), a + weights * (9.0 - a))


def test_real_subscripts_are_exact_at_integers_and_clamped_outside():
    a = torch.tensor([5.0, 6.0, 8.0])
    assert [float(read(a, torch.tensor(i))) for i in (0.0, 1.0, 2.0, -4.0, 9.0)] == [5.0, 6.0, 8.0, 5.0, 8.0]
    assert float(read(a, torch.tensor(1.5))) == pytest.approx(7.0)


def test_real_subscripts_reach_into_lists_and_rows():
    @smooth
    def program(x, i):
        rows = [[x, x + 1.0], [x + 2.0, x + 3.0]]
        rows[i][1] = 100.0
        return rows[i][0], rows[1][1]

    first, last = program(torch.tensor(1.0), torch.tensor(1.0))
    assert (float(first), float(last)) == (3.0, 100.0)

    @smooth
    def matrix(m, i, j):
        m[i, j] = m[i, 0] + 1.0
        return m

    m = torch.arange(6.0).reshape(2, 3)
    found = matrix(m, torch.tensor(1.0), torch.tensor(2.0))
    assert found.tolist() == [[0.0, 1.0, 2.0], [3.0, 4.0, 4.0]]


def test_integer_tensors_subscript_crisply():
    a = torch.randn(3, 5)
    i = torch.tensor([0, 4, 2])
    torch.testing.assert_close(read(a, i, batched=True), a[torch.arange(3), i])


# -- only what matters


def test_only_assigned_variables_that_live_on_are_merged():
    @smooth
    def program(x, big):
        t = x
        if x > 0:
            t = x * 2
            y = t
        else:
            y = x
        return y, big

    assert "_s.branch(_s.gt(x, 0), y=y)" in program.explain()
    big = torch.randn(3)
    assert torch.equal(program(torch.tensor(1.0), big)[1], big)


def test_equal_crisp_values_stay_crisp():
    @smooth
    def program(x):
        n = 3
        if x > 0:
            n = 3
            k = 1
        else:
            k = 2
        return n, k

    n, k = program(torch.tensor(0.0))
    assert n == 3
    assert isinstance(n, int)
    assert float(k) == 1.5


@pytest.mark.parametrize("x", [0.1, 50.0, -50.0])
@pytest.mark.parametrize(
    "options", [{}, {"backend": "reference"}, {"paths": Enumerate()}, {"paths": Particles(4)}], ids=str
)
def test_what_both_sides_set_to_the_same_is_no_decision(x, options):
    """Also where a side with a loop in it is skipped, which nobody else in the batch may tell."""

    @smooth(steepness=5.0)
    def program(x, total):
        y, own, n = x, 2, 0
        if x > 0.0:
            n = own + 1
            while y > 1.0:
                y = y - 0.5
            level = 0.5
            rest = 1
        else:
            if x > -1.0:
                n = own + 1
            else:
                n = own + 1
            level = 0.5
            rest = 2
        for _ in range(n):
            total = total + level
        return total, y, rest, isinstance(level, float)

    total, _, rest, plain = program(torch.tensor([x]), torch.tensor([1.0]), batched=True, **options)
    assert total.tolist() == [2.5]
    assert plain
    assert isinstance(rest, torch.Tensor)


def test_unlikely_heavy_branches_are_skipped():
    calls = []

    def expensive(x):
        calls.append(1)
        return x

    @smooth
    def program(x):
        if x > 0:
            y = expensive(x)
        else:
            y = 0.0
        return y

    program(torch.tensor([-9.0, -8.0]), batched=True)
    assert not calls
    found = program(torch.tensor([-9.0, 0.05]), batched=True)
    assert calls
    assert found[0] == 0.0
    assert found[1] == pytest.approx(0.05 * float(torch.sigmoid(torch.tensor(0.5))))


def test_explain_is_readable_and_stable():
    text = countdown.explain()
    assert text == countdown.explain()
    assert "while _loop1.goes(_s.gt(x, 0), steps, x):" in text
    compile(text, "explained", "exec")


def test_arguments_are_left_alone():
    a = [3.0, 1.0]
    t = torch.tensor([3.0, 1.0])

    @smooth
    def program(a):
        if a[0] > a[1]:
            a[0], a[1] = a[1], a[0]
        return a

    program(t, steepness=1e3)
    program.crisp(t)
    program.crisp(a)
    assert a == [3.0, 1.0]
    assert t.tolist() == [3.0, 1.0]


def test_logistic_is_the_default():
    torch.testing.assert_close(branch(X, 1.0, 0.0, batched=True), Logistic(10.0)(X))


@pytest.mark.parametrize("backend", ["reference", "numba"])
def test_who_left_a_loop_keeps_what_a_dictionary_holds(backend):
    """9 leaves at once with 81, and would be squared to infinity while 1.0001 is on its way."""

    @smooth(steepness=200.0, backend=backend)
    def squared(x):
        state = {"value": x, "steps": [0.0]}
        while state["value"] < 10.0:
            state["value"] = state["value"] * state["value"]
            state["steps"][0] = state["steps"][0] + 1.0
        return state["value"], state["steps"]

    x = torch.tensor([9.0, 1.0001], dtype=torch.float64, requires_grad=True)
    value, (steps,) = squared(x, batched=True)
    torch.testing.assert_close(value[0], 9.0 * x[0])
    torch.testing.assert_close(steps, steps.new_tensor([1.0, 15.0]))
    (slope,) = torch.autograd.grad(value.sum(), x)
    torch.testing.assert_close(slope[0], 2.0 * x[0])

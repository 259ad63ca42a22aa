"""What a Python programmer writes without thinking: it means what it should, or the error says what to write."""

from __future__ import annotations

import copy
import inspect
import math
import pickle
import warnings

import numpy as np
import pytest
import torch

from algonet.relax import Sech
from algonet.smooth_python import Enumerate, smooth

STEEP = {"steepness": 1e5}
A = torch.tensor([0.3, -1.2, 2.1], dtype=torch.float64)


def note(error: BaseException) -> str:
    return "\n".join(getattr(error, "__notes__", []))


# -- programs that run


@smooth
def least_from_infinity(a):
    best = float("inf")
    place = 0
    for k in range(len(a)):
        if a[k] < best:
            best = a[k]
            place = k
    return best, place


@smooth
def largest_with_infinity(a):
    best = -math.inf
    for v in a:
        best = max(best, v)
    return best, min(best, math.inf), 1.0 if best == math.inf else 0.0


@smooth
def counting_from_one(a):
    total = 0.0
    for k, v in enumerate(a, start=1):
        total += v * k
    for k, v in enumerate(a, 2):
        total += v * k
    return total


@smooth
def generators(a):
    some = 1.0 if any(v > 2 for v in a) else 0.0
    every = 1.0 if all(-5 < v < 2.05 for v in a) else 0.0
    return some, every, sum(1.0 if v > 0 else 0.0 for v in a), max(*a), min(*a, 0.5)


@smooth
def equal_lists(a):
    pair, same = [a[0], a[1]], (a[0], a[1], 1.0)
    return (
        1.0 if pair == [a[0], a[1]] else 0.0,
        1.0 if pair == [a[1], a[0]] else 0.0,
        1.0 if pair != [a[0], a[2]] else 0.0,
        1.0 if same == (a[0], a[1], 1.0) else 0.0,
        1.0 if pair == [a[0]] else 0.0,
        1.0 if {"x": a[0]} == {"x": a[0]} else 0.0,
    )


@smooth
def none_and_words_differ_from_numbers(a):
    return 1.0 if a[0] == None else 2.0, 1.0 if a[0] != "x" else 2.0  # noqa: E711


@smooth
def dictionary_methods(a):
    d = {"x": a[0]}
    return d.get("x", a[1]), d.get("y", a[1]), sum(d.values())


@smooth
def tables_of_pairs(a):
    table = {(0, 0): a[0], "rows": {}}
    for i in range(1, 3):
        table[i, 0] = table[i - 1, 0] + a[i]
        table["rows"][i, 0.5] = [a[i], 0.0]
        table["rows"][i, 0.5][1] = table[i, 0] * i
    table[0, 0] += 1.0
    return table[2, 0], table[0, 0], table["rows"][2, 0.5][1]


@smooth
def steps(a):
    pair = divmod(a[2], 0.8)
    return a[0] // 0.25, -1.3 // a[0], a[1] % 0.5, 4.7 % a[2], round(a[2]), round(a[1], 1), pair[0] * pair[1]


@smooth
def float_positions(a):
    n = 0.0
    total = 0.0
    for _ in range(3):
        total += a[n]
        n += 1.0
    return total


@smooth
def sums_of_decisions(a):
    return (a[0] > 0) + (a[0] > 1) * 3.0


def test_where_is_a_conditional_expression():
    """Also element by element, with crisp conditions, and where it is drawn."""

    @smooth
    def positive(a):
        total = 0.0
        for v in a:
            total += torch.where(v > 0.0, v, 0.0)
        return torch.where(a > 0.0, a, 0.0), total, torch.where(torch.isnan(a), 0.0, a)

    @smooth
    def written_out(a):
        total = 0.0
        for v in a:
            total += v if v > 0.0 else 0.0
        return a if a > 0.0 else 0.0, total, a

    for options in ({}, {"hard": True}, {"backend": "reference"}, {"paths": Enumerate()}):
        torch.testing.assert_close(positive(A, **options), written_out(A, **options))
        two = torch.stack([A, -A])
        torch.testing.assert_close(positive(two, batched=True, **options), written_out(two, batched=True, **options))


@pytest.mark.parametrize("backend", ["auto", "reference"])
@pytest.mark.parametrize(
    "program",
    [
        *(least_from_infinity, largest_with_infinity, counting_from_one, generators, equal_lists, dictionary_methods),
        *(none_and_words_differ_from_numbers, sums_of_decisions, tables_of_pairs, steps),
    ],
    ids=lambda p: p.__name__,
)
def test_steep_runs_equal_python(program, backend):
    expected = torch.tensor(torch.utils._pytree.tree_leaves(program.crisp(A.tolist())), dtype=torch.float64)
    for options in ({}, {"batched": True}):
        x = A.expand(2, 3) if options else A
        found = torch.utils._pytree.tree_leaves(program(x, backend=backend, **STEEP, **options))
        for one, other in zip(found, expected, strict=True):
            assert torch.as_tensor(one).flatten()[-1].item() == pytest.approx(float(other), abs=1e-6)


@pytest.mark.parametrize("options", [{}, {"backend": "reference"}, {"paths": Enumerate()}], ids=str)
def test_steps_have_the_slope_of_what_is_between(options):
    """None of `//` and `round`, that of the remainder for `%`: the numbers of their operands, whichever is a tensor."""
    found = torch.autograd.functional.jacobian(lambda a: torch.stack(steps(a, **options)), A)
    wanted = torch.zeros(7, 3, dtype=torch.float64)
    wanted[2, 1], wanted[3, 2], wanted[6, 2] = 1.0, -2.0, 2.0
    torch.testing.assert_close(found, wanted)


@smooth
def same_letter(a, b):
    return 1.0 if a == b else 0.0


@smooth
def item_at(a, place):
    return a[place]


@pytest.mark.parametrize("backend", ["auto", "reference"])
@pytest.mark.parametrize(("function", "first", "between"), [(same_letter, A[0] * 0 + 3, 2.6), (item_at, A, 1.6)])
def test_a_flat_exit_is_told_once(function, first, between, backend):
    """Whole numbers get no gradient through `==` and subscripts, unless another exit is used."""

    def slope(place: float, **options):
        x = torch.tensor(place, dtype=torch.float64, requires_grad=True)
        return torch.autograd.grad(function(first, x, backend=backend, **options), x)[0]

    function.looked = False
    function.recordings.forget()
    with pytest.warns(UserWarning, match=r"line \d+ .* meets whole numbers only, where BumpExit.*exit=Sech"):
        slope(1.0)
    assert slope(2.0) == 0
    for options, place in (({"exit": Sech(1.0)}, 1.0), ({}, between)):
        function.looked = False
        function.recordings.forget()
        assert slope(place, **options) != 0


def test_whole_floats_are_positions():
    assert float(float_positions(A)) == pytest.approx(float(A.sum()))


def test_fractions_are_positions_between():
    @smooth
    def between(a):
        a[0.5] = 10.0
        return a[0.5], a[1, 0.5] if len(a.shape) > 1 else a[-3.0], a[99.0]

    mid, first, last = between(torch.tensor([2.0, 4.0, 8.0]))
    # Half of 10 went to each neighbour
    assert float(mid) == pytest.approx((6.0 + 7.0) / 2)
    assert float(first) == pytest.approx(6.0)
    assert float(last) == 8.0


@smooth
def rows_and_columns(m, i, v):
    m[i, :] = 4.0
    m[:, i] = v
    m[1:, i] += 1.0
    m[i, 0:2] = v[1:]
    return m


def test_real_subscripts_beside_slices():
    m, v = torch.zeros(3, 3), torch.tensor([1.0, 2.0, 3.0])
    expected = rows_and_columns.crisp(m, 2, v)
    torch.testing.assert_close(rows_and_columns(m, torch.tensor(2.0), v), expected)
    batch = rows_and_columns(m.expand(2, 3, 3), torch.tensor([2.0, 2.0]), v.expand(2, 3), batched=True)
    torch.testing.assert_close(batch[1], expected)
    leaf = torch.tensor(1.4, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda i: rows_and_columns(m.double(), i, v.double()), (leaf,))


def test_slices_of_matrices():
    @smooth
    def program(m, v):
        m[:, 0] = v[0]
        m[0, :] = 7.0
        m[1:, 1:] = m[1:, 1:] * 2
        m[..., 2] += 1.0
        if v[0] > 0:
            m[0] = v
        return m

    m, v = torch.arange(6.0).reshape(2, 3), A.float()
    expected = program.crisp(m, v)
    torch.testing.assert_close(program(m, v, **STEEP), expected)
    torch.testing.assert_close(program(m.expand(2, 2, 3), v.expand(2, 3), batched=True, **STEEP)[1], expected)


def test_flags_in_tensors_are_numbers():
    @smooth
    def program(flag, x):
        if flag == 1:
            x = x + flag
        return x - flag

    flag, x = torch.tensor([True, False]), torch.tensor([1.0, 1.0])
    assert program(flag, x, batched=True).tolist() == [1.0, 1.0]


@smooth
def factorial(n):
    if n < 1.5:
        return 1.0
    return n * factorial(n - 1)


@pytest.mark.parametrize("backend", ["auto", "reference"])
def test_recursion_ends_where_nobody_is_left(backend):
    n = torch.tensor([5.0, 1.0, 3.0], dtype=torch.float64, requires_grad=True)
    found = factorial(n, batched=True, steepness=50.0, backend=backend)
    assert found.tolist() == pytest.approx([120.0, 1.0, 6.0])
    found.sum().backward()
    assert torch.isfinite(n.grad).all()


def test_a_recursion_does_not_depend_on_batch_mates():
    n = torch.tensor([2.0, 1.2, 9.0], dtype=torch.float64)
    together = factorial(n, batched=True, steepness=7.0, epsilon=1e-2)
    alone = [factorial(n[k : k + 1], batched=True, steepness=7.0, epsilon=1e-2) for k in range(3)]
    torch.testing.assert_close(together, torch.cat(alone), rtol=1e-12, atol=1e-12)
    # What was dropped is shared out: with weights that sum to one, a constant stays that constant

    @smooth
    def one(n):
        if n < 1.5:
            return 1.0
        return one(n - 1)

    torch.testing.assert_close(one(n, batched=True, steepness=7.0, epsilon=1e-2), torch.ones(3, dtype=torch.float64))


# -- the function as an object


@smooth
def inner(x):
    return 1.0 if x > 0 else 0.0


@smooth
def calls_inner(x):
    """Twice."""
    return inner(x, steepness=2.0) + inner(x - 1)


def test_a_crisp_run_is_crisp_throughout():
    assert calls_inner.crisp(torch.tensor(0.01)) == 1.0
    assert 0 < float(calls_inner(torch.tensor(0.01))) < 1


def test_functions_have_a_signature_and_travel_by_name():
    assert str(inspect.signature(calls_inner)) == "(x)"
    assert "def calls_inner" in inspect.getsource(calls_inner)
    assert calls_inner.__doc__ == "Twice."
    assert pickle.loads(pickle.dumps(calls_inner)) is calls_inner
    assert copy.deepcopy([calls_inner])[0] is calls_inner


class Thing:
    scale = 3.0

    @smooth
    def size(self, x, factor=1.0):
        return self.side(x) * factor

    @smooth
    def side(self, x):
        return x * self.scale if x > 0 else -x

    @staticmethod
    @smooth
    def plain(x):
        return x if x > 0 else 0.0

    @classmethod
    @smooth
    def scaled(cls, x):
        return x * cls.scale if x > 0 else 0.0


def test_methods_have_everything_functions_have():
    x, thing = torch.tensor(2.0), Thing()
    assert float(thing.size(x, factor=2.0, **STEEP)) == 12.0
    assert thing.size.crisp(-2.0) == 2.0
    assert Thing.size.crisp(thing, -2.0) == 2.0
    assert "_s.call(self.side, x)" in thing.size.explain()
    assert str(inspect.signature(thing.size)) == "(x, factor=1.0)"
    assert "smooth method size" in repr(thing.size)
    assert float(Thing.plain(x, **STEEP)) == 2.0
    assert float(thing.scaled(x, **STEEP)) == 6.0


def test_methods_that_call_each_other_follow_their_object():
    x, thing, other = torch.tensor([2.0, -1.0]), Thing(), Thing()
    other.scale = 5.0
    for owner, scale in ((thing, 3.0), (thing, 3.0), (other, 5.0), (thing, 3.0)):
        assert owner.size(x, batched=True, **STEEP).tolist() == pytest.approx([2 * scale, 1.0])
    thing.scale = 7.0
    assert thing.size(x, batched=True, **STEEP).tolist() == pytest.approx([14.0, 1.0])


class Threshold(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.level = torch.nn.Parameter(torch.tensor(0.5))

    @smooth(steepness=4.0)
    def forward(self, x):
        if x > self.level:
            return 1.0
        return 0.0


def test_a_smooth_forward_in_all_ways_of_running_a_module():
    layer, x = Threshold(), torch.tensor([0.5, 9.0])
    expected = torch.sigmoid(4 * (x - 0.5))
    torch.testing.assert_close(torch.compile(layer, fullgraph=True, backend="eager")(x, batched=True), expected)
    torch.testing.assert_close(torch.vmap(layer)(x), expected)
    torch.testing.assert_close(torch.export.export(layer, (x[0],)).module()(x[0]), expected[0])
    for level in (5.0, -5.0):
        found = torch.func.functional_call(layer, {"level": torch.tensor(level)}, (x,), {"batched": True})
        torch.testing.assert_close(found, torch.sigmoid(4 * (x - level)))
    copied = copy.deepcopy(layer)
    copied.level.data.fill_(100.0)
    assert float(copied(x[0]).detach()) == 0.0
    torch.testing.assert_close(layer(x, batched=True), expected)


def test_the_other_order_of_decorators_is_told():
    with pytest.raises(TypeError, match="put @staticmethod above @smooth"):

        class Wrong:
            @smooth
            @staticmethod
            def f(x):
                return x


# -- errors that say what to write


@smooth
def bits(x):
    return 1.0 if (x > 0) & (x < 1) else 0.0


@smooth
def inverted(x):
    return 1.0 if ~(x > 0) else 0.0


@smooth
def ordered_tuples(x):
    return 1.0 if (x, 1.0) < (2.0, 0.0) else 0.0


@smooth
def place_in_list(x):
    return [1.0, x].index(1.0)


@smooth
def counted_in_list(x):
    return [1.0, 2.0].count(x)


@smooth
def key_of_dictionary(x):
    table = {0.0: 1.0}
    return table[x]


@smooth
def new_key_of_dictionary(x):
    table = {}
    table[x] = 1.0
    return table


@smooth
def infinite_on_one_path(x):
    best = math.inf
    if x > 0:
        best = x
    return best


@smooth
def key_on_one_path(x):
    table = {"a": 0.0}
    if x > 0:
        table["b"] = x
    return table["a"]


@smooth
def compared_with_a_word(x):
    return 1.0 if x > "a" else 0.0


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (key_on_one_path, r"`table` has the keys \('a', 'b'\) on one path and \('a'\) on the other"),
        (bits, "write `and`, `or` and `not`"),
        (inverted, "write `and`, `or` and `not`"),
        (ordered_tuples, "write the comparison of two numbers"),
        (place_in_list, r".index\(\) compares crisply; write the loop"),
        (counted_in_list, r".count\(\) compares crisply"),
        (key_of_dictionary, "a dictionary is looked up crisply"),
        (new_key_of_dictionary, "a dictionary is looked up crisply"),
        (infinite_on_one_path, "`best` is infinite on one path.*large finite number"),
        (compared_with_a_word, "takes tensors and numbers; this one has a str"),
    ],
    ids=lambda p: getattr(p, "__name__", ""),
)
def test_errors_say_what_to_write(function, message):
    with pytest.raises((TypeError, ValueError), match=message) as caught:
        function(torch.tensor(0.5))
    assert f"in the smooth function {function.__name__}, {__file__}, line " in note(caught.value)


def test_complex_numbers_have_no_order():
    with pytest.raises(TypeError, match="complex numbers are neither larger nor smaller"):
        inner(torch.tensor(1j))


def test_numpy_arrays_are_not_taken_for_tensors():
    with pytest.raises(TypeError, match=r"least_from_infinity: a NumPy array decides crisply.*torch.from_numpy"):
        least_from_infinity(np.array([1.0, 2.0]))
    assert float(inner(np.float32(2.0))) == 1.0


@smooth
def fails_inside(x):
    return x[0]


@smooth
def calls_what_fails(x):
    y = 1.0
    return fails_inside(x) + y


def helper_that_fails(x):
    raise KeyError("boom")


@smooth
def calls_a_helper(x):
    z = x + 1.0
    return helper_that_fails(z)


def test_notes_name_the_line_of_each_function():
    with pytest.raises(TypeError) as caught:
        calls_what_fails(torch.tensor(1.0))
    first, second = caught.value.__notes__
    assert first.endswith("return x[0]")
    assert second.endswith("return fails_inside(x) + y")
    with pytest.raises(KeyError) as caught:
        calls_a_helper(torch.tensor(1.0))
    assert caught.value.__notes__[0].endswith("return helper_that_fails(z)")


def test_an_endless_recursion_is_noted_once():
    @smooth
    def endless(x):
        if x > 1e9:
            return x
        return endless(x)

    with pytest.raises(RecursionError, match="raise epsilon or max_depth") as caught:
        endless(torch.tensor(1.0))
    assert len(caught.value.__notes__) == 1


def test_warnings_point_at_the_loop():
    @smooth
    def endless(x):
        while x > 0:  # this line
            x = x * 1.0
        return x

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        endless(torch.tensor(1.0), max_iterations=3)
    (warning,) = caught
    assert warning.filename == __file__
    lines, first = inspect.getsourcelines(endless)
    assert lines[warning.lineno - first].strip().endswith("# this line")


def test_values_print_as_what_they_are(capsys):
    @smooth
    def shown(x):
        y = x * 2.0
        print(y, f"{y}")
        return y

    shown(torch.tensor(1.5))
    assert capsys.readouterr().out == "tensor(3.) smooth tensor(3.)\n"

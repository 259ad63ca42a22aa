"""One program, one meaning: alone or in a batch, recorded, repeated or mapped, it gives the same numbers."""

from __future__ import annotations

import math
from collections import defaultdict

import pytest
import torch

from algonet.relax import Sech
from algonet.smooth_python import smooth

W = torch.tensor(4.0)
PLACE = torch.tensor(1)
TABLE = [10.0, 20.0, 30.0]


def slope(function, x, **options):
    leaf = x.clone().requires_grad_()
    result = function(leaf, **options)
    result.sum().backward()
    return result.detach(), leaf.grad


# -- replay


@smooth
def inner(x):
    return x if x > 0.3 else 2 * x


@smooth
def root_of_outside(x):
    return x * math.sqrt(W)


@smooth
def table_of_outside(x):
    return x * TABLE[PLACE]


@smooth
def text_of_outside(x):
    return x * float(str(PLACE.tolist()))


@smooth
def formatted_outside(x):
    return x * len(f"{'x' * PLACE}")


@smooth
def slice_by_outside(x):
    v = [x, 2 * x, 3 * x]
    return sum(v[:PLACE]) * 1.0


@pytest.mark.parametrize(
    "function", [root_of_outside, table_of_outside, text_of_outside, formatted_outside, slice_by_outside]
)
def test_numbers_that_python_reads_from_outside_are_read_in_every_call(function):
    x = torch.tensor([1.0, 2.0])
    w, place = W.clone(), PLACE.clone()
    try:
        for _ in range(3):
            before = function(x, batched=True)
        W.fill_(9.0)
        PLACE.fill_(2)
        after = function(x, batched=True)
        function.recordings.forget()
        torch.testing.assert_close(after, function(x, batched=True))
        assert not torch.equal(before, after)
    finally:
        W.copy_(w)
        PLACE.copy_(place)


def test_functions_of_math_keep_the_gradient_of_a_parameter():
    rate = torch.nn.Parameter(torch.tensor(0.5, dtype=torch.float64))

    @smooth
    def grows(x):
        return x * math.exp(rate) + math.atan2(rate, x) + math.pow(rate, 2)

    x = torch.tensor([1.0, 2.0], dtype=torch.float64)
    for _ in range(2):
        found = torch.autograd.grad(grows(x, batched=True).sum(), rate)[0]
        value = x * rate.exp() + torch.atan2(rate, x) + rate**2
        torch.testing.assert_close(found, torch.autograd.grad(value.sum(), rate)[0])

    @smooth
    def loses(x):
        return x * math.gamma(rate)

    with pytest.raises(TypeError, match=r"math\.gamma"):
        loses(x, batched=True)


def test_properties_are_read_in_every_call():
    class Source:
        reads = 0

        @property
        def level(self):
            self.reads += 1
            return float(self.reads)

    source = Source()

    @smooth
    def scaled(x):
        return x * source.level

    x = torch.ones(2)
    assert [float(scaled(x, batched=True)[0]) for _ in range(4)] == [1.0, 2.0, 3.0, 4.0]


def test_subscripts_of_a_class_are_read_in_every_call():
    class Meta(type):
        entries: dict[str, float] = {"rate": 2.0}  # noqa: RUF012

        def __getitem__(cls, key):
            return cls.entries[key]

        def __len__(cls):
            return int(cls.entries["rate"])

    class Config(metaclass=Meta):
        pass

    class Generic:
        def __class_getitem__(cls, key):
            return Meta.entries[key]

    @smooth
    def scaled(x):
        return x * Config["rate"] + len(Config)

    @smooth
    def generic(x):
        return x * Generic["rate"]

    x = torch.ones(2)
    for rate in (2.0, 3.0, 5.0):
        Meta.entries["rate"] = rate
        assert float(scaled(x, batched=True)[0]) == 2 * rate
        assert float(generic(x, batched=True)[0]) == rate


# -- crisp numbers beside smooth decisions


@smooth(steepness=2.0)
def skipped_branch(x):
    c = 0.0
    if x > 5.0:
        for _ in range(2):
            c = c + x
    if c < 0.5:
        return 1.0
    return 0.0


@smooth(steepness=2.0)
def skipped_choice(x):
    c = sum([x, x]) if x > 5.0 else 0.0
    c = inner(x) if x > 5.0 else 0.0
    if c < 0.5:
        return 1.0
    return 0.0


@smooth(steepness=2.0)
def skipped_loop(x):
    c, k = 0.0, 0
    while x > 5.0:
        x = x - 1.0
        c = c + 1.0
        k += 1
    if c < 0.5:
        return 1.0 + k
    return 0.0


@smooth(steepness=20.0)
def early_break(x):
    c = 0
    for i in range(4):
        c = i
        if x > 0.0:
            break
    if c < 0.5:
        return 1.0
    return 0.0


@smooth(steepness=2.0)
def skipped_items(x):
    w = [0.0, 1.0]
    if x > 5.0:
        for k in range(2):
            w[k] = x
    return 1.0 if w[0] < 0.5 else 0.0


@smooth(steepness=2.0)
def helper_returns(x):
    if x > 5.0:
        for _ in range(2):
            x = x - 1.0
        return 3
    return 0


@smooth(steepness=2.0)
def skipped_return(x):
    if helper_returns(x) < 0.5:
        return 1.0
    return 0.0


@pytest.mark.parametrize(
    "function", [skipped_branch, skipped_choice, skipped_loop, early_break, skipped_items, skipped_return]
)
def test_an_item_does_not_depend_on_who_takes_the_branches_it_skips(function):
    mates = torch.tensor([-3.0, 0.0, 4.9, 5.2, 9.0, 3.0], dtype=torch.float64)
    for options in ({}, {"backend": "reference"}):
        together = function(mates, batched=True, **options)
        for k, x in enumerate(mates):
            torch.testing.assert_close(function(x, **options), together[k], atol=1e-5, rtol=0)
            pair = torch.stack([x, mates[0]])
            torch.testing.assert_close(function(pair, batched=True, **options)[0], together[k], atol=1e-5, rtol=0)
    torch.testing.assert_close(torch.vmap(function)(mates), together, atol=1e-5, rtol=0)
    if function is skipped_branch:
        assert float(skipped_branch(torch.tensor(-3.0))) == pytest.approx(0.7311, abs=1e-4)


@smooth(steepness=2.0)
def written_number(v):
    v[0] = 2.0
    v[1:2] = 1.0
    if v[0] > 0.4:
        return v[2] if v[1] > 0.5 else 0.0
    return 0.0


@smooth(steepness=2.0)
def made_tensor(v):
    t = torch.tensor([2.0, v[0]])
    return t[1] if t[0] > 0.4 else 0.0


@pytest.mark.parametrize("function", [written_number, made_tensor])
def test_numbers_written_into_a_tensor_decide_smoothly(function):
    v = torch.tensor([[1.0, 2.0, 3.0]], dtype=torch.float64)
    recorded = function(v, batched=True)
    torch.testing.assert_close(torch.vmap(function)(v), recorded)
    torch.testing.assert_close(function(v, batched=True, backend="reference"), recorded)
    torch.testing.assert_close(function(v[0]), recorded[0])
    assert 0.0 < float(recorded) < 2.99


# -- containers


@smooth
def running_sums(v):
    for i, e in enumerate(v):
        if i + 1 < len(v):
            v[i + 1] = v[i + 1] + e
    return v


@smooth
def running_pairs(v):
    for e, k in zip(v, range(2)):  # noqa: B905
        v[k + 1] = v[k + 1] + e
    return v


@smooth
def from_behind(v):
    k = len(v) - 1
    for e in reversed(v):
        if k > 0:
            v[k - 1] = v[k - 1] + e
        k -= 1
    return v


@smooth
def in_a_dictionary(v):
    d = {0: v[0], 1: v[1], 2: v[2]}
    for k, e in d.items():
        if k < 2:
            d[k + 1] = d[k + 1] + e
    return [d[0], d[1], d[2]]


@smooth
def appended(v):
    w = [v[0]]
    for e in w:
        if len(w) < 3:
            w.append(e + v[1])
    return w


@pytest.mark.parametrize("function", [running_sums, running_pairs, from_behind, in_a_dictionary, appended])
def test_a_loop_sees_what_its_body_writes(function):
    crisp = [float(e) for e in function.crisp([1.0, 2.0, 3.0])]
    v = torch.tensor([1.0, 2.0, 3.0])
    for options in ({}, {"backend": "reference"}):
        assert [float(e) for e in function(v, **options)] == crisp
        assert [float(e) for e in function([v[0], v[1], v[2]], **options)] == crisp
    if function is running_sums:
        assert crisp == [1.0, 3.0, 6.0]


@smooth
def negative_position(x, v):
    k = 0
    if x > 0:
        k = -1
    return v[k]


@smooth
def negative_store(x, v):
    k = 0
    if x > 0:
        k = -2
    v[k] = 9.0
    return v


@pytest.mark.parametrize("size", [3, 40])
def test_negative_positions_count_from_the_end(size):
    v = torch.arange(1.0, size + 1.0).expand(2, size)
    x = torch.tensor([2.0, -2.0])
    for options in ({}, {"backend": "reference"}, {"hard": True}):
        found = negative_position(x, v, batched=True, steepness=100.0, **options)
        torch.testing.assert_close(found, torch.tensor([float(size), 1.0]))
        stored = negative_store(x, v, batched=True, steepness=100.0, **options)
        assert [float(stored[0, -2]), float(stored[1, 0]), float(stored[0, 0])] == [9.0, 9.0, 1.0]

    @smooth
    def read(k, v):
        return v[k]

    places = torch.tensor([-1.0, -float(size), -size - 5.0, size + 5.0, 1.0])
    expected = torch.tensor([float(size), 1.0, 1.0, float(size), 2.0])
    for options in ({}, {"backend": "reference"}):
        torch.testing.assert_close(read(places, v[:1].expand(5, size), batched=True, **options), expected)
        assert float(read(-1.0, v[0], **options)) == size
        half = read(torch.tensor(-0.5), v[0], **options)
        assert float(half) == pytest.approx((1.0 + size) / 2)
        sech = read(torch.tensor([-0.01, 0.01]), v, batched=True, exit=Sech(8.0), **options)
        assert float(abs(sech[0] - sech[1])) < 0.2


# -- numbers


@smooth
def unused_rows(x):
    s = x
    for _ in range(200):
        s = s * 1.01
    unused = 1.0 / (x - x)
    unused = unused * unused + unused
    t = [s, unused * s]
    return t[0]


@smooth
def quotient(a, b):
    s = a
    for _ in range(150):
        s = s + 0.0
    return s / b


def test_rows_nobody_uses_have_no_gradient():
    x = torch.tensor([1.0, 2.0])
    value, grad = slope(unused_rows, x, batched=True, backend="numba")
    expected, wanted = slope(unused_rows, x, batched=True, backend="reference")
    torch.testing.assert_close(value, expected)
    torch.testing.assert_close(grad, wanted)


@pytest.mark.parametrize("scale", [1e-25, 1e25])
def test_the_derivative_by_a_denominator_neither_overflows_nor_vanishes(scale):
    a, b = torch.tensor([3.0 * scale]), torch.tensor([2.0 * scale], requires_grad=True)
    (grad,) = torch.autograd.grad(quotient(a, b, batched=True, backend="numba").sum(), b)
    assert float(grad) * scale == pytest.approx(-0.75)


# -- arguments and compilation


def test_default_dictionaries_stay_what_they_are():
    @smooth
    def total(d, x):
        return d["a"] * x + d["missing"] + (1.0 if x > 0 else 0.0)

    d = defaultdict(lambda: 5.0, a=torch.tensor(2.0))
    for _ in range(2):
        assert float(total(d, torch.tensor(3.0), steepness=100.0)) == pytest.approx(12.0)
    assert set(d) == {"a"}
    batch = defaultdict(float, a=torch.tensor([2.0, 3.0]))
    assert total(batch, torch.tensor([1.0, 1.0]), batched=True, steepness=100.0).tolist() == pytest.approx([3.0, 4.0])


def test_a_compiled_call_takes_a_steepness():
    @torch.compile(fullgraph=True, backend="aot_eager")
    def compiled(x, steepness):
        return inner(x, batched=True, steepness=steepness)

    x = torch.tensor([0.2, 0.4])
    torch.testing.assert_close(compiled(x, 3.0), inner(x, batched=True, steepness=3.0))
    steepness = torch.tensor(4.0, requires_grad=True)
    found = compiled(x, steepness)
    torch.testing.assert_close(found, inner(x, batched=True, steepness=4.0))
    assert torch.autograd.grad(found.sum(), steepness)[0] != 0


@smooth(steepness=4.0)
def ordered(a, b):
    if a > b:
        return a, b
    return b, a


@smooth(steepness=4.0)
def tuples(a, b):
    pair, kept = (a, b), (b, 2.0)
    for k in range(3):
        if a > b + k:
            pair = (b, pair[0])
            kept = (b, 2.0)
    if pair[0] > b:
        return [pair[1], {"sum": a + b}], kept
    return [a, {"sum": pair[0]}], kept


@pytest.mark.parametrize("function", [ordered, tuples], ids=lambda f: f.__name__)
def test_several_results_and_tuples_compile_whole(function):
    a, b = torch.tensor([0.2, 0.9, -1.0]), torch.tensor([0.4, 0.1, 0.5])
    compiled = torch.compile(lambda a, b: function(a, b, batched=True), fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(a, b), function(a, b, batched=True))

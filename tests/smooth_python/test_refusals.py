"""What is not supported is refused when decorated, with file, line and what to write instead."""

from __future__ import annotations

import importlib.util
import math
import re

import pytest
import torch

from algonet.smooth_python import Enumerate, Merge, NotSmoothError, Particles, smooth

HEADER = "from algonet.smooth_python import smooth\n\n@smooth\n"
REFUSED = {
    "try": (
        "def f(x):\n    try:\n        x = 1 / x\n    finally:\n        pass\n    return x",
        5,
        "test for the bad case",
    ),
    "raise": ("def f(x):\n    if x is None:\n        raise ValueError\n    return x", 6, "check the arguments before"),
    "with": ("def f(x):\n    with x:\n        pass\n    return x", 5, "put the block around the call"),
    "yield": ("def f(x):\n    yield x", 5, "append to a list and return it"),
    "async": ("async def f(x):\n    return x", 4, "call it outside"),
    "global": ("def f(x):\n    global y\n    y = x\n    return y", 5, "return the new value"),
    "del": ("def f(x):\n    del x\n    return 1", 5, "leave the variable alone"),
    "import": ("def f(x):\n    import math\n    return x", 5, "at the top of the file"),
    "def inside": ("def f(x):\n    def g():\n        return x\n    return g()", 5, "define it outside"),
    "lambda": ("def f(x):\n    return (lambda y: y)(x)", 5, "define a function outside"),
    "walrus": ("def f(x):\n    if (y := x) > 0:\n        return y\n    return x", 5, "on a line of its own"),
    "match": ("def f(x):\n    match x:\n        case 1:\n            return 2\n    return x", 5, "if / elif"),
    "set": ("def f(x):\n    return {x}", 5, "use a list or a tuple"),
    "attribute": ("def f(x, o):\n    o.y = x\n    return x", 5, "local variable"),
    "foreign part": ("def f(x, o):\n    o.y[0] = x\n    return x", 5, "give the list or tensor a name"),
    "star": ("def f(*x):\n    return x", 4, "give every parameter a name"),
    "option name": ("def f(steepness):\n    return steepness", 4, "rename it"),
    "reserved": ("def f(x):\n    _s = x\n    return _s", 5, "choose another"),
    "in place": ("def f(x):\n    return x.add_(1)", 5, r"write x = x.add\("),
    "pop": ("def f(x):\n    y = x.pop()\n    return y", 5, r"x = x\[:-1\]"),
    "extend": ("def f(x):\n    x.extend([1])\n    return x", 5, "build the new list"),
    "appended alias": ("def f(x):\n    y = [x]\n    z = y\n    z.append(x)\n    return y", 6, "copy it"),
    "appended part": (
        "def f(rows):\n    for row in rows:\n        row.append(1.0)\n    return rows",
        5,
        "loop over positions",
    ),
    "alias": ("def f(x):\n    y = x\n    y[0] = 1.0\n    return x", 5, "copy it"),
    "part alias": ("def f(x):\n    row = x[0]\n    row[0] = 1.0\n    return x", 5, "copy it"),
    "loop alias": ("def f(x):\n    for row in x:\n        row[0] = 1.0\n    return x", 5, "loop over positions"),
    "no return": ("def f(x):\n    if x > 0:\n        return x", 5, "add a final `return`"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused_with_line_and_advice(name, tmp_path):
    source, line, advice = REFUSED[name]
    file = tmp_path / "program.py"
    file.write_text(HEADER + source + "\n")
    spec = importlib.util.spec_from_file_location("program_under_test", file)
    with pytest.raises(NotSmoothError, match=advice) as caught:
        spec.loader.exec_module(importlib.util.module_from_spec(spec))
    assert caught.value.lineno == line
    assert caught.value.filename == str(file)
    assert str(caught.value).count(f"line {line}") == 1, "the place, once"
    assert caught.value.text == (HEADER + source).splitlines()[line - 1]


def test_only_functions_are_decorated():
    with pytest.raises(TypeError, match="decorate a function written with `def`"):
        smooth(torch.nn.Linear(1, 1))
    with pytest.raises(TypeError, match="decorate a function written with `def`"):
        smooth(len)


def test_lambdas_are_refused():
    with pytest.raises(NotSmoothError, match="write it with `def`"):
        smooth(lambda x: x if x > 0 else -x)


def test_functions_without_source_say_so():
    namespace: dict = {}
    exec("def f(x):\n    return x", namespace)
    with pytest.raises(ValueError, match="source of f cannot be read"):
        smooth(namespace["f"])


def test_other_decorators_below_are_refused():
    import functools

    def other(function):
        @functools.wraps(function)
        def wrapper(x):
            return function(x)

        return wrapper

    with pytest.raises(TypeError, match="put @smooth directly above"):

        @smooth
        @other
        def f(x):
            return x


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"relax": 3.0}, "`relax` must be a sigmoid such as"),
        ({"exit": 3.0}, "`exit` must be an exit such as"),
        ({"conorm": "max"}, "`conorm` must be a t-conorm"),
        ({"steepness": -1.0}, "`steepness` must be positive"),
        ({"epsilon": 0.7}, r"`epsilon` must lie in \[0, 0.5\)"),
        ({"max_iterations": 0}, "`max_iterations` must be an integer from 1 on"),
        ({"max_depth": 1.5}, "`max_depth` must be an integer from 1 on"),
        ({"hard": 1}, "`hard` must be True or False"),
        ({"backend": "cuda"}, "unknown backend 'cuda'; choose one of auto"),
        ({"sharpness": 2.0}, "unknown option 'sharpness'; choose from relax, exit"),
    ],
)
def test_wrong_options(options, message):
    with pytest.raises((TypeError, ValueError), match=message):

        @smooth(**options)
        def f(x):
            return x


def note(error: BaseException) -> str:
    return "\n".join(getattr(error, "__notes__", []))


@smooth
def bad_range(x):
    total = 0.0
    for _ in range(x):  # a tensor has no crisp length
        total += 1.0
    return total


@smooth
def one_sided(x):
    if x > 0:
        y = x
    return y + 1.0  # only the then branch set it


@smooth
def mixed_kinds(x):
    z = None
    if x > 0:
        z = x  # a number here, None else
    return z


@smooth
def different_lengths(x):
    z = [x]
    if x > 0:
        z.append(x)  # one item more
    return z


@smooth
def different_shapes(x):
    z = torch.zeros(3)
    if x > 0:
        z = torch.zeros(4)  # shapes do not mix
    return z


@smooth
def cut_gradient(x):
    return int(x)  # a step without gradient


@smooth
def read_item(x):
    return x.item()  # leaves the program


@smooth
def in_comprehension(x):
    return [v for v in [1.0, 2.0] if x > v]  # how many would there be?


@smooth
def deep(x):
    return deep(x) if x > -1e9 else x  # never ends


@smooth
def no_such_method(x):
    return x.frobnicate()  # no tensor has it


@smooth
def sorts_crisply(x):
    return sorted([x, 0.0])  # would decide crisply


@smooth
def loses_the_gradient(x):
    return math.gamma(x)  # takes Python numbers only


@pytest.mark.parametrize(
    ("function", "message", "where"),
    [
        (bad_range, r"range\(\) needs Python integers.*write a `while` loop", "for _ in range(x):"),
        (one_sided, "variable `y` has a value on one path only", "return y + 1.0"),
        (mixed_kinds, "`z` is a tensor on one path and None on the other", "if x > 0:"),
        (different_lengths, "`z` has 2 items on one path and 1 on the other", "if x > 0:"),
        (different_shapes, r"`z` has shape \(4,\) on one path and \(3,\) on the other", "if x > 0:"),
        (cut_gradient, r"int\(\) of a tensor is a step without gradient", "return int(x)"),
        (read_item, "`.item` would leave the smooth program", "return x.item()"),
        (in_comprehension, "`if` of a comprehension.*must be crisp", "return [v for v in"),
        (deep, "nested 100 deep", "return deep(x)"),
        (sorts_crisply, r"sorted\(\) of tensors has no smooth meaning", "return sorted("),
        (loses_the_gradient, "math.gamma takes Python numbers", "return math.gamma(x)"),
        (no_such_method, "tensors have no attribute 'frobnicate'", "return x.frobnicate()"),
    ],
    ids=lambda p: getattr(p, "__name__", ""),
)
def test_errors_point_at_the_users_line(function, message, where):
    with pytest.raises(Exception, match=message) as caught:
        function(torch.tensor(0.1))
    text = note(caught.value)
    assert f"in the smooth function {function.__name__}, {__file__}, line " in text
    assert where in text


def _returned(x):
    if x > 0:
        y = x
    return y


def _handed_on(x):
    if x > 0:
        z = x
    if x > 1:
        y = z
    return y


def _inside_a_nest(x):
    if x > 0:
        y = x
    return x, [{"y": y}]


def _early(x):
    if x > 0:
        y = x
    if x > 1:
        return x
    return y


def _in_a_loop(x):
    while x < 3:
        if x > 1:
            return y  # noqa: F821
        y = x  # noqa: F841
        x = x + 1
    return x


_inner = smooth(_returned)


def _from_a_call(x):
    return _inner(x)


@pytest.mark.parametrize("batched", [False, True])
@pytest.mark.parametrize("paths", [Merge(), Particles(8), Enumerate(64)], ids=repr)
@pytest.mark.parametrize("function", [_returned, _handed_on, _inside_a_nest, _early, _in_a_loop, _from_a_call])
def test_a_variable_without_a_value_is_not_returned(function, paths, batched):
    x = torch.tensor([0.1, -0.2, 2.0]) if batched else torch.tensor(0.1)
    with pytest.raises(UnboundLocalError, match=r"variable `[yz]` has .*; give it a value before") as caught:
        smooth(function)(x, paths=paths, batched=batched)
    assert re.search(r"return (y|x, .*)( |$)", note(caught.value), re.M)


@smooth
def first(a):
    return a[0]


@pytest.mark.parametrize(
    ("args", "options", "error", "message"),
    [
        ((), {}, TypeError, r"missing a required argument: 'a'; it is first\(a\)"),
        ((1, 2), {}, TypeError, "too many positional arguments"),
        (([1.0],), {"batched": True}, ValueError, "needs at least one tensor with a batch"),
        ((torch.tensor(1.0),), {"batched": True}, ValueError, "needs at least one tensor with a batch"),
        (
            ([torch.zeros(2), torch.zeros(3)],),
            {"batched": True},
            ValueError,
            "share their first dimension: 2 so far, here 3",
        ),
        ((torch.tensor(1.0),), {}, TypeError, "a single number has no parts"),
        ((torch.zeros(2),), {"steepnes": 1.0}, TypeError, "unexpected keyword argument 'steepnes'"),
        ((torch.zeros(2),), {"steepness": "high"}, TypeError, "must be a positive number"),
    ],
)
def test_wrong_calls(args, options, error, message):
    with pytest.raises(error, match=message):
        first(*args, **options)


def test_index_errors_are_pythons_own():
    @smooth
    def far(a):
        return a[9]

    with pytest.raises(IndexError) as caught:
        far(torch.zeros(3))
    assert "return a[9]" in note(caught.value)

"""Python functions as WHILE-programs: on natural numbers they compute what Python does."""

from __future__ import annotations

import linecache
import random

import pytest
import torch

from algonet.relax import Sech, Tent
from algonet.while_lang import DidNotHaltError, WhileProgram, WhileSyntaxError


def _function(source: str, name: str = "f"):
    file = f"<{hash(source)}>"
    linecache.cache[file] = (len(source), None, source.splitlines(True), file)
    names = {}
    exec(compile(source, file, "exec"), names)
    return names[name]


class _Writer:
    """Random functions of two numbers that halt, and that never go below 0."""

    def __init__(self, seed):
        self.pick = random.Random(seed)
        self.names = ["a", "b", "c", "d"]
        self.counters = 0

    def expression(self, depth=0):
        pick = self.pick
        kind = pick.choice(
            ("name", "name", "number", "sum", "product", "call", "choice", "truth", "either")
            if depth < 2
            else ("name", "number")
        )
        if kind == "sum":
            return f"({self.expression(depth + 1)} + {self.expression(depth + 1)})"
        if kind == "product":
            return f"p * {pick.choice(('q', '2', 'p'))}"
        if kind == "call":
            return f"{pick.choice(('less', 'rest'))}({self.expression(depth + 1)}, {pick.choice(self.names)})"
        if kind == "choice":
            return f"({self.expression(depth + 1)} if {self.condition(depth + 1)} else {self.expression(depth + 1)})"
        if kind == "truth":
            return f"({self.condition(depth + 1)})"
        if kind == "either":
            return f"({self.expression(depth + 1)} {pick.choice(('and', 'or'))} {self.expression(depth + 1)})"
        return pick.choice(self.names) if kind == "name" else str(pick.randrange(4))

    def condition(self, depth=0):
        pick, sides = self.pick, [self.expression(depth + 1) for _ in range(3)]
        kind = pick.choice(("compare", "compare", "chain", "and", "or", "not", "value") if depth < 2 else ("compare",))
        ops = ("==", "!=", "<", "<=", ">", ">=")
        compare = f"{sides[0]} {pick.choice(ops)} {sides[1]}"
        if kind in ("and", "or"):
            return f"({compare} {kind} {self.condition(depth + 1)})"
        return {
            "chain": f"{compare} {pick.choice(ops)} {sides[2]}",
            "not": f"not {compare}",
            "value": pick.choice(self.names),
        }.get(kind, compare)

    def block(self, depth, indent):
        return [line for _ in range(self.pick.randint(1, 3)) for line in self.statement(depth, indent)]

    def statement(self, depth, indent):
        pick, name, space = self.pick, self.pick.choice(self.names), "    " * indent
        kinds = ("set", "set", "plus", "minus", "swap", "pair")
        kind = pick.choice(kinds + (("if", "for", "while", "while") if depth < 2 else ()))
        if kind in ("set", "plus"):
            return [f"{space}{name} {'=' if kind == 'set' else '+='} {self.expression()}"]
        if kind == "minus":
            return [f"{space}if {name} >= c:", f"{space}    {name} {pick.choice(('-= c', '= ' + name + ' - c'))}"]
        if kind in ("swap", "pair"):
            return [f"{space}a, d = {pick.choice(('d, a', 'ordered(d, b)'))}"]
        body = self.block(depth + 1, indent + 1)
        if kind == "if":
            other = [f"{space}else:", *self.block(depth + 1, indent + 1)] if pick.random() < 0.5 else []
            return [f"{space}if {self.condition()}:", *body, *other]
        if kind == "for":
            return [
                f"{space}for {pick.choice(('i', name))} in range({pick.choice(('p', 'q, p', '3', '1, 3', 'q, p, 2'))}):",
                *body,
            ]
        self.counters += 1
        counter = f"k{self.counters}"
        test = pick.choice((f"{counter}", f"{counter} != 0", f"{counter} > 0", f"not {counter} == 0 and p >= 0"))
        return [f"{space}{counter} = p", f"{space}while {test}:", *body, f"{space}    {counter} -= 1"]

    def source(self):
        body = "\n".join(self.block(0, 1))
        early = (
            f"    if {self.condition()}:\n        return {self.expression()}, b\n" if self.pick.random() < 0.4 else ""
        )
        return (
            "def less(x, y):\n    if x < y:\n        x = 7\n        return x\n    return y\n\n"
            "def rest(x, y):\n    return x - y if x >= y else 0\n\n"
            "def ordered(x, y):\n    return (x if x < y else y), (y if x < y else x)\n\n"
            f"def f(p, q):\n    a, b, c, d = p, q, 2, 0\n{body}\n{early}    return a + d, {self.expression()}\n"
        )


def test_programs_compute_what_python_does():
    halted = 0
    for seed in range(150):
        source = _Writer(seed).source()
        function = _function(source)
        program = WhileProgram.from_python(function)
        for p, q in ((2, 3), (3, 1), (0, 2)):
            expected = function(p, q)
            if max(expected) > 500:
                continue
            try:
                found = program.crisp(x1=p, x2=q, max_steps=30_000)
            except DidNotHaltError:
                continue
            halted += 1
            assert found == tuple(map(int, expected)), f"f({p}, {q}) = {expected}, got {found}\n{source}"
    assert halted > 300


def gcd(a, b):
    """Euclid, by subtraction."""
    while a != b:
        if a > b:
            a -= b
        else:
            b = b - a
    return a


def least_multiple(a, b):
    for k in range(1, b + 1):
        if k * a == b * gcd(a, b):
            b = b + 0
    return a * b


def double(n):
    total = 0
    while n != 0:
        total += 2
        n -= 1
    return total


def test_smooth_programs_run():
    program = WhileProgram.from_python(gcd, Tent(), backend="reference")
    assert (program.name, program.inputs, program.outputs) == ("gcd", ("x1", "x2"), ("x0",))
    assert program(torch.tensor([12.0, 9.0]), torch.tensor([18.0, 3.0])).tolist() == [6.0, 3.0]
    assert WhileProgram.from_python(least_multiple).crisp(x1=4, x2=6) == 24
    # written as one would write it in WHILE, and so as smooth as that
    x = torch.tensor([2.5, 1.3], requires_grad=True)
    by_hand = "x2 := 0 WHILE x1 != 0 DO x2 := x2 + 2 x1 := x1 - 1 END x0 := x2"
    found, expected = (
        program(x1=x)
        for program in (
            WhileProgram.from_python(double, Sech(), backend="reference"),
            WhileProgram(by_hand, Sech(), backend="reference"),
        )
    )
    torch.testing.assert_close(found, expected)
    assert torch.autograd.grad(found.sum(), x)[0].min() > 0.5


@pytest.mark.parametrize(
    ("body", "message", "line"),
    [
        ("return a / 2", r"`a / 2` is not in the subset: natural numbers, \+ - \*", 2),
        ("return c", "`c` has no value yet", 2),
        ("a = 1", "every way through the function must end in a return", 1),
        ("while a:\n        return a\n    return 1", "return inside a loop", 3),
        ("for i in a:\n        pass\n    return a", r"for i in a:` is not in the subset", 2),
        ("return f(a)", "f calls itself; write a loop", 2),
        ("return print(a)", "calls are of functions written with def", 2),
        ("return 20000", "beyond 10000", 2),
        ("if a:\n        return 1\n    return 1, 2", "returns 2 numbers here and 1 elsewhere", 4),
    ],
)
def test_what_is_not_in_the_subset_is_refused_at_its_place(body, message, line):
    with pytest.raises(WhileSyntaxError, match=message) as caught:
        WhileProgram.from_python(_function(f"def f(a):\n    {body}\n"))
    assert caught.value.line == line


def test_only_functions_with_source():
    with pytest.raises(TypeError, match="a function whose source can be read, got <built-in function len>"):
        WhileProgram.from_python(len)

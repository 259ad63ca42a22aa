"""From Python functions on natural numbers to WHILE-programs: `+`, `-` and `*` count, comparisons subtract.

    a + b      t := a   LOOP b DO t := t + 1 END
    a * b      t := 0   LOOP a DO LOOP b DO t := t + 1 END END
    a == b     t := a - b                                                          true where t = 0
    a < b      t := b   LOOP a DO IF t != 0 DO t := t - 1 END END                  true where t != 0
    while c    c, then WHILE t != 0 DO ... c END, where t != 0 says that c holds
    f(a)       the body of f, on variables of its own

Parameters are x1, x2, ..., what is returned is x0 (the rest of a tuple are variables of their own). Numbers are natural: a
difference below 0 is not checked, and counts forever.
"""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import count
from typing import Any

from .syntax import (
    MAX_CONSTANT,
    Assign,
    If,
    Loop,
    Program,
    Statement,
    While,
    WhileSyntaxError,
    add_to,
    branched,
    check_size,
    walk,
)

#: A variable, and whether the condition holds where it is 0 (otherwise, where it is not).
Condition = tuple[int, bool]


def read_python(function: Callable[..., Any]) -> tuple[Program, tuple[str, ...], tuple[str, ...]]:
    """The WHILE-program that computes what `function` does on natural numbers, its inputs and its outputs."""
    fresh = count(1)
    compiler = _Function(function, fresh, ())
    parameters = [next(fresh) for _ in compiler.parameters]
    statements, results = compiler.compile(parameters, outermost=True)
    # A parameter that is never read is an input all the same
    used = Program(tuple(statements)).all_variables
    statements = [*(Assign(next(fresh), number) for number in parameters if number not in used), *statements]
    program = Program(tuple(statements))
    shown = {0, *parameters, *results}
    check_size(program.body, compiler.source, "the constants of the function; count in a loop instead")
    hidden = tuple(number for number in program.all_variables if number not in shown)
    inputs, outputs = (tuple(f"x{number}" for number in numbers) for numbers in (parameters, results))
    return Program(program.body, fresh=hidden), inputs, outputs


class _Function:
    """One function, or one call of it: its names, and the statements they become."""

    def __init__(self, function: Callable[..., Any], fresh: Iterator[int], callers: tuple[Any, ...]):
        try:
            self.source = textwrap.dedent(inspect.getsource(function))
        except (OSError, TypeError):
            raise TypeError(
                f"from_python: wanted a function whose source can be read, got {function!r}; write it with def, in a file."
            ) from None
        tree = ast.parse(self.source).body[0]
        if not isinstance(tree, ast.FunctionDef):
            raise TypeError(f"from_python: wanted a function written with def, got {function!r}.")
        self.function, self.tree, self.fresh, self.callers = function, tree, fresh, (*callers, function)
        given = tree.args
        if given.vararg or given.kwarg or given.kwonlyargs or given.defaults:
            raise self.refuse(tree, "parameters are plain names, without defaults and stars")
        self.parameters = [argument.arg for argument in (*given.posonlyargs, *given.args)]
        self.names: dict[str, int] = {}
        self.results: list[int] | None = None
        self.outermost = False
        self.line = 1
        self.written: list[Statement] = []

    def refuse(self, node: Any, message: str) -> WhileSyntaxError:
        return WhileSyntaxError(f"{self.tree.name}: {message}", self.source, node.lineno, node.col_offset + 1)

    def compile(self, arguments: Sequence[int], *, outermost: bool = False) -> tuple[list[Statement], list[int]]:
        """The statements of a call on variables that are the function's to change, and where its results are."""
        self.outermost = outermost
        self.names = dict(zip(self.parameters, arguments, strict=True))
        if not self.block(self.tree.body):
            raise self.refuse(self.tree, "every way through the function must end in a return")
        return self.written, self.results or []

    # Statements

    def inside(self, write: Callable[[], Any]) -> tuple[tuple[Statement, ...], Any]:
        """What `write` writes, apart, and what it returns."""
        before, self.written = self.written, []
        result = write()
        inner, self.written = self.written, before
        return tuple(inner), result

    def block(self, body: list[ast.stmt]) -> bool:
        """Write statements; whether they end in a return."""
        for place, node in enumerate(body):
            self.line = node.lineno
            following = body[place + 1 :]
            if isinstance(node, ast.Return):
                self.returned(node)
                return True
            if isinstance(node, ast.If) and any(isinstance(inner, ast.Return) for inner in ast.walk(node)):
                # What follows is part of the branch that does not return
                ways = [partial(self.block, [*part, *following]) for part in (node.body, node.orelse)]
                return all(self.branch(node.test, *ways))
            self.statement(node)
        return False

    def statement(self, node: ast.stmt) -> None:
        match node:
            case ast.Pass() | ast.Expr(value=ast.Constant(value=str())):
                pass
            case (
                ast.Assign(targets=[ast.Name(id=name)], value=value)
                | ast.AnnAssign(target=ast.Name(id=name), value=ast.expr() as value)
            ):
                self.assign(name, value)
            case ast.Assign(targets=[ast.Tuple(elts=targets)]):
                values = self.values(node.value)
                names = [target.id for target in targets if isinstance(target, ast.Name)]
                if not len(values) == len(targets) == len(names):
                    raise self.refuse(node, f"wanted {len(values)} plain names on the left")
                for name, value in zip(names, values, strict=True):
                    self.copy(self.place(name), value)
            case ast.AugAssign(target=ast.Name(id=name), op=ast.Add() | ast.Sub()):
                self.shift(self.read(node.target, name), node.value, isinstance(node.op, ast.Add))
            case ast.AugAssign(target=ast.Name(id=name), op=ast.Mult()):
                self.assign(name, ast.copy_location(ast.BinOp(node.target, node.op, node.value), node))
            case ast.If():
                self.branch(node.test, partial(self.block, node.body), partial(self.block, node.orelse))
            case ast.While(orelse=[]):
                self.loop(node)
            case ast.For(target=ast.Name(id=name), orelse=[], iter=ast.Call(func=ast.Name(id="range"), args=bounds)):
                self.count(node, name, bounds)
            case _:
                shown = ast.unparse(node).splitlines()[0]
                raise self.refuse(node, f"`{shown}` is not in the subset: =, +=, if, while, for in range(...), return")

    def assign(self, name: str, node: ast.expr) -> None:
        value = self.value(node)
        self.copy(self.place(name), value)

    def store(self, target: int, node: ast.expr) -> None:
        self.copy(target, self.value(node))

    def returned(self, node: ast.Return) -> None:
        if node.value is None:
            raise self.refuse(node, "return a number")
        values = self.values(node.value)
        if self.results is None:
            first = [0] if self.outermost else [next(self.fresh)]
            self.results = first + [next(self.fresh) for _ in values[1:]]
        if len(values) != len(self.results):
            raise self.refuse(node, f"returns {len(values)} numbers here and {len(self.results)} elsewhere")
        for result, value in zip(self.results, values, strict=True):
            self.copy(result, value)

    def loop(self, node: ast.While) -> None:
        self.no_return(node)
        test, variable = self.inside(partial(self.tested, node.test))
        body, _ = self.inside(partial(self.block, node.body))
        self.write(*test)
        self.write(While(variable, (*body, *test) or (Assign(next(self.fresh), variable),), line=node.lineno))

    def count(self, node: ast.For, name: str, bounds: list[ast.expr]) -> None:
        self.no_return(node)
        step = bounds[2] if len(bounds) == 3 else ast.Constant(1)
        by: Any = step.value if isinstance(step, ast.Constant) else 0
        if not (1 <= len(bounds) <= 3 and by in range(1, MAX_CONSTANT + 1)):
            raise self.refuse(node, "range takes an end, or a start and an end, and a step that is a number from 1 on")
        counter, turns = next(self.fresh), self.value(bounds[min(len(bounds), 2) - 1])
        if len(bounds) == 1:
            self.write(Assign(counter, None, 0, line=node.lineno))
        else:
            start = self.value(bounds[0])
            self.copy(counter, start)
            turns = self.remainder(turns, start)
        target = self.place(name)
        body, _ = self.inside(partial(self.block, node.body))
        if by == 1:
            self.write(Loop(turns, (Assign(target, counter), add_to(counter, 1), *body), line=node.lineno))
            return
        # What is left is at most `step` less after each turn
        fewer = [If(turns, (add_to(turns, -1),)) for _ in range(by)]
        self.write(While(turns, (Assign(target, counter), add_to(counter, by), *body, *fewer)))

    def no_return(self, node: ast.stmt) -> None:
        for inner in ast.walk(node):
            if isinstance(inner, (ast.Return, ast.Break, ast.Continue)):
                raise self.refuse(
                    inner,
                    f"{type(inner).__name__.lower()} inside a loop is not in the subset; set a variable that the loop tests",
                )

    def branch(
        self, test: ast.expr | Condition, then: Callable[[], Any], otherwise: Callable[[], Any] = lambda: None
    ) -> list[Any]:
        """Write a branch whose parts `then` and `otherwise` write; what these return."""
        variable, equal = self.condition(test) if isinstance(test, ast.expr) else test
        parts = [self.inside(part) for part in (then, otherwise)]
        first, second = (statements for statements, _ in parts)
        self.write(*(branched(variable, second, first) if equal else branched(variable, first, second)))
        return [ended for _, ended in parts]

    # Expressions: each gives the variable that holds its value, which is not to be changed

    def values(self, node: ast.expr) -> list[int]:
        """What is assigned or returned; several numbers do not change while they are stored one after the other."""
        if isinstance(node, ast.Tuple):
            return [self.kept(value) for value in map(self.value, node.elts)]
        return self.call(node) if isinstance(node, ast.Call) else [self.value(node)]

    def value(self, node: ast.expr) -> int:
        match node:
            case ast.Constant(value=int(number)):
                if number > MAX_CONSTANT:
                    raise self.refuse(node, f"constants become that many increments; {number} is beyond {MAX_CONSTANT}")
                return self.number(number)
            case ast.Name(id=name):
                return self.read(node, name)
            case ast.BinOp(op=ast.Add() | ast.Sub()):
                result = self.kept(self.value(node.left))
                self.shift(result, node.right, isinstance(node.op, ast.Add))
                return result
            case ast.BinOp(op=ast.Mult()):
                left, right, result = self.value(node.left), self.value(node.right), self.number(0)
                self.write(Loop(left, (Loop(right, (add_to(result, 1),)),)))
                return result
            case ast.BoolOp(op=op, values=[first, *rest]) if not _is_truth(node):
                # The last number that was looked at, as in Python
                result = self.kept(self.value(first))
                for part in rest:
                    self.branch((result, isinstance(op, ast.Or)), partial(self.store, result, part))
                return result
            case ast.Compare() | ast.BoolOp() | ast.UnaryOp(op=ast.Not()):
                return self.flag(self.condition(node))
            case ast.IfExp():
                result = next(self.fresh)
                self.branch(node.test, partial(self.store, result, node.body), partial(self.store, result, node.orelse))
                return result
            case ast.Call():
                results = self.call(node)
                if len(results) != 1:
                    raise self.refuse(node, f"this call gives {len(results)} numbers; assign them to names first")
                return results[0]
        raise self.refuse(
            node,
            f"`{ast.unparse(node)}` is not in the subset: natural numbers, + - *, comparisons, and, or, not, calls",
        )

    def call(self, node: ast.Call) -> list[int]:
        name = node.func.id if isinstance(node.func, ast.Name) else ""
        scope = {**self.function.__globals__, **inspect.getclosurevars(self.function).nonlocals}
        called = scope.get(name)
        if not inspect.isfunction(called) or node.keywords:
            raise self.refuse(
                node, f"`{ast.unparse(node)}`: calls are of functions written with def, with arguments by position"
            )
        if called in self.callers:
            raise self.refuse(node, f"{name} calls itself; write a loop")
        inner = _Function(called, self.fresh, self.callers)
        if len(inner.parameters) != len(node.args):
            raise self.refuse(node, f"{name} takes {len(inner.parameters)} arguments, got {len(node.args)}")
        arguments = [self.kept(self.value(argument)) for argument in node.args]
        statements, results = inner.compile(arguments)
        self.write(*statements)
        return results

    def remainder(self, left: int, right: int) -> int:
        """left - right, but not below 0."""
        result = self.kept(left)
        self.write(Loop(right, (If(result, (add_to(result, -1),)),)))
        return result

    def shift(self, target: int, node: ast.expr, plus: bool) -> None:
        """`target` plus or minus an expression, in place."""
        if isinstance(node, ast.Constant) and isinstance(node.value, int) and 0 <= node.value <= MAX_CONSTANT:
            if node.value:
                self.write(add_to(target, int(node.value) * (1 if plus else -1)))
            return
        self.write(Loop(self.value(node), (add_to(target, 1 if plus else -1),)))

    def condition(self, node: ast.expr) -> Condition:
        match node:
            case ast.UnaryOp(op=ast.Not()):
                variable, equal = self.condition(node.operand)
                return variable, not equal
            case ast.BoolOp(op=op, values=parts):
                result = self.number(0)
                found = partial(self.write, add_to(result, 1))
                write: Callable[[], Any] = found if isinstance(op, ast.And) else list
                for part in reversed(parts):
                    write = partial(self.branch, part, *((write,) if isinstance(op, ast.And) else (found, write)))
                write()
                return result, False
            case ast.Compare(ops=[_, _, *_]):
                pairs = zip([node.left, *node.comparators], node.ops, node.comparators, strict=False)
                compared: list[Any] = [ast.copy_location(ast.Compare(a, [op], [b]), node) for a, op, b in pairs]
                return self.condition(ast.copy_location(ast.BoolOp(ast.And(), compared), node))
            case ast.Compare(left=left, ops=[op], comparators=[right]):
                return self.compared(node, left, op, right)
        return self.value(node), False

    def compared(self, node: ast.expr, left: ast.expr, op: ast.cmpop, right: ast.expr) -> Condition:
        if isinstance(op, (ast.Gt, ast.LtE)):
            left, right, op = right, left, ast.Lt() if isinstance(op, ast.Gt) else ast.GtE()
        if isinstance(op, (ast.Eq, ast.NotEq)):
            zero = isinstance(right, ast.Constant) and right.value == 0
            result = self.value(left)
            if not zero:
                result = self.kept(result)
                self.shift(result, right, plus=False)
            return result, isinstance(op, ast.Eq)
        if isinstance(op, (ast.Lt, ast.GtE)):
            # 0 < b asks whether b is not 0
            zero = isinstance(left, ast.Constant) and left.value == 0
            result = self.value(right) if zero else self.remainder(self.value(right), self.value(left))
            return result, isinstance(op, ast.GtE)
        raise self.refuse(node, f"`{ast.unparse(node)}`: comparisons are == != < <= > >=")

    def tested(self, node: ast.expr) -> int:
        """A variable that is not 0 where the condition holds."""
        condition = variable, equal = self.condition(node)
        return self.flag(condition) if equal else variable

    def flag(self, condition: Condition) -> int:
        """1 where the condition holds, else 0."""
        variable, equal = condition
        result = self.number(0)
        self.write(If(variable, (add_to(result, 1),), equal=equal))
        return result

    # Variables

    def read(self, node: Any, name: str) -> int:
        if name not in self.names:
            raise self.refuse(node, f"`{name}` has no value yet; numbers come from parameters and assignments")
        return self.names[name]

    def place(self, name: str) -> int:
        return self.names[name] if name in self.names else self.names.setdefault(name, next(self.fresh))

    def number(self, value: int) -> int:
        return self.made(Assign(next(self.fresh), None, int(value)))

    def kept(self, value: int) -> int:
        """A copy, which may be changed and outlives changes of the original."""
        return self.made(Assign(next(self.fresh), value))

    def made(self, statement: Assign) -> int:
        self.write(statement)
        return statement.target

    def copy(self, target: int, value: int) -> None:
        if target != value:
            self.write(Assign(target, value))

    def write(self, *statements: Statement) -> None:
        for event, statement in walk(statements):
            if event in ("leaf", "open") and not statement.line:
                object.__setattr__(statement, "line", self.line)
        self.written += statements


def _is_truth(node: ast.expr) -> bool:
    """Whether a number is 1 or 0 for true or false, which `and` and `or` pass on as they are."""
    if isinstance(node, ast.BoolOp):
        return all(map(_is_truth, node.values))
    return isinstance(node, ast.Compare) or (isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not))

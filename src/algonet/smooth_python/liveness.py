"""Which variables matter where: names a block assigns, and names that are read later before they are assigned again; and what
smooth Python does not know, refused when the function is decorated: where, what, and what to write instead.

Only variables that a branch or loop assigns *and* that live on after it are merged.
"""

from __future__ import annotations

import ast
import itertools
import re
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

from .softness import OPTIONS

Names = frozenset[str]
NOTHING: Names = frozenset()
SEQUENCES = (ast.Tuple, ast.List)
TARGETED = (ast.AugAssign, ast.AnnAssign, ast.For)


def read(node: ast.AST | None) -> Names:
    """Names that an expression reads."""
    if node is None:
        return NOTHING
    return frozenset(n.id for n in ast.walk(node) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load))


def root(node: ast.expr) -> str | None:
    """The variable that a chain of subscripts starts from."""
    while isinstance(node, ast.Subscript):
        node = node.value
    return node.id if isinstance(node, ast.Name) else None


def parameters(function: ast.FunctionDef) -> list[ast.arg]:
    given = function.args
    return [*given.posonlyargs, *given.args, *given.kwonlyargs]


def places(node: ast.AST) -> list[ast.expr]:
    """The targets of an assignment or a loop."""
    return node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, TARGETED) else []


def targets(node: ast.AST) -> tuple[Names, Names]:
    """(names bound, names written into) by an assignment or a loop."""
    set_ = [n for place in places(node) for n in ast.walk(place) if isinstance(getattr(n, "ctx", None), ast.Store)]
    written = (root(n) for n in set_ if isinstance(n, ast.Subscript))
    return frozenset(n.id for n in set_ if isinstance(n, ast.Name)), frozenset(name for name in written if name)


def appended(statement: ast.AST) -> str | None:
    """The list that `name.append(...)` changes."""
    if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call):
        function = statement.value.func
        if isinstance(function, ast.Attribute) and function.attr == "append" and isinstance(function.value, ast.Name):
            return function.value.id
    return None


def stored(statements: list[ast.stmt]) -> tuple[Names, Names]:
    """Names that these statements give a new value, and names whose parts they write, by subscript or `append`."""
    bound, written = NOTHING, NOTHING
    for node in (node for statement in statements for node in ast.walk(statement)):
        names, inside = targets(node)
        bound |= names
        written |= inside | {name for name in [appended(node)] if name}
    return bound, written


def assigned(statements: list[ast.stmt]) -> Names:
    """Names that these statements bind or write into, at any depth."""
    return NOTHING.union(*stored(statements))


@dataclass
class Living:
    """Names alive around one `if` or loop: after it, at its head (loops), and at the beginning of its `else`."""

    after: Names
    head: Names
    orelse: Names


class Liveness:
    """Backward data flow over structured code; `around[node]` for every `if`, `while` and `for`, `before` each statement.

    `keeping` says that an assignment also needs what its target was before.
    """

    def __init__(self, function: ast.FunctionDef, keeping: bool = False):
        self._keeping = keeping
        self.around: dict[ast.stmt, Living] = {}
        self.before: dict[ast.stmt, Names] = {}
        self.block(function.body, NOTHING, NOTHING, NOTHING)

    def block(self, statements: list[ast.stmt], out: Names, on_break: Names, on_continue: Names) -> Names:
        for statement in reversed(statements):
            out = self.before[statement] = self._statement(statement, out, on_break, on_continue)
        return out

    def _statement(self, node: ast.stmt, out: Names, on_break: Names, on_continue: Names) -> Names:
        if isinstance(node, ast.Return):
            return read(node.value)
        if isinstance(node, ast.Break):
            return on_break
        if isinstance(node, ast.Continue):
            return on_continue
        if isinstance(node, ast.If):
            orelse = self.block(node.orelse, out, on_break, on_continue)
            self.around[node] = Living(out, NOTHING, orelse)
            return read(node.test) | self.block(node.body, out, on_break, on_continue) | orelse
        if isinstance(node, (ast.While, ast.For)):
            return self._loop(node, out, on_break, on_continue)
        if isinstance(node, (ast.Assign, ast.AnnAssign)):
            bound, written = targets(node)
            inside = written.union(*map(read, places(node)))
            return (out | bound if self._keeping else out - bound) | read(node.value) | inside
        if isinstance(node, ast.AugAssign):
            out = out.union(*targets(node))
        return out | NOTHING.union(*(read(child) for child in ast.iter_child_nodes(node)))

    def _loop(self, node: ast.While | ast.For, out: Names, on_break: Names, on_continue: Names) -> Names:
        orelse = self.block(node.orelse, out, on_break, on_continue)
        bound, _ = targets(node)
        before, head = None, orelse | (read(node.test) if isinstance(node, ast.While) else NOTHING)
        while head != before:
            before = head
            head |= self.block(node.body, head, out, head) - bound
        self.around[node] = Living(out, head, orelse)
        return head | (read(node.iter) if isinstance(node, ast.For) else NOTHING)


def defined_before(function: ast.FunctionDef) -> dict[ast.stmt, Names]:
    """Names that have a value in any case when control reaches each `if` and loop."""
    found: dict[ast.stmt, Names] = {}

    def block(statements: list[ast.stmt], names: Names) -> Names:
        for node in statements:
            if isinstance(node, (ast.If, ast.While, ast.For)):
                found[node] = names
                then, other = block(node.body, names | targets(node)[0]), block(node.orelse, names)
                names = then & other if isinstance(node, ast.If) else names
            elif isinstance(node, (ast.Assign, ast.AnnAssign)) and node.value is not None:
                names |= targets(node)[0]
        return names

    block(function.body, frozenset(a.arg for a in parameters(function)))
    return found


#: What control can meet at the end of a block, beside what leaves it early.
END = ast.Pass


def ways_out(statements: list[ast.stmt], endless: bool = False) -> set[type[ast.stmt]]:
    """How control can go on from a block: `return`, `break` or `continue` of a loop outside, or its end.

    `endless`: nothing follows a `while True` but what its `break`s go on with; in a smooth run something may.
    """
    found: set[type[ast.stmt]] = set()
    for node in statements:
        if isinstance(node, (ast.Return, ast.Break, ast.Continue)):
            return {*found, type(node)}
        if isinstance(node, ast.If):
            here = ways_out(node.body, endless) | ways_out(node.orelse, endless)
        elif isinstance(node, (ast.While, ast.For)):
            inside = ways_out(node.body, endless)
            test = node.test if isinstance(node, ast.While) else None
            stays = endless and isinstance(test, ast.Constant) and test.value
            here = set() if stays else ways_out(node.orelse, endless)
            here |= inside & {ast.Return} | ({END} if ast.Break in inside else set())
        else:
            continue
        found |= here - {END}
        if endless and END not in here:
            return found
    return found | {END}


def leaves(statements: list[ast.stmt]) -> bool:
    """Whether control can leave these statements other than at their end: `return`, or `break`/`continue` of a loop outside."""
    return ways_out(statements) != {END}


def returns(statements: list[ast.stmt]) -> bool:
    return any(isinstance(n, ast.Return) for statement in statements for n in ast.walk(statement))


class Assignment(NamedTuple):
    """One value that a statement assigns. `target` and `value` are its parts of the source."""

    number: int
    target: ast.expr
    value: ast.expr
    operator: ast.operator | None

    @property
    def label(self) -> str:
        """The line and what is written there."""
        target: Any = self.target
        plain = ast.Assign([target], self.value, lineno=0)
        source = ast.unparse(plain if self.operator is None else ast.AugAssign(target, self.operator, self.value))
        return f"line {self.target.lineno}: {textwrap.shorten(source, 60, placeholder='...')}"


def numbered(function: ast.FunctionDef) -> dict[ast.stmt, list[Assignment]]:
    """The assignments of each statement that has some, in the order of the source; `a, b = c, d` has two."""
    statements = [n for n in ast.walk(function) if isinstance(n, (ast.Assign, ast.AugAssign, ast.AnnAssign))]
    found: dict[ast.stmt, list[Assignment]] = {}
    number = itertools.count()
    for node in sorted(statements, key=lambda n: (n.lineno, n.col_offset)):
        operator = node.op if isinstance(node, ast.AugAssign) else None
        if node.value is not None:
            found[node] = [Assignment(next(number), *pair, operator) for pair in _pairs(node, node.value)]
    return found


def _pairs(node: ast.stmt, value: ast.expr) -> list[tuple[ast.expr, ast.expr]]:
    target, *chained = places(node)
    parts, values = (getattr(x, "elts", None) if isinstance(x, SEQUENCES) else None for x in (target, value))
    if chained or not parts or not values or len(parts) != len(values):
        return [(target, value)]
    starred = any(isinstance(part, ast.Starred) for part in (*parts, *values))
    return [(target, value)] if starred else list(zip(parts, values, strict=True))


#: Syntax that has no smooth meaning -> what to write instead.
_REFUSED: dict[type[ast.AST], tuple[str, str]] = {
    **dict.fromkeys((ast.Try, ast.TryStar), ("`try`", "test for the bad case with `if` before it happens")),
    ast.Raise: ("`raise`", "check the arguments before the call, or use `assert` on Python values"),
    ast.With: ("`with`", "put the block around the call"),
    ast.AsyncFunctionDef: ("an async function", "call it outside the smooth function and pass the result in"),
    **dict.fromkeys((ast.Yield, ast.YieldFrom), ("`yield`", "append to a list and return it")),
    ast.Global: ("`global`", "return the new value; globals can be read but not written"),
    ast.Nonlocal: ("`nonlocal`", "return the new value; outer variables can be read but not written"),
    ast.Delete: ("`del`", "leave the variable alone, it is dropped where it is no longer read"),
    **dict.fromkeys((ast.Import, ast.ImportFrom), ("`import`", "import at the top of the file")),
    ast.FunctionDef: ("a function inside", "define it outside, decorated with @smooth if it decides anything"),
    ast.ClassDef: ("a class inside", "define it outside"),
    ast.Lambda: ("`lambda`", "define a function outside, decorated with @smooth if it decides anything"),
    ast.NamedExpr: ("`:=`", "write the assignment on a line of its own"),
    ast.Match: ("`match`", "write if / elif"),
    **dict.fromkeys((ast.Set, ast.SetComp), ("a set", "use a list or a tuple")),
}
_CHANGING = ["pop", "insert", "extend", "remove", "clear", "sort", "reverse", "update", "setdefault", "popitem"]
_RESERVED = re.compile(r"_s|_(if|loop|t)\d+")


class NotSmoothError(SyntaxError):
    """A function cannot be made smooth as it is written; points at the user's own line."""


#: A part of the source, what is wrong with it, and what to write instead.
Problem = tuple[Any, str, str]
_RENAME = "smooth code uses it itself; choose another"


def check(function: ast.AST, file: str, lines: list[str], first: int) -> None:
    """Raise `NotSmoothError` at the first thing that is not supported. `lines` are the source, beginning at line `first`."""
    for node, what, instead in _problems(function):
        line = getattr(node, "lineno", first)
        text = lines[line - first] if 0 <= line - first < len(lines) else ""
        message = f"smooth: {what} is not supported: {instead}."  # str(SyntaxError) appends file and line
        raise NotSmoothError(message, (file, line, getattr(node, "col_offset", 0) + 1, text))


def _problems(function: ast.AST) -> Iterator[Problem]:
    if not isinstance(function, ast.FunctionDef):
        yield function, *_REFUSED.get(type(function), ("this", "decorate a plain `def` function"))
        return
    for extra in filter(None, (function.args.vararg, function.args.kwarg)):
        yield extra, f"the parameter `*{extra.arg}`", "give every parameter a name"
    for parameter in parameters(function):
        name = parameter.arg
        if name in (*OPTIONS, "batched", "with_report"):
            yield parameter, f"a parameter called `{name}`", "it is an option of every smooth call; rename it"
        if _RESERVED.fullmatch(name):
            yield parameter, f"the name `{name}`", _RENAME
    _, written = stored(function.body)
    decorators = {node for decorator in function.decorator_list for node in ast.walk(decorator)}
    for node in ast.walk(function):
        if node is function or node in decorators:
            continue
        if type(node) in _REFUSED:
            yield node, *_REFUSED[type(node)]
        if isinstance(node, ast.Name) and _RESERVED.fullmatch(node.id):
            yield node, f"the name `{node.id}`", _RENAME
        yield from _of_assignment(node, written)
        yield from _of_method(node)
    gives = any(isinstance(n, ast.Return) and n.value is not None for n in ast.walk(function))
    if gives and END in ways_out(function.body, endless=True):
        yield function.body[-1], "a path that ends without `return`", "add a final `return` after this line"


def _of_assignment(node: ast.AST, written: Names) -> Iterator[Problem]:
    if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
        yield node, f"assigning to the attribute `.{node.attr}`", "keep it in a local variable and return it"
    if isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Store) and root(node) is None:
        yield node, "writing into a part of an expression", "give the list or tensor a name first"
    if isinstance(node, ast.For):
        bound, inside = targets(node)
        if inside:
            yield node, "a loop over a subscript target", "loop over a name and assign it in the body"
        for name in read(node.iter) & frozenset.intersection(*stored(node.body)):
            what = f"a loop over `{name}` that writes into it and gives it a new value"
            yield node, what, "use another name for the new value"
        for name in bound & written:
            what = f"writing into `{name}`, a part of what is looped over"
            yield node, what, "loop over positions and write x[i] = ..."
    if isinstance(node, ast.Assign) and isinstance(node.value, (ast.Name, ast.Subscript)):
        source = root(node.value)
        for name in (place.id for place in node.targets if isinstance(place, ast.Name)):
            if name != source and (name in written or (isinstance(node.value, ast.Name) and source in written)):
                what = f"writing into `{name}` or `{source}` when one is another name for the other"
                yield node, what, "copy it: `.clone()` for a tensor, `list(...)` for a list"


def _of_method(node: ast.AST) -> Iterator[Problem]:
    if isinstance(node, ast.Attribute) and node.attr.endswith("_") and node.attr.strip("_") + "_" == node.attr:
        yield node, f"the in-place method `.{node.attr}`", f"write x = x.{node.attr[:-1]}(...)"
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call) and isinstance(node.value.func, ast.Attribute):
        function = node.value.func
        if function.attr in _CHANGING:
            what = f"`.{function.attr}(...)`, which changes a list in place,"
            yield node, what, "build the new list: x = [*x, ...] or x[:-1]"
        if function.attr == "append" and not isinstance(function.value, ast.Name):
            yield node, "appending to a part of an expression", "give the list a name first"
    if isinstance(node, ast.Attribute) and node.attr in ("pop", "popitem"):
        yield node, f"`.{node.attr}()`, which changes a list in place,", "read x[-1], then write x = x[:-1]"

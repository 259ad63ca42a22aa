"""What smooth Python does not know, refused when the function is decorated: where, what, and what to write instead."""

from __future__ import annotations

import ast
import re

from ..softness import OPTIONS
from .liveness import END, parameters, read, root, stored, targets, ways_out

_WRITE_OUTSIDE = "call it outside the smooth function and pass the result in"
#: Syntax that has no smooth meaning -> what to write instead.
_REFUSED: dict[type[ast.AST], tuple[str, str]] = {
    ast.Try: ("`try`", "test for the bad case with `if` before it happens"),
    ast.TryStar: ("`try`", "test for the bad case with `if` before it happens"),
    ast.Raise: ("`raise`", "check the arguments before the call, or use `assert` on Python values"),
    ast.With: ("`with`", "put the block around the call"),
    ast.AsyncWith: ("`async with`", "put the block around the call"),
    ast.AsyncFor: ("`async for`", "collect the items first and pass them in"),
    ast.AsyncFunctionDef: ("an async function", _WRITE_OUTSIDE),
    ast.Await: ("`await`", _WRITE_OUTSIDE),
    ast.Yield: ("`yield`", "append to a list and return it"),
    ast.YieldFrom: ("`yield from`", "append to a list and return it"),
    ast.Global: ("`global`", "return the new value; globals can be read but not written"),
    ast.Nonlocal: ("`nonlocal`", "return the new value; outer variables can be read but not written"),
    ast.Delete: ("`del`", "leave the variable alone, it is dropped where it is no longer read"),
    ast.Import: ("`import`", "import at the top of the file"),
    ast.ImportFrom: ("`import`", "import at the top of the file"),
    ast.FunctionDef: ("a function inside", "define it outside, decorated with @smooth if it decides anything"),
    ast.ClassDef: ("a class inside", "define it outside"),
    ast.Lambda: ("`lambda`", "define a function outside, decorated with @smooth if it decides anything"),
    ast.NamedExpr: ("`:=`", "write the assignment on a line of its own"),
    ast.Match: ("`match`", "write if / elif"),
    ast.Set: ("a set", "use a list or a tuple"),
    ast.SetComp: ("a set", "use a list"),
}
_CHANGING = ["pop", "insert", "extend", "remove", "clear", "sort", "reverse", "update", "setdefault", "popitem"]
_RESERVED = re.compile(r"_s|_(if|loop|t|body)\d+")


class NotSmoothError(SyntaxError):
    """A function cannot be made smooth as it is written; points at the user's own line."""


def check(function: ast.AST, file: str, lines: list[str], first: int) -> None:
    """Raise `NotSmoothError` at the first thing that is not supported. `lines` are the source, beginning at line `first`."""

    def refuse(node: ast.AST, what: str, instead: str) -> None:
        line = getattr(node, "lineno", first)
        text = lines[line - first] if 0 <= line - first < len(lines) else ""
        column = getattr(node, "col_offset", 0) + 1
        message = f"smooth: {what} is not supported: {instead}."  # str(SyntaxError) appends file and line
        raise NotSmoothError(message, (file, line, column, text))

    if not isinstance(function, ast.FunctionDef):
        what, instead = _REFUSED.get(type(function), ("this", "decorate a plain `def` function"))
        refuse(function, what, instead)
        return
    _check_signature(function, refuse)
    _, written = stored(function.body)
    for node in ast.walk(function):
        if node is function or any(node in ast.walk(d) for d in function.decorator_list):
            continue
        if type(node) in _REFUSED:
            refuse(node, *_REFUSED[type(node)])
        if isinstance(node, ast.Name) and _RESERVED.fullmatch(node.id):
            refuse(node, f"the name `{node.id}`", "smooth code uses it itself; choose another")
        _check_assignment(node, written, refuse)
        _check_method(node, refuse)
    gives = any(isinstance(n, ast.Return) and n.value is not None for n in ast.walk(function))
    if gives and END in ways_out(function.body, endless=True):
        refuse(function.body[-1], "a path that ends without `return`", "add a final `return` after this line")


def _check_signature(function: ast.FunctionDef, refuse) -> None:
    arguments = function.args
    for extra in (arguments.vararg, arguments.kwarg):
        if extra is not None:
            refuse(extra, f"the parameter `*{extra.arg}`", "give every parameter a name")
    for parameter in parameters(function):
        if parameter.arg in (*OPTIONS, "batched", "with_report"):
            refuse(
                parameter, f"a parameter called `{parameter.arg}`", "it is an option of every smooth call; rename it"
            )
        if _RESERVED.fullmatch(parameter.arg):
            refuse(parameter, f"the name `{parameter.arg}`", "smooth code uses it itself; choose another")


def _check_assignment(node: ast.AST, written: frozenset[str], refuse) -> None:
    if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
        refuse(node, f"assigning to the attribute `.{node.attr}`", "keep it in a local variable and return it")
    if isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Store) and root(node) is None:
        refuse(node, "writing into a part of an expression", "give the list or tensor a name first")
    if isinstance(node, ast.For):
        bound, inside = targets(node.target)
        if inside:
            refuse(node, "a loop over a subscript target", "loop over a name and assign it in the body")
        for name in read(node.iter) & frozenset.intersection(*stored(node.body)):
            refuse(
                node,
                f"a loop over `{name}` that writes into it and gives it a new value",
                "use another name for the new value",
            )
        for name in bound & written:
            refuse(
                node,
                f"writing into `{name}`, a part of what is looped over",
                "loop over positions and write x[i] = ...",
            )
    if isinstance(node, ast.Assign) and isinstance(node.value, (ast.Name, ast.Subscript)):
        source = root(node.value)
        for place in node.targets:
            if not isinstance(place, ast.Name):
                continue
            aliased = place.id in written or (isinstance(node.value, ast.Name) and source in written)
            if aliased and source != place.id:
                what = f"writing into `{place.id}` or `{source}` when one is another name for the other"
                refuse(node, what, "copy it: `.clone()` for a tensor, `list(...)` for a list")


def _check_method(node: ast.AST, refuse) -> None:
    if isinstance(node, ast.Attribute) and node.attr.endswith("_") and node.attr.strip("_") + "_" == node.attr:
        refuse(node, f"the in-place method `.{node.attr}`", f"write x = x.{node.attr[:-1]}(...)")
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call) and isinstance(node.value.func, ast.Attribute):
        name = node.value.func.attr
        if name in _CHANGING:
            refuse(
                node, f"`.{name}(...)`, which changes a list in place,", "build the new list: x = [*x, ...] or x[:-1]"
            )
        if name == "append" and not isinstance(node.value.func.value, ast.Name):
            refuse(node, "appending to a part of an expression", "give the list a name first")
    if isinstance(node, ast.Attribute) and node.attr in ("pop", "popitem"):
        refuse(node, f"`.{node.attr}()`, which changes a list in place,", "read x[-1], then write x = x[:-1]")

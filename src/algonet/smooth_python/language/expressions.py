"""Expressions of a smooth program: comparisons, and/or/not, conditionals, subscripts and calls become calls of the frame."""

from __future__ import annotations

import ast
from collections.abc import Iterable
from typing import Any

_COMPARISONS: dict[type[ast.cmpop], str] = {
    ast.Gt: "gt",
    ast.Lt: "lt",
    ast.GtE: "ge",
    ast.LtE: "le",
    ast.Eq: "eq",
    ast.NotEq: "ne",
    ast.In: "contains",
}
#: Calls of these cost nothing worth skipping.
# fmt: off
_LIGHT = frozenset((
    "abs", "min", "max", "sum", "any", "all", "len", "range", "zip", "enumerate", "float", "int", "bool", "print", "list",
    "tuple",
))
# fmt: on


def is_heavy(nodes: list[Any]) -> bool:
    """Whether these contain a loop or a call that is worth skipping when that branch has almost no probability."""
    return has_calls(nodes) or any(isinstance(node, (ast.For, ast.While)) for top in nodes for node in ast.walk(top))


def has_calls(nodes: list[Any]) -> bool:
    """Whether these call a function by its name, other than the builtins that cost nothing."""
    calls = (node.func for top in nodes for node in ast.walk(top) if isinstance(node, ast.Call))
    return any(isinstance(function, ast.Name) and function.id not in _LIGHT for function in calls)


def named(identifier: str, store: bool = False) -> ast.Name:
    return ast.Name(identifier, ast.Store() if store else ast.Load())


def attribute(owner: str, method: str) -> ast.Attribute:
    return ast.Attribute(named(owner), method, ast.Load())


def call(owner: str, method: str, *args: ast.expr | str, **keywords: ast.expr) -> ast.Call:
    """owner.method(...); variables by their names."""
    given: list[ast.expr] = [named(arg) if isinstance(arg, str) else arg for arg in args]
    return ast.Call(attribute(owner, method), given, [ast.keyword(k, v) for k, v in keywords.items()])


def frame(method: str, *args: ast.expr | str, **keywords: ast.expr) -> ast.Call:
    """A call of the frame."""
    return call("_s", method, *args, **keywords)


def assign(name: str, value: ast.expr) -> ast.Assign:
    return ast.Assign([named(name, store=True)], value)


def arguments(names: Iterable[str] = ()) -> ast.arguments:
    """Parameters with these names."""
    args = [ast.arg(n) for n in names]
    return ast.arguments(posonlyargs=[], args=args, kwonlyargs=[], kw_defaults=[], defaults=[])


def defined(name: str, parameters: ast.arguments, body: list[ast.stmt]) -> ast.FunctionDef:
    function = ast.FunctionDef(name=name, args=parameters, body=body, decorator_list=[])
    function.type_params = []  # pyright: ignore[reportAttributeAccessIssue]
    return function


def thunk(body: ast.expr) -> ast.Lambda:
    return ast.Lambda(arguments(), body)


def placed(new: Any, old: Any) -> Any:
    """`new`, if it is nowhere yet, at the line where `old` begins. Not its whole extent: Python names the last line of a call
    that has several."""
    if hasattr(old, "lineno") and not hasattr(new, "lineno"):
        ast.copy_location(new, old)
        new.end_lineno, new.end_col_offset = new.lineno, new.col_offset + 1
    return new


class Expressions(ast.NodeTransformer):
    """Expressions: comparisons, and/or/not, conditional expressions, subscripts and calls become calls of the frame."""

    def __init__(self):
        self._temporaries = 0

    def visit(self, node: ast.AST) -> Any:
        decision = self._decision(node)
        # The value of a comparison that is kept
        return placed(super().visit(node) if decision is None else frame("decided", decision), node)

    def temporary(self) -> str:
        self._temporaries += 1
        return f"_t{self._temporaries}"

    def probability(self, node: ast.expr) -> ast.expr:
        """A condition: comparisons are probabilities already, anything else is asked for its truth."""
        if isinstance(node, ast.Constant):
            return self.visit(node)
        return placed(self._decision(node) or frame("truth", self.visit(node)), node)

    def _decision(self, node: ast.AST) -> ast.expr | None:
        """The probability of a comparison, and of `and`, `or` and `not`; None for anything else."""
        if isinstance(node, ast.Compare):
            return self._chain(self.visit(node.left), [*zip(node.ops, node.comparators, strict=True)])
        if isinstance(node, ast.BoolOp):
            first, *rest = [self.probability(value) for value in node.values]
            return frame("both" if isinstance(node.op, ast.And) else "either", first, *map(thunk, rest))
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
            return frame("negate", self.probability(node.operand))
        return None

    def _chain(self, left: ast.expr, links: list[tuple[ast.cmpop, ast.expr]]) -> ast.expr:
        """left < right < ...: links behind the first run later, and what they assign would stay inside a thunk: nest them."""
        (operation, right), *rest = links
        right = following = self.visit(right)
        if rest and not isinstance(right, (ast.Name, ast.Constant)):
            middle = self.temporary()
            right, following = ast.NamedExpr(named(middle, store=True), right), named(middle)
        if isinstance(operation, (ast.Is, ast.IsNot)):
            link: ast.expr = ast.Compare(left, [operation], [right])
        elif isinstance(operation, ast.NotIn):
            link = frame("negate", frame("contains", left, right))
        else:
            link = frame(_COMPARISONS[type(operation)], left, right)
        return frame("both", link, thunk(self._chain(following, rest))) if rest else link

    def visit_IfExp(self, node: ast.IfExp) -> ast.expr:
        parts = self.probability(node.test), thunk(self.visit(node.body)), thunk(self.visit(node.orelse))
        heavy = {"heavy": ast.Constant(True)} if is_heavy([node.body, node.orelse]) else {}
        return frame("choose", *parts, **heavy)

    def visit_Call(self, node: ast.Call) -> ast.expr:
        self.generic_visit(node)
        return ast.Call(attribute("_s", "call"), [node.func, *node.args], node.keywords)

    def visit_Subscript(self, node: ast.Subscript) -> ast.expr:
        return frame("load", self.visit(node.value), self.visit(node.slice))

    def visit_Slice(self, node: ast.Slice) -> ast.expr:
        bounds = (node.lower, node.upper, node.step)
        return frame("slice", *(ast.Constant(None) if b is None else self.visit(b) for b in bounds))

    def visit_comprehension(self, node: ast.comprehension) -> ast.comprehension:
        self.generic_visit(node)
        node.ifs = [frame("crisp", test) for test in node.ifs]
        return node

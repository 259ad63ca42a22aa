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


def arguments(names: Iterable[str] = (), fixed: Iterable[str] = ()) -> ast.arguments:
    """Parameters with these names, and keywords that have the variables of their names as defaults."""
    keywords = [*fixed]
    return ast.arguments(
        posonlyargs=[],
        args=[ast.arg(n) for n in names],
        kwonlyargs=[ast.arg(n) for n in keywords],
        kw_defaults=[named(n) for n in keywords],
        defaults=[],
    )


def defined(name: str, parameters: ast.arguments, body: list[ast.stmt]) -> ast.FunctionDef:
    function = ast.FunctionDef(name=name, args=parameters, body=body, decorator_list=[])
    function.type_params = []  # pyright: ignore[reportAttributeAccessIssue]
    return function


def thunk(body: ast.expr) -> ast.Lambda:
    return ast.Lambda(arguments(), body)


def placed(new: ast.AST, old: ast.AST) -> None:
    """`new` at the line where `old` begins. Not its whole extent: Python names the last line of a call that has several."""
    ast.copy_location(new, old)
    new.end_lineno, new.end_col_offset = new.lineno, new.col_offset + 1  # pyright: ignore[reportAttributeAccessIssue]


def _is_not(node: ast.expr) -> bool:
    return isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not)


class Expressions(ast.NodeTransformer):
    """Expressions: comparisons, and/or/not, conditional expressions, subscripts and calls become calls of the frame."""

    def __init__(self):
        self._temporaries = 0
        #: Whether a comparison is wanted as a probability, because what is around it decides.
        self._asked = False

    def visit(self, node: ast.AST) -> Any:
        new = super().visit(node)
        if isinstance(new, ast.expr) and not hasattr(new, "lineno") and hasattr(node, "lineno"):
            placed(new, node)
        return new

    def temporary(self) -> str:
        self._temporaries += 1
        return f"_t{self._temporaries}"

    def probability(self, node: ast.expr) -> ast.expr:
        """A condition: comparisons are probabilities already, anything else is asked for its truth."""
        self._asked = isinstance(node, (ast.Compare, ast.BoolOp)) or _is_not(node)
        new = self.visit(node)
        if isinstance(node, (ast.Compare, ast.BoolOp, ast.Constant)):
            return new
        if _is_not(node):
            return new
        return frame("truth", new)

    def _decides(self) -> bool:
        """Whether the expression that is visited now has to decide by itself."""
        asked, self._asked = self._asked, False
        return not asked

    def visit_Compare(self, node: ast.Compare) -> ast.expr:
        decides = self._decides()
        compared = self._compared(node)
        return frame("decided", compared) if decides else compared

    def _compared(self, node: ast.Compare) -> ast.expr:
        left = self.visit(node.left)
        links: list[ast.expr] = []
        for k, (operation, right) in enumerate(zip(node.ops, node.comparators, strict=True)):
            right = self.visit(right)
            if k + 1 < len(node.ops) and not isinstance(right, (ast.Name, ast.Constant)):
                middle = self.temporary()
                links.append(self._link(left, operation, ast.NamedExpr(named(middle, store=True), right)))
                left = named(middle)
            else:
                links.append(self._link(left, operation, right))
                left = right
        if len(links) == 1:
            return links[0]
        # Links behind the first run later, and what they assign would stay inside a thunk: nest them
        chain = links[-1]
        for link in reversed(links[:-1]):
            chain = frame("both", link, thunk(chain))
        return chain

    def _link(self, left: ast.expr, operation: ast.cmpop, right: ast.expr) -> ast.expr:
        if isinstance(operation, (ast.Is, ast.IsNot)):
            return ast.Compare(left, [operation], [right])
        if isinstance(operation, ast.NotIn):
            return frame("negate", frame("contains", left, right))
        return frame(_COMPARISONS[type(operation)], left, right)

    def visit_BoolOp(self, node: ast.BoolOp) -> ast.expr:
        decides = self._decides()
        first, *rest = [self.probability(value) for value in node.values]
        method = "both" if isinstance(node.op, ast.And) else "either"
        found = frame(method, first, *(thunk(value) for value in rest))
        return frame("decided", found) if decides else found

    def visit_UnaryOp(self, node: ast.UnaryOp) -> ast.expr:
        if isinstance(node.op, ast.Not):
            decides = self._decides()
            found = frame("negate", self.probability(node.operand))
            return frame("decided", found) if decides else found
        return ast.UnaryOp(node.op, self.visit(node.operand))

    def visit_IfExp(self, node: ast.IfExp) -> ast.expr:
        parts = self.probability(node.test), thunk(self.visit(node.body)), thunk(self.visit(node.orelse))
        heavy = {"heavy": ast.Constant(True)} if is_heavy([node.body, node.orelse]) else {}
        return frame("choose", *parts, **heavy)

    def visit_Call(self, node: ast.Call) -> ast.expr:
        function = self.visit(node.func)
        args: list[ast.expr] = [self.visit(arg) for arg in node.args]
        keywords = [ast.keyword(k.arg, self.visit(k.value)) for k in node.keywords]
        return ast.Call(attribute("_s", "call"), [function, *args], keywords)

    def visit_Subscript(self, node: ast.Subscript) -> ast.expr:
        return frame("load", self.visit(node.value), self.index(node.slice))

    def index(self, node: ast.expr) -> ast.expr:
        """A subscript as an ordinary expression."""
        if isinstance(node, ast.Slice):
            bounds: list[ast.expr] = [
                self.visit(b) if b is not None else ast.Constant(None) for b in (node.lower, node.upper, node.step)
            ]
            return frame("slice", *bounds)
        if isinstance(node, ast.Tuple):
            return ast.Tuple([self.index(part) for part in node.elts], ast.Load())
        return self.visit(node)

    def visit_comprehension(self, node: ast.comprehension) -> ast.comprehension:
        tests: list[ast.expr] = [frame("crisp", self.visit(test)) for test in node.ifs]
        return ast.comprehension(node.target, self.visit(node.iter), tests, node.is_async)

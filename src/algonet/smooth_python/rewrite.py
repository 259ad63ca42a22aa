"""From plain Python to the calls that run it smoothly. Line numbers stay the user's own.

    if a > b:                     _if1 = _s.branch(_s.gt(a, b), x=x)
        x = f(x)                  if _if1.then:
                       becomes        x = _s.call(f, x)
                                      (x,) = _if1.turn(x)
                                  (x,) = _if1.join(x)

`_s` is the frame of the run. What is not a decision stays as it is: a `for` over a range is the same `for`.
"""

from __future__ import annotations

import ast
import copy
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from .liveness import (
    NOTHING,
    Assignment,
    Liveness,
    Names,
    appended,
    assigned,
    defined_before,
    leaves,
    numbered,
    parameters,
    read,
    returns,
    root,
    stored,
)

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


def rewritten(function: ast.FunctionDef, weighted: bool = False, gated: bool = False) -> ast.FunctionDef:
    """The smooth form of a function that `check` has passed.

    Where it is `weighted` or `gated`, every assignment `y = value` becomes `y = _s.assign(number, value)`, with a function that
    reads the old y where it is gated.
    """
    return _Rewriter(copy.deepcopy(function), weighted, gated).function()


def _live(items: ast.expr, changed: Names) -> ast.expr:
    """Rewritten items of a `for` whose body changes these names: iterators that look at them anew at each step."""
    if isinstance(items, ast.Name) and items.id in changed:
        return frame("live", thunk(items))
    match items:
        case ast.Call(
            args=[ast.Attribute(value=ast.Name(id=owner) as read_, attr="items" | "keys" | "values" as order)]
        ) if owner in changed:
            return frame("live", thunk(read_), ast.Constant(order))
        case ast.Call(args=[ast.Name(id="reversed"), ast.Name(id=owner) as read_]) if owner in changed:
            return frame("live", thunk(read_), ast.Constant("reversed"))
        case ast.Call(args=[ast.Name(id="enumerate" | "zip") as function, *args]):
            new = [_live(arg, changed) for arg in args]
            if any(n is not a for n, a in zip(new, args, strict=True)):
                return ast.Call(items.func, [function, *new], items.keywords)
    return items


def _set_once(statements: list[ast.stmt], name: str, changed: Names) -> str | None:
    """How a block sets a name, whichever way it goes, as text that reads nothing of `changed`; None where it may differ."""
    own = [s for s in statements if name in assigned([s])]
    if len(own) == 1 and isinstance(own[0], ast.If):
        then, other = (_set_once(side, name, changed) for side in (own[0].body, own[0].orelse))
        return then if then == other else None
    if len(own) != 1 or not isinstance(own[0], ast.Assign) or not isinstance(own[0].targets[0], ast.Name):
        return None
    # Each side takes its own decisions
    decides = any(isinstance(n, (ast.Call, ast.Compare, ast.BoolOp, ast.Not, ast.IfExp)) for n in ast.walk(own[0]))
    return None if decides or read(own[0].value) & changed else ast.unparse(own[0])


class _Rewriter(ast.NodeTransformer):
    """Statements: each has a method that returns the list of those that replace it. Expressions are visited."""

    def __init__(self, function: ast.FunctionDef, weighted: bool, gated: bool):
        self._function = function
        self._gated = gated
        self._assignments = numbered(function) if weighted or gated else {}
        self._alive = Liveness(function, keeping=gated)
        self._count: Counter[str] = Counter()
        self._loops: list[tuple[str, list[str], int]] = []
        self._defined = defined_before(function)
        self._unset: set[str] = set()
        body = function.body
        only = sum(isinstance(n, ast.Return) for n in ast.walk(function)) == 1
        self._plain_return = only and isinstance(body[-1], ast.Return)

    def function(self) -> ast.FunctionDef:
        function = self._function
        body = self.block(function.body)
        if not self._plain_return and returns(function.body):
            body.append(ast.Return(frame("result")))
        unset: list[ast.stmt] = [assign(n, frame("missing", ast.Constant(n))) for n in sorted(self._unset)]
        start = self._located(unset, function)
        names = "_s", *(a.arg for a in parameters(function))
        new = defined(function.name, arguments(names), [*start, *body] or [ast.Pass()])
        return ast.fix_missing_locations(placed(new, function))

    def block(self, statements: list[ast.stmt]) -> list[ast.stmt]:
        new: list[ast.stmt] = []
        for k, statement in enumerate(statements):
            replaced = self._located(getattr(self, f"_{type(statement).__name__}")(statement), statement)
            new += replaced
            rest = statements[k + 1 :]
            if isinstance(statement, (ast.Return, ast.Break, ast.Continue)):
                break
            if rest and leaves([statement]):
                # Everybody may be gone: then the rest must not run, nor call anything where hardly anybody is left
                test: ast.expr = attribute("_s", "going")
                if not self._loops and has_calls(rest):
                    test = frame("likely")
                return [*new, *self._located([ast.If(test, self.block(rest), [])], rest[0])]
        return new

    def _located(self, new: list[ast.stmt], old: ast.stmt) -> list[ast.stmt]:
        return [placed(statement, old) for statement in new]

    def _fresh(self, kind: str) -> str:
        """A name for a branch, a loop or a temporary."""
        self._count[kind] += 1
        return f"{kind}{self._count[kind]}"

    # -- simple statements

    def _Pass(self, node: ast.Pass) -> list[ast.stmt]:
        return [node]

    def _Expr(self, node: ast.Expr) -> list[ast.stmt]:
        if isinstance(node.value, ast.Constant):
            return [node]
        name = appended(node)
        if name is not None and isinstance(node.value, ast.Call):
            value = frame("append", name, *(self.visit(arg) for arg in node.value.args))
            return [assign(name, value)]
        return [ast.Expr(self.visit(node.value))]

    def _Assert(self, node: ast.Assert) -> list[ast.stmt]:
        message = [] if node.msg is None else [thunk(self.visit(node.msg))]
        return [ast.Expr(frame("check", self.probability(node.test), *message))]

    def _AnnAssign(self, node: ast.AnnAssign) -> list[ast.stmt]:
        return [ast.Pass()] if node.value is None else self._assign([node.target], self._assigned(node, node.value))

    def _Assign(self, node: ast.Assign) -> list[ast.stmt]:
        return self._assign(node.targets, self._assigned(node, node.value))

    def _assigned(self, node: ast.stmt, value: ast.expr) -> ast.expr:
        """The right side of an assignment, each of its values with its number where these are wanted."""
        assignments = self._assignments.get(node, [])
        old = [self._before(a.target) for a in assignments]
        new = self.visit(value)
        if len(old) > 1:
            return ast.Tuple([*map(self._marked, assignments, new.elts, old)], ast.Load())
        return self._marked(assignments[0], new, old[0]) if old else new

    def _marked(self, assignment: Assignment, value: ast.expr, old: ast.expr | None) -> ast.expr:
        before = [thunk(old)] if old is not None and self._gated else []
        return frame("assign", ast.Constant(assignment.number), value, *before)

    def _before(self, target: ast.expr) -> ast.expr | None:
        """An expression for what a target is before it is assigned; None where that is several things and an open end."""
        if isinstance(target, (ast.Tuple, ast.List)):
            parts = [self._before(part) for part in target.elts]
            return None if None in parts else ast.Tuple(parts, ast.Load())  # pyright: ignore[reportArgumentType]
        if isinstance(target, ast.Subscript):
            return self._loaded(target, self._path(copy.deepcopy(target)))
        return named(target.id) if isinstance(target, ast.Name) else None

    def _loaded(self, target: ast.expr, path: Sequence[ast.expr | str]) -> ast.expr:
        old: ast.expr = named(root(target) or "")
        for index in path:
            old = frame("load", old, index)
        return old

    def _AugAssign(self, node: ast.AugAssign) -> list[ast.stmt]:
        path = self._path(node.target)
        names = [self._fresh("_t") for _ in path]
        before = [assign(n, index) for n, index in zip(names, path, strict=True)]
        value = ast.BinOp(self._loaded(node.target, names), node.op, self.visit(node.value))
        for assignment in self._assignments.get(node, ()):
            value = self._marked(assignment, value, self._loaded(node.target, names))
        variable = root(node.target) or ""
        return [*before, assign(variable, frame("store", variable, value, *names) if names else value)]

    def _assign(self, places: list[ast.expr], value: ast.expr) -> list[ast.stmt]:
        if len(places) == 1 and isinstance(places[0], ast.Subscript):
            return [self._stored(places[0], value)]
        # First everything on the right, then the subscripts from left to right
        after: list[ast.stmt] = []
        plain = [self._unsubscripted(place, after) for place in places]
        return [ast.Assign(plain, value), *after]

    def _unsubscripted(self, place: ast.expr, after: list[ast.stmt]) -> ast.expr:
        if isinstance(place, ast.Subscript):
            name = self._fresh("_t")
            after.append(self._stored(place, named(name)))
            return named(name, store=True)
        if isinstance(place, (ast.Tuple, ast.List)):
            return ast.Tuple([self._unsubscripted(part, after) for part in place.elts], ast.Store())
        if isinstance(place, ast.Starred):
            return ast.Starred(self._unsubscripted(place.value, after), ast.Store())
        return place

    def _stored(self, place: ast.Subscript, value: ast.expr) -> ast.stmt:
        variable = root(place) or ""
        return assign(variable, frame("store", variable, value, *self._path(place)))

    def _path(self, place: ast.expr) -> list[ast.expr]:
        path: list[ast.expr] = []
        while isinstance(place, ast.Subscript):
            path.insert(0, self.visit(place.slice))
            place = place.value
        return path

    # -- leaving

    def _Return(self, node: ast.Return) -> list[ast.stmt]:
        value = ast.Constant(None) if node.value is None else self.visit(node.value)
        if self._unset:
            value = frame("returned", value)
        return [ast.Return(value)] if self._plain_return else [ast.Expr(frame("give", value))]

    def _Break(self, node: ast.Break) -> list[ast.stmt]:
        loop, names, keep = self._loops[-1]
        return [ast.Expr(call(loop, "leave", *names[:keep]))]

    def _Continue(self, node: ast.Continue) -> list[ast.stmt]:
        loop, names, _ = self._loops[-1]
        return [ast.Expr(call(loop, "skip", *names))]

    # -- branches and loops

    def _carried(self, node: ast.stmt, *groups: Names) -> list[str]:
        """The names of each group, those of the first in front; at `node` they have a value, or are marked as missing."""
        names = list(dict.fromkeys(name for group in groups for name in sorted(group)))
        self._unset |= set(names) - self._defined[node]
        return names

    def _If(self, node: ast.If) -> list[ast.stmt]:
        living = self._alive.around[node]
        changed = assigned([node])
        # What both sides set to the same is no matter of the decision, whichever of them runs
        kept = NOTHING if self._assignments or leaves([node]) else changed - living.orelse
        used = changed & living.after - {n for n in kept if _set_once([node], n, changed) is not None}
        saved = self._carried(node, used, changed & living.orelse - living.after)
        branch = self._fresh("_if")
        heavy = [self._alive_here(node)] if is_heavy([*node.body, *node.orelse]) else []
        method = "fork" if leaves([node]) else "branch"
        test = self.probability(node.test)
        new: list[ast.stmt] = [assign(branch, frame(method, test, *heavy, **{n: named(n) for n in saved}))]
        then = [*self.block(node.body), self._transfer(branch, "turn", saved)]
        new.append(ast.If(attribute(branch, "then"), then, []))
        if node.orelse:
            new.append(ast.If(attribute(branch, "orelse"), self.block(node.orelse), []))
        new.append(self._transfer(branch, "join", saved[: len(used)]))
        return new

    def _alive_here(self, node: ast.If) -> ast.expr:
        """The variables that either side, or what follows, will read."""
        before, after = self._alive.before, self._alive.around[node].after
        alive = before[node.body[0]] | (before[node.orelse[0]] if node.orelse else after)
        return ast.List([named(n) for n in sorted(alive & self._defined[node])], ast.Load())

    def _transfer(self, owner: str, method: str, names: list[str]) -> ast.stmt:
        """(names) = owner.method(names), or the bare call where there are none."""
        value = call(owner, method, *names)
        variables = ast.Tuple([named(n, store=True) for n in names], ast.Store())
        return ast.Assign([variables], value) if names else ast.Expr(value)

    def _For(self, node: ast.For) -> list[ast.stmt]:
        # Where the body writes into what is gone through, each item is read when its turn comes
        items = _live(self.visit(node.iter), stored(node.body)[1])
        if leaves(node.body):
            return self._loop(node, lambda body: ast.For(node.target, items, body, []))
        return [ast.For(node.target, items, self.block(node.body), []), *self.block(node.orelse)]

    def _While(self, node: ast.While) -> list[ast.stmt]:
        return self._loop(node, lambda test, body: ast.While(test, body, []))

    def _loop(self, node: ast.While | ast.For, again: Callable[..., ast.stmt]) -> list[ast.stmt]:
        """A loop that is left by decisions; `again` makes the statement that repeats a body."""
        living = self._alive.around[node]
        changed = assigned([node])
        kept = changed & (living.after | living.orelse)
        names, keep = self._carried(node, kept, changed & living.head), len(kept)
        loop = self._fresh("_loop")
        leaky = returns(node.body) or leaves(node.orelse)
        told = node.lineno, " ".join(names), keep, *([True] if leaky else [])
        new: list[ast.stmt] = [assign(loop, frame("loop", *map(ast.Constant, told)))]
        self._loops.append((loop, names, keep))
        test = [call(loop, "goes", self.probability(node.test), *names)] if isinstance(node, ast.While) else []
        body = self.block(node.body)
        if test:
            body.append(self._transfer(loop, "next", names))
        else:
            over = ast.If(attribute(loop, "over"), [ast.Break()], [])
            body += [self._transfer(loop, "advance", names), over]
        self._loops.pop()
        new += [again(*test, body), self._transfer(loop, "finish", names[:keep])]
        if node.orelse:
            new.append(ast.If(attribute("_s", "going"), self.block(node.orelse), []))
        return [*new, self._transfer(loop, "end", names[:keep])]

    # -- expressions: comparisons, and/or/not, conditional expressions, subscripts and calls become calls of the frame

    def visit(self, node: ast.AST) -> Any:
        decision = self._decision(node)
        # The value of a comparison that is kept
        return placed(super().visit(node) if decision is None else frame("decided", decision), node)

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
            middle = self._fresh("_t")
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

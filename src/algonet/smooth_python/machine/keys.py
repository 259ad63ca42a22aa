"""What a recording depends on, as a dictionary key.

A smooth function records the same instructions again when all that Python decides on is the same: the shapes of its
tensors, its crisp arguments, the softness, and everything it reads from outside (globals, closures, attributes of modules
and of objects it is given). All of that goes into the key, by value where it can change and by identity where it cannot.
Numbers inside tensors do not: wherever a tensor comes from, it is what the recorded program computes with. What no key
can stand for (an object with a life of its own, a function that reads attributes of its variables) is an `UnknownError`,
and the call is recorded anew.
"""

from __future__ import annotations

import abc
import ast
import collections
import dataclasses
import dis
import inspect
import itertools
import types
from collections.abc import Hashable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from algonet.relax import Relaxation, TConorm

from ..liveness import parameters
from ..softness import Paths
from .values import Value

#: Longer containers from outside would cost more to compare than recording does.
LONGEST = 4096
#: Attributes of tensors that follow from what is in the key.
_SIZES = frozenset(("shape", "ndim", "dtype", "device"))
#: Descriptors that read what is stored and nothing else.
_PLAIN_DESCRIPTORS = (
    *(types.FunctionType, types.BuiltinFunctionType, types.MemberDescriptorType, staticmethod, classmethod),
    type(collections.namedtuple("_", "x").x),  # pyright: ignore[reportAttributeAccessIssue]
)
#: Metaclasses whose classes cannot be subscripted, measured or iterated over.
_PLAIN_METACLASSES = (type, abc.ABCMeta)
#: Options are their fields.
_OPTIONS = (Relaxation, TConorm, Paths)
_PLAIN = (int, bool, str, bytes, type(None), torch.dtype, torch.device)


class UnknownError(Exception):
    """No key can stand for this value."""


class Same:
    """An object as itself: equal to nothing else, and alive as long as the key is."""

    __slots__ = ("it",)

    def __init__(self, it: Any):
        self.it = it

    def __hash__(self) -> int:
        return id(self.it)

    def __eq__(self, other: object) -> bool:
        return type(other) is Same and other.it is self.it


class Found:
    """What a key came across: tensors, smooth functions, and methods."""

    def __init__(self, *functions: Any):
        self.tensors: list[Tensor] = []
        self.places: dict[int, int] = {}
        self.functions = list(functions)
        self.methods: list[Any] = []

    def tensor(self, x: Tensor) -> Hashable:
        """A tensor is data, wherever it comes from: what matters is its form, and which of them are the same one."""
        if type(x) is not Tensor and type(x) is not torch.nn.Parameter:
            raise UnknownError(f"a {type(x).__name__}")
        place = self.places.setdefault(id(x), len(self.tensors))
        if place == len(self.tensors):
            self.tensors.append(x)
        return place, x.shape, x.dtype, x.device


def describe(x: Any, found: Found) -> Hashable:
    """An argument, an option, or something from outside."""
    kind: Any = type(x)
    parts: Any = x
    if kind is Value or isinstance(x, Tensor):
        return found.tensor(parts.tensor if kind is Value else parts)
    if kind in _PLAIN:
        return kind, x
    if kind is float:
        return kind, x.hex()
    if isinstance(x, np.generic):
        return kind, describe(x.item(), found)
    if kind in (dict, collections.defaultdict):
        parts = [getattr(x, "default_factory", None), *x, *x.values()]
    elif dataclasses.is_dataclass(x) and not isinstance(x, type) and (isinstance(x, _OPTIONS) or _plain_record(kind)):
        parts = [getattr(x, field.name) for field in dataclasses.fields(x)]
    elif getattr(kind, "is_smooth", False):
        return _smooth_function(x, found)
    elif (
        isinstance(x, types.FunctionType)
        or kind in _PLAIN_METACLASSES
        or (isinstance(x, types.BuiltinFunctionType) and isinstance(x.__self__, (types.ModuleType, type, type(None))))
    ):
        # All that a program can do with it is to call it, which the frame sees; not a method of C that was bound to an object
        return Same(x)
    elif kind not in (tuple, list) and not (issubclass(kind, tuple) and hasattr(kind, "_fields")):
        raise UnknownError(f"a {kind.__name__}")
    if len(parts) > LONGEST:
        raise UnknownError(f"a long {kind.__name__}")
    return kind, *[describe(part, found) for part in parts]


def _smooth_function(x: Any, found: Found) -> Hashable:
    """Itself and all it reads from outside; as a method, also what it reads of its object. Functions may call each other."""
    owner = getattr(x, "__self__", None)
    function = x if owner is None else x.__func__
    read: Hashable = None
    if owner is not None and not any(function is m.__func__ and owner is m.__self__ for m in found.methods):
        found.methods.append(x)
        read = function.outside.of_arguments([owner], found)
    if any(function is known for known in found.functions):
        return Same(function), read
    found.functions.append(function)
    own = tuple([found.tensor(t) for t in function.parameter_tensors])
    return Same(function), read, own, function.outside.inner_key(found, owner is not None)


def _plain_record(kind: type) -> bool:
    """Whether objects of a dataclass are nothing but their fields."""
    own = (vars(c) for c in kind.__mro__ if c is not object)
    return not any(isinstance(attribute, property) for names in own for attribute in names.values())


class Outside:
    """The names that a function reads and does not bind, and the attributes it reads of them and of its arguments."""

    def __init__(self, tree: ast.FunctionDef, function: types.FunctionType):
        self._function = function
        self._cells = dict(zip(function.__code__.co_freevars, function.__closure__ or (), strict=True))
        scan = _Scan()
        for statement in tree.body:
            scan.visit(statement)
        self._parameters = [a.arg for a in parameters(tree)]
        outside = {*self._cells, *_globals(function.__code__)}
        scan.sort_methods(outside)
        constant = {*self._parameters, *outside} - scan.bound
        self._fits = scan.fits and all(root in constant for root in scan.paths)
        self._bare = sorted(scan.bare & outside)
        self._paths = {root: sorted(paths) for root, paths in scan.paths.items() if root in outside}
        self._used = scan.bare
        self._of_arguments = {root: sorted(paths) for root, paths in scan.paths.items() if root in self._parameters}

    def key(self, found: Found) -> Hashable:
        """Everything outside as it is now."""
        if not self._fits:
            raise UnknownError("an attribute of a variable")
        bare = [describe(self._value(name), found) for name in self._bare]
        paths = [_attributes(self._value(root), paths, found) for root, paths in self._paths.items()]
        return tuple(bare), tuple(paths)

    def of_arguments(self, values: list[Any], found: Found) -> Hashable:
        """The (first) arguments; an object counts as the attributes that are read of it, if nothing else is done with it."""
        described: list[Hashable] = []
        for name, value in zip(self._parameters, values, strict=False):
            paths = self._of_arguments.get(name)
            if paths is None or isinstance(value, (Value, list, tuple, dict, float, *_PLAIN)):
                described.append(describe(value, found))
            else:
                itself = describe(value, found) if name in self._used else None
                described.append((itself, type(value), _attributes(value, paths, found)))
        return tuple(described)

    def inner_key(self, found: Found, owned: bool) -> Hashable:
        """The same for a function that another one calls; nobody knows the arguments, except for a method's object."""
        if not self._of_arguments.keys().isdisjoint(self._parameters[int(owned) :]):
            raise UnknownError("an attribute of an argument")
        return self.key(found)

    def _value(self, name: str) -> Any:
        try:
            if name in self._cells:
                return self._cells[name].cell_contents
            names = self._function.__globals__
            return names[name] if name in names else self._function.__builtins__[name]
        except (KeyError, ValueError):
            raise UnknownError(f"`{name}`, which has no value") from None


def _globals(code: types.CodeType) -> set[str]:
    """Names that are looked up globally, here or in a comprehension."""
    found = {step.argval for step in dis.get_instructions(code) if step.opname in ("LOAD_GLOBAL", "LOAD_NAME")}
    return found.union(*(_globals(inner) for inner in code.co_consts if isinstance(inner, types.CodeType)))


def _attributes(owner: Any, paths: list[tuple[str, ...]], found: Found) -> Hashable:
    described: list[Hashable] = []
    for path in paths:
        value = owner
        for name in path:
            if isinstance(value, Tensor) and name in _SIZES:
                break
            value = _attribute(value, name)
        described.append(describe(value, found))
    return tuple(described)


def _attribute(owner: Any, name: str) -> Any:
    """owner.name where reading it runs no code of the user's: the program reads it again, and must find the same."""
    if isinstance(owner, torch.nn.Module) and type(owner).__getattr__ is torch.nn.Module.__getattr__:
        own = owner.named_parameters(recurse=False), owner.named_buffers(recurse=False), owner.named_children()
        held: dict[str, Any] = dict(itertools.chain(*own))
        if name in held and name not in owner.__dict__:
            return held[name]
    if isinstance(owner, Tensor) or isinstance(type(owner).__getattribute__, types.FunctionType):
        raise UnknownError(f"the attribute {name}, which is computed")
    stored = inspect.getattr_static(owner, name, UnknownError)
    computed = hasattr(type(stored), "__get__") and not isinstance(stored, _PLAIN_DESCRIPTORS)
    if stored is UnknownError or (computed and not getattr(type(stored), "is_smooth", False)):
        raise UnknownError(f"the attribute {name}, which is computed or missing")
    return getattr(owner, name)


class _Scan(ast.NodeVisitor):
    """Names that are read bare, names with the chains of attributes that are read of them, and names that are bound."""

    def __init__(self):
        self.bare: set[str] = set()
        self.bound: set[str] = set()
        self.paths: dict[str, set[tuple[str, ...]]] = {}
        self._methods: set[tuple[str, ...]] = set()
        self.fits = True

    def sort_methods(self, outside: set[str]) -> None:
        """`math.exp(x)` reads an attribute of something outside; `y.clone()` reads y, and the frame sees the call."""
        for root, *path in self._methods:
            if root in outside and root not in self.bound:
                self.paths.setdefault(root, set()).add(tuple(path))
            else:
                self.bare.add(root)

    def visit_Call(self, node: ast.Call) -> None:
        function = node.func
        chain = _chain(function) if isinstance(function, ast.Attribute) else ()
        if len(chain) == 2:
            self._methods.add(chain)
        else:
            self.visit(function.value if isinstance(function, ast.Attribute) and not chain else function)
        for part in (*node.args, *node.keywords):
            self.visit(part)

    def visit_Name(self, node: ast.Name) -> None:
        (self.bare if isinstance(node.ctx, ast.Load) else self.bound).add(node.id)

    def visit_Attribute(self, node: ast.Attribute) -> None:
        chain = _chain(node)
        if chain and not (len(chain) == 2 and node.attr in _SIZES):
            self.paths.setdefault(chain[0], set()).add(chain[1:])
        elif node.attr in _SIZES:
            self.visit(node.value)
        else:
            self.fits = False


def _chain(node: ast.expr) -> tuple[str, ...]:
    """(name, attribute, attribute, ...), or nothing where the chain does not begin with a name."""
    names: list[str] = []
    while isinstance(node, ast.Attribute):
        names.insert(0, node.attr)
        node = node.value
    return (node.id, *names) if isinstance(node, ast.Name) else ()

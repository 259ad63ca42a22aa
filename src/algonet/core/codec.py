"""Settings as text, which is all that a torch operator in a graph can carry; eager calls pass the objects themselves.

One codec for frozen dataclasses whose fields are numbers, strings, `None`, tuples, enumerations and further frozen dataclasses.
A class that can be imported is named by module and name, so that an exported graph works in another process. Any other (of a
notebook, of a function's body, replaced by another of the same name) gets a number that holds in this process.

`encode` runs while `torch.compile` traces it, so it is written in what the tracer understands: `operator.index` and
`float.hex` make it take a number as a constant of the graph. The text is JSON; its strings begin with a letter for their kind.
"""

from __future__ import annotations

import dataclasses
import enum
import importlib
import itertools
import json
import operator
import threading
import weakref
from collections.abc import Callable
from typing import Any

from algonet.core import tracing
from algonet.core.cache import cached
from algonet.core.identity import canonical

_NUMBERED: weakref.WeakValueDictionary[int, type] = weakref.WeakValueDictionary()
_NUMBERS: weakref.WeakKeyDictionary[type, int] = weakref.WeakKeyDictionary()
_COUNT = itertools.count(1)
_LOCK = threading.Lock()


def _constant(function: Callable[..., Any]) -> Callable[..., Any]:
    """What `torch.compiler.assume_constant_result` says, without importing the compiler now: that takes a second."""
    function._dynamo_marked_constant = True  # pyright: ignore[reportFunctionMemberAccess]
    return function


def encode(value: Any) -> str:
    """The value as text.

    >>> from algonet.relax import SmoothStep
    >>> decode(encode((SmoothStep(2), 1e-4, None))) [0].k
    2
    """
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, enum.Enum):
        return '["enum", "' + _token(type(value)) + '", "' + value.name + '"]'
    if isinstance(value, int):
        return _digits(operator.index(value))
    if isinstance(value, float):
        return '"f' + float(value).hex() + '"'
    if isinstance(value, str):
        return _quoted(value)
    if isinstance(value, tuple):
        return '["tuple"' + "".join([", " + encode(item) for item in value]) + "]"
    cls = type(value)
    fields = _fields(cls)
    # Dynamo before torch 2.12 cannot look into a frozen dataclass; nothing can be added to one by ordinary means either
    if not (tracing.compiling() and _frozen(cls)) and len(getattr(value, "__dict__", ())) > len(fields):
        raise TypeError(
            "a graph carries an option as its class and fields, and this one has further attributes: make them fields."
        )
    return '["' + _token(cls) + '"' + "".join([", " + encode(getattr(value, name)) for name in fields]) + "]"


@cached
def decode(text: str) -> Any:
    """The value that `encode` wrote; its options are interned, so that caches know them."""
    return _value(json.loads(text))


@_constant
def _token(cls: type) -> str:
    """The name by which `_class` finds this very class again."""
    name = f"{cls.__module__}:{cls.__qualname__}"
    if cls.__module__ != "__main__" and "<locals>" not in name and _importable(name) is cls:
        return name
    with _LOCK:
        number = _NUMBERS.get(cls)
        if number is None:
            number = _NUMBERS[cls] = next(_COUNT)
            _NUMBERED[number] = cls
    return f"#{number}:{cls.__qualname__}".replace('"', "")


@_constant
def _fields(cls: type) -> tuple[str, ...]:
    if not dataclasses.is_dataclass(cls):
        raise TypeError(
            f"a graph carries options as frozen dataclasses of numbers, strings, tuples and each other; "
            f"{cls.__name__} is none: decorate it with @dataclass(frozen=True), or call it outside of torch.compile."
        )
    return tuple(field.name for field in dataclasses.fields(cls))


@_constant
def _frozen(cls: type) -> bool:
    return cls.__dataclass_params__.frozen  # pyright: ignore[reportAttributeAccessIssue]


@_constant
def _digits(value: int) -> str:
    return str(value)


@_constant
def _quoted(value: str) -> str:
    return json.dumps("s" + value)


def _importable(name: str) -> Any:
    module, _, path = name.partition(":")
    try:
        found: Any = importlib.import_module(module)
        for part in path.split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError, ValueError):
        return None
    return found


def _class(token: str) -> type:
    if not token.startswith("#"):
        found = _importable(token)
        if found is None:
            raise ValueError(f"this graph was made with {token}, which cannot be imported here.")
        return found
    found = _NUMBERED.get(int(token[1:].partition(":")[0]))
    if found is None:
        raise ValueError(
            f"this graph was made in another process, with the class {token.partition(':')[2]} that was defined there; "
            f"define it in a module that both can import."
        )
    return found


def _value(read: Any) -> Any:
    if isinstance(read, str):
        return float.fromhex(read[1:]) if read[0] == "f" else read[1:]
    if not isinstance(read, list):
        return read
    kind, *rest = read
    if kind == "tuple":
        return tuple(map(_value, rest))
    if kind == "enum":
        return _class(rest[0])[rest[1]]  # pyright: ignore[reportIndexIssue]
    return _object(_class(kind), [_value(item) for item in rest])


def _object(cls: type, values: list[Any]) -> Any:
    """An object with these fields, whatever its `__init__` takes."""
    made = object.__new__(cls)
    for name, value in zip(_fields(cls), values, strict=True):
        object.__setattr__(made, name, value)
    # Classes without an equality of their own are known by being the same object
    return canonical(made) if cls.__eq__ is object.__eq__ else made

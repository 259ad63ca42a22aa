"""Reading and writing parts: crisply by integers, slices and masks, smoothly by real numbers.

A real position i reads the mixture of all parts k with weights P(i == k) = 1 - phi(i - k), the same exits as `==`, and
writes into each part to that extent. Part k of n is also number k - n, as in Python. Nothing is written in place: `store`
returns a new value.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from ..machine.eager import EAGER, as_value, call_tensor_function, soft_number, stacked
from ..machine.values import NUMBERS, Value, dict_like, machine_of, mapped, smooth_kind
from .merging import Missing, Mixture


def load(frame: Any, container: Any, index: Any) -> Any:
    """container[index]."""
    if type(container) is Value and type(index) is int:
        return (container._parts or container.parts)[index]
    index = _position(container, index)
    if type(container) is not Value and not isinstance(container, Tensor):
        if _real(index) and isinstance(container, (list, tuple)):
            return _mixture(frame, container, index)
        _check_key(container, index)
        made_up = isinstance(container, dict) and hasattr(type(container), "__missing__") and index not in container
        if made_up or not isinstance(container, (list, tuple, dict, str, range, bytes)):
            # Whatever its __getitem__ looks at, or makes up, no recording holds it
            frame.mark_unrecordable()
        return container[index]  # pyright: ignore[reportIndexIssue]
    if isinstance(container, Tensor) and _crisp(index):
        return frame.machine.derived(container, operator.itemgetter(index))
    array = as_value(container)
    if _one_by_one(index):
        first, *rest = index
        if isinstance(first, slice):
            return stacked([load(frame, row, *_inner(index)) for row in array.parts[first]])
        part = load(frame, array, first)
        return load(frame, part, *_inner(index)) if rest else part
    if type(index) is int:
        return array.parts[index]
    return _mixture(frame, array, index) if _real(index) else _tensor_load(array, index)


def store(frame: Any, container: Any, value: Any, *path: Any) -> Any:
    """The container after container[path[0]][path[1]]... = value; the container itself is left alone."""
    index, rest = path[0], path[1:]
    if type(container) is Value and type(index) is int and type(value) is Value and not rest:
        parts = container._parts or container.parts
        if parts and (parts[index].row if type(parts[index]) is Value else None) is not None:
            return container.replaced({index: value}, container.batched or value.batched, container.machine)
    if isinstance(container, Missing):
        container._used()
    index = _position(container, index)
    _check_key(container, index)
    whole = isinstance(container, dict)  # A tuple is one key
    if not whole and _one_by_one(index):
        if len(index) > 1 and isinstance(index[0], slice):
            return _store_slice(frame, as_value(container), value, index[0], [*_inner(index), *rest])
        if not all(type(i) is int or isinstance(i, slice) or _real(i) for i in index):
            raise TypeError("a real-valued subscript goes together with integers and slices only; write in two steps.")
        return store(frame, container, value, index[0], *_inner(index), *rest)
    if rest:
        if _real(index):
            return _spread(frame, container, index, lambda part: store(frame, part, value, *rest))
        value = store(frame, load(frame, container, index), value, *rest)
    if _real(index):
        return _spread(frame, container, index, lambda part: value)
    if whole:
        return dict_like(container, {**container, index: value})
    if isinstance(container, list):
        new = list(container)
        new[index] = value  # pyright: ignore[reportCallIssue, reportArgumentType]
        return new
    if isinstance(container, tuple):
        raise TypeError("a tuple cannot be written to; make it a list.")
    if type(container) is not Value and not isinstance(container, Tensor):
        raise TypeError(f"cannot write into a {type(container).__name__}; use a tensor, a list or a dictionary.")
    array = as_value(container)
    if type(index) is int and (isinstance(value, (*NUMBERS, Tensor)) or type(value) is Value):
        known = array.batched or (type(value) is Value and value.batched)
        return array.replaced({index: _fitting(array.parts[index], value)}, known, machine_of(array, value))
    if isinstance(index, slice) and all(i is None or type(i) is int for i in (index.start, index.stop, index.step)):
        return _store_slice(frame, array, value, index, [])
    return _tensor_store(array, index, value)


def _store_slice(frame: Any, array: Value, value: Any, index: slice, path: list) -> Value:
    """array[index][path...] = value: row by row, each with a part of a value that has several."""
    places, parts = range(len(array))[index], list(array.parts)
    values = [value] * len(places)
    if _depth(value) > 0:
        given = list(value) if isinstance(value, (list, tuple)) else list(as_value(value).parts)
        values = given * len(places) if len(given) == 1 else given
    if len(values) != len(places):
        raise ValueError(f"the slice has {len(places)} places and {len(values)} values are to be written into it.")
    for place, new in zip(places, values, strict=True):
        parts[place] = store(frame, parts[place], new, *path) if path else _fitting(parts[place], new)
    return stacked(parts)


def _inner(index: tuple) -> list:
    """What a tuple of subscripts leaves for the parts: nothing, one subscript, or a shorter tuple."""
    return [index[1:]] if len(index) > 2 else list(index[1:])


def _check_key(container: Any, index: Any) -> None:
    if isinstance(container, dict) and _contains_value(index):
        raise TypeError("a dictionary is looked up crisply; a smooth number is a subscript of lists and tensors only.")


def append(frame: Any, container: Any, value: Any) -> list:
    """The list after container.append(value)."""
    if not isinstance(container, list):
        raise TypeError(f"`.append` works on lists here, got {type(container).__name__}; use torch.cat for tensors.")
    return [*container, value]


def live(frame: Any, read: Callable[[], Any], order: str = "") -> Iterator[Any]:
    """The items of a container that is written into while they are gone through: each as it is when its turn comes."""
    container = read()
    if isinstance(container, dict):
        for key in list(container):
            yield key if order in ("", "keys") else read()[key] if order == "values" else (key, read()[key])
    elif order == "reversed":
        for place in reversed(range(len(container))):
            yield load(frame, read(), place)
    else:
        place = 0
        while place < len(read()):
            yield load(frame, read(), place)
            place += 1


def _position(container: Any, index: Any) -> Any:
    """A Python float as a subscript means what the same number in a tensor means; whole ones are read crisply."""
    if isinstance(container, dict):
        return index
    if type(index) is tuple and float in map(type, index):
        return tuple([_position(None, i) for i in index])
    if type(index) is not float:
        return index
    if container is None or not index.is_integer():
        return as_value(index)
    return int(min(max(index, -float(len(container))), len(container) - 1.0))


def _real(index: Any) -> bool:
    """Whether the position is a real number that needs a mixture."""
    if type(index) is Value:
        return index.recorded or index.tensor.is_floating_point()
    return isinstance(index, Tensor) and index.is_floating_point()


def _contains_value(index: Any) -> bool:
    return any(type(i) is Value or _real(i) for i in _as_tuple(index))


def _one_by_one(index: Any) -> bool:
    """Whether subscripts are taken one after the other: integers, or others with real ones among them."""
    real = isinstance(index, tuple) and any(map(_real, index))
    return real or (isinstance(index, tuple) and index != () and all(type(i) is int for i in index))


def _fitting(old: Any, value: Any) -> Any:
    """The value in the shape of the part that it replaces: numbers fill a whole row."""
    if type(old) is not Value:
        return value
    if old.recorded:
        return soft_number(value, old) if isinstance(value, NUMBERS) else value
    inner = old.tensor.dim() - old.batched if not old.parted else 1
    if inner == 0 and isinstance(value, NUMBERS):
        return Value(torch.as_tensor(value, dtype=old.tensor.dtype, device=old.tensor.device), False, EAGER)
    return old * 0 + value if inner > 0 and _depth(value) < inner else value


def _depth(value: Any) -> int:
    if isinstance(value, (list, tuple)):
        return 1
    if type(value) is Value:
        return 0 if value.number else 1 if value.parted else value.tensor.dim() - value.batched
    return value.dim() if isinstance(value, Tensor) else 0


def weights(frame: Any, index: Any, count: int) -> list[Value]:
    """P(index == k or index == k - count) for each part k, summing to one; positions outside are moved to the nearest end."""
    index = as_value(index)
    frame.compared(index)
    return frame.machine.weights(frame.settings.exit, index, count, frame.settings.hard)


def _mixture(frame: Any, container: Any, index: Any) -> Any:
    parts = container.parts if type(container) is Value else list(container)
    if not parts:
        raise IndexError("there is nothing to read from: the list is empty.")
    total = Mixture(("the part that is read",))
    for w, part in zip(weights(frame, index, len(parts)), parts, strict=True):
        total.add(w, (part,))
    return total.result(False)[0]


def _spread(frame: Any, container: Any, index: Any, new: Any) -> Any:
    is_list = isinstance(container, list)
    parts = container if is_list else as_value(container).parts
    shares = weights(frame, index, len(parts))
    changed = [frame.merge(w, new(part), part) for w, part in zip(shares, parts, strict=True)]
    return changed if is_list else stacked(changed)


def _tensor_load(array: Value, index: Any) -> Any:
    """Slices, masks, None and integer tensors: torch's own indexing of one item."""
    if isinstance(index, slice) and array.parted:
        return stacked(array.parts[index])
    if not array.batched or _crisp(index):
        key = (
            (slice(None), *_as_tuple(index))
            if array.batched
            else mapped(lambda i: i.tensor if type(i) is Value else i, index)
        )
        return Value(array.tensor[key], array.batched, array.machine)
    return call_tensor_function(lambda t, i: t[i], (array, index), {})


def _tensor_store(array: Value, index: Any, value: Any) -> Value:
    if isinstance(value, (list, tuple)):
        value = stacked(value)

    def write(t: Tensor, i: Any, v: Any) -> Tensor:
        mask = torch.zeros_like(t, dtype=torch.bool)
        mask[i] = True
        spread = torch.zeros_like(t, dtype=torch.promote_types(t.dtype, v.dtype) if isinstance(v, Tensor) else t.dtype)
        # Which keeps the gradient of v; t stays as it is
        spread[i] = v
        return torch.where(mask, spread, t)

    return call_tensor_function(write, (array, index, value), {})


def _crisp(index: Any) -> bool:
    """No tensor inside: the same for every item of a batch."""
    return not any(map(smooth_kind, _as_tuple(index)))


def _as_tuple(index: Any) -> tuple:
    return index if isinstance(index, tuple) else (index,)

"""The machine that runs each operation at once, in plain torch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from algonet.core.tracing import unwrapped
from algonet.relax import Logistic

from ..reference import direct, guarded
from . import functions
from .functions import ELEMENTWISE, is_operand
from .operands import OPERATIONS, aligned, counted, floating, operand, plain
from .values import NUMBERS, Machine, Value, machine_of, smooth_kind

#: On a GPU a look at the mass that is left in a loop costs more than an iteration: it is taken after this many.
PATIENCE = 8


class EagerMachine(Machine):
    """Every method computes with torch, and its results belong to the machine it is called on."""

    # -- computing

    def binary(self, name: str, x: Any, y: Any) -> Any:
        from_x, from_y = type(x) is Value, type(y) is Value
        if from_x and from_y and x.machine is not y.machine:
            machine = machine_of(x, y)
            if machine is not self:
                return machine.binary(name, x, y)
        operation, x, y = OPERATIONS[name], counted(x), counted(y)
        if from_x and from_y:
            a, b = x.tensor, y.tensor
            if x.batched == y.batched and (a.dim() == b.dim() or not x.batched):
                return Value(operation(a, b), x.batched, self)
        elif from_x and isinstance(y, NUMBERS):
            return Value(operation(x.tensor, y), x.batched, self)
        elif from_y and isinstance(x, NUMBERS):
            return Value(operation(x, y.tensor), y.batched, self)
        elif not operand(x) or not operand(y):
            return NotImplemented
        (a, b), batched = aligned(x, y)
        return Value(operation(a, b), batched, self)

    def unary(self, name: str, x: Value) -> Value:
        return Value(OPERATIONS[name](counted(x).tensor), x.batched, self)

    def operate(self, name: str, *operands: Any) -> Value:
        tensors, batched = aligned(*operands)
        tensor = direct(name, *tensors)
        if name == "tally" and tensor.dim() > batched:
            # Whole vectors decide element by element: an item's coins are all of them
            before = tensors[0]
            tensor = (tensor - before).flatten(int(batched)).sum(int(batched))
            tensor = tensor + (before if before.dim() <= batched else before.flatten(int(batched))[..., 0])
        return Value(tensor, batched, self)

    def call(self, function: Callable, args: tuple, kwargs: dict[str, Any]) -> Any:
        leaves, structure = pytree.tree_flatten((args, kwargs), is_leaf=_is_value)
        places = [k for k, leaf in enumerate(leaves) if type(leaf) is Value]
        if not any(leaves[k].batched for k in places):
            plain = [leaf.tensor if type(leaf) is Value else leaf for leaf in leaves]
            args, kwargs = pytree.tree_unflatten(plain, structure)
            return wrapped(function(*args, **kwargs))
        if function in ELEMENTWISE and all(is_operand(leaf) for leaf in leaves):
            return self._elementwise(function, args, kwargs)
        return self._mapped(function, leaves, structure, places)

    def _elementwise(self, function: Callable, args: tuple, kwargs: dict[str, Any]) -> Value:
        places = [k for k, x in enumerate(args) if smooth_kind(x)]
        tensors, batched = aligned(*(args[k] for k in places))
        plain = list(args)
        for k, tensor in zip(places, tensors, strict=True):
            plain[k] = tensor
        options = {name: x.tensor if type(x) is Value else x for name, x in kwargs.items()}
        return Value(function(*plain, **options), batched, self)

    def _mapped(self, function: Callable, leaves: list, structure: Any, places: list[int]) -> Any:
        """The function over the batch, item by item as far as it can tell."""
        found: dict[str, Any] = {}

        def one_item(*tensors: Tensor) -> tuple[Tensor, ...]:
            filled = list(leaves)
            for k, tensor in zip(places, tensors, strict=True):
                filled[k] = tensor
            args, kwargs = pytree.tree_unflatten(filled, structure)
            results, found["structure"] = pytree.tree_flatten(function(*args, **kwargs))
            found["where"] = [k for k, r in enumerate(results) if isinstance(r, Tensor)]
            found["rest"] = [None if isinstance(r, Tensor) else r for r in results]
            # vmap wants at least one tensor back
            return (*(r for r in results if isinstance(r, Tensor)), tensors[0])

        dims = tuple(0 if leaves[k].batched else None for k in places)
        *tensors, _ = torch.vmap(one_item, in_dims=dims, randomness="different")(*(leaves[k].tensor for k in places))
        results = list(found["rest"])
        for k, tensor in zip(found["where"], tensors, strict=True):
            results[k] = Value(tensor, True, self)
        return pytree.tree_unflatten(results, found["structure"])

    def attribute(self, value: Value, name: str) -> Any:
        return functions.attribute(value, name)

    # -- deciding

    def compare(self, relax: Any, x: Any, y: Any) -> Value:
        found = difference(x, y)
        return found.machine.relax(relax, found)

    def relax(self, relax: Any, x: Value) -> Value:
        tensor = x.tensor
        if type(relax) is Logistic and tensor.dtype in (torch.float32, torch.float64):
            # The same numbers as relax(tensor) without its clamp: the logistic is flat at infinity anyway
            return Value(torch.sigmoid(tensor * relax.steepness), x.batched, self)
        return Value(relax(tensor), x.batched, self)

    def truth(self, x: Value) -> Value:
        return Value(x.tensor.abs().clamp_max(1.0), x.batched, self)

    def snap(self, p: Value, epsilon: float) -> Value:
        return Value(direct("snap", p.tensor, epsilon, 1 - epsilon), p.batched, p.machine)

    def cut(self, mass: Value, epsilon: float) -> Value:
        return Value(direct("cut", mass.tensor, epsilon), mass.batched, mass.machine)

    def weights(self, exit_: Any, position: Value, count: int, hard: bool) -> list[Value]:
        tensor = position.tensor.clamp(-count, count - 1)
        inner = tensor.unsqueeze(-1) - torch.arange(-count, count, dtype=tensor.dtype, device=tensor.device)
        shares = (1 - exit_(inner)).unflatten(-1, (2, count)).sum(-2)
        if not exit_.exact_on_integers:
            shares = shares / shares.sum(-1, keepdim=True)
        if hard:
            nearest = torch.nn.functional.one_hot(tensor.detach().round().long() % count, count).to(shares.dtype)
            shares = nearest + (shares - shares.detach())
        return [Value(share, position.batched, position.machine) for share in shares.unbind(-1)]

    # -- joining states

    def mix(self, p: Value, then: Any, other: Any) -> Value:
        (w, t, o), batched = aligned(p, then, other)
        # Not lerp: the difference of two finite values may be infinite, this never is
        found = torch.addcmul((1 - w) * o, w, t) if t.dtype == w.dtype == o.dtype else (1 - w) * o + w * t
        return Value(found, batched, self)

    def select(self, p: Value, then: Any, other: Any) -> Value:
        (w, t, o), batched = aligned(p, then, other)
        return Value(torch.where(w > 0, t, o), batched, self)

    def keep(self, live: Value, new: Any, old: Any) -> Value:
        if isinstance(old, NUMBERS):
            (flags, n), batched = aligned(live, new)
            return Value(torch.where(flags, n, old), batched, machine_of(live, new))
        (flags, n, o), batched = aligned(live, new, old)
        return Value(torch.where(flags, n, o), batched, machine_of(live, new, old))

    def keep_parts(self, live: Value, new: list[Any], old: list[Any]) -> list[Value] | None:
        return None

    def weigh(self, weight: Value, x: Any) -> Value:
        if isinstance(x, NUMBERS):
            return weight * float(x)
        # A weight that is not recorded belongs to a loop that has just looked at its state: sum up at once
        return weight * (Value(x.tensor, x.batched, EAGER) if type(x) is Value else as_value(x))

    def accumulate(self, total: Any, weight: Value, x: Any) -> Value:
        return total + self.weigh(weight, x)

    # -- numbers from elsewhere

    def number(self, x: float, like: Value) -> Value:
        tensor = like.tensor
        dtype = tensor.dtype if tensor.is_floating_point() else torch.get_default_dtype()
        return Value(torch.tensor(float(x), dtype=dtype, device=tensor.device), False, self)

    def draw(self, name: str, draws: Any, size: int | None, precision: torch.dtype, *operands: Value) -> Value:
        return self._drawn(draws.count(), draws, size, precision, *operands)

    def _drawn(self, counter: int, draws: Any, size: int | None, precision: torch.dtype, *operands: Value) -> Value:
        like = operands[0].tensor if operands else torch.empty(size or (), dtype=precision)
        batched = operands[0].batched if operands else size is not None
        numbers = draws.uniform(like.shape, like, counter)
        return Value((numbers < like).to(like.dtype) if operands else numbers, batched, self)

    def derived(self, tensor: Tensor, how: Callable[[Tensor], Tensor]) -> Tensor:
        return how(tensor)

    def adopt(self, value: Value) -> None:
        pass

    # -- looking at values

    def evaluate(self, value: Value) -> Tensor:
        tensors, value.batched = aligned(*value.parts)
        if not tensors:
            return torch.zeros(0)
        dtype = tensors[0].dtype
        for tensor in tensors[1:]:
            dtype = torch.promote_types(dtype, tensor.dtype)
        if any(t.shape != tensors[0].shape for t in tensors):
            tensors = torch.broadcast_tensors(*tensors)
        return torch.stack([t if t.dtype == dtype else t.to(dtype) for t in tensors], dim=int(value.batched))

    def bare(self, value: Value) -> Tensor:
        return value.tensor

    def parts(self, value: Value) -> list[Value]:
        return [Value(part, value.batched, self) for part in value.tensor.unbind(int(value.batched))]

    def settle(self, *nests: Any) -> None:
        pass

    def ask(self, value: Value, question: Callable[[Tensor], Any]) -> Any:
        return question(unwrapped(value.tensor).detach())

    def leave(self, mass: Value, epsilon: float, iterations: int) -> tuple[Value, Value | None, bool | None]:
        tensor = mass.tensor
        live = tensor > epsilon
        going, alive = unwrapped(live), True
        if going.device.type == "cpu" or iterations % PATIENCE == 0:
            count = int(going.sum())
            if count == going.numel() > 0:
                return mass, None, True
            alive = count > 0
        cut = Value(torch.where(live, tensor, 0.0), mass.batched, mass.machine)
        return cut, Value(live, mass.batched, EAGER), alive

    def looked(self, iterations: int) -> Any:
        return None

    def early(self, looked: Any, iterations: int) -> bool:
        return False

    def spoil(self) -> None:
        pass

    def journal_for(self, known: Any, arguments: list[Value]) -> Any:
        return None


class GuardedMachine(EagerMachine):
    """For runs that keep states apart: what an untaken branch computes, infinite or not, leaves no trace in gradients."""

    leads = True

    def binary(self, name: str, x: Any, y: Any) -> Any:
        return super().binary(name, _guarded(x), _guarded(y))

    def call(self, function: Callable, args: tuple, kwargs: dict[str, Any]) -> Any:
        return super().call(function, *pytree.tree_map(_guarded, (args, kwargs), is_leaf=_is_value))

    def adopt(self, value: Value) -> None:
        value.machine = self


def _guarded(x: Any) -> Any:
    """A value whose gradient is a number."""
    if type(x) is not Value or not x.tensor.is_floating_point():
        return x
    return Value(guarded(x.tensor), x.batched, x.machine)


EAGER = EagerMachine()
GUARDED = GuardedMachine()


def _is_value(x: Any) -> bool:
    return type(x) is Value


def as_value(x: Any) -> Value:
    """A value as it is; a tensor or a number as one that all items share."""
    return x if type(x) is Value else Value(plain(x), False, EAGER)


def soft_number(x: int | float | bool, like: Value | None) -> Value:
    """A number as a value, in the precision of another one: it is the same for all items, and decides smoothly."""
    return Value(torch.tensor(float(x)), False, EAGER) if like is None else like.machine.number(x, like)


def stacked(parts: Sequence[Any]) -> Value:
    """Parts along a new first item dimension. Numbers among them become values: parts of a tensor decide smoothly."""
    values = [part for part in parts if type(part) is Value]
    like = values[0] if values else None
    found = [soft_number(x, like) if isinstance(x, NUMBERS) else x for x in parts]
    return Value(None, any(v.batched for v in values), machine_of(*values) if values else EAGER, found)


def difference(x: Any, y: Any) -> Value:
    """x - y of two operands, at least one of them a tensor, as a number that can be relaxed."""
    x, y = as_value(x) if isinstance(x, Tensor) else x, as_value(y) if isinstance(y, Tensor) else y
    found = machine_of(x, y).binary("sub", x, y)
    if found is NotImplemented:
        other = next(z for z in (x, y) if not operand(z))
        raise TypeError(f"a smooth comparison takes tensors and numbers; this one has a {type(other).__name__}.")
    return floating(found)


def wrapped(x: Any) -> Any:
    """Results of foreign functions as values, inside whatever containers they come in."""
    if isinstance(x, Tensor):
        return Value(x, False, EAGER)
    if isinstance(x, (tuple, list, dict)):
        return pytree.tree_map(lambda leaf: Value(leaf, False, EAGER) if isinstance(leaf, Tensor) else leaf, x)
    return x


def call_tensor_function(function: Callable, args: tuple, kwargs: dict[str, Any]) -> Any:
    """A function of one item's tensors, on the machine of the values among its arguments."""
    leaves = pytree.tree_leaves((args, kwargs), is_leaf=_is_value)
    return (machine_of(*leaves) or EAGER).call(function, args, kwargs)

"""The machine that runs each operation at once, in plain torch, and the operands and functions that smooth arithmetic takes."""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor

from algonet.core.tracing import unwrapped

from ..operation import TABLE, guarded, relaxed
from .values import NUMBERS, Value, flat, functions_called, machine_of, mapped, refilled, smooth_kind

#: On a GPU a look at the mass that is left in a loop costs more than an iteration: it is taken after this many.
PATIENCE = 8
#: Python's operators: on tensors and numbers they are its own. All other operations are instructions.
_OPERATORS: dict[str, Callable[..., Any]] = {
    name: getattr(operator, name) for name in ("add", "sub", "mul", "truediv", "mod", "pow", "neg")
}
# Torch has no derivative of `//`, and none of `%` where the first operand is no tensor
_OPERATORS["floordiv"] = functools.partial(torch.div, rounding_mode="floor")
_STEPS = ("floordiv", "mod")
#: Functions that treat every number by itself: they may see the whole batch at once.
_ELEMENTWISE = functions_called(
    """
    abs acos asin atan ceil cos cosh deg2rad digamma erf erfc exp exp2 expm1 floor frac lgamma log log10 log1p log2
    neg negative reciprocal relu round rsqrt sigmoid sign sin sinh sqrt square tan tanh trunc isnan isfinite isinf
    logit sinc clone detach float double half bfloat16 clamp clamp_min clamp_max nan_to_num softplus elu gelu silu
    leaky_relu add sub subtract mul multiply div divide true_divide maximum minimum atan2 pow hypot fmod lerp where
    """,
    (torch, Tensor, torch.nn.functional),
)
_SIZES = ("dtype", "device", "requires_grad", "is_cuda")
_NUMERIC = (Tensor, *NUMBERS)


class Machine:
    """What a machine does for the program that runs on it; this one computes with torch at once.

    Operands are values, tensors that all items share, and Python numbers, unless it says values.
    """

    #: Whether operations that also have operands of another machine belong to this one.
    leads = False
    #: Whether vectors are better taken number by number than as one tensor.
    by_parts = False
    #: Whether this is one item, run as a batch of one: foreign functions then see it as it came.
    single = False
    #: What is noted for running all this again, where someone keeps it.
    trace: Any = None

    # -- computing

    def operate(self, name: str, *operands: Any) -> Any:
        """An operator of Python, or an instruction of `operation.TABLE`, by its name.

        NotImplemented where an operator has an operand that is no number.
        """
        operation = _OPERATORS.get(name)
        found = []
        for x in operands:
            if type(x) is Value:
                if x.machine.leads and not self.leads:
                    return x.machine.operate(name, *operands)
            elif not isinstance(x, _NUMERIC):
                return NotImplemented
            found.append(x if operation is None else _counted(x))
        if operation is None:
            tensors, batched = aligned(*found)
            tensor = TABLE[name].step(None, tensors, None, None, 0, 1, 2)
            return Value(_tallied(tensor, tensors[0], batched) if name == "tally" else tensor, batched, self)
        x, y = found[0], found[-1]
        # Numbers go to torch as they are
        if type(x) is Value and isinstance(y, NUMBERS):
            return Value(operation(x.tensor, y), x.batched, self)
        if type(y) is Value and isinstance(x, NUMBERS) and name not in _STEPS:
            return Value(operation(x, y.tensor), y.batched, self)
        tensors, batched = aligned(*found)
        return Value(operation(*tensors), batched, self)

    def relax(self, relax: Any, x: Value) -> Value:
        """A relaxation of a value."""
        return Value(relaxed(relax, x.tensor), x.batched, self)

    def weights(self, exit_: Any, position: Value, count: int, hard: bool) -> list[Value]:
        """P(position == k or position == k - count) for each k < count, summing to one; the ends stand for what
        is beyond. `hard`: 0 and 1, with the gradient of the others."""
        tensor = position.tensor.clamp(-count, count - 1)
        inner = tensor.unsqueeze(-1) - torch.arange(-count, count, dtype=tensor.dtype, device=tensor.device)
        shares = (1 - exit_(inner)).unflatten(-1, (2, count)).sum(-2)
        if not exit_.exact_on_integers:
            shares = shares / shares.sum(-1, keepdim=True)
        if hard:
            nearest = torch.nn.functional.one_hot(tensor.detach().round().long() % count, count).to(shares.dtype)
            shares = nearest + (shares - shares.detach())
        return [Value(share, position.batched, position.machine) for share in shares.unbind(-1)]

    def call(self, function: Callable, args: tuple, kwargs: dict[str, Any]) -> Any:
        """A function of one item's tensors, on one item or on the whole batch."""
        values = flat((args, kwargs))
        if not any(value.batched for value in values):
            args, kwargs = refilled((args, kwargs), [value.tensor for value in values])
            return wrapped(function(*args, **kwargs))
        if function in _ELEMENTWISE and all(map(operand, (*args, *kwargs.values()))):
            places = [k for k, x in enumerate(args) if smooth_kind(x)]
            tensors, batched = aligned(*(args[k] for k in places))
            by_place = dict(zip(places, tensors, strict=True))
            options = {name: x.tensor if type(x) is Value else x for name, x in kwargs.items()}
            return Value(function(*[by_place.get(k, x) for k, x in enumerate(args)], **options), batched, self)
        return self._over_batch(function, args, kwargs, values)

    def _over_batch(self, function: Callable, args: tuple, kwargs: dict[str, Any], values: list[Value]) -> Any:
        """The function over the batch, item by item as far as it can tell."""
        rest: list[Any] = []

        def one_item(*tensors: Tensor) -> tuple[Tensor, ...]:
            own_args, own_kwargs = refilled((args, kwargs), tensors)
            found = wrapped(function(*own_args, **own_kwargs))
            rest.append(found)
            # vmap wants at least one tensor back
            return (*(value.tensor for value in flat(found)), tensors[0])

        dims = tuple(0 if value.batched else None for value in values)
        results = torch.vmap(one_item, in_dims=dims, randomness="different")(*(value.tensor for value in values))
        return refilled(rest[-1], [Value(result, True, self) for result in results])

    def attribute(self, value: Value, name: str) -> Any:
        """value.name: sizes of one item, methods of tensors, properties such as .T."""
        if name == "shape":
            return value.tensor.shape[int(value.batched) :]
        if name == "ndim":
            return value.tensor.dim() - value.batched
        if name in _SIZES:
            self.mark_unrecordable()
            return getattr(value.tensor, name)
        if name.startswith("__") or not hasattr(Tensor, name):
            raise AttributeError(f"tensors have no attribute {name!r}.")
        if name in ("item", "tolist", "numpy", "backward", "data"):
            raise TypeError(
                f"`.{name}` would leave the smooth program and lose its gradient; return the tensor instead."
            )
        if name.endswith("_") and not name.endswith("__"):
            raise TypeError(
                f"`.{name}()` changes a tensor in place, which has no smooth meaning; write x = x.{name[:-1]}(...)."
            )
        if callable(getattr(Tensor, name)):
            return functools.partial(method, value, name)
        return self.call(lambda t: getattr(t, name), (value,), {})

    # -- numbers from elsewhere

    def number(self, x: float, like: Value) -> Value:
        """A Python number as a value: the same for all items, and it decides smoothly."""
        return Value(_number(float(x), like.tensor), False, self)

    def draw(self, name: str, draws: Any, size: int | None, precision: torch.dtype, *operands: Value) -> Value:
        """The instruction `uniform`, or `coin` for a probability: a random number for each item."""
        like = operands[0].tensor if operands else torch.empty(size or (), dtype=precision)
        batched = operands[0].batched if operands else size is not None
        numbers = draws.uniform(like.shape, like)
        return Value((numbers < like).to(like.dtype) if operands else numbers, batched, self)

    def derived(self, tensor: Tensor, how: Callable[[Tensor], Tensor]) -> Tensor:
        """how(tensor) for a tensor from outside."""
        child = how(tensor)
        if self.trace is not None:
            self.trace.derived(tensor, child, how)
        return child

    # -- looking at values

    def evaluate(self, value: Value) -> Tensor:
        """The tensor of a value that has none yet."""
        tensors, value.batched = aligned(*value.parts)
        if not tensors:
            return torch.zeros(0)
        dtype = functools.reduce(torch.promote_types, [tensor.dtype for tensor in tensors])
        if any(t.shape != tensors[0].shape for t in tensors):
            tensors = torch.broadcast_tensors(*tensors)
        return torch.stack([t if t.dtype == dtype else t.to(dtype) for t in tensors], dim=int(value.batched))

    def parts(self, value: Value) -> list[Value]:
        """The parts of a tensor along the item's first dimension."""
        return [Value(part, value.batched, self) for part in value.tensor.unbind(int(value.batched))]

    def settle(self, *nests: Any) -> None:
        """These will be looked at, or live on: whatever waits for being computed is better computed together."""

    def ask(self, value: Value, question: Callable[[Tensor], Any]) -> Any:
        """What Python has to know about the numbers of a value to go on; also inside `torch.vmap`."""
        return question(unwrapped(value.tensor).detach())

    def leave(self, mass: Value, epsilon: float, iterations: int) -> tuple[Value, Value | None, bool | None]:
        """The mass that stays in a loop, without shares up to epsilon; who is still there (None: everybody), to select by; and
        whether anybody is, None where that is for `ask` to find out."""
        tensor = mass.tensor
        live = tensor > epsilon
        going, alive = unwrapped(live), True
        if going.device.type == "cpu" or iterations % PATIENCE == 0:
            count = int(going.sum())
            if count == going.numel() > 0:
                return mass, None, True
            alive = count > 0
        return (
            Value(torch.where(live, tensor, 0.0), mass.batched, mass.machine),
            Value(live, mass.batched, EAGER),
            alive,
        )

    def clock(self) -> tuple[int, int]:
        """How much was recorded: where the present stretch begins, and its length."""
        return 0, 0

    def mark_unrecordable(self) -> None:
        """Something that no recording holds looks at numbers, or acts."""
        if self.trace is not None:
            self.trace.complete = False

    def unwatched(self) -> AbstractContextManager[None]:
        """Inside the block, numbers that are read from tensors do not count: the trace stays complete."""
        return nullcontext() if self.trace is None else self.trace.watch.paused()


class GuardedMachine(Machine):
    """For runs that keep states apart: what an untaken branch computes, infinite or not, leaves no trace in gradients."""

    leads = True

    def operate(self, name: str, *operands: Any) -> Any:
        return super().operate(name, *(map(_guarded, operands) if name in _OPERATORS else operands))

    def call(self, function: Callable, args: tuple, kwargs: dict[str, Any]) -> Any:
        return super().call(function, *mapped(_guarded, (args, kwargs)))


def _guarded(x: Any) -> Any:
    """A value whose gradient is a number."""
    if type(x) is not Value or not x.tensor.is_floating_point():
        return x
    return Value(guarded(x.tensor), x.batched, x.machine)


EAGER = Machine()
GUARDED = GuardedMachine()


def method(value: Value, name: str, *args: Any, **kwargs: Any) -> Any:
    """value.name(*args, **kwargs)."""
    if name == "size":
        return value.shape[args[0]] if args else value.shape
    if name in ("dim", "ndimension"):
        return value.ndim
    if name in ("numel", "nelement"):
        return value.shape.numel()
    return machine_of(value, *args).call(getattr(Tensor, name), (value, *args), kwargs)


def _tallied(tensor: Tensor, before: Tensor, batched: bool) -> Tensor:
    """A tally of single numbers: whole vectors decide element by element, and an item's coins are all of them."""
    if tensor.dim() == batched:
        return tensor
    first = before if before.dim() <= batched else before.flatten(int(batched))[..., 0]
    return (tensor - before).flatten(int(batched)).sum(int(batched)) + first


# -- operands


def _counted(x: Any) -> Any:
    """Flags as 0 and 1: Python computes with them, torch does not always."""
    if type(x) is Value:
        flags = x.row is None and x.has_tensor and x.tensor.dtype == torch.bool
        return Value(x.tensor.long(), x.batched, x.machine) if flags else x
    if type(x) is bool:
        return int(x)
    return x.long() if isinstance(x, Tensor) and x.dtype == torch.bool else x


def operand(x: Any) -> bool:
    """Whether x is something smooth arithmetic can take."""
    return type(x) is Value or isinstance(x, _NUMERIC)


def aligned(*operands: Any) -> tuple[list[Tensor], bool]:
    """The operands as tensors that broadcast by their item dimensions, and whether a batch is in front of them."""
    batched = [type(x) is Value and x.batched for x in operands]
    given = [x.tensor if type(x) is Value else x for x in operands]
    like = given[batched.index(True)] if any(batched) else next((x for x in given if isinstance(x, Tensor)), None)
    tensors = [x if isinstance(x, Tensor) else _number(x, like) for x in given]
    if all(batched) and len({t.dim() for t in tensors}) == 1:
        return tensors, True
    most = max([0, *[t.dim() - b for t, b in zip(tensors, batched, strict=True)]])
    for k, t in enumerate(tensors):
        if batched[k] and most >= t.dim():
            tensors[k] = t.reshape(t.shape[0], *[1] * (most + 1 - t.dim()), *t.shape[1:])
    return tensors, any(batched)


def _number(x: int | float | bool, like: Tensor | None) -> Tensor:
    """Python numbers take the precision and the device of the tensors beside them."""
    if like is None:
        return torch.tensor(x)
    real = isinstance(x, float) and not like.is_floating_point()
    return torch.tensor(x, dtype=torch.get_default_dtype() if real else like.dtype, device=like.device)


def floating(x: Value) -> Value:
    """x with a floating dtype: integers and flags become numbers of the default precision."""
    if x.recorded or x.tensor.is_floating_point():
        return x
    if x.tensor.is_complex():
        raise TypeError("complex numbers are neither larger nor smaller than others; compare their .abs() or .real.")
    return Value(x.tensor.to(torch.get_default_dtype()), x.batched, x.machine)


def as_value(x: Any) -> Value:
    """A value as it is; a tensor or a number as one that all items share."""
    if type(x) is Value:
        return x
    # A number has Python's own precision until it meets a tensor
    dtype = torch.float64 if isinstance(x, float) else None
    return Value(x if isinstance(x, Tensor) else torch.tensor(x, dtype=dtype), False, EAGER)


def soft_number(x: int | float | bool, like: Value | None) -> Value:
    """A number as a value, in the precision of another one: it is the same for all items, and decides smoothly."""
    return Value(torch.tensor(float(x)), False, EAGER) if like is None else like.machine.number(x, like)


def softened(x: Any, like: Any) -> Any:
    """The same with values for the numbers in it, inside whatever containers they come in.

    A smooth decision may change a variable even where nobody took that way: whether later decisions on it are smooth must
    not depend on who is in the batch.
    """
    return mapped(lambda part: soft_number(part, as_value(like)) if isinstance(part, NUMBERS) else part, x)


def stacked(parts: Sequence[Any]) -> Value:
    """Parts along a new first item dimension. Numbers among them become values: parts of a tensor decide smoothly."""
    values = [part for part in parts if type(part) is Value]
    like = values[0] if values else None
    found = [soft_number(x, like) if isinstance(x, NUMBERS) else x for x in parts]
    return Value(None, any(v.batched for v in values), machine_of(*values) if values else EAGER, found)


def difference(x: Any, y: Any, machine: Machine = EAGER) -> Value:
    """x - y of two operands, at least one of them a tensor, as a number that can be relaxed."""
    found = machine.operate("sub", x, y)
    if found is NotImplemented:
        other = next(z for z in (x, y) if not operand(z))
        raise TypeError(f"a smooth comparison takes tensors and numbers; this one has a {type(other).__name__}.")
    return floating(found)


def wrapped(x: Any) -> Any:
    """Results of foreign functions as values, inside whatever containers they come in."""
    return mapped(lambda part: Value(part, False, EAGER) if isinstance(part, Tensor) else part, x)


def call_tensor_function(function: Callable, args: tuple, kwargs: dict[str, Any]) -> Any:
    """A function of one item's tensors, on the machine of the values among its arguments."""
    return (machine_of(*flat((args, kwargs))) or EAGER).call(function, args, kwargs)

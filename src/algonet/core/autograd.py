"""One differentiable torch operator out of a forward kernel, a backward kernel and the reference that both mirror.

Eagerly, an `autograd.Function` calls the kernels (a custom operator costs twice as much per call). Under
`torch.compile` and `torch.export` the same kernels are `torch.library` operators, so the graph does not break. Either
way the second derivative re-enters the reference, forward-mode derivatives are those of the reference, and `vmap`
runs batched where the kernels batch and item by item where they do not.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from algonet.core import tracing

Forward = Callable[[list[Tensor], Any], tuple[list[Tensor], list[Tensor]]]
Backward = Callable[[list[Tensor], list[Tensor], list[Tensor], Any, list[bool]], Sequence[Tensor | None]]
Reference = Callable[[list[Tensor], Any], Sequence[Tensor]]


def _as_is(settings: Any) -> Any:
    return settings


class Operator:
    """A kernel-backed function of tensors and one settings object, with all its derivatives.

    - `forward(tensors, settings) -> (outputs, saved)`: the kernel; `saved` holds what its backward wants to reuse.
    - `backward(grads, tensors, saved, settings, needs) -> gradients`: one per tensor; `None` where `needs[i]` is false.
    - `reference(tensors, settings) -> outputs`: plain torch, differentiable to any order.
    - `fake(tensors, settings) -> (outputs, saved)`: empty tensors of the right shapes, dtypes and devices.
    - `outputs`: how many there are, or a function of (number of tensors, settings) that says so.
    - `shared`: positions of tensors that have no batch dimensions. All others (and outputs and `saved`) must accept
      any number of leading batch dimensions, the same for each.
    - `partial`: eagerly, `backward` takes `None` as the gradient of an output that none came for, instead of zeros.

    Eagerly the settings are passed as they are. Operators in a graph take text and no other kind of object: `encode` makes
    it and `decode` reads it, behind a cache. No tensor in `tensors` may be aliased by an output.
    """

    def __init__(
        self,
        name: str,
        *,
        forward: Forward,
        backward: Backward,
        reference: Reference,
        fake: Forward,
        outputs: int | Callable[[int, Any], int],
        shared: frozenset[int] = frozenset(),
        partial: bool = False,
        encode: Callable[[Any], str] = _as_is,
        decode: Callable[[str], Any] = _as_is,
    ):
        self.name = name
        self.forward = forward
        self.backward = backward
        self.reference = reference
        self.outputs = outputs
        self.shared = shared
        self.partial = partial
        self.encode, self.decode = encode, decode
        self._traced = _define_traced(self, fake)

    def __call__(self, tensors: Sequence[Tensor], settings: Any) -> tuple[Tensor, ...]:
        """The operator's outputs, differentiable in every floating tensor."""
        if tracing.plain():
            if tracing.differentiating(tensors):
                return _apply_eagerly(self, settings, *tensors)
            return tuple(self.forward(list(tensors), settings)[0])
        count = self.count(len(tensors), settings)
        if tracing.compiling() or tracing.faking():
            return tuple(self._traced(list(tensors), self.encode(settings))[:count])
        return _Forward.apply(self, settings, *tensors)[:count]

    def count(self, tensors: int, settings: Any) -> int:
        """How many outputs a call with so many tensors has."""
        return self.outputs if isinstance(self.outputs, int) else self.outputs(tensors, settings)

    def __repr__(self) -> str:
        return f"Operator({self.name})"

    def _gradients(
        self, grads: list[Tensor], tensors: list[Tensor], saved: list[Tensor], settings: Any, needs: list[bool]
    ) -> list[Tensor]:
        """The backward kernel, with a fresh empty tensor for each gradient nobody needs (operators return no `None`)."""
        found = self.backward(grads, tensors, saved, settings, needs)
        return [
            g if need and g is not None else t.new_empty(0) for g, t, need in zip(found, tensors, needs, strict=True)
        ]

    def _vjp(self, grads: list[Tensor], tensors: list[Tensor], settings: Any, needs: list[bool]) -> list[Tensor]:
        """What `backward` computes, from the reference: differentiable again."""
        moving = [i for i, need in enumerate(needs) if need]

        def outputs(*moved: Tensor) -> tuple[Tensor, ...]:
            return tuple(self.reference(_replaced(tensors, moving, moved), settings))

        _, pull = torch.func.vjp(outputs, *(tensors[i] for i in moving))
        return list(pull(tuple(grads)))

    def _jvp(self, tensors: list[Tensor], tangents: Sequence[Tensor | None], settings: Any) -> tuple[Tensor, ...]:
        moving = [i for i, tangent in enumerate(tangents) if tangent is not None]

        def outputs(*moved: Tensor) -> tuple[Tensor, ...]:
            return tuple(self.reference(_replaced(tensors, moving, moved), settings))

        return _pushforward(outputs, [tensors[i] for i in moving], [tangents[i] for i in moving])


def _pull(ctx: Any, grads: Sequence[Tensor]) -> list[Tensor | None]:
    """The gradients by the operator's tensors: by the kernel, differentiable again where that is asked for."""
    operator, all_saved = ctx.operator, ctx.saved_tensors
    tensors, saved = all_saved[: ctx.count], all_saved[ctx.count :]
    needs = list(ctx.needs_input_grad[2:])
    if torch.is_grad_enabled() or tracing.transforming():
        if any(g is None for g in grads):
            grads = [tensors[0].new_zeros(s) if g is None else g for g, s in zip(grads, ctx.shapes, strict=True)]
        found = _Backward.apply(operator, ctx.settings, needs, *grads, *tensors, *saved)
    else:
        found = operator.backward(list(grads), list(tensors), list(saved), ctx.settings, needs)
    return _only_needed(found, needs)


class _Eager(torch.autograd.Function):
    """The way of a plain call. Functions with `setup_context` inspect their signature each time, which costs as much as
    launching a kernel; without transforms the older form will do."""

    @staticmethod
    def forward(ctx: Any, operator: Operator, settings: Any, *tensors: Tensor):
        outputs, saved = operator.forward(list(tensors), settings)
        ctx.operator, ctx.settings, ctx.count = operator, settings, len(tensors)
        ctx.save_for_backward(*tensors, *saved)
        ctx.save_for_forward(*tensors)
        if operator.partial:
            ctx.set_materialize_grads(False)
            ctx.shapes = [o.shape for o in outputs]
        return tuple(outputs)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor):
        return (None, None, *_pull(ctx, grads))

    @staticmethod
    def jvp(ctx: Any, *tangents: Any):
        return ctx.operator._jvp(list(ctx.saved_tensors)[: ctx.count], tangents[2:], ctx.settings)


#: `Function.apply` looks for transforms first, which takes as long as launching a kernel; `Operator` has looked already.
_apply_eagerly = super(torch.autograd.Function, _Eager).apply


class _Forward(torch.autograd.Function):
    """The way under `torch.func` transforms; what is saved counts as an output, so that transforms see it."""

    @staticmethod
    def forward(operator: Operator, settings: Any, *tensors: Tensor):
        outputs, saved = operator.forward(list(tensors), settings)
        return (*outputs, *saved)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple, output: tuple):
        ctx.operator, ctx.settings, *tensors = inputs
        saved = output[ctx.operator.count(len(tensors), ctx.settings) :]
        ctx.count, ctx.saved_count = len(tensors), len(saved)
        ctx.mark_non_differentiable(*saved)
        ctx.save_for_backward(*tensors, *saved)
        ctx.save_for_forward(*tensors)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor):
        return (None, None, *_pull(ctx, grads[: ctx.operator.count(ctx.count, ctx.settings)]))

    @staticmethod
    def vmap(info: Any, in_dims: tuple, operator: Operator, settings: Any, *tensors: Tensor):
        def call(*items: Tensor):
            return _Forward.apply(operator, settings, *items)

        return _map_forward(operator, call, info.batch_size, in_dims[2:], tensors)

    @staticmethod
    def jvp(ctx: Any, *tangents: Any):
        moved = ctx.operator._jvp(list(ctx.saved_tensors), tangents[2:], ctx.settings)
        return (*moved, *[None] * ctx.saved_count)


class _Backward(torch.autograd.Function):
    @staticmethod
    def forward(operator: Operator, settings: Any, needs: list[bool], *tensors: Tensor):
        grads, inputs, saved = _split(operator, settings, needs, tensors)
        return tuple(operator._gradients(grads, inputs, saved, settings, needs))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple, output: tuple):
        ctx.operator, ctx.settings, ctx.needs, *tensors = inputs
        ctx.save_for_backward(*tensors)
        ctx.save_for_forward(*tensors)
        ctx.mark_non_differentiable(*(o for o, need in zip(output, ctx.needs, strict=True) if not need))

    @staticmethod
    def backward(ctx: Any, *seconds: Tensor):
        with torch.enable_grad():
            found = _second_derivative(ctx.operator, ctx.settings, ctx.needs, ctx.saved_tensors, seconds)
        return (None, None, None, *found)

    @staticmethod
    def vmap(info: Any, in_dims: tuple, operator: Operator, settings: Any, needs: list[bool], *tensors: Tensor):
        def call(*items: Tensor):
            return _Backward.apply(operator, settings, needs, *items)

        return _map_backward(operator, call, settings, needs, info.batch_size, in_dims[3:], tensors)

    @staticmethod
    def jvp(ctx: Any, *tangents: Any):
        operator, needs = ctx.operator, ctx.needs
        tensors = list(ctx.saved_tensors)
        count = operator.count(len(needs), ctx.settings) + len(needs)
        moving = [i for i, t in enumerate(tangents[3 : 3 + count]) if t is not None]

        def gradients(*moved: Tensor) -> tuple[Tensor, ...]:
            grads, inputs, _ = _split(operator, ctx.settings, needs, _replaced(tensors, moving, moved))
            return tuple(operator._vjp(grads, inputs, ctx.settings, needs))

        moved = iter(_pushforward(gradients, [tensors[i] for i in moving], [tangents[3 + i] for i in moving]))
        return tuple(next(moved) if need else None for need in needs)


def _pushforward(function: Callable, primals: Sequence[Tensor], tangents: Sequence[Any]) -> tuple[Tensor, ...]:
    """The Jacobian-vector product as the transpose of a vector-Jacobian product: torch does not nest forward modes."""
    with torch.enable_grad():
        outputs, pull = torch.func.vjp(function, *primals)
        # pull is linear, so its own transpose is the same at every point, zero among them
        _, push = torch.func.vjp(pull, tuple(torch.zeros_like(o) for o in outputs))
        return push(tuple(tangents))[0]


def _second_derivative(
    operator: Operator, settings: Any, needs: list[bool], tensors: Sequence[Tensor], seconds: Sequence[Tensor]
) -> list[Tensor | None]:
    """The vector-Jacobian product of the first derivative, for (grads, tensors, saved) in that order."""
    tensors = list(tensors)
    count = operator.count(len(needs), settings) + len(needs)
    moving = [i for i in range(count) if tensors[i].is_floating_point()]

    def gradients(*moved: Tensor) -> tuple[Tensor, ...]:
        grads, inputs, _ = _split(operator, settings, needs, _replaced(tensors, moving, moved))
        return tuple(operator._vjp(grads, inputs, settings, needs))

    _, pull = torch.func.vjp(gradients, *(tensors[i] for i in moving))
    pulled = pull(tuple(s for s, need in zip(seconds, needs, strict=True) if need))
    found: list[Tensor | None] = [None] * len(tensors)
    for i, gradient in zip(moving, pulled, strict=True):
        found[i] = gradient
    return found


#: Two threads that define one operator at a time destroy each other's.
_DEFINING = threading.Lock()


def _define_traced(operator: Operator, fake: Forward):
    """The `torch.library` twin of the operator, for graphs that must not break; its settings are text."""
    decode = operator.decode

    def forward(tensors: list[Tensor], settings: str) -> list[Tensor]:
        outputs, saved = operator.forward(tensors, decode(settings))
        return [*outputs, *saved]

    def forward_fake(tensors: list[Tensor], settings: str) -> list[Tensor]:
        outputs, saved = fake(tensors, decode(settings))
        return [*outputs, *saved]

    def backward(tensors: list[Tensor], settings: str, needs: list[bool]) -> list[Tensor]:
        chosen = decode(settings)
        grads, inputs, saved = _split(operator, chosen, needs, tensors)
        return operator._gradients(grads, inputs, saved, chosen, needs)

    def backward_fake(tensors: list[Tensor], settings: str, needs: list[bool]) -> list[Tensor]:
        _, inputs, _ = _split(operator, decode(settings), needs, tensors)
        return [
            torch.empty_like(t, memory_format=torch.contiguous_format) if need else t.new_empty(0)
            for t, need in zip(inputs, needs, strict=True)
        ]

    def setup(ctx: Any, inputs: tuple, output: list[Tensor]) -> None:
        tensors, ctx.settings = inputs
        ctx.needs = [t.requires_grad for t in tensors]
        ctx.outputs = operator.count(len(tensors), decode(ctx.settings))
        ctx.save_for_backward(*tensors, *output[ctx.outputs :])

    def pull(ctx: Any, grads: list[Tensor]):
        found = second([*grads[: ctx.outputs], *ctx.saved_tensors], ctx.settings, ctx.needs)
        return _only_needed(found, ctx.needs), None

    def second_setup(ctx: Any, inputs: tuple, output: list[Tensor]) -> None:
        tensors, ctx.settings, ctx.needs = inputs
        ctx.save_for_backward(*tensors)

    def second_pull(ctx: Any, seconds: list[Tensor]):
        with torch.enable_grad():
            found = _second_derivative(operator, decode(ctx.settings), ctx.needs, ctx.saved_tensors, seconds)
        return found, None, None

    def first_vmap(info: Any, in_dims: tuple, tensors: list[Tensor], settings: str):
        return _map_forward(operator, lambda *ts: first(list(ts), settings), info.batch_size, in_dims[0], tensors)

    def second_vmap(info: Any, in_dims: tuple, tensors: list[Tensor], settings: str, needs: list[bool]):
        def call(*items: Tensor):
            return second(list(items), settings, needs)

        return _map_backward(operator, call, decode(settings), needs, info.batch_size, in_dims[0], tensors)

    with _DEFINING:
        # The schemas in words: not every release reads them off the annotations
        first = torch.library.custom_op(
            f"algonet::{operator.name}", forward, mutates_args=(), schema="(Tensor[] tensors, str settings) -> Tensor[]"
        )
        second = torch.library.custom_op(
            f"algonet::{operator.name}_backward",
            backward,
            mutates_args=(),
            schema="(Tensor[] tensors, str settings, bool[] needs) -> Tensor[]",
        )
        first.register_fake(forward_fake)
        second.register_fake(backward_fake)
        first.register_autograd(pull, setup_context=setup)
        second.register_autograd(second_pull, setup_context=second_setup)
        first.register_vmap(first_vmap)
        second.register_vmap(second_vmap)
    return first


def _map_forward(operator: Operator, call: Callable, size: int, dims: Sequence[int | None], tensors: Sequence[Tensor]):
    """The `vmap` rule of the operator: batched, or item by item where a shared tensor differs between items."""
    if any(d is not None for i, d in enumerate(dims) if i in operator.shared):
        return _looped(size, dims, tensors, call)
    results = call(*_batched(size, dims, tensors, operator.shared))
    return type(results)(results), type(results)([0] * len(results))


def _map_backward(
    operator: Operator,
    call: Callable,
    settings: Any,
    needs: list[bool],
    size: int,
    dims: Sequence[int | None],
    tensors: Sequence[Tensor],
):
    """The `vmap` rule of the first derivative. A shared tensor's gradient is wanted per item, so it goes item by item."""
    outputs = operator.count(len(needs), settings)
    shared = frozenset(outputs + i for i in operator.shared)
    per_item = any(needs[i] for i in operator.shared if i < len(needs))
    if per_item or any(d is not None for i, d in enumerate(dims) if i in shared):
        return _looped(size, dims, tensors, call)
    results = call(*_batched(size, dims, tensors, shared))
    return type(results)(results), type(results)([0 if need else None for need in needs])


def _split(operator: Operator, settings: Any, needs: list[bool], tensors: Sequence[Tensor]):
    """(grads, inputs, saved) from the flat list that travels through the backward operator."""
    first = operator.count(len(needs), settings)
    last = first + len(needs)
    return list(tensors[:first]), list(tensors[first:last]), list(tensors[last:])


def _replaced(tensors: Sequence[Tensor], where: list[int], new: Sequence[Tensor]) -> list[Tensor]:
    replaced = list(tensors)
    for i, tensor in zip(where, new, strict=True):
        replaced[i] = tensor
    return replaced


def _only_needed(gradients: Sequence[Tensor], needs: Sequence[bool]) -> list[Tensor | None]:
    return [g if need else None for g, need in zip(gradients, needs, strict=True)]


def _batched(size: int, dims: Sequence[int | None], tensors: Sequence[Tensor], shared: frozenset[int]) -> list[Tensor]:
    """Tensors with their `vmap` dimension in front; those without one are expanded, shared ones left alone."""
    batched = []
    for i, (tensor, dim) in enumerate(zip(tensors, dims, strict=True)):
        if dim is not None:
            batched.append(tensor.movedim(dim, 0))
        else:
            batched.append(tensor if i in shared else tensor.expand(size, *tensor.shape))
    return batched


def _looped(size: int, dims: Sequence[int | None], tensors: Sequence[Tensor], call: Callable):
    """`vmap` item by item, for what the kernels do not batch."""
    items = [
        call(*(t if d is None else t.select(d, i) for t, d in zip(tensors, dims, strict=True))) for i in range(size)
    ]
    kind = type(items[0])
    return kind(torch.stack(column) for column in zip(*items, strict=True)), kind([0] * len(items[0]))

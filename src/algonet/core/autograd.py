"""One differentiable torch operator out of a forward kernel, a backward kernel and the reference that both mirror.

Eagerly, an `autograd.Function` calls the kernels (a custom operator costs twice as much per call). Under
`torch.compile` and `torch.export` the same kernels are `torch.library` operators, so the graph does not break. Either
way the second derivative re-enters the reference, forward mode runs the reference, and `vmap`
runs batched where the kernels batch and item by item where they do not.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor

from algonet.core import codec, tracing
from algonet.core.identity import PLANS, Signature, specs

Tensors = Sequence[Tensor]
Reference = Callable[[list[Tensor], Any], Sequence[Tensor]]


class Plan:
    """How a backend runs the calls of one signature. Subclasses say what they save and run both passes."""

    #: Whether backward takes `None` as the gradient of an output that nobody used (zeros otherwise).
    partial: ClassVar[bool] = False

    def __init__(self, signature: Signature):
        self.settings = signature.settings

    @classmethod
    def saves(cls, signature: Signature) -> Sequence[tuple[Sequence[int], torch.dtype]]:
        """Shape and precision of each tensor that `forward` saves; fake tensors ask, whose sizes may be symbols."""
        return ()

    def forward(self, tensors: Sequence[Tensor]) -> tuple[list[Tensor], list[Tensor]]:
        """The outputs, and what backward wants to reuse."""
        raise NotImplementedError

    def backward(
        self, grads: Sequence[Any], tensors: Sequence[Tensor], saved: Sequence[Tensor], needs: Sequence[bool]
    ) -> Sequence[Tensor | None]:
        """One gradient per tensor; `None` where `needs` is false."""
        raise NotImplementedError


def plan_from(
    forward: Callable[..., Any],
    backward: Callable[..., Any] | None,
    saved: Callable[..., Any] | None = None,
    partial: bool = False,
) -> type[Plan]:
    """The plan of kernels that keep nothing between calls, as functions that take the settings.

    `forward(tensors, settings)`, `backward(grads, tensors, saved, settings, needs)` (`None` for what has no gradient), and
    `saved(tensors, settings)`: empty tensors like what forward saves.
    """

    def saves(cls: type[Plan], signature: Signature) -> Sequence[tuple[Sequence[int], torch.dtype]]:
        like = [torch.empty(spec.shape, dtype=spec.dtype, device="meta") for spec in signature.tensors]
        return () if saved is None else [(t.shape, t.dtype) for t in saved(like, signature.settings)]

    def run_forward(self: Plan, tensors: Tensors) -> Any:
        return forward(list(tensors), self.settings)

    def run_backward(self: Plan, grads: Tensors, tensors: Tensors, saved: Tensors, needs: Sequence[bool]) -> Any:
        if backward is None:
            return [None] * len(tensors)
        return backward(list(grads), list(tensors), list(saved), self.settings, list(needs))

    members = {"partial": partial, "saves": classmethod(saves), "forward": run_forward, "backward": run_backward}
    return type("FunctionsPlan", (Plan,), members)


class Operator:
    """A kernel-backed function of tensors and one settings object, with all its derivatives.

    - `load() -> type[Plan]`: the kernels; `Plan(signature)` runs the calls of one signature.
    - `reference(tensors, settings) -> outputs`: plain torch, differentiable to any order.
    - `fake(tensors, settings) -> outputs`: empty tensors of the right shapes, precisions and devices.
    - `outputs`: how many there are, or a function of (number of tensors, settings) that says so.
    - `shared`: positions of tensors that have no batch dimensions. All others (and outputs, and what is saved) must accept
      any number of leading batch dimensions, the same for each.

    Eagerly the settings are passed as they are. Operators in a graph take text and no other kind of object, which `codec`
    writes and reads. No tensor in `tensors` may be aliased by an output.
    """

    def __init__(
        self,
        name: str,
        *,
        load: Callable[[], type[Plan]],
        reference: Reference,
        fake: Reference,
        outputs: int | Callable[[int, Any], int],
        shared: frozenset[int] = frozenset(),
    ):
        self.name, self.load, self.reference, self.fake = name, load, reference, fake
        self.outputs, self.shared = outputs, shared
        self._traced = _define_traced(self)

    def __call__(self, tensors: Tensors, settings: Any) -> tuple[Tensor, ...]:
        """The operator's outputs, differentiable in every floating tensor."""
        return self.bound(tensors, settings)(tensors)

    def bound(self, tensors: Tensors, settings: Any) -> Bound:
        """The operator for calls like this one."""
        if not tracing.plain():
            return Bound(self, settings, (True,) * len(tensors))
        grad = torch.is_grad_enabled()
        found = Bound(self, settings, tuple([grad and t.requires_grad for t in tensors]))
        found.plan = found.plan_for(tensors)
        return found

    def count(self, tensors: int, settings: Any) -> int:
        """How many outputs a call with so many tensors has."""
        return self.outputs if isinstance(self.outputs, int) else self.outputs(tensors, settings)

    def __repr__(self) -> str:
        return f"Operator({self.name})"


class Bound:
    """An operator with its settings and who needs gradients; for plain calls, which are all alike, also with its plan."""

    __slots__ = ("needs", "operator", "plan", "settings")

    def __init__(self, operator: Operator, settings: Any, needs: tuple[bool, ...]):
        self.operator, self.settings, self.needs = operator, settings, needs
        self.plan: Plan | None = None

    def __call__(self, tensors: Tensors) -> tuple[Tensor, ...]:
        plan = None if tracing.compiling() or tracing.interpreter() is not None or tracing.modes() else self.plan
        if plan is not None and tracing.forward_level() < 0:
            return _apply_eagerly(self, *tensors) if True in self.needs else tuple(plan.forward(tensors)[0])
        operator, settings = self.operator, self.settings
        count = operator.count(len(tensors), settings)
        if tracing.compiling() or tracing.faking():
            return tuple(operator._traced(list(tensors), codec.encode(settings))[:count])
        if tracing.forward_level() >= 0:
            return tuple(operator.reference(list(tensors), settings))
        return _Forward.apply(Bound(operator, settings, (True,) * len(tensors)), *tensors)[:count]

    @property
    def count(self) -> int:
        return self.operator.count(len(self.needs), self.settings)

    def plan_for(self, tensors: Tensors) -> Plan:
        """The plan for these tensors, which under `vmap` have one dimension more."""
        signature = Signature(self.settings, specs(tensors), self.needs)
        if tracing.faking():
            return self.operator.load()(signature)
        key = (self.operator, signature)
        found = PLANS.find(key)
        return PLANS.put(key, self.operator.load()(signature)) if found is None else found

    def empty(self, tensors: Tensors) -> list[Tensor]:
        """Empty tensors like the outputs and what is saved."""
        saved = self.operator.load().saves(Signature(self.settings, specs(tensors), self.needs))
        like = tensors[0]
        return [
            *self.operator.fake(list(tensors), self.settings),
            *[like.new_empty(shape, dtype=dtype) for shape, dtype in saved],
        ]

    def gradients(self, needs: list[bool], tensors: Tensors) -> list[Tensor]:
        """The backward kernel, with a fresh empty tensor for each gradient nobody needs (operators return no `None`), and zeros
        by what has none."""
        grads, inputs, saved = self.split(tensors)
        found = self.plan_for(inputs).backward(grads, inputs, saved, needs)
        return [
            t.new_empty(0) if not need else t.new_zeros(t.shape) if g is None else g
            for g, t, need in zip(found, inputs, needs, strict=True)
        ]

    def split(self, tensors: Tensors) -> tuple[list[Tensor], list[Tensor], list[Tensor]]:
        """(grads, inputs, saved) from the flat list that travels through the backward operator."""
        first, last = self.count, self.count + len(self.needs)
        return list(tensors[:first]), list(tensors[first:last]), list(tensors[last:])

    def first_derivative(self, tensors: Tensors, needs: Sequence[bool], moving: list[int]) -> Callable[..., Any]:
        """What `backward` computes, from the reference, as a function of some of (grads, inputs): differentiable again."""
        inside = [i for i, need in enumerate(needs) if need]

        def gradients(*moved: Tensor) -> tuple[Tensor, ...]:
            grads, inputs, _ = self.split(_replaced(tensors, moving, moved))
            reference = lambda *ts: tuple(self.operator.reference(_replaced(inputs, inside, ts), self.settings))  # noqa: E731
            return torch.func.vjp(reference, *(inputs[i] for i in inside))[1](tuple(grads))

        return gradients


def _pull(ctx: Any, grads: Sequence[Any]) -> list[Tensor | None]:
    """The gradients by the operator's tensors: by the kernel, differentiable again where that is asked for."""
    bound, tensors, saved = ctx.bound, ctx.saved_tensors[: ctx.count], ctx.saved_tensors[ctx.count :]
    needs = list(ctx.needs_input_grad[1:])
    if torch.is_grad_enabled() or tracing.transforming():
        if any(g is None for g in grads):
            grads = [tensors[0].new_zeros(s) if g is None else g for g, s in zip(grads, ctx.shapes, strict=True)]
        found = _Backward.apply(bound, needs, *grads, *tensors, *saved)
    else:
        found = (bound.plan or bound.plan_for(tensors)).backward(grads, tensors, saved, needs)
    return _only_needed(found, needs)


class _Eager(torch.autograd.Function):
    """The way of a plain call. Functions with `setup_context` inspect their signature each time, which costs as much as
    launching a kernel; without transforms the older form will do."""

    @staticmethod
    def forward(ctx: Any, bound: Bound, *tensors: Tensor):
        plan: Any = bound.plan
        outputs, saved = plan.forward(tensors)
        ctx.bound, ctx.count = bound, len(tensors)
        ctx.save_for_backward(*tensors, *saved)
        if plan.partial:
            ctx.set_materialize_grads(False)
            ctx.shapes = [o.shape for o in outputs]
        return tuple(outputs)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor):
        return (None, *_pull(ctx, grads))


class _Forward(torch.autograd.Function):
    """The way under `torch.func` transforms; what is saved counts as an output, so that transforms see it."""

    @staticmethod
    def forward(bound: Bound, *tensors: Tensor):
        outputs, saved = bound.plan_for(tensors).forward(tensors)
        return (*outputs, *saved)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple, output: tuple):
        ctx.bound, *tensors = inputs
        saved = output[ctx.bound.count :]
        ctx.count = len(tensors)
        ctx.mark_non_differentiable(*saved)
        ctx.save_for_backward(*tensors, *saved)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor):
        return (None, *_pull(ctx, grads[: ctx.bound.count]))

    @staticmethod
    def vmap(info: Any, in_dims: tuple, bound: Bound, *tensors: Tensor):
        return _map(bound, lambda *ts: _Forward.apply(bound, *ts), info.batch_size, in_dims[1:], tensors)


class _Backward(torch.autograd.Function):
    @staticmethod
    def forward(bound: Bound, needs: list[bool], *tensors: Tensor):
        return tuple(bound.gradients(needs, tensors))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple, output: tuple):
        ctx.bound, ctx.needs, *tensors = inputs
        ctx.save_for_backward(*tensors)
        ctx.mark_non_differentiable(*(o for o, need in zip(output, ctx.needs, strict=True) if not need))

    @staticmethod
    def backward(ctx: Any, *seconds: Tensor):
        with torch.enable_grad():
            return (None, None, *_second_derivative(ctx.bound, ctx.needs, ctx.saved_tensors, seconds))

    @staticmethod
    def vmap(info: Any, in_dims: tuple, bound: Bound, needs: list[bool], *tensors: Tensor):
        call = lambda *ts: _Backward.apply(bound, needs, *ts)  # noqa: E731
        return _map(bound, call, info.batch_size, in_dims[2:], tensors, needs)


def _apply_first(*arguments: Any) -> Any:
    global _apply_eagerly
    _apply_eagerly = tracing.untransformed_apply(_Eager)
    return _apply_eagerly(*arguments)


#: `Function.apply` looks for transforms first, which takes as long as launching a kernel; `Bound` has looked already.
_apply_eagerly: Callable[..., Any] = _apply_first


def _second_derivative(bound: Bound, needs: list[bool], tensors: Tensors, seconds: Tensors) -> list[Tensor | None]:
    """The vector-Jacobian product of the first derivative, for (grads, tensors, saved) in that order."""
    count = bound.count + len(needs)
    moving = [i for i in range(count) if tensors[i].is_floating_point()]
    pull = torch.func.vjp(bound.first_derivative(tensors, needs, moving), *(tensors[i] for i in moving))[1]
    pulled = pull(tuple(s for s, need in zip(seconds, needs, strict=True) if need))
    found: list[Tensor | None] = [None] * len(tensors)
    for i, gradient in zip(moving, pulled, strict=True):
        found[i] = gradient
    return found


#: Two threads that define one operator at a time destroy each other's.
_DEFINING = threading.Lock()


def _define_traced(operator: Operator):
    """The `torch.library` twin of the operator, for graphs that must not break; its settings are text."""

    def bound(inputs: Sequence[Any], settings: str) -> Bound:
        return Bound(operator, codec.decode(settings), (True,) * len(inputs))

    def forward(tensors: list[Tensor], settings: str) -> list[Tensor]:
        outputs, saved = bound(tensors, settings).plan_for(tensors).forward(tensors)
        return [*outputs, *saved]

    def backward(tensors: list[Tensor], settings: str, needs: list[bool]) -> list[Tensor]:
        return bound(needs, settings).gradients(needs, tensors)

    def backward_fake(tensors: list[Tensor], settings: str, needs: list[bool]) -> list[Tensor]:
        _, inputs, _ = bound(needs, settings).split(tensors)
        return [
            torch.empty_like(t, memory_format=torch.contiguous_format) if need else t.new_empty(0)
            for t, need in zip(inputs, needs, strict=True)
        ]

    def setup(ctx: Any, inputs: tuple, output: list[Tensor]) -> None:
        tensors, ctx.settings = inputs
        ctx.needs = [t.requires_grad for t in tensors]
        ctx.outputs = bound(tensors, ctx.settings).count
        ctx.save_for_backward(*tensors, *output[ctx.outputs :])

    def pull(ctx: Any, grads: list[Tensor]):
        found = second([*grads[: ctx.outputs], *ctx.saved_tensors], ctx.settings, ctx.needs)
        return _only_needed(found, ctx.needs), None

    def second_setup(ctx: Any, inputs: tuple, output: list[Tensor]) -> None:
        tensors, ctx.settings, ctx.needs = inputs
        ctx.save_for_backward(*tensors)

    def second_pull(ctx: Any, seconds: list[Tensor]):
        with torch.enable_grad():
            found = _second_derivative(bound(ctx.needs, ctx.settings), ctx.needs, ctx.saved_tensors, seconds)
        return found, None, None

    def first_vmap(info: Any, in_dims: tuple, tensors: list[Tensor], settings: str):
        call = lambda *ts: first(list(ts), settings)  # noqa: E731
        return _map(bound(tensors, settings), call, info.batch_size, in_dims[0], tensors)

    def second_vmap(info: Any, in_dims: tuple, tensors: list[Tensor], settings: str, needs: list[bool]):
        call = lambda *ts: second(list(ts), settings, needs)  # noqa: E731
        return _map(bound(needs, settings), call, info.batch_size, in_dims[0], tensors, needs)

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
        first.register_fake(lambda tensors, settings: bound(tensors, settings).empty(tensors))
        second.register_fake(backward_fake)
        first.register_autograd(pull, setup_context=setup)
        second.register_autograd(second_pull, setup_context=second_setup)
        first.register_vmap(first_vmap)
        second.register_vmap(second_vmap)
    return first


def _map(
    bound: Bound,
    call: Callable,
    size: int,
    dims: Sequence[int | None],
    tensors: Sequence[Tensor],
    needs: Sequence[bool] | None = None,
):
    """The `vmap` rule of the operator or, with `needs`, of its first derivative: batched, or item by item where a shared tensor
    differs between items or its gradient is wanted, which then does."""
    first = 0 if needs is None else bound.count
    shared = frozenset(first + i for i in bound.operator.shared)
    per_item = needs is not None and any(needs[i] for i in bound.operator.shared if i < len(needs))
    if per_item or any(d is not None for i, d in enumerate(dims) if i in shared):
        return _looped(size, dims, tensors, call)
    results = call(*_batched(size, dims, tensors, shared))
    kind = type(results)
    return kind(results), kind([0 if need else None for need in needs or [True] * len(results)])


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

"""Sensitivity and activation of a layer, the two measures of relevance the paper names."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from algonet.nn.steps import gated_steps
from algonet.relax.modules import evaluating

from .layers import Data, Layer, batches, changed_output, find_layer, gate_shape, never_ran, per_feature

Loss = Callable[[Any, Any], Tensor]
#: Features that a notebook shows, those that count most.
SHOWN = 12


@dataclass(frozen=True, eq=False)
class Sensitivity:
    """`magnitude` (features,): root mean square over the items of the gradient in their own gate; `signed` (features,):
    its mean, the gradient by one gate shared by all items; `total`: the whole layer's magnitude, all features gated at
    once; `share`: total over the sum of the totals of this layer and those it was compared with (1 without any);
    `labels`: with `inside`, what each of the gated steps is, in the place of features."""

    magnitude: Tensor
    signed: Tensor
    total: float
    share: float
    labels: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"sensitivity {self.total:.3g} ({self.share:.0%} of the compared layers), {len(self.magnitude)} features"


@dataclass(frozen=True, eq=False)
class Activation:
    """Mean, standard deviation and root mean square (features,) of what a layer gives out, over items and positions."""

    mean: Tensor
    std: Tensor
    rms: Tensor

    def __str__(self) -> str:
        return f"activation rms {float(self.rms.square().mean().sqrt()):.3g}, {len(self.rms)} features"


def sensitivity(
    model: nn.Module,
    layer: Layer,
    data: Data,
    loss: Loss,
    *,
    against: Sequence[Layer] = (),
    dim: int = -1,
    inside: bool = False,
) -> Sensitivity:
    """How strongly the loss reacts to the layer's output: the gradient by weights, constant one, multiplied onto it.

    With a gate g = 1 per item i and feature f, output y -> g y, it is dL_i/dg_if = sum over positions of y dL_i/dy. The
    mean of this over items is what one shared gate would see, and it vanishes where training has converged if trained
    weights follow (scaling y is scaling them); the root mean square over items does not, and is the measure of use.
    A layer whose output the rest ignores has exactly 0.

    `inside=True` puts the gates inside the algorithm instead of behind it: one for each comparator of a `SoftSort`, point of a
    `SoftMedian`, stencil of `FiniteDifferences`, assignment of a `WhileProgram` or of a function under `@smooth`, scaling what
    that step does (`Trainable` says how). `labels` name them. It runs the algorithm step by step.

    `layer` is a module of `model` or its dotted name; for `Insert`, `Shortcut` and `Residual` the algorithm alone is gated.
    `data` gives (input, target) batches, or is one such pair; `loss(output, target)` is a mean or a sum over the items, or
    one value per item. `against` names layers to compare with; `dim` is the dimension of the features. The model is put into
    evaluation mode meanwhile and left as it was. Cost: one forward and backward pass per batch.

    >>> model = nn.Sequential(nn.Linear(2, 2, bias=False), nn.Linear(2, 1, bias=False))
    >>> with torch.no_grad():
    ...     _ = model[0].weight.copy_(torch.eye(2)), model[1].weight.copy_(torch.tensor([[1.0, 0.0]]))
    >>> x = torch.tensor([[3.0, 4.0]])
    >>> sensitivity(model, "0", (x, x), lambda output, target: output.mean()).magnitude
    tensor([3., 0.])
    """
    where = "sensitivity"
    if not callable(loss):
        raise TypeError(f"{where}: `loss` must be a function loss(output, target), got {loss!r}.")
    layers = [find_layer(where, model, named) for named in (layer, *against)]
    if len(set(map(id, layers))) != len(layers):
        raise ValueError(f"{where}: `against` names the measured layer, or one layer twice.")
    if inside and against:
        raise ValueError(f"{where}: steps inside a layer are compared with each other; leave out `against`.")
    labels: list[str] | None = [] if inside else None
    # Of each layer over all items: how many, the gradients, their squares, and the squares of all features' together
    sums: list[list[Any]] = [[0, 0, 0, 0] for _ in layers]
    with evaluating(model):
        for inputs, targets in batches(where, data):
            found = _gate_gradients(model, layers, inputs, targets, loss, dim, labels)
            for held, gradient in zip(sums, found, strict=True):
                g = gradient.double()
                for k, more in enumerate((len(g), g.sum(0), g.square().sum(0), float(g.sum(-1).square().sum()))):
                    held[k] = held[k] + more
    if not all(items for items, *_ in sums):
        raise ValueError(f"{where}: `data` is empty.")
    totals = [(whole / items) ** 0.5 for items, _, _, whole in sums]
    items, first, second, _ = sums[0]
    share = totals[0] / sum(totals) if sum(totals) != 0 else 0.0
    magnitude, signed = (second / items).sqrt().float(), (first / items).float()
    return Sensitivity(magnitude, signed, totals[0], share, tuple(labels or ()))


def _gate_gradients(
    model: nn.Module, layers: list[nn.Module], inputs: Any, targets: Any, loss: Loss, dim: int, labels: list[str] | None
) -> list[Tensor]:
    """Per layer, the gradient (items, features) of each item's loss by its gates; with `labels`, by gates at its steps."""
    gates: list[list[Tensor]] = [[] for _ in layers]

    def at_output(index: int) -> Callable[[Tensor], Tensor]:
        def change(output: Tensor) -> Tensor:
            if not gates[index]:
                gates[index].append(output.new_ones(gate_shape(output, dim)).requires_grad_())
            return output * gates[index][0]

        return change

    def at_steps(batch: tuple[int, ...], named: list[str], like: Tensor) -> Tensor:
        assert labels is not None
        labels[:] = named
        gates[0].append(like.new_ones(*batch, len(named)).requires_grad_())
        return gates[0][-1]

    with torch.enable_grad(), ExitStack() as stack:
        for index, layer in enumerate(layers):
            inside = labels is not None
            stack.enter_context(
                gated_steps("sensitivity", layer, at_steps) if inside else changed_output(layer, at_output(index))
            )
        output = model(inputs)
        for layer, made in zip(layers, gates, strict=True):
            if not made:
                raise never_ran("sensitivity", layer)
        value = _summed(loss, output, targets, len(gates[0][0]))
        leaves = [gate for made in gates for gate in made]
        found = torch.autograd.grad(value, leaves, allow_unused=True, materialize_grads=True)
    if labels is None:
        return [per_feature(g.detach(), dim) for g in found]
    # Several calls of one layer, and what is between batch and steps, belong to the item
    return [torch.stack([g.detach().reshape(len(g), -1, g.shape[-1]).sum(1) for g in found]).sum(0)]


def _summed(loss: Loss, output: Any, targets: Any, items: int) -> Tensor:
    """The sum of the items' losses, so that each has its own gradient: of their mean an item has 1/items.

    With each item twice an item's gradient stays if the loss is a sum, and is half of it if the loss is a mean."""
    value = loss(output, targets)
    if not value.requires_grad:
        raise ValueError("sensitivity: the loss does not depend on any compared layer differentiably.")
    if value.dim():
        return value.sum()
    once, twice = (_output_gradient(loss, output, targets, times) for times in (1, 2))
    if torch.isclose(twice, once, rtol=1e-2, atol=0.0):
        return value
    if torch.isclose(2 * twice, once, rtol=1e-2, atol=0.0) or once.isnan():  # NaN, also the mean over no items
        return value * items
    raise ValueError(
        "sensitivity: the loss is neither a sum nor a mean over the items, so that an item has no loss of its own; "
        "return one value per item."
    )


def _output_gradient(loss: Loss, output: Any, targets: Any, times: int) -> Tensor:
    """The norm of the gradient by the output of a batch in which each item is there so many times, over the first."""
    leaves, structure = pytree.tree_flatten((output, targets))
    items = next(len(leaf) for leaf in leaves if isinstance(leaf, Tensor) and leaf.dim())
    leaves = [
        torch.cat([leaf.detach()] * times) if isinstance(leaf, Tensor) and leaf.dim() and len(leaf) == items else leaf
        for leaf in leaves
    ]
    output, targets = pytree.tree_unflatten(leaves, structure)
    inputs = [t.requires_grad_() for t in pytree.tree_leaves(output) if isinstance(t, Tensor) and t.is_floating_point()]
    found = torch.autograd.grad(loss(output, targets), inputs, allow_unused=True, materialize_grads=True)
    return torch.stack([g[:items].double().norm() for g in found]).norm()


@torch.no_grad()
def activation(model: nn.Module, layer: Layer, data: Data, *, dim: int = -1) -> Activation:
    """What a layer gives out on `data`: mean, standard deviation and root mean square of each feature.

    A feature with standard deviation 0 tells the rest of the network nothing. Activation says what is computed,
    `sensitivity` what is used: read them together. Arguments as in `sensitivity`; targets may be anything.

    >>> x = torch.tensor([[1.0, 5.0], [3.0, 5.0]])
    >>> activation(nn.Sequential(nn.Identity()), "0", (x, x)).std
    tensor([1., 0.])
    """
    where = "activation"
    measured = find_layer(where, model, layer)
    sums: list[Tensor] = []
    count = 0

    def listen(output: Tensor) -> Tensor:
        nonlocal count, sums
        gate_shape(output, dim)
        wide = output.double()
        positions = output.numel() // max(1, per_feature(output, dim).numel())
        count += len(output) * positions
        new = [per_feature(wide, dim).sum(0), per_feature(wide.square(), dim).sum(0)]
        sums = [a + b for a, b in zip(sums, new, strict=True)] if sums else new
        return output

    with evaluating(model), changed_output(measured, listen):
        for inputs, _ in batches(where, data):
            model(inputs)
    if not count:
        raise never_ran(where, measured)
    mean, square = (s / count for s in sums)
    std = (square - mean.square()).clamp_min(0).sqrt()
    return Activation(mean.float(), std.float(), square.sqrt().float())

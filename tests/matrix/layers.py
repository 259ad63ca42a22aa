"""Rows and columns of the second matrix: every layer, and what people do with layers."""

from __future__ import annotations

import copy
import io
import pickle
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from algonet.ifs import IFS
from algonet.nn import FiniteDifferences, Insert, Residual, SmoothDepth, SmoothGraph, WeightedSoftmax
from algonet.relax import Logistic, hardened
from algonet.render import Camera, FilteredCoverage, SmoothRenderer, icosphere
from algonet.sorting import SoftArgsort, SoftMedian, SoftQuantile, SoftRank, SoftSort, SoftTopK, SoftTopKMask
from algonet.speech import SmoothSynthesizer
from algonet.while_lang import WhileProgram

BALL, CAMERA = icosphere(0).to(torch.float64), Camera.look_at((0.3, 0.2, 3.0))
SOFT = Logistic(2.0)


def _normal(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


@dataclass(frozen=True)
class Layer:
    """A row: how to make the layer, what goes in (the batch first), how it is called, and why a cell cannot be filled."""

    name: str
    make: Callable[[], nn.Module]
    inputs: tuple[Tensor, ...]
    run: Callable[..., Any] = lambda module, *inputs: module(*inputs)
    why: dict[str, str] = field(default_factory=dict)

    def fresh(self) -> nn.Module:
        torch.manual_seed(0)
        return self.make().double()

    def __call__(self, module: nn.Module, *inputs: Tensor) -> Tensor:
        """The first result; the others are made along with it."""
        out = self.run(module, *inputs)
        return out if isinstance(out, Tensor) else out[0]


def _rendered(module: nn.Module, vertices: Tensor) -> Tensor:
    return module(BALL.replace(vertices=vertices), CAMERA.to(torch.float64)).rgb


def _spoken(module: SmoothSynthesizer, loudness: Tensor) -> Tensor:
    score = module.score("a s")
    parts = [t.expand(*loudness.shape[:-1], *t.shape) for t in score[:3]]
    return module(*parts, loudness, length=60).waveform


NO_INPUT = "has no input that a batch could come in"
LAYERS: list[Layer] = [
    Layer("SoftSort", lambda: SoftSort(SOFT), (_normal(3, 5),), lambda m, x: m(x)[0]),
    Layer("SoftArgsort", lambda: SoftArgsort(SOFT), (_normal(3, 5),)),
    Layer("SoftRank", lambda: SoftRank(SOFT), (_normal(3, 5),)),
    Layer("SoftTopK", lambda: SoftTopK(2, SOFT), (_normal(3, 5),), lambda m, x: m(x)[0]),
    Layer("SoftQuantile", lambda: SoftQuantile(0.3, SOFT), (_normal(3, 5),)),
    Layer("SoftMedian", lambda: SoftMedian(SOFT), (_normal(3, 5),)),
    Layer("SoftTopKMask", lambda: SoftTopKMask(2, SOFT), (_normal(3, 5),)),
    Layer("WeightedSoftmax", lambda: WeightedSoftmax(2.0), (_normal(3, 4), _normal(3, 4).exp())),
    Layer("FiniteDifferences", FiniteDifferences, (_normal(3, 6),)),
    Layer("WhileProgram", lambda: WhileProgram.library("multiply"), (_normal(3).exp(), _normal(3).exp())),
    Layer("WhileProgram (trainable)", lambda: WhileProgram.library("add", trainable=True), (_normal(3).exp(),) * 2),
    Layer("Insert", lambda: Insert(WhileProgram.library("multiply")), (_normal(3, 2).exp(),)),
    Layer("Residual", lambda: Residual(torch.neg, nn.Linear(3, 3), share=0.25), (_normal(3, 4),)),
    Layer("SmoothDepth", lambda: SmoothDepth([nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4)]), (_normal(3, 4),)),
    Layer("SmoothGraph", lambda: SmoothGraph({"linear": nn.Linear(4, 4), "tanh": torch.tanh}), (_normal(3, 4),)),
    Layer(
        "SmoothRenderer",
        lambda: SmoothRenderer((3, 4), FilteredCoverage(), epsilon=1e-12),
        (BALL.vertices + 0.01 * _normal(2, 12, 3),),
        _rendered,
    ),
    Layer(
        "IFS",
        lambda: IFS.preset("sierpinski", points=64),
        (),
        lambda m: m((5, 6)),
        dict.fromkeys(("jacrev", "vmap", "double backward"), NO_INPUT),
    ),
    Layer(
        "SmoothSynthesizer",
        lambda: SmoothSynthesizer(1000, "a s", harmonics=2, bands=2),
        (0.5 + _normal(2, 2).sigmoid(),),
        _spoken,
    ),
]


def _same(found: Tensor, wanted: Tensor) -> None:
    torch.testing.assert_close(found, wanted, rtol=1e-9, atol=1e-10)


def _jacrev(layer: Layer) -> None:
    module, first = layer.fresh(), layer.inputs[0]
    rest = layer.inputs[1:]
    found = torch.func.jacrev(lambda x: layer(module, x, *rest))(first)
    leaf = first.clone().requires_grad_()
    out = layer(module, leaf, *rest)
    row = out.numel() // 2
    _same(found.flatten(0, out.dim() - 1)[row], torch.autograd.grad(out.flatten()[row], leaf)[0])


def _functional_call(layer: Layer) -> None:
    module = layer.fresh()
    own = {name: t * 1.01 for name, t in module.named_parameters()}
    own |= {name: t * 1.01 for name, t in module.named_buffers() if t.is_floating_point()}
    other = layer.fresh()
    with torch.no_grad():
        for name, t in [*other.named_parameters(), *other.named_buffers()]:
            if name in own:
                t.mul_(1.01)

    class Called(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = module

        def forward(self, *inputs: Tensor) -> Tensor:
            return layer(self.layer, *inputs)

    called = torch.func.functional_call(Called(), {f"layer.{n}": t for n, t in own.items()}, layer.inputs)
    _same(called, layer(other, *layer.inputs))


def _copied(layer: Layer, duplicate: Callable[[nn.Module], nn.Module]) -> None:
    """After use, also under a transform, a duplicate gives the same and stands on its own feet."""
    module = layer.fresh()
    before = layer(module, *layer.inputs).detach()
    if layer.inputs:
        torch.func.grad(lambda x: layer(module, x, *layer.inputs[1:]).sum())(layer.inputs[0])
    twin = duplicate(module)
    _same(layer(twin, *layer.inputs).detach(), before)
    with torch.no_grad():
        for t in twin.parameters():
            t.mul_(1.5)
    _same(layer(module, *layer.inputs).detach(), before)


def _state_dict(layer: Layer) -> None:
    module, other = layer.fresh(), layer.fresh()
    with torch.no_grad():
        for t in [*module.parameters(), *(b for b in module.buffers() if b.is_floating_point())]:
            t.mul_(1.01)
    file = io.BytesIO()
    torch.save(module.state_dict(), file)
    file.seek(0)
    other.load_state_dict(torch.load(file, weights_only=True), strict=True)
    _same(layer(other, *layer.inputs), layer(module, *layer.inputs))


def _vmap(layer: Layer) -> None:
    module = layer.fresh()
    mapped = torch.vmap(lambda *inputs: layer(module, *inputs))(*layer.inputs)
    _same(mapped, torch.stack([layer(module, *(t[i] for t in layer.inputs)) for i in range(len(layer.inputs[0]))]))


def _compiled(layer: Layer) -> None:
    module = layer.fresh()
    torch._dynamo.reset()
    compiled = torch.compile(lambda *inputs: layer(module, *inputs), backend="aot_eager")
    _same(compiled(*layer.inputs), layer(module, *layer.inputs))


def _double_backward(layer: Layer) -> None:
    module = layer.fresh()
    leaves = tuple(t.clone().requires_grad_() for t in layer.inputs)
    assert torch.autograd.gradgradcheck(lambda *inputs: layer(module, *inputs), leaves, fast_mode=True)


def _hardened(layer: Layer) -> None:
    module = layer.fresh()
    before = layer(module, *layer.inputs)
    with hardened(module):
        assert layer(module, *layer.inputs).isfinite().all()
    _same(layer(module, *layer.inputs), before)


def _steps(layer: Layer) -> None:
    """Three steps of an optimiser on all that can learn: everything stays finite."""
    module = layer.fresh()
    leaves = [t.clone().requires_grad_() for t in layer.inputs]
    optimizer = torch.optim.Adam([*module.parameters(), *leaves], lr=1e-3)
    for _ in range(3):
        optimizer.zero_grad()
        layer(module, *leaves).square().mean().backward()
        optimizer.step()
    assert all(t.isfinite().all() for t in [*module.parameters(), *leaves])


#: Column -> check, which raises where it fails.
LAYER_TRANSFORMS: dict[str, Callable[[Layer], None]] = {
    "optimiser": _steps,
    "double backward": _double_backward,
    "jacrev": _jacrev,
    "vmap": _vmap,
    "torch.compile": _compiled,
    "functional_call": _functional_call,
    "deepcopy": lambda layer: _copied(layer, copy.deepcopy),
    "pickle": lambda layer: _copied(layer, lambda module: pickle.loads(pickle.dumps(module))),
    "state_dict": _state_dict,
    "hardened": _hardened,
}

"""CONTRIBUTING's recipes, done here: a family of ours is one class, and nothing else has to know of it."""

from __future__ import annotations

import sys
import types
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np
import pytest
import torch
from torch import Tensor

from algonet.core import backends
from algonet.core.autograd import plan_from
from algonet.core.operation import OPERATIONS, Operation
from algonet.ran.problems.mesh import RenderInverse
from algonet.relax import Exit, Logistic, Sech, Sigmoid
from algonet.render import Camera, Coverage, SmoothRenderer, fit_camera, fit_mesh, icosphere
from algonet.render.coverage import twice_area
from algonet.smooth_python import smooth
from algonet.sorting import Network, OddEven, soft_rank, soft_sort
from algonet.while_lang import WhileProgram, load_program

BACKENDS = ("reference", "numba")


@dataclass(frozen=True, eq=False)
class Algebraic(Sigmoid):
    """1/2 + z / (2 sqrt(1 + z^2)): the recipe "add a relaxation"."""

    def _value(self, z: Tensor) -> Tensor:
        return 0.5 + 0.5 * z / torch.sqrt(1 + z * z)

    @property
    def scalar(self) -> str:
        return """
            root = 1.0 / sqrt(1.0 + z * z)
            value = 0.5 + 0.5 * z * root
            slope = 0.5 * root * root * root
        """


@dataclass(frozen=True, eq=False)
class Wide(Exit):
    """z^2 / (width + z^2), with a field of its own."""

    width: float = 1.0
    exact_on_integers: ClassVar[bool] = False

    def _value(self, z: Tensor) -> Tensor:
        return z * z / (self.width + z * z)

    @property
    def scalar(self) -> str:
        return f"""
            part = 1.0 / ({self.width!r} + z * z)
            value = z * z * part
            slope = 2.0 * z * {self.width!r} * part * part
        """


@dataclass(frozen=True)
class Shell(Network):
    """Pairs at a distance first, then neighbours: any network at all, without a kernel of its own."""

    gap: int = 2

    def depth(self, n: int) -> int:
        return n + 2

    def pairs(self, n: int, layer: int):
        gap = self.gap if layer < 2 else 1
        first = np.array([i for i in range(n - gap) if (i // gap) % 2 == layer % 2], dtype=np.int64)
        return first, first + gap, first + gap + 1

    def layer_need(self, layer: int) -> int:
        return 0


def agree(function) -> Tensor:
    """Values and gradients of `function(x, backend)` on all backends, which must be the same; returns the values."""
    found = []
    for backend in BACKENDS:
        x = torch.tensor([[0.3, 1.9, -0.7, 1.2], [2.0, 0.4, 0.1, 0.9]], dtype=torch.float64, requires_grad=True)
        values = function(x, backend)
        (gradient,) = torch.autograd.grad(values.square().sum(), x)
        found.append((values.detach(), gradient))
    for values, gradient in found[1:]:
        torch.testing.assert_close(values, found[0][0])
        torch.testing.assert_close(gradient, found[0][1])
    return found[0][0]


def test_a_sigmoid_is_one_class():
    agree(lambda x, backend: soft_sort(x, relax=Algebraic(3.0), backend=backend).values)
    agree(lambda x, backend: soft_rank(x, relax=Algebraic(torch.tensor(2.0)), backend=backend))

    @smooth(relax=Algebraic(2.0))
    def clipped(x):
        y = 0.0
        for i in range(40):
            if x > i * 0.1:
                y = y + 0.1
        return y

    assert clipped(torch.tensor(1.0)).isfinite()


def test_an_exit_is_one_class():
    def run(exit: Exit):
        def function(x, backend):
            program = WhileProgram(load_program("subtract"), exit=exit, backend=backend)
            return program(x[0].abs(), x[1].abs())

        return agree(function)

    assert not torch.allclose(run(Wide(0.5)), run(Wide(2.0))), "a field that is not the softness counts"
    run(Sech(1.5))


def test_a_network_is_one_class():
    near, far = (agree(lambda x, b, gap=gap: soft_sort(x, method=Shell(gap), backend=b).values) for gap in (1, 2))
    assert not torch.allclose(near, far)

    class Shifted(OddEven):
        def pairs(self, n, layer):
            return super().pairs(n, layer + 1)

    assert not torch.allclose(
        agree(lambda x, backend: soft_sort(x, method=Shifted(), backend=backend).values),
        agree(lambda x, backend: soft_sort(x, method=OddEven(), backend=backend).values),
    )


@dataclass(frozen=True, eq=False)
class Disc(Coverage):
    """A sigmoid of the distance to the face's centroid, `radius` pixels away: a coverage of one's own."""

    sigmoid: Sigmoid = field(default_factory=Logistic)
    radius: float = 2.0
    relaxation: ClassVar[str] = "sigmoid"

    def seen(self, corners: Tensor, pixels: Tensor, softness: Tensor):
        away = pixels - corners.mean(1, keepdim=True)
        distance = (away.square().sum(-1) + 1e-6).sqrt()
        covered = twice_area(corners).sign()[:, None] * self.with_softness(softness)(self.radius - distance)
        return covered, torch.zeros_like(away)


def test_a_coverage_is_one_class():
    """The reference takes it, in the renderer, the fits and the RAN's inverse; kernels say why they do not."""
    # Within the frame, blur and all: fits take what goes on beyond it as unknown
    ball, camera = icosphere(0, 0.4), Camera.look_at((0.0, 0.0, 3.0))
    small, large = (SmoothRenderer((16, 16), Disc(radius=r))(ball, camera).silhouette for r in (0.5, 2.0))
    assert large.sum() > small.sum() + 1, "a field that is not the softness counts"
    numba = SmoothRenderer((16, 16), Disc(), backend="numba")
    with pytest.raises(ValueError, match="Disc runs in the reference only"):
        numba(ball, camera)
    options = {"steps": 2, "scales": (2.0, 1.0), "coverage": Disc()}
    cameras = Camera.look_at(torch.tensor([[0.0, 0.0, 3.0]]))
    fit = fit_mesh(large[None].detach(), cameras, ball, **options)
    assert (fit.mesh.vertices - ball.vertices).abs().max() > 1e-4
    start = Camera.look_at((0.0, 0.5, 3.0))
    assert (fit_camera(ball, large.detach(), start, **options).camera.matrix - start.matrix).abs().max() > 1e-4
    inverse = RenderInverse(ball.faces, 16, 1, Disc(Logistic(2.0)))
    assert set(inverse.state_dict()) >= {"steepness", "depth_steepness"}
    assert inverse(ball.vertices[None]).max() > 0.5


@dataclass(frozen=True)
class AddSettings:
    amount: float


def test_a_backend_is_one_entry_and_its_kernels(monkeypatch):
    """The entry would stand in core/backends.py; an operation names the kernel module, and all else follows."""
    fpga = backends.Backend("fpga", "FPGA", "torch", "buy one", "cpu", "the CPU", (torch.float64,))
    monkeypatch.setattr(backends, "KERNEL_BACKENDS", {"fpga": fpga, **backends.KERNEL_BACKENDS})
    monkeypatch.setattr(backends, "BACKENDS", ("fpga", *backends.BACKENDS))
    monkeypatch.setattr(backends, "_INSTALLED", {"torch": True, **backends._INSTALLED})
    kernels = types.ModuleType("fpga_kernels")
    kernels.__dict__.update(
        AddAmountPlan=plan_from(
            lambda tensors, settings: ([tensors[0] + settings.amount], []),
            lambda grads, tensors, saved, settings, needs: [grads[0].clone()],
        )
    )
    monkeypatch.setitem(sys.modules, "fpga_kernels", kernels)
    operation = Operation(
        "add_amount",
        settings=AddSettings,
        inputs=("x",),
        reference=lambda tensors, settings: [tensors[0] + settings.amount],
        kernels={"fpga": "fpga_kernels"},
    )
    monkeypatch.delitem(OPERATIONS, "add_amount")
    x = torch.ones(3, dtype=torch.float64, requires_grad=True)
    assert operation.choose([x], AddSettings(2.0), "auto") == "fpga"
    (value,) = torch.compile(operation, fullgraph=True, backend="aot_eager")([x], AddSettings(2.0), "fpga")
    assert value.tolist() == [3.0, 3.0, 3.0]
    with pytest.raises(ValueError, match=r"FPGA kernels compute in float64, got torch\.float32"):
        operation([x.detach().float()], AddSettings(2.0), "fpga")

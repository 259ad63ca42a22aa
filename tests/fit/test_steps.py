"""Large steps: the solve, its derivative, and what a step does, against dense linear algebra."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from algonet.fit.large_steps import SmoothingSystem
from algonet.render import LargeSteps, Mesh, icosphere, smooth_over_mesh, torus


def _dense(mesh: Mesh, stiffness: float) -> Tensor:
    """I + stiffness L, written out from the edges."""
    a, b = mesh.edges().unbind(-1)
    adjacency = torch.zeros(len(mesh.vertices), len(mesh.vertices), dtype=torch.float64)
    adjacency[a, b] = adjacency[b, a] = 1.0
    return torch.eye(len(adjacency), dtype=torch.float64) + stiffness * (torch.diag(adjacency.sum(1)) - adjacency)


@pytest.mark.parametrize("stiffness", [0.0, 1.0, 19.0, 400.0])
@pytest.mark.parametrize("mesh", [icosphere(2), torus(segments=(12, 6))], ids=["ball", "ring"])
def test_smoothing_solves_the_system(mesh: Mesh, stiffness: float) -> None:
    values = torch.randn(len(mesh.vertices), 2, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    solved = torch.linalg.solve(_dense(mesh, stiffness), values)
    assert torch.allclose(smooth_over_mesh(values, mesh.faces, stiffness), solved, atol=1e-10)
    single = smooth_over_mesh(values.float(), mesh.faces, stiffness)
    assert torch.allclose(single.double(), solved, atol=1e-5)


def test_smoothing_has_both_derivatives() -> None:
    faces = torch.tensor([[0, 1, 2], [0, 3, 1], [1, 3, 2], [0, 4, 3]])
    values = torch.randn(5, 1, dtype=torch.float64, generator=torch.Generator().manual_seed(1), requires_grad=True)
    torch.autograd.gradcheck(lambda v: smooth_over_mesh(v, faces, 3.0), (values,))
    torch.autograd.gradgradcheck(lambda v: smooth_over_mesh(v, faces, 3.0).square(), (values,))


def test_sparse_and_bagged_products_agree() -> None:
    """GPUs multiply by a CSR matrix, other devices sum over neighbours."""
    ring = torus(segments=(12, 6))
    system = SmoothingSystem(ring.faces, ring.vertices, 19.0)
    term, before = ring.vertices, ring.vertices.flip(0)
    assert torch.allclose(system._recur_sparse(term, before), system._recur_bagged(term, before), atol=1e-5)


def test_steps_are_uniform_adam_on_u() -> None:
    """The state never forms u = M v; its vertices must move as if Adam with one second moment had run on u."""
    # Of radius 1, so that the learning rate is in units of the vertices
    mesh = icosphere(1).to(torch.float64)
    mesh = mesh.replace(vertices=mesh.vertices / mesh.vertices.abs().max())
    options = LargeSteps(stiffness=5.0, learning_rate=0.05, betas=(0.9, 0.999))
    state, matrix = options.start(mesh), _dense(mesh, 5.0)
    target = mesh.vertices * torch.tensor([1.5, 0.7, 1.0], dtype=torch.float64) + 0.2
    u = (matrix @ mesh.vertices).requires_grad_()
    first, second = torch.zeros_like(u), 0.0
    for step in range(1, 13):
        (state.vertices - target).pow(4).sum().backward()
        state.step()
        (torch.linalg.solve(matrix, u) - target).pow(4).sum().backward()
        assert u.grad is not None
        first = 0.9 * first + 0.1 * u.grad
        second = 0.999 * second + 0.001 * float(u.grad.square().max())
        with torch.no_grad():
            u -= 0.05 * first / (1 - 0.9**step) / (second / (1 - 0.999**step)) ** 0.5
        u.grad = None
    expected = torch.linalg.solve(matrix, u.detach())
    assert (expected - mesh.vertices).norm(dim=-1).max() > 0.2
    # The direction's solve is accurate to 1e-4
    assert torch.allclose(state.vertices.detach(), expected, atol=2e-4)


def test_a_single_gradient_moves_a_region() -> None:
    ball = icosphere(3)
    for stiffness, least in ((0.0, 1), (19.0, 60)):
        state = LargeSteps(stiffness=stiffness).start(ball)
        state.vertices[0, 1].backward()
        state.step()
        moved = (state.vertices.detach() - ball.vertices).norm(dim=-1)
        assert int((moved > 0.02 * moved.max()).sum()) >= least
        assert int(moved.argmax()) == 0


def test_zero_gradients_stay_finite() -> None:
    state = LargeSteps().start(icosphere(1))
    (state.vertices * 0.0).sum().backward()
    state.step()
    assert torch.equal(state.vertices.detach(), icosphere(1).vertices)


def test_state_goes_on_from_a_copy() -> None:
    ball = icosphere(1)
    one, two = LargeSteps().start(ball), LargeSteps().start(ball)
    for state in (one, one, one):
        state.vertices.pow(4).sum().backward()
        state.step()
    two.load_state_dict(one.state_dict())
    for state in (one, two):
        state.vertices.pow(4).sum().backward()
        state.step()
    assert torch.equal(one.vertices, two.vertices)


def test_errors() -> None:
    with pytest.raises(ValueError, match="not negative, got -1"):
        LargeSteps(stiffness=-1.0)
    with pytest.raises(ValueError, match="`learning_rate` must be positive"):
        LargeSteps(learning_rate=0.0)
    with pytest.raises(ValueError, match="two numbers"):
        LargeSteps(betas=(0.9, 1.0))
    with pytest.raises(ValueError, match=r"\(2, 42, 3\); one mesh at a time"):
        LargeSteps().start(icosphere(1).replace(vertices=torch.zeros(2, 42, 3)))
    with pytest.raises(ValueError, match="call backward"):
        LargeSteps().start(icosphere(0)).step()
    with pytest.raises(ValueError, match=r"\(V, C\)"):
        smooth_over_mesh(torch.zeros(12), icosphere(0).faces)

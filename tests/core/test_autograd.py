"""A kernel-backed operator has every derivative and every transform, eagerly and traced."""

from __future__ import annotations

import pytest
import torch
from torch.func import grad, hessian, jacfwd, jacrev, jvp, vmap

from algonet.core.autograd import Operator, Plan
from algonet.core.codec import encode


class CubePlan(Plan):
    @classmethod
    def saves(cls, signature):
        return [(signature.tensors[0].shape, signature.tensors[0].dtype)]

    def forward(self, tensors):
        x, s, _ = tensors
        return [x**3 * s, x.sin()], [x * x]

    def backward(self, grads, tensors, saved, needs):
        (g, h), (x, s, _), (square,) = grads, tensors, saved
        return [g * 3 * square * s + h * x.cos() if needs[0] else None, (g * x**3).sum() if needs[1] else None, None]


def _reference(tensors, settings):
    x, s, _ = tensors
    return [x**3 * s, x.sin()]


def _fake(tensors, settings):
    x = tensors[0]
    return [torch.empty_like(x), torch.empty_like(x)]


def _operator(name, plan):
    """x carries batches, the scale s is shared, and an integer tensor rides along as indices do."""
    return Operator(name, load=lambda: plan, reference=_reference, fake=_fake, outputs=2, shared=frozenset({1, 2}))


CUBE = _operator("test_cube", CubePlan)
INDEX = torch.arange(2)


def cube(x, s):
    return CUBE([x, s, INDEX], "")


@pytest.fixture
def xs():
    return torch.randn(3, 4, dtype=torch.float64), torch.tensor(2.0, dtype=torch.float64)


def test_first_and_second_derivatives_both_modes(xs):
    x, s = (t.requires_grad_() for t in xs)
    assert torch.autograd.gradcheck(cube, (x, s), check_forward_ad=True, check_batched_grad=True)
    assert torch.autograd.gradgradcheck(cube, (x, s))
    assert torch.autograd.gradgradcheck(cube, (x, s.detach()))


def test_third_derivative(xs):
    x, s = xs
    third = grad(grad(grad(lambda t: cube(t, s)[0].sum())))(x[0, :1].sum().reshape(()))
    torch.testing.assert_close(third, 6 * s)


def test_forward_over_reverse(xs):
    x, s = xs
    expected = torch.diag(6 * x[0] * s - x[0].sin())
    total = lambda t: sum(o.sum() for o in cube(t, s))  # noqa: E731
    torch.testing.assert_close(hessian(total)(x[0]), expected)
    torch.testing.assert_close(jacrev(jacrev(total))(x[0]), expected)
    torch.testing.assert_close(jacfwd(jacfwd(total))(x[0]), expected)


def test_jvp(xs):
    x, s = xs
    _, (tangent, _) = jvp(lambda t: cube(t, s), (x,), (torch.ones_like(x),))
    torch.testing.assert_close(tangent, 3 * x**2 * s)


@pytest.mark.parametrize("compiled", [False, True])
def test_vmap_batched_and_item_by_item(xs, compiled):
    x, s = xs
    several = torch.arange(3.0, dtype=torch.float64)
    maybe = (lambda f: torch.compile(f, fullgraph=True, backend="aot_eager")) if compiled else (lambda f: f)
    torch.testing.assert_close(maybe(vmap(cube, (0, None)))(x, s)[0], x**3 * s)
    torch.testing.assert_close(maybe(vmap(cube, (0, 0)))(x, several)[0], x**3 * several[:, None])


def test_per_item_gradients(xs):
    x, s = xs
    score = lambda x, s: cube(x, s)[0].sum()  # noqa: E731
    torch.testing.assert_close(vmap(grad(score), (0, None))(x, s), 3 * x**2 * s)
    torch.testing.assert_close(vmap(grad(score, argnums=1), (0, None))(x, s), (x**3).sum(-1))
    torch.testing.assert_close(vmap(grad(score), (1, None))(x, s), (3 * x**2 * s).T)


def test_compile_and_export_without_a_graph_break(xs):
    x, s = (t.requires_grad_() for t in xs)
    first, second = torch.compile(cube, fullgraph=True, backend="aot_eager")(x, s)
    (first.sum() + second.sum()).backward()
    torch.testing.assert_close(x.grad, (3 * x**2 * s + x.cos()).detach())
    torch.testing.assert_close(s.grad, (x**3).sum().detach())

    class Layer(torch.nn.Module):
        def forward(self, x, s):
            return cube(x, s)[0]

    exported = torch.export.export(Layer(), (x.detach(), s.detach()))
    torch.testing.assert_close(exported.module()(x.detach(), s.detach()), (x**3 * s).detach())


def test_registered_operator_passes_torchs_own_check(xs):
    x, s = (t.requires_grad_() for t in xs)
    torch.library.opcheck(CUBE._traced, ([x, s, INDEX], encode("")))


def test_partial_operators_are_told_which_outputs_nobody_used(xs):
    came = []

    class Partial(CubePlan):
        partial = True

        def backward(self, grads, tensors, saved, needs):
            came.append([g is not None for g in grads])
            return super().backward([torch.zeros(()) if g is None else g for g in grads], tensors, saved, needs)

    operator = _operator("test_partial_cube", Partial)
    x, s = (t.requires_grad_() for t in xs)
    (slope,) = torch.autograd.grad(operator([x, s, INDEX], "")[0].sum(), x)
    torch.testing.assert_close(slope, 3 * x.detach() ** 2 * s.detach())
    assert came == [[True, False]]
    # Again differentiable, where the kernel is not asked
    assert torch.autograd.gradgradcheck(lambda x, s: operator([x, s, INDEX], "")[1], (x, s))

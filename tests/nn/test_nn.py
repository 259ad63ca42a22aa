"""The forward AlgoNet: insertion styles and thin layers."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from algonet.nn import (
    FiniteDifferences,
    Insert,
    Residual,
    Shortcut,
    WeightedSoftmax,
    WeightedSoftmin,
    finite_differences,
)
from algonet.relax import BumpExit, Logistic, Tent
from algonet.smooth_python import smooth
from algonet.while_lang import WhileProgram
from helpers.contract import CHECKS, Case, normal, uniform


def _weighted(batch, dtype, generator):
    (x,), (w,) = normal(4)(batch, dtype, generator), uniform(4, low=0.2)(batch, dtype, generator)
    return x, w


@smooth(relax=Logistic(2.0))
def ordered(a, b):
    low, high = a, b
    if a > b:
        low, high = b, a
    return low, high


@smooth(relax=Logistic(2.0))
def clipped(a, low=-1.0):
    return low if a < low else a


MULTIPLY = WhileProgram.library("multiply")
DIVIDE = WhileProgram.library("divide", BumpExit(), outputs=("x0", "x3"))

#: Inputs for which the program halts: larger ones are cut off, with a warning.
SMALL = [(torch.tensor([row]),) for row in ([0.0, 0.0], [0.0, 3.0], [3.0, 0.0], [1e-30, 1e-30], [9.0, 8.5])]

CASES = [
    *(
        Case(f"finite_differences-{pad}-{center}", FiniteDifferences((-2, -1), center, pad), normal(3, 4))
        for pad in (None, "zero", "edge", "wrap")
        for center in (False, True)
    ),
    Case("WeightedSoftmax", WeightedSoftmax(2.0), _weighted),
    Case("WeightedSoftmin", WeightedSoftmin(2.0), _weighted),
    Case("gradient", FiniteDifferences((-2, -1), pad="edge", stack=-3), normal(3, 4)),
    Case("Insert", Insert(torch.tanh), normal(4)),
    Case("Insert a WHILE-program", Insert(MULTIPLY), uniform(2, low=0.5, high=2.5), extremes=SMALL),
    Case("Residual of a smooth function", Residual(ordered, nn.Tanh(), 0.5), normal(4)),
    Case("Shortcut", Shortcut(torch.tanh, 0.5), normal(4)),
    Case("Residual", Residual(torch.tanh, nn.Tanh(), 0.25, dim=-2), normal(4, 2)),
]


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_contract(case, check):
    check(case)


def test_differences_of_a_linear_ramp_are_its_slope():
    ramp = 2 * torch.arange(5.0)[:, None] + 3 * torch.arange(6.0)
    torch.testing.assert_close(finite_differences(ramp, 0), torch.full((4, 6), 2.0))
    torch.testing.assert_close(finite_differences(ramp, 1), torch.full((5, 5), 3.0))
    torch.testing.assert_close(finite_differences(ramp, (0, 1)), torch.zeros(4, 5))


@pytest.mark.parametrize("pad", ["zero", "edge", "wrap"])
def test_padding_keeps_the_size(pad):
    x = torch.randn(2, 5)
    y = finite_differences(x, pad=pad)
    assert y.shape == x.shape
    torch.testing.assert_close(y[:, :-1], finite_differences(x))


def test_padding_values():
    x = torch.tensor([1.0, 4.0, 9.0])
    assert finite_differences(x, pad="zero")[-1] == 0
    assert finite_differences(x, pad="edge")[-1] == 5
    assert finite_differences(x, pad="wrap").sum() == 0


def test_center_shifts_the_mean_to_zero():
    y = finite_differences(torch.randn(3, 6), center=True)
    torch.testing.assert_close(y.mean(-1), torch.zeros(3), atol=1e-6, rtol=0)
    x, centred = torch.tensor([1.0, 4.0, 9.0]), {"zero": [-1.0, 1, 0], "edge": [-1.0, 1, 1], "wrap": [3.0, 5, -8]}
    for pad, expected in centred.items():
        assert finite_differences(x, center=True, pad=pad).tolist() == expected, pad
    image = torch.tensor([[0.0, 0, 0], [0, 1, 4], [0, 2, 8]])  # mixed differences [[1, 3], [1, 3]]
    padded = finite_differences(image, (0, 1), center=True, pad="zero")
    assert padded.tolist() == [[-1.0, 1, 0], [-1, 1, 0], [0, 0, 0]]


def test_shortcut_gives_the_algorithm_the_last_share():
    x = torch.arange(8.0).reshape(1, 8)
    y = Shortcut(torch.neg, share=0.25)(x)
    torch.testing.assert_close(y, torch.tensor([[0.0, 1, 2, 3, 4, 5, -6, -7]]))


def test_residual_trains_its_body_and_carries_it_in_the_state():
    layer = Residual(torch.tanh, nn.Linear(3, 3), share=0.25)
    layer(torch.randn(2, 4)).sum().backward()
    assert layer.body.weight.grad.abs().sum() > 0
    assert set(layer.state_dict()) == {"body.weight", "body.bias"}


def test_algorithm_module_is_a_submodule_and_tuples_give_their_first():
    assert len(list(Insert(nn.Linear(2, 2)).parameters())) == 2
    torch.testing.assert_close(Insert(torch.sort)(torch.tensor([2.0, 1.0])), torch.tensor([1.0, 2.0]))


def test_feature_dimension_of_images():
    x = torch.randn(2, 6, 5, 5)
    y = Shortcut(lambda part: part.flip(-1), share=0.5, dim=1)(x)
    torch.testing.assert_close(y[:, :3], x[:, :3])
    torch.testing.assert_close(y[:, 3:], x[:, 3:].flip(-1))


def test_state_dict_and_device_moves():
    layer = WeightedSoftmax(3.0).to(torch.float64)
    assert layer.state_dict()["steepness"] == 3.0
    assert layer(torch.randn(2, 3, dtype=torch.float64)).dtype == torch.float64


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Insert(3), r"Insert: `algorithm` must be a module or a function, got 3"),
        (lambda: Shortcut(torch.neg, 1.0), r"Shortcut: `share` must lie strictly between 0 and 1, got 1.0"),
        (lambda: Shortcut(torch.neg, 0.1)(torch.ones(2, 4)), r"a share of 0.1 of 4 features gives the algorithm 0"),
        (
            lambda: Shortcut(torch.neg, dim=5)(torch.ones(2, 4)),
            r"feature dim 5 is out of range for x of shape \(2, 4\)",
        ),
        (lambda: Shortcut(lambda x: x[:1])(torch.ones(2, 4)), r"result \(1, 2\) does not fit beside .* \(2, 2\)"),
        (lambda: Insert(lambda x: 3)(torch.ones(1)), r"the algorithm returned int, wanted a tensor"),
        (lambda: Residual(torch.neg, torch.neg), r"Residual: `body` must be a module"),
        (lambda: finite_differences(torch.ones(3), pad="same"), r"unknown pad 'same'; choose one of None, 'zero'"),
        (lambda: finite_differences(torch.ones(3, 1)), r"dim -1 needs at least 2 items to subtract, .* \(3, 1\)"),
        (lambda: finite_differences(torch.ones(3, 3), 4), r"dim 4 is out of range"),
        (lambda: finite_differences(torch.ones(3, 3), (1, -1)), r"names a dimension twice: \(1, -1\)"),
    ],
)
def test_errors_say_what_was_wanted(make, message):
    with pytest.raises((TypeError, ValueError), match=message):
        make()


def test_features_are_a_programs_variables():
    x = torch.tensor([[3.0, 4.0], [2.0, 5.0]])
    product = Insert(WhileProgram.library("multiply", Tent()))(x)
    torch.testing.assert_close(product, torch.tensor([[12.0], [10.0]]))
    torch.testing.assert_close(Insert(MULTIPLY)(x)[:, 0], MULTIPLY(x1=x[:, 0], x2=x[:, 1]))
    assert Insert(MULTIPLY)(x[0]).shape == (1,)
    assert Insert(MULTIPLY)(x.expand(3, 2, 2)).shape == (3, 2, 1)


def test_each_output_of_a_program_is_a_feature():
    x = torch.tensor([[17.0, 5.0], [9.0, 3.0]])
    torch.testing.assert_close(Insert(DIVIDE)(x), torch.tensor([[3.0, 2.0], [3.0, 0.0]]))
    beside = Shortcut(DIVIDE, share=0.5, dim=1)(torch.cat([x, x], 1)[..., None].expand(2, 4, 6))
    torch.testing.assert_close(beside[:, 2:, 5], torch.tensor([[3.0, 2.0], [3.0, 0.0]]))
    torch.testing.assert_close(beside[:, :2, 5], x)


def test_features_are_a_smooth_functions_arguments():
    x = torch.randn(2, 3, 4)
    y = Shortcut(ordered)(x)
    assert y.shape == x.shape
    low, high = ordered(x[0, 0, 2], x[0, 0, 3])
    torch.testing.assert_close(y[0, 0, 2:], torch.stack([low, high]))
    torch.testing.assert_close(Insert(ordered)(x[0, 0, :2]), torch.stack(ordered(*x[0, 0, :2])))


def test_one_argument_gets_all_features_and_defaults_may_be_left():
    x = torch.randn(5, 4)

    @smooth
    def doubled(v):
        return v * 2

    torch.testing.assert_close(Insert(doubled)(x), 2 * x)
    torch.testing.assert_close(Insert(clipped)(x[:, :1]), clipped(x[:, 0], batched=True)[:, None])


def test_programs_train_what_is_before_and_inside_them():
    network = nn.Sequential(nn.Linear(3, 2), nn.Softplus(), Insert(WhileProgram.library("multiply", trainable=True)))
    network(torch.rand(4, 3)).sum().backward()
    assert network[0].weight.grad.abs().sum() > 0
    assert network[2].algorithm.weight.grad.abs().sum() > 0
    assert "2.algorithm.steepness" in network.state_dict()


@pytest.mark.parametrize(
    ("algorithm", "features", "message"),
    [
        (MULTIPLY, 3, r"Insert: 3 features do not fit the program, which has the 2 inputs x1, x2"),
        (MULTIPLY, 1, r"1 features do not fit the program, which has the 2 inputs x1, x2, in this order"),
        (WhileProgram(MULTIPLY.program), 2, r"has the 3 inputs x1, x2, x3, in this order. Say which"),
        (WhileProgram(MULTIPLY.program), 4, r"has the 3 inputs x1, x2, x3"),
        (ordered, 3, r"3 features do not fit ordered\(a, b\): features are its arguments in order"),
        (ordered, 1, r"1 features do not fit ordered\(a, b\)"),
    ],
)
def test_features_that_do_not_fit_are_refused(algorithm, features, message):
    with pytest.raises(ValueError, match=message):
        Insert(algorithm)(torch.ones(2, features))


def test_stacked_differences_are_the_gradient():
    x = torch.randn(2, 5, 6)
    gradient = finite_differences(x, (-2, -1), pad="wrap", stack=1)
    assert gradient.shape == (2, 2, 5, 6)
    torch.testing.assert_close(gradient[:, 0], finite_differences(x, -2, pad="wrap"))
    torch.testing.assert_close(gradient[:, 1], finite_differences(x, -1, pad="wrap"))
    with pytest.raises(ValueError, match="`stack` needs a `pad`"):
        finite_differences(x, stack=0)
    with pytest.raises(ValueError, match=r"`stack` 5 is out of range for x of shape \(2, 5, 6\)"):
        finite_differences(x, pad="zero", stack=5)
    assert "stack=1" in repr(FiniteDifferences(pad="zero", stack=1))


def test_pictures_are_drawn_between_layers():
    """Maps and vertices as features, in all three styles; what needs more than features says what to write."""
    from algonet.ifs import IFS
    from algonet.ran import IFSInverse, RenderInverse
    from algonet.render import SmoothRenderer, icosphere

    ball = icosphere(1)
    for inverse, features in ((RenderInverse(ball.faces, 8), ball.vertices.numel()), (IFSInverse(3, 8), 18)):
        x = torch.randn(2, 2 * features, requires_grad=True)
        plain = inverse(x[:, features:])
        pixels = Insert(inverse)(x[:, features:])
        torch.testing.assert_close(pixels.flatten(), plain.flatten())
        for layer in (Shortcut(inverse), Residual(inverse, nn.Linear(features, features))):
            result = layer(x)
            torch.testing.assert_close(result[:, features:], pixels)
            (slope,) = torch.autograd.grad(result[:, features:].sum(), x)
            assert slope[:, features:].abs().sum() > 0
    with pytest.raises(
        TypeError, match=r"Insert: IFS is not called with features; write IFSInverse\(functions, size\)"
    ):
        Insert(IFS.preset("fern", points=16))
    with pytest.raises(TypeError, match=r"Residual: SmoothRenderer .* write RenderInverse\(faces, size\)"):
        Residual(SmoothRenderer(8), nn.Identity())

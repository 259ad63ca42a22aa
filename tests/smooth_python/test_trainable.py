"""`@smooth(trainable=True)`: weights and biases of assignments, and gates on them."""

import copy
import pickle

import pytest
import torch
from torch import nn
from torch.testing import assert_close

from algonet.explain import sensitivity
from algonet.nn import Insert
from algonet.smooth_python import Enumerate, Merge, Particles, Perturb, SmoothProgram, smooth
from algonet.while_lang import WhileProgram

X = torch.tensor([-1.3, 0.2, 0.9, 2.4], dtype=torch.float64)


def damped(x, steps):
    height, speed, bounces = x, 0.0, 0.0
    for _ in range(steps):
        speed = speed - 0.3
        height += 0.5 * speed
        if height < 0.0:
            height, speed = -height, -0.8 * speed
            bounces += 1.0
    path = [height, speed]
    path[0] = path[0] * 2.0
    return path, bounces


def searched(x):
    low, high = 0.0, 4.0
    while high - low > 0.1:
        middle = 0.5 * (low + high)
        if middle * middle < x:
            low = middle
        else:
            high = middle
    return low


OPTIONS = [{}, {"backend": "reference"}, {"hard": True}]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_untouched_it_is_the_function_as_it_was(options):
    plain, trained = smooth(damped, steepness=6.0), smooth(damped, steepness=6.0, trainable=True)
    options = {"paths": Merge(check=False), **options}
    assert isinstance(trained, SmoothProgram)
    for x, batched in ((X, True), (X[3], False)):
        (height, speed), bounces = plain(x, 7, batched=batched, **options)
        (found_height, found_speed), found_bounces = trained(x, 7, batched=batched, **options)
        assert torch.equal(found_height, height)
        assert torch.equal(found_speed, speed)
        assert torch.equal(found_bounces, bounces)


def test_untouched_loops_end_as_they_did():
    plain, trained = smooth(searched, steepness=8.0), smooth(searched, steepness=8.0, trainable=True)
    x = X.abs() + 1
    assert_close(trained(x, batched=True), plain(x, batched=True), rtol=1e-9, atol=1e-9)


def test_paths_keep_the_weights():
    trained = smooth(damped, steepness=6.0, trainable=True)
    exact = smooth(damped, steepness=6.0)(X, 3, batched=True, paths=Enumerate())
    assert_close(trained(X, 3, batched=True, paths=Enumerate()), exact)
    drawn = trained(X, 3, batched=True, paths=Particles(64), generator=torch.Generator().manual_seed(0))
    gradient = torch.autograd.grad(drawn[0][0].sum(), trained.weight)[0]
    wanted = torch.autograd.grad(trained(X, 3, batched=True, paths=Enumerate())[0][0].sum(), trained.weight)[0]
    assert (gradient - wanted).norm() < 0.3 * wanted.norm()
    with pytest.raises(ValueError, match="Perturb moves arguments"):
        trained(X, 3, batched=True, paths=Perturb(8, 0.1))


@smooth(trainable=True, steepness=4.0)
def affine(x):
    y = 2.0 * x
    if x > 0.0:
        y = y + 1.0
    return y


@pytest.mark.parametrize("backend", ["auto", "reference"])
def test_each_assignment_is_scaled_and_shifted(backend):
    """y = w0 (2 x) + b0, then w1 (y + 1) + b1 with the probability of the branch."""
    program = copy.deepcopy(affine)
    with torch.no_grad():
        program.weight.copy_(torch.tensor([0.5, 3.0]))
        program.bias.copy_(torch.tensor([0.25, -1.0]))
    p, y = torch.sigmoid(4.0 * X), 0.5 * 2 * X + 0.25
    assert_close(program(X, batched=True, backend=backend), p * (3 * (y + 1) - 1) + (1 - p) * y)
    assert_close(program.regularization(), torch.tensor(0.25 + 4.0 + 0.0625 + 1.0))
    assert affine.regularization() == 0
    assert program.assignments[1].endswith(": y = y + 1.0")


@pytest.mark.parametrize("backend", ["auto", "reference"])
def test_gradients_of_weights_and_biases(backend):
    program = smooth(searched, steepness=3.0, trainable=True, epsilon=0.0, max_iterations=3, backend=backend).double()

    def run(x, weight, bias):
        return torch.func.functional_call(program, {"weight": weight, "bias": bias}, (x,), {"batched": True})

    arguments = (X.abs() + 1).requires_grad_(), *(p.detach().clone().requires_grad_() for p in program.parameters())
    with pytest.warns(RuntimeWarning, match="stopped after 3"):
        assert torch.autograd.gradcheck(run, arguments)


def test_replays_follow_the_parameters():
    program = smooth(damped, steepness=6.0, trainable=True)
    for k in range(4):
        with torch.no_grad():
            program.bias[3] += 0.1 * k
        (height, _), _ = program(X, 5, batched=True)
        (wanted, _), _ = program(X, 5, batched=True, backend="reference")
        assert_close(height, wanted)
    assert len([*program.recordings]) == 1


def test_a_changed_constant_is_recovered():
    """Data of a spring whose damping is 0.35 where 0.1 was written; one bias of the program makes up for it."""

    def spring(x, damping):
        speed = 0.0
        for _ in range(6):
            speed = speed - 0.4 * x - damping * speed
            x = x + 0.5 * speed
            if x > 1.0:
                x = 1.0
        return x

    @smooth(trainable=True, steepness=10.0)
    def program(x):
        damping = 0.1
        speed = 0.0
        for _ in range(6):
            speed = speed - 0.4 * x - damping * speed
            x = x + 0.5 * speed
            if x > 1.0:
                x = 1.0
        return x

    x = torch.linspace(-2, 2, 32)
    target = smooth(spring, steepness=10.0)(x, torch.tensor(0.35).expand(32), batched=True)
    damping = next(k for k, label in enumerate(program.assignments) if "damping = 0.1" in label)
    optimizer = torch.optim.Adam([program.bias], lr=0.05)
    only = torch.nn.functional.one_hot(torch.tensor(damping), len(program.bias))
    before = (program(x, batched=True) - target).square().mean()
    for _ in range(150):
        optimizer.zero_grad()
        ((program(x, batched=True) - target).square().mean()).backward()
        program.bias.grad *= only
        optimizer.step()
    assert (program(x, batched=True) - target).square().mean() < 1e-4 * before
    assert abs(program.bias[damping].item() - 0.25) < 0.01


def test_the_regulariser_is_that_of_while_programs():
    other = WhileProgram("x0 := x1 + 1", trainable=True)
    program = copy.deepcopy(affine)
    for p in (program, other):
        for name, value in (("weight", 1.5), ("bias", 0.5)):
            nn.init.constant_(p.get_parameter(name), value)
    assert program.regularization() == 0.5 * len(program.weight)
    assert other.regularization() == 0.5 * other.get_parameter("bias").numel()


def test_as_a_module():
    program = copy.deepcopy(affine).double().eval()
    program.bias.requires_grad_(False)
    program.register_buffer("scale", X)
    assert [name for name, _ in program.named_parameters()] == ["weight", "bias"]
    with torch.no_grad():
        program.weight.mul_(2.1)
    assert affine.weight[0] == 1
    for other in (pickle.loads(pickle.dumps(program)), copy.deepcopy(program)):
        assert_close(other.state_dict(), program.state_dict(), rtol=0, atol=0)
        assert [p.requires_grad for p in other.parameters()] == [True, False]
        assert not other.training
        assert torch.equal(other(X, batched=True), program(X, batched=True))
        with torch.no_grad():
            other.weight.zero_()
        assert program.weight[0] == 2.1
    del program.scale
    other = copy.deepcopy(affine).double()
    other.load_state_dict(program.state_dict())
    assert_close(other(X, batched=True), program(X, batched=True))
    layer = Insert(program)
    assert_close(layer(X[:, None]), program(X, batched=True)[:, None])
    assert len(list(layer.parameters())) == 2


def test_it_compiles_whole():
    program = copy.deepcopy(affine).double()
    compiled = torch.compile(program, fullgraph=True, backend="aot_eager")
    found = compiled(X, batched=True)
    assert_close(found, program(X, batched=True))
    gradients = (torch.autograd.grad(y.sum(), list(program.parameters())) for y in (found, program(X, batched=True)))
    assert_close(*gradients)


def test_others_call_it():
    @smooth
    def twice(x):
        return affine(affine(x))

    assert_close(twice(X, batched=True), affine(affine(X, batched=True), batched=True))
    for _ in range(2):
        gradient = torch.autograd.grad(twice(X, batched=True).sum(), affine.weight)[0]
        assert_close(
            gradient, torch.autograd.grad(affine(affine(X, batched=True), batched=True).sum(), affine.weight)[0]
        )
    saved = affine.weight.detach().clone()
    with torch.no_grad():
        affine.weight.mul_(1.5)
    try:
        assert_close(twice(X, batched=True), affine(affine(X, batched=True), batched=True))
    finally:
        with torch.no_grad():
            affine.weight.copy_(saved)


def test_integers_words_and_infinities_stay_crisp():
    @smooth(trainable=True)
    def program(x):
        best, count, name = float("inf"), 3, "a"
        for k in range(count):
            if x + k < best:
                best = x + k
        return best, count, name

    best, count, name = program(X, batched=True)
    assert (count, name) == (3, "a")
    assert_close(best, smooth(program.__wrapped__)(X, batched=True)[0])


def test_refusals():
    with pytest.raises(ValueError, match="has none"):

        @smooth(trainable=True)
        def nothing(x):
            return x + 1.0

    with pytest.raises((TypeError, RuntimeError)) as caught:

        class Holder:
            @smooth(trainable=True)
            def run(self, x):
                x = x + 1.0
                return x * x

    # Python 3.11 wraps what is raised while a class is made
    assert "is a method" in str(caught.value.__cause__ or caught.value)


# -- gates


def test_gates_of_one_change_nothing_and_of_zero_undo():
    plain = smooth(damped, steepness=6.0)
    names = plain.assignments
    undone = next(k for k, label in enumerate(names) if "bounces += 1.0" in label)

    def gates(batch, labels, like):
        assert labels == names
        assert batch == (4,)
        found = like.new_ones(*batch, len(labels))
        found[1, undone] = 0.0
        return found

    (height, speed), bounces = plain(X, 7, batched=True)
    with plain.gated(gates):
        (gated_height, gated_speed), gated_bounces = plain(X, 7, batched=True)
    assert_close(gated_height, height)
    assert_close(gated_speed, speed)
    assert gated_bounces[1] == 0
    assert_close(gated_bounces[[0, 2, 3]], bounces[[0, 2, 3]])
    assert torch.equal(plain(X, 7, batched=True)[1], bounces)


def test_the_gradient_by_gates_is_that_of_the_formula():
    """y = 2 x, then y + 1 with probability p: by the first gate (1 - p) 2 x + p 2 x, by the second p."""
    found = {}

    def gates(batch, labels, like):
        found["gates"] = like.new_ones(*batch, len(labels)).requires_grad_()
        return found["gates"]

    with affine.gated(gates):
        total = affine(X, batched=True).sum()
    gradient = torch.autograd.grad(total, found["gates"])[0]
    assert_close(gradient[:, 0], 2 * X)
    assert_close(gradient[:, 1], torch.sigmoid(4.0 * X))


def test_sensitivity_finds_the_assignment_that_counts():
    @smooth(steepness=4.0)
    def program(a, b):
        unused = a * 3.0
        total = a + b
        if total > 0.0:
            total = total * 2.0
            unused = unused + total
        return total

    x = torch.randn(64, 2, generator=torch.Generator().manual_seed(0))
    for layer in (Insert(program), Insert(smooth(program.__wrapped__, trainable=True, steepness=4.0))):
        model = nn.Sequential(layer)
        found = sensitivity(model, "0", (x, x), lambda y, _: y.square().mean(), inside=True)
        assert [label.split(": ")[1] for label in found.labels] == [
            "unused = a * 3.0",
            "total = a + b",
            "total = total * 2.0",
            "unused = unused + total",
        ]
        assert found.magnitude[0] == found.magnitude[3] == 0
        assert found.magnitude[1] > found.magnitude[2] > 0

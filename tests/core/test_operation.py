"""One declaration gives an operation its backends, derivatives, graphs, refusals and the doctor's row."""

from __future__ import annotations

import dataclasses
import enum
import sys
import threading
import types
from dataclasses import dataclass

import pytest
import torch

from algonet.core import codec
from algonet.core.autograd import plan_from
from algonet.core.operation import OPERATIONS, KernelModule, Operation, survey


class Sense(enum.Enum):
    UP = 1
    DOWN = -1


@dataclass(frozen=True)
class Power:
    exponent: int


@dataclass(frozen=True)
class ToySettings:
    power: Power
    sense: Sense = Sense.UP
    scale: float = 1.0
    names: tuple[str, ...] = ()


def _value(x, s, settings):
    return settings.sense.value * settings.scale * s * x**settings.power.exponent


def _reference(tensors, settings):
    x, s, *more = tensors
    return [_value(x, s, settings), *more]


_SEEN: list[ToySettings] = []


def toy_forward(tensors, settings):
    _SEEN.append(settings)
    x, s, *more = tensors
    return [_value(x, s, settings), *[m.clone() for m in more]], [x * 1]


def toy_backward(grads, tensors, saved, settings, needs):
    x, s = tensors[:2]
    k = settings.power.exponent
    factor = settings.sense.value * settings.scale
    by_x = grads[0] * factor * s * k * saved[0] ** (k - 1) if needs[0] else None
    by_s = (grads[0] * factor * x**k).sum() if needs[1] else None
    return [by_x, by_s, *[g.clone() for g in grads[1:]]]


def toy_saved(tensors, settings):
    return [torch.empty_like(tensors[0])]


@pytest.fixture(scope="module")
def toy():
    """An operation whose kernels are this file's functions, in a module that nobody has imported yet."""
    name = "toy_kernels_of_test_operation"
    module = types.ModuleType(name)
    module.__dict__.update(ToyPlan=plan_from(toy_forward, toy_backward, toy_saved))
    operation = Operation(
        "toy",
        settings=ToySettings,
        inputs=("x", "s", "extra"),
        reference=_reference,
        kernels={"numba": KernelModule(name, refuse=lambda tensors, settings: _refuse(settings))},
        outputs=lambda count, settings: count - 1,
        shared={"s"},
        example=lambda device: ((torch.ones(2, device=device), torch.ones((), device=device)), ToySettings(Power(2))),
    )
    sys.modules[name] = module
    yield operation
    del sys.modules[name], OPERATIONS["toy"]


def _refuse(settings):
    return "fifth powers are too much" if settings.power.exponent == 5 else None


@pytest.fixture
def xs():
    return torch.randn(3, 4, dtype=torch.float64), torch.tensor(2.0, dtype=torch.float64)


SETTINGS = ToySettings(Power(3), Sense.DOWN, 0.5, ("a", 'b"'))


def test_the_first_call_loads_the_kernels_and_the_settings_arrive_as_they_are(toy, xs):
    _SEEN.clear()
    (value,) = toy(xs, SETTINGS, "numba")
    torch.testing.assert_close(value, -(xs[0] ** 3))
    assert _SEEN[-1] is SETTINGS


def test_derivatives_of_every_order_and_mode(toy, xs):
    x, s = (t.requires_grad_() for t in xs)
    call = lambda x, s: tuple(toy([x, s], SETTINGS, "numba"))  # noqa: E731
    assert torch.autograd.gradcheck(call, (x, s), check_forward_ad=True, check_batched_grad=True)
    assert torch.autograd.gradgradcheck(call, (x, s))
    mapped = torch.func.vmap(call, (0, None))(x.detach(), s.detach())
    torch.testing.assert_close(mapped[0], -(xs[0] ** 3).detach())


def test_the_number_of_outputs_may_follow_the_inputs(toy, xs):
    x, s = xs
    extra = torch.randn(3, requires_grad=True, dtype=torch.float64)
    for run in (toy, torch.compile(toy, fullgraph=True, backend="aot_eager")):
        value, same = run([x, s, extra], SETTINGS, "numba")
        torch.testing.assert_close(value, -(x**3))
        (gradient,) = torch.autograd.grad(same.sum(), extra)
        torch.testing.assert_close(gradient, torch.ones_like(extra))


def test_graphs_carry_the_settings(toy, xs):
    x, s = (t.requires_grad_() for t in xs)
    compiled = torch.compile(lambda x, s, k: toy([x, s], ToySettings(Power(k), Sense.DOWN, 0.5), "numba")[0], fullgraph=True,
                             backend="aot_eager")  # fmt: skip
    for k in (2, 3, 4):  # the second makes k symbolic, unless it is taken for a constant
        value = compiled(x, s, k)
        torch.testing.assert_close(value, -(x**k))
        (gradient,) = torch.autograd.grad(value.sum(), x)
        torch.testing.assert_close(gradient, -k * x ** (k - 1))

    class Layer(torch.nn.Module):
        def forward(self, x, s):
            return toy([x, s], SETTINGS, "numba")[0]

    exported = torch.export.export(Layer(), (x.detach(), s.detach()))
    torch.testing.assert_close(exported.module()(x.detach(), s.detach()), -(x**3).detach())


def test_fake_tensors_flow_through(toy, xs):
    from torch._subclasses import FakeTensorMode

    with FakeTensorMode() as mode:
        fakes = [mode.from_tensor(t) for t in xs]
        (value,) = toy(fakes, SETTINGS, "numba")
    assert value.shape == xs[0].shape
    assert isinstance(value, torch._subclasses.FakeTensor)


def test_refusals_come_from_backend_and_domain(toy, xs):
    x, s = xs
    with pytest.raises(ValueError, match=r"toy: backend 'numba' cannot take this call: fifth powers are too much"):
        toy(xs, ToySettings(Power(5)), "numba")
    with pytest.raises(ValueError, match=r"compute in float32 and float64, got torch\.float16"):
        toy([x.half(), s.half()], SETTINGS, "numba")
    with pytest.raises(ValueError, match=r"run on the CPU and a tensor is on meta"):
        toy([x.to("meta"), s], SETTINGS, "numba")
    with pytest.raises(ValueError, match=r"unknown backend 'cuda'; choose one of auto, numba, reference"):
        toy(xs, SETTINGS, "cuda")
    (value,) = toy(xs, ToySettings(Power(5)))
    torch.testing.assert_close(value, 2 * x**5)


def test_the_second_call_of_a_signature_asks_nobody(toy, xs, monkeypatch):
    toy(xs, SETTINGS, "numba")
    monkeypatch.setattr(toy, "choose", lambda *arguments: pytest.fail("asked again"))
    toy([t.clone() for t in xs], dataclasses.replace(SETTINGS), "numba")
    with pytest.raises(pytest.fail.Exception):
        toy([xs[0][:2], xs[1]], SETTINGS, "numba")


def test_doctors_row(toy):
    assert survey()["toy"] == {"numba": None, "reference": None}


def test_first_calls_from_many_threads(toy):
    """Torch destroys an operator's library when two threads define it; one declaration defines it once."""
    errors: list[BaseException] = []
    barrier = threading.Barrier(8)

    def call(k):
        try:
            barrier.wait()
            x = torch.ones(k + 1, requires_grad=True)
            toy([x, torch.ones(())], ToySettings(Power(k + 2)), "numba" if k != 3 else "auto")[0].sum().backward()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=call, args=(k,)) for k in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors


def test_codec_round_trip():
    @dataclass(frozen=True)
    class Local:
        value: object = None

    for value in (
        None, True, -3, 1e-300, float("inf"), -0.0, 'a "quoted" \\ one', (), (1, (2.5, None)), Sense.DOWN, SETTINGS,
        Local((Sense.UP, Local(3))),
    ):  # fmt: skip
        again = codec.decode(codec.encode(value))
        assert again == value
        assert type(again) is type(value)
    assert str(codec.decode(codec.encode(-0.0))) == "-0.0"


def test_codec_says_what_it_cannot_carry():
    class Plain:
        pass

    with pytest.raises(TypeError, match="Plain is none: decorate it with @dataclass"):
        codec.encode(Plain())
    forced = Power(3)
    object.__setattr__(forced, "secret", 4)
    with pytest.raises(TypeError, match="further attributes: make them fields"):
        codec.encode(forced)
    with pytest.raises(ValueError, match="made in another process, with the class Gone"):
        codec.decode('["#987654321:Gone"]')
    with pytest.raises(ValueError, match=r"algonet\.nowhere:Gone, which cannot be imported"):
        codec.decode('["algonet.nowhere:Gone"]')


@pytest.mark.parametrize("hosted", [(), ("table",)])
def test_only_hosted_tensors_may_be_on_another_device(hosted, monkeypatch):
    """A recorded program's instructions stay on the CPU while its numbers are on a GPU: the kernel moves them."""
    # Known to nobody else afterwards
    monkeypatch.setattr("algonet.core.operation.OPERATIONS", {})
    operation = Operation(
        f"hosted_{len(hosted)}",
        settings=Power,
        inputs=("x", "table"),
        reference=lambda tensors, settings: [tensors[0]],
        kernels={"numba": ".nowhere"},
        hosted=hosted,
    )
    reason = operation.why_not("numba", [torch.zeros(2), torch.zeros(2, device="meta")], Power(1))
    assert reason is None if hosted else "a tensor is on meta" in str(reason)

"""The smooth semantics: against the formulas written out by hand, kernels against the reference, and bad input."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
import warnings

import pytest
import torch
from torch import nn

from algonet.relax import BumpExit, Sech, SmoothTent, Tent
from algonet.while_lang import NonHaltingWarning, WhileProgram, load_program, run_while
from algonet.while_lang.functional import execute, prepare
from helpers.contract import CHECKS, Case, uniform
from helpers.tolerances import assert_close


def _multiply(x1, x2, phi, epsilon=1e-6):
    """The paper's smooth multiplication, read off its listing."""
    x0 = x3 = torch.zeros_like(x1)
    p1 = torch.ones_like(x1)
    while True:
        p1 = p1 * phi(x2)
        p1 = torch.where(p1 <= epsilon, 0.0, p1)
        if not p1.any():
            return x0
        x3 = p1 * x1 + (1 - p1) * x3
        p2 = p1
        while True:
            p2 = p2 * phi(x3)
            p2 = torch.where(p2 <= epsilon, 0.0, p2)
            if not p2.any():
                break
            x0, x3 = x0 + p2, x3 - p2
        x2 = x2 - p1


def _grid(n=7, dtype=torch.float64):
    # Off the integers, which are corners of `Tent`: autograd mixes the slopes of both sides there
    x = torch.linspace(0.05, 5.05, n, dtype=dtype)
    return [t.clone().requires_grad_() for t in torch.meshgrid(x, x, indexing="ij")]


def _run(program, exit, backend, inputs, **options):
    return run_while(load_program(program), inputs, exit=exit, backend=backend, **options).outputs["x0"]


@pytest.mark.parametrize("backend", ["reference", "numba"])
@pytest.mark.parametrize("exit", [Sech(2.0), Tent()], ids=lambda exit: exit.key)
def test_multiplication_is_the_papers(exit, backend):
    a, b = _grid()
    ours, theirs = _run("multiply", exit, backend, {"x1": a, "x2": b}), _multiply(a, b, exit)
    assert_close(ours, theirs)
    for o, t in zip(torch.autograd.grad(ours.sum(), (a, b)), torch.autograd.grad(theirs.sum(), (a, b)), strict=True):
        assert_close(o, t)


class _Layer:
    """A program as a function of its inputs and, last, a steepness if it has one of its own."""

    def __init__(self, name, make_exit, backend="auto"):
        self.make_exit, self.backend = make_exit, backend
        self.smooth = prepare(load_program(name))

    def __call__(self, x1, x2, *steepness, backend=None):
        exit = self.make_exit(*steepness)
        return execute(self.smooth, {"x1": x1, "x2": x2}, exit=exit, backend=backend or self.backend)[0]


TINY_AND_LARGE = [(torch.tensor([0.0, 1e-30, 20.0, 2.0]), torch.tensor([3.0, 2.0, 30.0, 1e-30]))]
CASES = [
    Case(
        "multiply Sech",
        _Layer("multiply", lambda: Sech(2.0)),
        uniform(count=2, low=0.3, high=2.7),
        kernels=("numba",),
        extremes=TINY_AND_LARGE,
        # measured 3e-5 of values around 6 in float32
        factor=3.0,
    ),
    Case(
        "add SmoothTent(2), reference",
        _Layer("add", lambda: SmoothTent(2), backend="reference"),
        uniform(3, count=2, low=0.2, high=1.8),
        extremes=TINY_AND_LARGE,
        compile=False,  # how often its loops run depends on the data, so tracing it breaks the graph
    ),
    Case(
        "subtract, learnable steepness",
        _Layer("subtract", Sech),
        lambda batch, dtype, generator: (
            *uniform(2, count=2, low=0.3, high=2.0)(batch, dtype, generator),
            torch.tensor(1.7, dtype=dtype),
        ),
        batched=(True, True, False),
        kernels=("numba",),
        extremes=[(*TINY_AND_LARGE[0], torch.tensor(1e-3)), (*TINY_AND_LARGE[0], torch.tensor(3.0))],
    ),
]


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_contract(case, check):
    check(case)


@pytest.mark.parametrize("exit", [Tent(), SmoothTent(4), BumpExit()], ids=lambda exit: exit.key)
def test_every_exit_compiles_to_the_reference(exit):
    # off the integers, and away from the kinks of Tent
    a = torch.tensor([0.3, 1.45, 2.7, 3.6], dtype=torch.float64, requires_grad=True)
    b = torch.tensor([1.4, 2.3, 0.6, 3.2], dtype=torch.float64, requires_grad=True)
    found, expected = (_run("multiply", exit, backend, {"x1": a, "x2": b}) for backend in ("numba", "reference"))
    assert_close(found, expected)
    for f, e in zip(torch.autograd.grad(found.sum(), (a, b)), torch.autograd.grad(expected.sum(), (a, b)), strict=True):
        assert_close(f, e)
        assert e.abs().max() > 0.1


#: A branch inside a loop and one inside a branch, around statements that read what they write.
BRANCHES = """
    WHILE x2 != 0 DO
        IF x1 != 0 DO x0 := x0 + 3 x3 := x0
        ELSE IF x3 = 0 DO x0 := x2 ELSE x3 := x3 - 1 x0 := x3 END END
        x2 := x2 - 1
        x1 := x1 - 1
    END
"""


@pytest.mark.parametrize("exit", [Sech(2.0), Tent(), BumpExit()], ids=lambda exit: exit.key)
def test_a_branch_is_the_weighted_sum_of_its_parts(exit):
    x = torch.linspace(0, 1.5, 7, dtype=torch.float64).requires_grad_()
    y = torch.full_like(x, 0.7)
    p = exit(x)
    for source, value in (
        ("IF x1 != 0 DO x0 := 5 ELSE x0 := 7 END", p * 5 + (1 - p) * 7),
        ("IF x1 = 0 DO x0 := 5 x0 := x0 + 1 END", p * y + (1 - p) * 6),
        # both parts see the state before the branch
        ("x2 := x0 IF x1 != 0 DO x0 := x2 + 1 x2 := x0 ELSE x0 := x2 + 3 END", p * (y + 1) + (1 - p) * (y + 3)),
    ):
        found = run_while(source, {"x0": y, "x1": x}, exit=exit, backend="reference").outputs["x0"]
        assert_close(found, value)
        if exit.smoothness:
            assert_close(*(torch.autograd.grad(f.sum(), x, retain_graph=True)[0] for f in (found, value)))


def test_branches_compile_to_the_reference():
    results = []
    for backend in ("numba", "reference"):
        program = WhileProgram(BRANCHES, Sech(nn.Parameter(torch.tensor(1.9).double())), backend=backend)
        x = torch.tensor([[0.3, 1.45, 2.7, 0.0], [1.4, 0.3, 2.6, 2.0]], dtype=torch.float64, requires_grad=True)
        y = program(x1=x[0], x2=x[1])
        results.append([y, *torch.autograd.grad(y.sum(), [x, *program.parameters()])])
    for found, expected in zip(*results, strict=True):
        assert_close(found, expected)
        assert expected.abs().sum() > 0.1


def _all_gradients(backend, *, trainable, steepness, cap=50, n=37):
    generator = torch.Generator().manual_seed(3)
    smooth = prepare(load_program("multiply"), outputs=("x0", "x2"), max_iterations=cap, trainable=trainable)
    a, b = (torch.rand(n, generator=generator, dtype=torch.float64) * 2.5 for _ in range(2))
    count = len(smooth.code.assignments)
    parameters = [
        1 + 0.03 * torch.randn(count, generator=generator, dtype=torch.float64),
        torch.full((count,), 0.01).double(),
    ]
    leaves = [t.requires_grad_() for t in (a, b, steepness, *(parameters if trainable else ()))]
    parameters = tuple(leaves[3:]) or None
    values, diagnostics = execute(
        smooth, {"x1": a, "x2": b}, exit=Sech(leaves[2]), parameters=parameters, backend=backend
    )
    score = (values * torch.randn(values.shape, generator=generator, dtype=torch.float64)).sum()
    return [values, diagnostics, *torch.autograd.grad(score, leaves)]


@pytest.mark.parametrize("trainable", [True, False])
def test_parameters_compile_to_the_reference(trainable):
    found, expected = (
        _all_gradients(backend, trainable=trainable, steepness=torch.tensor(1.9).double())
        for backend in ("numba", "reference")
    )
    for f, e in zip(found, expected, strict=True):
        assert_close(f, e)
        assert f.shape == e.shape
    assert all(e.abs().sum() > 0 for e in expected[2:]), "every parameter matters"


def test_a_steepness_for_each_element_is_refused_and_mapped():
    steepness = torch.tensor([1.0, 2.0])
    with pytest.raises(ValueError, match=r"one number for all elements, got a tensor of shape \(2,\)"):
        run_while("x0 := x1", {"x1": torch.ones(2)}, exit=Sech(steepness))

    def run(steepness):
        return run_while(load_program("add"), {"x1": torch.tensor(1.5)}, exit=Sech(steepness)).outputs["x0"]

    assert_close(torch.vmap(run)(steepness), torch.stack([run(s) for s in steepness]))


@pytest.mark.slow
def test_many_parameters_take_several_passes(monkeypatch):
    from algonet.while_lang import kernels

    # programs keep their kernels, so another cap makes this one a new program
    monkeypatch.setattr(kernels, "SEEDS_AT_ONCE", 2)
    monkeypatch.setattr(kernels, "tangents_at_once", lambda code: 1)
    found, expected = (
        _all_gradients(backend, trainable=True, steepness=torch.tensor(2.0).double(), cap=51)
        for backend in ("numba", "reference")
    )
    for f, e in zip(found, expected, strict=True):
        assert_close(f, e)


def test_generated_source_is_readable():
    from algonet.while_lang.compiler import KernelSpec
    from algonet.while_lang.kernels import numba, triton
    from algonet.while_lang.operation import WhileSettings

    code = prepare(load_program("multiply")).code
    settings = WhileSettings(code.text, Sech(), (1, 2), (0,), 1e-6, 1000, False, True)
    spec = KernelSpec(settings, (1, 2))
    for source in (numba.source(spec, double=False), triton.source(spec)):
        assert "w2 c3,1 w3 a0,1 a3,-1 e3 a2,-1 e2" in source
        assert "x3 = p1 * x1 + (" in source
        # x2 and its loop do not depend on x1, so no tangent in that direction is carried
        assert "dx2_0" not in source
        assert "dp1_0" not in source


def test_big_programs_take_the_reference_and_say_why():
    deep = "WHILE x1 != 0 DO " * 20 + "x1 := x1 - 1 x0 := x0 + 1" + " END" * 20
    with pytest.raises(ValueError, match="its loops nest 20 levels deep and kernels take 12"):
        run_while(deep, {"x1": torch.ones(2)}, backend="numba")
    assert run_while(deep, {"x1": torch.ones(2)}, exit=Tent()).outputs["x0"].tolist() == [1, 1]
    long = "".join(f"x{i} := x{i + 1} x{i} := x{i} + 1\n" for i in range(200))
    with pytest.raises(ValueError, match="it has 400 operations and kernels take 300"):
        run_while(long, {"x1": torch.ones(2)}, backend="numba")


def test_a_hundred_levels_run_smoothly():
    source = "WHILE x1 != 0 DO " * 100 + "x1 := x1 - 1 x0 := x0 + 1" + " END" * 100
    result = run_while(source, {"x1": torch.tensor([1.0, 0.0])}, exit=Tent())
    assert result.outputs["x0"].tolist() == [1, 0]
    assert result.iterations.tolist() == [100, 0]


def _pair(x1, x2):
    """Both inputs with gradients: all such tests share one kernel."""
    return {"x1": torch.tensor(x1, requires_grad=True), "x2": torch.tensor(x2, requires_grad=True)}


@pytest.mark.parametrize("backend", ["reference", "numba"])
class TestHalting:
    def test_result_counts_iterations(self, backend):
        result = run_while(load_program("multiply"), _pair([3.0, 0.0], [2.0, 2.0]), exit=Tent(), backend=backend)
        assert result.iterations.tolist() == [2 * (1 + 3), 2]
        assert result.remaining.tolist() == [0, 0]

    def test_halting_at_the_cap_is_not_cut(self, backend):
        inputs = _pair([5.0], [1.0])
        result = run_while(load_program("multiply"), inputs, exit=Tent(), max_iterations=5, backend=backend)
        assert result.outputs["x0"].tolist() == [5]
        with pytest.warns(NonHaltingWarning, match="line 4 .*probability 1 left"):
            result = run_while(load_program("multiply"), inputs, exit=Tent(), max_iterations=4, backend=backend)
        assert (result.outputs["x0"].item(), result.iterations.item(), result.remaining.item()) == (4, 5, 1)

    def test_a_loop_that_never_halts_warns_once_and_names_the_line(self, backend):
        source = "x0 := x1\nLOOP x1 DO x0 := x0 + 1 END\nWHILE x2 != 0 DO\n  x2 := x2 + 1\n  x0 := x0 + 1\nEND"
        inputs = _pair([1.3, 2.0], [0.0, 0.7])
        with pytest.warns(
            NonHaltingWarning, match=r"line 3 .*max_iterations=20 with probability 0\.\d+ .*50\.0%"
        ) as caught:
            result = run_while(source, inputs, max_iterations=20, backend=backend)
        assert len(caught) == 1
        assert result.remaining[0] == 0
        assert 0 < result.remaining[1] <= 1
        slopes = torch.autograd.grad(result.outputs["x0"].sum(), list(inputs.values()))
        assert all(torch.isfinite(s).all() for s in slopes)
        assert slopes[1][1] != 0

    def test_elements_stop_by_themselves(self, backend):
        a, b = [0.2, 5.3, 2.0, 40.0, 0.0], [0.0, 40.0, 2.0, 5.3, 0.2]
        together = run_while(load_program("multiply"), _pair(a, b), backend=backend)
        for i in range(5):
            alone = run_while(load_program("multiply"), _pair(a[i : i + 1], b[i : i + 1]), backend=backend)
            assert_close(alone.outputs["x0"], together.outputs["x0"][i : i + 1])
            assert alone.iterations.item() == together.iterations[i].item()

    @pytest.mark.parametrize("value", [1e30, -1e30, -2.5, -1.0])
    def test_extreme_inputs_end_and_stay_finite(self, backend, value):
        inputs = _pair([value, 2.0], [2.0, 2.0])
        with pytest.warns(NonHaltingWarning, match="line 4"):
            result = run_while(load_program("multiply"), inputs, max_iterations=30, backend=backend)
        slopes = torch.autograd.grad(result.outputs["x0"].sum(), list(inputs.values()))
        assert torch.isfinite(result.outputs["x0"]).all()
        assert all(torch.isfinite(s).all() for s in slopes)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            clean = run_while(load_program("multiply"), _pair([2.0], [2.0]), max_iterations=30, backend=backend)
        assert_close(result.outputs["x0"][1:], clean.outputs["x0"])

    @pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
    @pytest.mark.parametrize("where", ["x1", "x2"])
    def test_broken_inputs_stay_at_their_element(self, backend, value, where):
        columns = {"x1": [2.0, 3.0, 2.5], "x2": [3.0, 1.5, 2.0]}
        clean = run_while(load_program("multiply"), _pair(*columns.values()), backend=backend).outputs["x0"]
        columns[where][1] = value
        inputs = _pair(*columns.values())
        result = run_while(load_program("multiply"), inputs, backend=backend)
        out = result.outputs["x0"]
        assert out[1].isnan()
        assert result.iterations[1] == 0
        assert_close(out[[0, 2]], clean[[0, 2]])
        slopes = torch.autograd.grad(out[[0, 2]].sum(), list(inputs.values()))
        assert all(torch.isfinite(s).all() for s in slopes)

    def test_weights_that_overflow_give_no_wrong_number(self, backend):
        # x1 grows thirtyfold each turn and leaves float32 within 27 of them
        source = "WHILE x1 != 0 DO x1 := x1 + 1 x0 := x1 END"
        program = WhileProgram(source, trainable=True, max_iterations=60, backend=backend)
        with torch.no_grad():
            assert program.weight is not None
            program.weight[0] = 30.0
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", NonHaltingWarning)
                out = program(x1=torch.tensor([1.0, 0.0]))
        assert not torch.isfinite(out[0])
        assert out[1] == 0


@pytest.mark.parametrize("steepness", [3.0, 4.0])
def test_where_sech_stops_halting(steepness):
    a, b = _grid(13, torch.float32)
    smooth = prepare(load_program("multiply"), max_iterations=300)
    _, diagnostics = execute(smooth, {"x1": a, "x2": b}, exit=Sech(steepness), backend="numba")
    assert bool((diagnostics[..., 0] > 0).any()) == (steepness > 3)


def test_threads_share_the_work():
    generator = torch.Generator().manual_seed(0)
    a, b = (torch.rand(2000, generator=generator) * 4 for _ in range(2))
    before = torch.get_num_threads()
    found = []
    try:
        for threads in (1, 3):
            torch.set_num_threads(threads)
            inputs = {"x1": a.clone().requires_grad_(), "x2": b.clone().requires_grad_()}
            y = _run("multiply", Sech(2.0), "numba", inputs)
            found.append([y.detach(), *torch.autograd.grad(y.sum(), list(inputs.values()))])
    finally:
        torch.set_num_threads(before)
    for one, three in zip(*found, strict=True):
        assert torch.equal(one, three)


def test_second_derivative_through_the_kernel():
    a = torch.tensor([0.7, 1.6], dtype=torch.float64, requires_grad=True)
    b = torch.tensor([1.3, 1.3], dtype=torch.float64, requires_grad=True)

    def slope(backend):
        y = _run("multiply", Sech(2.0), backend, {"x1": a, "x2": b}).sum()
        (first,) = torch.autograd.grad(y, a, create_graph=True)
        return torch.autograd.grad(first.sum(), a)[0]

    assert_close(slope("numba"), slope("reference"))
    assert slope("reference").abs().min() > 1e-3


def test_hessian_by_functorch():
    def f(x):
        return _run("multiply", Sech(2.0), "auto", {"x1": x[0], "x2": x[1]})

    x = torch.tensor([1.2, 0.8], dtype=torch.float64)
    assert_close(torch.func.hessian(f)(x), torch.autograd.functional.hessian(f, x))


@pytest.mark.parametrize(
    ("arguments", "options", "error", "message"),
    [
        ({"x9": torch.ones(1)}, {}, ValueError, "unknown variable 'x9'; the program's variables are x0, x1, x2, x3"),
        ({"a": torch.ones(1)}, {}, ValueError, "inputs are named x0, x1"),
        ({"x1": torch.ones(1).int()}, {}, TypeError, "`x1` must be a floating tensor, got torch.int32"),
        ({"x1": "3"}, {}, TypeError, "`x1` must be a floating tensor or a number, got str"),
        ({"x1": torch.ones(2), "x2": torch.ones(3)}, {}, ValueError, r"broadcast together, got x1 \(2,\), x2 \(3,\)"),
        ({}, {"outputs": ("x9",)}, ValueError, "unknown output 'x9'"),
        ({}, {"outputs": "x0"}, ValueError, "`outputs` must be a sequence of names"),
        ({}, {"epsilon": 1.0}, ValueError, r"`epsilon` must lie in \[0, 1\), got 1.0"),
        ({}, {"max_iterations": 0}, ValueError, "`max_iterations` must be an integer from 1"),
        ({}, {"exit": "sech"}, TypeError, "`exit` must be an exit such as"),
        ({}, {"backend": "cuda"}, ValueError, "unknown backend 'cuda'; choose one of auto, triton, numba, reference"),
    ],
)
def test_errors(arguments, options, error, message):
    with pytest.raises(error, match=message):
        run_while(load_program("multiply"), arguments, **options)


def test_shapes_and_numbers():
    a, b = torch.rand(4, 1, dtype=torch.float64) + 1, torch.rand(3) + 1
    result = run_while(load_program("multiply"), {"x1": a, "x2": b})
    assert result.outputs["x0"].shape == result.remaining.shape == result.iterations.shape == (4, 3)
    assert result.outputs["x0"].dtype == torch.float64
    constant = run_while("x0 := 7", {})
    assert constant.outputs["x0"].shape == ()
    assert constant.outputs["x0"].item() == 7
    half = run_while(load_program("multiply"), {"x1": torch.ones(2, dtype=torch.float16), "x2": 2.0})
    assert half.outputs["x0"].dtype == torch.float16


def test_triton_kernels_in_the_interpreter():
    """The interpreter must be chosen before triton is imported: a process of its own."""
    script = """
        import torch
        from algonet.relax import Sech, Tent
        from algonet.while_lang import load_program
        from algonet.while_lang.functional import execute, prepare

        def slopes(backend, exit, trainable):
            torch.manual_seed(0)
            smooth = prepare(load_program("multiply"), outputs=("x0", "x2"), max_iterations=6, trainable=trainable)
            a, b = (torch.rand(3, dtype=torch.float64) * 1.5 for _ in range(2))
            parameters = [1 + torch.randn(4, dtype=torch.float64) / 30, torch.randn(4, dtype=torch.float64) / 30]
            leaves = [t.requires_grad_() for t in (a, b, *(parameters if trainable else []))]
            parameters = tuple(leaves[2:]) or None
            values, rest = execute(smooth, {"x1": a, "x2": b}, exit=exit, parameters=parameters, backend=backend)
            return [values, rest, *torch.autograd.grad((values * torch.tensor([1.0, 0.3])).sum(), leaves)]

        for exit, trainable in ((Sech(2.0), True), (Tent(), False)):
            for t, r in zip(slopes("triton", exit, trainable), slopes("reference", exit, trainable), strict=True):
                torch.testing.assert_close(t, r, rtol=1e-9, atol=1e-10)
        print("agrees")
    """
    environment = {**os.environ, "TRITON_INTERPRET": "1"}
    pytest.importorskip("triton")
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)], env=environment, capture_output=True, text=True, timeout=600
    )
    assert done.stdout.strip() == "agrees", done.stderr[-2000:]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
@pytest.mark.parametrize("exit", [Sech(2.0), Tent(), SmoothTent(3), BumpExit()], ids=lambda exit: exit.key)
def test_triton_on_the_gpu(exit):
    a, b = (t.detach().cuda().requires_grad_() for t in _grid(17))
    found, expected = (_run("multiply", exit, backend, {"x1": a, "x2": b}) for backend in ("triton", "reference"))
    assert_close(found, expected)
    for f, e in zip(torch.autograd.grad(found.sum(), (a, b)), torch.autograd.grad(expected.sum(), (a, b)), strict=True):
        assert_close(f, e)

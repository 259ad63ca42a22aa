"""Recorded programs: kernels against the reference, rows asked for late, and the peer's README program."""

from __future__ import annotations

import importlib.util
import math
import os
import subprocess
import sys
import warnings
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from algonet.relax import BumpExit, Logistic
from algonet.smooth_python import operation, smooth
from algonet.smooth_python.algorithms import bubble_sort
from algonet.smooth_python.machine import tape
from algonet.smooth_python.machine.values import Value
from algonet.smooth_python.operation import (
    NONE,
    ROW,
    Formulas,
    Instruction,
    Program,
    code_of,
    evaluate,
    steepness_tensor,
)
from helpers.interpreted import interpret
from helpers.tolerances import assert_close

ROOT = Path(__file__).parents[2]


#: How each instruction on rows gets operands that keep it bounded: those that are not here take any rows.
POSITIVE = ("reciprocal", "clamp", "log", "sqrt")
BETWEEN = ("mix", "exp", "tally", "coin")


def random_program(choices: list[int], columns: int) -> list[int]:
    """Instructions on earlier rows that stay bounded: all of the table, whatever is in it, and two relaxations."""
    codes = {name: code for code, name in enumerate(operation.TABLE)}
    code: list[int] = []
    for k in range(columns):
        code += (codes["input"], k, 0, 0)
    code += (codes["const"], 0, 0, 0)
    code += (codes["const"], 1, 0, 0)
    names = [name for name in codes if name not in ("input", "const")]
    for k, choice in enumerate(choices):
        rows = len(code) // 4
        a, b, c = choice % rows, (choice // 7) % rows, (choice // 31) % rows
        name = (*names, "relax")[k % (len(names) + 1)]
        if name == "relax":
            code += (len(codes), a, k % 2, 0)
        elif name == "truediv":
            code += (codes[name], a, columns, 0)
        elif name in POSITIVE:
            # Of a number from 0.3 on, and between the two constants
            code += (codes["mul"], a, a, 0)
            code += (codes["add"], rows, columns + 1, 0)
            code += (codes[name], rows + 1, columns + 1, columns)
        elif name in BETWEEN:
            # A probability first
            code += (len(codes), a, 0, 0)
            code += (codes[name], rows, *((rows, c) if name == "tally" else (b, c)))
        else:
            code += (codes[name], a, b, c)
    return code


@given(st.lists(st.integers(0, 10**6), min_size=1, max_size=30), st.integers(1, 140))
def test_kernel_equals_reference_on_random_programs(choices, batch):
    generator = torch.Generator().manual_seed(len(choices) + batch)
    x = torch.rand(batch, 3, generator=generator, dtype=torch.float64) + 0.1
    code = random_program(choices, 3)
    wanted = torch.tensor([len(code) // 4 - 1, 0, len(code) // 8], dtype=torch.int32)
    found = []
    for backend in ("reference", "numba"):
        leaf = x.clone().requires_grad_()
        steepness = torch.tensor(2.0, dtype=torch.float64, requires_grad=True)
        formulas = Formulas()
        # Together with the default exit: the kernel that most tests use anyway
        formulas.place(Logistic(steepness))
        formulas.place(BumpExit())
        program = Program.of(code, [2.5, 0.3], formulas.settings, leaf, backend)
        scales = steepness_tensor(formulas.steepness, leaf)
        y = evaluate(program, [leaf], scales, wanted, batch, torch.tensor([batch, 2**32 - 5]))
        weights = torch.arange(1.0, 4.0, dtype=torch.float64)
        slopes = torch.autograd.grad((y * weights).sum(), (leaf, steepness), allow_unused=True)
        found.append((y.detach(), *(torch.zeros(()) if s is None else s for s in slopes)))
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other.to(one), rtol=1e-9, atol=1e-9)


def test_a_new_instruction_is_one_row(monkeypatch):
    """With it the reference and the kernels have the instruction, and programs can record it."""
    row = Instruction("cube_of_sum", "(a + b) * (a + b) * (a + b)", ("3.0 * s * (a + b) * (a + b)",) * 2, (ROW, ROW))
    monkeypatch.setitem(operation.TABLE, row.name, row)
    x = torch.tensor([[1.0, 2.0], [-3.0, 0.5]], dtype=torch.float64)
    code = [code_of("input"), 0, 0, 0, code_of("input"), 1, 0, 0, code_of(row.name), 0, 1, 0]
    for backend in ("reference", "numba"):
        leaf = x.clone().requires_grad_()
        program = Program.of(code, [], Formulas().settings, leaf, backend)
        y = evaluate(program, [leaf], leaf.new_zeros(0), torch.tensor([2], dtype=torch.int32), 2)
        torch.testing.assert_close(y[:, 0], x.sum(1) ** 3)
        torch.testing.assert_close(torch.autograd.grad(y.sum(), leaf)[0], 3 * x.sum(1, keepdim=True).expand(2, 2) ** 2)


def test_every_slope_is_the_derivative_of_its_value():
    """Of the formulas themselves, in plain torch: a kernel that repeats a wrong slope would agree with another."""
    points = torch.tensor([[0.7, 0.4, 0.9], [0.1, 0.2, 0.6], [0.95, 0.2, 0.8]], dtype=torch.float64)
    for row in operation.TABLE.values():
        if row.operands != (ROW,) * len(row.operands):
            continue
        operands = [points[:, k].clone().requires_grad_() for k in range(len(row.operands))]
        y = row.step(None, operands, None, None, 0, 1, 2)
        s = torch.full_like(y, 1.7)
        wanted = [None] * len(operands)
        if y.requires_grad:
            wanted = torch.autograd.grad(y, operands, s, allow_unused=True)
        for slope, want in zip(row.slopes, wanted, strict=True):
            names = {
                **operation.TORCH_NAMES,
                **dict(zip("abc", (o.detach() for o in operands), strict=False)),
                "s": s,
            }
            found = torch.zeros(()) if slope == NONE else eval(slope, {**names, "y": y.detach()})
            torch.testing.assert_close(found.expand(3) + 0.0 * s, s * 0.0 if want is None else want, msg=row.name)


def test_threads_agree_with_one(monkeypatch):
    from algonet.smooth_python.kernels import numba as host

    x = torch.randn(130, 6, dtype=torch.float64)
    serial = bubble_sort(x, batched=True, backend="numba")
    monkeypatch.setattr(host, "PARALLEL_FROM", 0)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 3)
    torch.testing.assert_close(bubble_sort(x, batched=True, backend="numba"), serial)


def test_rows_can_be_asked_for_late():
    """A value recorded before a foreign function ran, and used only after it, is computed when it is needed."""

    @smooth(backend="numba")
    def program(x, y):
        late = x * 2.0 + y
        also = x - y
        now = torch.cumsum(torch.stack([x, y]), 0)[1]
        if late > now:
            now = now + also
        return now, late

    @smooth(backend="reference")
    def same(x, y):
        late = x * 2.0 + y
        also = x - y
        now = torch.cumsum(torch.stack([x, y]), 0)[1]
        if late > now:
            now = now + also
        return now, late

    x = torch.randn(5, dtype=torch.float64, requires_grad=True)
    y = torch.randn(5, dtype=torch.float64)
    found, expected = program(x, y, batched=True), same(x, y, batched=True)
    torch.testing.assert_close(found, expected)
    slopes = [torch.autograd.grad(r[0].sum() + r[1].square().sum(), x)[0] for r in (found, expected)]
    torch.testing.assert_close(*slopes)


def test_one_kernel_serves_every_steepness():
    formulas = Formulas()
    assert formulas.place(Logistic(2.0)) == (0, 0)
    assert formulas.place(BumpExit()) == (1, 1)
    assert formulas.place(Logistic(5.0)) == (0, 2)
    assert formulas.place(Logistic(2.0)) == (0, 0)
    assert [type(r) for r in formulas.settings.formulas] == [Logistic, BumpExit]
    assert list(formulas.steepness) == [2.0, 1.0, 5.0]


@pytest.fixture
def evaluated(monkeypatch):
    """The lengths of all programs that are evaluated while recording."""
    lengths = []
    original = tape.evaluate
    monkeypatch.setattr(
        tape, "evaluate", lambda *args: lengths.append(args[0].instructions.shape[0]) or original(*args)
    )
    return lengths


def test_a_static_program_runs_as_one_stretch(evaluated):
    smooth(bubble_sort._function)(torch.randn(4, 6), batched=True)
    assert len(evaluated) == 1
    assert evaluated[0] < 15 * 7 + 6 + 10


@smooth
def steps_of_a_grid(a):
    b = a * 0.0
    for i in range(len(a)):
        for j in range(len(a[0])):
            if a[i][j] > 0:
                b[i, j] = a[i][j]
        b[i, 0] = 7.0
    return b


@smooth
def plus_product(x, y):
    return x * y + 1.0


@smooth
def calls_in_branches(a):
    s, t, u, w = 0.0, 1.0, 2.0, 3.0
    for v in a:
        s, t, u, w = s + v, t * v, u - v, w * 0.5 + v
        if v > 0:
            s = plus_product(s, t)
        else:
            u = plus_product(u, w)
    return s, t, u, w


def test_a_look_asks_for_all_that_lives_on(evaluated):
    """One evaluation for each look and one for the end: nothing is asked for late."""
    x = torch.randn(3, 5, dtype=torch.float64)
    found = calls_in_branches(x, batched=True, backend="numba")
    assert len(evaluated) == 5 + 1
    torch.testing.assert_close(found, calls_in_branches(x, batched=True, backend="reference"))


def test_grids_are_returned_in_one_stretch(evaluated):
    """Parts of parts, and plain numbers among them, are all asked for at once."""
    a = torch.randn(3, 4, 5, dtype=torch.float64)
    found = steps_of_a_grid(a, batched=True, steepness=1e6, backend="numba")
    assert len(evaluated) == 1
    expected = a.relu()
    expected[:, :, 0] = 7.0
    torch.testing.assert_close(found, expected)


@smooth
def with_functions(x, y):
    radius = math.sqrt(x**2 + y**2 + 1.0)
    if radius > math.exp(y / 3):
        radius = torch.log(radius + 2.0) + x.exp() * y**3
    return radius


def test_functions_with_an_instruction_are_recorded(evaluated):
    x, y = torch.randn(2, 5, dtype=torch.float64).requires_grad_().unbind(0)
    for backend in ("auto", "numba"):
        for _ in range(2):
            found = with_functions(x, y, batched=True, backend=backend)
            expected = with_functions(x, y, batched=True, backend="reference")
            torch.testing.assert_close(found, expected)
            slopes = [torch.autograd.grad(r.sum(), (x, y), retain_graph=True) for r in (found, expected)]
            torch.testing.assert_close(*slopes)
    # One stretch, recorded once for each backend
    assert len(evaluated) == 2


LEVEL = torch.nn.Parameter(torch.tensor(0.25))


@smooth(backend="numba")
def above_level(x):
    count = 0.0
    for _ in range(3):
        if x > LEVEL:
            count += LEVEL * 2.0
    return count


def test_numbers_from_outside_are_recorded_with_their_gradient(evaluated):
    x = torch.tensor([0.1, 0.3, 2.0])
    (found,) = torch.autograd.grad(above_level(x, batched=True).sum(), LEVEL)
    assert len(evaluated) == 1
    (expected,) = torch.autograd.grad(above_level(x, batched=True, backend="reference").sum(), LEVEL)
    torch.testing.assert_close(found, expected)


def test_short_programs_load_no_compiler():
    code = (
        "import sys, torch\n"
        "from algonet.smooth_python.algorithms import bubble_sort\n"
        "bubble_sort(torch.randn(4, 3), batched=True)\n"
        "assert not {'numba', 'triton', 'matplotlib'} & set(sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, env={**os.environ, "PYTHONPATH": str(ROOT / "src")})


def test_second_derivatives_of_recorded_programs():
    x = torch.randn(2, 4, dtype=torch.float64, requires_grad=True)

    def run(x):
        return bubble_sort(x, batched=True, backend="numba", steepness=2.0)

    assert torch.autograd.gradcheck(run, (x,), check_forward_ad=True)
    assert torch.autograd.gradgradcheck(run, (x,))


def test_named_backends_run_or_say_why():
    x = torch.randn(2, 4)
    if not torch.cuda.is_available() and os.environ.get("TRITON_INTERPRET") != "1":
        with pytest.raises(ValueError, match="smooth_program: backend 'triton' cannot take this call"):
            bubble_sort(x, batched=True, backend="triton")


# -- the peer


def benchmark_module():
    # By path, as a package: pytest does not have the repository's root on its path
    for name in ("__init__", "harness", "smooth_python"):
        module_name = "bench" if name == "__init__" else f"bench.{name}"
        file = ROOT / "benchmarks" / f"{name}.py"
        locations = [str(file.parent)] if name == "__init__" else None
        spec = importlib.util.spec_from_file_location(module_name, file, submodule_search_locations=locations)
        module = sys.modules.setdefault(module_name, importlib.util.module_from_spec(spec))
        spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("n", [2, 5, 8])
def test_the_readme_program_of_algovision(n):
    pytest.importorskip("algovision")
    module = benchmark_module()
    x = torch.randn(6, n)
    with warnings.catch_warnings():
        # the peer indexes tensors with lists, which torch deprecates
        warnings.simplefilter("ignore")
        expected = module.once(module.peer_program("cpu"), x)[2]
    for backend in ("numba", "reference"):
        found = module.once(lambda x, b=backend: module.bubble_until_sorted(x, batched=True, backend=b), x)[2]
        for name, f, e in zip(("values", "swaps", "gradient"), found, expected, strict=True):
            # sums of up to n^2 rounded terms on both sides; measured 2e-6 relative
            assert_close(f / e.abs().max(), e / e.abs().max(), what=name)


@pytest.mark.slow
def test_ten_times_faster_than_algovision():
    pytest.importorskip("algovision")
    module = benchmark_module()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        peer = module.peer_program("cpu")
        inputs = [torch.randn(100, 8, generator=torch.Generator().manual_seed(seed)) for seed in range(12)]
        runs = module.turns(peer, lambda x: module.bubble_until_sorted(x, batched=True), inputs)
    for what in (0, 1):
        theirs, ours = (min(run[who][what] for run in runs) for who in (0, 1))
        # Forward, and with backward: the benchmark states the ratios, several times this
        assert theirs / ours > 10


# -- the GPU kernel, in Triton's interpreter and on a GPU

CHECK = """
import torch
from algonet.relax import Logistic
from algonet.smooth_python import smooth

@smooth
def program(x, y):
    n = 0.0
    while x > y:
        x = x - abs(y) / 2.0 - 0.5
        if x == y:
            n += 1.0
    return x, n

def run(backend, device, dtype):
    generator = torch.Generator().manual_seed(0)
    x, y = (2 * torch.rand(2, 35, generator=generator, dtype=torch.float64)).to(device, dtype).unbind(0)
    x, y = x.clone().requires_grad_(), y.clone().requires_grad_()
    s = torch.tensor(3.0, dtype=dtype, device=device, requires_grad=True)
    out = program(x, y, batched=True, relax=Logistic(s), backend=backend, epsilon=1e-2)
    return (*out, *torch.autograd.grad(out[0].sum() + out[1].square().sum(), (x, y, s)))
"""
#: Every formula in one kernel, and every way of leaving; the second time without recording.
CHECK_ALL = """
import torch
from algonet.relax import EXITS, SIGMOIDS
from algonet.smooth_python import smooth

def step(x, y):
    return (1.0 if x > y else 0.0) + (x if x == y else 0.0)

steps = [smooth(relax=f(steepness=3.0))(step) for f in SIGMOIDS] + [smooth(exit=e())(step) for e in EXITS]

@smooth
def everything(x, y):
    out = []
    for k in range(len(steps)):
        out.append(steps[k](x, y + 0.1 * k))
    return out

@smooth
def leaving(x, y):
    a = [x, y, 0.5]
    for k in range(2):
        if x > 1.0:
            break
        if y > x:
            continue
        a[x] = y
    if x > y:
        return x
    return a[x + y] + torch.sqrt(torch.exp(y / 4) + x**2) * torch.log(abs(x) + 1.5)

def run(function, backend, device, dtype, items=35, times=2):
    generator = torch.Generator().manual_seed(0)
    x, y = (2 * torch.randn(2, items, generator=generator, dtype=torch.float64)).to(device, dtype).unbind(0)
    for _ in range(times):
        x, y = x.detach().clone().requires_grad_(), y.detach().clone().requires_grad_()
        out = function(x, y, batched=True, backend=backend)
        out = torch.stack(out) if isinstance(out, list) else out
        weights = torch.linspace(0.5, 1.5, out.numel(), dtype=dtype, device=device).reshape(out.shape)
        found = torch.cat([out.flatten(), *torch.autograd.grad((out * weights).sum(), (x, y))]).detach()
    return found

def with_a_nan(backend, device, dtype):
    x = torch.linspace(-2.0, 2.0, 7, dtype=dtype, device=device)
    x[5] = float("nan")
    return torch.stack(everything(x, x.flip(0).nan_to_num(), batched=True, backend=backend))
"""


def loaded(folder, code: str):
    file = folder / "check.py"
    file.write_text(code)
    spec = importlib.util.spec_from_file_location("check", file)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


needs_triton = pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="triton is not installed")


@needs_triton
def test_triton_kernels_in_the_interpreter(tmp_path):
    """Every formula in both precisions, those with an arc tangent among them; then a program whose scratch is bounded."""
    formulas, bounded = tmp_path / "formulas.py", tmp_path / "bounded.py"
    formulas.write_text(
        CHECK_ALL + "for dtype, error in ((torch.float32, 2e-5), (torch.float64, 1e-11)):\n"
        "    for function in (everything, leaving):\n"
        "        one, other = (run(function, b, 'cpu', dtype, 6, 1) for b in ('triton', 'reference'))\n"
        "        torch.testing.assert_close(one, other, rtol=error, atol=error)\n"
        "    found, expected = (with_a_nan(b, 'cpu', dtype) for b in ('triton', 'reference'))\n"
        "    assert found[:, 5].isnan().all() and found.isnan().sum() == len(found)\n"
        "    torch.testing.assert_close(found, expected, rtol=error, atol=error, equal_nan=True)\n"
        "print('same formulas')\n",
    )
    bounded.write_text(
        CHECK + "from algonet.smooth_python.kernels import triton as host\nhost.SCRATCH = 1\n"
        "for one, other in zip(run('triton', 'cpu', torch.float64), run('reference', 'cpu', torch.float64)):\n"
        "    torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-9)\n"
        "print('same in parts')\n",
    )
    assert interpret(formulas, bounded) == ["same formulas", "same in parts"]


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_triton_kernel_on_the_gpu(dtype, tmp_path):
    module = loaded(tmp_path, CHECK)
    found, expected = module.run("triton", "cuda", dtype), module.run("reference", "cpu", dtype)
    for one, other in zip(found, expected, strict=True):
        assert_close(one.cpu(), other, factor=10.0)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_every_formula_on_the_gpu(dtype, tmp_path):
    module = loaded(tmp_path, CHECK_ALL)
    for function in (module.everything, module.leaving):
        found, expected = module.run(function, "triton", "cuda", dtype), module.run(function, "reference", "cpu", dtype)
        # float32: slopes of up to 3, after two relaxations; measured 1.3e-5
        assert_close(found.cpu(), expected, factor=10.0)
    nan = module.with_a_nan("triton", "cuda", dtype)
    assert nan[:, 5].isnan().all()
    assert nan.isnan().sum() == len(nan)


@pytest.mark.gpu
def test_bounded_scratch_on_the_gpu(monkeypatch):
    from algonet.smooth_python.kernels import triton as host

    x = torch.randn(500, 6, device="cuda", requires_grad=True)

    def run():
        values, swaps = bubble_sort(x, batched=True, backend="triton")
        return values, swaps, torch.autograd.grad(swaps.sum(), x)[0]

    whole = run()
    monkeypatch.setattr(host, "SCRATCH", 10**5)
    for one, other in zip(run(), whole, strict=True):
        assert torch.equal(one, other)


@pytest.mark.gpu
def test_replays_on_the_gpu_follow_their_numbers():
    @smooth(steepness=5.0)
    def countdown(x):
        steps = 0.0
        while x > 0:
            x = x - 1
            steps += 1
        return x, steps

    for size in (0.5, 30.5, 4.5, 30.6, 0.7):
        x = torch.tensor([0.3, size], dtype=torch.float64, device="cuda")
        for one, other in zip(countdown(x, batched=True), countdown(x.cpu(), batched=True), strict=True):
            torch.testing.assert_close(one.cpu(), other, rtol=1e-9, atol=1e-9)


def test_a_vector_that_is_wanted_twice_keeps_all_its_parts():
    """A loop that looks at its mass wants its state and the state before, which may hold the very same vector."""

    @smooth(steepness=50.0)
    def rows(x, y, m):
        m[0][2] = x * 2.0
        while y > 0.1:
            m[1][2] = m[1][2] + x
            y = y - 0.8
        return m

    @smooth(steepness=50.0)
    def total(x, w, a):
        a[1] = x * 2.0
        while w > 0.0:
            w = w - 1.0
        else:
            a = a + x
        return a.sum()

    matrix = torch.tensor([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]])
    for program, y, a in ((rows, 8.0, matrix), (total, 8.3, matrix[0])):
        x = torch.tensor(1.5, requires_grad=True)
        found, wanted = (program(x, torch.tensor(y), a, backend=backend) for backend in ("auto", "reference"))
        torch.testing.assert_close(found, wanted)
        torch.testing.assert_close(*(torch.autograd.grad(value.sum(), x) for value in (found, wanted)))
        torch.testing.assert_close(found, program.crisp(1.5, y, a), rtol=1e-3, atol=0.0)


@smooth(steepness=3.0)
def clipped(x, a):
    for i in range(len(a)):
        if a[i] > x:
            a[i] = x
    return a


def test_writing_one_part_of_many_looks_at_no_other(monkeypatch):
    """Recording n writes under `if` takes O(n) steps: one place differs at each join, and the list of parts is never copied."""
    found, lists = [], set()

    def places(self, other, differing=Value.differing):
        lists.add(id(self.parts))
        found.append(differing(self, other))
        return found[-1]

    monkeypatch.setattr(Value, "differing", places)
    a = torch.linspace(-1, 1, 100)
    result = clipped(torch.tensor(0.1), a)
    assert found == [[k] for k in range(100)]
    assert len(lists) == 1
    p = torch.sigmoid(3.0 * (a - 0.1))
    assert_close(result, p * 0.1 + (1 - p) * a)


@smooth
def older_versions(x, a):
    kept = [a]
    a[0] = x
    kept = [kept[0], a, a]
    a[-1] = kept[0][0] + kept[1][0]
    for v in kept[0]:
        a[1] = a[1] + v
    kept[2][2] = kept[0][2] * a[3]
    return a, *kept


@pytest.mark.parametrize("options", [{}, {"backend": "reference"}, {"batched": True}], ids=str)
def test_a_value_keeps_its_parts_when_others_are_written(options):
    x, b = torch.tensor(0.5), torch.tensor([1.0, 2.0, 3.0, 4.0])
    wanted = [[0.5, 12.0, 3.0, 1.5], [1.0, 2.0, 3.0, 4.0], [0.5, 2.0, 3.0, 4.0], [0.5, 2.0, 4.5, 4.0]]
    batch = options.get("batched", False)
    found = older_versions(x.expand(2) if batch else x, b.expand(2, 4) if batch else b, **options)
    assert [(value[0] if batch else value).tolist() for value in found] == wanted

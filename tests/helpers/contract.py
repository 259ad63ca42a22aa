"""What every operation of every domain owes its user, as one list of checks.

CASES = [Case("soft_sort", lambda x, backend="auto": soft_sort(x, backend=backend).values, normal(5), kernels=("numba",))]

@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_contract(case, check):
    check(case)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from torch import Tensor

from .tolerances import assert_close

Inputs = Callable[[int, torch.dtype, torch.Generator], tuple[Tensor, ...]]


@dataclass(frozen=True)
class Case:
    """An operation and how to feed it.

    `function(*tensors)` returns a tensor or several; with `kernels` it also takes `backend=`. `inputs(batch, dtype,
    generator)` draws typical arguments. `batched` says which of them carry the batch in dimension 0 (default: all);
    every output does. `smoothness` is how many derivatives are checked (2: first and second). `extremes` are further
    argument lists that must give finite values and gradients. `factor` scales the tolerances: write the measured error
    beside it.
    """

    name: str
    function: Callable[..., Any]
    inputs: Inputs
    batched: tuple[bool, ...] | None = None
    kernels: tuple[str, ...] = ()
    smoothness: int = 2
    extremes: Sequence[tuple[Tensor, ...]] = field(default_factory=tuple)
    dtypes: tuple[torch.dtype, ...] = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
    factor: float = 1.0
    vmap: bool = True
    compile: bool = True
    empty: bool = True
    nan_stays: bool = True

    def draw(self, batch: int = 3, dtype: torch.dtype = torch.float64, seed: int = 0) -> tuple[Tensor, ...]:
        return self.inputs(batch, dtype, torch.Generator().manual_seed(seed))

    def carries(self, tensors: Sequence[Tensor]) -> tuple[bool, ...]:
        return self.batched if self.batched is not None else (True,) * len(tensors)

    def __call__(self, *tensors: Tensor, backend: str | None = None) -> tuple[Tensor, ...]:
        out = self.function(*tensors) if backend is None else self.function(*tensors, backend=backend)
        return (out,) if isinstance(out, Tensor) else tuple(t for t in out if isinstance(t, Tensor))


def normal(*shape: int, count: int = 1, scale: float = 1.0) -> Inputs:
    """Inputs that are `count` tensors (batch, *shape) of normal numbers."""

    def inputs(batch: int, dtype: torch.dtype, generator: torch.Generator) -> tuple[Tensor, ...]:
        return tuple(
            (torch.randn(batch, *shape, generator=generator, dtype=torch.float64) * scale).to(dtype)
            for _ in range(count)
        )

    return inputs


def uniform(*shape: int, count: int = 1, low: float = 0.0, high: float = 1.0) -> Inputs:
    """Inputs that are `count` tensors (batch, *shape) of numbers between `low` and `high`."""

    def inputs(batch: int, dtype: torch.dtype, generator: torch.Generator) -> tuple[Tensor, ...]:
        return tuple(
            (low + (high - low) * torch.rand(batch, *shape, generator=generator, dtype=torch.float64)).to(dtype)
            for _ in range(count)
        )

    return inputs


def gradients(
    case: Case, tensors: Sequence[Tensor], backend: str | None = None
) -> tuple[tuple[Tensor, ...], list[Tensor]]:
    """The outputs, and the gradients of a fixed random functional of them by every floating input."""
    leaves = [t.detach().clone().requires_grad_(t.is_floating_point()) for t in tensors]
    outputs = case(*leaves, backend=backend)
    generator = torch.Generator().manual_seed(7)
    terms = [
        (o * torch.randn(o.shape, generator=generator, dtype=torch.float64).to(o)).sum()
        for o in outputs
        if o.is_floating_point() and o.requires_grad
    ]
    moving = [t for t in leaves if t.requires_grad]
    if not terms:
        return tuple(o.detach() for o in outputs), [torch.zeros_like(t) for t in moving]
    found = torch.autograd.grad(sum(terms), moving, allow_unused=True)  # pyright: ignore[reportArgumentType]
    slopes = [torch.zeros_like(t) if g is None else g for g, t in zip(found, moving, strict=True)]
    return tuple(o.detach() for o in outputs), slopes


def assert_same_gradients(actual: Sequence[Tensor], expected: Sequence[Tensor], factor: float) -> None:
    """Close, and not merely small: a kernel that returns zero passes an absolute tolerance when gradients are tiny."""
    for i, (a, e) in enumerate(zip(actual, expected, strict=True)):
        size = e.double().norm()
        if size > 0:
            missing = (a.double() - e.double()).norm() / size
            assert missing < 1e-2 * factor, f"gradient {i} deviates by {missing:.2%} of its own size: missing or wrong"
        scale = max(1.0, float(size) / max(e.numel(), 1) ** 0.5)
        assert_close(a / scale, e / scale, factor=factor * 10, what=f"gradient {i}")


def check_parity(case: Case) -> None:
    """Each kernel equals the reference, in values and gradients, at even and odd batch sizes."""
    if not case.kernels:
        pytest.skip("no kernels")
    for backend in case.kernels:
        # Triton's are compared by `test_triton_contract`, in a process with its interpreter on
        if backend != "triton":
            for dtype in (torch.float32, torch.float64):
                for batch, seed in ((1, 1), (5, 2), (16, 3)):
                    assert_parity(case, backend, dtype, batch, seed)


def assert_parity(case: Case, backend: str, dtype: torch.dtype, batch: int, seed: int) -> None:
    """The backend equals the reference, in values and gradients."""
    tensors = case.draw(batch, dtype, seed)
    outputs, slopes = gradients(case, tensors, backend)
    expected, expected_slopes = gradients(case, tensors, "reference")
    for o, e in zip(outputs, expected, strict=True):
        assert_close(o, e, factor=case.factor, what=f"{backend} values")
    assert_same_gradients(slopes, expected_slopes, case.factor)


def _differentiable(case: Case) -> tuple[Callable[..., Any], tuple[Tensor, ...]]:
    tensors = tuple(t.requires_grad_(t.is_floating_point()) for t in case.draw(2, torch.float64))

    def function(*moved: Tensor) -> tuple[Tensor, ...]:
        return tuple(o for o in case(*moved) if o.is_floating_point())

    return function, tensors


def check_first_derivative(case: Case) -> None:
    """gradcheck in reverse and in forward mode."""
    if case.smoothness < 1:
        pytest.skip("not differentiable")
    function, tensors = _differentiable(case)
    assert torch.autograd.gradcheck(function, tensors, check_forward_ad=True, nondet_tol=0.0)


def check_second_derivative(case: Case) -> None:
    """gradgradcheck: the derivative of the derivative, where the operation has one."""
    if case.smoothness < 2:
        pytest.skip("not twice differentiable")
    function, tensors = _differentiable(case)
    assert torch.autograd.gradgradcheck(function, tensors, nondet_tol=0.0)


def check_dtypes(case: Case) -> None:
    """Every precision goes in and comes out, near what float64 gives for the same (rounded) input."""
    for dtype in case.dtypes:
        tensors = case.draw(4, dtype)
        outputs = case(*tensors)
        exact = case(*(t.double() if t.is_floating_point() else t for t in tensors))
        for o, e in zip(outputs, exact, strict=True):
            if e.is_floating_point():
                assert o.dtype == dtype, f"{dtype} came back as {o.dtype}"
                assert_close(o, e, factor=case.factor, what=str(dtype))


def check_empty_batch(case: Case) -> None:
    """A batch of none gives results for none, and gradients."""
    if not case.empty:
        pytest.skip("has no batch")
    outputs, slopes = gradients(case, case.draw(0, torch.float32))
    shapes = [o.shape[1:] for o in case(*case.draw(2, torch.float32))]
    assert [o.shape for o in outputs] == [torch.Size((0, *shape)) for shape in shapes]
    assert all(torch.isfinite(s).all() for s in slopes)


def check_non_contiguous(case: Case) -> None:
    """Strides do not matter."""
    tensors = case.draw(3, torch.float32)
    strided = [_strided(t) for t in tensors]
    outputs, slopes = gradients(case, tensors)
    others, other_slopes = gradients(case, strided)
    for o, e in zip(others, outputs, strict=True):
        assert_close(o, e, factor=case.factor)
    assert_same_gradients(other_slopes, slopes, case.factor)
    direct = case(*strided)
    for o, e in zip(direct, outputs, strict=True):
        assert_close(o, e, factor=case.factor)


def _strided(t: Tensor) -> Tensor:
    return torch.stack([t, torch.full_like(t, 3)], dim=-1)[..., 0]


def check_inputs_untouched(case: Case) -> None:
    """Arguments are never changed in place."""
    tensors = case.draw(3, torch.float32)
    before = [t.clone() for t in tensors]
    gradients(case, tensors)
    case(*tensors)
    assert all(torch.equal(t, b) for t, b in zip(tensors, before, strict=True)), "an input was changed in place"


def check_batch_invariance(case: Case) -> None:
    """An item's result and gradient are its own, whoever shares its batch."""
    tensors = case.draw(4, torch.float64)
    carries = case.carries(tensors)
    whole, _ = gradients(case, tensors)
    for i in range(4):
        alone = case(*(t[i : i + 1] if c else t for t, c in zip(tensors, carries, strict=True)))
        for o, w in zip(alone, whole, strict=True):
            assert_close(o.detach(), w[i : i + 1], what=f"item {i} alone")


def check_nan_stays(case: Case) -> None:
    """A NaN in one item leaves the others' values as they were."""
    if not case.nan_stays:
        pytest.skip("mixes items by definition")
    tensors = [t.clone() for t in case.draw(3, torch.float32)]
    carries = case.carries(tensors)
    clean = case(*tensors)
    first = next(
        (t for t, c in zip(tensors, carries, strict=True) if c and t.is_floating_point() and t[0].numel()), None
    )
    if first is None:
        pytest.skip("no floating input has a batch")
    first[0].view(-1)[0] = torch.nan
    for o, c in zip(case(*tensors), clean, strict=True):
        assert_close(o[1:], c[1:], what="the other items")
        assert not o.is_floating_point() or o[0].isnan().any(), "NaN went in and did not come out"


def check_extremes(case: Case) -> None:
    """No finite input, however extreme or degenerate, gives a NaN or infinite value or gradient."""
    typical = [tuple(t * scale for t in case.draw(3, torch.float32)) for scale in (0.0, 1e-30, 1e4)]
    for tensors in [*(case.extremes or typical)]:
        outputs, slopes = gradients(case, tensors)
        assert all(torch.isfinite(o).all() for o in outputs), f"value not finite for {tensors}"
        assert all(torch.isfinite(s).all() for s in slopes), f"gradient not finite for {tensors}"


def check_vmap(case: Case) -> None:
    """vmap over the batch equals the batch, for values and for per-item gradients."""
    if not case.vmap:
        pytest.skip("not vmappable: see the case")
    tensors = case.draw(3, torch.float64)
    carries = case.carries(tensors)
    dims = tuple(0 if c else None for c in carries)
    expected = case(*tensors)
    mapped = torch.func.vmap(lambda *ts: case(*ts), in_dims=dims)(*tensors)
    for o, e in zip(mapped, expected, strict=True):
        assert_close(o, e.reshape(o.shape), what="vmap values")
    if case.smoothness < 1:
        return

    def score(*ts: Tensor) -> Tensor:
        return sum(o.square().sum() for o in case(*ts) if o.is_floating_point())  # pyright: ignore[reportReturnType]

    moving = next(i for i, t in enumerate(tensors) if t.is_floating_point() and carries[i])
    per_item = torch.func.vmap(torch.func.grad(score, argnums=moving), in_dims=dims)(*tensors)
    batch = torch.func.grad(score, argnums=moving)(*tensors)
    assert_close(per_item, batch, what="vmap gradients")


def check_compile(case: Case) -> None:
    """torch.compile takes it without a graph break and computes the same values and gradients."""
    if not case.compile:
        pytest.skip("not compiled whole: see the case")
    tensors = case.draw(3, torch.float32)
    torch._dynamo.reset()
    # aot_eager runs the tracing, the fake kernels and the joint graph; only the code generator is left out
    compiled = torch.compile(lambda *ts: case(*ts), fullgraph=True, backend="aot_eager")
    outputs, slopes = gradients(case, tensors)
    twin = Case(case.name, compiled, case.inputs)
    others, other_slopes = gradients(twin, tensors)
    for o, e in zip(others, outputs, strict=True):
        assert_close(o, e, factor=case.factor, what="compiled values")
    assert_same_gradients(other_slopes, slopes, case.factor)


#: The whole contract. `check.__name__` says what failed.
CHECKS: tuple[Callable[[Case], None], ...] = (
    check_parity,
    check_first_derivative,
    check_second_derivative,
    check_dtypes,
    check_empty_batch,
    check_non_contiguous,
    check_inputs_untouched,
    check_batch_invariance,
    check_nan_stays,
    check_extremes,
    check_vmap,
    check_compile,
)

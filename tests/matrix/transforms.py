"""The columns of the transform matrix: what may be done with an operation, each as a check that raises if it fails."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from helpers.contract import Case, check_empty_batch, check_non_contiguous, gradients
from helpers.tolerances import assert_close


@dataclass(frozen=True)
class Operation:
    """A row: a contract case, its backends by column, and for each cell that cannot be filled the reason why."""

    case: Case
    cpu_kernel: str | None = None
    gpu_kernel: str | None = None
    reference: bool = True
    why: dict[str, str] = field(default_factory=dict)


def _dtype(dtype: torch.dtype) -> Callable[[Operation], None]:
    def check(operation: Operation) -> None:
        case = operation.case
        tensors = case.draw(3, dtype)
        outputs, slopes = gradients(case, tensors)
        floats = [o for o in outputs if o.is_floating_point()]
        assert all(o.dtype == dtype for o in floats), "another dtype came back"
        assert all(torch.isfinite(t).all() for t in [*floats, *slopes]), "not finite"

    return check


def _kernel(column: str, device: str) -> Callable[[Operation], None]:
    def check(operation: Operation) -> None:
        backend = getattr(operation, column)
        assert backend is not None, "no kernel"
        tensors = [t.to(device) for t in operation.case.draw(3, torch.float32)]
        outputs, slopes = gradients(operation.case, tensors, backend)
        expected, expected_slopes = gradients(operation.case, tensors, "reference")
        for o, e in zip([*outputs, *slopes], [*expected, *expected_slopes], strict=True):
            assert_close(o, e, factor=20 * operation.case.factor)

    return check


def _reference(operation: Operation) -> None:
    assert operation.reference, "no separate reference"
    operation.case(*operation.case.draw(2, torch.float64), **_reference_option(operation))


def _reference_option(operation: Operation) -> dict[str, Any]:
    return {"backend": "reference"} if operation.cpu_kernel or operation.gpu_kernel else {}


def _moving(operation: Operation) -> tuple[Callable[..., tuple[Tensor, ...]], tuple[Tensor, ...]]:
    case = operation.case
    tensors = tuple(t.requires_grad_(t.is_floating_point()) for t in case.draw(2, torch.float64))
    return (lambda *ts: tuple(o for o in case(*ts) if o.is_floating_point())), tensors


def _backward(operation: Operation) -> None:
    function, tensors = _moving(operation)
    assert torch.autograd.gradcheck(function, tensors, fast_mode=True)


def _double_backward(operation: Operation) -> None:
    function, tensors = _moving(operation)
    assert torch.autograd.gradgradcheck(function, tensors, fast_mode=True)


def _jvp(operation: Operation) -> None:
    function, tensors = _moving(operation)
    assert torch.autograd.gradcheck(
        function, tensors, check_forward_ad=True, check_backward_ad=False, check_undefined_grad=False, fast_mode=True
    )


def _vmap(operation: Operation) -> None:
    case = operation.case
    tensors = case.draw(3, torch.float64)
    dims = tuple(0 if carries else None for carries in case.carries(tensors))
    mapped = torch.func.vmap(lambda *ts: case(*ts), in_dims=dims)(*tensors)
    for o, e in zip(mapped, case(*tensors), strict=True):
        assert_close(o, e.reshape(o.shape))


def _compile(operation: Operation) -> None:
    case = operation.case
    tensors = case.draw(3, torch.float32)
    torch._dynamo.reset()
    compiled = torch.compile(lambda *ts: case(*ts), fullgraph=True, backend="aot_eager")
    for o, e in zip(compiled(*tensors), case(*tensors), strict=True):
        assert_close(o, e, factor=case.factor)


class _Layer(torch.nn.Module):
    def __init__(self, case: Case):
        super().__init__()
        self.case = case

    def forward(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        return self.case(*tensors)


#: The exported graph of the last operation, of which two columns ask: to make it takes longer than to look at it.
_EXPORTED: dict[str, Any] = {}


def _exported(case: Case) -> Any:
    if case.name not in _EXPORTED:
        _EXPORTED.clear()
        _EXPORTED[case.name] = torch.export.export(_Layer(case), case.draw(3, torch.float32)).module()
    return _EXPORTED[case.name]


def _export(operation: Operation) -> None:
    case = operation.case
    tensors = case.draw(3, torch.float32)
    for o, e in zip(_exported(case)(*tensors), case(*tensors), strict=True):
        assert_close(o, e, factor=case.factor)


class _Operators(TorchDispatchMode):
    """Notes one call of each of the package's operators that run inside."""

    def __init__(self):
        super().__init__()
        self.calls: dict[Any, tuple] = {}

    def __torch_dispatch__(self, operator: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        if operator.namespace == "algonet":
            self.calls.setdefault(operator, args)
        return operator(*args, **(kwargs or {}))


def _opcheck(operation: Operation) -> None:
    case = operation.case
    tensors = case.draw(3, torch.float32)
    graph = _exported(case)
    leaves = [t.clone().requires_grad_(t.is_floating_point()) for t in tensors]
    with _Operators() as seen:
        outputs = [o for o in graph(*leaves) if o.requires_grad]
        ones = [torch.ones_like(o) for o in outputs]
        torch.autograd.grad(outputs, [leaf for leaf in leaves if leaf.requires_grad], ones, allow_unused=True)
    if not seen.calls:
        pytest.skip("has no operator of its own: graphs hold torch's")
    for operator, (given, *rest) in seen.calls.items():
        # Backward operators without their own derivatives, which are those of the reference: plain torch
        moving = not operator.name().endswith("_backward")
        copies = [t.detach().clone().requires_grad_(moving and t.is_floating_point()) for t in given]
        torch.library.opcheck(operator, (copies, *rest))


def _autocast(operation: Operation) -> None:
    case = operation.case
    with torch.autocast("cpu", torch.bfloat16):
        tensors = case.draw(3, torch.float32)
        outputs, slopes = gradients(case, tensors)
    plain = case(*tensors)
    for o, e in zip(outputs, plain, strict=True):
        assert_close(o.float() if o.is_floating_point() else o, e, factor=1e3)
    assert all(torch.isfinite(s).all() for s in slopes)


def _deterministic(operation: Operation) -> None:
    tensors = operation.case.draw(5, torch.float32)
    first, second = (gradients(operation.case, tensors) for _ in range(2))
    for a, b in zip([*first[0], *first[1]], [*second[0], *second[1]], strict=True):
        assert torch.equal(a, b), "two runs differ"


#: Column -> check. "GPU kernel" is checked only where there is one; elsewhere the recorded cell stands.
TRANSFORMS: dict[str, Callable[[Operation], None]] = {
    "float16": _dtype(torch.float16),
    "bfloat16": _dtype(torch.bfloat16),
    "float32": _dtype(torch.float32),
    "float64": _dtype(torch.float64),
    "CPU kernel": _kernel("cpu_kernel", "cpu"),
    "GPU kernel": _kernel("gpu_kernel", "cuda"),
    "reference": _reference,
    "backward": _backward,
    "double backward": _double_backward,
    "jvp": _jvp,
    "vmap": _vmap,
    "torch.compile": _compile,
    "torch.export": _export,
    "opcheck": _opcheck,
    "autocast": _autocast,
    "empty batch": lambda operation: check_empty_batch(operation.case),
    "non-contiguous": lambda operation: check_non_contiguous(operation.case),
    "deterministic": _deterministic,
}

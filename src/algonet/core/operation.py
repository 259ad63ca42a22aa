"""`Operation`: what a domain says about one of its operations, once. The rest follows.

    SORT = Operation(
        "soft_sort",
        settings=SortSettings,                       # a frozen dataclass: all that is not a tensor
        inputs=("x", "lengths", "steepness", "payload"),
        reference=reference.sort,                    # (tensors, settings) -> outputs, in plain torch
        kernels={"numba": ".kernels.numba.host", "triton": ".kernels.triton.host"},
        shared={"lengths", "steepness"},             # those without the batch's dimensions
        fake=shapes, refuse=why_no_kernel, example=example,
    )
    values, moved = SORT([x, lengths, steepness, payload], settings, backend)

A kernel module is imported when its first call comes. For an operation called `soft_sort` it has

    soft_sort_forward(tensors, settings) -> (outputs, saved)
    soft_sort_backward(grads, tensors, saved, settings, needs) -> one gradient per tensor, `None` where not needed
    soft_sort_saved(tensors, settings) -> empty tensors like `saved`              (only if it saves some)

From the declaration follow the registration with the backends (device and precision are refused by the backend, the rest by
`refuse`), autograd with second derivatives, forward mode and vmap, the operators `algonet::soft_sort_numba` and `..._triton`
with their fake tensors for `torch.compile` and `torch.export`, the text that settings are there, and the doctor's row.

The second call of a signature (shapes, precisions, devices, settings, backend) asks nobody whether it can run.
"""

from __future__ import annotations

import dataclasses
import importlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, NamedTuple, TypeVar

from torch import Tensor

from algonet.core import backends, codec, tracing
from algonet.core.autograd import Operator
from algonet.core.cache import Cache

S = TypeVar("S")
Refuse = Callable[[Sequence[Tensor], S], str | None]


class Call(NamedTuple, Generic[S]):
    """One call, as `refuse` functions and backends see it."""

    tensors: Sequence[Tensor]
    settings: S


@dataclass(frozen=True)
class KernelModule:
    """The kernels of one backend, where there is more to say than where they are.

    - `path`: the module, relative to the package in which the settings class is defined.
    - `refuse(tensors, settings)`: `None`, or why these kernels cannot take the call (they may not be loaded for the answer).
    - `prepare(tensors, settings) -> tensors`: differentiable plain torch that runs before the kernels.
    - `partial`: eagerly, backward takes `None` for the gradient of an output that nobody used, instead of zeros.
    """

    path: str
    refuse: Refuse | None = None
    prepare: Callable[[Sequence[Tensor], Any], Sequence[Tensor]] | None = None
    partial: bool = False


class Operation(Generic[S]):
    """One operation of a domain: see the module's text. Called with tensors, settings and a backend's name, it runs.

    - `settings`: the frozen dataclass; options in it are interned (`core.identity.interned`).
    - `inputs`: names of the tensors; those at the end may be missing in a call, and the last may be "*rest".
    - `reference(tensors, settings) -> outputs`: plain torch, differentiable to any order, on any device.
    - `kernels`: the kernel module of each backend that has one.
    - `outputs`: how many, or a function of (number of tensors, settings).
    - `shared`: names of the tensors that have no batch dimensions. All others, and outputs and what is saved, must accept any
      number of leading batch dimensions, the same for each.
    - `hosted`: names of the tensors that may be on any device, such as tables; a kernel moves them itself.
    - `fake(tensors, settings) -> outputs`: empty tensors; left out, the reference runs on fake ones.
    - `refuse(tensors, settings)`: `None`, or why no kernel can take the call.
    - `example(device) -> (tensors, settings)`: a typical small call, which `algonet doctor` asks each backend about.
    """

    def __init__(
        self,
        name: str,
        *,
        settings: type[S],
        inputs: Sequence[str],
        reference: Callable[[Sequence[Tensor], S], Sequence[Tensor]],
        kernels: Mapping[str, str | KernelModule],
        outputs: int | Callable[[int, S], int] = 1,
        shared: Iterable[str] = (),
        hosted: Iterable[str] = (),
        fake: Callable[[Sequence[Tensor], S], Sequence[Tensor]] | None = None,
        refuse: Refuse | None = None,
        example: Callable[[str], tuple[Sequence[Tensor], S]] | None = None,
    ):
        self.name, self.settings, self.inputs, self.reference = name, settings, tuple(inputs), reference
        self._check(shared, kernels)
        self.hosted = frozenset(self.inputs.index(tensor) for tensor in hosted)
        self.outputs, self.fake, self.refuse = outputs, fake or reference, refuse
        self.shared = frozenset(self.inputs.index(tensor) for tensor in shared)
        self.kernels = {
            backend: module if isinstance(module, KernelModule) else KernelModule(module)
            for backend, module in kernels.items()
        }
        self.operators = {backend: self._operator(backend, module) for backend, module in self.kernels.items()}
        self._runs: Cache[Callable[[Sequence[Tensor], S], Sequence[Tensor]]] = Cache(f"calls of {name}", 1024)
        self._implementations = backends.add(
            name,
            [
                backends.Implementation(backend, self._runner(backend), self._supports(backend))
                for backend in (*self.kernels, "reference")
            ],
            None if example is None else lambda device: Call(*example(device)),
        )

    def __call__(self, tensors: Sequence[Tensor], settings: S, backend: str = "auto") -> Sequence[Tensor]:
        """The outputs, on the backend that is named or the fastest that takes the call."""
        if tracing.compiling():
            return self.choose(tensors, settings, backend).run(Call(tensors, settings))
        return self.runner(tensors, settings, backend)(tensors, settings)

    def choose(self, tensors: Sequence[Tensor], settings: S, backend: str) -> backends.Implementation:
        """Which implementation takes the call; raises with the reasons if none does."""
        return backends.pick(self.name, self._implementations, backend, Call(tensors, settings))

    def runner(
        self, tensors: Sequence[Tensor], settings: S, backend: str = "auto"
    ) -> Callable[[Sequence[Tensor], S], Sequence[Tensor]]:
        """What runs calls like this one: a function of (tensors, settings), to be kept with a call's signature."""
        key = (backend, settings, *[(t.shape, t.dtype, t.device) for t in tensors])
        found = self._runs.find(key)
        if found is None:
            chosen = self.choose(tensors, settings, backend).backend
            found = self._runs.put(key, self.on(chosen))
        return found

    def on(self, backend: str) -> Callable[[Sequence[Tensor], S], Sequence[Tensor]]:
        """The operation on one backend, without a look at whether that takes the call."""
        if backend == "reference":
            return self.reference
        operator, prepare = self.operators[backend], self.kernels[backend].prepare
        if prepare is None:
            return operator
        return lambda tensors, settings: operator(prepare(tensors, settings), settings)

    def __repr__(self) -> str:
        return f"Operation({self.name}: {', '.join(self._implementations)})"

    def _check(self, shared: Iterable[str], kernels: Mapping[str, Any]) -> None:
        params = getattr(self.settings, "__dataclass_params__", None)
        if not dataclasses.is_dataclass(self.settings) or not params.frozen:  # pyright: ignore[reportOptionalMemberAccess]
            raise TypeError(f"Operation {self.name}: settings must be a frozen dataclass, got {self.settings!r}.")
        for tensor in shared:
            if tensor not in self.inputs:
                raise ValueError(f"Operation {self.name}: shared tensor {tensor!r} is not among inputs {self.inputs}.")
        for backend in kernels:
            if backend not in backends.KERNEL_BACKENDS:
                known = ", ".join(backends.KERNEL_BACKENDS)
                raise ValueError(f"Operation {self.name}: unknown backend {backend!r}; those with kernels are {known}.")

    def _runner(self, backend: str) -> Callable[[Call[S]], Sequence[Tensor]]:
        run = self.on(backend)
        return lambda call: run(call.tensors, call.settings)

    def _supports(self, backend: str) -> Callable[[Call[S]], str | None]:
        if backend == "reference":
            return lambda call: None
        asked = backends.KERNEL_BACKENDS[backend].why_not
        refusals = [refuse for refuse in (self.refuse, self.kernels[backend].refuse) if refuse is not None]

        def supports(call: Call[S]) -> str | None:
            reason = asked([t for i, t in enumerate(call.tensors) if i not in self.hosted])
            for refuse in refusals:
                if reason is None:
                    reason = refuse(call.tensors, call.settings)
            return reason

        return supports

    def _operator(self, backend: str, kernels: KernelModule) -> Operator:
        name = f"{self.name}_{backend}"
        package = self.settings.__module__.rpartition(".")[0]

        def load() -> Any:
            return importlib.import_module(kernels.path, package)

        def forward(tensors: list[Tensor], settings: S) -> tuple[list[Tensor], list[Tensor]]:
            # From the second call on without a look for the module
            module = load()
            operator.forward = getattr(module, f"{self.name}_forward")
            operator.backward = getattr(module, f"{self.name}_backward")
            return operator.forward(tensors, settings)

        def backward(*arguments: Any) -> Sequence[Tensor | None]:
            return getattr(load(), f"{self.name}_backward")(*arguments)

        def fake(tensors: list[Tensor], settings: S) -> tuple[list[Tensor], list[Tensor]]:
            saved = getattr(load(), f"{self.name}_saved", None)
            return list(self.fake(tensors, settings)), [] if saved is None else list(saved(tensors, settings))

        operator = Operator(
            name,
            forward=forward,
            backward=backward,
            reference=self.reference,  # pyright: ignore[reportArgumentType]
            fake=fake,
            outputs=self.outputs,
            shared=self.shared,
            partial=kernels.partial,
            encode=codec.encode,
            decode=codec.decode,
        )
        return operator

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

    SoftSortPlan(signature)                  what runs the calls of one signature: see `autograd.Plan`

A plan that holds nothing between calls is made of functions: `SoftSortPlan = plan_from(forward, backward, saved)`.

From the declaration follow the registration with the backends (device and precision are refused by the backend, the rest by
`refuse`), autograd with second derivatives, forward mode and vmap, the operators `algonet::soft_sort_numba` and `..._triton`
with their fake tensors for `torch.compile` and `torch.export`, the text that settings are there, and the doctor's row.

The second call of a signature asks nobody whether it can run, and what its kernels need is there.
"""

from __future__ import annotations

import importlib
import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor

from algonet.core import backends, tracing
from algonet.core.autograd import Operator, Plan
from algonet.core.identity import PLANS

#: What a signature holds of a tensor beside its strides, read without a frame of Python.
_ABOUT = operator.attrgetter("shape", "dtype", "device", "requires_grad")

S = TypeVar("S")
Refuse = Callable[[Sequence[Tensor], S], str | None]


@dataclass(frozen=True)
class KernelModule:
    """The kernels of one backend, where there is more to say than where they are.

    - `path`: the module, relative to the package in which the settings class is defined.
    - `refuse(tensors, settings)`: `None`, or why these kernels cannot take the call (they may not be loaded for the answer).
    - `prepare(tensors, settings) -> tensors`: differentiable plain torch that runs before the kernels.
    """

    path: str
    refuse: Refuse | None = None
    prepare: Callable[[Sequence[Tensor], Any], Sequence[Tensor]] | None = None


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
        self.hosted = frozenset(self.inputs.index(tensor) for tensor in hosted)
        self.outputs, self.fake, self.refuse = outputs, fake or reference, refuse
        self.shared = frozenset(self.inputs.index(tensor) for tensor in shared)
        self.kernels = {
            backend: module if isinstance(module, KernelModule) else KernelModule(module)
            for backend, module in kernels.items()
        }
        self.operators = {backend: self._operator(backend, module) for backend, module in self.kernels.items()}
        self.backends, self.example = (*self.kernels, "reference"), example
        OPERATIONS[name] = self

    def __call__(self, tensors: Sequence[Tensor], settings: S, backend: str = "auto") -> Sequence[Tensor]:
        """The outputs, on the backend that is named or the fastest that takes the call."""
        return self.bind(tensors, settings, backend)(tensors)

    def choose(self, tensors: Sequence[Tensor], settings: S, backend: str) -> str:
        """Which backend takes the call; raises with the reasons if none does."""
        return backends.pick(self.name, backend, self.backends, lambda name: self.why_not(name, tensors, settings))

    def why_not(self, backend: str, tensors: Sequence[Tensor], settings: S) -> str | None:
        """`None`, or why a backend cannot take the call."""
        if backend == "reference":
            return None
        reason = backends.KERNEL_BACKENDS[backend].why_not([t for i, t in enumerate(tensors) if i not in self.hosted])
        for refuse in (self.refuse, self.kernels[backend].refuse):
            if reason is None and refuse is not None:
                reason = refuse(tensors, settings)
        return reason

    def bind(
        self, tensors: Sequence[Tensor], settings: S, backend: str = "auto"
    ) -> Callable[[Sequence[Tensor]], Sequence[Tensor]]:
        """What runs calls like this one, as a function of their tensors."""
        if tracing.compiling() or tracing.interpreter() is not None or tracing.modes():
            return self.on(self.choose(tensors, settings, backend), tensors, settings)
        about = (*map(_ABOUT, tensors), *map(Tensor.stride, tensors))
        key = self, backend, settings, torch.is_grad_enabled(), about
        found = PLANS.find(key)
        if found is None:
            found = PLANS.put(key, self.on(self.choose(tensors, settings, backend), tensors, settings))
        return found

    def on(
        self, backend: str, tensors: Sequence[Tensor], settings: S
    ) -> Callable[[Sequence[Tensor]], Sequence[Tensor]]:
        """The operation on one backend for calls like this one, without a look at whether that takes them."""
        if backend == "reference":
            return lambda tensors: self.reference(tensors, settings)
        operator, prepare = self.operators[backend], self.kernels[backend].prepare
        if prepare is None:
            return operator.bound(tensors, settings)
        return lambda tensors: operator(prepare(tensors, settings), settings)

    def __repr__(self) -> str:
        return f"Operation({self.name}: {', '.join(self.backends)})"

    def _operator(self, backend: str, kernels: KernelModule) -> Operator:
        name = f"{self.name}_{backend}"
        package = self.settings.__module__.rpartition(".")[0]

        def load() -> type[Plan]:
            module = importlib.import_module(kernels.path, package)
            return getattr(module, "".join(map(str.title, self.name.split("_"))) + "Plan")

        return Operator(
            name,
            load=load,
            reference=self.reference,  # pyright: ignore[reportArgumentType]
            fake=self.fake,  # pyright: ignore[reportArgumentType]
            outputs=self.outputs,
            shared=self.shared,
        )


#: Every operation by its name.
OPERATIONS: dict[str, Operation] = {}


def example_calls(device: str) -> dict[str, tuple[Sequence[Tensor], Any]]:
    """A typical small call (tensors, settings) of each operation that has one, sorted by name."""
    return {name: o.example(device) for name, o in sorted(OPERATIONS.items()) if o.example is not None}


def survey(device: str = "cpu") -> dict[str, dict[str, str | None]]:
    """For each operation and backend: `None` if it would run a typical call on `device`, else why not."""
    return {
        name: {backend: OPERATIONS[name].why_not(backend, *call) for backend in OPERATIONS[name].backends}
        for name, call in example_calls(device).items()
    }

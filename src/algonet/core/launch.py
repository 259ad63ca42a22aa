"""Triton kernels, started with little in between."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from algonet.core.backends import interpreting
from algonet.core.cache import cached
from algonet.core.codegen import store
from algonet.core.identity import PLANS


class Launch:
    """A Triton kernel with its grid, numbers and constants: all that it takes but its tensors, by name.

        launch = Launch(kernel, (tiles, items), warps=4, count=n, height=h, WEIGHTED=True)
        launch.start(points=points, weights=weights, out=out)

    The order of arguments comes from the kernel's own signature, once. A call through Triton's own front door looks at every
    argument, which takes 50 to 100 microseconds: longer than many kernels run. From the second call on the compiled code is
    started directly, in ten to fifteen. That is sound for kernels that specialise on none of their tensors and numbers
    (`do_not_specialize`): then types alone choose the code, and the tensors of one `Launch` must have the same types, on the
    same device, in every call. Nothing here checks that: a backend has refused tensors of other devices before, and what is
    known to run has its devices in its signature. Not `fused`, products are rounded before they are added, as on the CPU.
    """

    def __init__(
        self,
        kernel: Any,
        grid: int | Sequence[int],
        warps: int = 4,
        registers: int | None = None,
        fused: bool = True,
        **values: Any,
    ):
        self.kernel, self.grid = kernel, (*((grid,) if isinstance(grid, int) else grid), 1, 1)[:3]
        tensors, rest, constants = _signature(kernel, tuple(values))
        self.start: Callable[..., None] = _by_name(tensors)(self)
        self.rest = tuple([values[name] for name in rest])
        # Said, because releases of Triton differ in what they do unasked; AMD's compiler knows no limit of registers
        self.options = {"num_warps": warps, "enable_fp_fusion": fused}
        if registers is not None and torch.version.hip is None:
            self.options["maxnreg"] = registers
        # Triton takes an integer for 32 or 64 bits wide by its size, so code is shared between narrow ones only
        narrow = all(abs(values[name]) < 2**31 for name in rest if name not in constants)
        self.key = (kernel, *[values[name] for name in constants], warps, registers, fused) if narrow else None
        self.again: Any = None
        self.device: int | None = None

    def _start(self, tensors: tuple[Tensor, ...]) -> None:
        """The first times, and where there are several devices to be on."""
        if self.again is None:
            self._first(tensors)
        else:
            with torch.cuda.device(self.device):
                self.again(*[t.data_ptr() for t in tensors], *self.rest)

    def _first(self, tensors: tuple[Tensor, ...]) -> None:
        if 0 in self.grid:
            return
        if interpreting():
            self.kernel[self.grid](*tensors, *self.rest)
            return
        store.guard_triton()
        with torch.cuda.device(tensors[0].device):
            key = None if self.key is None else (Launch, self.key, tensors[0].device, *(t.dtype for t in tensors))
            compiled = PLANS.find(key) if key is not None else None
            if compiled is None:
                compiled = self.kernel[self.grid](*tensors, *self.rest, **self.options)
                if key is not None:
                    PLANS.put(key, compiled)
                return
            again = compiled[self.grid]
            again(*tensors, *self.rest)
        # With one device there is no other to be on
        self.device = tensors[0].device.index if torch.cuda.device_count() > 1 else None
        self.again = again if self.device is not None else _straight(compiled, self.grid, again)


def _straight(compiled: Any, grid: tuple[int, ...], runner: Callable[..., None]) -> Callable[..., None]:
    """What `runner` does, on the only device, without what it does for launch hooks while there are none.

    Triton asks for the device, makes a dictionary for the hooks and calls two empty lists of them, every time: 20 microseconds
    for all of a launch on the host of an H200, 12 to 16 without that.
    """
    try:
        from triton import knobs
        from triton.runtime import driver

        active: Any = driver.active
        hooks, stream_of = knobs.runtime, active.get_current_stream
        run, function, metadata = compiled.run, compiled.function, compiled.packed_metadata
        (x, y, z), device = grid, active.get_current_device()
        _ = hooks.launch_enter_hook.calls, hooks.launch_exit_hook.calls
    except (ImportError, AttributeError):  # other releases than 3.5 to 3.7
        return runner

    def straight(*arguments: Any) -> None:
        if hooks.launch_enter_hook.calls or hooks.launch_exit_hook.calls:
            runner(*arguments)
        else:
            run(x, y, z, stream_of(device), function, metadata, None, None, None, *arguments)

    return straight


@cached
def _signature(kernel: Any, values: tuple[str, ...]) -> tuple[tuple[str, ...], ...]:
    """A kernel's arguments in order: its tensors, those that are not among `values`; the rest; and which of these are constants
    (`tl.constexpr`), for whose values the kernel is compiled."""
    names, function = tuple(kernel.arg_names), getattr(kernel, "fn", kernel)
    if unknown := [name for name in values if name not in names]:
        raise TypeError(f"{function.__name__} has no argument {', '.join(unknown)}; it takes {names}.")
    count = len(names) - len(values)
    if late := [name for name in names[:count] if name in values]:
        raise TypeError(f"{function.__name__}: tensors come first in its signature, not {', '.join(late)}.")
    constants = [name for name in names[count:] if "constexpr" in str(function.__annotations__.get(name))]
    return names[:count], names[count:], tuple(constants)


@cached
def _by_name(names: tuple[str, ...]) -> Callable[[Launch], Callable[..., None]]:
    """Makes the `start` of a launch, with these keywords.

    Keywords of a function's own signature cost no more than places do; with `**keywords`, Python fills dictionaries, which
    takes a microsecond for a dozen. Triton takes addresses as numbers; of tensors it asks the driver whether it can reach
    them, every time.
    """
    listed, addresses = ", ".join(names), ", ".join(f"{name}.data_ptr()" for name in names)
    lines = (
        "def named(launch):",
        f"    def start({listed}):",
        "        if launch.again is None or launch.device is not None:",
        f"            launch._start(({listed},))",
        "        else:",
        f"            launch.again({addresses}, *launch.rest)",
        "    return start",
    )
    scope: dict[str, Any] = {}
    exec("\n".join(lines), scope)
    return scope["named"]

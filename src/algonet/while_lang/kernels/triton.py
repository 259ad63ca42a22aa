"""On the GPU: one warp per block, one element per thread, so that "is any element live?" is one instruction."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from torch import Tensor

from algonet.core.cache import cached
from algonet.core.codegen import generate as codegen
from algonet.core.launch import Launch

from ..compiler import HEAD, Emitter, KernelSpec, Line, lower
from . import WhilePlan

#: Elements of a block: the threads of one warp.
BLOCK = 32
_NAMES = {"NAN": 'float("nan")', "INF": 'float("inf")', "ZERO": "zero", "INSIDE": "inside"}
_PLACE = re.compile(r"(\w+)\[(.+?)\]")


class RunWhilePlan(WhilePlan):
    """On a GPU, one element a thread."""

    block = BLOCK

    def starter(self, spec: KernelSpec) -> Callable[[list[Tensor]], None]:
        kernel = _kernel(spec)
        epsilon, cap = self.settings.epsilon, self.settings.max_iterations
        launch = Launch(kernel, -(-self.n // BLOCK), warps=1, epsilon=epsilon, cap=cap, n=self.n, BLOCK=BLOCK)
        return lambda tensors: launch.start(*tensors)


@cached
def _kernel(spec: KernelSpec) -> Any:
    return codegen.load("while_triton", source(spec)).run


class _Writer(Emitter):
    def line(self, line: Line) -> None:
        expression = codegen.translated(_PLACE.sub(_loaded, line.expression), "triton")
        for name, theirs in _NAMES.items():
            expression = expression.replace(name, theirs)
        place = _PLACE.fullmatch(line.target)
        if place is None:
            self.write(f"{line.target} = {expression}")
        elif place[1] == "slopes":
            self.write(f"tl.store(slopes + {place[2]}, tl.sum(tl.where(good, {expression}, zero), 0))")
        else:
            self.write(f"tl.store({place[1]} + {place[2]}, {expression}, mask=inside)")

    def ask(self, level: int) -> None:
        self.write(f"alive{level} = tl.max(live.to(tl.int32), 0)")


def _loaded(place: re.Match[str]) -> str:
    own = ", mask=inside, other=0.0" if "item" in place[2] else ""
    return f"tl.load({place[1]} + {place[2]}{own})"


def source(spec: KernelSpec) -> str:
    """The module: `run(*spec.arguments)`."""
    writer, body = _Writer(1), lower(spec)
    for name in body.state:
        # What belongs to a loop or a branch is set where it begins
        if not re.match(r"d?([pr][1-9]|h\d)", name):
            writer.write(f"{name} = zero")
    writer.steps([*body.shared, *body.own, *body.steps, *body.last])
    return f'''{HEAD.format(spec=spec)}
{codegen.PRELUDES["triton"]}

{codegen.scalar_function(spec.settings.exit, "phi", "triton")}

@triton.jit
def bounded(slope):
    """A tangent kept in range: a loop that never halts can drive it beyond, and a gradient must stay finite."""
    return tl.where(slope == slope, tl.minimum(tl.maximum(slope, -1e30), 1e30), 0.0)


@kernel
def run({", ".join(spec.arguments)}, BLOCK: tl.constexpr):
    block = tl.program_id(0).to(tl.int64)
    item = block * BLOCK + tl.arange(0, BLOCK)
    inside = item < n
    zero = tl.zeros([BLOCK], dtype={"slopes" if spec.seeds else "values"}.dtype.element_ty)
{chr(10).join(writer.lines)}
'''

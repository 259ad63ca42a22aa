"""What launches the GPU kernels: tensors on the device, rows in scratch memory of bounded size."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from algonet.core.autograd import plan_from
from algonet.core.identity import PLANS
from algonet.core.launch import Launch

from ...operation import ProgramSettings
from . import device

#: Bytes of rows at a time; longer programs or larger batches run in several launches.
SCRATCH = 256 * 2**20
#: Items per program: one per lane of its single warp, so that rows never change hands between threads.
BLOCK = 32


class _Ready:
    """The tensors of a call as the kernels want them."""

    def __init__(self, tensors: Sequence[Tensor]):
        x, steepness, constants, program, wanted, seed = tensors
        self.x = x.reshape(-1, x.shape[-1]).contiguous()
        self.count, self.columns = self.x.shape
        self.length, self.results = program.shape[0], wanted.shape[0]
        self.blocks = -(-self.count // BLOCK)
        self.inputs = {
            "x": self.x,
            "steepness": steepness.contiguous(),
            "constants": constants.contiguous(),
            "program": program.to(x.device, non_blocking=True).contiguous(),
            "wanted": wanted.to(x.device, non_blocking=True),
            "seed": seed.to(x.device, non_blocking=True),
        }

    def stretches(self, copies: int) -> Iterator[tuple[int, int]]:
        """(first block, blocks) of each launch, such that `copies` sets of rows fit into the scratch."""
        each = copies * self.length * BLOCK * self.x.element_size()
        size = max(1, min(self.blocks, SCRATCH // max(each, 1)))
        for start in range(0, self.blocks, size):
            yield start, min(size, self.blocks - start)

    def launch(self, kernel: Any, start: int, blocks: int, **more: int) -> Launch:
        """The kernel for these blocks; made once for each size of batch and program."""
        sizes: dict[str, Any] = {"start": start, "count": self.count, "columns": self.columns, **more}
        sizes |= {"length": self.length, "results": self.results}
        key = (kernel, self.x.dtype, self.x.get_device(), blocks, *sizes.values())
        found = PLANS.find(key)
        if found is None:
            found = PLANS.put(key, Launch(kernel, blocks, warps=1, BLOCK=BLOCK, **sizes))
        return found


def smooth_program_forward(tensors: Sequence[Tensor], settings: ProgramSettings) -> tuple[list[Tensor], list[Tensor]]:
    x = tensors[0]
    ready = _Ready(tensors)
    y = x.new_empty(ready.count, ready.results)
    kernel = device.kernels(settings.formulas).forward_kernel
    for start, blocks in ready.stretches(1):
        rows = x.new_empty(blocks, ready.length, BLOCK)
        ready.launch(kernel, start, blocks).start(**ready.inputs, y=y, scratch=rows)
    return [y.reshape(*x.shape[:-1], ready.results)], []


def smooth_program_backward(
    grads: Sequence[Tensor],
    tensors: Sequence[Tensor],
    saved: Sequence[Tensor],
    settings: ProgramSettings,
    needs: Sequence[bool],
) -> list[Tensor | None]:
    x = tensors[0]
    ready = _Ready(tensors)
    gx = torch.zeros_like(ready.x)
    scales = tensors[1].shape[0]
    gs = x.new_zeros(ready.blocks, scales, BLOCK)
    g = grads[0].reshape(ready.count, ready.results).contiguous()
    kernel = device.kernels(settings.formulas).backward_kernel
    for start, blocks in ready.stretches(2):
        rows = x.new_empty(blocks, ready.length, BLOCK)
        slopes = x.new_zeros(blocks, ready.length, BLOCK)
        launch = ready.launch(kernel, start, blocks, scales=scales)
        launch.start(**ready.inputs, g=g, gx=gx, gs=gs, scratch=rows, sums=slopes)
    by_steepness = gs.sum((0, 2)) if needs[1] else None
    constants = torch.zeros_like(tensors[2]) if needs[2] else None
    return [gx.reshape(x.shape), by_steepness, constants, None, None, None]


SmoothProgramPlan = plan_from(smooth_program_forward, smooth_program_backward)

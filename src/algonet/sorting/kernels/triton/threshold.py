"""Memberships by threshold on the GPU: many rows in one launch, few long rows over the whole device in several."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from algonet.core.autograd import Plan
from algonet.core.identity import Signature
from algonet.core.launch import Launch
from algonet.relax import Sigmoid

from ...reference import ThresholdSettings, empty_like
from .source import kernels, processors

#: Items from which on a row is cut into parts, if rows alone would leave most processors idle.
LONG = 32768
#: Items that a program of a long row takes at least.
PART = 4096
#: Steps of the search over long rows. Six are usual; those after the last do nothing. Each cuts the bracket to a quarter
#: and halves the range of exponents, so these suffice for numbers of any scale.
STEPS = 24
#: Thresholds that a step over long rows tries at once.
CANDIDATES = 8
#: Items of a long row that are read at once.
BLOCK = 512


class SoftTopkMaskPlan(Plan):
    def __init__(self, signature: Signature):
        super().__init__(signature)
        x, k = signature.tensors[0], signature.tensors[3]
        #: From row to row of k as kernels read it: 0 where one number stands for all.
        self.step = int(any(k.strides) or not k.strides)
        rows, n = math.prod(x.shape[:-1]), x.shape[-1]
        kind = LongSolver if n >= LONG and 2 * rows <= processors(x.device) else RowSolver
        self.solver = kind(self.settings, rows, n, x.dtype, x.device, self.step) if rows * n else None

    @classmethod
    def saves(cls, signature: Signature) -> list[tuple[torch.Size, torch.dtype]]:
        return [(signature.tensors[0].shape[:-1], torch.float64)]

    def forward(self, tensors: Sequence[Tensor]) -> tuple[list[Tensor], list[Tensor]]:
        x, k = tensors[0], tensors[3]
        memberships = empty_like(x)
        thresholds = torch.empty(x.shape[:-1], dtype=torch.float64, device=x.device)
        if self.solver is not None:
            k = k.contiguous() if self.step else k
            self.solver.forward({**_given(tensors), "k_ptr": k, "out_ptr": memberships, "threshold_ptr": thresholds})
        return [memberships], [thresholds]

    def backward(
        self, grads: Sequence[Any], tensors: Sequence[Tensor], saved: Sequence[Tensor], needs: Sequence[bool]
    ) -> list[Any]:
        x = tensors[0]
        grad_x = empty_like(x)
        grad_k = torch.empty(x.shape[:-1], dtype=torch.float64, device=x.device)
        if self.solver is None:
            return [grad_x, None, torch.zeros_like(tensors[2]), grad_k.zero_()]
        given = {**_given(tensors), "threshold_ptr": saved[0].contiguous(), "grad_ptr": grads[0].contiguous()}
        by_s = self.solver.backward({**given, "grad_x_ptr": grad_x, "grad_k_ptr": grad_k})
        return [grad_x, None, by_s.sum().to(x.dtype) if needs[2] else None, grad_k if needs[3] else None]


def _given(tensors: Sequence[Tensor]) -> dict[str, Tensor]:
    """What all kernels read."""
    x, mask, steepness, _ = tensors
    return {"x_ptr": x.contiguous(), "mask_ptr": mask.contiguous().view(torch.uint8), "steepness_ptr": steepness}


class RowSolver:
    """A program takes some rows from beginning to end."""

    def __init__(
        self, settings: ThresholdSettings, rows: int, n: int, dtype: torch.dtype, device: torch.device, step: int
    ):
        module = kernels("threshold", settings.sigmoid)
        block = min(max(16, 1 << (n - 1).bit_length()), 4096)
        per_program = max(1, min(1024 // block, 16))
        warps = max(1, min(16, block * per_program // 256))
        common = {"count": rows, "n": n, "MASKED": settings.masked, "ROWS": per_program, "BLOCK": block, "warps": warps}
        grid = -(-rows // per_program)
        numbers = {"k_step": step, **_precision(settings.sigmoid, dtype)}
        self._forward = Launch(module.rows_forward_kernel, grid, **common, **numbers)
        self._backward = Launch(module.rows_backward_kernel, grid, **common)

    def forward(self, given: dict[str, Tensor]) -> None:
        self._forward.start(**given)

    def backward(self, given: dict[str, Tensor]) -> Tensor:
        """Parts of the gradient by the steepness."""
        by_s = torch.empty_like(given["grad_k_ptr"])
        self._backward.start(**given, grad_s_ptr=by_s)
        return by_s


class LongSolver:
    """A row is cut into parts, a program each; the steps of the search are launches."""

    def __init__(
        self, settings: ThresholdSettings, rows: int, n: int, dtype: torch.dtype, device: torch.device, step: int
    ):
        module = kernels("threshold", settings.sigmoid)
        parts = max(1, min(-(-n // PART), 4 * processors(device) // rows))
        chunk = math.ceil(math.ceil(n / parts) / BLOCK) * BLOCK
        self.rows, self.parts = rows, -(-n // chunk)
        #: Of a row's state.
        self.numbers = module.STATE.value
        grid, together = rows * self.parts, 1 << (self.parts - 1).bit_length()
        precision = _precision(settings.sigmoid, dtype)
        reach = precision.pop("reach")
        cut = {"n": n, "parts": self.parts, "chunk": chunk, "MASKED": settings.masked, "BLOCK": BLOCK}
        self._survey = Launch(module.survey_kernel, grid, **cut)
        self._gather = Launch(module.gather_kernel, rows, k_step=step, reach=reach, parts=self.parts, PARTS=together)
        self._search = [
            Launch(
                module.search_kernel, grid, lines=rows, k_step=step, turn=turn, C=CANDIDATES, PARTS=together,
                warps=8, **precision, **cut,
            )
            for turn in range(1, STEPS + 1)
        ]  # fmt: skip
        self._members = Launch(module.members_kernel, grid, lines=rows, k_step=step, turn=STEPS, **cut)
        self._sums = Launch(module.sums_kernel, grid, **cut)
        self._slopes = Launch(module.slopes_kernel, grid, PARTS=together, **cut)
        self.device = device

    def _scratch(self, *shape: int) -> Tensor:
        return torch.empty(shape, dtype=torch.float64, device=self.device)

    def forward(self, given: dict[str, Tensor]) -> None:
        found = self._scratch(2, self.rows * self.parts, 4 * CANDIDATES)
        state = self._scratch(STEPS + 1, self.rows, self.numbers)
        read = {name: given[name] for name in ("x_ptr", "mask_ptr")}
        sought = {name: given[name] for name in ("steepness_ptr", "k_ptr")}
        self._survey.start(**read, part_ptr=found)
        self._gather.start(**sought, part_ptr=found, state_ptr=state)
        for step in self._search:
            step.start(**read, **sought, part_ptr=found, state_ptr=state)
        self._members.start(**given, state_ptr=state)

    def backward(self, given: dict[str, Tensor]) -> Tensor:
        """Parts of the gradient by the steepness."""
        found, by_s = self._scratch(self.rows * self.parts, 2), self._scratch(self.rows * self.parts)
        self._sums.start(part_ptr=found, **{k: t for k, t in given.items() if k not in ("grad_x_ptr", "grad_k_ptr")})
        self._slopes.start(**given, part_ptr=found, grad_s_ptr=by_s)
        return by_s


def _precision(sigmoid: Sigmoid, dtype: torch.dtype) -> dict[str, float]:
    """How far beyond the items the threshold may lie, and which step or error ends the search (`threshold_device.py`)."""
    tolerance, rounding = (1e-4, 2e-7) if dtype == torch.float32 else (3e-8, 2e-16)
    return {"reach": float(sigmoid.reach(1e-9)), "tolerance": tolerance, "rounding": rounding}

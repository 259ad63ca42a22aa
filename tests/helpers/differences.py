"""Gradients against central differences, along one random direction for each input: cheap at the sizes people use."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

#: Small: where a normal turns away from the eye, pictures bend within a hundredth of a cosine.
STEP = 1e-6


def assert_gradients_are_right(
    call: Callable[..., Sequence[Tensor]], inputs: dict[str, Tensor], relative: float = 1e-3, absolute: float = 1e-5
) -> None:
    """Every output's gradient by every input is finite and what central differences in float64 say."""
    generator = torch.Generator().manual_seed(1)
    inputs = {name: t.detach().clone().requires_grad_() for name, t in inputs.items()}
    weights = [torch.randn(o.shape, generator=generator, dtype=torch.float64).to(o) for o in call(**inputs)]
    ways = {name: torch.randn(t.shape, generator=generator, dtype=t.dtype) for name, t in inputs.items()}

    def sums(**moved: Tensor) -> list[Tensor]:
        return [(o * w).sum() for o, w in zip(call(**{**inputs, **moved}), weights, strict=True) if o.numel()]

    with torch.no_grad():
        differences = {
            name: [(a - b) / (2 * STEP) for a, b in zip(
                sums(**{name: inputs[name] + STEP * way}), sums(**{name: inputs[name] - STEP * way}), strict=True
            )]
            for name, way in ways.items()
        }  # fmt: skip
    for i, total in enumerate(sums()):
        assert torch.isfinite(total), f"output {i}"
        slopes = torch.autograd.grad(total, list(inputs.values()), retain_graph=True, allow_unused=True)
        for (name, way), slope in zip(ways.items(), slopes, strict=True):
            if slope is None:
                assert differences[name][i] == 0, name
                continue
            assert torch.isfinite(slope).all(), name
            error = abs((slope * way).sum() - differences[name][i])
            assert error <= relative * slope.norm() * way.norm() + absolute, (
                i,
                name,
                float(error),
                float(slope.norm()),
            )
